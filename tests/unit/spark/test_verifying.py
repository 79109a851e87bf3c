"""Tests of the verification of an archive without Spark: the plan, the replay of a segment, and the result."""

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

from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.propose import close_log
from equipoise.channel.core.records import Unreadable
from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.core.view import View, apply
from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.archive.tables.small_files import run_compact
from equipoise.spark_jobs.sequence.emitted import Table
from equipoise.spark_jobs.streams.options import CompactOptions, Screen
from equipoise.spark_jobs.verifying.job import check_segment, contents, relocated
from equipoise.spark_jobs.verifying.replay import Checked, Difference, Replay, Rows
from equipoise.spark_jobs.verifying.result import DIFFERENCES_MAX, Verification, lines, verification
from equipoise.spark_jobs.verifying.segments import Mark, RecordFile, Segment, plan, with_unreadable
from tests.channels.busy_channel import BusyChannel
from tests.channels.folding import Channel
from tests.spark.archived import NOON_MS, archive_entries

RECORDS, SNAPSHOT_RECORDS, BATCH_RECORDS = 900, 100, 130


def entries_of(seed: int = 1) -> list[tuple[int, bytes]]:
    """The first records of a busy channel, at the offsets from 1 on."""
    return list(islice(BusyChannel(seed=seed).steps(), RECORDS))


