"""Read a channel's history: find where it begins, and fold it up to a moment."""

from __future__ import annotations

from collections.abc import Iterator

from equipoise.brokers.cli.moments import Moment
from equipoise.brokers.errors import HistoryGone, UnknownOffset
from equipoise.brokers.operations.access import Access
from equipoise.channel.core.errors import LogClosed
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.log.blocking_view import entries_to_end


def entries(access: Access) -> Iterator[Entry]:
    """Return the entries of the log that are not yet folded, up to its current end."""
    return entries_to_end(access.log, access.reader.position, deadline=access.deadline)


def fold_to(access: Access, moment: Moment) -> None:
    """Fold up to a moment. The view must not be beyond it.

    * Raises `HistoryGone` if the moment is before what can be folded.
    * Raises `UnknownOffset` if the offset is before the first record or after the last.
    * Raises `LogClosed` if the time is after the log was closed.
    * Raises what `entries_to_end` and `Reader.feed` raise.
    """
    if moment.offset is None:
        _fold_to_time(access, moment)
    else:
        _fold_to_offset(access, moment, moment.offset)


def _fold_to_offset(access: Access, moment: Moment, offset: int) -> None:
    view = access.view
    if view.offset > offset:
        raise gone(access, moment.text)
    reaches = False
    for entry in entries(access):
        # The log's first offset is known only from its first record.
        reaches = view.offset >= 0 and entry.offset + view.base > offset
        if reaches or not feed(access, entry):
            break
    if view.offset > offset or not (reaches or view.offset == offset):
        raise unknown_offset(access, offset)


def _fold_to_time(access: Access, moment: Moment) -> None:
    assert moment.time_ms is not None, "a moment is an offset or a time"
    position, first = access.log.position_at(moment.time_ms), access.log.position_at(0)
    # The state before the log's first entry is unknown. An empty log has lost nothing.
    if position <= min(first, access.log.end()) or position < access.reader.position:
        raise gone(access, moment.text)
    for entry in entries(access):
        if entry.offset >= position:
            return
        access.reader.feed(entry)  # After the record that closed the log, its channel continues on another log.


def feed(access: Access, entry: Entry) -> bool:
    """Fold one entry. Return False at the one that closed the log, which is the last."""
    try:
        access.reader.feed(entry)
    except LogClosed:
        return False
    return True


def unknown_offset(access: Access, offset: int) -> UnknownOffset:
    """Return the error for an offset without a record. Read on to find the end of the log."""
    for entry in entries(access):
        if not feed(access, entry):
            break
    return UnknownOffset(log=access.log.name, offset=offset, end=access.view.offset)


def gone(access: Access, moment: str) -> HistoryGone:
    """Return the error for a moment before the earliest view that can be folded."""
    known_from, problem = access.view.offset, None
    if access.log.start() == FIRST_OFFSET:
        problem = "its first record was appended later (all of an import were appended when it was made)"
        if access.view.offset >= 0:
            problem = f"it is a copy or an import, and what was before offset {known_from} is on the log that it was made of"
    return HistoryGone(log=access.log.name, moment=moment, known_from=known_from, problem=problem)
