"""A channel's history as commands read it: up to a moment, from where it is still known, and to where the log was closed.

May live here: what the commands that look back share. Which moment, and what is shown of it, is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator

from equipoise.brokers.cli.moments import Moment
from equipoise.brokers.errors import HistoryGone, UnknownOffset
from equipoise.brokers.operations.access import Access
from equipoise.channel.core.errors import LogClosed
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.log.blocking_view import entries_to_end


def entries(access: Access) -> Iterator[Entry]:
    """What is on the log and not yet folded, to the end that it has now."""
    return entries_to_end(access.log, access.reader.position, deadline=access.deadline)


def fold_to(access: Access, moment: Moment) -> None:
    """Fold on to a moment. The view must not have been folded beyond it.

    Raises `HistoryGone` for one before what can be folded, `UnknownOffset` for an offset before the first record or after the
    last, `LogClosed` for a time after the log was closed, and what `entries_to_end` and `Reader.feed` raise.
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
    position, first = access.log.position_at(moment.time_ms), access.log.position_at(0)
    # Nobody knows what had been appended by a time before all that the log has. Where the log has nothing, it all had been.
    if position <= min(first, access.log.end()) or position < access.reader.position:
        raise gone(access, moment.text)
    for entry in entries(access):
        if entry.offset >= position:
            return
        access.reader.feed(entry)  # Past the record that closed the log its channel goes on elsewhere.


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
    known_from, problem = access.view.offset, None
    if access.log.start() == FIRST_OFFSET:
        problem = "its first record was appended later (all of an import were appended when it was made)"
        if access.view.offset >= 0:
            problem = f"it is a copy or an import, and what was before offset {known_from} is on the log that it was made of"
    return HistoryGone(log=access.log.name, moment=moment, known_from=known_from, problem=problem)
