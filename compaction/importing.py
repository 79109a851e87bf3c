"""Import an export: fold it again, compare it with its digests and checksum, and make a new log.

* Where the storage can leave out offsets (SQLite), the new log is equal: each entry with its bytes
  at its physical offset, and the snapshot. It takes its name once it is whole.
* Elsewhere (Kafka) the new log is a copy of the channel at the end of the export (`copying`): a
  snapshot, and a genesis whose base lies above that end. The records stay in the file.

In both cases offsets go on `ahead` of the export's end: the original log may have issued later
offsets, and no token may be issued twice. An import does not close the original log: the operator
must make sure that nobody goes on with it.
"""

from __future__ import annotations

import os
import uuid
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from equipoise.channel.core.errors import (
    CompactedSnapshotDamaged,
    LogClosed,
    LogDamaged,
    LogNotBegun,
    LogUnavailable,
    OperatorError,
)
from equipoise.channel.core.log import (
    BATCH_BYTES_MAX,
    BATCH_ENTRIES_MAX,
    RECORD_BYTES_MAX,
    Entry,
    Log,
    Skipping,
)
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.channel.core.snapshot_store import (
    CompactedSnapshot,
    Progress,
    SnapshotRow,
    unwatched,
)
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import log_path, open_log
from equipoise.channel.snapshots.snapshot_rows import (
    MARKER_KEY,
    decode_marker,
    encode_marker,
    view_of,
)
from equipoise.channel.sqlite.file import sync_folder, usable_path
from equipoise.channel.system.deadline import Deadline
from equipoise.compaction.copying import begin_above, empty_target, not_empty
from equipoise.compaction.exporting import (
    FORMAT,
    FORMAT_WITHOUT_CHECKSUM,
    Checksum,
    Line,
    begins_with,
    digest_text,
)

AHEAD: Final = 1_000_000_000
"""Offsets left out above the end of an export by default. It must exceed what the original log
issued since: at 1,000 records/s it covers eleven days. Nine billion such restores are possible."""

OFFSET_MAX: Final = INTEGER_MAX // 4
"""The limit of an export's end, of its base, and of `ahead`: their sum leaves room for a channel's
life."""

