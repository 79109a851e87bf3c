"""Tidying of Delta tables: the same rows in the same order, in fewer files, whenever it dies, and whoever writes meanwhile.

May live here: `spark_jobs.archive.tables.delta_tidying` on real folders, without Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from equipoise.spark_jobs.archive.tables import delta, delta_tidying
from equipoise.spark_jobs.archive.tables.arrow import by_table
from equipoise.spark_jobs.archive.tables.delta import DeltaStore, delta_files
from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.archive.tables.resuming import resumed
from equipoise.spark_jobs.archive.tables.sink import Sink
from equipoise.spark_jobs.archive.tables.tidying import BATCHES_BETWEEN, FILES_MAX, Tidied, run_tidy, tidy_beside, tidy_table
from equipoise.spark_jobs.sequence.emitted import Table
from equipoise.spark_jobs.streams.archive_errors import ArchiveDamaged, ArchiveFileGone, ArchiveOutOfOrder, ArchiveUnwritable
from equipoise.spark_jobs.streams.options import Screen, TidyOptions
from equipoise.spark_jobs.verifying.job import judged, look
from equipoise.spark_jobs.verifying.segments import plan
from tests.archived import NOON_MS, archived, arrivals_of, as_rows
from tests.unit.spark.test_archive_tables import DAY_MS, checkpointed, offsets, record, row, sink_of
from tests.unit.spark.test_tidying import DiedError, dies_at
from tests.walk import Walk

BATCHES = 6
EACH = 3
ROWS = list(range(BATCHES * EACH))
DEATHS = (("read", 1), ("read", 6), ("written", 1), ("joined", 1), ("committed", 1))


def batch_of(number: int) -> list[int]:
    """The offsets of a batch."""
    return [EACH * number + place for place in range(EACH)]


def rows_of(number: int) -> pa.Table:
    """The rows of a batch of records."""
    return as_rows([record(offset) for offset in batch_of(number)])


def write(sink: Sink, number: int) -> None:
    """Write one batch of records."""
    sink.write(number, rows_of(number))


def begin(path: Path, number: int) -> None:
    """Write a batch as a process does that dies before it is finished."""
    ((schema, table),) = by_table(rows_of(number), base=0)
    DeltaStore(path).put(schema, table, generation=1, batch=number)


def filled(path: Path, *, batches: int = BATCHES) -> Archive:
    """An archive of many small transactions, of one day."""
    with sink_of(path, "delta") as sink:
        checkpointed(sink)
        for number in range(batches):
            write(sink, number)
    return Archive(path)


def tidied(archive: Archive, *, at: str = "", do: Callable[[], object] = lambda: None) -> Tidied:
    """What comes of joining the records, when `do` is called the first time that it comes `at` a step."""
    left = [at]

    def step(found: str) -> None:
        if [found] == left:
            left.pop()
            do()

    return tidy_table(archive, Table.RECORDS, files_min=2, last_day_files_min=2, step=step)


def of_a_channel(path: Path) -> Archive:
    """The archive of a random channel."""
    walk = Walk(11)
    arrivals = arrivals_of(walk.step() for _ in range(300))
    return archived(path, [arrivals[first : first + 40] for first in range(0, 300, 40)], keeper=DeltaStore(path), store="delta")


def table_of(archive: Archive, table: Table = Table.RECORDS) -> deltalake.DeltaTable:
    """A table as Delta sees it."""
    return deltalake.DeltaTable(str(archive.path / table))


def on_disk(archive: Archive) -> int:
    """How many files of records there are, needed or not, half written ones too."""
    return sum(path.is_file() for path in archive.path.glob("records/day=*/*"))


def test_small_files_become_one_with_rows_in_their_order(tmp_path: Path) -> None:
    """All files of a day are one, its rows in order of offset; other readers of Delta see them too, and none of them as news."""
    archive = filled(tmp_path)
    done = tidied(archive)
    assert (BATCHES, 1) == (done.before, done.after)
    assert 1 == len(archive.files(Table.RECORDS))
    assert ROWS == offsets(archive)
    assert ROWS == sorted(table_of(archive).to_pyarrow_table()["offset"].to_pylist())
    assert done.size_bytes == archive.files(Table.RECORDS)[0].stat().st_size
    actions = (archive.path / Table.RECORDS / "_delta_log" / f"{table_of(archive).version():020}.json").read_text()
    assert (BATCHES + 1, 0) == (actions.count('"dataChange":false'), actions.count('"dataChange":true'))
    assert Tidied() == tidied(archive)


def test_the_stream_goes_on_over_joined_files(tmp_path: Path) -> None:
    """A batch that is done again is there once, and what is added is joined to the rest in its turn."""
    archive = filled(tmp_path)
    tidied(archive)
    with sink_of(tmp_path, "delta") as sink:
        write(sink, BATCHES - 1)
        write(sink, BATCHES)
    assert (2, 1) == ((done := tidied(archive)).before, done.after)
    assert [*ROWS, *batch_of(BATCHES)] == offsets(archive)


@pytest.mark.parametrize(("step", "times"), DEATHS)
def test_it_may_die_anywhere(tmp_path: Path, step: str, times: int) -> None:
    """A tidying that dies at any step leaves each row once, and the next one ends what it began."""
    archive = filled(tmp_path)
    with pytest.raises(DiedError):
        tidy_table(archive, Table.RECORDS, files_min=2, last_day_files_min=2, step=dies_at(step, times))
    assert ROWS == offsets(archive)
    tidied(archive)
    assert ROWS == offsets(archive)
    assert 1 == len(archive.files(Table.RECORDS))


def test_what_was_half_written_is_removed(tmp_path: Path) -> None:
    """The file that a tidying was about to write when its process ended goes with the next one."""
    archive = filled(tmp_path)
    (archive.files(Table.RECORDS)[0].parent / ".joined-0000000005.parquet.part").touch()
    tidied(archive)
    assert [] == list(tmp_path.rglob("*.part"))


def between(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Let something be done between each look at a table and the transaction that follows from it."""
    looked, busy = delta.opened, list[bool]()

    def opened(archive: Path, table: Table) -> deltalake.DeltaTable | None:
        found = looked(archive, table)
        if not busy:
            busy.append(True)
            do()
            busy.clear()
        return found

    monkeypatch.setattr(delta, "opened", opened)


