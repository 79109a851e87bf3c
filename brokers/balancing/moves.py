"""Moves of bundles, as the channel tells them: what begins one, what ends it, and how.

May live here: the recognition of moves in what is folded. Pure: time comes in as an argument.

A move begins when a bundle leaves `owned`, by somebody's wish or by a death, and ends when it is owned again, or gone. A
merge begins and ends in one record.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import BrokerChanged, BundleChanged, BundleEntry, Change, NamespaceChanged
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, BrokerRecord, BundleTransition, Joined, Merge, Split, Unreadable


class MoveKind(StrEnum):
    """What set a bundle in motion."""

    TRANSFER = "transfer"
    UNLOAD = "unload"
    SPLIT = "split"
    MERGE = "merge"
    DEATH = "death"


class MoveResult(StrEnum):
    """How a move ended: as it was meant; back where it began; by a death on the way; with the namespace deleted."""

    DONE = "done"
    CANCELLED = "cancelled"
    CUT_SHORT = "cut_short"
    DELETED = "deleted"


KIND_OF_PHASE: Final[Mapping[Phase, MoveKind]] = {
    "transferring": MoveKind.TRANSFER,
    "unloading": MoveKind.UNLOAD,
    "splitting": MoveKind.SPLIT,
}
"""The kind of the move that takes a bundle from `owned` to a phase."""

_LOST: Final[frozenset[Phase]] = frozenset({"free", "assigning"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move that has ended, with its duration as this reader saw it.

    `offset` is that of the record that ended it. `source` served the bundle when it began, `destination` owns it now or, if
    the move came to nothing, was to own it: both are incarnations. `token` is that of the present ownership; None if the bundle
    is gone, or has no owner. `reason` is why the move began or, if it was cancelled, why that was.
    """

    bundle: str
    kind: MoveKind
    result: MoveResult
    duration_ns: int
    offset: int
    source: int | None
    destination: int | None
    token: int | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginning:
    kind: MoveKind
    source: int | None
    reason: str | None
    at_ns: int


class Moves:
    """The moves under way. `folded` is to be called with every record, in order; it holds one entry per moving bundle."""

    def __init__(self) -> None:
        self._begun: dict[str, _Beginning] = {}

    def reason(self, bundle: str) -> str | None:
        """Why the move that a bundle is on began; None if it is on none, or nobody said."""
        begun = self._begun.get(bundle)
        return None if begun is None else begun.reason

    def resynced(self, resync: Resync) -> None:
        """Records were left out: of the moves of what changed in them nobody can tell how they ended, or which began."""
        for change in resync.changes:
            if isinstance(change, BundleChanged):
                self._begun.pop(change.name, None)

    def folded(self, folded: Folded, now_ns: int) -> list[Move]:
        """The moves that this record ends; `now_ns` is when it was read, by any clock that only rises."""
        record, ended = folded.record, list[Move]()
        if isinstance(record, Merge) and folded.verdict.accepted:
            ended.append(_merge(folded, record))
        by_death = isinstance(record, Joined | BrokerRecord)
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and change.before is not None:
                result = _result(change.before, change.after, by_death=by_death, split=isinstance(record, Split))
                begun = None if result is None else self._begun.pop(change.name, None)
                if result is not None and begun is not None:
                    ended.append(_ended(folded, change, begun, result, now_ns))
                kind = _begins(change.before, change.after, by_death=by_death)
                if kind is not None:
                    source = change.before.owner if change.before.source is None else change.before.source
                    self._begun.setdefault(change.name, _Beginning(kind=kind, source=source, reason=_reason(record), at_ns=now_ns))
        return ended


def moved_in(changes: Sequence[Change]) -> tuple[str, ...]:
    """The bundles that a live broker has let go of, for whomever, or that came into being by a split or a merge.

    `changes` are those of one record, or of a resync. Not what a namespace is created with, nor what a death takes from its owner:
    of these nobody chose where they are.
    """
    dead = {change.dead for change in changes if isinstance(change, BrokerChanged)}
    created = {change.name for change in changes if isinstance(change, NamespaceChanged) and change.before is None}
    return tuple(
        change.name
        for change in changes
        if isinstance(change, BundleChanged) and change.after is not None and _has_moved(change.before, change.after, dead, created)
    )


def _has_moved(before: BundleEntry | None, after: BundleEntry, dead: Container[int | None], created: Container[str]) -> bool:
    if before is None:
        return after.namespace not in created
    return before.server is not None and before.server != after.server and before.server not in dead


def _ended(folded: Folded, change: BundleChanged, begun: _Beginning, result: MoveResult, now_ns: int) -> Move:
    before, after = change.before, change.after
    assert before is not None, "what is new has not moved"
    destination = before.owner
    if result is MoveResult.DONE:  # What was split goes on at its owner, as its children.
        destination = begun.source if after is None else after.owner
    return Move(
        bundle=change.name,
        kind=begun.kind,
        result=result,
        duration_ns=now_ns - begun.at_ns,
        offset=folded.offset,
        source=begun.source,
        destination=destination,
        token=None if after is None or after.owner is None else after.token,
        reason=_reason(folded.record) if result is MoveResult.CANCELLED else begun.reason,
    )


def _merge(folded: Folded, merge: Merge) -> Move:
    union = next(change.after for change in folded.verdict.changes if isinstance(change, BundleChanged) and change.after is not None)
    return Move(
        bundle=merge.key,
        kind=MoveKind.MERGE,
        result=MoveResult.DONE,
        duration_ns=0,
        offset=folded.offset,
        source=union.owner,
        destination=union.owner,
        token=union.token,
        reason=merge.reason,
    )


def _reason(record: AnyRecord | Unreadable) -> str | None:
    return record.reason if isinstance(record, BundleTransition) else None


def _begins(before: BundleEntry, after: BundleEntry | None, *, by_death: bool) -> MoveKind | None:
    if after is None:
        return None
    if by_death:
        return MoveKind.DEATH if after.phase in _LOST and before.phase not in _LOST else None
    return KIND_OF_PHASE.get(after.phase) if before.phase == "owned" else None


def _result(before: BundleEntry, after: BundleEntry | None, *, by_death: bool, split: bool) -> MoveResult | None:
    """How a change ends the move that it is a part of; None if the move goes on."""
    if after is None:
        return MoveResult.DONE if split else MoveResult.DELETED
    if after.phase == "owned":
        if before.phase in ("transferring", "splitting"):
            return MoveResult.CUT_SHORT if by_death else MoveResult.CANCELLED
        return MoveResult.CUT_SHORT if after.owner == before.source else MoveResult.DONE
    # An unload, a transfer or a split whose broker died is over; what follows is the move that the death began.
    return MoveResult.CUT_SHORT if by_death and after.phase in _LOST and before.phase not in _LOST else None
