"""Define `equipoise audit`: small processes beside the brokers that keep and check the history of a
channel.

`equipoise spark` has the same on a Spark cluster.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from equipoise.brokers.cli.options import (
    LogOption,
    StopOnEofOption,
    directory,
    end_with_standard_input,
    handle,
)
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import Output, print_line
from equipoise.channel.system.stop_signals import hear_interrupts
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import (
    IN_FLIGHT_MAX_S,
    AuditOptions,
    Screen,
    default_archive,
)

audit_app = group("Check every record of a channel as it arrives.")

_PORT_MAX: Final = 65_535
_IN_FLIGHT_MAX_S_MAX: Final = 86_400

ArchiveOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        parser=directory,
        help=(
            "Folder of the archive.  [default: FILE.archive next to the log's file, or"
            " TOPIC.archive]"
        ),
        show_default=False,
    ),
]
ToEndOption = Annotated[bool, typer.Option("--to-end", help="Stop at the present end of the log.")]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        max=_PORT_MAX,
        help="Serve Prometheus metrics on this port.",
        show_default=False,
    ),
]
InFlightOption = Annotated[
    int,
    typer.Option(
        metavar="SECONDS",
        min=1,
        max=_IN_FLIGHT_MAX_S_MAX,
        help="Report bundles that stay between two owners for longer.",
    ),
]


@audit_app.command()
def audit(
    *,
    log: LogOption,
    archive: ArchiveOption = None,
    to_end: ToEndOption = False,
    in_flight_max: InFlightOption = IN_FLIGHT_MAX_S,
    metrics_port: MetricsPortOption = None,
    stop_on_eof: StopOnEofOption = False,
    results: Output,
) -> None:
    """Check every record of a channel as it arrives, with an independent implementation of the
    rules.

    It prints findings, stores them in the archive's table `findings`, and publishes them on a topic
    (Kafka) or in a table (SQLite) next to the log. Ctrl-C stops it, and the next run continues
    there. With --to-end the exit code is 1 if this run found something, or could not check the log
    to its end.

    It is one process of 70 MB. `equipoise spark audit` is the same in Spark.
    """
    hear_interrupts()
    with delayed_interrupts():  # An interrupted import swallows Ctrl-C.
        from equipoise.spark_jobs.plain.audit import run_audit

    begin(log, stop_on_eof=stop_on_eof)
    options = AuditOptions(
        log_url=log,
        archive=archive or default_archive(log),
        to_end=to_end,
        metrics_port=metrics_port,
        in_flight_max_s=in_flight_max,
        as_json=results.as_json,
    )
    end(run_audit(options, screen()))


def begin(log: str, *, stop_on_eof: bool = False) -> None:
    """Check the log before a job, so that its errors are reported as in all commands and before a
    slow start.
    """
    with handle(log):
        pass
    if stop_on_eof:
        end_with_standard_input()


def screen() -> Screen:
    """Return the output of a job."""
    return Screen(
        result=print_line, note=lambda line: typer.echo(line, err=True), is_live=sys.stderr.isatty()
    )


def end(found: int) -> None:
    """Exit with the code for this number of findings."""
    if found:
        raise typer.Exit(ExitCode.REFUSED)