def verified(archive: Path, *, from_ms: int | None = None, to_ms: int | None = None) -> Verification:
    """What the job does, one segment after the other."""
    opened = Archive(archive)
    marks, files, unreadable = contents(opened)
    segments = plan(marks, files, from_ms=from_ms, to_ms=to_ms)
    checked = [check_segment(segment) for segment in segments]
    return verification(segments, checked, unreadable=unreadable, seconds=1.0)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of a channel on which everything happened."""
    archive_entries(entries_of(), tmp_path / "archive", snapshot_records=SNAPSHOT_RECORDS, batch_records=BATCH_RECORDS)
    return tmp_path / "archive"


def rewrite(archive: Path, table: str, change: Callable[[pa.Table], pa.Table], *, offset: int) -> Path:
    """Change the file of a table that holds the row at `offset`; its path."""
    for path in sorted((archive / table).glob("day=*/*.parquet")):
        rows = pq.read_table(path, partitioning=None)
        if offset in rows["offset"].to_pylist():
            pq.write_table(change(rows), path)
            return path
    raise AssertionError(offset)


def replaced(rows: pa.Table, offset: int, /, **cells: object) -> pa.Table:
    """The rows, with other cells at one offset."""
    changed = [row if row["offset"] != offset else {**row, **cells} for row in rows.to_pylist()]
    return pa.Table.from_pylist(changed, schema=rows.schema)


def test_the_channel_that_is_archived() -> None:
    """The busy channel is spelled as the codec spells it, and its digests agree: what is verified is what brokers write."""
    view, kinds = View(), Counter[str]()
    for offset, data in entries_of():
        record = decode(data)
        assert isinstance(record, Unreadable) or data == encode(record)
        verdict = apply(view, offset, record)
        assert not verdict.diverged
        kinds[f"{type(record).__name__} {verdict.reason or 'accepted'}"] += 1
    assert {"Renewed accepted", "BundleTransition accepted", "BundleTransition stale", "Unreadable malformed"} <= kinds.keys()


# --- the plan ----------------------------------------------------------------------------------------------------------------


def mark(offset: int) -> Mark:
    """A snapshot, as many milliseconds after the beginning as its offset says."""
    return Mark(offset=offset, at_ms=offset, digest="0", file="snapshots")


def spans(segments: tuple[Segment, ...]) -> list[tuple[int, int | None, tuple[str, ...]]]:
    """Segments in short."""
    return [(segment.first, segment.last, segment.files) for segment in segments]


FILES = [RecordFile(path=path, first=first, last=last, rows=10) for path, first, last in (("b", 11, 20), ("a", 1, 10), ("c", 21, 30))]


def test_a_plan() -> None:
    """Each segment goes from one snapshot to the next, and reads the files that hold its records alone, in order."""
    segments = plan([mark(15), mark(1), mark(22)], FILES)
    assert [(0, 1, ("a",)), (2, 15, ("a", "b")), (16, 22, ("b", "c")), (23, None, ("c",))] == spans(segments)
    assert [1, 14, 7, 8] == [segment.rows for segment in segments]


def test_a_file_that_cannot_be_read_has_a_place() -> None:
    """It stands for all that its neighbours leave out, and for nothing where they leave out nothing."""
    known = {path: RecordFile(path=path, first=first, last=last, rows=5) for path, first, last in (("b", 10, 14), ("c", 15, 19))}
    found = with_unreadable(["a", known["b"], "nothing", known["c"], "d", "e"], last=40)
    assert [("a", 0, 9), ("b", 10, 14), ("c", 15, 19), ("d", 20, 40), ("e", 20, 40)] == [
        (file.path, file.first, file.last) for file in found
    ]
    assert [("a", 0, 40)] == [(file.path, file.first, file.last) for file in with_unreadable(["a"], last=40)]
    assert [] == with_unreadable([], last=-1)


def test_a_plan_between_two_times() -> None:
    """Every segment that may hold a record of these times is taken, and no other."""
    marks = [mark(1), mark(10), mark(20), mark(30)]
    assert [(2, 10), (11, 20)] == [span[:2] for span in spans(plan(marks, FILES, from_ms=5, to_ms=20))]
    assert [(2, 10), (11, 20), (21, 30)] == [span[:2] for span in spans(plan(marks, FILES, from_ms=10, to_ms=21))]


def test_a_plan_of_nothing() -> None:
    """An archive without records has no segments, and one without snapshots has one."""
    assert () == plan([], [])
    assert [(0, None, ("a", "b", "c"))] == spans(plan([], FILES))


def test_every_record_is_in_one_segment() -> None:
    """Whatever the snapshots and the files are, the segments read each offset exactly once."""
    rng = random.Random(7)
    for _ in range(50):
        edges = sorted(rng.sample(range(1, 200), 6))
        files = [RecordFile(path=f"{low}", first=low, last=high - 1, rows=high - low) for low, high in pairwise(edges)]
        segments = plan([mark(offset) for offset in rng.sample(range(1, 200), 5)], files)
        for file in files:
            for offset in range(file.first, file.last + 1):
                takers = [s for s in segments if file.path in s.files and s.first <= offset <= (offset if s.last is None else s.last)]
                assert 1 == len(takers), (offset, segments)


# --- an archive in order -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_an_archive_in_order(tmp_path: Path, seed: int) -> None:
    """Whatever happened on a channel, its archive holds, cut into as many segments as it has snapshots, and one more."""
    archive_entries(entries_of(seed), tmp_path / "archive", snapshot_records=SNAPSHOT_RECORDS, batch_records=BATCH_RECORDS)
    result = verified(tmp_path / "archive")
    assert [(), RECORDS, RECORDS, 0] == [result.differences, result.records, result.last, result.trusted]
    assert RECORDS == result.accepted + sum(result.rejected.values())
    assert RECORDS // SNAPSHOT_RECORDS + 1 == result.segments


def test_an_archive_that_begins_late(tmp_path: Path) -> None:
    """Where the head of the log was gone, the records up to the first snapshot cannot be replayed, and the report says so."""
    head, tail = entries_of()[:400], entries_of()[400:]
    before = Channel()
    for offset, data in head:
        before.put_bytes(data, offset=offset)
    archive_entries(tail, tmp_path / "archive", snapshot_records=100, batch_records=90, begin=to_bytes(before.view))
    result = verified(tmp_path / "archive")
    assert [(), RECORDS - 400, 1] == [result.differences, result.records, result.trusted]
    assert any("cannot be replayed" in line for line in lines(result, url="URL"))


def test_a_channel_that_was_closed(tmp_path: Path) -> None:
    """What stands behind the record that closed a channel was not folded, and is no difference."""
    channel = Channel()
    channel.genesis()
    channel.create()
    channel.accept(close_log(channel.admin(), channel.view))
    entries = [*channel.entries, (channel.view.offset + 1, b"{}")]
    archive_entries(entries, tmp_path / "archive", snapshot_records=2, batch_records=10)
    result = verified(tmp_path / "archive")
    assert [(), len(entries), 1] == [result.differences, result.records, result.not_folded]


def test_a_part_of_an_archive(archive: Path) -> None:
    """Between two times only the segments that hold them are folded."""
    result = verified(archive, from_ms=NOON_MS + 350, to_ms=NOON_MS + 420)
    assert [(), 2] == [result.differences, result.segments]
    assert 100 < result.records <= 2 * SNAPSHOT_RECORDS


# --- archives that are not ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What is done to an archive at an offset, and what must be found: the kind, and whether that offset is named as the last."""

    table: str
    change: Callable[[pa.Table, int], pa.Table]
    kind: str
    offset: int = 350
    exact: bool = True