def test_batches_that_come_between_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive goes on while a command tidies: what it adds is there, and what was joined meanwhile, too."""
    archive, more = filled(tmp_path), 3
    with sink_of(tmp_path, "delta") as sink:
        numbers = list(range(BATCHES, BATCHES + more))

        def write_one() -> None:
            if numbers:
                write(sink, numbers.pop(0))

        done = tidied(archive, at="joined", do=lambda: between(monkeypatch, write_one))
    monkeypatch.undo()
    assert (BATCHES, 1, []) == (done.before, done.after, numbers)
    assert list(range((BATCHES + more) * EACH)) == offsets(archive)
    assert 1 + more == len(archive.files(Table.RECORDS))


def test_batches_that_always_come_between_are_given_way_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that never holds still stays as it is, with nothing left behind, until another time."""
    archive = filled(tmp_path)
    with sink_of(tmp_path, "delta") as sink:
        numbers = count(BATCHES)
        between(monkeypatch, lambda: write(sink, next(numbers)))
        assert Tidied() == tidied(archive)
        written = next(numbers) - BATCHES
    monkeypatch.undo()
    assert written > delta.COMMITS_MAX
    assert on_disk(archive) == BATCHES + written
    assert list(range((BATCHES + written) * EACH)) == offsets(archive)


def test_another_that_joins_the_same_files_is_given_way_to(tmp_path: Path) -> None:
    """Where somebody else took these files out of the table meanwhile, each row is still there once."""
    archive = filled(tmp_path)
    assert Tidied() == tidied(archive, at="joined", do=table_of(archive).optimize.compact)
    assert ROWS == sorted(table_of(archive).to_pyarrow_table()["offset"].to_pylist())
    assert not list(tmp_path.rglob("joined-*"))


