"""Read a channel's history: find where it begins, and fold it up to a moment."""

from __future__ import annotations

from collections.abc import Iterator

from equipoise.brokers.cli.moments import Moment, time_of
from equipoise.brokers.operations.access import Access
from equipoise.channel.core.errors import CallerError, LogClosed
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.core.reader import Folded
from equipoise.channel.log.blocking_view import entries_to_end


def entries(access: Access) -> Iterator[Entry]:
    """Return the entries of the log that are not yet folded, up to its current end."""
    return entries_to_end(access.log, access.reader.position, deadline=access.deadline)


def fold_to(access: Access, moment: Moment) -> str:
    """Fold up to a moment, and return the local time of the last record, or "" if unknown. The view
    must not be beyond the moment.

    * Raises `CallerError` if the moment is before what can be folded, or the offset is before the
      first record or after the last.
    * Raises `LogClosed` if the time is after the log was closed.
    * Raises what `entries_to_end` and `Reader.feed` raise.
    """
    return (
        _fold_to_time(access, moment)
        if moment.offset is None
        else _fold_to_offset(access, moment, moment.offset)
    )


def _fold_to_offset(access: Access, moment: Moment, offset: int) -> str:
    view = access.view
    if view.offset > offset:
        raise gone(access, moment.text)
    reaches, time = False, ""
    for entry in entries(access):
        # The log's first offset is known only from its first record.
        reaches = view.offset >= 0 and entry.offset + view.base > offset
        folded = None if reaches else feed(access, entry)
        if folded is None:
            break
        time = time_of(folded) or time
    if view.offset > offset or not (reaches or view.offset == offset):
        raise unknown_offset(access, offset)
    return time


def _fold_to_time(access: Access, moment: Moment) -> str:
    assert moment.time_ms is not None, "a moment is an offset or a time"
    position, first = access.log.position_at(moment.time_ms), access.log.position_at(0)
    # The state before the log's first entry is unknown. An empty log has lost nothing.
    if position <= min(first, access.log.end()) or position < access.reader.position:
        raise gone(access, moment.text)
    time = ""
    for entry in entries(access):
        if entry.offset >= position:
            break
        # After the record that closed the log, its channel continues on another log.
        time = time_of(access.reader.feed(entry)) or time
    return time


def feed(access: Access, entry: Entry) -> Folded | None:
    """Fold one entry. Return None at the one that closed the log, which is the last."""
    try:
        return access.reader.feed(entry)
    except LogClosed:
        return None


def unknown_offset(access: Access, offset: int) -> CallerError:
    """Return the error for an offset without a record. Read on to find the end of the log."""
    for entry in entries(access):
        if feed(access, entry) is None:
            break
    end = access.view.offset
    there = (
        f"its last record is at {end}, and gaps are normal; list its records: equipoise channel"
        " tail"
        if end >= 0
        else "it has no records yet; start a broker on it"
    )
    return CallerError(f"the log {access.log.name} has no record at offset {offset}; {there}")


def gone(access: Access, moment: str) -> CallerError:
    """Return the error for a moment before the earliest view that can be folded."""
    known_from = access.view.offset
    why = (
        f"no longer has the view at {moment}: the records before offset {known_from} have been"
        " compacted"
    )
    if access.log.start() == FIRST_OFFSET:
        problem = "its first record was appended later"
        if access.view.offset >= 0:
            problem = (
                f"it is a copy; the records before offset {known_from} are on the log that it was"
                " made from"
            )
        why = f"does not have the view at {moment}: {problem}"
    advice = "ask for a later moment, or look at a backup from before it"
    return CallerError(f"the log {access.log.name} {why}; {advice}")
