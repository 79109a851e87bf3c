"""`equipoise channel`: read the log as it is, record by record; ask why a bundle is where it is; and check all of it.

May live here: the commands of this group, and times of day. Records are put into words by `channel.story`.
"""

from __future__ import annotations

from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from brokers.admin.access import Access, folded_to_end, follow
from brokers.cli.bundles import BundleArgument
from brokers.cli.options import TIMEOUT_S, ErrorsAsJsonOption, JsonOption, LogOption, TimeoutOption, unread
from brokers.cli.outcome import ExitCode, group, print_error
from brokers.cli.output import Row, print_document, print_json, print_line, print_rows
from brokers.cli.rows import BROKER_COLUMNS, BUNDLE_COLUMNS, NAMESPACE_COLUMNS, view_document
from brokers.errors import UnknownBundle, UnknownOffset
from channel.blocking_view import entries_to_end
from channel.entries import BundleChanged
from channel.log import Entry
from channel.ranges import parse_bundle
from channel.reader import Folded
from channel.records import INTEGER_MAX, QUIET_REASONS, Renewed, Unreadable
from channel.story import Names, as_document, describe, ending_of, standing, story_of

if TYPE_CHECKING:
    from channel.verify import Findings

app = group("Read the log, tell a bundle's story, check everything.")

LINES_BY_DEFAULT: Final = 20
_LINES_MAX: Final = 1_000_000
"""Lines that are kept while the end is looked for: 200 MB of them."""

CHANGES_SHOWN_MAX: Final = 100
"""Bundles of one record that people are shown: the creation of a namespace changes up to 65,536."""

OffsetArgument = Annotated[int, typer.Argument(min=0, max=INTEGER_MAX, metavar="OFFSET", show_default=False)]

_TIME_CHARACTERS: Final = len("2026-01-31 12:34:56.789")


class ExportFormat(StrEnum):
    """How records are exported."""

    JSONL = "jsonl"


@app.command()
def tail(
    *,
    log: LogOption,
    follows: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is appended from now on, until Ctrl-C.")] = False,
    start: Annotated[
        int | None,
        typer.Option(
            "--from", min=0, max=INTEGER_MAX, metavar="OFFSET", help="All from this offset on, not the last few.", show_default=False
        ),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=_LINES_MAX, help="How many of the last records.")] = LINES_BY_DEFAULT,
    renewals: Annotated[bool, typer.Option("--renewals", help="Show accepted renewals too.")] = False,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Print the newest records and the verdicts on them.

    Accepted renewals are left out: they are nine tenths of a quiet channel.
    """
    with unread(log, timeout) as access:
        names = Names(access.view)

        def lines_of(records: Iterable[Folded | None]) -> Iterator[_Line]:
            for folded in records:
                if folded is not None:
                    names.learn(folded)
                    if folded.offset >= (start or 0) and (renewals or not _is_quiet_renewal(folded)):
                        yield _Line(folded=folded, lines=(describe(folded, access.view, names),))

        there = lines_of(folded_to_end(access))
        for line in deque(there, maxlen=lines) if start is None else there:
            line.show(as_json=as_json)
        for line in lines_of(follow(access, outage=lambda error: print_error(error, as_json=as_json))) if follows else ():
            line.show(as_json=as_json)


@app.command()
def show(offset: OffsetArgument, *, log: LogOption, timeout: TimeoutOption = TIMEOUT_S, as_json: JsonOption = False) -> None:
    """Show one record, its verdict, and what it changed."""
    with unread(log, timeout) as access:
        names = Names(access.view)
        for folded in folded_to_end(access):
            names.learn(folded)
            if folded.offset >= offset:
                break
        else:
            raise _unknown_offset(access, log, offset)
        if folded.offset != offset:
            raise _unknown_offset(access, log, offset)
        line = _Line(folded=folded, lines=(describe(folded, access.view, names), *_changes(folded, names)))
    if as_json:
        line.show(as_json=True)
        return
    print_line(line.lines[0], color=line.color)
    fields = as_document(folded, ())["record"]
    if isinstance(fields, dict):
        print_document(fields, as_json=False)
    for change in line.lines[1 : CHANGES_SHOWN_MAX + 1]:
        print_line(change)


@app.command()
def why(bundle: BundleArgument, *, log: LogOption, timeout: TimeoutOption = TIMEOUT_S, as_json: JsonOption = False) -> None:
    """Tell a bundle's whole story.

    It goes back through splits and merges, and tells of the proposals that were rejected, too, and why.
    """
    name = parse_bundle(bundle)
    with unread(log, timeout) as access:
        names = Names(access.view)
        has_story = False
        for told in story_of(name, access.reader, names, _entries(access)):
            has_story = True
            _Line(folded=told.folded, lines=told.lines).show(as_json=as_json)
        if not has_story:
            raise UnknownBundle(bundle=bundle)
        ending = ending_of(name, access.view, names)
    if as_json:
        print_json({"ending": ending})
    for line in () if as_json else ending:
        print_line(f"now {line}")


@app.command()
def at(offset: OffsetArgument, *, log: LogOption, timeout: TimeoutOption = TIMEOUT_S, as_json: JsonOption = False) -> None:
    """Show the view as it was at an offset.

    It is what every broker knew that had read up to there: brokers, namespaces, bundles, and the digest of it all.
    """
    with unread(log, timeout) as access:
        view = access.view
        reaches = False
        for entry in _entries(access):
            # What the log's first offset is, only its first record tells.
            reaches = view.offset >= 0 and entry.offset + view.base > offset
            if reaches:
                break
            access.reader.feed(entry)
        if view.offset > offset or not (reaches or view.offset == offset):
            raise _unknown_offset(access, log, offset)
        document = view_document(view)
    if as_json:
        print_json(document)
    else:
        _print_view(document)


@app.command("verify")
def verify_channel(
    *,
    log: LogOption,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="The cluster that the log should be of.", show_default=False)] = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Fold all again, and check everything.

    The storage, each record, each digest that a broker wrote, and each invariant. Exit code 1: something was found.
    """
    from channel.verify import verify

    with unread(log, timeout) as access:
        findings = verify(access.log, cluster=cluster, check=lambda: access.deadline.check(f"the audit of {log}"))
    if as_json:
        print_json({**asdict(findings), "in_order": findings.in_order})
    else:
        _print_findings(findings)
    if not findings.in_order:
        raise typer.Exit(ExitCode.REFUSED)