def test_files_that_lost_their_order_are_named(tmp_path: Path) -> None:
    """A log is folded in its order, which other programs that join files need not keep: such a file is told, with what mends it."""
    archive = of_a_channel(tmp_path)
    manifest, expected = archive.manifest(), offsets(archive)
    assert manifest is not None
    for table in (Table.RECORDS, Table.SNAPSHOTS):
        found = table_of(archive, table)
        backwards = found.to_pyarrow_table().sort_by([("offset", "descending")])
        deltalake.write_deltalake(found, backwards, mode="overwrite", partition_by=["day"])
    assert expected[::-1] == offsets(archive)
    problem = r"rows are not in order of their offsets, .*z_order\(\['offset'\]\) of the table's folder mends it"
    with pytest.raises(ArchiveOutOfOrder, match=problem):
        resumed(archive, manifest)
    marks, files, unreadable = look(archive)
    assert 2 == sum(re.search(problem, each.text) is not None for each in unreadable) == len(unreadable)
    assert plan(marks, files) != () == judged(plan(marks, files), unreadable)
    for table in (Table.RECORDS, Table.SNAPSHOTS):
        table_of(archive, table).optimize.z_order(["offset"])
    assert expected == offsets(archive)
    marks, files, unreadable = look(archive)
    assert [] == unreadable
    assert plan(marks, files) == judged(plan(marks, files), unreadable)
    assert resumed(archive, manifest) is not None


def test_files_that_overlap_are_named(tmp_path: Path) -> None:
    """Where another program dealt the rows out to files anew, each in order, they are no more in the order of the log."""
    archive = filled(tmp_path)
    rows = table_of(archive).to_pyarrow_table().sort_by("offset")
    deltalake.write_deltalake(table_of(archive), rows.take(ROWS[::2]), mode="overwrite", partition_by=["day"])
    deltalake.write_deltalake(table_of(archive), rows.take(ROWS[1::2]), mode="append", partition_by=["day"])
    assert ["damaged"] == [each.kind for each in look(archive)[2] if "not in order" in each.text]


@pytest.mark.parametrize("first", [0, BATCHES])
def test_an_unfinished_batch_stays_apart(tmp_path: Path, first: int) -> None:
    """What may be taken back is joined with nothing, and can be taken back after the rest was joined, and what it was made of is gone."""
    archive = filled(tmp_path, batches=first) if first else None
    with sink_of(tmp_path, "delta") as sink:
        begin(tmp_path, first)
        archive = archive or Archive(tmp_path)
        done = tidied(archive)
        assert (first, min(first, 1)) == (done.before, done.after)
        assert Tidied() == tidied(archive)
        assert [*ROWS[: first * EACH], *batch_of(first)] == offsets(archive)
        checkpoint = sink.checkpoint
    table_of(archive).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    (checkpoint / "metadata").unlink(missing_ok=True)
    with sink_of(tmp_path, "delta") as sink:
        assert ROWS[: first * EACH] == offsets(archive)
        sink.write(0, rows_of(first))
    assert [*ROWS[: first * EACH], *batch_of(first)] == offsets(archive)


def test_a_batch_is_taken_back_while_somebody_tidies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that comes between is no reason not to start."""
    archive = filled(tmp_path)
    begin(tmp_path, BATCHES)
    (next(tmp_path.glob(".checkpoints/*/*")) / "metadata").unlink()
    left = [archive]
    between(monkeypatch, lambda: tidied(left.pop()) if left else None)
    with sink_of(tmp_path, "delta") as sink:
        assert sink.is_new
    monkeypatch.undo()
    assert (ROWS, 1) == (offsets(archive), len(archive.files(Table.RECORDS)))


def test_a_batch_that_cannot_be_taken_back_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While others never let go of the table no generation begins, which would write the same rows once more; after them it does."""
    archive = filled(tmp_path)
    begin(tmp_path, BATCHES)
    (next(tmp_path.glob(".checkpoints/*/*")) / "metadata").unlink()
    empty = table_of(archive).to_pyarrow_table().slice(0, 0)
    between(monkeypatch, lambda: deltalake.write_deltalake(table_of(archive), empty, mode="append", partition_by=["day"]))
    with pytest.raises(ArchiveUnwritable, match=r"an unfinished batch cannot be taken out of .*records: others write"):
        sink_of(tmp_path, "delta")
    monkeypatch.undo()
    with sink_of(tmp_path, "delta") as sink:
        assert (True, ROWS) == (sink.is_new, offsets(archive))