def _without(rows: pa.Table, offset: int) -> pa.Table:
    return rows.filter(pc.not_equal(rows["offset"], offset))


DAMAGES = {
    "another verdict": Damage(table="records", change=lambda rows, at: replaced(rows, at, verdict="foreign_genesis"), kind="verdict"),
    "a record twice": Damage(
        table="records", change=lambda rows, at: pa.concat_tables([rows, rows.filter(pc.equal(rows["offset"], at))]), kind="order"
    ),
    "a snapshot's record is gone": Damage(table="records", change=_without, kind="missing", offset=401),
    "a snapshot of another digest": Damage(
        table="snapshots", change=lambda rows, at: replaced(rows, at, digest="1"), kind="digest", offset=401
    ),
    "a snapshot that is damaged": Damage(
        table="snapshots", change=lambda rows, at: replaced(rows, at, bytes=b"none"), kind="damaged", offset=401, exact=False
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_differs_is_named(archive: Path, name: str) -> None:
    """Each way in which an archive can be wrong is found, and the record where it shows is named."""
    damage = DAMAGES[name]
    rewrite(archive, damage.table, lambda rows: damage.change(rows, damage.offset), offset=damage.offset)
    result = verified(archive)
    assert damage.kind == result.differences[0].kind
    if damage.exact:
        assert damage.offset == result.differences[0].last
    assert not result.in_order


def accepted_transition(archive: Path, *, above: int = 300) -> int:
    """The offset of an accepted record of a bundle, the first that is above an offset, in the middle of a segment."""
    rows = [
        row for path in sorted((archive / "records").glob("day=*/*.parquet")) for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    offset: int = next(row["offset"] for row in rows if row["offset"] > above and (row["kind"], row["verdict"]) == ("bundle", "accepted"))
    return offset


def test_a_record_that_was_removed(archive: Path) -> None:
    """An accepted record that is gone shows in the next snapshot's digest at the latest, and the range that is named holds it."""
    offset = accepted_transition(archive)
    rewrite(archive, "records", lambda rows: _without(rows, offset), offset=offset)
    difference = verified(archive).differences[0]
    assert difference.first is not None
    assert difference.last is not None
    assert difference.first <= offset or difference.kind == "verdict"
    assert offset <= difference.last < offset + SNAPSHOT_RECORDS


def test_records_that_are_gone_from_the_end(archive: Path) -> None:
    """Where the newest files are lost, no snapshot and no later record tells of it, but the archive's own account does."""
    for table in (Table.RECORDS, Table.SNAPSHOTS):
        Archive(archive).files(table)[-1].unlink()
    last = verified(archive).last
    assert last is not None
    [found] = verified(archive).differences
    assert ("missing", last + 1, RECORDS) == (found.kind, found.first, found.last)


def test_only_one_segment_is_to_blame(archive: Path) -> None:
    """A difference in one segment says nothing of the others: they begin with snapshots of their own."""
    for offset in (250, 750):
        rewrite(archive, "records", lambda rows, at=offset: replaced(rows, at, verdict="foreign_genesis"), offset=offset)  # type: ignore[misc]
    assert [250, 750] == [difference.last for difference in verified(archive).differences]


def forge_renewal(archive: Path, within: range) -> int:
    """Change the digest in the first renewal among these offsets, which are in one file. Return its offset."""
    forged = list[int]()

    def forge(rows: pa.Table) -> pa.Table:
        row = next(row for row in rows.to_pylist() if row["offset"] in within and (row["kind"], row["verdict"]) == ("renewed", "accepted"))
        renewal = orjson.loads(row["bytes"])
        forged.append(row["offset"])
        return replaced(rows, row["offset"], bytes=orjson.dumps({**renewal, "digest": renewal["digest"] + 1}))

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
    assert {("renewal", None), ("damaged", str(damaged))} == {(found.kind, found.file) for found in verified(archive).differences}


def test_a_forged_renewal_hides_no_loss(archive: Path) -> None:
    """A record that is missing after a forged renewal of its segment is reported, too."""
    forged = forge_renewal(archive, range(502, 521))
    lost = accepted_transition(archive, above=521)
    rewrite(archive, "records", lambda rows: _without(rows, lost), offset=lost)
    renewal, gone = verified(archive).differences
    assert ("renewal", forged) == (renewal.kind, renewal.last)
    assert gone.kind in {"verdict", "digest"}
    assert gone.last is not None
    assert lost <= gone.last < lost + SNAPSHOT_RECORDS


@pytest.mark.parametrize("place", [0, 3, -1])
def test_a_file_that_is_damaged(archive: Path, place: int) -> None:
    """A file of records that cannot be read is what differs, by its name, and no record, be it the first, the last or another."""
    path = sorted((archive / "records").glob("day=*/*.parquet"))[place]
    path.write_bytes(b"PAR1 and no more")
    result = verified(archive)
    [found] = result.differences
    assert ("damaged", str(path), None, None) == (found.kind, found.file, found.first, found.last)
    [line] = [line for line in lines(result, url="URL") if path.name in line]
    assert line.startswith(f"damaged: the file {path} cannot be read: ")
    assert not any("equipoise channel show" in line for line in lines(result, url="URL"))
    assert result.records > RECORDS - 3 * SNAPSHOT_RECORDS, "all other segments are folded"


def test_files_that_are_joined_meanwhile(archive: Path) -> None:
    """Where the archive is tidied while it is verified, what was in the files that have gone is folded from where it is now."""
    marks, files, _ = contents(Archive(archive))
    segments = plan(marks, files)
    run_compact(CompactOptions(archive=archive), Screen(result=print, note=print))
    checked = [check_segment(segment) for segment in segments]
    assert {"gone"} == {difference.kind for each in checked for difference in each.differences}
    again = relocated(Archive(archive), segments, checked)
    assert [each.number for each in checked if each.differences] == [segment.number for segment in again]
    mended = [check_segment(segment) for segment in again]
    assert [()] * len(again) == [each.differences for each in mended]
    assert () == relocated(Archive(archive), segments, mended)


@pytest.mark.parametrize("table", [Table.RECORDS, Table.SNAPSHOTS])
def test_a_bit_that_flipped_is_never_a_traceback(tmp_path: Path, table: Table) -> None:
    """Whichever bit of a file has flipped, the archive is verified to the end, and what cannot be read is named by its file."""
    rng = random.Random(3)
    archive_entries(entries_of()[:30], tmp_path / "archive", snapshot_records=10, batch_records=15)
    path = Archive(tmp_path / "archive").files(table)[-1]
    whole = path.read_bytes()
    found = Counter[str]()
    description = 8 * (len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"))
    for bit in rng.sample(range(description), 50) + rng.sample(range(description, 8 * len(whole)), 150):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        differences = verified(tmp_path / "archive").differences
        assert {str(path)} >= {each.file for each in differences if each.kind == "damaged"}, bit
        found.update([str(each.kind) for each in differences] or ["none"])
    assert {"none", "damaged"} <= found.keys()


def of_offsets(rows: pa.Table, change: Callable[[pa.ChunkedArray], pa.ChunkedArray], *, nullable: bool = True) -> pa.Table:
    """The rows, with changed offsets."""
    cells = change(rows["offset"])
    return rows.set_column(rows.schema.get_field_index("offset"), pa.field("offset", cells.type, nullable=nullable), cells)


def with_invalid_text(rows: pa.Table) -> pa.Table:
    """The rows, with verdicts that are not UTF-8."""
    cells = pa.array([b"\xff\xfe"] * len(rows), pa.binary()).view(pa.string())
    return rows.set_column(rows.schema.get_field_index("verdict"), "verdict", cells)


FORMS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "no offsets": lambda rows: rows.drop_columns(["offset"]),
    "offsets of text": lambda rows: of_offsets(rows, lambda cells: cells.cast(pa.string())),
    "offsets that may not be null": lambda rows: of_offsets(rows, lambda cells: cells, nullable=False),
    "a null offset": lambda rows: replaced(rows, rows["offset"][1].as_py(), offset=None),
    "invalid text": with_invalid_text,
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_damage_is_named(archive: Path, form: str) -> None:
    """A file whose form is not that of its table is damaged."""
    path = Archive(archive).files(Table.RECORDS)[3]
    pq.write_table(FORMS[form](pq.read_table(path, partitioning=None)), path)
    assert {("damaged", str(path))} == {(each.kind, each.file) for each in verified(archive).differences}


def test_a_file_without_statistics_is_damaged(archive: Path) -> None:
    """Its offsets are unknown to the plan."""
    path = Archive(archive).files(Table.RECORDS)[3]
    pq.write_table(pq.read_table(path, partitioning=None), path, write_statistics=False)
    assert {("damaged", str(path))} == {(each.kind, each.file) for each in verified(archive).differences}


@pytest.mark.parametrize("cells", [{"offset": None}, {"at": None}, {"bytes": None}])
def test_a_snapshot_with_a_null_is_named(archive: Path, cells: dict[str, None]) -> None:
    """A snapshot that lacks what it must have is damage of its file."""
    path = rewrite(archive, "snapshots", lambda rows: replaced(rows, 401, **cells), offset=401)
    assert ("damaged", str(path)) in {(each.kind, each.file) for each in verified(archive).differences}


def test_a_mistake_in_folding_is_not_called_damage(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong while rows are folded, and not while they are read, stays what it is."""

    def feed(_replay: Replay, _rows: Rows) -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(Replay, "feed", feed)
    with pytest.raises(ValueError, match="a mistake of ours"):
        verified(archive)


# --- what all come to --------------------------------------------------------------------------------------------------------


def test_what_is_told() -> None:
    """The first differences are told in the order of the log, with commands that run, and all are counted."""
    found = [Difference(kind="verdict", first=offset, last=offset, text="other") for offset in range(DIFFERENCES_MAX + 5, 0, -1)]
    segment = plan([], FILES)
    checked = [Checked(number=each.first or 0, records=1, verdicts={"accepted": 1}, differences=(each,)) for each in found]
    result = verification(segment, checked, seconds=0.5)
    assert [DIFFERENCES_MAX, len(found), 1] == [len(result.differences), result.differences_count, result.differences[0].first]
    told = list(lines(result, url="sqlite:a log.db"))
    assert "offset 1: verdict: other" in told
    assert "  equipoise channel show 1 --log 'sqlite:a log.db'" in told
    assert f"differences: {len(found)}" == told[-1]
