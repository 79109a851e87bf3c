"""Define `equipoise pulsar record` and `trace`: record a cluster, and make a load trace of a
recording.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from equipoise.brokers.cli.moments import duration
from equipoise.brokers.cli.options import file
from equipoise.brokers.cli.output import Output, progress
from equipoise.brokers.cli.pulsar_options import Cluster
from equipoise.channel.core.errors import missing_extra
from equipoise.channel.system.stop_signals import hear_interrupts
from equipoise.pulsar_cluster.archive import open_archive
from equipoise.pulsar_cluster.sources import record as record_all

SourceOption = Annotated[
    str, typer.Option("--source", metavar="FILE", envvar="EQUIPOISE_PULSAR", help="An archive.")
]
_STEP_S: Final = 60.0
_EVERY_S_MAX: Final = 86_400
_FOR_EVER_S: Final = 10 * 365 * 86_400.0

REPORT_AGE_MS: Final = 900_000
"""Pulsar's brokers report at least every 15 minutes
(`loadBalancerReportUpdateMaxIntervalMinutes`)."""


def record(
    archive: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            parser=file,
            help="The archive. It is made if there is none.",
            show_default=False,
        ),
    ],
    *,
    cluster: Cluster,
    once: Annotated[bool, typer.Option("--once", help="Stop at the end of the channel.")] = False,
    length: Annotated[
        int | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            parser=duration,
            help="How long to record (30m; s, m, h, d, w).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Follow the channel and the load reports of a cluster into an archive, until Ctrl-C.

    A later recording into the same file goes on after the last record. Load reports that nobody
    records are lost: Pulsar keeps none. With --admin it also records which brokers there are, and
    which one leads.
    """
    hear_interrupts()
    until_s = time.monotonic() + (_FOR_EVER_S if length is None else length / 1_000)
    deadline = cluster.deadline()
    with (
        open_archive(archive, create_for=cluster.address.service_url) as opened_archive,
        progress("recording") as note,
    ):
        begin = opened_archive.end
        with suppress(KeyboardInterrupt):
            record_all(
                opened_archive,
                cluster.address,
                deadline=deadline,
                until_s=None if once else until_s,
                note=note,
            )
        added, end = opened_archive.end - begin, opened_archive.end
    cluster.print_fact(
        f"{added} records added to {archive}, which now has {end + 1}",
        {"archive": str(archive), "added": added, "records": end + 1},
    )


def trace(
    output: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            parser=file,
            help="The load trace: .csv or .parquet.",
            show_default=False,
        ),
    ],
    *,
    source: SourceOption,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=_EVERY_S_MAX, help="Length of a step.")
    ] = _STEP_S,
    results: Output,
) -> None:
    """Make a load trace from the load reports of an archive.

    `equipoise lab` replays it with any policy: it shows what another policy would have done. The
    load of a bundle is that of its owner's newest report.
    """
    try:
        from equipoise.lab.trace_files import check_suffix, description_of, write_trace
        from equipoise.lab.traces import Recording
    except ImportError as error:
        raise missing_extra(what="a load trace", extra="lab") from error
    from equipoise.pulsar_cluster.planning import snapshot_of
    from equipoise.pulsar_cluster.sources import replayed

    check_suffix(output)
    age_ms_max, recording = max(REPORT_AGE_MS, round(2_000 * every)), Recording(step_s=every)
    with open_archive(Path(source)) as archive, progress("reading", unit="steps") as note:
        for now_ms, cluster in replayed(archive, step_ms=round(every * 1_000)):
            used = {broker: load.average_use for broker, load in cluster.reports.loads.items()}
            recording.note(snapshot_of(cluster, now_ms=now_ms, age_ms_max=age_ms_max), used)
            note(recording.steps, None)
    made = recording.trace(output.stem)
    write_trace(made, output)
    results.print_fact(*description_of(made, output))
