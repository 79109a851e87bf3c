"""Tests of the verification of an archive without Spark: the plan, the replay of a segment, and the
result.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from equipoise.channel.core.propose import close_log
from equipoise.channel.core.snapshot import to_bytes
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.verifying.job import (
    DIFFERENCES_MAX,
    Verification,
    check_segment,
    contents,
    lines,
    verification,
)
from equipoise.spark_jobs.verifying.replay import Checked, Difference, Replay, Rows
from equipoise.spark_jobs.verifying.segments import Mark, RecordFile, Segment, plan
from tests.channels.busy_channel import BusyChannel
from tests.channels.folding import Channel
from tests.spark.archived import archive_entries

RECORDS, SNAPSHOT_RECORDS, BATCH_RECORDS = 900, 100, 130


def entries_of(seed: int = 1) -> list[tuple[int, bytes]]:
    """Return the first records of a busy channel. Their offsets begin at 1."""
    return list(islice(BusyChannel(seed=seed).steps(), RECORDS))


def verified(
    archive: Path, *, from_ms: int | None = None, to_ms: int | None = None
) -> Verification:
    """Verify an archive as the job does, one segment after the other."""
    tables = Tables(archive)
    marks, files, unreadable = contents(tables)
    segments = plan(marks, files, from_ms=from_ms, to_ms=to_ms)
    checked = [check_segment(tables.place, segment) for segment in segments]
    return verification(segments, checked, unreadable=unreadable, seconds=1.0)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Write an archive of a busy channel."""
    archive_entries(
        entries_of(),
        tmp_path / "archive",
        snapshot_records=SNAPSHOT_RECORDS,
        batch_records=BATCH_RECORDS,
    )
    return tmp_path / "archive"


def in_order(archive: Path, table: Table) -> list[Path]:
    """Return the files of a table, in the order of their offsets."""
    return [archive / table / file.path for file in Tables(archive).files(table)]


def name_of(path: Path) -> str:
    """Return a file's name in its table."""
    return f"{path.parent.name}/{path.name}"


def rewrite(
    archive: Path, table: str, change: Callable[[pa.Table], pa.Table], *, offset: int
) -> Path:
    """Change the file that holds the row at `offset`. Return its path."""
    for path in sorted((archive / table).glob("day=*/*.parquet")):
        rows = pq.read_table(path, partitioning=None)
        if offset in rows["log_offset"].to_pylist():
            pq.write_table(change(rows), path)
            return path
    raise AssertionError(offset)


def replaced(rows: pa.Table, offset: int, /, **cells: object) -> pa.Table:
    """Return the rows with other cells at one offset."""
    changed = [row if row["log_offset"] != offset else {**row, **cells} for row in rows.to_pylist()]
    return pa.Table.from_pylist(changed, schema=rows.schema)


# --- the plan ---


def mark(offset: int) -> Mark:
    """Return a snapshot. Its time in milliseconds equals its offset."""
    return Mark(offset=offset, at_ms=offset, digest="0", file="snapshots")


def spans(segments: tuple[Segment, ...]) -> list[tuple[int, int | None, tuple[str, ...]]]:
    """Return the bounds and files of segments."""
    return [(segment.first, segment.last, segment.files) for segment in segments]


FILES = [
    RecordFile(path=path, first=first, last=last, rows=10)
    for path, first, last in (("b", 11, 20), ("a", 1, 10), ("c", 21, 30))
]


def test_a_segment_goes_from_one_snapshot_to_the_next() -> None:
    """It reads only the files that hold its records, in order."""
    segments = plan([mark(15), mark(1), mark(22)], FILES)
    assert [(0, 1, ("a",)), (2, 15, ("a", "b")), (16, 22, ("b", "c")), (23, None, ("c",))] == spans(
        segments
    )
    assert [1, 14, 7, 8] == [segment.rows for segment in segments]


def test_a_plan_between_two_times_has_the_segments_that_touch_them() -> None:
    marks = [mark(1), mark(10), mark(20), mark(30)]
    assert [(2, 10), (11, 20)] == [
        span[:2] for span in spans(plan(marks, FILES, from_ms=5, to_ms=20))
    ]
    assert [(2, 10), (11, 20), (21, 30)] == [
        span[:2] for span in spans(plan(marks, FILES, from_ms=10, to_ms=21))
    ]


