"""Test writing and reading of the archive's tables: once, complete, in order, of one log, and by
version.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.channel.core.errors import NotFound, OperatorError
from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.core.view import View
from equipoise.spark_jobs.archive.tables import arrow, manifest, parquet, reading, schema
from equipoise.spark_jobs.archive.tables import sink as sink_module
from equipoise.spark_jobs.archive.tables.arrow import arrow_schema
from equipoise.spark_jobs.archive.tables.manifest import (
    manifest_path,
    read_manifest,
    write_manifest,
)
from equipoise.spark_jobs.archive.tables.parquet import file_batches, file_offsets, write_file
from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS, Column
from equipoise.spark_jobs.archive.tables.sink import Sink, open_sink
from equipoise.spark_jobs.sequence.rows import Emitted, Table
from equipoise.spark_jobs.sequence.snapshots import compress
from equipoise.spark_jobs.sources import beginnings
from equipoise.spark_jobs.streams.errors import ArchiveDamaged, ArchiveInUse
from tests.spark.archived import LOG, NOON_MS, URL, as_rows

DAY_MS = 86_400_000


def sink_of(path: Path, *, writer: str = "archive", log: str = LOG) -> Sink:
    """Open the sink of a writer."""
    return open_sink(path, writer=writer, log=log, url=URL)


def checkpointed(sink: Sink) -> None:
    """Write what Spark writes when a query begins."""
    sink.checkpoint.mkdir(parents=True)
    (sink.checkpoint / "metadata").touch()


def written(path: Path, *batches: list[Emitted], first: int = 0) -> Sink:
    """Write batches from number `first` on, as the job does. Return the closed sink."""
    with sink_of(path) as sink:
        if not sink.checkpoint.exists():
            checkpointed(sink)
        for number, rows in enumerate(batches, first):
            sink.write(number, as_rows(rows))
    return sink


def record(offset: int, *, at_ms: int = NOON_MS) -> Emitted:
    """Return a row of the table `records`."""
    return Emitted(
        Table.RECORDS,
        "b1",
        offset,
        0,
        at_ms + offset,
        "renewed",
        "b1",
        "accepted",
        b"record %d" % offset,
    )


def row(table: Table, offset: int, ordinal: int, body: object, *, at_ms: int = NOON_MS) -> Emitted:
    """Return a row of a table whose bodies are documents."""
    return Emitted(table, "", offset, ordinal, at_ms + offset, None, None, None, orjson.dumps(body))


def offsets(archive: Archive, table: Table = Table.RECORDS) -> list[int]:
    """Return the offsets of all rows of a table, as readers see them."""
    found: list[int] = archive.table(table)["offset"].to_pylist()
    return found


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit the size in bytes of this process's files during the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_repeated_batch_is_there_once(tmp_path: Path) -> None:
    """The same process or the next one may repeat the last batch. The positions stay the same."""
    repeated = [record(3), row(Table.DECISIONS, 9, 0, {"broker": "b1"})]
    written(tmp_path, [record(1), record(2)], repeated)
    written(tmp_path, repeated, first=1)
    sink = written(tmp_path, repeated, [record(4)], first=1)
    assert (False, {"channel": 5, "decisions": 10}) == (sink.is_new, sink.manifest.positions)
    assert [1, 2, 3, 4] == offsets(Archive(tmp_path))
    assert [9] == offsets(Archive(tmp_path), Table.DECISIONS)


REPEATED: dict[str, tuple[list[Emitted], list[list[Emitted]], list[int], list[int]]] = {
    "the channel forgot some records": (
        [record(1), record(2), record(3), row(Table.TRANSFERS, 2, 0, {})],
        [[record(3)], []],
        [1, 2, 3],
        [2],
    ),
    "their loss makes more rows of another table": (
        [record(1), record(2), record(3)],
        [[record(3), *(row(Table.TRANSFERS, 3, ordinal, {}) for ordinal in range(9))]],
        [1, 2, 3],
        [],
    ),
    "Spark planned it anew": ([record(1)], [[record(1), record(2)]], [1, 2], []),
}


@pytest.mark.parametrize(
    ("finished", "again", "records", "transfers"), REPEATED.values(), ids=REPEATED
)
def test_a_repeated_batch_replaces_its_files_only_if_it_has_more(
    tmp_path: Path,
    finished: list[Emitted],
    again: list[list[Emitted]],
    records: list[int],
    transfers: list[int],
) -> None:
    """A finished batch that is repeated with fewer rows changes nothing."""
    written(tmp_path, finished)
    with sink_of(tmp_path) as sink:
        for rows in again:
            sink.write(0, as_rows(rows))
        sink.write(1, as_rows([record(9)]))
    assert [*records, 9] == offsets(Archive(tmp_path))
    assert transfers == offsets(Archive(tmp_path), Table.TRANSFERS)


def test_an_unfinished_batch_is_forgotten_with_its_checkpoint(tmp_path: Path) -> None:
    """After a crash in a batch, and the loss of the checkpoint, the next generation continues after
    the last finished batch.
    """
    with sink_of(tmp_path) as sink:
        checkpointed(sink)
        sink.write(0, as_rows([record(1)]))
        finished = sink.manifest
        sink.write(1, as_rows([record(2), row(Table.TRANSFERS, 2, 0, {})]))
        write_manifest(tmp_path, finished)
    (sink.checkpoint / "metadata").unlink()
    (tmp_path / Table.RECORDS / "day=2025-11-22" / ".g0001-b0000000001.parquet.part").touch()
    with sink_of(tmp_path) as sink:
        assert sink.is_new
        assert (2, -1, {"channel": 2}) == (
            sink.manifest.generation,
            sink.manifest.batch,
            sink.manifest.positions,
        )
        assert not list(tmp_path.rglob("*b0000000001.parquet*"))
        sink.write(0, as_rows([record(2), record(3), row(Table.TRANSFERS, 2, 0, {})]))
    assert [1, 2, 3] == offsets(Archive(tmp_path))
    assert [2] == offsets(Archive(tmp_path), Table.TRANSFERS)


def test_readers_do_not_see_half_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They see none of its rows while it is written, and all of them when it is finished."""
    seen: list[list[int]] = []

    def watched(archive: Path, path: Path, parts: Iterable[pa.Table], schema: pa.Schema) -> None:
        write_file(archive, path, parts, schema)
        seen.append(offsets(Archive(tmp_path)))

    monkeypatch.setattr(sink_module, "write_file", watched)
    written(tmp_path, [record(1), row(Table.TRANSFERS, 1, 0, {})])
    assert [[], []] == seen
    assert [1] == offsets(Archive(tmp_path))


