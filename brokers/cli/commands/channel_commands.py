"""Define `equipoise channel`: read records, explain a bundle's history, and show past views.

`log_commands` adds further commands to this group. `channel.inspect.story` describes records.
"""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Final, cast

import typer

from equipoise.brokers.balancing.named import no_bundle
from equipoise.brokers.cli.channel_options import Channel
from equipoise.brokers.cli.commands.log_commands import acls, compact, copy, verify_channel
from equipoise.brokers.cli.moments import Moment, MomentArgument, TimeCommand, moment, time_of
from equipoise.brokers.cli.outcome import group, print_error
from equipoise.brokers.cli.output import (
    FOR_PEOPLE,
    DatedPage,
    Row,
    print_json,
    print_line,
    print_tables,
)
from equipoise.brokers.cli.rows import (
    BROKER_COLUMNS,
    BUNDLE_COLUMNS,
    NAMESPACE_COLUMNS,
    difference_of,
    print_difference,
    view_document,
)
from equipoise.brokers.decision_log import last_outcome_and_stay
from equipoise.brokers.errors import UnknownNamespace
from equipoise.brokers.operations.access import (
    Access,
    entries,
    folded_to_end,
    folded_until,
    follow,
    gone,
    unknown_offset,
)
from equipoise.channel.core.entries import BundleChanged
from equipoise.channel.core.errors import CallerError, InvalidName, LogClosed
from equipoise.channel.core.ranges import (
    HASH_MAX,
    BundleName,
    check_namespace,
    key_hash,
    parse_bundle,
    parse_topic,
    topic_hash,
)
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import INTEGER_MAX, QUIET_REASONS, Renewed
from equipoise.channel.core.table import Resync
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import (
    Names,
    as_document,
    describe,
    ending_of,
    standing,
    story_of,
)
from equipoise.channel.system.stop_signals import hear_interrupts

app = group("Read the log, show a bundle's history, verify everything.")

LINES_BY_DEFAULT: Final = 20
_LINES_MAX: Final = 1_000_000
"""Lines kept in memory until the end is found: about 200 MB."""

CHANGES_SHOWN_MAX: Final = 100
"""Bundles printed per record: creating a namespace changes up to 65,536."""

OffsetArgument = Annotated[
    int, typer.Argument(min=0, max=INTEGER_MAX, metavar="OFFSET", show_default=False)
]


@app.command()
def tail(
    *,
    channel: Channel,
    follows: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Print new records as they are appended, until Ctrl-C."
        ),
    ] = False,
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            max=INTEGER_MAX,
            metavar="OFFSET",
            help="Print all records from this offset on.",
            show_default=False,
        ),
    ] = None,
    lines: Annotated[
        int,
        typer.Option(
            "--lines", "-n", min=0, max=_LINES_MAX, help="Print this many of the newest records."
        ),
    ] = LINES_BY_DEFAULT,
    renewals: Annotated[
        bool, typer.Option("--renewals", help="Include accepted renewals.")
    ] = False,
) -> None:
    """Print the newest records: offset, time, action, key, details, author.

    A record without a verdict is accepted. Accepted renewals are left out: most records of an idle
    channel are renewals.
    """
    if follows:
        hear_interrupts()
    with channel.unread() as access:
        if start is not None and access.view.offset >= start:
            raise gone(access, f"offset {start}")
        page = DatedPage(as_json=channel.as_json)
        names = Names(access.view, short=not channel.as_json)

        def described(records: Iterable[Folded | None]) -> Iterator[tuple[Folded, list[str]]]:
            for folded in records:
                if folded is not None:
                    names.learn(folded)
                    if folded.offset >= (start or 0) and (
                        renewals or not _is_quiet_renewal(folded)
                    ):
                        yield folded, describe(folded, access.view, names)

        def resynced(resync: Resync) -> None:
            nonlocal names
            names = Names(access.view, short=not channel.as_json)
            _show_resync(resync, as_json=channel.as_json)

        there = described(folded_to_end(access))
        for folded, text in deque(there, maxlen=lines) if start is None else there:
            _show(page, folded, text)
        # A follower may start at the next record.
        if start and start > access.view.offset + follows:
            raise unknown_offset(access, start)
        news = follow(
            access,
            outage=lambda error: print_error(error, as_json=channel.as_json),
            resynced=resynced,
        )
        for folded, text in described(news) if follows else ():
            _show(page, folded, text)


