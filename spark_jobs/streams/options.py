"""What each job is asked to do: the values that a command line makes, and that every job takes.

May live here: those values, what they are by default, and how a job tells what it finds. A job is a function
`run_NAME(options, screen) -> int`; it returns how many things it found that somebody should look at, and raises an
`EquipoiseError` where it cannot go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from equipoise.channel.kafka.settings import address_of
from equipoise.channel.log.open_log import log_path

PER_TRIGGER: Final = 40_000
"""Entries in one batch at most: 10 MB of records of 250 bytes, which one worker folds in about a second."""

ARCHIVE_PER_TRIGGER: Final = 200_000
"""The same for an archive, which nobody waits for: what each batch costs once is shared by more entries. 50 MB of them."""

IN_FLIGHT_MAX_S: Final = 60
"""How long a bundle may stay between two owners before the audit calls it stuck: a step takes milliseconds, a retry seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Whom a job talks to. `result` takes lines that were asked for, `note` those that only say how it goes.

    `is_live` says whether a person looks on, so that a bar or a line that is written over makes sense.
    """

    result: Callable[[str], None]
    note: Callable[[str], None]
    is_live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """`run_audit` reads the log at `log_url` and all that stands beside it, and tells broken rules.

    `archive` is where findings and checkpoints go. With `to_end` it ends once it has read what was there when it began; else it
    goes on until it is stopped. `master` names a Spark cluster, None this machine. `metrics_port` serves `/metrics`, None does not.
    """

    log_url: str
    archive: Path
    to_end: bool = False
    master: str | None = None
    metrics_port: int | None = None
    in_flight_max_s: int = IN_FLIGHT_MAX_S
    per_trigger: int = PER_TRIGGER
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """`run_archive` writes the tables of `archive` from the log at `log_url`. Fields as those of `AuditOptions`.

    `hold` is the name under which the channel is asked to keep what is not archived yet; None does not ask. With `release` it only
    lifts the hold of that name, and ends. `delta` writes Delta tables in place of Parquet files.
    """

    log_url: str
    archive: Path
    to_end: bool = False
    master: str | None = None
    metrics_port: int | None = None
    per_trigger: int = ARCHIVE_PER_TRIGGER
    hold: str | None = None
    release: str | None = None
    delta: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """`run_verify` folds `archive` again, from Unix time `from_ms` (included) to `to_ms` (not included); None: from its ends."""

    archive: Path
    from_ms: int | None = None
    to_ms: int | None = None
    master: str | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """`run_report` writes the page `out` about `archive`, or about the log at `log_url`; one of the two is None. Times as above."""

    out: Path
    archive: Path | None = None
    log_url: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    master: str | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TidyOptions:
    """`run_tidy` joins the small files of `archive`."""

    archive: Path
    as_json: bool = False


def default_archive(log_url: str) -> Path:
    """Where the archive of a log lies if nobody says it: beside the log's file, or for a topic in the working folder.

    Raises `InvalidLogUrl` for an address of Kafka that is none.
    """
    path = log_path(log_url)
    return Path(f"{path}.archive") if path is not None else Path(f"{address_of(log_url).topic}.archive")