@pytest.mark.parametrize(
    ("writer", "after"), [("archive", "where the archive ends"), ("audit", "from its beginning")]
)
def test_a_checkpoint_behind_the_archive_is_refused(
    tmp_path: Path, writer: str, after: str
) -> None:
    """Spark never repeats a batch before the last one. The error states what to do, and that
    works.
    """
    with sink_of(tmp_path, writer=writer) as sink:
        checkpointed(sink)
        sink.write(7, as_rows([record(1)]))
        with pytest.raises(
            OperatorError,
            match=f"batch 6, .* up to batch 7: .* power cut, .*; remove that folder .*{after}",
        ):
            sink.write(6, as_rows([record(2)]))
    shutil.rmtree(sink.checkpoint)
    with sink_of(tmp_path, writer=writer) as sink:
        assert (True, 2) == (sink.is_new, sink.manifest.generation)


def test_further_findings_of_a_repeated_batch_are_kept(tmp_path: Path) -> None:
    """They may be at offsets that were reached before."""
    before, late = (
        row(Table.FINDINGS, 9, 0, {"rule": "a"}),
        row(Table.FINDINGS, 9, 1, {"rule": "b"}),
    )
    with sink_of(tmp_path, writer="audit") as sink:
        checkpointed(sink)
        sink.write(0, as_rows([before]))
        sink.write(1, as_rows([]))
    with sink_of(tmp_path, writer="audit") as sink:
        for again in ([late], [late], [], [late]):
            sink.write(1, as_rows(again))
        assert ["a", "b"] == Archive(tmp_path).table(Table.FINDINGS)["rule"].to_pylist()


def test_archives_are_not_mixed(tmp_path: Path) -> None:
    """Another log, another process with the same tables, and tables without a manifest are
    refused.
    """
    with sink_of(tmp_path) as sink:
        sink.write(0, as_rows([record(1)]))
        with pytest.raises(ArchiveInUse, match="archive"):
            sink_of(tmp_path)
        with sink_of(tmp_path, writer="audit"):
            pass
    with pytest.raises(OperatorError, match="another"):
        sink_of(tmp_path, log="another")
    manifest_path(tmp_path, "archive").write_bytes(b"{")
    with pytest.raises(ArchiveDamaged, match="does not describe"):
        sink_of(tmp_path)
    manifest_path(tmp_path, "archive").unlink()
    with pytest.raises(ArchiveDamaged, match=r"but no archive\.json"):
        sink_of(tmp_path)
    with pytest.raises(NotFound, match="no archive"):
        Archive(tmp_path / "nowhere")


