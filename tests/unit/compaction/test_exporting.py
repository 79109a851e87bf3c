"""Test that an export restores every byte of a log, and that a damaged export is refused."""

from __future__ import annotations

import io
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core import propose
from equipoise.channel.core.errors import (
    CallerError,
    DeadlineExceeded,
    LogClosed,
    LogNotBegun,
    LogTruncated,
    OperatorError,
)
from equipoise.channel.core.log import Log
from equipoise.channel.core.propose import Author
from equipoise.channel.core.snapshot_store import SnapshotRow
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.snapshots.restore import beginning
from equipoise.channel.sqlite.log import SqliteLog
from equipoise.channel.system.deadline import Deadline
from equipoise.compaction import exporting
from equipoise.compaction.compressed import lines, written
from equipoise.compaction.exporting import digest_text, exported
from equipoise.compaction.importing import AHEAD, Imported, import_to
from tests.channels.carried import TIMEOUT_MS, cut_off, entries_of, soon
from tests.channels.compacting import restored_to_end
from tests.channels.folding import Channel, channel_with
from tests.channels.walk import Walk

ODD = (
    b"",
    b"\x00\xff",
    b'{"kind": "spaced"}',
    b'{"kind":"a","kind":"b"}',
    b"[1]",
    b"18446744073709551616",
    b'{"a":1e2}',
    '{"ä":1}'.encode(),
)
"""Bytes that are no records, of some of which JSON would give other bytes back."""


def odd_channel() -> Channel:
    """A channel with records of every kind of verdict, and bytes that are none."""
    channel = channel_with("a", "b", bundles=2)
    channel.own("a")
    channel.put(propose.genesis(Author(publisher="admin:eve"), cluster="another"))
    for data in ODD:
        channel.put_bytes(data)
    channel.accept(propose.renewed(channel.author("a"), channel.broker("a")))
    channel.accept(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("b"))
    )
    return channel


def written_to(log: Log, channel: Channel) -> Log:
    """The log, with the records of a channel."""
    log.append([data for _, data in channel.entries], timeout_ms=TIMEOUT_MS)
    return log


OPEN: Final = ExitStack()
"""The logs of a test, which are closed after it."""


@pytest.fixture(autouse=True)
def _closes_logs() -> Iterator[None]:
    with OPEN:
        yield


def memory(name: str) -> MemoryLog:
    """A log in memory."""
    return OPEN.enter_context(closing(MemoryLog(name=f"memory:{name}")))


def sqlite(path: Path) -> SqliteLog:
    """A log in a file."""
    return OPEN.enter_context(closing(SqliteLog(str(path), name=f"sqlite:{path}")))


def imported(
    export: bytes | list[bytes], path: Path, *, ahead: int = AHEAD
) -> tuple[Imported, SqliteLog]:
    """What was said of an import into a new file, and the log that it made."""
    source = io.BytesIO(export if isinstance(export, bytes) else b"".join(export))
    done = import_to(f"sqlite:{path}", lines(source), file="the file", deadline=soon(), ahead=ahead)
    return done, sqlite(path)


def test_an_import_gives_the_same_log(tmp_path: Path) -> None:
    """Each entry stands at its offset with its bytes, gaps are where they were, and offsets go on
    far above.
    """
    channel = odd_channel()
    first = written_to(sqlite(tmp_path / "one.db"), channel)
    assert isinstance(first, SqliteLog)
    first.skip(1_000, timeout_ms=TIMEOUT_MS)
    first.append([b"behind the gap", b"and on"], timeout_ms=TIMEOUT_MS)
    first.skip(2_000, timeout_ms=TIMEOUT_MS)
    done, second = imported(list(exported(first)), tmp_path / "two.db")
    assert entries_of(first) == entries_of(second)
    assert (1_999 + AHEAD, first.start()) == (second.end(), second.start())
    assert restored_to_end(first).digest() == restored_to_end(second).digest()
    assert (True, len(channel.entries) + 2, 1_001) == (done.same, done.entries, done.offset)
    assert first.identity != second.identity
    assert [] == [path.name for path in tmp_path.iterdir() if ".part" in path.name]


