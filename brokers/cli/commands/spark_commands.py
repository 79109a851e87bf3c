"""Define `equipoise spark`: run Spark jobs over the history of a channel.

The jobs are in `spark_jobs`, and print their own findings.
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
from equipoise.brokers.cli.options import LOG_VARIABLE, ErrorsAsJsonOption, JsonOption, LogOption, directory, file, handle
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import print_line
from equipoise.brokers.cli.standard_input import StopOnEofOption, end_with_standard_input
from equipoise.channel.system.stop_signals import hear_interrupts
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import (
    IN_FLIGHT_MAX_S,
    ArchiveOptions,
    AuditOptions,
    ReportOptions,
    Screen,
    TidyOptions,
    VerifyOptions,
    default_archive,
)
from equipoise.spark_jobs.streams.session import check_extra

app = group("Audit, archive and report what a channel went through.")

_PORT_MAX: Final = 65_535
_IN_FLIGHT_MAX_S_MAX: Final = 86_400
_REPORT: Final = Path("equipoise-report.html")

ArchiveOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        parser=directory,
        help="Where the tables lie.  [default: FILE.archive beside the log's file, or TOPIC.archive here]",
        show_default=False,
    ),
]
ThereOption = Annotated[Path, typer.Option("--archive", metavar="DIR", parser=directory, help="Where the tables lie.")]
MasterOption = Annotated[
    str | None, typer.Option(metavar="URL", help="A Spark cluster, as spark-submit takes it.  [default: this machine]", show_default=False)
]
ToEndOption = Annotated[bool, typer.Option("--to-end", help="End once what is there now has been read.")]
MetricsPortOption = Annotated[
    int | None, typer.Option(metavar="PORT", min=0, max=_PORT_MAX, help="Serve /metrics there, for Prometheus.", show_default=False)
]
FromOption = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="From then on: 2026-01-31T12:34, or -1d (s, m, h, d, w).", show_default=False)
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Until then, which is left out.", show_default=False)]


@app.callback()
def before_each_command() -> None:
    """Hear SIGINT: a job runs until it is stopped, or for as long as its archive is large."""
    hear_interrupts()


@app.command()
def audit(
    *,
    log: LogOption,
    archive: ArchiveOption = None,
    to_end: ToEndOption = False,
    in_flight_max: Annotated[
        int, typer.Option(metavar="SECONDS", min=1, max=_IN_FLIGHT_MAX_S_MAX, help="How long a bundle may stay between two owners.")
    ] = IN_FLIGHT_MAX_S,
    master: MasterOption = None,
    metrics_port: MetricsPortOption = None,
    stop_on_eof: StopOnEofOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check that the balancer kept its promises, by rules of their own, as records arrive.

    Findings are printed, kept in the archive's table `findings`, and told on a topic (Kafka) or in a table (SQLite) beside the log.
    Ctrl-C ends it, and the next run goes on where it was. Exit code 1 if --to-end found something in what this run read; how many
    older findings the archive holds is told, and is no reason.
    """
    with _importing():
        from equipoise.spark_jobs.audit.job import run_audit

    _begin(log, stop_on_eof=stop_on_eof)
    options = AuditOptions(
        log_url=log,
        archive=archive or default_archive(log),
        to_end=to_end,
        master=master,
        metrics_port=metrics_port,
        in_flight_max_s=in_flight_max,
        as_json=as_json,
    )
    _end(run_audit(options, _screen()))


@app.command("archive")
def keep(
    *,
    log: LogOption,
    archive: ArchiveOption = None,
    to_end: ToEndOption = False,
    hold: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Have the log keep what is not archived yet, as the archive NAME.", show_default=False),
    ] = None,
    release: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only lift the hold of the archive NAME, and end.", show_default=False)
    ] = None,
    master: MasterOption = None,
    metrics_port: MetricsPortOption = None,
    stop_on_eof: StopOnEofOption = False,
    as_json: JsonOption = False,
) -> None:
    """Keep what the channel will forget: every record, and tables of what it came to, as Parquet files by day.

    Ctrl-C ends it, and the next run goes on where it was, with no row lost or doubled.
    """
    with _importing():
        from equipoise.spark_jobs.archive.job import run_archive

    if hold is not None and release is not None:
        raise typer.BadParameter("a hold is either kept or lifted", param_hint="--release")
    _begin(log, stop_on_eof=stop_on_eof)
    options = ArchiveOptions(
        log_url=log,
        archive=archive or default_archive(log),
        to_end=to_end,
        master=master,
        metrics_port=metrics_port,
        hold=hold,
        release=release,
        as_json=as_json,
    )
    _end(run_archive(options, _screen()))


