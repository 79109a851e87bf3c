"""Define `equipoise archive`, `audit` and `report`: small processes beside the brokers that keep,
check and show the history of a channel.

`equipoise spark` has the same on a Spark cluster.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from equipoise.brokers.cli.moments import TimeCommand, moment
from equipoise.brokers.cli.options import (
    LOG_VARIABLE,
    LogOption,
    StopOnEofOption,
    directory,
    directory_or_url,
    end_with_standard_input,
    file,
    handle,
)
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import Output, print_line
from equipoise.channel.system.stop_signals import hear_interrupts
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import (
    IN_FLIGHT_MAX_S,
    ArchiveOptions,
    AuditOptions,
    ReportOptions,
    Screen,
    default_archive,
)
from equipoise.spark_jobs.streams.session import check_extra

archive_app = group("Store every record of a channel, and what it changed, in tables.")
audit_app = group("Check every record of a channel as it arrives.")
report_app = group("Write a page about a period: findings, moves and their reasons, owners.")

_PORT_MAX: Final = 65_535
_IN_FLIGHT_MAX_S_MAX: Final = 86_400
_REPORT: Final = Path("equipoise-report.html")

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
PlaceOption = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="DIR|URL",
        parser=directory_or_url,
        help=(
            "Folder of the archive, or its URL in object storage (s3://BUCKET/NAME).  [default:"
            " FILE.archive next to the log's file, or TOPIC.archive]"
        ),
        show_default=False,
    ),
]
HoldOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Keep the log from removing what the archive NAME has not read yet.",
        show_default=False,
    ),
]
ReleaseOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Only release the hold of the archive NAME.", show_default=False
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
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="Start time: 2026-01-31T12:34, or -1d (s, m, h, d, w).",
        show_default=False,
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help="End time (exclusive).", show_default=False),
]


@archive_app.command()
def archive(
    *,
    log: LogOption,
    place: PlaceOption = None,
    to_end: ToEndOption = False,
    hold: HoldOption = None,
    release: ReleaseOption = None,
    metrics_port: MetricsPortOption = None,
    stop_on_eof: StopOnEofOption = False,
    results: Output,
) -> None:
    """Store every record of a channel, and what it changed, in tables of Delta Lake.

    Ctrl-C stops it, and the next run continues there. No row is lost or stored twice. DuckDB,
    Polars, pandas and Spark read the tables, also while it runs.

    It is one process. `equipoise spark archive` is the same in Spark.
    """
    hear_interrupts()
    with importing("archive"):
        from equipoise.spark_jobs.plain.archive import run_archive

    check_one(hold, release)
    begin(log, stop_on_eof=stop_on_eof)
    options = ArchiveOptions(
        log_url=log,
        archive=place or default_archive(log),
        to_end=to_end,
        metrics_port=metrics_port,
        hold=hold,
        release=release,
        as_json=results.as_json,
    )
    end(run_archive(options, screen()))


@audit_app.command()
def audit(
    *,
    log: LogOption,
    place: PlaceOption = None,
    to_end: ToEndOption = False,
    in_flight_max: InFlightOption = IN_FLIGHT_MAX_S,
    metrics_port: MetricsPortOption = None,
    stop_on_eof: StopOnEofOption = False,
    results: Output,
) -> None:
    """Check every record of a channel as it arrives.

    It implements the rules independently. It prints findings, stores them in the archive's table
    `findings`, and publishes them on a topic (Kafka) or in a table (SQLite) next to the log. Ctrl-C
    stops it, and the next run continues there. With --to-end the exit code is 1 if this run found
    something, or could not check the log to its end.

    It is one process of some 70 MB until it finds something. `equipoise spark audit` is the same
    in Spark.
    """
    hear_interrupts()
    with importing("archive"):
        from equipoise.spark_jobs.plain.audit import run_audit

    begin(log, stop_on_eof=stop_on_eof)
    options = AuditOptions(
        log_url=log,
        archive=place or default_archive(log),
        to_end=to_end,
        metrics_port=metrics_port,
        in_flight_max_s=in_flight_max,
        as_json=results.as_json,
    )
    end(run_audit(options, screen()))


@report_app.command(cls=TimeCommand)
def report(
    *,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL",
            parser=directory_or_url,
            help="Read this archive.",
            show_default=False,
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help=(
                "Archive and audit this log first, then read its archive.  [default:"
                f" {LOG_VARIABLE}]"
            ),
            show_default=False,
        ),
    ] = None,
    from_time: FromOption = None,
    to_time: ToOption = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", parser=file, help="Page to write.")
    ] = _REPORT,
    results: Output,
) -> None:
    """Write a page about a period: findings, moves and their reasons, owners.

    It also shows pauses, load, deaths, splits, and what the balancer decided.
    """
    hear_interrupts()
    with importing("report"):
        from equipoise.spark_jobs.report.job import run_report

    # An explicit archive takes precedence over the log of the environment.
    if archive is None and log is None:
        log = os.environ.get(LOG_VARIABLE)
    if (archive is None) == (log is None):
        raise typer.BadParameter("give one of --archive and --log", param_hint="--archive")
    from_ms, to_ms = period(from_time, to_time)
    if log is not None:
        begin(log)
    options = ReportOptions(
        out=out,
        archive=archive,
        log_url=log,
        from_ms=from_ms,
        to_ms=to_ms,
        as_json=results.as_json,
    )
    end(run_report(options, screen()))


@contextmanager
def importing(extra: str) -> Iterator[None]:
    """Import a job. Raise `CallerError` unless everything in the extra is installed."""
    with delayed_interrupts():  # An interrupted import swallows Ctrl-C.
        check_extra(extra)
        yield


def period(begin: str | None, end: str | None) -> tuple[int | None, int | None]:
    """Return the Unix times of two texts. Raise `typer.BadParameter` for an offset, or an end that
    is not after the beginning.
    """
    now_ms = time.time_ns() // 1_000_000
    times: list[int | None] = []
    for text, option in ((begin, "--from"), (end, "--to")):
        found = None if text is None else moment(text, now_ms=now_ms)
        if found is not None and found.time_ms is None:
            raise typer.BadParameter(f"{found.text} is an offset; write a time", param_hint=option)
        times.append(None if found is None else found.time_ms)
    from_ms, to_ms = times
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        raise typer.BadParameter(
            "the end is not after --from; give a later time", param_hint="--to"
        )
    return from_ms, to_ms


def check_one(hold: str | None, release: str | None) -> None:
    """Raise `typer.BadParameter` if both are given."""
    if hold is not None and release is not None:
        raise typer.BadParameter("give --hold or --release, not both", param_hint="--release")


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
