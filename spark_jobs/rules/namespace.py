"""Check the facts of one namespace: after each record its bundles must cover the hash space exactly once.

`check_deletions` runs on brokers' facts, because a namespace whose deletion has stopped gets none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from equipoise.spark_jobs.rules.catalogue import finding, found
from equipoise.spark_jobs.rules.facts import Fact, Raw, subject
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.memory import Memory, load, save
from equipoise.spark_jobs.rules.ranges import HASH_END, joined_up, parse_bundle, pieces, whole_space
from equipoise.spark_jobs.rules.verdicts import ACCEPTED, NOT_FOLDED, compare_opinions, told, who

_NAME: Final = "namespace"
_PAGE: Final = "range:"
_PAGE_BITS: Final = 24
"""Ranges whose low ends agree above these bits share a page: at most 256 pages, each of 256 ranges after a creation with 65,536."""

_SHOWN_MAX: Final = 4
_WHOLE_SPACE: Final = [(0, HASH_END)]

Ranges = list[tuple[int, int]]
Row = Sequence[Any]
"""A range that was added or removed: low, high, then (where given) phase, owner and token."""


class NamespaceChecker:
    """See `spark_jobs.rules.memory.Checker`."""

    def check(self, memory: Memory, fact: Fact) -> Iterator[Finding]:
        """Yield what is wrong with the next fact of a namespace."""
        if fact.source != "channel" or fact.verdict == NOT_FOLDED:
            return
        yield from compare_opinions(fact)
        record, after = fact.record or {}, fact.after or {}
        if record.get("kind") == "namespace":
            yield from _rejected(fact, record)
        removed, added = after.get("removed") or (), after.get("added") or ()
        if not removed and not added:
            return
        if fact.verdict != ACCEPTED:
            yield finding("state_differs", fact, f"{told(fact)} was rejected ({fact.verdict}), and changed its ranges all the same")
        yield from _coverage(fact, record, _spans(removed), _spans(added))
        yield from _inheritance(fact, record, removed, added)
        yield from _take_over(memory, fact, record, _spans(removed), _spans(added))

    def expire(self, memory: Memory, subject: str, now_ms: int) -> Iterator[Finding]:  # noqa: ARG002 - required by the protocol
        """Yield nothing: no rule of a namespace depends on a timer."""
        yield from ()


def check_deletions(fact: Fact) -> Iterator[Finding]:
    """Yield a finding for each namespace whose deletion has stopped half-way. `fact` is a record of a live publisher."""
    for name, since in fact.context.get("deleting_since", ()):
        text = f"it has been on its way out since offset {since}, and nobody goes on with that"
        yield found("deleting_too_long", subject("namespace", name), text, offsets=(since, fact.offset), at_ms=fact.at_ms)


def _spans(rows: Iterable[Row]) -> Ranges:
    return sorted((row[0], row[1]) for row in rows)


def _spelled(ranges: Ranges) -> str:
    shown = ", ".join(f"0x{low:08x}_0x{high:08x}" for low, high in ranges[:_SHOWN_MAX])
    return f"{shown} and {len(ranges) - _SHOWN_MAX} more" if len(ranges) > _SHOWN_MAX else shown or "nothing"


def _rejected(fact: Fact, record: Raw) -> Iterator[Finding]:
    """Check a rejected record for what no correct writer proposes.

    If the membership cannot tell whether all bundles of a deletion are free, accepted and `bundles_in_use` are both right.
    """
    expected, status = fact.context.get("expected"), record.get("status")
    if expected == fact.verdict == "bad_boundary":
        yield finding("writes_what_it_may_not", fact, f"{told(fact)} has boundaries that leave points out, or do not rise")
    if status != "deleted":
        return
    if expected == fact.verdict == "illegal_transition":
        yield finding("writes_what_it_may_not", fact, f"{told(fact)} was written before the namespace was set to deleting")
    elif expected is None and fact.verdict not in (ACCEPTED, "bundles_in_use"):
        yield finding("verdict_differs", fact, f"{told(fact)} was {fact.verdict}; by the second rules it is accepted, or bundles_in_use")


def _coverage(fact: Fact, record: Raw, removed: Ranges, added: Ranges) -> Iterator[Finding]:
    """Check that the added ranges cover exactly the removed ones and match the record."""
    if record.get("kind") == "namespace" and record.get("status") == "deleted":
        covered, _ = joined_up(removed)
        if covered != _WHOLE_SPACE or added:
            yield finding("hole", fact, f"{told(fact)} left bundles behind: it took {_spelled(covered)} away")
        return
    expected = _expected(record)
    if expected is None:
        yield finding("state_differs", fact, f"{told(fact)} changed its ranges, and no such record does")
        return
    went, came = expected
    covered_before, _ = joined_up(went)
    covered, twice = joined_up(added)
    if twice:
        yield finding("overlap", fact, f"after {told(fact)} two bundles cover {_spelled(twice)}")
    if removed != went:
        rule = "overlap" if set(removed) < set(went) else "hole"
        yield finding(rule, fact, f"{told(fact)} took {_spelled(removed)} away; by the second rules {_spelled(went)} go")
    elif added != came:
        is_hole = covered != (covered_before if record.get("kind") != "namespace" else _WHOLE_SPACE)
        rule = "hole" if is_hole else "state_differs"
        if not twice or is_hole:
            yield finding(rule, fact, f"{told(fact)} made {_spelled(added)}; by the second rules {_spelled(came)} come")


def _expected(record: Raw) -> tuple[Ranges, Ranges] | None:
    """Return the sorted ranges that an accepted record removes and adds; None if the record makes no bundles."""
    kind, status = record.get("kind"), record.get("status")
    if kind == "namespace" and status == "created":
        return [], whole_space(record.get("boundaries") or ()) or []
    at = parse_bundle(str(record.get("key")))
    if kind == "split" and at is not None:
        return [(at.low, at.high)], pieces(at.low, at.high, record.get("positions") or ()) or []
    right = parse_bundle(str(record.get("right")))
    if kind == "merge" and at is not None and right is not None:
        return sorted([(at.low, at.high), (right.low, right.high)]), [(at.low, right.high)]
    return None


def _inheritance(fact: Fact, record: Raw, removed: Sequence[Row], added: Sequence[Row]) -> Iterator[Finding]:
    """Check that children keep their parent's owner and token, and a merged bundle the common owner and the greater token."""
    if record.get("kind") not in ("split", "merge") or any(len(row) <= _TOKEN for row in (*removed, *added)) or not removed:
        return
    owners = dict.fromkeys(row[_OWNER] for row in (*removed, *added))
    if len(owners) > 1:
        yield finding("illegal_step", fact, f"{told(fact)} gave to {_listed(who(owner, fact) for owner in owners)} what one of them owned")
    token = max(row[_TOKEN] for row in removed)
    tokens = {row[_TOKEN] for row in added}
    if tokens and tokens != {token}:
        rule = "token_fell" if min(tokens) < token else "state_differs"
        yield finding(rule, fact, f"{told(fact)} gave token {_listed(tokens)} to what had {token}")