def test_an_import_leaves_out_as_many_offsets_as_it_is_told(tmp_path: Path) -> None:
    """Whoever only looks at a history needs none of them."""
    first = written_to(memory("ahead"), odd_channel())
    _, second = imported(list(exported(first)), tmp_path / "two.db", ahead=0)
    assert first.end() == second.end()


def test_a_log_that_was_cut_off_is_carried_with_its_snapshot(tmp_path: Path) -> None:
    """Its verdicts begin at the snapshot's horizon; entries that are left from before are carried
    too.
    """
    first = written_to(memory("cut"), odd_channel())
    whole = restored_to_end(first)
    cut_off(first, horizon=8, below=5)
    export = [orjson.loads(line) for line in exported(first)]
    assert (5, 9) == (export[0]["start"], export[0]["folded_from"])
    entries = [line for line in export if "position" in line]
    assert [None, None, None, None, False] == [line["accepted"] for line in entries[:5]]
    _, second = imported(list(exported(first)), tmp_path / "two.db")
    assert entries_of(first) == entries_of(second)
    assert (5, whole.digest()) == (second.start(), restored_to_end(second).digest())
    # And so it is from there: an export of the import says the same, but of which log it is.
    assert list(exported(first))[2:-1] == list(exported(second))[2:-1]


def test_a_snapshot_of_a_log_that_is_whole_is_carried_too(tmp_path: Path) -> None:
    """There every record has its verdict all the same."""
    first = written_to(memory("whole"), odd_channel())
    cut_off(first, horizon=8, below=1)
    export = [orjson.loads(line) for line in exported(first)]
    assert 1 == export[0]["folded_from"]
    assert all(line["accepted"] is not None for line in export if "position" in line)
    _, second = imported(list(exported(first)), tmp_path / "two.db")
    assert second.compacted_snapshot().load() is not None
    assert restored_to_end(first).digest() == restored_to_end(second).digest()


def test_a_part_is_no_export(tmp_path: Path) -> None:
    """From an offset on only entries are given, and they cannot be imported."""
    first = written_to(memory("part"), odd_channel())
    part = list(exported(first, first=first.end() - 1))
    assert [first.end() - 1, first.end()] == [orjson.loads(line)["offset"] for line in part]
    with pytest.raises(OperatorError, match="only a part of one"):
        imported(part, tmp_path / "two.db")


def test_what_is_no_json_object_comes_in_base64() -> None:
    """A record stands as JSON where that gives the same bytes back, and in base64 where it would
    not.
    """
    first = written_to(memory("base64"), odd_channel())
    found = {orjson.loads(line)["data"] for line in exported(first) if "data" in orjson.loads(line)}
    assert set(ODD) - {'{"ä":1}'.encode()} == {b64decode(data) for data in found}


def test_a_copy_is_made_where_offsets_cannot_be_left_out() -> None:
    """There the new log begins with the view at the end of the export, above it."""
    first = written_to(memory("from"), odd_channel())
    second = memory("to")
    done = import_to(
        "memory:to", iter(list(exported(first))), file="the file", deadline=soon(), ahead=7
    )
    assert (False, first.end(), first.end() + 7) == (done.same, done.offset, done.base)
    assert digest_text(restored_to_end(first).digest()) == done.digest
    view = restored_to_end(second)
    assert (first.end() + 7, first.end() + 8) == (view.base, view.genesis)
    assert restored_to_end(first).bundles == view.bundles


