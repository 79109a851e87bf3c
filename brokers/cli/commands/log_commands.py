"""Define `equipoise channel verify`, `copy`, `compact` and `acls`: commands on the log itself.

`compaction.copying` and `compaction.compactor` do the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from equipoise.brokers.cli.channel_options import Channel, Timed, publisher
from equipoise.brokers.cli.options import (
    AsOption,
    StopOnEofOption,
    TimeoutOption,
    end_with_standard_input,
    handle,
    shared,
)
from equipoise.brokers.cli.outcome import ExitCode
from equipoise.brokers.cli.output import print_json, print_line, progress
from equipoise.brokers.errors import counted
from equipoise.channel.core.errors import invalid_log_url, missing_extra
from equipoise.channel.core.log import Log
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.channel.kafka.answers import KafkaFailed
from equipoise.channel.kafka.rights import Right, Role, rights_of
from equipoise.channel.kafka.settings import address_of
from equipoise.channel.log.open_log import kafka_settings, log_path
from equipoise.compaction.retention import (
    COMPACT_S_MAX,
    RETAIN_BY_DEFAULT,
    WAIT_MS_MAX,
    parse_retention,
)

if TYPE_CHECKING:
    from equipoise.channel.inspect.verify import Findings
    from equipoise.compaction.compactor import Compacted
    from equipoise.compaction.copying import Copied


_BEGINNING: Final = ", where the fold began"


def verify_channel(
    *,
    channel: Channel,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Check the log's cluster name.", show_default=False),
    ] = None,
) -> None:
    """Fold the log again and verify everything.

    This checks the storage, the snapshot, the history snapshot, each record, each digest of a
    broker, and each invariant. Exit code 1: there are findings.
    """
    from equipoise.channel.inspect.verify import verify

    check = partial(channel.deadline().check, f"the audit of {channel.log}")
    with channel.handle() as audited, progress("verifying", unit="offsets") as watch:
        findings = verify(audited, cluster=cluster, check=check, progress=watch)
    if channel.as_json:
        print_json({**asdict(findings), "in_order": findings.in_order})
    else:
        _print_findings(findings)
    if not findings.in_order:
        raise typer.Exit(ExitCode.REFUSED)


def _print_findings(findings: Findings) -> None:
    rejected = (
        ", ".join(f"{findings.rejected[reason]} {reason}" for reason in sorted(findings.rejected))
        or "none"
    )
    print_line(
        f"{findings.records} records up to offset {findings.folded_to}: {findings.accepted}"
        f" accepted; rejected: {rejected}"
    )
    print_line(f"digests of brokers that agree: {findings.agreements}")
    if findings.snapshot_to is not None:
        print_line(
            f"snapshot up to offset {findings.snapshot_to}"
            + (_BEGINNING if findings.from_snapshot else "")
        )
    if findings.history_to is not None:
        print_line(
            f"history snapshot at offset {findings.history_to}"
            + (_BEGINNING if findings.from_history_snapshot else "")
        )
    for finding in findings.findings:
        where = (
            f"offset {finding.first}"
            if finding.first == finding.last
            else f"offsets {finding.first} to {finding.last}"
        )
        suspects = f" (look at {', '.join(map(str, finding.suspects))})" if finding.suspects else ""
        print_line(f"{where}: {finding.kind}: {finding.text}{suspects}", color=typer.colors.RED)
    if findings.in_order:
        print_line("all is in order", color=typer.colors.GREEN)
    else:
        print_line(f"findings: {findings.findings_count}", color=typer.colors.RED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying(Timed):
    """The options of a copy that say what becomes of the old log."""

    again: Annotated[
        bool,
        typer.Option("--again", help="Repeat a copy that closed the old log and did not finish."),
    ] = False
    other_is_lost: Annotated[
        bool,
        typer.Option(
            "--other-is-lost",
            help="With --again: the first target is lost for good; copy to another one.",
        ),
    ] = False
    leave_open: Annotated[
        bool,
        typer.Option("--leave-open", help="Make or restore a backup: do not close the old log."),
    ] = False
    ahead: Annotated[
        int | None,
        typer.Option(
            "--ahead",
            min=0,
            max=INTEGER_MAX // 4,
            metavar="OFFSETS",
            help=(
                "With --leave-open: first offset of the new log, counted from the end of the old"
                " one.  [default: 1,000,000,000]"
            ),
            show_default=False,
        ),
    ] = None
    admin_name: AsOption = None

    def copied(self, source: str, to: str) -> Copied:
        """Copy a channel as the options say. Raise what `copy` and `back_up` raise."""
        from equipoise.compaction.copying import AHEAD, back_up, copy

        if self.leave_open and (self.again or self.other_is_lost):
            raise typer.BadParameter("--again is for a copy that closes the old log")
        if self.ahead is not None and not self.leave_open:
            raise typer.BadParameter("--ahead is for a copy with --leave-open")
        deadline = self.deadline()
        with (
            handle(source) as old,
            _target(to) as (new, name_target),
            progress("reading the old log") as watch,
        ):
            if self.leave_open:
                return back_up(
                    old,
                    new,
                    deadline=deadline,
                    ahead=AHEAD if self.ahead is None else self.ahead,
                    name_target=name_target,
                    progress=watch,
                )
            return copy(
                old,
                new,
                publisher=publisher(self.admin_name),
                deadline=deadline,
                again=self.again,
                other_is_lost=self.other_is_lost,
                name_target=name_target,
                progress=watch,
            )


def copy(
    source: Annotated[
        str,
        typer.Argument(metavar="FROM_URL", help="The cluster's present log.", show_default=False),
    ],
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO_URL",
            help="The new log. It must not exist, or be empty.",
            show_default=False,
        ),
    ],
    *,
    options: Copying,
) -> None:
    """Copy a channel to another log, and close the old one.

    Use it to move a cluster from SQLite to Kafka, or back. Stop all brokers first. Then start them
    on the new log: they find the same namespaces, bundles and policies, and all new fencing tokens
    are above the old ones.

    With --leave-open the copy is a backup, which brokers may go on with if the old log is lost. It
    works while brokers run. Records appended later are missing.
    """
    done = options.copied(source, to)
    held = (
        f"{counted(done.namespaces, 'namespace')}, {counted(done.bundles, 'bundle')},"
        f" {counted(done.brokers, 'broker')}"
    )
    declared_dead = (
        f"; declared down, because silent: {', '.join(done.declared_dead)}"
        if done.declared_dead
        else ""
    )
    only = "; let brokers work on one copy only" if options.other_is_lost else ""
    state = "left open" if options.leave_open else "closed"
    sentence = (
        f"copied cluster {done.cluster} to {to}: {held}, above offset {done.base}; {source} is"
        f" {state}{declared_dead}{only}"
    )
    options.print_fact(
        sentence, {"from": source, "to": to, **asdict(done), "digest": f"0x{done.digest:016x}"}
    )


@contextmanager
def _target(url: str) -> Iterator[tuple[Log, Callable[[], Log] | None]]:
    """Open the log to copy to.

    For a new log also yield the function that gives it its name. Without that call the new log is
    removed.
    """
    from equipoise.compaction.copying import made_aside

    path = log_path(shared(url))
    if path is None or os.path.lexists(path):
        with handle(url, create=True) as log:
            yield log, None
    else:
        with made_aside(url) as aside:
            yield aside.log, aside.named


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacting(Channel):
    """The options of a compaction, which may take longer than other commands."""

    timeout: TimeoutOption = COMPACT_S_MAX


def compact(
    *,
    channel: Compacting,
    retain: Annotated[
        str,
        typer.Option(
            metavar="HOW_MUCH",
            help=(
                "History to keep: a time (7d, 12h), a size (64MiB), or a number of offsets ('10000"
                " offsets')."
            ),
        ),
    ] = RETAIN_BY_DEFAULT,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show what would be written and removed, and change nothing."
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Fail if the log belongs to another cluster.", show_default=False
        ),
    ] = None,
    stop_on_eof: StopOnEofOption = False,
) -> None:
    """Shorten the log without changing its state.

    Writes the present state to the log's snapshot, and removes older records. Keeps what --retain
    names, and always the newest ten minutes. The leader compacts automatically; this command does
    it now.
    """
    from equipoise.compaction.compactor import compact as compact_log

    if stop_on_eof:
        end_with_standard_input()
    kept = parse_retention(retain)
    log, deadline = channel.log, channel.deadline()
    with channel.handle() as opened, progress("folding") as watch:
        done = compact_log(
            opened,
            retain=kept,
            timeout_ms=WAIT_MS_MAX,
            cluster=cluster,
            dry_run=dry_run,
            check=lambda: deadline.check(f"the compaction of {log}"),
            progress=watch,
        )
    channel.print_fact(_sentence(log, done), {"log": log, **asdict(done)})


def _sentence(log: str, done: Compacted) -> str:
    if done.horizon is None:
        return f"no broker has begun {log}: there is nothing to compact"
    writes, removes = ("would write", "would begin") if done.dry_run else ("wrote", "now begins")
    written = (
        f"{writes} {counted(done.rows, 'row')} and {counted(done.tombstones, 'tombstone')}"
        if done.rows or done.tombstones
        else None
    )
    what = written or (
        "the snapshot is up to date" if not done.records else f"{writes} the marker alone"
    )
    kept = (
        f"the log {removes} at offset {done.start}, instead of {done.start_before}"
        if done.start != done.start_before
        else (
            "nothing is removed: the newest ten minutes before the last record, and what --retain"
            " names, are kept"
        )
    )
    held = (
        f"; more is kept for the archive {done.held_by}, which has not read it"
        if done.held_by is not None
        else ""
    )
    lapsed = (
        f"; nothing is kept any longer for {', '.join(done.lapsed)}, whose hold has lapsed"
        if done.lapsed
        else ""
    )
    clock = (
        f"; the record at offset {done.ahead} has a time ahead of this machine's clock"
        if done.ahead is not None
        else ""
    )
    return (
        f"folded {counted(done.records, 'record')} up to offset {done.horizon}; {what};"
        f" {kept}{held}{lapsed}{clock}"
    )


def acls(
    role: Annotated[
        Role,
        typer.Argument(
            metavar="ROLE",
            help="broker, operator, reader or audit.",
            show_default=False,
        ),
    ],
    principal: Annotated[
        str,
        typer.Argument(
            metavar="User:NAME", help="Kafka's user that gets the rights.", show_default=False
        ),
    ],
    *,
    channel: Channel,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Grant the rights, as a user of Kafka with Alter on the cluster."
        ),
    ] = False,
) -> None:
    """Print the rights that a program needs on Kafka, and with --apply grant them.

    Each row is one access control entry for each of its operations: allow, from any host, for the
    resource with exactly this name. Other rights of the user are not touched.
    """
    if not channel.log.startswith("kafka:"):
        problem = (
            "only a log on Kafka has access control entries; the files of any other log have modes"
        )
        raise invalid_log_url(url=channel.log, problem=problem)
    if not principal.removeprefix("User:") or not principal.startswith("User:"):
        raise typer.BadParameter(f"{principal!r} is not a user of Kafka; write User:NAME")
    rights = rights_of(role, address_of(channel.log).topic)
    if apply:
        _grant(rights, principal, channel)
    rows = [
        {"resource": right.resource.value, "name": right.name, "operations": list(right.operations)}
        for right in rights
    ]
    channel.print_rows(rows, columns=("resource", "name", "operations"), nothing="no rights")


def _grant(rights: list[Right], principal: str, channel: Channel) -> None:
    try:
        from equipoise.channel.kafka.client import Clients
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise missing_extra(what=f"to grant rights on {channel.log}", extra="kafka") from error
    clients = Clients(servers=address_of(channel.log).servers, settings=kafka_settings())
    try:
        with clients.administrator() as administrator:
            administrator.grant(rights, principal=principal, timeout_ms=channel.timeout * 1_000)
    except KafkaFailed as failed:
        raise failed.as_error(log=channel.log, in_doubt=True) from failed
