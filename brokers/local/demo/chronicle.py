"""Count moves and deaths on the channel, and keep the newest records as text."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

from equipoise.brokers.balancing.moves import MoveKind, MoveResult, Moves
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import BrokerChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BrokerRecord, Renewed
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import Names, describe

_NEWEST_MAX: Final = 8


class Chronicle:
    """Counts what is folded. Pass every record to `folded`, with the view just after it.

    Call `resynced` where records were skipped; their events are not counted.
    """

    def __init__(self, look: Callable[[], View]) -> None:
        """`look` returns the current view."""
        self._look = look
        self._names = Names(look())
        self._moves = Moves()
        self._newest: deque[str] = deque(maxlen=_NEWEST_MAX)
        self.done: Counter[MoveKind] = Counter()
        self.cancelled = 0
        self.deaths = 0
        self.rejected = 0

    @property
    def newest(self) -> Sequence[str]:
        """The newest records except renewals, the newest last."""
        return tuple(self._newest)

    def folded(self, folded: Folded) -> None:
        """Count one record."""
        self._names.learn(folded)
        for move in self._moves.folded(folded, time.monotonic_ns()):
            self.done[move.kind] += move.result is MoveResult.DONE
            self.cancelled += move.result is MoveResult.CANCELLED
        self.rejected += not folded.verdict.accepted
        left = isinstance(folded.record, BrokerRecord) and folded.record.status == "left"
        if not left:  # A broker that leaves is not counted as dead.
            self.deaths += sum(isinstance(change, BrokerChanged) and change.dead is not None for change in folded.verdict.changes)
        if not (isinstance(folded.record, Renewed) and folded.verdict.accepted):
            self._newest.append(describe(folded, self._look(), self._names))

    def resynced(self, resync: Resync) -> None:
        """Continue after skipped records."""
        self._names = Names(self._look())
        self._moves.resynced(resync)
        self._newest.append(f"what stood between offsets {resync.before} and {resync.offset} was truncated before it was read")