@app.command()
def show(offset: OffsetArgument, *, channel: Channel) -> None:
    """Show one record, its verdict, and what it changed."""
    with channel.unread() as access:
        if access.view.offset >= offset:
            raise gone(access, f"offset {offset}")
        names = Names(access.view)
        for folded in folded_to_end(access):
            names.learn(folded)
            if folded.offset >= offset:
                break
        else:
            raise unknown_offset(access, offset)
        if folded.offset != offset:
            raise unknown_offset(access, offset)
        text, changes = describe(folded, access.view, names), _changes(folded, names)
    if channel.as_json:
        print_json(as_document(folded, [*text, *changes]))
        return
    first, *others = text
    print_line(f"{folded.offset}  {first}", color=_color_of(folded))
    for line in others:
        print_line(f"    {line}")
    fields = as_document(folded, ())["record"]
    if isinstance(fields, dict):
        FOR_PEOPLE.print_document(_readable(fields, names) | {"time": time_of(folded)})
    for change in changes[:CHANGES_SHOWN_MAX]:
        print_line(change)


@app.command()
def why(
    what: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE|NAMESPACE|TOPIC",
            help="A bundle, a topic, or the namespace of KEY.",
            show_default=False,
        ),
    ],
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="A key of the namespace.", show_default=False),
    ] = None,
    *,
    channel: Channel,
) -> None:
    """Show the full history of a bundle, or of the bundles that held a key or a topic.

    The history continues through splits and merges, and includes rejected proposals with their
    reasons. If the log was compacted or copied, the history begins with the state at that offset.
    The last lines are what came of the last move by the balancer, the load of both brokers as it
    was predicted and as it was measured, and why the last round did not move it.
    """
    name = _about(what, key)
    with channel.unread() as access:
        page = DatedPage(as_json=channel.as_json)
        names = Names(access.view, short=not channel.as_json)
        has_story = _print_beginning(name, access.view, names, as_json=channel.as_json)
        with suppress(LogClosed):
            for folded, text in story_of(name, access.reader, names, entries(access)):
                has_story = True
                _show(page, folded, text)
        if not has_story:
            raise (
                no_bundle(what)
                if key is None and "://" not in what
                else UnknownNamespace(namespace=name.namespace)
            )
        ending = ending_of(name, access.view, names)
        found = [
            each
            for each in access.view.bundles_of(name.namespace)
            if max(each.low, name.low) < min(each.high, name.high)
        ]
        bundles = [each.name for each in found]
        owners = [
            access.view.live[each.owner].broker for each in found if each.owner in access.view.live
        ]
    outcome, stay = last_outcome_and_stay(channel.log, bundles, owners)
    if channel.as_json:
        print_json({"ending": ending, "outcome": outcome, "stay": stay})
        return
    for line in ending:
        print_line(f"now {line}")
    if outcome is not None:
        print_line(f"its last move by the balancer: {outcome}")
    if stay is not None:
        print_line(f"why the balancer does not move it: {stay}")


app.command("verify")(verify_channel)


def _show(page: DatedPage, folded: Folded, text: list[str]) -> None:
    """Print a record with its description."""
    document = as_document(folded, text)
    page.show(folded.offset, time_of(folded), text, color=_color_of(folded), document=document)


def _color_of(folded: Folded) -> str | None:
    reason = folded.verdict.reason
    if reason is None:
        return None
    # A lost race is normal. Other rejections need attention.
    return typer.colors.YELLOW if reason in QUIET_REASONS else typer.colors.RED


