"""Moves of bundles, as the channel tells them: what begins one, what ends it, and how.

May live here: the recognition of moves in what is folded. Pure: time comes in as an argument.

A move begins when a bundle leaves `owned`, by somebody's wish or by a death, and ends when it is owned again, or gone. A
merge begins and ends in one record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from channel.entries import BundleChanged, BundleEntry
from channel.lifecycle import Phase
from channel.reader import Folded
from channel.records import BrokerRecord, Joined, Merge, Split


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
    CALLED_OFF = "called_off"
    CUT_SHORT = "cut_short"
    DELETED = "deleted"


_KIND_OF_PHASE: Final[dict[Phase, MoveKind]] = {
    "transferring": MoveKind.TRANSFER,
    "unloading": MoveKind.UNLOAD,
    "splitting": MoveKind.SPLIT,
}
_LOST: Final[frozenset[Phase]] = frozenset({"free", "assigning"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move that has ended, with its duration as this reader saw it."""

    bundle: str
    kind: MoveKind
    result: MoveResult
    duration_ns: int


class Moves:
    """The moves under way. `folded` is to be called with every record, in order; it holds one entry per moving bundle."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[MoveKind, int]] = {}

    def folded(self, folded: Folded, now_ns: int) -> list[Move]:
        """The moves that this record ends; `now_ns` is when it was read, by any clock that only rises."""
        record, ended = folded.record, list[Move]()
        if isinstance(record, Merge) and folded.verdict.accepted:
            ended.append(Move(bundle=record.key, kind=MoveKind.MERGE, result=MoveResult.DONE, duration_ns=0))
        by_death = isinstance(record, Joined | BrokerRecord)
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and change.before is not None:
                result = _result(change.before, change.after, by_death=by_death, split=isinstance(record, Split))
                begun = None if result is None else self._begun.pop(change.name, None)
                if result is not None and begun is not None:
                    kind, since_ns = begun
                    ended.append(Move(bundle=change.name, kind=kind, result=result, duration_ns=now_ns - since_ns))
                kind_begun = _begins(change.before, change.after, by_death=by_death)
                if kind_begun is not None:
                    self._begun.setdefault(change.name, (kind_begun, now_ns))
        return ended


def _begins(before: BundleEntry, after: BundleEntry | None, *, by_death: bool) -> MoveKind | None:
    if after is None:
        return None
    if by_death:
        return MoveKind.DEATH if after.phase in _LOST and before.phase not in _LOST else None
    return _KIND_OF_PHASE.get(after.phase) if before.phase == "owned" else None


def _result(before: BundleEntry, after: BundleEntry | None, *, by_death: bool, split: bool) -> MoveResult | None:
    """How a change ends the move that it is a part of; None if the move goes on."""
    if after is None:
        return MoveResult.DONE if split else MoveResult.DELETED
    if after.phase == "owned":
        if before.phase in ("transferring", "splitting"):
            return MoveResult.CUT_SHORT if by_death else MoveResult.CALLED_OFF
        return MoveResult.CUT_SHORT if after.owner == before.source else MoveResult.DONE
    # An unload, a transfer or a split whose broker died is over; what follows is the move that the death began.
    return MoveResult.CUT_SHORT if by_death and after.phase in _LOST and before.phase not in _LOST else None