def test_an_archive_without_snapshots_is_one_segment() -> None:
    """An archive without records has no segment."""
    assert () == plan([], [])
    assert [(0, None, ("a", "b", "c"))] == spans(plan([], FILES))


def test_every_record_is_in_one_segment() -> None:
    """The segments read each offset exactly once, for random snapshots and files."""
    rng = random.Random(7)
    for _ in range(50):
        edges = sorted(rng.sample(range(1, 200), 6))
        files = [
            RecordFile(path=f"{low}", first=low, last=high - 1, rows=high - low)
            for low, high in pairwise(edges)
        ]
        segments = plan([mark(offset) for offset in rng.sample(range(1, 200), 5)], files)
        for file in files:
            for offset in range(file.first, file.last + 1):
                takers = [
                    s
                    for s in segments
                    if file.path in s.files
                    and s.first <= offset <= (offset if s.last is None else s.last)
                ]
                assert 1 == len(takers), (offset, segments)


# --- an archive in order ---


@pytest.mark.parametrize("seed", range(3))
def test_an_archive_in_order(tmp_path: Path, seed: int) -> None:
    """It has one segment more than snapshots, and no differences."""
    archive_entries(
        entries_of(seed),
        tmp_path / "archive",
        snapshot_records=SNAPSHOT_RECORDS,
        batch_records=BATCH_RECORDS,
    )
    result = verified(tmp_path / "archive")
    assert [(), RECORDS, RECORDS, 0] == [
        result.differences,
        result.records,
        result.last,
        result.trusted,
    ]
    assert RECORDS == result.accepted + sum(result.rejected.values())
    assert RECORDS // SNAPSHOT_RECORDS + 1 == result.segments


def test_an_archive_that_begins_late(tmp_path: Path) -> None:
    """Records before the first snapshot cannot be replayed, and the output says so."""
    head, tail = entries_of()[:400], entries_of()[400:]
    before = Channel()
    for offset, data in head:
        before.put_bytes(data, offset=offset)
    archive_entries(
        tail,
        tmp_path / "archive",
        snapshot_records=100,
        batch_records=90,
        begin=to_bytes(before.view),
    )
    result = verified(tmp_path / "archive")
    assert [(), RECORDS - 400, 1] == [result.differences, result.records, result.trusted]
    assert any("cannot be replayed" in line for line in lines(result, url="URL"))


def test_entries_after_the_end_of_a_closed_channel_are_no_difference(tmp_path: Path) -> None:
    """The archive did not fold them."""
    channel = Channel()
    channel.genesis()
    channel.create()
    channel.accept(close_log(channel.admin(), channel.view))
    entries = [*channel.entries, (channel.view.offset + 1, b"{}")]
    archive_entries(entries, tmp_path / "archive", snapshot_records=2, batch_records=10)
    result = verified(tmp_path / "archive")
    assert [(), len(entries), 1] == [result.differences, result.records, result.not_folded]


