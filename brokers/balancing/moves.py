"""Recognise moves of bundles in folded records: what starts a move, and how it ends.

A move starts when a bundle leaves `owned`, by request or by a death. It ends when the bundle is
owned again, or gone. A merge is a single record. Time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from equipoise.channel.core.entries import (
    BrokerChanged,
    BundleChanged,
    BundleEntry,
    Change,
    NamespaceChanged,
)
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import (
    AnyRecord,
    BrokerRecord,
    BundleTransition,
    Joined,
    Merge,
    Split,
    Unreadable,
)
from equipoise.channel.core.table import Resync


class MoveKind(StrEnum):
    """What started a move."""

    TRANSFER = "transfer"
    UNLOAD = "unload"
    SPLIT = "split"
    MERGE = "merge"
    DEATH = "death"


class MoveResult(StrEnum):
    """How a move ended: as planned; back at its source; ended by a broker's death; with its
    namespace deleted.
    """

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
_PAUSED: Final[frozenset[Phase]] = _LOST | {"handing_over", "unloading"}
"""Phases in which the source closes a bundle, or has none to close it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMove:
    """A move that has ended, with its duration as this reader measured it.

    * `pause_ns`: the part of it in which calls waited.
    * `offset`: the record that ended it.
    * `source`: the incarnation that served the bundle at the start.
    * `destination`: the incarnation that owns the bundle now or, if the move failed, was to own it.
    * `token`: the token of the present ownership; None if the bundle is gone or has no owner.
    * `reason`: why the move started or, if it was cancelled, why it was cancelled.
    """

    bundle: str
    kind: MoveKind
    result: MoveResult
    duration_ns: int
    pause_ns: int
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
    paused_ns: int | None = None  # When the pause began.


class Moves:
    """The moves in progress, one entry per moving bundle. Call `folded` with every record, in
    order.
    """

    def __init__(self) -> None:
        self._begun: dict[str, _Beginning] = {}

    def reason(self, bundle: str) -> str | None:
        """Return why the current move of a bundle started; None if the bundle is not moving, or no
        reason was given.
        """
        begun = self._begun.get(bundle)
        return None if begun is None else begun.reason

    def begun_ns(self) -> Mapping[str, int]:
        """Return when each current move was read to start, by the clock of `folded`."""
        return {bundle: begun.at_ns for bundle, begun in self._begun.items()}

    def resynced(self, resync: Resync) -> None:
        """Forget the moves of all bundles that changed in skipped records: how they ended is
        unknown.
        """
        for change in resync.changes:
            if isinstance(change, BundleChanged):
                self._begun.pop(change.name, None)

    def folded(self, folded: Folded, now_ns: int) -> list[ObservedMove]:
        """Return the moves that this record ends. `now_ns` is when it was read, by any monotonic
        clock.
        """
        record, ended = folded.record, list[ObservedMove]()
        if isinstance(record, Merge) and folded.verdict.accepted:
            ended.append(_merge(folded, record))
        by_death = isinstance(record, Joined | BrokerRecord)
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and change.before is not None:
                result = _result(
                    change.before, change.after, by_death=by_death, split=isinstance(record, Split)
                )
                begun = None if result is None else self._begun.pop(change.name, None)
                if result is not None and begun is not None:
                    ended.append(_ended(folded, change, begun, result, now_ns))
                kind = _begins(change.before, change.after, by_death=by_death)
                if kind is not None:
                    source = (
                        change.before.owner
                        if change.before.source is None
                        else change.before.source
                    )
                    self._begun.setdefault(
                        change.name,
                        _Beginning(kind=kind, source=source, reason=_reason(record), at_ns=now_ns),
                    )
                self._note_pause(change, now_ns)
        return ended

    def _note_pause(self, change: BundleChanged, now_ns: int) -> None:
        begun = self._begun.get(change.name)
        is_paused = change.after is not None and change.after.phase in _PAUSED
        if begun is not None and begun.paused_ns is None and is_paused:
            self._begun[change.name] = replace(begun, paused_ns=now_ns)


def moved_in(changes: Sequence[Change]) -> tuple[str, ...]:
    """Return the bundles that a live broker released, or that a split or a merge created.

    `changes` come from one record, or from a resync. Bundles of a new namespace or of a dead owner
    are left out: nobody chose their place.
    """
    dead = {change.dead for change in changes if isinstance(change, BrokerChanged)}
    created = {
        change.name
        for change in changes
        if isinstance(change, NamespaceChanged) and change.before is None
    }
    return tuple(
        change.name
        for change in changes
        if isinstance(change, BundleChanged)
        and change.after is not None
        and _has_moved(change.before, change.after, dead, created)
    )


def joined_in(changes: Sequence[Change]) -> tuple[str, ...]:
    """Return the brokers that joined, for the first time or again."""
    return tuple(
        change.name
        for change in changes
        if isinstance(change, BrokerChanged)
        and change.after is not None
        and change.after.live
        and (change.before not in ("up", "draining") or change.dead is not None)
    )


def has_left(changes: Sequence[Change]) -> bool:
    """Return whether a broker has begun to drain, or has left. One that has died does not count."""
    return any(
        isinstance(change, BrokerChanged)
        and change.after is not None
        and change.after.status in ("draining", "left")
        and change.before != change.after.status
        for change in changes
    )


def _has_moved(
    before: BundleEntry | None,
    after: BundleEntry,
    dead: Container[int | None],
    created: Container[str],
) -> bool:
    if before is None:
        return after.namespace not in created
    return before.server is not None and before.server != after.server and before.server not in dead


def _ended(
    folded: Folded, change: BundleChanged, begun: _Beginning, result: MoveResult, now_ns: int
) -> ObservedMove:
    before, after = change.before, change.after
    assert before is not None, "what is new has not moved"
    destination = before.owner
    if result is MoveResult.DONE:  # The children of a split stay with its owner.
        destination = begun.source if after is None else after.owner
    return ObservedMove(
        bundle=change.name,
        kind=begun.kind,
        result=result,
        duration_ns=now_ns - begun.at_ns,
        pause_ns=0 if begun.paused_ns is None else now_ns - begun.paused_ns,
        offset=folded.offset,
        source=begun.source,
        destination=destination,
        token=None if after is None or after.owner is None else after.token,
        reason=_reason(folded.record) if result is MoveResult.CANCELLED else begun.reason,
    )


def _merge(folded: Folded, merge: Merge) -> ObservedMove:
    union = next(
        change.after
        for change in folded.verdict.changes
        if isinstance(change, BundleChanged) and change.after is not None
    )
    return ObservedMove(
        bundle=merge.key,
        kind=MoveKind.MERGE,
        result=MoveResult.DONE,
        duration_ns=0,
        pause_ns=0,
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


def _result(
    before: BundleEntry, after: BundleEntry | None, *, by_death: bool, split: bool
) -> MoveResult | None:
    """Return how a change ends the move that it is part of; None if the move continues."""
    if after is None:
        return MoveResult.DONE if split else MoveResult.DELETED
    if after.phase == "owned":
        if before.phase in ("transferring", "splitting"):
            return MoveResult.CUT_SHORT if by_death else MoveResult.CANCELLED
        return MoveResult.CUT_SHORT if after.owner == before.source else MoveResult.DONE
    # The owner died: this ends the unload, transfer or split. The move that the death started
    # follows.
    return (
        MoveResult.CUT_SHORT
        if by_death and after.phase in _LOST and before.phase not in _LOST
        else None
    )
