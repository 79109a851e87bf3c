"""Test `equipoise spark verify` with Spark: segments in parallel, and its output."""

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


def verify(options: VerifyOptions, *, is_live: bool = False) -> tuple[int, list[str]]:
    """Run the job. Return its result and its output."""
    printed: list[str] = []
    return run_verify(
        options, Screen(result=printed.append, note=printed.append, is_live=is_live)
    ), printed


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Write an archive of a busy channel."""
    entries = islice(BusyChannel(seed=3).steps(), RECORDS)
    archive_entries(
        entries, tmp_path / "archive", snapshot_records=SNAPSHOT_RECORDS, batch_records=400
    )
    return tmp_path / "archive"


def test_an_archive_in_order_and_one_that_is_not(spark: SparkSession, archive: Path) -> None:
    """A changed record is named, and the result counts it."""
    assert spark.sparkContext.defaultParallelism > 0
    found, printed = verify(VerifyOptions(archive=archive), is_live=True)
    assert [0, "no differences"] == [found, printed[-1]]
    assert printed[0].startswith(f"{RECORDS} records up to offset {RECORDS}: ")
    assert printed[1].startswith(f"{SEGMENTS} segments in ")
    path = sorted((archive / "records").glob("day=*/*.parquet"))[4]
    rows = pq.read_table(path, partitioning=None)
    changed = [
        {**row, "verdict": "foreign_genesis"} if number == 1 else row
        for number, row in enumerate(rows.to_pylist())
    ]
    pq.write_table(pa.Table.from_pylist(changed, schema=rows.schema), path)
    found, printed = verify(VerifyOptions(archive=archive, as_json=True))
    result = orjson.loads(printed[0])
    assert [1, False, SEGMENTS] == [found, result["in_order"], result["segments"]]
    assert [changed[1]["log_offset"], "verdict"] == [
        result["differences"][0]["last"],
        result["differences"][0]["kind"],
    ]


def test_a_folder_without_an_archive(tmp_path: Path) -> None:
    """It fails before Spark starts."""
    with pytest.raises(NotFound, match="there is no archive"):
        verify(VerifyOptions(archive=tmp_path))


def test_an_archive_without_records(spark: SparkSession, tmp_path: Path) -> None:
    """It has no differences, but is not reported as in order."""
    assert spark.sparkContext.defaultParallelism > 0
    archive_entries([], tmp_path / "archive", snapshot_records=1, batch_records=1)
    nothing = "nothing to verify: the archive has no record of that period"
    assert (0, [nothing]) == verify(VerifyOptions(archive=tmp_path / "archive"))
