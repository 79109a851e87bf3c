"""Export a channel as lines of JSON that preserve every byte: for backups, audits and other
programs.

`importing` reads the format; `compressed` handles files and compression.

The lines
1. A head: `{"equipoise": "channel", "format": 2, "log", "identity", "cluster", "base", "start",
   "end", "folded_from"}`. Offsets are physical, and verdicts begin at `folded_from`.
2. The rows of the log's compacted snapshot, if it has one, or of its history snapshot, if the fold
   begins there: `{"twin": KEY, "row": {...}}`. The marker comes first, under the key `marker`.
3. One line per entry: its physical `position`, its logical `offset`, the `record`, and the verdict
   (`accepted`, `reason`, `problem`).
   * If `record`, written without blanks, does not give the bytes on the log, it is null and `data`
     has the bytes in base64.
   * Entries below the start of the fold have no verdict: `accepted` is null.
   * Every `DIGEST_INTERVAL` entries a line has the `digest` of the view after it.
4. A tail: `{"entries": count, "offset": the last logical one, "digest", "sha256"}`. An export
   without a tail is cut off. The checksum covers all lines above, because no digest covers
   policies, addresses and times.

Digests are hexadecimal texts, because not every JSON reader supports numbers of 61 bits. Format 1
is the same without the checksum. It is still read, because backups outlive versions.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import orjson

from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.errors import CompactedSnapshotDamaged, LogClosed, LogTruncated
from equipoise.channel.core.log import READ_ENTRIES_MAX, Entry, Log
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.snapshot_store import (
    Check,
    CompactedSnapshot,
    Progress,
    unchecked,
    unwatched,
)
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.restore import beginning
from equipoise.channel.snapshots.snapshot_rows import (
    MARKER_KEY,
    decode_marker,
    encode_marker,
    view_of,
)

FORMAT: Final = 2
FORMAT_WITHOUT_CHECKSUM: Final = 1
DIGEST_INTERVAL: Final = 10_000

Line = dict[str, object]


def exported(
    log: Log, *, first: int = 0, check: Check = unchecked, progress: Progress = unwatched
) -> Iterator[bytes]:
    """Yield the lines of an export of the log as it is now.

    With `first` yield only the entries from that logical offset on. Such a part has no head,
    snapshot or tail, and cannot be imported. `progress` counts entries.

    Raises `LogTruncated` if the log is compacted meanwhile, and what `check`, `beginning` and the
    ports raise.
    """
    reader, image = _beginning(log, check)
    start, end = log.start(), log.end()
    if start > reader.position:  # A compaction in between would leave a gap.
        raise LogTruncated(log=log.name, position=reader.position, start=start)
    checksum = Checksum()
    if not first:
        yield checksum.of(_line(_head(log, reader, start, end)))
        for row in _compacted_snapshot(image):
            yield checksum.of(row)
    count = 0
    for count, (entry, line) in enumerate(_entries(log, reader, start, end, check), start=1):
        if not count % DIGEST_INTERVAL:
            line["digest"] = digest_text(reader.view.digest())
            progress(entry.offset - start, end + 1 - start)
        if entry.offset + reader.view.base >= first:
            yield checksum.of(_line(line))
    if not first:
        digest = digest_text(reader.view.digest())
        yield _line(
            {
                "entries": count,
                "offset": reader.view.offset,
                "digest": digest,
                "sha256": checksum.text(),
            }
        )


class Checksum:
    """The checksum of lines. It shows that none was altered, left out or moved."""

    def __init__(self) -> None:
        self._sum = sha256()

    def of(self, line: bytes) -> bytes:
        """Add a line and return it. Its line end does not matter."""
        self._sum.update(line if line.endswith(b"\n") else line + b"\n")
        return line

    def text(self) -> str:
        """Return the checksum as the tail has it."""
        return self._sum.hexdigest()


def digest_text(digest: int) -> str:
    """Return a digest as lines have it."""
    return f"0x{digest:016x}"


def begins_with(image: CompactedSnapshot, folded_from: int) -> bool:
    """Return whether an export with verdicts from physical offset `folded_from` on begins with this
    snapshot's view.

    Verdicts of a whole log begin at its first record, even if it has a snapshot; those of a copy
    begin at the snapshot's position. Raises `CompactedSnapshotDamaged`.
    """
    return decode_marker(image.marker).position == folded_from


def _beginning(log: Log, check: Check) -> tuple[Reader, CompactedSnapshot | None]:
    """Return the reader of an export, and its snapshot: the fold's start or, of a whole log, the
    compacted one.
    """
    begun = beginning(log, check=check)
    if begun.marker is None:
        return begun.reader, _snapshot_of(log, check)
    return begun.reader, CompactedSnapshot(marker=encode_marker(begun.marker), rows=begun.rows)


def _snapshot_of(log: Log, check: Check) -> CompactedSnapshot | None:
    """Return the log's snapshot. None if it is damaged, or belongs to a former log of this name."""
    try:
        image = log.compacted_snapshot().load(check=check)
        if image is None or decode_marker(image.marker).log != log.identity:
            return None
        view_of(image, check=check)
    except CompactedSnapshotDamaged:
        return None
    return image


def _head(log: Log, reader: Reader, start: int, end: int) -> Line:
    return {
        "equipoise": "channel",
        "format": FORMAT,
        "log": log.name,
        "identity": log.identity,
        "cluster": reader.view.cluster,
        "base": reader.view.base,
        "start": start,
        "end": end,
        "folded_from": reader.position,
    }


def _compacted_snapshot(image: CompactedSnapshot | None) -> Iterator[bytes]:
    if image is not None:
        yield _line({"twin": MARKER_KEY, **_exact(image.marker, "row")})
        for key in sorted(image.rows):
            yield _line({"twin": key, **_exact(image.rows[key], "row")})


def _entries(
    log: Log, reader: Reader, start: int, end: int, check: Check
) -> Iterator[tuple[Entry, Line]]:
    position = start
    is_closed = False
    while entries := log.read(position, limit=READ_ENTRIES_MAX):
        check()
        for entry in entries:
            if entry.offset > end:
                return
            verdict: Verdict | None = None
            if entry.offset >= reader.position and not is_closed:
                try:
                    verdict = reader.feed(entry).verdict
                except LogClosed:
                    verdict, is_closed = Verdict(), True
            yield entry, _entry(entry, reader.view, verdict)
        position = entries[-1].offset + 1


def _entry(entry: Entry, view: View, verdict: Verdict | None) -> Line:
    line: Line = {
        "position": entry.offset,
        "offset": entry.offset + view.base,
        **_exact(entry.data, "record"),
    }
    line["accepted"] = None if verdict is None else verdict.accepted
    line["reason"] = None if verdict is None else verdict.reason
    line["problem"] = None if verdict is None else verdict.problem
    return line


def _exact(data: bytes, name: str) -> Line:
    """Return `data` as JSON under `name` if that preserves its bytes, else in base64 under
    `data`.
    """
    try:
        value = orjson.loads(data)
        if type(value) is dict and orjson.dumps(value) == data:
            return {name: value}
    except (ValueError, TypeError):
        # Not JSON, or JSON that cannot be written again, such as an integer of 65 bits.
        pass
    return {name: None, "data": b64encode(data).decode()}


def _line(line: Line) -> bytes:
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
