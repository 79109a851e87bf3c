"""Tests of `equipoise spark verify` in Spark: the segments side by side, what is told meanwhile, and how it ends."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.channel.core.errors import NotFound
from equipoise.spark_jobs.streams.options import Screen, VerifyOptions
from equipoise.spark_jobs.verifying.job import run_verify
from tests.channels.busy_channel import BusyChannel
from tests.spark.archived import archive_entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

RECORDS, SNAPSHOT_RECORDS = 3_000, 250
SEGMENTS = RECORDS // SNAPSHOT_RECORDS + 1


def told(options: VerifyOptions, *, is_live: bool = False) -> tuple[int, list[str]]:
    """What the job returns, and what it prints."""
    printed: list[str] = []
    return run_verify(options, Screen(result=printed.append, note=printed.append, is_live=is_live)), printed


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of a busy channel."""
    entries = islice(BusyChannel(seed=3).steps(), RECORDS)
    archive_entries(entries, tmp_path / "archive", snapshot_records=SNAPSHOT_RECORDS, batch_records=400)
    return tmp_path / "archive"


def test_an_archive_in_order_and_one_that_is_not(spark: SparkSession, archive: Path) -> None:
    """Every segment is folded in Spark; a record that was changed in the archive is named, and the exit says so."""
    assert spark.sparkContext.defaultParallelism > 0
    found, printed = told(VerifyOptions(archive=archive), is_live=True)
    assert [0, "no differences"] == [found, printed[-1]]
    assert printed[0].startswith(f"{RECORDS} records up to offset {RECORDS}: ")
    assert printed[1].startswith(f"{SEGMENTS} segments in ")
    path = sorted((archive / "records").glob("day=*/*.parquet"))[4]
    rows = pq.read_table(path, partitioning=None)
    changed = [{**row, "verdict": "foreign_genesis"} if number == 1 else row for number, row in enumerate(rows.to_pylist())]
    pq.write_table(pa.Table.from_pylist(changed, schema=rows.schema), path)
    found, printed = told(VerifyOptions(archive=archive, as_json=True))
    result = orjson.loads(printed[0])
    assert [1, False, SEGMENTS] == [found, result["in_order"], result["segments"]]
    assert [changed[1]["offset"], "verdict"] == [result["differences"][0]["last"], result["differences"][0]["kind"]]


def test_a_folder_without_an_archive(tmp_path: Path) -> None:
    """Where there is no archive, that is said before Spark starts."""
    with pytest.raises(NotFound, match="there is no archive"):
        told(VerifyOptions(archive=tmp_path))


def test_an_archive_without_records(spark: SparkSession, tmp_path: Path) -> None:
    """An archive that holds nothing yet has nothing that differs, and is not called in order."""
    assert spark.sparkContext.defaultParallelism > 0
    archive_entries([], tmp_path / "archive", snapshot_records=1, batch_records=1)
    nothing = "nothing to verify: the archive has no record of that period"
    assert (0, [nothing]) == told(VerifyOptions(archive=tmp_path / "archive"))
