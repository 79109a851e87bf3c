"""Define each job's options and its output.

A job is a function `run_NAME(options, screen) -> int`. It returns how many problems it found, and
raises an `EquipoiseError` if it cannot continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from equipoise.channel.kafka.settings import address_of
from equipoise.channel.log.open_log import log_path

if TYPE_CHECKING:
    from equipoise.lab.traces import Shape

PER_TRIGGER: Final = 40_000
"""Most entries in one batch: 10 MB of records of 250 bytes. One worker folds them in about a
second."""

ARCHIVE_PER_TRIGGER: Final = 200_000
"""The same for an archive, 50 MB. Latency does not matter there, and larger batches spread the
fixed cost of each."""

IN_FLIGHT_MAX_S: Final = 60
"""How long a bundle may be between two owners before the audit reports it: a step takes
milliseconds, a retry seconds."""


NOTE_EVERY_S: Final = 10.0
"""How often `counting` prints a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The output of a job. `result` takes lines that were asked for, `note` takes progress lines.

    `is_live` means that a person is watching, so that a progress bar makes sense.
    """

    result: Callable[[str], None]
    note: Callable[[str], None]
    is_live: bool = False


@contextmanager
def counting(
    screen: Screen, what: str, *, total: int, unit: str
) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes how many of `total` are done. Show a bar on a terminal, and print
    a line now and then elsewhere.
    """
    if not screen.is_live:
        due_s = time.monotonic() + NOTE_EVERY_S

        def note(done: int) -> None:
            nonlocal due_s
            if time.monotonic() >= due_s:
                due_s += NOTE_EVERY_S
                screen.note(f"{what}: about {done:,} of {total:,} {unit}")

        yield note
        return
    from rich.console import Console  # noqa: PLC0415 - only where a terminal is

    # The same.
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (
        TextColumn(f"{what}  "),
        BarColumn(),
        TextColumn(f"{{task.completed:,}} {unit}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done: bars.update(task, completed=done)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Where Spark runs.

    * `master`: a cluster; None for this machine.
    * `environment`: a packed environment of Python for the workers; None if they have one.
    """

    master: str | None = None
    environment: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(SparkOptions):
    """Options of all jobs that read the log at `log_url` as a stream.

    * `to_end`: stop after the entries that existed at the start. Default: run until interrupted.
    * `metrics_port`: serves `/metrics`; None for no metrics.
    """

    log_url: str
    to_end: bool = False
    metrics_port: int | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions(StreamOptions):
    """Options of `run_audit`, which audits a log and the evidence next to it. `archive` is a folder
    for its table and its state, or a URL of object storage for the table.
    """

    archive: str | Path
    in_flight_max_s: int = IN_FLIGHT_MAX_S
    per_trigger: int = PER_TRIGGER


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions(StreamOptions):
    """Options of `run_archive`, which writes the tables of `archive`.

    * `archive`: a folder, or a URL of object storage.
    * `hold`: name of the retention hold that keeps unarchived records in the channel; None for no
      hold.
    * `release`: only release the retention hold of this name.
    """

    archive: str | Path
    per_trigger: int = ARCHIVE_PER_TRIGGER
    hold: str | None = None
    release: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(SparkOptions):
    """Options of `run_verify`, which folds `archive` again from Unix time `from_ms` to `to_ms`
    (exclusive); None is the archive's end.
    """

    archive: Path
    from_ms: int | None = None
    to_ms: int | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Options of `run_report`, which writes the page `out` about `archive` or the log at `log_url`;
    one of the two is None.

    `from_ms` and `to_ms` are as in `VerifyOptions`.
    """

    out: Path
    archive: str | Path | None = None
    log_url: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarOptions(SparkOptions):
    """Options of `run_pulsar`, which audits the `recording` of a Pulsar cluster and writes its
    tables to `archive`.
    """

    recording: Path
    archive: Path
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LabOptions(SparkOptions):
    """Options of `run_lab`, which runs each of `policies` on each of `traces` and writes its tables
    to the folder `output`.

    * `traces`: kinds of generated traces of this `shape`, and files.
    * `values`: the values of each setting. Every combination runs.
    * `every_s`: the time between two rounds, in seconds; None for the policy's own.
    * `seeds`: runs use the seeds 1 to `seeds`.
    * `output`: a folder, or a URL that Spark can write to.
    """

    traces: tuple[str, ...]
    shape: Shape
    policies: tuple[str, ...]
    values: Mapping[str, tuple[str, ...]]
    output: str
    seeds: int = 1
    every_s: float | None = None
    as_json: bool = False


def state_folder(archive: str | Path, log_url: str) -> Path:
    """Return the folder for what a job keeps beside an archive: the archive itself, or for one in
    object storage the log's default archive. Raises as `default_archive`.
    """
    return default_archive(log_url) if "://" in str(archive) else Path(archive)


def default_archive(log_url: str) -> Path:
    """Return the default archive of a log: next to the log's file, or for a topic in the working
    folder.

    Raise `CallerError` for a malformed Kafka address.
    """
    path = log_path(log_url)
    return (
        Path(f"{path}.archive")
        if path is not None
        else Path(f"{address_of(log_url).topic}.archive")
    )
