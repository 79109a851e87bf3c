"""Define `equipoise spark`: run Spark jobs over the history of a channel, and runs of the
laboratory.

The jobs are in `spark_jobs`, and print their own findings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.brokers.cli.commands.history_commands import (
    ArchiveOption,
    FromOption,
    HoldOption,
    InFlightOption,
    MetricsPortOption,
    ReleaseOption,
    ToEndOption,
    ToOption,
    begin,
    check_one,
    end,
    importing,
    period,
    screen,
)
from equipoise.brokers.cli.lab_commands import OURS, EveryOption, TraceOptions
from equipoise.brokers.cli.moments import TimeCommand
from equipoise.brokers.cli.options import (
    LogOption,
    StopOnEofOption,
    directory,
    directory_or_url,
    file,
    pairs,
)
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import Output, print_line
from equipoise.channel.system.stop_signals import hear_interrupts
from equipoise.spark_jobs.streams.options import (
    IN_FLIGHT_MAX_S,
    ArchiveOptions,
    AuditOptions,
    LabOptions,
    PulsarOptions,
    VerifyOptions,
    default_archive,
)

app = group("Audit and archive a channel in Spark; run the laboratory.")

ThereOption = Annotated[
    Path, typer.Option("--archive", metavar="DIR", parser=directory, help="Folder of the archive.")
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Spark cluster, as for spark-submit.  [default: this machine]",
        show_default=False,
    ),
]


EnvironmentOption = Annotated[
    Path | None,
    typer.Option(
        "--environment",
        metavar="FILE",
        parser=file,
        help="Packed environment of Python for the workers of --master.",
        show_default=False,
    ),
]

OutputOption = Annotated[
    str,
    typer.Option(
        metavar="DIR",
        parser=directory_or_url,
        help="Folder for the tables. On a cluster: a folder or URL that all machines share.",
    ),
]


@app.callback()
def before_each_command() -> None:
    """Listen to SIGINT, because a job may run for hours."""
    hear_interrupts()


@app.command()
def audit(
    *,
    log: LogOption,
    archive: ArchiveOption = None,
    to_end: ToEndOption = False,
    in_flight_max: InFlightOption = IN_FLIGHT_MAX_S,
    master: MasterOption = None,
    environment: EnvironmentOption = None,
    metrics_port: MetricsPortOption = None,
    stop_on_eof: StopOnEofOption = False,
    results: Output,
) -> None:
    """Check every record of a channel in Spark: as `equipoise audit`, on all cores.

    It goes on where the last audit stopped, in Spark or not.
    """
    with importing("spark"):
        from equipoise.spark_jobs.audit.job import run_audit

    begin(log, stop_on_eof=stop_on_eof)
    options = AuditOptions(
        log_url=log,
        archive=archive or default_archive(log),
        to_end=to_end,
        master=master,
        environment=environment,
        metrics_port=metrics_port,
        in_flight_max_s=in_flight_max,
        as_json=results.as_json,
    )
    end(run_audit(options, screen()))


@app.command("archive")
def keep(
    *,
    log: LogOption,
    archive: ArchiveOption = None,
    to_end: ToEndOption = False,
    hold: HoldOption = None,
    release: ReleaseOption = None,
    master: MasterOption = None,
    environment: EnvironmentOption = None,
    metrics_port: MetricsPortOption = None,
    stop_on_eof: StopOnEofOption = False,
    results: Output,
) -> None:
    """Store every record of a channel, and tables made from the records, as `equipoise archive`
    does, but fold them in Spark.

    Ctrl-C stops it, and the next run continues there. No row is lost or stored twice.
    """
    with importing("spark"):
        from equipoise.spark_jobs.archive.job import run_archive

    check_one(hold, release)
    begin(log, stop_on_eof=stop_on_eof)
    options = ArchiveOptions(
        log_url=log,
        archive=archive or default_archive(log),
        to_end=to_end,
        master=master,
        environment=environment,
        metrics_port=metrics_port,
        hold=hold,
        release=release,
        as_json=results.as_json,
    )
    end(run_archive(options, screen()))


@app.command(cls=TimeCommand)
def verify(
    *,
    archive: ThereOption,
    from_time: FromOption = None,
    to_time: ToOption = None,
    master: MasterOption = None,
    environment: EnvironmentOption = None,
    results: Output,
) -> None:
    """Replay all parts of an archive in parallel, and compare their digests with the stored ones.
    Exit code 1 on a difference.
    """
    with importing("spark"):
        from equipoise.spark_jobs.verifying.job import run_verify

    from_ms, to_ms = period(from_time, to_time)
    end(
        run_verify(
            VerifyOptions(
                archive=archive,
                from_ms=from_ms,
                to_ms=to_ms,
                master=master,
                environment=environment,
                as_json=results.as_json,
            ),
            screen(),
        )
    )


@app.command()
def pulsar(
    recording: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            parser=file,
            help="A recording of `equipoise pulsar record`.",
            show_default=False,
        ),
    ],
    *,
    archive: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=directory,
            help="Folder of the archive.  [default: FILE.archive]",
            show_default=False,
        ),
    ] = None,
    master: MasterOption = None,
    environment: EnvironmentOption = None,
    results: Output,
) -> None:
    """Audit a recorded Pulsar cluster by rules from Pulsar's design documents, and write its
    history as an archive for `equipoise report`.

    It prints findings, each with what an operator of Pulsar can do. A later run reads the whole
    recording again. The exit code is 1 if it found something.
    """
    with importing("spark"):
        from equipoise.spark_jobs.audit.pulsar import run_pulsar

    into = archive or Path(f"{recording}.archive")
    end(
        run_pulsar(
            PulsarOptions(
                recording=recording,
                archive=into,
                master=master,
                environment=environment,
                as_json=results.as_json,
            ),
            screen(),
        )
    )


@app.command()
def lab(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE", help="Kinds of generated traces, or files.", show_default=False
        ),
    ],
    *,
    output: OutputOption,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"A policy to run. Repeatable.  [default: {OURS}]",
            show_default=False,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE,...",
            help="Run each value of a setting of balancing. Repeatable.",
            show_default=False,
        ),
    ] = None,
    every: EveryOption = None,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            min=1,
            help="Number of seeds, whose figures are averaged: 1 to NUMBER.",
        ),
    ] = 1,
    generated: TraceOptions,
    master: MasterOption = None,
    environment: EnvironmentOption = None,
    results: Output,
) -> None:
    """Run policies and settings on load traces in parallel, and print the settings that no others
    beat in evenness and load moved.

    Each trace runs with each policy, each combination of the values of --set, and each seed, up to
    20,000 runs. DIR gets the tables `runs.parquet` and `front.parquet`. A run that fails is a row
    with its error; the exit code is then 1.
    """
    with importing("spark"):
        from equipoise.lab.search import grid_values
        from equipoise.spark_jobs.laboratory import run_lab

    values = (pair for text in changes or () for pair in pairs("--set", [text]).items())
    options = LabOptions(
        traces=tuple(traces),
        shape=generated.shape(),
        policies=tuple(policy or [OURS]),
        values=grid_values(values),
        every_s=every,
        seeds=seeds,
        output=output,
        master=master,
        environment=environment,
        as_json=results.as_json,
    )
    end(run_lab(options, screen()))


@app.command()
def jars() -> None:
    """Fetch the jars of Spark's Kafka connector into the cache and verify them. A log in a file
    needs none.
    """
    from equipoise.spark_jobs.streams.connector import connector_jars

    for path in connector_jars(note=screen().note):
        print_line(str(path))
