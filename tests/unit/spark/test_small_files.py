"""Test that compaction of small files keeps all rows in order, also after a crash and beside other
writers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from equipoise.spark_jobs.archive.tables.layout import day_folder
from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS
from equipoise.spark_jobs.archive.tables.sink import locked
from equipoise.spark_jobs.archive.tables.small_files import (
    BATCHES_BETWEEN,
    FILES_MAX,
    LOCK,
    Joined,
    compact_beside,
    compact_table,
    run_compact,
)
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.errors import ArchiveDamaged, ArchiveInUse
from equipoise.spark_jobs.streams.options import CompactOptions, Screen
from tests.channels.walk import Walk
from tests.spark.archived import NOON_MS, archived, arrivals_of
from tests.unit.spark.test_archive_tables import DAY_MS, offsets, record, written

BATCHES = 6
EACH = 3
CRASHES = (
    ("read", 1),
    ("read", 2),
    ("read", 5),
    ("written", 1),
    ("joined", 1),
    ("removed", 1),
    ("removed", 2),
    ("removed", 5),
)


class CrashError(Exception):
    """Ends a compaction."""


def crash_at(step: str, times: int) -> Callable[[str], None]:
    """Return a listener of steps that raises when `step` comes for the given time."""
    left = [times]

    def crash(found: str) -> None:
        left[0] -= found == step
        if not left[0]:
            raise CrashError

    return crash


def filled(path: Path, *, batches: int = BATCHES) -> Archive:
    """Write an archive of many small files of one day."""
    written(
        path, *([record(EACH * batch + place) for place in range(EACH)] for batch in range(batches))
    )
    return Archive(path)


def names(archive: Archive) -> list[str]:
    """Return the names of all files of records, in order."""
    return sorted(path.name for path in archive.path.glob("records/day=*/*"))


@pytest.mark.parametrize(("step", "times"), CRASHES)
def test_a_crash_at_any_step_loses_and_doubles_no_row(
    tmp_path: Path, step: str, times: int
) -> None:
    """The next compaction finishes what the crashed one began."""
    archive = filled(tmp_path)
    before = archive.table(Table.RECORDS)
    with pytest.raises(CrashError):
        compact_table(
            archive, Table.RECORDS, files_min=2, last_day_files_min=2, step=crash_at(step, times)
        )
    assert before.equals(archive.table(Table.RECORDS))
    compact_table(archive, Table.RECORDS, files_min=2, last_day_files_min=2)
    assert before.equals(archive.table(Table.RECORDS))
    assert ["g0001-b0000000000-0000000004.parquet", "g0001-b0000000005.parquet"] == names(archive)


def test_a_batch_repeated_after_a_compaction_is_there_once(tmp_path: Path) -> None:
    """The next compaction joins new files to the ones that were joined before."""
    archive = filled(tmp_path)
    compact_table(archive, Table.RECORDS, files_min=2, last_day_files_min=2)
    last = [record(EACH * (BATCHES - 1) + place) for place in range(EACH)]
    written(tmp_path, last, [record(EACH * BATCHES)], first=BATCHES - 1)
    compact_table(archive, Table.RECORDS, files_min=2, last_day_files_min=2)
    assert list(range(EACH * BATCHES + 1)) == offsets(archive)
    assert ["g0001-b0000000000-0000000005.parquet", "g0001-b0000000006.parquet"] == names(archive)


def test_files_of_the_current_day_are_joined_only_when_there_are_many(tmp_path: Path) -> None:
    """A job joins the files of a past day at once."""
    archive = filled(tmp_path, batches=FILES_MAX)
    assert Joined() == compact_table(archive, Table.RECORDS, files_min=2)
    written(tmp_path, [record(1_000, at_ms=NOON_MS + DAY_MS)], first=FILES_MAX)
    assert Joined() == compact_beside(archive, "archive", BATCHES_BETWEEN)
    assert FILES_MAX == compact_beside(archive, "archive", BATCHES_BETWEEN - 1).before
    assert 2 == len(names(archive))


def test_one_process_compacts_at_a_time(tmp_path: Path) -> None:
    """While another process compacts, the command fails, and a job does nothing."""
    archive, printed = filled(tmp_path), list[str]()
    screen = Screen(result=printed.append, note=printed.append)
    lock = locked(tmp_path, LOCK)
    with pytest.raises(ArchiveInUse, match="compact"):
        run_compact(CompactOptions(archive=tmp_path), screen)
    assert Joined() == compact_beside(archive, "archive", BATCHES_BETWEEN - 1)
    os.close(lock)
    assert 0 == run_compact(CompactOptions(archive=tmp_path), screen)
    assert [
        "records: joined 5 files into 1, 0.0 MiB in total",
        f"compacted {tmp_path}; run `equipoise spark verify` to check its contents",
    ] == printed


def test_with_json_all_figures_are_one_document(tmp_path: Path) -> None:
    filled(tmp_path)
    printed, noted = list[str](), list[str]()
    assert 0 == run_compact(
        CompactOptions(archive=tmp_path, as_json=True),
        Screen(result=printed.append, note=noted.append),
    )
    (document,) = map(orjson.loads, printed)
    assert set(map(str, SCHEMAS)) == document.keys()
    assert (BATCHES - 1, 1) == (document["records"].pop("before"), document["records"].pop("after"))
    assert {"before": 0, "after": 0, "bytes": 0} == document["transfers"]
    assert [f"compacted {tmp_path}; run `equipoise spark verify` to check its contents"] == noted


@pytest.mark.parametrize("place", [0, -1])
def test_a_damaged_file_stays_where_it_is(tmp_path: Path, place: int) -> None:
    """The command fails and names the file. An archive job continues."""
    archive = filled(tmp_path, batches=FILES_MAX + 2)
    path = archive.files(Table.RECORDS)[FILES_MAX // 2]
    data = bytearray(path.read_bytes())
    data[place:] = bytes(len(data[place:]))
    path.write_bytes(data)
    before = names(archive)
    done = compact_beside(archive, "archive", BATCHES_BETWEEN - 1)
    assert (0, 0) == (done.before, done.after)
    assert path.name in str(done.damaged)
    with pytest.raises(ArchiveDamaged, match=path.name):
        run_compact(CompactOptions(archive=tmp_path), Screen(result=print, note=print))
    assert before == [name for name in names(archive) if not name.endswith(".part")]


def test_a_file_in_the_place_of_a_folder_is_damage(tmp_path: Path) -> None:
    """Readers, jobs and the command name it."""
    archive = filled(tmp_path, batches=FILES_MAX + 2)
    folder = tmp_path / Table.RECORDS / day_folder("2025-01-01")
    folder.write_bytes(b"no folder")
    with pytest.raises(ArchiveDamaged, match=folder.name):
        archive.files(Table.RECORDS)
    assert folder.name in str(compact_beside(archive, "archive", BATCHES_BETWEEN - 1).damaged)
    with pytest.raises(ArchiveDamaged, match=folder.name):
        run_compact(CompactOptions(archive=tmp_path), Screen(result=print, note=print))
    folder.unlink()
    assert 2 == len(archive.files(Table.RECORDS)), "all files but the last batch's are joined"


def test_every_table_of_a_random_channel_keeps_its_rows(tmp_path: Path) -> None:
    walk = Walk(11)
    arrivals = arrivals_of(walk.step() for _ in range(600))
    archive = archived(tmp_path, [arrivals[first : first + 40] for first in range(0, 600, 40)])
    tables = (
        Table.RECORDS,
        Table.SNAPSHOTS,
        Table.TRANSITIONS,
        Table.OWNERSHIP_INTERVALS,
        Table.TRANSFERS,
    )
    before = {table: archive.table(table) for table in tables}
    assert all(rows.num_rows for rows in before.values())
    for table in tables:
        compact_table(archive, table, files_min=2, last_day_files_min=2)
        assert before[table].equals(archive.table(table))
        assert len(archive.files(table)) <= 2
