"""The judge of the benchmark of peers: from who held which shard when, and what the store took, to
the figures of one event. It knows no system.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from tests.benchmarks.frame import percentile

PAUSE_MS: Final = 50.0
_MS: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A program would have served a shard from one time until another, in ns. A pause of the
    program, or its death, is not part of it. `epoch` is new at each opening.
    """

    shard: int
    program: str
    epoch: int
    from_ns: int
    to_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write that reached the store: the count of a shard, for one request."""

    at_ns: int
    shard: int
    program: str
    epoch: int
    request: str
    count: int
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A program did not run."""

    program: str
    from_ns: int
    to_ns: int


def without_pauses(holdings: Iterable[Holding], pauses: Iterable[Pause]) -> list[Holding]:
    """Cut pauses out of holdings."""
    running = list(holdings)
    for pause in pauses:
        running = [
            part
            for one in running
            for part in (_parts(one, pause) if one.program == pause.program else [one])
            if part.from_ns < part.to_ns
        ]
    return running


def _parts(one: Holding, pause: Pause) -> tuple[Holding, Holding]:
    return (
        replace(one, to_ns=min(one.to_ns, pause.from_ns)),
        replace(one, from_ns=max(one.from_ns, pause.to_ns)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The figures of one event. `without_owner_ms` is of each concerned shard: one that had no
    owner for `PAUSE_MS`, or another one afterwards.
    """

    without_owner_ms: Sequence[float]
    two_owners_ms: float
    stale_accepted: int
    refused: int
    lost: int
    doubled: int
    changes: int
    moved: int
    shards: Mapping[str, int]

    def figures(self) -> dict[str, object]:
        """As JSON."""
        ordered = sorted(self.without_owner_ms) or [0.0]
        gaps = {f"p{percent}": round(percentile(ordered, percent), 1) for percent in (50, 99)}
        return {
            "concerned": len(self.without_owner_ms),
            "without_owner_ms": {**gaps, "longest": round(ordered[-1], 1)},
            "two_owners_ms": round(self.two_owners_ms, 1),
            "stale_accepted": self.stale_accepted,
            "refused": self.refused,
            "lost": self.lost,
            "doubled": self.doubled,
            "changes": self.changes,
            "moved": self.moved,
            "shares_of_shards": sorted(self.shards.values(), reverse=True),
        }


def judge(
    holdings: Iterable[Holding], writes: Sequence[Write], *, from_ns: int, to_ns: int
) -> Verdict:
    """Judge what happened in a time, from holdings without pauses and all writes in their order."""
    of_shard = defaultdict[int, list[Holding]](list)
    for each in sorted(holdings, key=lambda each: (each.from_ns, each.epoch)):
        of_shard[each.shard].append(each)
    within = [each for each in writes if from_ns <= each.at_ns < to_ns]
    gaps, owners = list[float](), Counter[str]()
    changes = moved = 0
    two_owners_ms = 0.0
    for _, held in sorted(of_shard.items()):
        span = [
            replace(each, from_ns=max(each.from_ns, from_ns), to_ns=min(each.to_ns, to_ns))
            for each in held
            if each.from_ns < to_ns and each.to_ns > from_ns
        ]
        without_ms, with_two_ms = _gaps_and_overlaps(span, from_ns=from_ns, to_ns=to_ns)
        two_owners_ms = max(two_owners_ms, with_two_ms)
        programs = [each.program for each in span]
        changes += sum(one != other for one, other in pairwise(programs))
        if programs:
            owners[programs[-1]] += 1
        is_moved = len(programs) > 0 and programs[0] != programs[-1]
        moved += is_moved
        if is_moved or without_ms >= PAUSE_MS:
            gaps.append(without_ms)
    applied = [each for each in writes if each.accepted]
    opened_ns = {shard: _openings(held) for shard, held in of_shard.items()}
    return Verdict(
        without_owner_ms=gaps,
        two_owners_ms=two_owners_ms,
        stale_accepted=sum(
            each.accepted and _is_stale(each, opened_ns.get(each.shard, {})) for each in within
        ),
        refused=sum(not each.accepted for each in within),
        lost=sum(_overwritten(applied, from_ns=from_ns, to_ns=to_ns)),
        doubled=_doubled(applied, from_ns=from_ns, to_ns=to_ns),
        changes=changes,
        moved=moved,
        shards=owners,
    )


def _gaps_and_overlaps(span: Sequence[Holding], *, from_ns: int, to_ns: int) -> tuple[float, float]:
    """Return the time without an owner, and that with two, in ms. `span` is in the order of
    beginnings.
    """
    without_ns = with_two_ns = 0
    served_until_ns, program = from_ns, ""
    for each in span:
        without_ns += max(0, each.from_ns - served_until_ns)
        if each.program != program:
            with_two_ns += max(0, min(served_until_ns, each.to_ns) - each.from_ns)
        if each.to_ns > served_until_ns:
            served_until_ns, program = each.to_ns, each.program
    without_ns += max(0, to_ns - served_until_ns)
    return without_ns * _MS, with_two_ns * _MS


def _openings(held: Iterable[Holding]) -> Mapping[tuple[str, int], int]:
    """Return when each program opened a shard. A pause, or a time without the right to serve, does
    not make a new opening.
    """
    opened_ns: dict[tuple[str, int], int] = {}
    for each in held:
        opened_ns.setdefault((each.program, each.epoch), each.from_ns)
    return opened_ns


def _is_stale(write: Write, opened_ns: Mapping[tuple[str, int], int]) -> bool:
    """Whether another program had opened the shard after the writer, and before the write."""
    own_ns = opened_ns.get((write.program, write.epoch), write.at_ns)
    return any(
        program != write.program and own_ns < other_ns <= write.at_ns
        for (program, _), other_ns in opened_ns.items()
    )


def _overwritten(applied: Iterable[Write], *, from_ns: int, to_ns: int) -> Iterable[int]:
    """Yield how many updates each write of a time has overwritten: it counts on from a number that
    is not the last one.
    """
    last = Counter[int]()
    for each in applied:
        if from_ns <= each.at_ns < to_ns:
            yield max(0, last[each.shard] + 1 - each.count)
        last[each.shard] = each.count


def _doubled(applied: Iterable[Write], *, from_ns: int, to_ns: int) -> int:
    """Return how many writes of a time counted a request again."""
    seen, doubled = set[tuple[int, str]](), 0
    for each in applied:
        key = each.shard, each.request
        doubled += key in seen and from_ns <= each.at_ns < to_ns
        seen.add(key)
    return doubled