def test_a_full_disk_ends_a_batch_which_can_be_repeated(tmp_path: Path) -> None:
    """The error names the file."""
    rows = as_rows([record(offset) for offset in range(1, 20_000)])
    with sink_of(tmp_path) as sink:
        checkpointed(sink)
        sink.write(0, as_rows([record(0)]))
        with file_size_limit(4_096), pytest.raises(OperatorError, match="g0001-b0000000001"):
            sink.write(1, rows)
        assert [0] == offsets(Archive(tmp_path))
        sink.write(1, rows)
    assert list(range(20_000)) == offsets(Archive(tmp_path))


def test_new_folders_are_durable_before_a_batch_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut that loses the name of a folder would lose its files."""
    synced: list[str] = []
    for module in (parquet, beginnings):
        monkeypatch.setattr(module, "sync_folder", lambda path: synced.append(path.parent.name))
    with sink_of(tmp_path) as sink:
        synced.clear()
        sink.write(0, as_rows([record(1)]))
        sink.write(1, as_rows([record(2)]))
    of_manifest = tmp_path.name
    assert [
        "records",
        tmp_path.name,
        "day=2025-11-22",
        of_manifest,
        "day=2025-11-22",
        of_manifest,
    ] == synced


def test_rows_are_in_the_folder_of_their_day(tmp_path: Path) -> None:
    """A batch is cut at midnight, UTC."""
    midnight_ms = NOON_MS + DAY_MS // 2
    written(tmp_path, [record(offset, at_ms=midnight_ms - 3) for offset in range(1, 6)])
    archive = Archive(tmp_path)
    assert ("2025-11-22", "2025-11-23") == archive.days(Table.RECORDS)
    (first,) = archive.files(Table.RECORDS, last_day="2025-11-22")
    (last,) = archive.files(Table.RECORDS, first_day="2025-11-23")
    assert [1, 2] == [
        offset
        for batch in file_batches(first, Table.RECORDS)
        for offset in batch["offset"].to_pylist()
    ]
    (found,) = file_batches(last, Table.RECORDS)
    assert [3, 4, 5] == found["offset"].to_pylist()
    assert {date(2025, 11, 23)} == set(found["day"].to_pylist())
    assert datetime(2025, 11, 23, tzinfo=UTC) == found["at"][0].as_py()


def test_only_a_range_of_offsets_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups outside the range are skipped."""
    monkeypatch.setattr("equipoise.spark_jobs.archive.tables.parquet.ROW_GROUP_ROWS", 10)
    written(
        tmp_path,
        [record(offset) for offset in range(1, 101)],
        [record(offset) for offset in range(101, 111)],
    )
    files = Archive(tmp_path).files(Table.RECORDS)
    batches = [
        batch
        for path in files
        for batch in file_batches(
            path, Table.RECORDS, columns=("bytes", "offset"), first=95, last=103
        )
    ]
    assert list(range(95, 104)) == [
        offset for batch in batches for offset in batch["offset"].to_pylist()
    ]
    assert [(1, 100, 100), (101, 110, 10)] == [file_offsets(path) for path in files]


def test_documents_become_columns(tmp_path: Path) -> None:
    """A missing field, or one of another type, is null. An unknown field is dropped."""
    bodies: list[object] = [
        {"broker": "b1", "kind": 7, "strategy": "s", "new": 1},
        ["no object"],
    ]
    rows = [row(Table.DECISIONS, offset, 0, body) for offset, body in enumerate(bodies)]
    garbage = Emitted(Table.DECISIONS, "", 2, 0, NOON_MS, None, None, None, b"\xff{")
    findings = row(
        Table.FINDINGS,
        5,
        1,
        {"rule": "r", "subject": "log:", "offsets": [3, 5], "text": "t", "command": "c"},
    )
    with sink_of(tmp_path) as sink, sink_of(tmp_path, writer="audit") as audit:
        sink.write(
            0,
            as_rows(
                [
                    *rows,
                    garbage,
                    row(
                        Table.TRANSFERS,
                        3,
                        0,
                        {"begun_at": NOON_MS, "begun_offset": 2**63, "pause_ms": 4},
                    ),
                ]
            ),
        )
        audit.write(0, as_rows([findings]))
    archive = Archive(tmp_path)
    found = archive.table(
        Table.DECISIONS, columns=("broker", "kind", "strategy", "document")
    ).to_pylist()
    assert {
        "broker": "b1",
        "kind": None,
        "strategy": "s",
        "document": orjson.dumps(bodies[0]).decode(),
    } == found[0]
    assert {"broker": None, "kind": None, "strategy": None, "document": '["no object"]'} == found[1]
    assert "\ufffd{" == found[2]["document"]
    transfer = archive.table(
        Table.TRANSFERS, columns=("begun_at", "begun_offset", "pause_ms")
    ).to_pylist()
    assert [
        {
            "begun_at": datetime.fromtimestamp(NOON_MS / 1_000, UTC),
            "begun_offset": None,
            "pause_ms": 4,
        }
    ] == transfer
    assert [3, 5] == archive.table(Table.FINDINGS)["offsets"][0].as_py()


