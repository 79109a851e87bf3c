"""Recorded channels: files and exports that former versions wrote, opened and folded again by
today's code.
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import BrokerChanged
from equipoise.channel.core.errors import LogClosed
from equipoise.channel.core.log import FIRST_OFFSET, READ_ENTRIES_MAX, Entry
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import LevelRecord
from equipoise.channel.snapshots.restore import earliest, restored
from equipoise.channel.sqlite.log import SqliteLog
from equipoise.compaction.exporting import digest_text
from equipoise.compaction.importing import Export, import_to
from tests.channels.carried import entries_of, soon

FOLDER = Path(__file__).resolve().parent / "level_1"
EXPORTS = sorted(path.name.removesuffix(".export.gz") for path in FOLDER.glob("*.export.gz"))


def export_of(name: str) -> Export:
    """An export, none of whose entries have been read yet."""
    return Export(
        iter(gzip.decompress((FOLDER / f"{name}.export.gz").read_bytes()).splitlines()), file=name
    )


def file_of(name: str, folder: Path) -> SqliteLog:
    """A log as it was recorded, in a folder of its own."""
    path = folder / f"{name}.db"
    path.write_bytes(gzip.decompress((FOLDER / f"{name}.db.gz").read_bytes()))
    return SqliteLog(str(path), name=f"sqlite:{path}", create=False)


def digest_at_end(log: SqliteLog, reader: Reader) -> str:
    """The digest to which a reader of a log comes, at its end or where it was closed."""
    while entries := log.read(reader.position, limit=READ_ENTRIES_MAX):
        for entry in entries:
            try:
                reader.feed(entry)
            except LogClosed:
                return digest_text(reader.view.digest())
    return digest_text(reader.view.digest())


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_keeps_its_verdicts_and_digests(name: str) -> None:
    """The reader of exports compares each verdict, each digest on the way, and the one at the
    end.
    """
    export = export_of(name)
    assert 0 < sum(1 for _ in export.entries()) == export.count


@pytest.mark.parametrize("name", EXPORTS)
def test_a_file_is_restored_to_what_it_was(name: str, tmp_path: Path) -> None:
    """From its snapshot or from zero, a recorded file comes to the digest with which its export
    ends.
    """
    export = export_of(name)
    entries = list(export.entries())
    log = file_of(name, tmp_path)
    assert entries == entries_of(log)
    assert (
        digest_text(export.view.digest())
        == digest_at_end(log, restored(log))
        == digest_at_end(log, earliest(log))
    )
    log.close()


@pytest.mark.parametrize("name", EXPORTS)
def test_an_import_comes_to_what_it_was(name: str, tmp_path: Path) -> None:
    """An export that a former version wrote makes a log whose brokers know what they knew."""
    lines = gzip.decompress((FOLDER / f"{name}.export.gz").read_bytes()).splitlines()
    done = import_to(f"sqlite:{tmp_path}/new.db", iter(lines), file=name, deadline=soon())
    log = SqliteLog(str(tmp_path / "new.db"), name="sqlite:new.db", create=False)
    assert done.digest == digest_at_end(log, restored(log))
    log.close()


def test_a_file_of_format_1_is_brought_up(tmp_path: Path) -> None:
    """A file that was written before there were times and snapshots holds the same channel after it
    was opened, and once more after.
    """
    export = export_of("recorded")
    entries = list(export.entries())
    file_of("format_1", tmp_path).close()
    for _ in range(2):
        log = SqliteLog(str(tmp_path / "format_1.db"), name="sqlite:format_1.db", create=False)
        assert entries == entries_of(log)
        assert digest_text(export.view.digest()) == digest_at_end(log, restored(log))
        assert FIRST_OFFSET == log.position_at(0)
        log.close()


def test_the_recorded_channel_is_worth_keeping() -> None:
    """It holds deaths, drains, splits, merges, lost races and garbage; the others what was made of
    it.
    """
    export = export_of("recorded")
    reader = Reader(log="recorded")
    found: Counter[str] = Counter()
    for entry in export.entries():
        folded = reader.feed(Entry(entry.offset, entry.data))
        found[f"{type(folded.record).__name__} {folded.verdict.reason or 'accepted'}"] += 1
        found["death"] += sum(
            isinstance(change, BrokerChanged) and change.dead is not None
            for change in folded.verdict.changes
        )
    wanted = {
        "Split accepted",
        "Merge accepted",
        "BrokerRecord accepted",
        "NamespaceRecord accepted",
        "PolicyRecord accepted",
        "death",
    }
    assert set() == (
        wanted | {"Unreadable malformed", "BundleTransition stale", "Renewed late"}
    ) - {*+found}
    copied, compacted = export_of("copied"), export_of("compacted")
    assert copied.image is not None
    assert compacted.image is not None
    assert (FIRST_OFFSET, FIRST_OFFSET) == (copied.head.start, copied.head.folded_from)
    assert FIRST_OFFSET < compacted.head.start < compacted.head.folded_from < compacted.head.end
    floored = export_of("floored")
    assert FIRST_OFFSET < floored.head.start == floored.head.folded_from < floored.head.end
    closed = export_of("closed")
    assert list(closed.entries())[:-1]
    assert closed.is_closed
    closed_for = export_of("closed_for")
    *_, last = closed_for.entries()
    record = decode(last.data)
    assert isinstance(record, LevelRecord)
    assert (1, 2, "sqlite:new.db", 32) == (
        closed.head.format,
        closed_for.head.format,
        record.copied_to,
        len(record.copied_to_identity or ""),
    )
