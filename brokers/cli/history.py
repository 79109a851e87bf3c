"""A channel's history as commands read it: up to a moment, from where it is still known, and to where the log was closed.

May live here: what the commands that look back share. Which moment, and what is shown of it, is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator

from brokers.admin.access import Access
from brokers.cli.moments import Moment
from brokers.errors import HistoryGone, UnknownOffset
from channel.blocking_view import entries_to_end
from channel.errors import LogClosed
from channel.log import FIRST_OFFSET, Entry


def entries(access: Access) -> Iterator[Entry]:
    """What is on the log and not yet folded, to the end that it has now."""
    return entries_to_end(access.log, access.reader.position, deadline=access.deadline)


def fold_to(access: Access, moment: Moment) -> None:
    """Fold on to a moment. The view must not have been folded beyond it.

    Raises `HistoryGone` for one before what can still be folded, `UnknownOffset` for an offset before the first record or
    after the last, and what `entries_to_end` and `Reader.feed` raise.
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
        # What the log's first offset is, only its first record tells.
        reaches = view.offset >= 0 and entry.offset + view.base > offset
        if reaches or not feed(access, entry):
            break
    if view.offset > offset or not (reaches or view.offset == offset):
        raise unknown_offset(access, offset)


def _fold_to_time(access: Access, moment: Moment) -> None:
    assert moment.time_ms is not None, "a moment is an offset or a time"
    position, start = access.log.position_at(moment.time_ms), access.log.start()
    # Of a time before all that the log still has nobody knows what had been appended by then; but if nothing at all was
    # appended since, it had all been.
    unknown = start > FIRST_OFFSET and position <= start and position <= access.log.end()
    if unknown or position < access.reader.position:
        raise gone(access, moment.text)
    for entry in entries(access):
        if entry.offset >= position or not feed(access, entry):
            return


def feed(access: Access, entry: Entry) -> bool:
    """Fold one entry; false for the one that closed the log, after which there is nothing."""
    try:
        access.reader.feed(entry)
    except LogClosed:
        return False
    return True


def unknown_offset(access: Access, offset: int) -> UnknownOffset:
    """The error for an offset without a record; where the log ends, only reading on tells."""
    for entry in entries(access):
        if not feed(access, entry):
            break
    return UnknownOffset(log=access.log.name, offset=offset, end=access.view.offset)


def gone(access: Access, moment: str) -> HistoryGone:
    """The error for a moment before the view from which the history can still be folded."""
    return HistoryGone(log=access.log.name, moment=moment, known_from=access.view.offset)