@app.command(cls=TimeCommand)
def verify(
    *, archive: ThereOption, begin: FromOption = None, end: ToOption = None, master: MasterOption = None, as_json: JsonOption = False
) -> None:
    """Fold an archive again, all its parts side by side, and compare each with the next. Exit code 1 if something differs."""
    with _importing():
        from equipoise.spark_jobs.verifying.job import run_verify

    from_ms, to_ms = _span(begin, end)
    _end(run_verify(VerifyOptions(archive=archive, from_ms=from_ms, to_ms=to_ms, master=master, as_json=as_json), _screen()))


@app.command(cls=TimeCommand)
def report(
    *,
    archive: Annotated[Path | None, typer.Option(metavar="DIR", parser=directory, help="Tell of this archive.", show_default=False)] = None,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help=f"Or of this log, which is archived aside first; {LOG_VARIABLE} without either.", show_default=False
        ),
    ] = None,
    begin: FromOption = None,
    end: ToOption = None,
    out: Annotated[Path, typer.Option(metavar="FILE", parser=file, help="The page to write.")] = _REPORT,
    master: MasterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one page that shows what happened: findings, moves and their reasons, pauses, load, and who owned what when."""
    with _importing():
        from equipoise.spark_jobs.report import run_report

    if archive is None and log is None:  # An explicit archive takes precedence over the log of the environment.
        log = os.environ.get(LOG_VARIABLE)
    if (archive is None) == (log is None):
        raise typer.BadParameter("give one of --archive and --log", param_hint="--archive")
    from_ms, to_ms = _span(begin, end)
    if log is not None:
        _begin(log)
    options = ReportOptions(out=out, archive=archive, log_url=log, from_ms=from_ms, to_ms=to_ms, master=master, as_json=as_json)
    _end(run_report(options, _screen()))


@app.command()
def tidy(*, archive: ThereOption, as_json: JsonOption = False) -> None:
    """Join the small files of an archive into large ones. Readers see the same rows before, during and after."""
    with _importing():
        from equipoise.spark_jobs.archive.tables.tidying import run_tidy

    _end(run_tidy(TidyOptions(archive=archive, as_json=as_json), _screen()))


@app.command()
def jars(*, as_json: ErrorsAsJsonOption = False) -> None:
    """Fetch the jars of Spark's Kafka connector, once, and check them. A log in a file needs none."""
    del as_json  # It prints paths only.
    from equipoise.spark_jobs.streams.connector import connector_jars

    for path in connector_jars(telling=_screen().note):
        print_line(str(path))


def _span(begin: str | None, end: str | None) -> tuple[int | None, int | None]:
    """Return the Unix times of two texts. Raise `typer.BadParameter` for an offset, or an end that is not after the beginning."""
    now_ms = time.time_ns() // 1_000_000
    times: list[int | None] = []
    for text, option in ((begin, "--from"), (end, "--to")):
        found = None if text is None else moment(text, now_ms=now_ms)
        if found is not None and found.time_ms is None:
            raise typer.BadParameter(f"{found.text} is an offset; write a time", param_hint=option)
        times.append(None if found is None else found.time_ms)
    from_ms, to_ms = times
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        raise typer.BadParameter("it is not after --from", param_hint="--to")
    return from_ms, to_ms


@contextmanager
def _importing() -> Iterator[None]:
    """Import a job. Raise `CallerError` if its dependencies are not installed."""
    with delayed_interrupts():
        check_extra()
        yield


def _begin(log: str, *, stop_on_eof: bool = False) -> None:
    """Check the log before a job, so that its errors are reported as in all commands and before Spark's slow start."""
    with handle(log):
        pass
    if stop_on_eof:
        end_with_standard_input()


def _screen() -> Screen:
    return Screen(result=print_line, note=lambda line: typer.echo(line, err=True), is_live=sys.stderr.isatty())


def _end(found: int) -> None:
    """Exit with the code for this number of findings."""
    if found:
        raise typer.Exit(ExitCode.REFUSED)
