"""Test where a stream begins, with and without a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.channel.core.codec import decode
from equipoise.channel.core.propose import close_log
from equipoise.channel.core.snapshot import from_bytes
from equipoise.channel.core.view import View, apply
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.archive.tables.resuming import resumed
from equipoise.spark_jobs.sequence.rows import Source, Table
from equipoise.spark_jobs.sources.beginnings import Beginning, beginning_of, kept_beginning
from equipoise.spark_jobs.streams.errors import ArchiveDamaged, ArchiveFileGone
from tests.channels.compacting import all_of, compacted
from tests.channels.folding import Channel
from tests.channels.walk import Walk
from tests.spark.archived import archived, arrivals_of

RECORDS = 300


def never() -> Beginning:
    raise AssertionError("the beginning is stored already")


def begun_of(archive: Archive) -> Beginning:
    """Return where an archive continues. It is not empty."""
    manifest = archive.manifest()
    assert manifest is not None
    beginning = resumed(archive, manifest)
    assert beginning is not None
    return beginning


@pytest.mark.parametrize("snapshot", [None, b"a snapshot"])
def test_a_beginning_is_stored_once(tmp_path: Path, snapshot: bytes | None) -> None:
    """Further attempts at the first batch begin where the first one did, even if the log has
    changed.
    """
    made = Beginning(positions={"channel": 7, "decisions": 2}, snapshot=snapshot)
    assert made == kept_beginning(tmp_path / "checkpoint", lambda: made)
    assert made == kept_beginning(tmp_path / "checkpoint", never)


def test_a_truncated_log_is_read_from_its_snapshot() -> None:
    """A whole log is read from its first record, without a snapshot."""
    log, walk = MemoryLog(name="memory:beginnings"), Walk(4)
    log.append([walk.step()[1] for _ in range(40)], timeout_ms=0)
    assert Beginning(positions={Source.CHANNEL: 1}) == beginning_of(log)
    done = compacted(log)
    assert done.start > 1
    beginning = beginning_of(log)
    assert {Source.CHANNEL: done.start} == beginning.positions
    assert beginning.snapshot is not None
    assert done.start - 1 == from_bytes(beginning.snapshot).offset
    log.close()


@pytest.mark.parametrize("records", [1, 99, RECORDS])
def test_an_archive_continues_from_its_own_contents(tmp_path: Path, records: int) -> None:
    """Its newest snapshot and the records after it give the view of the whole log."""
    walk, view = Walk(21), View()
    entries = [walk.step() for _ in range(records)]
    for offset, data in entries:
        apply(view, offset, decode(data))
    archive = archived(tmp_path, [arrivals_of(entries[:70]), arrivals_of(entries[70:])])
    beginning = begun_of(archive)
    assert beginning.snapshot is not None
    assert {Source.CHANNEL: entries[-1][0] + 1} == beginning.positions
    assert all_of(view) == all_of(from_bytes(beginning.snapshot))


@pytest.mark.parametrize("snapshot_records", [1, 100])
def test_an_archive_of_a_closed_channel_continues(tmp_path: Path, snapshot_records: int) -> None:
    """Entries after the record that closed the channel are archived but not folded. The next
    generation begins after them.
    """
    channel = Channel()
    channel.genesis()
    channel.create()
    channel.accept(close_log(channel.admin(), channel.view))
    end = channel.view.offset
    entries = [*channel.entries, (end + 1, b"{}"), (end + 2, b"{}")]
    archive = archived(tmp_path, [arrivals_of(entries)], snapshot_records=snapshot_records)
    beginning = begun_of(archive)
    assert beginning.snapshot is not None
    assert {Source.CHANNEL: end + 3} == beginning.positions
    assert end == from_bytes(beginning.snapshot).offset


def test_an_archive_that_lost_files_is_refused(tmp_path: Path) -> None:
    """Its records do not reach the position in its manifest."""
    walk = Walk(21)
    archive = archived(
        tmp_path,
        [arrivals_of(walk.step() for _ in range(50)), arrivals_of(walk.step() for _ in range(9))],
    )
    archive.files(Table.RECORDS)[-1].unlink()
    manifest = archive.manifest()
    assert manifest is not None
    with pytest.raises(ArchiveDamaged, match="its records lead to position"):
        resumed(archive, manifest)


@pytest.mark.parametrize("table", [Table.RECORDS, Table.SNAPSHOTS])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, table: Table) -> None:
    """The error states what to do."""
    walk = Walk(21)
    archive = archived(tmp_path, [arrivals_of(walk.step() for _ in range(RECORDS))])
    manifest, path = archive.manifest(), archive.files(table)[-1]
    assert manifest is not None
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(
        ArchiveDamaged, match=rf"{path.name} cannot be read: .*; restore it from a copy"
    ):
        resumed(archive, manifest)


@pytest.mark.parametrize("cell", [b"no snapshot", None])
def test_a_damaged_snapshot_is_named(tmp_path: Path, cell: bytes | None) -> None:
    """The file can be read, but its newest snapshot cannot. The error names archive and file, and
    states what to do.
    """
    walk = Walk(21)
    archive = archived(tmp_path, [arrivals_of(walk.step() for _ in range(RECORDS))])
    manifest, path = archive.manifest(), archive.files(Table.SNAPSHOTS)[-1]
    assert manifest is not None
    rows = pq.read_table(path, partitioning=None)
    place = rows.schema.get_field_index("bytes")
    pq.write_table(rows.set_column(place, "bytes", pa.array([cell] * len(rows), pa.binary())), path)
    with pytest.raises(
        ArchiveDamaged, match=rf"{path.name}: it cannot be decompressed: .*; restore it from a copy"
    ) as told:
        resumed(archive, manifest)
    assert str(archive.path) == told.value.archive


def test_a_file_that_stays_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of attempts is limited."""
    walk = Walk(21)
    archive = archived(tmp_path, [arrivals_of(walk.step() for _ in range(50))])
    gone = tmp_path / "gone.parquet"
    monkeypatch.setattr(Archive, "files", lambda *_, **__: (gone,))
    with pytest.raises(
        ArchiveFileGone, match=r"gone\.parquet no longer exists; restore it"
    ) as told:
        begun_of(archive)
    assert str(gone) == told.value.file


def test_an_archive_without_records_begins_with_the_log(tmp_path: Path) -> None:
    """It may hold rows of other sources."""
    archive = archived(tmp_path, [])
    manifest = archive.manifest()
    assert manifest is not None
    assert resumed(archive, manifest) is None
    assert resumed(archive, replace(manifest, positions={"decisions": 4})) is None