@app.command()
def export(
    *,
    log: LogOption,
    form: Annotated[ExportFormat, typer.Option("--format", help="One JSON object a line.")] = ExportFormat.JSONL,
    start: Annotated[int, typer.Option("--from", min=0, max=INTEGER_MAX, metavar="OFFSET", help="From this offset on.")] = 0,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: ErrorsAsJsonOption = False,
) -> None:
    """Print every record and the verdict on it, as JSON.

    Renewals too; what is no record is given as its bytes in base64.
    """
    assert form is ExportFormat.JSONL, "there is no other form"
    del as_json  # What is printed is JSON without it.
    with unread(log, timeout) as access:
        for entry in _entries(access):
            folded = access.reader.feed(entry)
            if folded.offset >= start:
                document = as_document(folded, ())
                del document["text"]
                print_json(document if document["record"] is not None else {**document, "data": b64encode(entry.data).decode()})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A record as it is told: what `describe` says, and what else there is to say of it."""

    folded: Folded
    lines: tuple[str, ...]

    @property
    def color(self) -> str | None:
        """A race lost is normal; any other rejection is for somebody to look at."""
        reason = self.folded.verdict.reason
        return None if reason is None else typer.colors.YELLOW if reason in QUIET_REASONS else typer.colors.RED

    def show(self, *, as_json: bool) -> None:
        """Print it, at the time that its author gave it."""
        if as_json:
            print_json(as_document(self.folded, self.lines))
            return
        print_line(f"{_time_of(self.folded)}  {self.lines[0]}", color=self.color)
        for line in self.lines[1:]:
            print_line(f"{'':{_TIME_CHARACTERS}}    {line}")


def _entries(access: Access) -> Iterator[Entry]:
    return entries_to_end(access.log, access.reader.position, deadline=access.deadline)


def _unknown_offset(access: Access, log: str, offset: int) -> UnknownOffset:
    """The error for an offset without a record; where the log ends, only reading on tells."""
    for entry in _entries(access):
        access.reader.feed(entry)
    return UnknownOffset(log=log, offset=offset, end=access.view.offset)


def _is_quiet_renewal(folded: Folded) -> bool:
    return isinstance(folded.record, Renewed) and folded.verdict.accepted and not folded.verdict.diverged


def _time_of(folded: Folded) -> str:
    """The local time that a record bears; blank if it bears none, or one that no calendar has."""
    timestamp_ms = 0 if isinstance(folded.record, Unreadable) else folded.record.timestamp_ms
    try:
        told = datetime.fromtimestamp(timestamp_ms / 1_000).astimezone().isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):
        timestamp_ms, told = 0, ""
    return told[:_TIME_CHARACTERS] if timestamp_ms else " " * _TIME_CHARACTERS


def _changes(folded: Folded, names: Names) -> list[str]:
    """What a record made of each bundle that it changed."""
    changes = [change for change in folded.verdict.changes if isinstance(change, BundleChanged)]
    return [f"now {standing(change.after, names)}" if change.after is not None else f"gone is {change.name}" for change in changes]


def _print_view(document: Row) -> None:
    print_document({name: value for name, value in document.items() if not isinstance(value, list | dict)}, as_json=False)
    for name, columns in (("brokers", BROKER_COLUMNS), ("namespaces", NAMESPACE_COLUMNS), ("bundles", BUNDLE_COLUMNS)):
        print_line("")
        print_rows(cast("list[Row]", document[name]), columns=columns, as_json=False, nothing=f"no {name}")


def _print_findings(findings: Findings) -> None:
    rejected = ", ".join(f"{findings.rejected[reason]} {reason}" for reason in sorted(findings.rejected)) or "none"
    print_line(f"{findings.records} records up to offset {findings.folded_to}: {findings.accepted} accepted; rejected: {rejected}")
    print_line(f"digests of brokers that agree: {findings.agreements}")
    for finding in findings.findings:
        where = f"offset {finding.first}" if finding.first == finding.last else f"offsets {finding.first} to {finding.last}"
        suspects = f" (look at {', '.join(map(str, finding.suspects))})" if finding.suspects else ""
        print_line(f"{where}: {finding.kind}: {finding.text}{suspects}", color=typer.colors.RED)
    if findings.in_order:
        print_line("all is in order", color=typer.colors.GREEN)
    else:
        print_line(f"findings: {findings.findings_count}", color=typer.colors.RED)
