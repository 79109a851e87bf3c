"""Fold the entries of a channel one by one, across gaps, for as long as they can be folded.

The view is stored as rows of state, so that a batch writes only the rows that it changed. The rows
and the marker are those of a compacted snapshot (`channel.snapshots.snapshot_rows`). Checksums and
the view's digest protect them. A view without a genesis has no rows yet.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final

from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import LevelChanged, Verdict
from equipoise.channel.core.errors import BegunAbove, ChannelIncomplete, LevelTooNew, LogClosed
from equipoise.channel.core.log import FIRST_OFFSET, CompactedSnapshot, Entry
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.snapshot import from_bytes
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.snapshot_rows import (
    MARKER_KEY,
    encode_marker,
    keys_of,
    marker_of,
    rows_of,
    view_of,
)
from equipoise.spark_jobs.rules.facts import Raw
from equipoise.spark_jobs.rules.memory import StateRow
from equipoise.spark_jobs.sequence.subjects import claimed, parsed

PREFIX: Final = "view:"
_MARKER: Final = f"{PREFIX}{MARKER_KEY}"

_LOG: Final = "spark"
"""The marker's field for a log identity. The log of a checkpoint is recorded elsewhere, once."""


class ViewRows:
    """Track which rows of one view are written."""

    def __init__(self, view: View, *, gone: Iterable[str] = (), written: bool = False) -> None:
        """Track `view`, with all of its rows written or none. `gone` are keys of rows of a replaced
        view.
        """
        self._view = view
        self._since = view.offset if written else -1
        self._gone: dict[str, None] = dict.fromkeys(gone)

    def removed(self, key: str) -> None:
        """Record that a record removed this key (`bundle:NAME`, `broker:NAME` ...) from the
        view.
        """
        self._gone[key] = None

    def replaced_by(self, view: View) -> ViewRows:
        """Return the rows of another view that replaces this one."""
        return ViewRows(view, gone=(*sorted(keys_of(self._view)), *self._gone))

    def changed(self) -> Iterator[StateRow]:
        """Yield the rows that records changed since the last call."""
        view = self._view
        gone = [key for key in self._gone if not _is_there(view, key)]
        for row in rows_of(view, self._since, gone):
            yield PREFIX + row.key, row.data
        if view.genesis is not None:
            yield _MARKER, encode_marker(marker_of(view, log=_LOG))
        self._since = view.offset
        self._gone.clear()


def _is_there(view: View, key: str) -> bool:
    """Return whether a removed key exists again."""
    kind, _, name = key.partition(":")
    entries: Mapping[str, Container[str]] = {
        "namespace": view.namespaces,
        "policy": view.policies,
        "broker": view.brokers,
        "bundle": view.bundles,
    }
    return name in entries[kind] if kind in entries else view.genesis is not None


def view_from(rows: Mapping[str, bytes], *, offset: int) -> View:
    """Return the view in these rows, at the logical `offset`. Raise `CompactedSnapshotDamaged` if
    they do not fit together.
    """
    marker = rows.get(_MARKER)
    if marker is None:
        view = View()
        view.offset = offset
        return view
    image = {
        key.removeprefix(PREFIX): data
        for key, data in rows.items()
        if key.startswith(PREFIX) and key != _MARKER
    }
    return view_of(CompactedSnapshot(marker=marker, rows=image))


Lost = Callable[[int, int], bytes | None]
"""Ask whether entries were lost at the missing physical offsets from the first argument to below
the second.

Return None if not (a log may skip offsets), else a snapshot of the view from which the rest can be
folded. Raise `ChannelIncomplete`, `LevelTooNew` or `LogClosed` if nothing leads on, and
`LogUnavailable` if it is not known now.
"""

_NAME: Final = "the channel"
_EVENTS: Final[Mapping[type, str]] = {
    BegunAbove: "begun_above",
    ChannelIncomplete: "channel_incomplete",
    LevelTooNew: "level_too_new",
    LogClosed: "log_closed",
}


