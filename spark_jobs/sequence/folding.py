"""Fold the entries of a channel one by one, across gaps, for as long as they can be folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import LevelChanged, Verdict
from equipoise.channel.core.errors import BegunAbove, ChannelIncomplete, LevelTooNew, LogClosed
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.snapshot import from_bytes
from equipoise.channel.core.view import View
from equipoise.spark_jobs.rules.facts import Raw
from equipoise.spark_jobs.sequence.subjects import claimed, parsed

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
        self.begin = standing["begin"]

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
