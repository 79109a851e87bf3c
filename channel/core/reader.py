"""From the entries of a log to folded records: decodes, applies, and stops where a reader must not go on.

May live here: what every reader of a channel does with an entry, live, in the simulator, in tools and in audits. The fold
itself is `channel.core.view.apply`; where entries come from is the caller's business.
"""

from __future__ import annotations

from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.errors import BegunAbove, ForeignLog, LevelTooNew, LogClosed, LogWentBack
from equipoise.channel.core.frozen import hot_frozen
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.core.records import LEVEL_CLOSED, LEVEL_SUPPORTED, AnyRecord, Genesis, Unreadable
from equipoise.channel.core.view import View, apply


@hot_frozen
class Folded:
    """A record that has been folded: its logical offset, what it says, and what the fold says of it."""

    offset: int
    record: AnyRecord | Unreadable
    verdict: Verdict


class Reader:
    """Folds a log into `view`, entry by entry. `position` is the physical offset that it wants next.

    Offsets in views and records are logical: the log's own offset plus the `base` of its genesis, so that they go on
    rising when a channel is copied to another log.
    """

    def __init__(self, *, log: str, cluster: str | None = None, view: View | None = None) -> None:
        """Read the log named `log`, from its beginning or on from `view`, which becomes this reader's own.

        With `cluster` given, a log whose genesis names another one raises `ForeignLog` when it is read. A view that
        is another cluster's, or of a level that this version does not know, raises what `feed` would raise.
        """
        self.log = log
        self.cluster = cluster
        self.view = View() if view is None else view
        self.position = FIRST_OFFSET if self.view.offset < 0 else self.view.offset - self.view.base + 1
        if self.view.cluster is not None:
            self._check_cluster(self.view.cluster)
        self._check_level()

    def feed(self, entry: Entry) -> Folded:
        """Fold one entry.

        Raises `LogWentBack` for an entry below `position`, `ForeignLog` for another cluster's genesis, `LevelTooNew` once the
        channel has been raised to a level that this version does not know, and `LogClosed` once its log has been closed; the
        reader must then stop for good. Raises `BegunAbove` for the genesis of a copy on a view that has none, which is not
        that of the copy's snapshot: another reader must then go on, one that `channel.snapshots.restore` makes.
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
            raise ForeignLog(log=self.log, expected=self.cluster, found=found)

    def _check_level(self) -> None:
        if self.view.level == LEVEL_CLOSED:
            raise LogClosed(log=self.log, offset=self.view.level_last)
        if self.view.level > LEVEL_SUPPORTED:
            raise LevelTooNew(level=self.view.level, supported=LEVEL_SUPPORTED, offset=self.view.level_last)