ENTRIES_BETWEEN_LOOKS: Final = 1_000
"""Entries between two checks of the deadline: some 20 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of an import: the number of checked entries, and their `digest` at logical
    `offset`.

    `same`: the new log has all entries at their offsets. Otherwise it is a copy above `base`.
    """

    cluster: str | None
    entries: int
    offset: int
    digest: str
    same: bool
    base: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of an export. `identity` is the log's. `start`, `end` and `folded_from`, where its
    verdicts begin, are physical offsets.
    """

    format: int
    log: str
    identity: str
    start: int
    end: int
    folded_from: int


class Export:
    """An export, read line by line: `head` and `image` first, then `entries`, whose end completes
    the check.

    Then `count`, `offset` and `digest` are those of the tail. `is_closed`: the last record closed
    the log.
    """

    def __init__(self, lines: Iterator[bytes], *, file: str) -> None:
        """`file` is its name for messages. Raises `OperatorError` for other content."""
        self._lines = lines
        self.file = file
        self._number = 0
        self._checksum = Checksum()  # Of all lines above the one read last.
        self._last = b""
        self.head = self._read_head()
        self._next: Line = self._read()
        self.image = self._read_snapshot()
        self._reader = Reader(log=file, view=self._first_view())
        self.count = 0
        self.offset = -1
        self.digest = ""
        self.is_closed = False

    @property
    def view(self) -> View:
        """The view after the entries yielded so far."""
        return self._reader.view

    def entries(self) -> Iterator[Entry]:
        """Yield its entries, each folded first; then compare the tail. Raises `OperatorError`."""
        last = self.head.start - 1
        while "entries" not in self._next:
            entry = self._entry(self._next)
            if not last < entry.offset <= self.head.end:
                raise self._refusal(f"position {entry.offset} is out of order")
            last = entry.offset
            self.count += 1
            self._fold(entry, self._next)
            yield entry
            self._next = self._read()
        self.offset, self.digest = self.view.offset, digest_text(self.view.digest())
        self._compare("entries", self.count, self._next)
        self._compare("offset", self.offset, self._next)
        self._compare("digest", self.digest, self._next)
        promised = self._next.get("sha256")
        if promised != self._checksum.text() and not (
            promised is None and self.head.format == FORMAT_WITHOUT_CHECKSUM
        ):
            raise self._refusal(
                "the checksum of the lines above is another one: some of them are not as they were"
                " exported"
            )
        self._number += 1
        if next(self._lines, None) is not None:
            raise self._refusal("there are lines after the end")

    def _fold(self, entry: Entry, line: Line) -> None:
        if entry.offset >= self._reader.position and not self.is_closed:
            try:
                verdict = self._reader.feed(entry).verdict
                self._compare("accepted", verdict.accepted, line)
                self._compare("reason", verdict.reason, line)
            except LogClosed:
                self.is_closed = True
        self._compare("offset", entry.offset + self.view.base, line)
        if "digest" in line:
            self._compare("digest", digest_text(self.view.digest()), line)

    def _read_head(self) -> Head:
        line = self._read()
        if line.get("equipoise") != "channel":
            raise self._refusal(
                "it is no export of a channel, or only a part of one (made with --from)"
            )
        if line.get("format") not in (FORMAT_WITHOUT_CHECKSUM, FORMAT):
            known = f"{FORMAT_WITHOUT_CHECKSUM} and {FORMAT}"
            raise self._refusal(
                f"it is of format {line.get('format')!r}, and this version reads formats {known}"
            )
        match line:
            case {
                "format": int(form),
                "log": str(log),
                "identity": str(identity),
                "start": int(start),
                "end": int(end),
                "folded_from": int(folded_from),
            } if (
                0 < start <= folded_from <= end + 1 <= OFFSET_MAX
                and identity.isascii()
                and identity.isprintable()
            ):
                return Head(
                    format=form,
                    log=log,
                    identity=identity,
                    start=start,
                    end=end,
                    folded_from=folded_from,
                )
        raise self._refusal("it does not name its log and its range of offsets")

    def _read_snapshot(self) -> CompactedSnapshot | None:
        rows: dict[str, bytes] = {}
        while "twin" in self._next:
            rows[str(self._next["twin"])] = self._data(self._next, "row")
            self._next = self._read()
        marker = rows.pop(MARKER_KEY, None)
        if marker is None and rows:
            raise self._refusal("the snapshot has no marker")
        return None if marker is None else CompactedSnapshot(marker=marker, rows=rows)

    def _first_view(self) -> View | None:
        """Return the view of the snapshot if the verdicts begin with it. Check the snapshot in any
        case.
        """
        if self.image is None:
            return None
        try:
            view = view_of(self.image)
            return view if begins_with(self.image, self.head.folded_from) else None
        except CompactedSnapshotDamaged as error:
            raise self._refusal(f"its snapshot cannot be used: {error.problem}") from error

    def _entry(self, line: Line) -> Entry:
        position = line.get("position")
        if type(position) is not int:
            raise self._refusal("it is no entry: it has no position")
        data = self._data(line, "record")
        if len(data) > RECORD_BYTES_MAX:
            raise self._refusal(
                f"its record has {len(data)} bytes, and a log takes at most {RECORD_BYTES_MAX}"
            )
        return Entry(position, data)

    def _data(self, line: Line, name: str) -> bytes:
        value, spelled_data = line.get(name), line.get("data")
        if type(value) is dict:
            return orjson.dumps(value)
        if type(spelled_data) is not str:
            raise self._refusal(f"it has neither {name} nor data")
        try:
            return b64decode(spelled_data, validate=True)
        except (Base64Error, ValueError) as error:
            raise self._refusal(f"its data are not base64: {error}") from error

    def _read(self) -> Line:
        self._number += 1
        try:
            data = next(self._lines, None)
            if data is None:
                raise self._refusal(
                    "the file ends here, without the tail of an export: it was cut off"
                )
            if self._last:
                self._checksum.of(self._last)
            self._last = data
            line = orjson.loads(data)
        except ValueError as error:
            raise self._refusal(f"it cannot be read: {error}") from error
        if type(line) is not dict:
            raise self._refusal("it is no JSON object")
        return line

    def _compare(self, name: str, found: object, line: Line) -> None:
        if line.get(name) != found:
            raise self._refusal(
                f"it promises {name} {line.get(name)!r}, but its content has {found!r}"
            )

    def _refusal(self, problem: str) -> OperatorError:
        return _unfit(self.file, self._number, problem)


def import_to(
    url: str,
    lines: Iterator[bytes],
    *,
    file: str,
    deadline: Deadline,
    ahead: int = AHEAD,
    progress: Progress = unwatched,
) -> Imported:
    """Make a new log at `url` from the `lines` of an export; `file` is its name for messages.

    These errors are raised:

    * `OperatorError` for a damaged export, `CallerError` if the target is not empty,
      `DeadlineExceeded`.
    * Where only a copy can be made: `LogNotBegun` for an export without a genesis, `LogClosed` for
      one of a closed log.
    * What `open_log` and the ports raise.
    """
    export = Export(lines, file=file)
    entries = _watched(export, deadline, progress)
    # A log that is not a file is created last, so that a refused export leaves no empty log behind.
    view = _copied_view(export, entries, ahead=ahead) if log_path(url) is None else None
    with made_aside(url) as aside:
        target = aside.log
        if view is None:
            assert isinstance(target, Skipping), "a log in a file can leave out offsets"
            _make_same(target, export, entries, deadline=deadline, ahead=ahead)
        else:
            begin_above(target, empty_target(target, deadline=deadline), view, deadline=deadline)
        aside.take_name()
    return _imported(export, same=view is None)


def _imported(export: Export, *, same: bool) -> Imported:
    view = export.view
    return Imported(
        cluster=view.cluster,
        entries=export.count,
        offset=export.offset,
        digest=export.digest,
        same=same,
        base=view.base,
    )


def _watched(export: Export, deadline: Deadline, progress: Progress) -> Iterator[Entry]:
    first, end = export.head.start, export.head.end
    for count, entry in enumerate(export.entries()):
        if not count % ENTRIES_BETWEEN_LOOKS:
            deadline.check("the import")
            progress(entry.offset - first, end + 1 - first)
        yield entry


def _copied_view(export: Export, entries: Iterator[Entry], *, ahead: int) -> View:
    """Check the whole export, and return the first view of its copy."""
    for _ in entries:
        pass
    view = export.view
    if export.is_closed:
        raise LogClosed(log=export.head.log, offset=view.offset)
    if view.genesis is None:
        raise LogNotBegun(log=export.head.log, problem="its export holds no genesis")
    if view.base > OFFSET_MAX:
        raise _unfit(export.file, 1, f"no offsets are left above its base, {view.base}")
    view.go_on_above(
        max(view.offset, export.head.end + view.base) + ahead,
        level=view.level,
        level_last=view.level_last,
    )
    return view


def _make_same(
    target: Skipping, export: Export, entries: Iterator[Entry], *, deadline: Deadline, ahead: int
) -> None:
    log, head = target, export.head
    compacted_snapshot = empty_target(log, deadline=deadline)
    log.descend(head.identity, timeout_ms=deadline.remaining_ms())
    if export.image is not None:
        marker = replace(decode_marker(export.image.marker), log=log.identity)
        rows = [SnapshotRow(key, data) for key, data in export.image.rows.items()]
        compacted_snapshot.replace(rows, encode_marker(marker), timeout_ms=deadline.remaining_ms())
    log.skip(head.start, timeout_ms=deadline.remaining_ms())
    log.truncate(head.start, timeout_ms=deadline.remaining_ms())
    for batch in _batches(entries):
        log.skip(batch[0].offset, timeout_ms=deadline.remaining_ms())
        log.append([entry.data for entry in batch], timeout_ms=deadline.remaining_ms())
    log.skip(head.end + 1 + ahead, timeout_ms=deadline.remaining_ms())


def _batches(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    """Yield runs of entries without a gap, each no larger than one append."""
    batch: list[Entry] = []
    batch_bytes = 0
    for entry in entries:
        follows = batch and entry.offset == batch[-1].offset + 1
        if batch and (
            not follows
            or len(batch) == BATCH_ENTRIES_MAX
            or batch_bytes + len(entry.data) > BATCH_BYTES_MAX
        ):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(entry)
        batch_bytes += len(entry.data)
    if batch:
        yield batch


class Aside:
    """A new log that takes the name `url` later. A log that is not a file has it at once."""

    def __init__(self, url: str, log: Log, *, part: Path | None) -> None:
        """`log` lies in the file `part`, if it is a file."""
        self._url, self._part = url, part
        self.log = log

    def take_name(self) -> None:
        """Close the log and give it its name. Raises `CallerError` if a file of that name exists
        now.
        """
        name = log_path(self._url)
        if self._part is not None and name is not None:
            self.log.close()  # While it is open its other files have the old name.
            _take_name(self._part, Path(name), self._url)

    def named(self) -> Log:
        """Give the log its name and return it, open. Raises what `take_name` and `open_log`
        raise.
        """
        self.take_name()
        self.log = open_log(self._url, create=False)
        return self.log


@contextmanager
def made_aside(url: str) -> Iterator[Aside]:
    """Yield a new log. The block's end deletes it, unless it has taken its name.

    Raises `CallerError` if there is a file, and what `open_log` raises.
    """
    name = log_path(url)
    if name is None:
        log = open_log(url)
        try:
            yield Aside(url, log, part=None)
        finally:
            log.close()
        return
    with suppress(LogNotBegun, LogDamaged):
        open_log(url, create=False).close()
    if os.path.lexists(name):
        raise not_empty(url, f"there is a file {name}")
    usable_path(name, url=url, create=True)
    part = f"{name}.{uuid.uuid4().hex[:8]}.part"
    try:
        log = open_log(
            f"{url.partition(':')[0]}:{part}{url.partition(':')[2][len(name) :]}", name=url
        )
        aside = Aside(url, log, part=Path(part))
        try:
            yield aside
        finally:
            aside.log.close()
    finally:
        for suffix in ("", "-wal", "-shm", "-bell"):
            Path(f"{part}{suffix}").unlink(missing_ok=True)


def _unfit(file: str, line: int, problem: str) -> OperatorError:
    return OperatorError(
        f"{file} cannot be imported: line {line}: {problem}; nothing was imported, use another copy"
        " of the export"
    )


def _take_name(part: Path, path: Path, url: str) -> None:
    if Path(f"{part}-wal").exists():  # The last one to close the file removes this one.
        raise LogUnavailable(log=url, problem=f"another process has {part} open", in_doubt=False)
    try:
        os.link(part, path)  # Unlike a rename, this never replaces a file.
    except FileExistsError as error:
        raise not_empty(url, f"a file {path} appeared meanwhile") from error
    part.unlink()  # Two names of one log would have two sets of SQLite files.
    sync_folder(path)