_OWNER: Final = 3
_TOKEN: Final = 4


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values)))


def _take_over(memory: Memory, fact: Fact, record: Raw, removed: Ranges, added: Ranges) -> Iterator[Finding]:
    """Remember the ranges after a record. Yield a finding if a removed range did not exist and all ranges are known."""
    known, begun = load(memory, _NAME), fact.context.get("begun", 0)
    is_created = record.get("kind") == "namespace" and record.get("status") == "created"
    if is_created or known is None or known["begun"] != begun:
        for name in memory.names(_PAGE):
            memory.remove(name)
        known = {"begun": begun, "whole": is_created}
        save(memory, _NAME, known)
    if not known["whole"]:
        return
    pages: dict[str, dict[str, int]] = {}
    unknown: Ranges = []
    for low, high in removed:
        page = _page(memory, pages, low)
        if page.pop(str(low), None) != high:
            unknown.append((low, high))
    twice = [(low, high) for low, high in added if _page(memory, pages, low).get(str(low)) is not None]
    for low, high in added:
        _page(memory, pages, low)[str(low)] = high
    for name, page in pages.items():
        if page:
            memory.put(name, orjson.dumps(page))
        else:
            memory.remove(name)
    if record.get("status") == "deleted":
        memory.remove(_NAME)
    if unknown:
        yield finding("state_differs", fact, f"{told(fact)} took away {_spelled(unknown)}, which was not there")
    if twice:
        yield finding("overlap", fact, f"{told(fact)} made {_spelled(twice)}, where there is a bundle already")


def _page(memory: Memory, pages: dict[str, dict[str, int]], low: int) -> dict[str, int]:
    name = f"{_PAGE}{low >> _PAGE_BITS:02x}"
    if name not in pages:
        pages[name] = load(memory, name) or {}
    return pages[name]
