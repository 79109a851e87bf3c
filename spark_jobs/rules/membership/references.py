"""Check the offsets that records refer to, and find what follows from entries that are damaged or
missing.

An author refers only to records that it saw accepted. So a reference to an offset where nothing was
accepted shows that one of the two is not what was written.

After damage the fold and the brokers differ: records are rejected here that the brokers accepted,
and digests differ. This *follows* from the damage as long as a rejected record refers to the
damage, or to another record that follows from it. A digest follows from it until one agrees again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from equipoise.spark_jobs.rules.facts import Raw
from equipoise.spark_jobs.rules.membership.members import PREFIX
from equipoise.spark_jobs.rules.memory import StateRow, StateTable
from equipoise.spark_jobs.rules.rule import ACCEPTED

BLOCK: Final = 1_024
BLOCKS_MAX: Final = 64
"""Blocks of offsets to remember, one bit each: 8 kB for the last 65,536. References to older ones
are not checked."""

GAPS_MAX: Final = 16
SUSPECTS_MAX: Final = 10_000
"""Gaps, and rejected records that follow from damage, to remember. The oldest are forgotten."""

_BY_STATE: Final = frozenset({"illegal_transition", "not_adjacent", "not_the_actor", "still_alive"})
"""Verdicts that a correct author gets only if its state differs from the fold's. While that is so
by damage, they prove nothing against the author."""

_ROW: Final = f"{PREFIX}references"


@dataclass(frozen=True, slots=True, kw_only=True)
class Referring:
    """What a folded entry refers to.

    * `verdict`: `accepted`, or the fold's reason.
    * `bases`: the offsets that it expects of its keys; `others`: of its publisher and targets.
    * `gap_from`: the first missing offset below it; None if none is missing.
    * `agrees`: whether the digest of an accepted renewal is the view's; None for other records.
    """

    offset: int
    bases: Sequence[int] = ()
    others: Sequence[int] = ()
    verdict: str = ""
    is_damaged: bool = False
    gap_from: int | None = None
    agrees: bool | None = None


class Referred(NamedTuple):
    """What was found.

    * `nothing_at`: an offset on which the record is based, and where nothing was accepted.
    * `follows`: the damaged or missing offset of which the rejection, or the digest, follows.
    * `gap`: the last missing offsets before a digest that differs, if any are missing.
    * `events`: events of the log.
    """

    nothing_at: int | None = None
    gap: Sequence[int] | None = None
    follows: int | None = None
    events: Sequence[Raw] = ()


_FINE: Final = Referred()


@dataclass(slots=True, kw_only=True)
class Damage:
    """What is known of damage.

    * `known_from`: offsets up to here are not known.
    * `agreed`: the last offset at which a digest agreed.
    * `gaps`: [first, below] of missing offsets above `agreed`, which may be regular.
    * `lost`: the same for those that had records.
    * `suspects`: by offset of a damaged entry, or of a record that follows from damage, the damage.
    * `spread`: the damages that were reported to spread.
    * `differs`: the damage since which digests may differ; None if they must agree.
    * `subjects`: by subject whose state is unknown since, the damage.
    """

    known_from: int = 0
    agreed: int = 0
    gaps: list[list[int]] = field(default_factory=list)
    lost: list[list[int]] = field(default_factory=list)
    suspects: dict[int, int] = field(default_factory=dict)
    spread: list[int] = field(default_factory=list)
    differs: int | None = None
    subjects: dict[str, int] = field(default_factory=dict)


class References:
    """The accepted offsets, and the damage."""

    def __init__(self) -> None:
        """Begin empty, at a log's genesis. `begin` and `restore` set another state."""
        self._blocks = StateTable[int, int](
            f"{PREFIX}accepted:",
            int,
            lambda bits: bits.to_bytes(BLOCK // 8, "little"),
            lambda data: int.from_bytes(data, "little"),
        )
        self._damage = Damage()

    def begin(self, offset: int) -> None:
        """Forget everything. Offsets up to `offset` are not known."""
        self._blocks.replace({})
        self._damage = Damage(known_from=offset, agreed=offset)

    def changed_rows(self) -> list[StateRow]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        damage = asdict(self._damage)
        damage["suspects"] = list(self._damage.suspects.items())
        return [(_ROW, orjson.dumps(damage)), *self._blocks.changed_rows()]

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Restore the state from its rows. Ignore rows of other parts."""
        raw: dict[str, Any] = orjson.loads(rows[_ROW])
        self._damage = Damage(**{**raw, "suspects": dict(raw["suspects"])})
        self._blocks.restore(rows)

    def follows(self, subject: str, offset: object = None) -> int | None:
        """Return the damage that makes the state of `subject`, or a record at `offset`, unknown."""
        found = self._damage.subjects.get(subject)
        return self._suspected((offset,)) if found is None and type(offset) is int else found

    @property
    def differs(self) -> int | None:
        """The damage since which digests may differ; None if they must agree."""
        return self._damage.differs

    def refer(self, entry: Referring, subjects: Iterable[str]) -> Referred:
        """Check an entry, and remember it. `subjects` are those whose state it would change."""
        damage, offset = self._damage, entry.offset
        if entry.gap_from is not None and entry.gap_from > damage.known_from:
            damage.gaps = [*damage.gaps, [entry.gap_from, offset]][-GAPS_MAX:]
        if entry.is_damaged:
            self._suspect(offset, offset)
            damage.differs = offset
            return _FINE
        if entry.verdict == ACCEPTED:
            self._accept(offset)
            for each in subjects if damage.subjects else ():
                damage.subjects.pop(each, None)
            return _FINE if entry.agrees is None else self._compared(entry)
        ties = (*entry.bases, *entry.others)
        events: list[Raw] = []
        follows = self._suspected(ties) if damage.suspects or damage.lost else None
        if follows is None and damage.gaps:
            # Of the keys only: who forges an incarnation need not hit a record.
            gap = self._gap_with(entry.bases)
            if gap is not None:
                events.append(self._lose(gap))
                follows = gap[0]
        nothing_at = self._nothing_at(entry) if follows is None else None
        if follows is None and damage.differs is not None:
            if nothing_at is not None and nothing_at < offset:
                # Its author saw a record accepted that was rejected here: that one follows, too.
                follows = damage.differs
                self._suspect(nothing_at, follows)
            elif entry.verdict in _BY_STATE:
                follows = damage.differs
        if follows is None:
            return Referred(nothing_at=nothing_at)
        if follows not in damage.spread:
            damage.spread = [*damage.spread, follows][-GAPS_MAX:]
            events.append({"event": "damage_spreads", "damage": follows})
        self._suspect(offset, follows)
        damage.subjects.update(dict.fromkeys(subjects, follows))
        return Referred(follows=follows, events=events)

    def _compared(self, entry: Referring) -> Referred:
        """Compare a renewal's digest, which its author had at its base, with the view's."""
        damage, at = self._damage, entry.bases[0]
        if entry.agrees:
            damage.agreed = max(damage.agreed, at)
            # A gap below an offset at which digests agree had no record.
            damage.gaps = [gap for gap in damage.gaps if gap[0] > damage.agreed]
            if damage.differs is not None and at >= damage.differs:
                damage.differs = None
            return _FINE
        if damage.differs is not None:
            return Referred(follows=damage.differs)
        # A digest may be forged, and a gap regular: this proves nothing, but helps to look.
        gaps = [gap for gap in damage.gaps if gap[1] <= at + 1]
        return Referred(gap=(gaps[-1][0], gaps[-1][1] - 1) if gaps else None)

    def _lose(self, gap: list[int]) -> Raw:
        damage = self._damage
        damage.gaps.remove(gap)
        damage.lost = [*damage.lost, gap][-GAPS_MAX:]
        damage.differs = gap[0]
        return {"event": "entries_missing", "from": gap[0], "to": gap[1] - 1}

    def _suspect(self, offset: int, damage: int) -> None:
        suspects = self._damage.suspects
        suspects[offset] = damage
        if len(suspects) > SUSPECTS_MAX:
            del suspects[next(iter(suspects))]

    def _suspected(self, ties: Iterable[int]) -> int | None:
        for tie in ties:
            found = self._damage.suspects.get(tie)
            if found is not None:
                return found
            for first, below in self._damage.lost:
                if first <= tie < below:
                    return first
        return None

    def _gap_with(self, ties: Iterable[int]) -> list[int] | None:
        return next(
            (gap for tie in ties for gap in self._damage.gaps if gap[0] <= tie < gap[1]), None
        )

    def _nothing_at(self, entry: Referring) -> int | None:
        known_from = self._damage.known_from
        for base in entry.bases:
            if base >= entry.offset or (base > known_from and not self._was_accepted(base)):
                return base
        return None

    def _was_accepted(self, offset: int) -> bool:
        return bool(self._blocks.get(offset // BLOCK, 0) >> offset % BLOCK & 1)

    def _accept(self, offset: int) -> None:
        block = offset // BLOCK
        bits = self._blocks.get(block)
        if bits is None:
            if not self._blocks:
                # What a copied log refers to below its beginning cannot be looked up.
                self._damage.known_from = max(self._damage.known_from, offset - 1)
            elif len(self._blocks) == BLOCKS_MAX:
                oldest = min(self._blocks)
                self._blocks.remove(oldest)
                self._damage.known_from = (oldest + 1) * BLOCK - 1
            bits = 0
        self._blocks[block] = bits | 1 << offset % BLOCK