def test_no_copy_is_made_of_a_closed_or_empty_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed log goes on in the copy that it was closed for, and no empty one is made; as a file
    it can be looked at.
    """
    channel = Channel()
    channel.genesis()
    channel.put(propose.close_log(channel.admin(), channel.view))
    first, empty = written_to(memory("closed"), channel), memory("empty")
    _, second = imported(list(exported(first)), tmp_path / "two.db")
    assert entries_of(first) == entries_of(second)
    monkeypatch.setattr(
        "equipoise.compaction.importing.open_log", lambda _: pytest.fail("no log is to be made")
    )
    with pytest.raises(LogClosed):
        import_to("memory:to", iter(list(exported(first))), file="the file", deadline=soon())
    with pytest.raises(LogNotBegun):
        import_to("memory:to", iter(list(exported(empty))), file="the file", deadline=soon())


@dataclass(frozen=True)
class Damage:
    """One way in which an export may be spoiled: `line` (from 0) has `old` replaced by `new`, or
    `cut` lines are left.
    """

    name: str
    problem: str
    line: int = 0
    old: bytes = b""
    new: bytes = b""
    cut: int | None = None


ALTERED = "the checksum of the lines above is another one"

DAMAGES = [
    Damage("empty", "line 1: the file ends here", cut=0),
    Damage(
        "cut off",
        "line 9: the file ends here, without the tail of an export: it was cut off",
        cut=8,
    ),
    Damage("no export", "line 1: it is no export of a channel", old=b'"channel"', new=b'"else"'),
    Damage(
        "another format",
        "line 1: it is of format 3, and this version reads formats 1 and 2",
        old=b'"format":2',
        new=b'"format":3',
    ),
    Damage("no offsets", "line 1: it does not name its log", old=b'"end"', new=b'"and"'),
    Damage("no JSON", "line 4: it cannot be read", line=3, old=b"{", new=b"\xff{"),
    Damage(
        "no object",
        "line 4: it is no JSON object",
        line=3,
        old=b'{"position":3',
        new=b'[]\n{"position":3',
    ),
    Damage("no position", "line 4: it is no entry", line=3, old=b"position", new=b"location"),
    Damage(
        "out of order",
        "line 4: position 2 is out of order",
        line=3,
        old=b'"position":3',
        new=b'"position":2',
    ),
    Damage(
        "beyond the end",
        "line 4: position 99 is out of order",
        line=3,
        old=b'"position":3',
        new=b'"position":99',
    ),
    Damage(
        "no record",
        "line 4: it has neither record nor data",
        line=3,
        old=b'"record"',
        new=b'"recall"',
    ),
    Damage("no base64", "its data are not base64", line=9, old=b'"data":"', new=b'"data":"*'),
    Damage(
        "another verdict",
        "line 4: it promises accepted False",
        line=3,
        old=b'"accepted":true',
        new=b'"accepted":false',
    ),
    Damage(
        "another record",
        "line 3: it promises accepted True",
        line=2,
        old=b'"key":"a"',
        new=b'"key":"b"',
    ),
    Damage(
        "another offset",
        "line 4: it promises offset 4",
        line=3,
        old=b'"offset":3',
        new=b'"offset":4',
    ),
    Damage(
        "another number", "but its content has", line=-1, old=b'"entries":1', new=b'"entries":2'
    ),
    Damage(
        "another digest", "it promises digest", line=-1, old=b'"digest":"0x', new=b'"digest":"0x0'
    ),
    Damage("another lease", ALTERED, line=2, old=b'"lease_ms":', new=b'"lease_ms":1'),
    Damage("another time", ALTERED, line=3, old=b'"record":{', new=b'"record":{"timestamp_ms":1,'),
    Damage("another cluster's log", ALTERED, old=b'"log":"memory:', new=b'"log":"kafka://'),
    Damage("another checksum", ALTERED, line=-1, old=b'"sha256":"', new=b'"sha256":"0'),
    Damage("no checksum", ALTERED, line=-1, old=b'"sha256":', new=b'"sha512":'),
    Damage(
        "snapshot without marker",
        "the snapshot has no marker",
        line=1,
        old=b'{"position":1',
        new=b'{"twin":"level","row":{},"position":1',
    ),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_a_damaged_export_is_refused(damage: Damage, tmp_path: Path) -> None:
    """The error names the line and what is wrong, and no log is made."""
    log = written_to(memory("damaged"), odd_channel())
    export = list(exported(log))
    if damage.cut is not None:
        export = export[: damage.cut]
    else:
        assert damage.old in export[damage.line]
        export[damage.line] = export[damage.line].replace(damage.old, damage.new, 1)
    with pytest.raises(OperatorError) as caught:
        imported(export, tmp_path / "two.db")
    assert damage.problem in str(caught.value)
    assert [] == list(tmp_path.iterdir())


def test_what_stands_behind_the_end_is_refused(tmp_path: Path) -> None:
    """Two exports in one file are none."""
    log = written_to(memory("twice"), odd_channel())
    with pytest.raises(OperatorError, match="there are lines after the end"):
        imported([*exported(log), *exported(log)], tmp_path / "two.db")


@pytest.mark.parametrize("below", [5, 1], ids=["cut", "whole"])
def test_an_altered_snapshot_is_refused(below: int, tmp_path: Path) -> None:
    """What a log is folded from is proven before; of a whole one, too, since whoever starts on the
    new log begins with it.
    """
    log = written_to(memory(f"twin-{below}"), odd_channel())
    cut_off(log, horizon=8, below=below)
    export = [
        line.replace(b'"status":"up"', b'"status":"left"') if b'"twin"' in line else line
        for line in exported(log)
    ]
    with pytest.raises(OperatorError, match="does not match its checksum"):
        imported(export, tmp_path / "two.db")


def test_a_damaged_snapshot_of_a_whole_log_is_left_out(tmp_path: Path) -> None:
    """The export can be imported all the same, since every record is in it."""
    first = written_to(memory("left-out"), odd_channel())
    cut_off(first, horizon=8, below=1)
    image = first.compacted_snapshot().load()
    assert image is not None
    assert "broker:a" in image.rows
    first.compacted_snapshot().claim(timeout_ms=TIMEOUT_MS)
    first.compacted_snapshot().replace(
        [SnapshotRow("broker:a", b"{}")], image.marker, timeout_ms=TIMEOUT_MS
    )
    _, second = imported(list(exported(first)), tmp_path / "two.db")
    assert second.compacted_snapshot().load() is None
    assert restored_to_end(first).digest() == restored_to_end(second).digest()


def test_a_log_that_is_cut_while_its_export_begins_is_not_exported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the verdicts were to begin with is gone by then; the next try begins with what is
    there.
    """
    log = written_to(memory("meanwhile"), odd_channel())
    begun = beginning(log)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(exporting, "beginning", lambda *_, **__: begun)
        cut_off(log, horizon=8, below=5)
        with pytest.raises(LogTruncated):
            list(exported(log))
    assert 5 == orjson.loads(next(exported(log)))["start"]


