"""Logs for tests of what is carried from one to another: with a snapshot, cut off, closed."""

from __future__ import annotations

from collections import Counter

from equipoise.channel.core.errors import LogClosed
from equipoise.channel.core.log import FIRST_OFFSET, READ_ENTRIES_MAX, Entry, Log
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.restore import earliest
from equipoise.channel.snapshots.snapshot_rows import encode_marker, marker_of, rows_of
from equipoise.channel.sqlite.log import SqliteLog
from equipoise.channel.system.clocks import Deadline

TIMEOUT_MS = 5_000


def soon() -> Deadline:
    """A deadline that no test meets."""
    return Deadline.after(timeout_ms=60_000)


def entries_of(log: Log, position: int | None = None) -> list[Entry]:
    """All entries from a position on, by default all that are left."""
    entries: list[Entry] = []
    position = log.start() if position is None else position
    while found := log.read(position, limit=READ_ENTRIES_MAX):
        entries += found
        position = found[-1].offset + 1
    return entries


def cut_off(log: Log, *, horizon: int, below: int) -> View:
    """Give a whole log a snapshot of its view at physical offset `horizon`, and truncate it below
    `below`; that view.
    """
    reader = Reader(log=log.name)
    for entry in log.read(FIRST_OFFSET, limit=READ_ENTRIES_MAX):
        if entry.offset <= horizon:
            reader.feed(entry)
    compacted_snapshot = log.compacted_snapshot()
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    compacted_snapshot.replace(
        rows_of(reader.view, -1),
        encode_marker(marker_of(reader.view, log=log.identity)),
        timeout_ms=TIMEOUT_MS,
    )
    log.truncate(below, timeout_ms=TIMEOUT_MS)
    return reader.view


def digest_at_end(log: Log, reader: Reader) -> str:
    """The digest to which a reader of a log comes, at its end or where it was closed."""
    while entries := log.read(reader.position, limit=READ_ENTRIES_MAX):
        for entry in entries:
            try:
                reader.feed(entry)
            except LogClosed:
                return f"0x{reader.view.digest():016x}"
    return f"0x{reader.view.digest():016x}"


def outcome_of(log: Log) -> dict[str, object]:
    """What all that is left of a log comes to: the number of its entries, the verdicts, and the
    digest at its end.
    """
    reader, verdicts = earliest(log), Counter[str]()
    entries = entries_of(log)
    for entry in entries:
        if entry.offset >= reader.position:
            try:
                verdicts[reader.feed(entry).verdict.reason or "accepted"] += 1
            except LogClosed:
                verdicts["closed"] += 1
                break
    return {
        "entries": len(entries),
        "verdicts": dict(sorted(verdicts.items())),
        "digest": f"0x{reader.view.digest():016x}",
    }


def leave_out(log: SqliteLog, below: int) -> None:
    """Let a log issue no offsets below `below` from now on."""
    connection = log._storage.connection  # noqa: SLF001 - a log leaves out none on demand
    connection.execute("UPDATE log SET end_offset = max(end_offset, ?)", (below - 1,))