def _readable(fields: Mapping[str, object], names: Names) -> dict[str, object]:
    """Return the fields of a record for people: brokers by id. The caller adds the time."""
    brokers = {
        name: names.of(value)
        for name in ("owner", "source")
        if isinstance(value := fields.get(name), int)
    }
    return {
        name: brokers.get(name, value) for name, value in fields.items() if name != "timestamp_ms"
    }


def _about(what: str, key: str | None) -> BundleName:
    """Return the range of hash points that `why` is about. Raise `InvalidName` for a name of
    another form.
    """
    if key is not None:
        namespace, point = check_namespace(what), key_hash(key)
    elif "://" in what:
        topic = parse_topic(what)
        namespace, point = topic.namespace, topic_hash(topic.full)
    else:
        return _bundle_in(what)
    low = min(point, HASH_MAX - 1)  # The last bundle contains its upper end.
    return BundleName(namespace, low, low + 1)


def _bundle_in(text: str) -> BundleName:
    """Parse the name of a bundle. Raise `InvalidName`, and `CallerError` for a key."""
    try:
        return parse_bundle(text)
    except InvalidName:
        match text.split("/", 2):
            case [_, _, key] if key.startswith("0x"):
                raise
            case [tenant, name, key]:
                words = (f"{tenant}/{name}", key)
            case [_, _]:
                words = (text, "KEY")
            case _:
                words = ("NAMESPACE", text)
        raise CallerError(
            f"{text!r} is no bundle: expected TENANT/NAMESPACE/0xLOW_0xHIGH; for a key, write its"
            f" namespace before it: equipoise channel why {shlex.join(words)}"
        ) from None


def _print_beginning(bundle: BundleName, view: View, names: Names, *, as_json: bool) -> bool:
    """Print a bundle's state where the story begins, unless that is the start of the channel.
    Return whether anything was printed.
    """
    if view.genesis is None or bundle.namespace not in view.namespaces:
        return False
    beginning = ending_of(bundle, view, names)
    if as_json:
        print_json({"known_from": view.offset, "beginning": beginning})
        return True
    print_line(f"the history begins after offset {view.offset}: this log has no earlier records")
    for line in beginning:
        print_line(f"then {line}")
    return True


def _show_resync(resync: Resync, *, as_json: bool) -> None:
    """Print which records are missing: the follower was stopped for so long that they were
    compacted.
    """
    if as_json:
        print_json({"resynced_from": resync.before, "resynced_to": resync.offset})
    else:
        print_line(
            f"the records between offsets {resync.before} and {resync.offset} have been compacted"
            " and are not shown"
        )


def _is_quiet_renewal(folded: Folded) -> bool:
    return (
        isinstance(folded.record, Renewed)
        and folded.verdict.accepted
        and not folded.verdict.diverged
    )


def _changes(folded: Folded, names: Names) -> list[str]:
    """Describe each bundle that a record changed."""
    changes = [change for change in folded.verdict.changes if isinstance(change, BundleChanged)]
    return [
        (
            f"now {standing(change.after, names)}"
            if change.after is not None
            else f"removed {change.name}"
        )
        for change in changes
    ]


@app.command(cls=TimeCommand)
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


@app.command(cls=TimeCommand)
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


def fold_to(access: Access, moment: Moment) -> str:
    """Fold up to a moment, and return the local time of the last record, or "" if unknown. The view
    must not be beyond the moment.

    * Raises `CallerError` if the moment is before what can be folded, or the offset is before the
      first record or after the last.
    * Raises `LogClosed` if the time is after the log was closed.
    * Raises what `entries_to_end` and `Reader.feed` raise.
    """
    if moment.offset is None:
        return _fold_to_time(access, moment)
    time = ""
    for folded in folded_until(access, moment.offset, moment=moment.text):
        time = time_of(folded) or time
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


app.command("copy")(copy)
app.command("compact")(compact)
app.command("acls")(acls)
