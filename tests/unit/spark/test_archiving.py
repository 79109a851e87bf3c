"""Test that an archive has each row exactly once, whatever happens while it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import restoration
from equipoise.compaction.retention import Retention
from equipoise.spark_jobs.archive.archiving import Archiving
from equipoise.spark_jobs.audit.findings_table import rows_of as findings_of
from equipoise.spark_jobs.plain.archive import run_archive
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.sequence.sequence import RowSequence
from equipoise.spark_jobs.sources import beginnings
from equipoise.spark_jobs.streams.errors import ArchiveDamaged, ArchiveInUse
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from equipoise.spark_jobs.tables import writing
from equipoise.spark_jobs.tables.delta import Place
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.schema import ARCHIVED
from equipoise.spark_jobs.tables.writing import Writer, open_writer
from tests.channels.compacting import compacted
from tests.channels.walk import Walk
from tests.spark.archived import NOON_MS, arrivals_of, as_rows, reading_of, writer_of
from tests.spark.spark_logs import WrittenStream
from tests.unit.sqlite.sqlite_files import file_size_limit

RECORDS = 400
BATCH = 90


class Killed(BaseException):
    """The process ends here."""


def write_log(folder: Path, records: int = RECORDS) -> str:
    """Write a busy log. Return its URL."""
    url = f"sqlite:{folder}/log.db"
    with closing(open_log(url)) as log:
        WrittenStream(log, bundles=8, brokers=3).go_on(records)
    return url


def archive(
    url: str, place: Path | str, *, cuts: Iterator[int] | None = None, saves: bool = True
) -> None:
    """Archive a log to its end, in batches of these sizes, with a snapshot every 100 records."""
    with (
        closing(reading_of(url)) as log,
        open_writer(Place(place), writer="archive", log=log.log.identity, url=url) as writer,
    ):
        archiving = Archiving(writer, url, snapshot_records=100)
        while batch := log.batch(archiving.positions).arrivals:
            some = batch[: next(cuts) if cuts is not None else BATCH]
            archiving.take(some)
            archiving.write()
            archiving.positions = {**archiving.positions, some[-1].source: some[-1].offset + 1}
        if saves:
            archiving.save()


def rows_of(place: Path | str) -> dict[Table, list[dict[str, Any]]]:
    """Return all rows of an archive. Those without an offset come in the order of bundles."""
    tables = Tables(place)
    return {
        table: sorted(
            tables.table(table).to_pylist(),
            key=lambda row: (row["log_offset"] is None, row["log_offset"], row.get("bundle") or ""),
        )
        for table in sorted(ARCHIVED)
    }


class Undisturbed:
    """A log, and the rows of its archive. No dataclass: hypothesis would print all of them."""

    def __init__(self, url: str, rows: dict[Table, Any]) -> None:
        self.url = url
        self.rows = rows


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("archiving")
    url = write_log(folder)
    archive(url, folder / "undisturbed")
    return Undisturbed(url=url, rows=rows_of(folder / "undisturbed"))


def killing(number: int, *, after: bool) -> Callable[..., None]:
    """Return a commit that ends the process before or after the commit with this number."""
    real, left = Writer._commit, number  # noqa: SLF001 - where a process can be killed

    def commit(*args: object, **kwargs: object) -> None:
        nonlocal left
        left -= 1
        if left == 0 and not after:
            raise Killed
        real(*args, **kwargs)  # type: ignore[arg-type]
        if left == 0:
            raise Killed

    return commit


@settings(deadline=None, max_examples=15)
@given(
    kills=st.lists(st.tuples(st.integers(1, 16), st.booleans()), max_size=6),
    cuts=st.lists(st.integers(1, 200), min_size=1, max_size=20),
)
def test_each_row_is_there_once_wherever_the_process_is_killed(
    undisturbed: Undisturbed,
    tmp_path_factory: pytest.TempPathFactory,
    kills: list[tuple[int, bool]],
    cuts: list[int],
) -> None:
    """Before or after any commit: between two tables, around `records`, and around the state."""
    url, expected = undisturbed.url, undisturbed.rows
    place = tmp_path_factory.mktemp("killed")
    sizes = cycle(cuts)
    for number, after in kills:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writing, "FILES_MAX", 3)  # Files are joined meanwhile, too.
            patch.setattr(Writer, "_commit", killing(number, after=after))
            try:
                archive(url, place, cuts=sizes)
            except Killed:
                continue
    archive(url, place, cuts=sizes)
    assert expected == rows_of(place)


def test_joined_files_have_the_rows_in_order(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, expected = undisturbed.url, undisturbed.rows
    monkeypatch.setattr(writing, "FILES_MAX", 4)
    archive(url, tmp_path, cuts=iter([20] * RECORDS))
    tables = Tables(tmp_path)
    assert len(tables.files(Table.RECORDS)) < 5
    offsets = [
        offset
        for batch in tables.batches(Table.RECORDS, columns=("log_offset",))
        for offset in batch["log_offset"].to_pylist()
    ]
    assert [row["log_offset"] for row in expected[Table.RECORDS]] == offsets
    assert expected == rows_of(tmp_path)


def test_a_joined_file_has_the_bounds_of_all_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers skip files by them. The finding of a timer has an old offset and a late time."""
    monkeypatch.setattr(writing, "FILES_MAX", 2)
    found = Finding(
        rule="rule", subject="log:", offsets=(1,), at_ms=NOON_MS, text="text", command="command"
    )
    late = NOON_MS + 5_000
    with writer_of(tmp_path, writer="audit") as writer:
        writer.add_findings(
            findings_of(
                [
                    replace(found, offsets=(5,), at_ms=late),
                    replace(found, offsets=(200,), at_ms=late),
                ]
            )
        )
        writer.add_findings(findings_of([replace(found, offsets=(10,))]))
    (file,) = Tables(tmp_path).files(Table.FINDINGS)
    assert (5, 200) == (file.first, file.last)
    times = [None if at is None else at.timestamp() * 1_000 for at in (file.first_at, file.last_at)]
    assert [NOON_MS, late] == times


