"""Decode and fold the entries of a log, and stop where a reader must not go on.

Every reader uses it: live brokers, the simulator, tools and audits. The caller reads the entries.
"""

from __future__ import annotations

from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.errors import (
    BegunAbove,
    LevelTooNew,
    LogClosed,
    LogWentBack,
    foreign_log,
)
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.core.records import (
    LEVEL_CLOSED,
    LEVEL_SUPPORTED,
    AnyRecord,
    Genesis,
    Unreadable,
    hot_frozen,
)
from equipoise.channel.core.view import View, apply


@hot_frozen
class Folded:
    """A folded record: its logical offset, the record and its verdict."""

    offset: int
    record: AnyRecord | Unreadable
    verdict: Verdict


class Reader:
    """Folds a log into `view`, entry by entry. `position` is the next physical offset to read.

    Offsets in views and records are logical: the log's own offset plus the `base` of its genesis.
    They keep rising when a channel is copied to another log.
    """

    def __init__(self, *, log: str, cluster: str | None = None, view: View | None = None) -> None:
        """Read the log named `log`, from its beginning or on from `view`, which this reader then
        owns.

        With `cluster`, reading a log of another cluster raises `OperatorError`. A view of another
        cluster, or of a format version that this code does not know, raises what `feed` would
        raise.
        """
        self.log = log
        self.cluster = cluster
        self.view = View() if view is None else view
        self.position = (
            FIRST_OFFSET if self.view.offset < 0 else self.view.offset - self.view.base + 1
        )
        if self.view.cluster is not None:
            self._check_cluster(self.view.cluster)
        self._check_level()

    def feed(self, entry: Entry) -> Folded:
        """Fold one entry.

        After each of these errors the reader must stop for good:

        * `LogWentBack`: the entry lies below `position`.
        * `OperatorError`: the genesis is another cluster's.
        * `LevelTooNew`: the channel has a format version that this code does not know.
        * `LogClosed`: the log has been closed.
        * `BegunAbove`: the genesis of a copy, on a view without its snapshot. A new reader from
          `channel.snapshots.restore` must go on.
        """
        self._check_level()
        if entry.offset < self.position:
            raise LogWentBack(log=self.log, position=self.position, end=entry.offset)
        view = self.view
        record = decode(entry.data)
        offset = entry.offset + view.base
        if type(record) is Genesis and view.genesis is None:
            self._check_cluster(record.cluster)
            if record.base:
                raise BegunAbove(log=self.log, base=record.base)
        verdict = apply(view, offset, record)
        self.position = entry.offset + 1
        self._check_level()
        return Folded(offset=offset, record=record, verdict=verdict)

    def _check_cluster(self, found: str) -> None:
        if self.cluster is not None and found != self.cluster:
            raise foreign_log(log=self.log, expected=self.cluster, found=found)

    def _check_level(self) -> None:
        if self.view.level == LEVEL_CLOSED:
            raise LogClosed(log=self.log, offset=self.view.level_last)
        if self.view.level > LEVEL_SUPPORTED:
            raise LevelTooNew(
                level=self.view.level, supported=LEVEL_SUPPORTED, offset=self.view.level_last
            )