def test_a_snapshot_has_its_digest_and_counts_in_columns(tmp_path: Path) -> None:
    """Its base turns logical offsets into positions."""
    view = View()
    view.go_on_above(40, level=1, level_last=-1)
    snapshot = Emitted(
        Table.SNAPSHOTS, "", 42, 0, NOON_MS, None, None, None, compress(to_bytes(view))
    )
    assert {"channel": 3} == written(tmp_path, [record(42), snapshot]).manifest.positions
    archive = Archive(tmp_path)
    assert [2] == archive.table(Table.RECORDS)["position"].to_pylist()
    found = archive.table(
        Table.SNAPSHOTS, columns=("position", "digest", "bundles", "brokers")
    ).to_pylist()
    assert [{"position": 2, "digest": str(view.digest()), "bundles": 0, "brokers": 0}] == found


def test_rows_are_replaced_at_once(tmp_path: Path) -> None:
    """Until all new rows are there, readers see the older ones. Files that are left over are
    removed.
    """
    for last in (3, 5):
        seen: list[list[int]] = []
        with sink_of(tmp_path) as sink:

            def parts(last: int = last, seen: list[list[int]] = seen) -> Iterator[pa.Table]:
                for offset in range(last):
                    seen.append(offsets(Archive(tmp_path)))
                    yield as_rows(
                        [
                            record(
                                offset,
                                at_ms=NOON_MS if last > offset + 1 else NOON_MS + last * 86_400_000,
                            )
                        ]
                    )

            sink.replace(parts())
        assert [[] if last == 3 else [0, 1, 2]] * last == seen
        assert list(range(last)) == offsets(Archive(tmp_path))
    assert 5 == len(list(tmp_path.glob("records/*/*.parquet")))


@pytest.fixture
def _next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a version of the product whose records have another column."""
    before = SCHEMAS[Table.RECORDS]
    more = Column("size", "long", "the size of the entry", since=2)
    after = replace(before, columns=(*before.columns, more))
    for module in (schema, arrow, parquet, reading, manifest):
        monkeypatch.setattr(module, "SCHEMAS", {**SCHEMAS, Table.RECORDS: after})


def test_older_files_are_read_with_nulls(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A column of a later version is null in an older file."""
    written(tmp_path, [record(1)])
    request.getfixturevalue("_next_version")
    assert [None] == Archive(tmp_path).table(Table.RECORDS)["size"].to_pylist()


@pytest.mark.usefixtures("_next_version")
def test_a_newer_archive_is_refused(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The version of a table, or of the folder, is unknown."""
    found = manifest.Manifest(writer="archive", log=LOG, url=URL)
    write_manifest(tmp_path, found)
    request.getfixturevalue("monkeypatch").undo()
    with pytest.raises(OperatorError, match=r"the table records .* version 2"):
        Archive(tmp_path)
    path = manifest_path(tmp_path, "archive")
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "format": 2}))
    with pytest.raises(OperatorError, match="the format"):
        read_manifest(tmp_path, "archive")


@pytest.mark.parametrize("table", sorted(SCHEMAS))
def test_each_file_describes_itself(tmp_path: Path, table: Table) -> None:
    """A file names its table and version in its metadata."""
    about = SCHEMAS[table]
    writer = schema.WRITER_OF[table]
    with sink_of(tmp_path, writer=writer) as sink:
        body = compress(to_bytes(View())) if table is Table.SNAPSHOTS else b"{}"
        sink.write(0, as_rows([Emitted(table, "", 1, 0, NOON_MS, None, None, None, body)]))
    (path,) = Archive(tmp_path).files(table)
    found = pq.read_schema(path)
    assert str(table).encode() == found.metadata[b"equipoise.table"]
    assert str(about.version).encode() == found.metadata[b"equipoise.version"]
    assert arrow_schema(about).names == found.names
