"""Define `equipoise pulsar`: see and audit an Apache Pulsar cluster that already runs.

The commands here read the cluster's own bundle state channel, or an archive of it. None of them
writes to the cluster. `pulsar_record_commands`, `pulsar_plan_commands` and `pulsar_apply_commands`
add further commands to this group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Annotated, Final

import typer

from equipoise.brokers.cli.moments import Moment, MomentArgument, TimeCommand, local_time, moment
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import (
    FOR_PEOPLE,
    DatedPage,
    print_json,
    print_line,
    print_tables,
    progress,
)
from equipoise.brokers.cli.pulsar_apply_commands import apply
from equipoise.brokers.cli.pulsar_options import Cluster
from equipoise.brokers.cli.pulsar_plan_commands import plan
from equipoise.brokers.cli.pulsar_record_commands import record, trace
from equipoise.brokers.cli.rows import difference_of, print_difference
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.ranges import (
    HASH_MAX,
    BundleName,
    namespace_in,
    parse_bundle,
    parse_topic,
    topic_hash,
)
from equipoise.channel.system.stop_signals import hear_interrupts
from equipoise.pulsar_cluster.records import Message
from equipoise.pulsar_cluster.sources import History, opened
from equipoise.pulsar_cluster.story import Writers, as_document, describe, standing, story_of
from equipoise.pulsar_cluster.table import (
    BROKER_COLUMNS,
    BUNDLE_COLUMNS,
    NAMESPACE_COLUMNS,
    Rejection,
    StateChange,
    Table,
    broker_rows,
    bundle_row,
    namespace_rows,
    table_document,
)
from equipoise.pulsar_cluster.verify import Audit, Result, Spans
from equipoise.shedder.reported import format_duration

app = group("See, audit and balance an Apache Pulsar cluster.")

_LINES: Final = 20
_LONG_MS: Final = 10_000
_LINES_MAX: Final = 1_000_000
_BOUNCING_SHOWN: Final = 10


@app.command()
def status(*, cluster: Cluster) -> None:
    """Show the brokers, the namespaces, and how many bundles each has."""
    table, last_ms = Table(), 0
    with _history(cluster) as history:
        for message in history.messages():
            table.fold(message)
            last_ms = message.published_ms
        is_confirmed = history.confirm(table)
    document = {
        "source": history.name,
        "confirmed": is_confirmed,
        "messages": table.offset + 1,
        "last_message": local_time(last_ms) or None,
        "bundles": len(table.bundles),
        "brokers": broker_rows(table),
        "namespaces": namespace_rows(table),
    }
    if cluster.as_json:
        print_json(document)
        return
    FOR_PEOPLE.print_document(
        {name: value for name, value in document.items() if not isinstance(value, list)}
    )
    print_tables([("brokers", broker_rows(table), BROKER_COLUMNS)])
    print_line("(the channel does not name brokers without bundles)")
    print_tables([("namespaces", namespace_rows(table), NAMESPACE_COLUMNS)])
    if not is_confirmed:
        print_line("(the topic was not compared with the brokers: name --admin)")


@app.command()
def bundles(
    namespace: Annotated[
        str | None,
        typer.Argument(
            metavar="NAMESPACE", help="Only bundles of TENANT/NAMESPACE.", show_default=False
        ),
    ] = None,
    *,
    cluster: Cluster,
) -> None:
    """List the bundles that have a record, their states and their brokers."""
    with _history(cluster) as history:
        table = _folded(history)
    names = sorted(name for name in table.bundles if namespace in (None, namespace_in(name)))
    cluster.print_rows(
        [bundle_row(table.bundles[name]) for name in names],
        columns=BUNDLE_COLUMNS,
        nothing="no bundles",
    )


@app.command()
def why(
    what: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE|TOPIC", help="A bundle, or a topic in it.", show_default=False
        ),
    ],
    *,
    cluster: Cluster,
) -> None:
    """Show the full history of a bundle, or of the bundles that held a topic.

    It continues through splits, and includes the records that Pulsar's brokers rejected, with their
    reasons.
    """
    page = DatedPage(as_json=cluster.as_json)
    name, now, table = _about(what), dict[str, str](), Table()
    with _history(cluster) as history:
        writers = Writers()
        story = list(story_of(_folded_into(table, history.messages_of(name)), name, writers))
        history.confirm(table)
    for change, text in story:
        _show(page, change, text, writers)
        if change.rejection is None and change.message.record is not None:
            now[change.message.bundle] = standing(change.message)
        elif change.rejection is None:
            now.pop(change.message.bundle, None)
    if not story:
        raise NotFound(
            f"no record names the bundle of {what}; list those that have one: equipoise pulsar"
            f" bundles {name.namespace}"
        )
    if cluster.as_json:
        print_json({"ending": list(now.values())})
    for line in () if cluster.as_json else now.values() or ["no bundle"]:
        print_line(f"now {line}")


@app.command(cls=TimeCommand)
def at(place: MomentArgument, *, cluster: Cluster) -> None:
    """Show brokers, namespaces and bundles as they were at an offset or at a time."""
    then, table, first = moment(place), Table(), None
    with _history(cluster) as history:
        for message in history.messages():
            first = first or message
            if _is_after(then, message.offset, message.published_ms):
                break
            table.fold(message)
        else:
            history.confirm(table)
    document = table_document(table)
    if cluster.as_json:
        print_json(document)
        return
    print_line(f"offset: {table.offset}")
    _print_if_unknown(table.offset, first)
    bundles = [bundle_row(table.bundles[name]) for name in sorted(table.bundles)]
    print_tables(
        (
            ("brokers", broker_rows(table), BROKER_COLUMNS),
            ("namespaces", namespace_rows(table), NAMESPACE_COLUMNS),
            ("bundles", bundles, BUNDLE_COLUMNS),
        )
    )


@app.command(cls=TimeCommand)
def diff(before: MomentArgument, after: MomentArgument, *, cluster: Cluster) -> None:
    """Show what changed between two moments."""
    first, second, table = moment(before), moment(after), Table()
    was, was_offset, oldest = None, 0, None
    with _history(cluster) as history:
        for message in history.messages():
            oldest = oldest or message
            if was is None and _is_after(first, message.offset, message.published_ms):
                was, was_offset = table_document(table), table.offset
            if _is_after(second, message.offset, message.published_ms):
                if was is None:
                    raise typer.BadParameter(
                        f"{second.text} is before {first.text}; give the earlier moment first"
                    )
                break
            table.fold(message)
        else:
            history.confirm(table)
    difference = difference_of(table_document(table) if was is None else was, table_document(table))
    if cluster.as_json:
        print_json(difference)
        return
    _print_if_unknown(was_offset, oldest)
    print_difference(difference, nothing="nothing changed")


@app.command()
def tail(
    *,
    cluster: Cluster,
    follows: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Print new records as they are written, until Ctrl-C."),
    ] = False,
    lines: Annotated[
        int,
        typer.Option(
            "--lines", "-n", min=0, max=_LINES_MAX, help="Print this many of the newest records."
        ),
    ] = _LINES,
) -> None:
    """Print the newest records: offset, time, action, bundle, details, author.

    Pulsar records no author. It is known from the moment at which the same connection of a broker
    took a bundle.
    """
    if follows:
        hear_interrupts()
    page, writers, table = DatedPage(as_json=cluster.as_json), Writers(), Table()

    with _history(cluster) as history:
        newest: deque[StateChange] = deque(maxlen=lines)
        for message in history.messages():
            writers.learn(message)
            newest.append(table.fold(message))
        history.confirm(table)
        for change in newest:
            _show(page, change, describe(change, writers), writers)
        for message in history.news() if follows else ():
            writers.learn(message)
            change = table.fold(message)
            _show(page, change, describe(change, writers), writers)


@app.command()
def verify(*, cluster: Cluster) -> None:
    """Fold the channel by Pulsar's rules, and tell what its brokers rejected, how long bundles had
    no owner, and what went wrong.

    With --admin it also compares the channel with the cluster's brokers and with the bundles of its
    namespaces.

    Exit code 1: there are findings.
    """
    table, audit = Table(), Audit()
    with _history(cluster) as history, progress("verifying", unit="records") as note:
        for message in history.messages():
            audit.see(table.fold(message))
            if not message.offset % 10_000:
                note(message.offset, None)
        history.confirm(table)
        result = audit.result(now_ms=history.now_ms(), known=history.known(table))
    if cluster.as_json:
        print_json(_as_json(result))
    else:
        _print_result(result)
    if not result.in_order:
        raise typer.Exit(ExitCode.REFUSED)


app.command()(record)
app.command()(trace)
app.command()(plan)
app.command()(apply)


def _history(cluster: Cluster) -> AbstractContextManager[History]:
    return opened(cluster.address, deadline=cluster.deadline())


def _folded(history: History) -> Table:
    table = Table()
    for _ in _folded_into(table, history.messages()):
        pass
    history.confirm(table)
    return table


def _folded_into(table: Table, messages: Iterable[Message]) -> Iterator[Message]:
    for message in messages:
        table.fold(message)
        yield message


def _about(what: str) -> BundleName:
    """Return the range of hash points that `why` is about. Raise `InvalidName` for a name of
    another form.

    A topic without a domain is persistent, as for the tools of Pulsar.
    """
    if "://" not in what and what.rpartition("/")[2].startswith("0x"):
        return parse_bundle(what)
    topic = parse_topic(what if "://" in what else f"persistent://{what}")
    low = min(topic_hash(topic.full), HASH_MAX - 1)  # The last bundle contains its upper end.
    return BundleName(topic.namespace, low, low + 1)


def _is_after(then: Moment, offset: int, published_ms: int) -> bool:
    return (
        offset > then.offset
        if then.offset is not None
        else then.time_ms is not None and published_ms >= then.time_ms
    )


def _print_if_unknown(offset: int, oldest: Message | None) -> None:
    if offset < 0 and oldest is not None:
        print_line(
            f"the oldest record that is left is of {local_time(oldest.published_ms)}; nothing is"
            " known before it"
        )


def _show(page: DatedPage, change: StateChange, text: list[str], writers: Writers) -> None:
    """Print a change with its description."""
    # A lost race is normal. Other rejections need attention.
    quiet = change.rejection is Rejection.OLD_VERSION
    color = None if change.rejection is None else typer.colors.YELLOW if quiet else typer.colors.RED
    time = local_time(change.message.published_ms, precision="milliseconds")
    page.show(change.message.offset, time, text, color=color, document=as_document(change, writers))


def _as_json(result: Result) -> dict[str, object]:
    from dataclasses import asdict

    spans = {
        name: value._asdict()
        for name, value in (
            ("without_owner", result.without_owner),
            ("transfers", result.transfers),
        )
    }
    states = {state: value._asdict() for state, value in result.in_state.items()}
    findings = [{**finding._asdict(), "advice": finding.advice} for finding in result.findings]
    return {
        **asdict(result),
        **spans,
        "in_state": states,
        "findings": findings,
        "in_order": result.in_order,
    }


def _print_result(result: Result) -> None:
    rejected = ", ".join(f"{count} {cause}" for cause, count in result.rejected.items()) or "none"
    print_line(
        f"{result.messages} records: {result.accepted} accepted, {result.tombstones} of them"
        f" tombstones; rejected: {rejected}"
    )
    if result.losses:
        print_line(
            f"records are missing at {result.losses} places: Pulsar compacted its channel while"
            " nobody recorded it"
        )
    if result.lost_races:
        print_line(f"lost races (another broker was first, which is normal): {result.lost_races}")
    print_line(f"pauses without an owner: {_spans(result.without_owner)}")
    print_line(f"bundles without an owner now: {len(result.unowned)}")
    for name, since_ms in result.unowned.items():
        print_line(f"  {name}: since {local_time(since_ms)}")
    print_line(f"transfers, from Releasing to Owned: {_spans(result.transfers)}")
    for state, spans in result.in_state.items():
        print_line(f"stays in {state}: {_spans(spans)}")
    print_line(f"splits: {result.splits}; records that were forced: {result.forced}")
    print_line(f"moves back within 10 minutes: {sum(result.bounced.values())}")
    for name, count in sorted(result.bounced.items(), key=lambda each: -each[1])[:_BOUNCING_SHOWN]:
        print_line(f"  {name}: {count}")
    for broker, count in result.vanished.items():
        print_line(f"{broker} vanished with {count} bundles, which the leader gave to others")
    for finding in result.findings:
        print_line(
            f"offset {finding.offset}: {finding.kind}: {finding.bundle}: {finding.text};"
            f" {finding.advice}",
            color=typer.colors.RED,
        )
    if result.in_order:
        print_line("all is in order", color=typer.colors.GREEN)
    else:
        print_line(f"findings: {result.findings_count}", color=typer.colors.RED)


def _spans(spans: Spans) -> str:
    if not spans.number:
        return "none"
    p50, p95, longest = (
        f"{span:.0f} ms" if span < _LONG_MS else format_duration(round(span)) for span in spans[1:]
    )
    return f"{spans.number} (p50 {p50}, p95 {p95}, max {longest})"