# --- archives with differences ---


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A change of an archive at an offset, and the kind of difference to expect. `exact`: its last
    offset is that offset.
    """

    table: str
    change: Callable[[pa.Table, int], pa.Table]
    kind: str
    offset: int = 350
    exact: bool = True


def _without(rows: pa.Table, offset: int) -> pa.Table:
    return rows.filter(pc.not_equal(rows["log_offset"], offset))


DAMAGES = {
    "another verdict": Damage(
        table="records",
        change=lambda rows, at: replaced(rows, at, verdict="foreign_genesis"),
        kind="verdict",
    ),
    "a record twice": Damage(
        table="records",
        change=lambda rows, at: pa.concat_tables(
            [rows, rows.filter(pc.equal(rows["log_offset"], at))]
        ),
        kind="order",
    ),
    "a snapshot's record is gone": Damage(
        table="records", change=_without, kind="missing", offset=401
    ),
    "a snapshot of another digest": Damage(
        table="snapshots",
        change=lambda rows, at: replaced(rows, at, digest="1"),
        kind="digest",
        offset=401,
    ),
    "a snapshot that is damaged": Damage(
        table="snapshots",
        change=lambda rows, at: replaced(rows, at, bytes=b"none"),
        kind="damaged",
        offset=401,
        exact=False,
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_difference_is_found_at_its_record(archive: Path, name: str) -> None:
    damage = DAMAGES[name]
    rewrite(
        archive, damage.table, lambda rows: damage.change(rows, damage.offset), offset=damage.offset
    )
    result = verified(archive)
    assert damage.kind == result.differences[0].kind
    if damage.exact:
        assert damage.offset == result.differences[0].last
    assert not result.in_order


def accepted_transition(archive: Path, *, above: int = 300) -> int:
    """Return the offset of the first accepted record of a bundle above an offset."""
    rows = [
        row
        for path in in_order(archive, Table.RECORDS)
        for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    offset: int = next(
        row["log_offset"]
        for row in rows
        if row["log_offset"] > above and (row["kind"], row["verdict"]) == ("bundle", "accepted")
    )
    return offset


def test_a_record_that_was_removed(archive: Path) -> None:
    """The next snapshot's digest shows the loss at the latest. The reported range contains the
    record.
    """
    offset = accepted_transition(archive)
    rewrite(archive, "records", lambda rows: _without(rows, offset), offset=offset)
    difference = verified(archive).differences[0]
    assert difference.first is not None
    assert difference.last is not None
    assert difference.first <= offset or difference.kind == "verdict"
    assert offset <= difference.last < offset + SNAPSHOT_RECORDS


def test_records_that_are_gone_from_the_end(archive: Path) -> None:
    """The table's log names the files."""
    gone = [in_order(archive, table)[-1] for table in (Table.SNAPSHOTS, Table.RECORDS)]
    for path in gone:
        path.unlink()
    found = verified(archive).differences
    assert [("damaged", name_of(path)) for path in gone] == [
        (each.kind, each.file) for each in found
    ]


def test_a_table_that_went_back_to_an_older_version(archive: Path) -> None:
    """Its last position reveals the records that it has no longer."""
    table = DeltaTable(archive / "records")
    files = Tables(archive).files(Table.RECORDS)
    table.delete(f"log_offset >= {files[-1].first}")
    found = verified(archive).differences[0]
    assert ("missing", files[-1].first, RECORDS) == (found.kind, found.first, found.last)


def test_segments_are_checked_independently(archive: Path) -> None:
    """A difference in one segment does not affect the others, which begin with their own
    snapshots.
    """
    for offset in (250, 750):
        rewrite(
            archive,
            "records",
            lambda rows, at=offset: replaced(rows, at, verdict="foreign_genesis"),  # type: ignore[misc]
            offset=offset,
        )
    assert [250, 750] == [difference.last for difference in verified(archive).differences]


def forge_renewal(archive: Path, within: range) -> int:
    """Change the digest in the first renewal among these offsets, which are in one file. Return its
    offset.
    """
    forged = list[int]()

    def forge(rows: pa.Table) -> pa.Table:
        row = next(
            row
            for row in rows.to_pylist()
            if row["log_offset"] in within
            and (row["kind"], row["verdict"]) == ("renewed", "accepted")
        )
        renewal = orjson.loads(row["bytes"])
        forged.append(row["log_offset"])
        return replaced(
            rows,
            row["log_offset"],
            bytes=orjson.dumps({**renewal, "digest": renewal["digest"] + 1}),
        )

    rewrite(archive, "records", forge, offset=within.stop - 1)
    return forged[0]


def test_a_forged_renewal_hides_nothing_after_it(archive: Path) -> None:
    """A renewal with another digest is reported, and the rest of its segment is still checked."""
    forged = forge_renewal(archive, range(502, 521))
    result = verified(archive)
    assert [("renewal", forged)] == [(found.kind, found.last) for found in result.differences]
    assert RECORDS == result.records
    damaged = rewrite(archive, "records", lambda rows: rows, offset=521)
    damaged.write_bytes(b"PAR1 and no more")
    assert {("renewal", None), ("damaged", name_of(damaged))} == {
        (found.kind, found.file) for found in verified(archive).differences
    }


@pytest.mark.parametrize("place", [0, 3, -1])
def test_a_file_that_is_damaged(archive: Path, place: int) -> None:
    """The difference names the file, and no record. All other segments are replayed."""
    path = in_order(archive, Table.RECORDS)[place]
    path.write_bytes(b"PAR1 and no more")
    result = verified(archive)
    [found] = result.differences
    assert ("damaged", name_of(path), None, None) == (
        found.kind,
        found.file,
        found.first,
        found.last,
    )
    [line] = [line for line in lines(result, url="URL") if path.name in line]
    assert line.startswith(f"damaged: the file {name_of(path)} cannot be read: ")
    assert not any("equipoise channel show" in line for line in lines(result, url="URL"))
    assert result.records > RECORDS - 3 * SNAPSHOT_RECORDS


