"""Kill a job's driver in the middle of its work, again and again: `python -m
tests.spark.spark_kills [audit|archive] [--kills 10]`.

A driver is killed with SIGKILL in the middle of a batch: after Spark has noted which entries are in
it, and before it has noted that the batch is done. All tables that the job writes must then be
those of the undisturbed one, row for row.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Final

from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.archive.job import run_archive
from equipoise.spark_jobs.audit.job import run_audit
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.sources.folds import CHECKPOINTS
from equipoise.spark_jobs.streams.options import ArchiveOptions, AuditOptions, Screen
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.schema import WRITTEN_BY
from tests.spark.spark_logs import WrittenStream

PER_TRIGGER: Final = 300
"""Entries in one batch: a batch takes a second, so that there is time to kill a driver in each."""

BATCHES_MIN: Final = 2
"""Batches between two kills, so that each driver gets somewhere."""

DRIVER_SECONDS_MAX: Final = 600.0
_POLL_SECONDS: Final = 0.01
_DELAY_SECONDS_MAX: Final = 0.7
"""After the beginning of a batch; most of them end a little later."""


def write_log(url: str, *, records: int, forged_every: int = 97) -> int:
    """Write a busy log in which every `forged_every`th record is forged. Return the number of
    forged records.
    """
    injected = 0
    with closing(open_log(url)) as log:
        stream = WrittenStream(log, bundles=16, brokers=4)
        for _ in range(records // forged_every):
            stream.go_on(forged_every - 1)
            stream.forge()
            injected += 1
    return injected


def silent() -> Screen:
    """Return a screen that prints nothing."""
    return Screen(result=lambda _: None, note=lambda _: None)


def tables(archive: Path, job: str) -> dict[str, list[dict[str, object]]]:
    """Return all rows that a job wrote, in order of offsets. Duplicate rows are kept."""
    found = {}
    for table in WRITTEN_BY[job]:
        rows = Tables(archive).table(table).to_pylist()
        found[table.value] = sorted(
            rows, key=lambda row: (row["log_offset"] or 0, row.get("ordinal", 0), str(row))
        )
    return found


def findings(archive: Path) -> list[dict[str, object]]:
    """Return all findings of an audit, in order of offsets."""
    return tables(archive, "audit")[Table.FINDINGS.value]


def audit(url: str, archive: Path) -> int:
    """Audit a whole log in this process. Return the number of findings."""
    return run_audit(
        AuditOptions(log_url=url, archive=archive, to_end=True, per_trigger=PER_TRIGGER), silent()
    )


def keep(url: str, archive: Path) -> int:
    """Archive a whole log in this process."""
    return run_archive(
        ArchiveOptions(log_url=url, archive=archive, to_end=True, per_trigger=PER_TRIGGER), silent()
    )


JOBS: Final = {"audit": audit, "archive": keep}


def run_with_kills(job: str, url: str, archive: Path, *, kills: int, chance: random.Random) -> int:
    """Run a job on a whole log in drivers that are killed, and in a last one that is not. Return
    the number of kills.
    """
    for number in range(kills):
        # Each run has a checkpoint of its own.
        rmtree(archive / CHECKPOINTS / job, ignore_errors=True)
        with driver(job, url, archive) as running:
            killed_at = killed(
                running,
                archive / CHECKPOINTS / job,
                after=BATCHES_MIN,
                delay_seconds=chance.uniform(0, _DELAY_SECONDS_MAX),
            )
        if killed_at is None:
            return number
    with driver(job, url, archive) as running:
        running.wait(DRIVER_SECONDS_MAX)
    assert running.returncode == 0, f"the last driver ended with {running.returncode}"
    return kills


@contextmanager
def driver(job: str, url: str, archive: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job on a whole log in another process, which ends with the block."""
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.spark.spark_kills",
            job,
            "--driver",
            url,
            "--archive",
            str(archive),
        ]
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def killed(
    running: subprocess.Popen[bytes], checkpoints: Path, *, after: int, delay_seconds: float
) -> int | None:
    """Kill a driver in the middle of batch `after` or a later one. Return its number, or None if
    the driver ended before.
    """
    give_up = time.monotonic() + DRIVER_SECONDS_MAX
    while time.monotonic() < give_up:
        if running.poll() is not None:
            return None
        batch = newest(checkpoints / "offsets")
        if batch >= after and newest(checkpoints / "commits") < batch:
            time.sleep(delay_seconds)
            running.kill()
            return batch
        time.sleep(_POLL_SECONDS)
    raise AssertionError(f"no batch {after} within {DRIVER_SECONDS_MAX} s")


def newest(folder: Path) -> int:
    """Return the highest number among the file names of a folder; -1 for none."""
    return max((int(file.name) for file in folder.glob("*") if file.name.isdigit()), default=-1)


def main() -> int:
    """Run a job once undisturbed and once with kills, and compare. Return 0 if there is no
    difference.
    """
    parser = argparse.ArgumentParser(
        description="Kill the driver of a job in the middle of its work."
    )
    parser.add_argument("job", choices=sorted(JOBS), nargs="?", default="audit")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=int, default=15_000)
    parser.add_argument(
        "--driver", metavar="URL", help="only do the job on this log, in this process"
    )
    parser.add_argument("--archive", type=Path)
    asked = parser.parse_args()
    if asked.driver is not None:
        JOBS[asked.job](asked.driver, asked.archive)
        return 0
    # Spark tidies its checkpoint for a while yet.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        url, whole, cut = (
            f"sqlite:{folder}/log",
            Path(folder, "undisturbed"),
            Path(folder, "killed"),
        )
        injected = write_log(url, records=asked.records)
        kills = run_with_kills(
            asked.job, url, cut, kills=asked.kills, chance=random.Random(asked.seed)
        )
        JOBS[asked.job](url, whole)
        expected, actual = tables(whole, asked.job), tables(cut, asked.job)
    print(f"{injected} forged records injected, {kills} kills")
    for table, rows in expected.items():
        print(
            f"{table}: {len(rows)} rows undisturbed, {len(actual[table])} with kills, equal:"
            f" {rows == actual[table]}"
        )
    return 0 if expected == actual and kills == asked.kills else 1


if __name__ == "__main__":
    sys.exit(main())