def test_a_commit_in_doubt_leaves_no_interval_twice(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer goes on in the same process, from the tables that it opens anew."""
    real, commits = Writer._commit, list[str]()  # noqa: SLF001 - where storage may not answer

    def commit(self: Writer, name: str, *args: object, **kwargs: object) -> None:
        real(self, name, *args, **kwargs)  # type: ignore[arg-type]
        commits.append(name)
        if name == Table.INTERVALS and commits.count(name) == 2:
            raise PeerError("no answer")

    monkeypatch.setattr(Writer, "_commit", commit)
    with (
        closing(reading_of(undisturbed.url)) as log,
        writer_of(tmp_path, log=log.log.identity) as writer,
    ):
        archiving = Archiving(writer, undisturbed.url, snapshot_records=100)
        while batch := log.batch(archiving.positions).arrivals[:BATCH]:
            try:
                archiving.take(batch)
                archiving.write()
            except PeerError:
                writer.open_tables()
                archiving = Archiving(writer, undisturbed.url, snapshot_records=100)
                continue
            ends = {batch[-1].source: batch[-1].offset + 1}
            archiving.positions = {**archiving.positions, **ends}
    assert undisturbed.rows == rows_of(tmp_path)


def test_files_of_former_states_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the process starts. Files of a crashed commit, too, in any table."""
    monkeypatch.setattr(writing, "FILES_MAX", 3)
    monkeypatch.setattr(writing, "KEPT_HOURS", 0)
    url = write_log(tmp_path)
    archive(url, tmp_path / "whole")
    crashed = tmp_path / "archive" / "records" / "day=2025-11-22" / "crashed.parquet"
    crashed.parent.mkdir(parents=True)
    crashed.write_bytes(b"a crashed commit's")
    archive(url, tmp_path / "archive")
    assert not crashed.exists()
    assert rows_of(tmp_path / "whole") == rows_of(tmp_path / "archive")
    for number in range(10):
        with writer_of(tmp_path) as writer:
            writer.save_state({"key": b"%d" % number})
            (tmp_path / "_archive" / f"{number}.parquet").write_bytes(b"a crashed commit's")
    with writer_of(tmp_path) as writer:
        assert {"key": b"9"} == writer.state()
    assert len(list((tmp_path / "_archive").glob("**/*.parquet"))) <= 2 * 3


def test_the_log_may_be_truncated_up_to_the_archive(tmp_path: Path) -> None:
    """The archive continues from its own records, not from the log."""
    url = write_log(tmp_path)
    archive(url, tmp_path / "archive", saves=False)
    with closing(open_log(url)) as log:
        compacted(log)
    archive(url, tmp_path / "archive")
    rows = rows_of(tmp_path / "archive")
    assert [] == rows[Table.GAPS]
    assert list(range(1, len(rows[Table.RECORDS]) + 1)) == [
        row["log_offset"] for row in rows[Table.RECORDS]
    ]


def run(options: ArchiveOptions) -> list[str]:
    """Archive, and return what is noted."""
    notes: list[str] = []
    run_archive(options, Screen(result=notes.append, note=notes.append))
    return notes


def test_offsets_that_were_truncated_before_they_were_archived_are_named(tmp_path: Path) -> None:
    """In a line, and in the table `gaps`."""
    url, place = f"sqlite:{tmp_path}/log.db", tmp_path / "archive"
    options = ArchiveOptions(log_url=url, archive=place, to_end=True)
    with closing(open_log(url)) as log:
        stream = WrittenStream(log, bundles=8, brokers=3)
        stream.go_on(50)
        run(options)
        first = log.end() + 1
        stream.go_on(200)
        start = compacted(log).start
        assert start > first
        stream.go_on(10)
        notes = run(options)
        assert any(f"the offsets {first} to {start - 1}" in line for line in notes), notes
        (gap,) = Tables(place).table(Table.GAPS).to_pylist()
        assert (start, first, start - 1) == tuple(
            gap[name] for name in ("log_offset", "first_offset", "last_offset")
        )
        bundles = Tables(place).table(Table.BUNDLES)
        assert len(stream.view.bundles) == sum(
            offset >= start for offset in bundles["log_offset"].to_pylist()
        )


def test_a_stop_soon_after_a_gap_skips_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a history snapshot the folding continues at a snapshot above the log's start."""
    monkeypatch.setattr(beginnings, "beginning", restoration)
    url, place = f"sqlite:{tmp_path}/log.db", tmp_path / "archive"
    with closing(open_log(url)) as log:
        stream = WrittenStream(log, bundles=8, brokers=3)
        stream.go_on(50)
        archive(url, place)
        first = log.end() + 1
        stream.go_on(200)
        start = compacted(log, retain=Retention(unit="offsets", amount=100)).start
        stream.go_on(10)
        end = log.end()
    with (
        closing(reading_of(url)) as reads,
        writer_of(place, log=reads.log.identity) as writer,
    ):
        archiving = Archiving(writer, url)
        archiving.take(reads.batch(archiving.positions).arrivals[:1])
        archiving.save()
    archive(url, place)
    found = [row["log_offset"] for row in rows_of(place)[Table.RECORDS]]
    assert [*range(1, first), *range(start, end + 1)] == found


def test_a_second_writer_is_refused_at_once(tmp_path: Path) -> None:
    with writer_of(tmp_path), pytest.raises(ArchiveInUse, match=r"another process \(archive\)"):
        writer_of(tmp_path)


def test_a_second_writer_that_has_no_lock_is_refused_at_its_first_commit(tmp_path: Path) -> None:
    """As in object storage: a commit in between is another writer's."""
    with writer_of(tmp_path) as first:
        first.save_state({"key": b"1"})
        (tmp_path / ".archive.lock").unlink()
        with writer_of(tmp_path) as second:
            first.save_state({"key": b"2"})
            with pytest.raises(ArchiveInUse):
                second.save_state({"key": b"3"})
    with writer_of(tmp_path) as third:
        assert {"key": b"2"} == third.state()


def test_archives_of_other_logs_and_of_newer_versions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writer_of(tmp_path) as writer:
        writer.save_state({})
    with pytest.raises(OperatorError, match=r"belongs to the log .* not to another"):
        writer_of(tmp_path, log="another")
    monkeypatch.setattr(writing, "FORMAT", 0)
    for use in (lambda: Tables(tmp_path), lambda: writer_of(tmp_path)):
        with pytest.raises(OperatorError, match="has version 1, this version reads up to 0"):
            use()


def test_a_full_disk_ends_a_batch_which_is_written_again(tmp_path: Path) -> None:
    walk = Walk(21)
    entries = [walk.step() for _ in range(200)]
    rows = as_rows(RowSequence().feed(arrivals_of(entries)))
    with writer_of(tmp_path) as writer:
        with file_size_limit(6_000), pytest.raises(OperatorError, match=r"archive .* is full"):
            writer.write(rows)
        writer.write(rows)
        writer.save_state({})
    found = Tables(tmp_path).table(Table.RECORDS)["bytes"].to_pylist()
    assert [data for _, data in entries] == found


def test_a_commit_that_a_power_cut_left_empty_is_made_again(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    archive(undisturbed.url, tmp_path, saves=False)
    max((tmp_path / "records" / "_delta_log").glob("*.json")).write_bytes(b"")
    assert len(Tables(tmp_path).table(Table.RECORDS)) < RECORDS
    archive(undisturbed.url, tmp_path)
    assert undisturbed.rows == rows_of(tmp_path)


def test_records_that_end_below_the_saved_state_are_refused(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """They were lost, or replaced by an older copy."""
    archive(undisturbed.url, tmp_path)
    max((tmp_path / "records" / "_delta_log").glob("*.json")).write_bytes(b"")
    with pytest.raises(ArchiveDamaged, match="but its saved state is at"):
        archive(undisturbed.url, tmp_path)


def test_a_saved_state_that_is_damaged_is_named(tmp_path: Path) -> None:
    url = write_log(tmp_path, 50)
    with closing(open_log(url)) as log:
        identity = log.identity
    with writer_of(tmp_path / "archive", log=identity) as writer:
        writer.save_state({"sequence:": b"{}"})
    with pytest.raises(ArchiveDamaged, match="its saved state cannot be used"):
        archive(url, tmp_path / "archive")


def test_intervals_that_last_are_those_of_the_view(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    with closing(open_log(url)) as log:
        stream = WrittenStream(log, bundles=8, brokers=3)
        for _ in range(3):
            stream.go_on(100)
            archive(url, tmp_path / "archive")
            table = Tables(tmp_path / "archive").table(Table.INTERVALS)
            lasting = [row for row in table.to_pylist() if row["to_at"] is None]
            brokers = {each.incarnation: each.broker for each in stream.view.live_brokers()}
            assert sorted(
                (name, brokers[each.server], each.token)
                for name, each in stream.view.bundles.items()
                if each.server is not None
            ) == sorted((row["bundle"], row["broker"], row["token"]) for row in lasting)


def test_an_archive_that_is_not_there_yet_has_empty_tables(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        writer.save_state({})
    assert dict.fromkeys(ARCHIVED, 0) == {
        table: Tables(tmp_path).dataset(table).count_rows() for table in ARCHIVED
    }
    assert pa.int64() == Tables(tmp_path).dataset(Table.RECORDS).schema.field("log_offset").type
