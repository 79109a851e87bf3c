"""Define `equipoise channel at` and `diff`: show a past view, and what changed between two.

`history` reads the history.
"""

from __future__ import annotations

import time
from typing import cast

import typer

from equipoise.brokers.cli.differences import difference_of, print_difference
from equipoise.brokers.cli.history import fold_to
from equipoise.brokers.cli.moments import Moment, MomentArgument, moment
from equipoise.brokers.cli.options import Channel
from equipoise.brokers.cli.output import FOR_PEOPLE, Row, print_json, print_line, print_tables
from equipoise.brokers.cli.rows import (
    BROKER_COLUMNS,
    BUNDLE_COLUMNS,
    NAMESPACE_COLUMNS,
    view_document,
)


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
