"""Test the archive job: the same tables as without Spark, also after a kill."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import restored
from equipoise.spark_jobs.archive.job import run_archive
from equipoise.spark_jobs.archive.run import JOB
from equipoise.spark_jobs.plain import archive as plain
from equipoise.spark_jobs.sequence.rows import Arrival, Source, Table
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from equipoise.spark_jobs.tables.reading import Tables
from tests.channels.walk import Walk
from tests.repeats import times
from tests.spark.archived import archived
from tests.spark.spark_kills import BATCHES_MIN, PER_TRIGGER, run_with_kills

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

OF_THE_CHANNEL = (Table.RECORDS, Table.TRANSITIONS, Table.INTERVALS, Table.MOVES)
# Times differ from those of the reference, because the file says when its records were appended.
WITHOUT_TIMES = {
    Table.RECORDS: ("log_offset", "position", "key", "kind", "publisher", "verdict", "bytes"),
    Table.TRANSITIONS: (
        "log_offset",
        "ordinal",
        "bundle",
        "phase_before",
        "phase_after",
        "owner_after",
        "token",
        "kind",
        "publisher",
    ),
    Table.INTERVALS: (
        "log_offset",
        "ordinal",
        "bundle",
        "broker",
        "token",
        "to_offset",
        "how",
    ),
    Table.MOVES: (
        "log_offset",
        "ordinal",
        "bundle",
        "source",
        "destination",
        "ended_offset",
        "result",
    ),
}


def append(url: str, walk: Walk, records: int) -> None:
    """Write the next records of a walk to a log, whose offsets have no gaps."""
    with closing(open_log(url)) as log:
        for _ in range(records):
            data = walk.next_data()
            (offset,) = log.append([data], timeout_ms=10_000)
            walk.entries.append((offset, data))


def reference(walk: Walk, folder: Path) -> Tables:
    """Archive a walk without Spark."""
    return archived(
        folder,
        [[Arrival(Source.CHANNEL, offset, 1_000 + offset, data) for offset, data in walk.entries]],
    )


def rows_of(archive: Tables, table: Table) -> pa.Table:
    """Return the rows of a table without its times."""
    return archive.table(table, columns=WITHOUT_TIMES[table])


def archive_now(options: ArchiveOptions) -> list[str]:
    """Run the job to its end. Return its output."""
    printed: list[str] = []
    assert 0 == run_archive(options, Screen(result=printed.append, note=printed.append))
    return printed


def test_a_channel_is_archived_as_it_is_folded(spark: SparkSession, tmp_path: Path) -> None:
    """Its tables equal those made without Spark, after several batches, and after the plain process
    and Spark have taken turns. It has a hold.
    """
    url, walk, folder = f"sqlite:{tmp_path}/channel.db", Walk(7), tmp_path / "archive"
    options = ArchiveOptions(log_url=url, archive=folder, to_end=True, per_trigger=200, hold="main")
    for number, records in enumerate((400, 50, 100)):
        append(url, walk, records)
        if number == 1:
            silent = Screen(result=lambda _line: None, note=lambda _line: None)
            plain.run_archive(replace(options, hold=None), silent)
        else:
            archive_now(options if number else replace(options, hold=None))
        archive, expected = Tables(folder), reference(walk, tmp_path / f"expected {number}")
        for table in OF_THE_CHANNEL:
            assert rows_of(expected, table).equals(rows_of(archive, table)), table
    with closing(open_log(url)) as log:
        reader = restored(log)
        for entry in log.read(reader.position, limit=1_000):
            reader.feed(entry)
    assert 550 == reader.view.policies["archives/main"].document["archived_to"]


@pytest.mark.soak
@pytest.mark.repeats
@pytest.mark.usefixtures("spark")  # Where there is no Java it is skipped with the others.
def test_a_killed_driver_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Drivers are killed in the middle of batches. After the last one, the tables equal those of an
    undisturbed run.
    """
    url, walk, folder = f"sqlite:{tmp_path}/channel.db", Walk(9), tmp_path / "archive"
    kills = times(1, many=6)
    append(url, walk, PER_TRIGGER * (1 + BATCHES_MIN * (kills + 1)))
    assert kills == run_with_kills(JOB, url, folder, kills=kills, chance=random.Random(9))
    archive, expected = Tables(folder), reference(walk, tmp_path / "expected")
    for table in OF_THE_CHANNEL:
        assert rows_of(expected, table).equals(rows_of(archive, table)), table
