"""A channel as lines of JSON, of which each byte can be had back: for backups, for audits, for other programs.

May live here: the format, and how it is made of a log. It is read by `importing`; files and compression are `compressed`'s.

The lines
1. A head: `{"equipoise": "channel", "format": 2, "log", "identity", "cluster", "base", "start", "end", "folded_from"}`; offsets
   are physical, and verdicts begin at `folded_from`.
2. The rows of the log's snapshot, if it has one; of its history snapshot, if the log is replayed from there:
   `{"twin": KEY, "row": {...}}`, the marker first, under the key `marker`.
3. An entry per line: its physical `position`, its logical `offset`, the `record`, and the verdict: `accepted`, `reason`,
   `problem`. Where `record`, spelled without blanks, is not byte for byte what stands on the log (it is no JSON, or spelled
   in another way), it is null and `data` has the bytes in base64. Entries from before its horizon, of which there is no
   verdict any more, have `accepted` null. Every `DIGEST_INTERVAL` entries a line has the `digest` of the view after it.
4. A tail: `{"entries": count, "offset": the last logical one, "digest", "sha256"}`. An export without its tail is cut off. The
   checksum is that of all lines above, since not all that stands in them is in a digest: policies, addresses, times.

Digests are texts in hexadecimal, since not every reader of JSON has numbers of 61 bits. Format 1, which is still read because
backups outlive versions, is the same without the checksum.
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
from equipoise.channel.core.snapshot_store import Check, CompactedSnapshot, Progress, unchecked, unwatched
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.restore import beginning
from equipoise.channel.snapshots.snapshot_rows import MARKER_KEY, decode_marker, encode_marker, view_of

FORMAT: Final = 2
FORMAT_WITHOUT_CHECKSUM: Final = 1
DIGEST_INTERVAL: Final = 10_000

Line = dict[str, object]


def exported(log: Log, *, first: int = 0, check: Check = unchecked, progress: Progress = unwatched) -> Iterator[bytes]:
    """The lines of an export of all that is on the log now; with `first` only the entries from that logical offset on.

    A part, made with `first`, has neither head nor snapshot nor tail, and cannot be imported. `progress` counts entries.

    Raises `LogTruncated` if the log is compacted meanwhile, what `beginning` and the ports raise, and what `check` raises.
    """
    reader, image = _beginning(log, check)
    start, end = log.start(), log.end()
    if start > reader.position:  # A compactor passed in between, and there would be a gap.
        raise LogTruncated(log=log.name, position=reader.position, start=start)
    checksum = Checksum()
    if not first:
        yield checksum.of(_line(_head(log, reader, start, end)))
        for row in _compacted_snapshot(image):
            yield checksum.of(row)
    count = 0
    for count, (entry, line) in enumerate(_entries(log, reader, start, end, check), start=1):
        if not count % DIGEST_INTERVAL:
            line["digest"] = spelled(reader.view.digest())
            progress(entry.offset - start, end + 1 - start)
        if entry.offset + reader.view.base >= first:
            yield checksum.of(_line(line))
    if not first:
        digest = spelled(reader.view.digest())
        yield _line({"entries": count, "offset": reader.view.offset, "digest": digest, "sha256": checksum.spelled()})


class Checksum:
    """The checksum of lines, which says of all of them that none was altered, left out, or put in another place."""

    def __init__(self) -> None:
        self._sum = sha256()

    def of(self, line: bytes) -> bytes:
        """The line, which now counts. Whether it still has its line end does not matter."""
        self._sum.update(line if line.endswith(b"\n") else line + b"\n")
        return line

    def spelled(self) -> str:
        """The checksum as the tail has it."""
        return self._sum.hexdigest()


def spelled(digest: int) -> str:
    """A digest as lines have it."""
    return f"0x{digest:016x}"


def begins_with(image: CompactedSnapshot, folded_from: int) -> bool:
    """Whether an export whose verdicts begin at the physical offset `folded_from` begins with the view of this snapshot.

    Where the log is whole they begin at its first record, also if it has a snapshot; of a copy that is the snapshot's position, too.
    Raises `CompactedSnapshotDamaged`.
    """
    return decode_marker(image.marker).position == folded_from


def _beginning(log: Log, check: Check) -> tuple[Reader, CompactedSnapshot | None]:
    """Where the fold of an export begins, and the image that goes into it as the snapshot: what it begins with, unless the log is whole."""
    begun = beginning(log, check=check)
    if begun.marker is None:
        return begun.reader, _snapshot_of(log, check)
    return begun.reader, CompactedSnapshot(marker=encode_marker(begun.marker), rows=begun.rows)


def _snapshot_of(log: Log, check: Check) -> CompactedSnapshot | None:
    """The log's snapshot, unless it is of no use: one that is damaged, or that a former log of this name left behind."""
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


def _entries(log: Log, reader: Reader, start: int, end: int, check: Check) -> Iterator[tuple[Entry, Line]]:
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
    line: Line = {"position": entry.offset, "offset": entry.offset + view.base, **_exact(entry.data, "record")}
    line["accepted"] = None if verdict is None else verdict.accepted
    line["reason"] = None if verdict is None else verdict.reason
    line["problem"] = None if verdict is None else verdict.problem
    return line


def _exact(data: bytes, name: str) -> Line:
    """`data` as JSON under `name`, if that gives the same bytes back; otherwise in base64 beside it."""
    try:
        value = orjson.loads(data)
        if type(value) is dict and orjson.dumps(value) == data:
            return {name: value}
    except (ValueError, TypeError):  # Not JSON, or JSON that cannot be spelled again, as an integer of 65 bits.
        pass
    return {name: None, "data": b64encode(data).decode()}


def _line(line: Line) -> bytes:
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