@pytest.mark.parametrize("table", [Table.RECORDS, Table.SNAPSHOTS])
def test_a_flipped_bit_never_raises(tmp_path: Path, table: Table) -> None:
    """The archive is verified to its end for any flipped bit. An unreadable file is named."""
    rng = random.Random(3)
    archive_entries(entries_of()[:30], tmp_path / "archive", snapshot_records=10, batch_records=15)
    path = in_order(tmp_path / "archive", table)[-1]
    whole = path.read_bytes()
    found = Counter[str]()
    description = 8 * (len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"))
    for bit in rng.sample(range(description), 50) + rng.sample(
        range(description, 8 * len(whole)), 150
    ):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        differences = verified(tmp_path / "archive").differences
        assert {name_of(path)} >= {each.file for each in differences if each.kind == "damaged"}, bit
        found.update([str(each.kind) for each in differences] or ["none"])
    assert {"none", "damaged"} <= found.keys()


def of_offsets(rows: pa.Table, change: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> pa.Table:
    """The rows, with changed offsets."""
    cells = change(rows["log_offset"])
    return rows.set_column(
        rows.schema.get_field_index("log_offset"),
        pa.field("log_offset", cells.type),
        cells,
    )


def with_invalid_text(rows: pa.Table) -> pa.Table:
    """The rows, with verdicts that are not UTF-8."""
    cells = pa.array([b"\xff\xfe"] * len(rows), pa.binary()).view(pa.string())
    return rows.set_column(rows.schema.get_field_index("verdict"), "verdict", cells)


FORMS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "no offsets": lambda rows: rows.drop_columns(["log_offset"]),
    "offsets of text": lambda rows: of_offsets(rows, lambda cells: cells.cast(pa.string())),
    "a null offset": lambda rows: replaced(rows, rows["log_offset"][1].as_py(), log_offset=None),
    "invalid text": with_invalid_text,
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_damage_is_named(archive: Path, form: str) -> None:
    """A file whose form is not that of its table is damaged."""
    path = in_order(archive, Table.RECORDS)[3]
    pq.write_table(FORMS[form](pq.read_table(path, partitioning=None)), path)
    assert {("damaged", name_of(path))} == {
        (each.kind, each.file) for each in verified(archive).differences
    }


@pytest.mark.parametrize("cells", [{"log_offset": None}, {"logged_at": None}, {"bytes": None}])
def test_a_snapshot_with_a_null_is_named(archive: Path, cells: dict[str, None]) -> None:
    """Its file is damaged."""
    path = rewrite(archive, "snapshots", lambda rows: replaced(rows, 401, **cells), offset=401)
    assert ("damaged", name_of(path)) in {
        (each.kind, each.file) for each in verified(archive).differences
    }


def test_a_mistake_in_folding_is_not_called_damage(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only errors of reading count as damage."""

    def feed(_replay: Replay, _rows: Rows) -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(Replay, "feed", feed)
    with pytest.raises(ValueError, match="a mistake of ours"):
        verified(archive)


# --- the output ---


def test_the_first_differences_are_printed_with_commands() -> None:
    """They are in log order. All differences are counted."""
    found = [
        Difference(kind="verdict", first=offset, last=offset, text="other")
        for offset in range(DIFFERENCES_MAX + 5, 0, -1)
    ]
    segment = plan([], FILES)
    checked = [
        Checked(number=each.first or 0, records=1, verdicts={"accepted": 1}, differences=(each,))
        for each in found
    ]
    result = verification(segment, checked, seconds=0.5)
    assert [DIFFERENCES_MAX, len(found), 1] == [
        len(result.differences),
        result.differences_count,
        result.differences[0].first,
    ]
    printed = list(lines(result, url="sqlite:a log.db"))
    assert "offset 1: verdict: other" in printed
    assert "  equipoise channel show 1 --log 'sqlite:a log.db'" in printed
    assert f"differences: {len(found)}" == printed[-1]