class Folding:
    """The fold of one channel.

    * `view`: all that was folded. Read-only.
    * `begin`: the offset after which the channel is known.
    * `seen`: the greatest physical offset so far.
    * `stopped`: the event that ended the folding for good; None before that.
    """

    def __init__(self, view: View, *, lost: Lost, replaced: Callable[[View], None]) -> None:
        """Continue from `view`. Call `replaced` with each view that replaces it after a loss,
        before anything is folded into that.
        """
        self._lost = lost
        self._replaced = replaced
        self.seen = FIRST_OFFSET - 1
        self.stopped: Raw | None = None
        self._is_stop_reported = False
        self.begin = 0
        self._take_up(view)

    def standing(self) -> dict[str, Any]:
        """Return what `restore` needs besides the view."""
        return {
            "offset": self.view.offset,
            "seen": self.seen,
            "begin": self.begin,
            "stopped": self.stopped,
            "is_stop_told": self._is_stop_reported,
        }

    def restore(self, view: View, standing: Mapping[str, Any]) -> None:
        """Continue where the folding was that returned `standing`."""
        self.seen, self.stopped, self._is_stop_reported = (
            standing["seen"],
            standing["stopped"],
            standing["is_stop_told"],
        )
        self._take_up(view)
        self.begin = int(standing["begin"])

    def _take_up(self, view: View) -> None:
        """Continue from a view, unless its format version is too new or its log is closed."""
        self.view = view
        self.begin = max(view.offset, 0)
        self._reader: Reader | None = None
        if self.stopped is None:
            try:
                self._reader = Reader(log=_NAME, view=view)
            except (LevelTooNew, LogClosed) as error:
                self._stop(error)

    def fold(self, offset: int, data: bytes, events: list[Raw]) -> Folded | None:
        """Return the result for one entry; None if it is not folded. Append events of the log to
        `events`. Raise what `Lost` raises.
        """
        reader = self._reader
        if reader is not None and offset != reader.position:
            reader = self._reader_at(reader, offset, events)
        folded = None if reader is None else self._folded(reader, Entry(offset, data), events)
        if self.stopped is not None and not self._is_stop_reported:
            self._is_stop_reported = True
            events.append(self.stopped)
        self.seen = max(self.seen, offset)
        return folded

    def _folded(self, reader: Reader, entry: Entry, events: list[Raw]) -> Folded | None:
        level = reader.view.level
        try:
            return reader.feed(entry)
        except (LevelTooNew, LogClosed) as error:
            # The record raised the format version or closed the log. It is accepted, and is the
            # last one that can be folded.
            self._stop(error, copied_to=claimed(parsed(entry.data), "copied_to"))
            changes = (LevelChanged(before=level, after=self.view.level),)
            return Folded(
                offset=self.view.offset, record=decode(entry.data), verdict=Verdict(changes=changes)
            )
        except BegunAbove as error:
            # The log is a copy that was being made when the job began. Its snapshot has the state
            # to continue from.
            regained = self._regained(FIRST_OFFSET - 1, entry.offset, events)
            if regained is None or regained.view.genesis is None:
                self._stop(error)
                return None
            return None if entry.offset < regained.position else regained.feed(entry)

    def _reader_at(self, reader: Reader, offset: int, events: list[Raw]) -> Reader | None:
        """Return the reader for an entry at another position than the next; None to skip the
        entry.
        """
        if offset <= self.seen:
            self.stopped = {"event": "log_went_back", "position": reader.position, "found": offset}
            self._reader = None
            return None
        # The view that the folding began with, or regained, includes it already.
        if offset < reader.position:
            return None
        regained = self._regained(reader.position, offset, events)
        return regained if regained is not None and offset >= regained.position else None

    def _regained(self, first: int, below: int, events: list[Raw]) -> Reader | None:
        """Return the reader that continues after a gap; None if that is impossible."""
        base = self.view.base
        lost = {"event": "records_lost", "from": first + base, "to": below + base}
        try:
            snapshot = self._lost(first, below)
        except (ChannelIncomplete, LevelTooNew, LogClosed) as error:
            events.append({**lost, "restored": False, "problem": str(error)})
            self._stop(error)
            return None
        if snapshot is not None:
            view = from_bytes(snapshot)
            self._take_up(view)
            self._replaced(view)
            events.append({**lost, "restored": True, "goes_on": view.offset + 1})
        return self._reader

    def _stop(
        self,
        error: BegunAbove | ChannelIncomplete | LevelTooNew | LogClosed,
        *,
        copied_to: str | None = None,
    ) -> None:
        """Stop folding for good. `copied_to` is where the channel of a closed log continues."""
        self.stopped = {"event": _EVENTS[type(error)], "problem": str(error)}
        if copied_to is not None:
            self.stopped = {**self.stopped, "copied_to": copied_to}
        self._reader = None
