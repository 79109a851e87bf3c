"""Archives of Delta tables, which older versions could write."""

from __future__ import annotations

from pathlib import Path

import deltalake
import orjson
import pyarrow as pa
import pytest

from equipoise.channel.core.errors import OperatorError
from equipoise.spark_jobs.archive.tables.manifest import manifest_path
from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.archive.tables.resuming import resumed
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS, WRITTEN_BY
from equipoise.spark_jobs.archive.tables.sink import open_sink
from equipoise.spark_jobs.sequence.emitted import Table
from tests.channels.walk import Walk
from tests.docs.code_blocks import blocks
from tests.house.house_rules import ROOT
from tests.spark.archived import LOG, URL, archived, arrivals_of, as_rows
from tests.unit.spark.test_archive_tables import checkpointed, offsets, record, row, sink_of

PAGE = ROOT / "docs" / "how-to" / "audit-and-archive.md"


def append(folder: Path, table: Table, rows: pa.Table) -> None:
    """Add the rows of a batch as an older version did: one transaction, partitioned by day."""
    deltalake.write_deltalake(str(folder / table), rows, mode="append", partition_by=["day"])


def as_delta(archive: Archive, folder: Path) -> None:
    """Write an archive again as Delta tables, one transaction for each of its files."""
    folder.mkdir()
    for table in WRITTEN_BY["archive"]:
        for path in archive.files(table):
            append(folder, table, pa.Table.from_batches(archive.file_batches(path, table)))
    description = orjson.loads(manifest_path(archive.path, "archive").read_bytes())
    manifest_path(folder, "archive").write_bytes(orjson.dumps({**description, "store": "delta"}))


def convert(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """Run the program of the page beside the folder `channel.db.archive`. Return the converted
    archive.
    """
    (program,) = (block for block in blocks(PAGE) if block.save == "convert.py")
    monkeypatch.chdir(folder)
    # It is our own documentation.
    exec(compile(program.text, program.place, "exec"), {})  # noqa: S102
    return Archive(folder / "channel.db.converted")


def test_a_converted_archive_holds_the_same_rows_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every table has the same rows in the same order, and the job continues where the old archive
    ended.
    """
    walk = Walk(3)
    for _ in range(300):
        walk.step()
    before = archived(
        tmp_path / "parquet",
        [arrivals_of(walk.entries[start : start + 50]) for start in range(0, 300, 50)],
    )
    with sink_of(tmp_path / "parquet", writer="audit") as audit:
        checkpointed(audit)
        audit.write(0, as_rows([row(Table.FINDINGS, 5, 1, {"rule": "r", "subject": "log:"})]))
    old = tmp_path / "channel.db.archive"
    as_delta(before, old)
    with pytest.raises(
        OperatorError, match=r"delta tables, .*; convert it .*audit-and-archive\.md"
    ):
        Archive(old)
    for kept in ("audit.json", Table.FINDINGS, ".checkpoints"):
        (tmp_path / "parquet" / kept).rename(old / kept)
    after = convert(tmp_path, monkeypatch)
    expected = Archive(tmp_path / "parquet")
    for table in WRITTEN_BY["archive"]:
        assert expected.table(table).equals(after.table(table)), table
    assert [5] == offsets(after, Table.FINDINGS)
    was, manifest = before.manifest(), after.manifest()
    assert was is not None
    assert manifest is not None
    assert resumed(before, was) == resumed(after, manifest)
    with (
        open_sink(after.path, writer="archive", log=LOG, url=URL) as sink,
        sink_of(after.path, writer="audit") as audit,
    ):
        assert (True, False) == (sink.is_new, audit.is_new)
        sink.write(0, as_rows([record(1_000)]))
    assert [*offsets(before), 1_000] == offsets(after)


def test_rows_of_an_unfinished_batch_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that was being written when the old job died is not converted: the job writes it
    again.
    """
    with sink_of(tmp_path / "parquet") as sink:
        sink.write(0, as_rows([record(1), record(2), row(Table.DECISIONS, 7, 0, {})]))
    before = Archive(tmp_path / "parquet")
    as_delta(before, tmp_path / "channel.db.archive")
    with sink_of(tmp_path / "more") as sink:
        sink.write(0, as_rows([record(3), row(Table.DECISIONS, 8, 0, {})]))
    for table in (Table.RECORDS, Table.DECISIONS):
        append(tmp_path / "channel.db.archive", table, Archive(tmp_path / "more").table(table))
    after = convert(tmp_path, monkeypatch)
    assert ([1, 2], [7]) == (offsets(after), offsets(after, Table.DECISIONS))
    assert [] == [table for table in SCHEMAS if not before.table(table).equals(after.table(table))]