def test_a_file_that_is_gone_ends_no_job(tmp_path: Path) -> None:
    """It is named by the command, and keeps no other day from being joined; a job leaves it to those who verify."""
    with sink_of(tmp_path, "delta") as sink:
        checkpointed(sink)
        for number in range(9):
            sink.write(number, as_rows([record(number, at_ms=NOON_MS + number // 3 * DAY_MS)]))
    archive = Archive(tmp_path)
    gone = archive.files(Table.RECORDS)[1]
    gone.unlink()
    done = tidy_beside(archive, "archive", BATCHES_BETWEEN - 1)
    assert (3, 1, True) == (done.before, done.after, gone.name in str(done.damaged))
    with pytest.raises(ArchiveFileGone, match=gone.name):
        run_tidy(TidyOptions(archive=tmp_path), Screen(result=print, note=print))


def test_a_log_of_delta_that_is_damaged_is_told_in_a_line(tmp_path: Path) -> None:
    """Who reads, writes or tidies such a table is told which it is; a job that only tidies goes on."""
    archive = filled(tmp_path)
    log = max((tmp_path / Table.RECORDS / "_delta_log").glob("*.json"))
    log.write_text("{garbled")
    problem = r"^the archive \S+ cannot be used: the log of its Delta table \S+/records cannot be read: [^\n]+; restore it"
    with pytest.raises(ArchiveDamaged, match=problem):
        archive.files(Table.RECORDS)
    with pytest.raises(ArchiveDamaged, match=problem), sink_of(tmp_path, "delta") as sink:
        write(sink, BATCHES)
    assert "\n" not in str(tidy_beside(archive, "archive", BATCHES_BETWEEN - 1).damaged)
    with pytest.raises(ArchiveDamaged, match=problem):
        run_tidy(TidyOptions(archive=tmp_path), Screen(result=print, note=print))


def test_what_no_version_needs_is_forgotten_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined files stay for a week, for readers of older versions, and go then; to find nothing is no transaction."""
    archive = filled(tmp_path)
    tidied(archive)
    assert BATCHES + 1 == on_disk(archive)
    monkeypatch.setattr(delta_tidying, "KEPT_H", 0)
    tidied(archive)
    assert (1, ROWS) == (on_disk(archive), offsets(archive))
    version = table_of(archive).version()
    tidied(archive)
    assert version == table_of(archive).version()


def test_a_job_tidies_delta_too(tmp_path: Path) -> None:
    """Days that are over at once, the present one when it has many files; and the command all of them."""
    with sink_of(tmp_path, "delta") as sink:
        checkpointed(sink)
        for number in range(4):
            at_ms = NOON_MS + number // 2 * DAY_MS
            some = [record(number, at_ms=at_ms), row(Table.TRANSFERS, number, 0, {}, at_ms=at_ms)]
            sink.write(number, as_rows(some))
    archive, told = Archive(tmp_path), list[str]()
    assert 4 == tidy_beside(archive, "archive", BATCHES_BETWEEN - 1).before
    assert [3, 3] == [len(delta_files(tmp_path, table)) for table in (Table.RECORDS, Table.TRANSFERS)]
    assert FILES_MAX > 3
    assert 0 == run_tidy(TidyOptions(archive=tmp_path), Screen(result=told.append, note=told.append))
    assert ["records: 2 files joined into 1 of 0.0 MiB", "transfers: 2 files joined into 1 of 0.0 MiB"] == told[:2]
    assert ([0, 1, 2, 3], [0, 1, 2, 3]) == (offsets(archive), offsets(archive, Table.TRANSFERS))


def test_every_table_of_a_channel_stays_what_it_was(tmp_path: Path) -> None:
    """The archive of a random channel says the same after it was tidied, in each of its tables, row for row."""
    archive = of_a_channel(tmp_path)
    for table in (Table.RECORDS, Table.SNAPSHOTS, Table.TRANSITIONS, Table.OWNERSHIP_INTERVALS, Table.TRANSFERS):
        before = archive.table(table)
        assert before.num_rows
        tidy_table(archive, table, files_min=2, last_day_files_min=2)
        assert before.equals(archive.table(table))
        assert 1 == len(archive.files(table))