def test_an_export_without_a_checksum_is_read(tmp_path: Path) -> None:
    """Backups that an earlier version made are still good; one that has a checksum is held to
    it.
    """
    log = written_to(memory("format-1"), odd_channel())
    export = [orjson.loads(line) for line in exported(log)]
    export[0]["format"] = 1
    promised = export[-1].pop("sha256")
    imported([orjson.dumps(line) + b"\n" for line in export], tmp_path / "two.db")
    export[-1]["sha256"] = promised
    with pytest.raises(OperatorError, match=ALTERED):
        imported([orjson.dumps(line) + b"\n" for line in export], tmp_path / "three.db")


def test_digests_are_compared_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many entries a line has the digest there, so that damage is known near to where it
    is.
    """
    monkeypatch.setattr(exporting, "DIGEST_INTERVAL", 4)
    log = written_to(memory("digests"), odd_channel())
    export = list(exported(log))
    assert b'"digest"' in export[4]
    with pytest.raises(OperatorError, match="line 5: it promises digest"):
        imported(
            [*export[:4], export[4].replace(b'"digest":"0x', b'"digest":"0x1', 1), *export[5:]],
            tmp_path / "two.db",
        )


def test_nothing_is_imported_over_a_log(tmp_path: Path) -> None:
    """What is there stays as it is."""
    log = written_to(memory("over"), odd_channel())
    (tmp_path / "two.db").write_bytes(b"something")
    with pytest.raises(CallerError, match="nothing can be copied to"):
        imported(list(exported(log)), tmp_path / "two.db")
    assert b"something" == (tmp_path / "two.db").read_bytes()
    with pytest.raises(CallerError, match="nothing can be copied to"):
        import_to(log.name, iter(list(exported(log))), file="the file", deadline=soon())


def test_an_import_has_a_deadline(tmp_path: Path) -> None:
    """One that takes too long makes no log."""
    log = written_to(memory("late"), odd_channel())
    export = iter(list(exported(log)))
    with pytest.raises(DeadlineExceeded):
        import_to(
            f"sqlite:{tmp_path}/two.db",
            export,
            file="the file",
            deadline=Deadline.after(timeout_ms=0),
        )
    assert [] == list(tmp_path.iterdir())


def test_compressed_lines_are_the_same_lines() -> None:
    """Whether a file is compressed is told by its first bytes, also of one that is read piece by
    piece.
    """
    export = [b"%d %s\n" % (number, b"x" * (number % 100)) for number in range(5_000)]
    file = io.BytesIO()
    with written(file, compressed=True) as stream:
        for line in export:
            stream.write(line)
    packed = file.getvalue()
    assert len(packed) < len(b"".join(export)) / 5
    for data in (packed, b"".join(export)):
        assert export == list(lines(io.BytesIO(data)))
        assert export == list(lines(io.BufferedReader(Pipe(data))))
    assert [] == list(lines(io.BytesIO(b"")))


class Pipe(io.RawIOBase):
    """A stream that gives few bytes at once, and cannot be turned back."""

    def __init__(self, data: bytes) -> None:
        self._rest = data

    def readable(self) -> bool:
        return True

    # Of all buffers only this one is ever given.
    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece, self._rest = self._rest[: min(3, len(buffer))], self._rest[min(3, len(buffer)) :]
        buffer[: len(piece)] = piece
        return len(piece)


@pytest.mark.parametrize("spoil", ["cut", "flip"])
def test_a_damaged_compressed_file_is_refused(spoil: str, tmp_path: Path) -> None:
    """One that was cut off, or altered, ends in the same error as lines that are none."""
    log = written_to(memory("zstd"), odd_channel())
    file = io.BytesIO()
    with written(file, compressed=True) as stream:
        for line in exported(log):
            stream.write(line)
    packed = bytearray(file.getvalue())
    if spoil == "cut":
        del packed[len(packed) // 2 :]
    else:
        packed[len(packed) // 2] ^= 0xFF
    with pytest.raises(OperatorError, match="cannot be imported"):
        imported(bytes(packed), tmp_path / "two.db")
    assert [] == list(tmp_path.iterdir())


@given(st.integers(0, 2**32), st.integers(1, 120), st.data())
@settings(deadline=None, max_examples=25)
def test_any_log_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, seed: int, length: int, data: st.DataObject
) -> None:
    """Whatever stands on a log, whole or cut off, an import has all of it, and comes to the same
    view.
    """
    folder = tmp_path_factory.mktemp("any")
    walk = Walk(seed)
    records = [walk.step()[1] for _ in range(length)]
    first = memory(f"any-{folder.name}")
    first.append(records, timeout_ms=TIMEOUT_MS)
    genesis = restored_to_end(first).genesis
    if genesis is not None and data.draw(st.booleans()):
        horizon = data.draw(st.integers(genesis, length))
        cut_off(first, horizon=horizon, below=data.draw(st.integers(1, horizon + 1)))
    _, second = imported(list(exported(first)), folder / "two.db")
    assert entries_of(first) == entries_of(second)
    assert restored_to_end(first).digest() == restored_to_end(second).digest()


def test_an_encoded_record_is_exact() -> None:
    """What our own code writes always stands as JSON: nobody reads base64 by eye."""
    log = written_to(memory("exact"), channel_with("a", bundles=2))
    assert all("data" not in orjson.loads(line) for line in exported(log))
