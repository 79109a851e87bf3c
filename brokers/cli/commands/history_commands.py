"""Define `equipoise channel at` and `diff`: show a past view, and what changed between two. Also
read a channel's history for other commands: find where it begins, and fold it up to a moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import cast

import typer

from equipoise.brokers.cli.differences import difference_of, print_difference
from equipoise.brokers.cli.moments import Moment, MomentArgument, moment, time_of
from equipoise.brokers.cli.options import Channel
from equipoise.brokers.cli.output import FOR_PEOPLE, Row, print_json, print_line, print_tables
from equipoise.brokers.cli.rows import (
    BROKER_COLUMNS,
    BUNDLE_COLUMNS,
    NAMESPACE_COLUMNS,
    view_document,
)
from equipoise.brokers.operations.access import Access
from equipoise.channel.core.errors import CallerError, LogClosed
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.core.reader import Folded
from equipoise.channel.log.blocking_view import entries_to_end


def at(place: MomentArgument, *, channel: Channel) -> None:
    """Show brokers, namespaces and bundles as they were at an offset or at a time.

    Every broker that had read that far had this view. The digest proves it.
    """
    then = _moment(place)
    with channel.unread() as access:
        last_time = fold_to(access, then)
        document = view_document(access.view)
    if channel.as_json:
        print_json(document)
    else:
        _print_view(document, last_time)


def diff(before: MomentArgument, after: MomentArgument, *, channel: Channel) -> None:
    """Show what changed between two moments.

    Show the brokers, namespaces, bundles and policies that were added, removed or changed. Renewals
    are left out.
    """
    first, second = _moment(before), _moment(after)
    with channel.unread() as access:
        from_time = fold_to(access, first)
        was = view_document(access.view)
        if _is_behind(second, first, offset=access.view.offset):
            raise typer.BadParameter(
                f"{second.text} is before {first.text}; give the earlier moment first"
            )
        to_time = fold_to(access, second) or from_time
        difference = difference_of(was, view_document(access.view))
    if channel.as_json:
        print_json(difference)
        return
    if from_time or to_time:
        print_line(f"time: {from_time or '?'} -> {to_time or '?'}")
    print_difference(difference, nothing="nothing changed except renewals")


def _moment(text: str) -> Moment:
    """Parse a moment. Raise `typer.BadParameter` if it is invalid or in the future."""
    now_ms = time.time_ns() // 1_000_000
    found = moment(text, now_ms=now_ms)
    if found.time_ms is not None and found.time_ms > now_ms + 1:
        raise typer.BadParameter(f"{text} is in the future: name an offset, or a time up to now")
    return found


def _is_behind(second: Moment, first: Moment, *, offset: int) -> bool:
    """Return whether `second` is before `first`, up to which the view has been folded (at
    `offset`).
    """
    if second.offset is not None:
        return second.offset < offset
    return (
        first.time_ms is not None and second.time_ms is not None and second.time_ms < first.time_ms
    )


def _print_view(document: Row, last_time: str) -> None:
    summary = {
        name: value for name, value in document.items() if not isinstance(value, list | dict)
    }
    FOR_PEOPLE.print_document({"time": last_time or None, **summary})
    print_tables(
        (name, cast("list[Row]", document[name]), columns)
        for name, columns in (
            ("brokers", BROKER_COLUMNS),
            ("namespaces", NAMESPACE_COLUMNS),
            ("bundles", BUNDLE_COLUMNS),
        )
    )


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
