"""Define the `Log` port: one totally ordered log of byte records, the channel's only storage. And
the `SnapshotStore` port beside it, for readers of a truncated log.

`open_log` chooses an adapter by URL. To a log a record is bytes: only the codec interprets it. To a
store a row is a key with bytes, and a marker is bytes: `snapshot_rows` interprets them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from equipoise.channel.core.errors import CallerError, LogTruncated, LogWentBack

LOADS_MAX: Final = 3
"""How often an inconsistent snapshot is loaded. The storage may have removed old rows, or a
compactor may have cut the log, during a load. Twice in a row is bad luck, three times is damage."""

Check = Callable[[], None]
"""Called now and then during long work, which it may end by raising."""

Progress = Callable[[int, int | None], None]
"""Called now and then with how much is done, and of how much if known."""


def unchecked() -> None:
    """A `Check` that never interrupts."""


def unwatched(done: int, total: int | None) -> None:
    """A `Progress` that reports nothing."""


class SnapshotRow(NamedTuple):
    """One key and its current data. No data is a tombstone: the key is gone."""

    key: str
    data: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedSnapshot:
    """A snapshot as of its last marker: the marker and the row of each present key, in no order."""

    marker: bytes
    rows: Mapping[str, bytes]


def replaced(before: Mapping[str, bytes], rows: Iterable[SnapshotRow]) -> dict[str, bytes]:
    """Return the rows of a snapshot that held `before`, once `rows` are written."""
    after = dict(before)
    for key, data in rows:
        if data is None:
            after.pop(key, None)
        else:
            after[key] = data
    return after


class SnapshotStore(Protocol):
    """The rows of a channel's keys and one marker, replaced in one transaction and read as of the
    last one.

    Every adapter keeps these promises. One contract suite tests them all.

    * Atomic. A reader sees all rows and the marker of a `replace` that returned, or none of them.
      Readers never see what a dead writer left, and it obstructs nobody.
    * One writer. Only the newest claimant can replace, as often as it likes. Any other gets
      `SnapshotFenced` and has changed nothing. After a failed `replace` a writer must claim again.
    * Durable. The data of a `replace` that returned survives what the log's appends survive.

    A store belongs to its log's handle, and so to one thread at a time. Reading needs no claim.
    """

    def claim(self, *, timeout_ms: int) -> None:
        """Become the only writer: this fences each older claimant, in any process.

        Raises `OperatorError` if another program's open transaction would hide what is written,
        and `LogUnavailable`, `LogDamaged`, `LogStorageFull`.
        """
        ...

    def load(
        self, *, check: Check = unchecked, progress: Progress = unwatched
    ) -> CompactedSnapshot | None:
        """Return the snapshot as of its last marker; None if it was never written.

        `progress` counts rows. Raises `CompactedSnapshotDamaged` if only the snapshot cannot be
        read, and what `claim` and `check` raise.
        """
        ...

    def replace(self, rows: Iterable[SnapshotRow], marker: bytes, *, timeout_ms: int) -> None:
        """Write these rows, each of another key, and this marker, in ONE transaction. Other keys
        stay as they are.

        `rows` may be computed lazily: no lock is held meanwhile. `timeout_ms` bounds each wait for
        other writers; there may be several waits.

        Raises `SnapshotFenced` if another writer has claimed the snapshot since, and what `claim`
        raises. After `LogUnavailable` with a true `in_doubt` the rows may be there, or appear
        later: claim and load again.
        """
        ...


FIRST_OFFSET: Final = 1
"""The first offset of a log. Offset 0 is never issued: it means "nothing read yet"."""

RECORD_BYTES_MAX: Final = 1 << 20
"""The largest record. A namespace's creation has 65,537 boundaries of 13 bytes (a quoted `0x%08x`
and a comma): 832 KiB, which leaves 192 KiB for policies and envelope."""

BATCH_ENTRIES_MAX: Final = 4_096
"""Records in one append. At 100,000 grouped appends/s a batch holds the write lock for at most 40
ms, so other writers' renewals pass between two batches."""

BATCH_BYTES_MAX: Final = 8 * RECORD_BYTES_MAX
"""Bytes in one append: 8 MiB take about 40 ms at 200 MB/s, the same time in the write lock."""

READ_ENTRIES_MAX: Final = 8_192
"""Entries that one read returns: 2.4 MB at 300 bytes each, and 70 ms of folding at 120,000
records/s."""

READ_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX
"""Bytes after which a read adds no further entry: it bounds memory when many records are large."""


CLOCK_AHEAD_MS_MAX: Final = 600_000
"""How far the log's time may be ahead of a clock: ten minutes. Maintained clocks differ less, so
beyond that one is wrong."""


class Entry(NamedTuple):
    """One record as it stands on the log. A tuple, because a replay makes 120,000 of them per
    second.
    """

    offset: int
    data: bytes


class Log(Protocol):
    """A totally ordered, durable log of records that many processes append to and read.

    One contract suite tests these promises for every adapter:

    * Total order. Every reader sees the same entries at the same offsets, in rising order. Offsets
      only rise, also over restarts and truncation, and none is issued twice. Gaps are normal:
      `offset + 1` may not exist. These are the storage's offsets; the fold adds the channel's
      `base`.
    * A position is the next offset to read: the last offset read, plus one. Start at `FIRST_OFFSET`
      to read from the very beginning; this raises `LogTruncated` if that is gone. Start at
      `start()` to read what is left.
    * A prefix is final. Returned entries never change, and no entry appears below one that was
      read.
    * An end is believed only if no offset above it is known to be issued. Storage of several nodes
      may ask one that is cut off from the others. What it says is an outage until an append proves
      the end; the offset of such an append may be a gap.
    * Durability. When `append` returns, the whole batch is appended in order. It survives the death
      of every process, and of the machine as far as the adapter's settings promise. Other writers'
      entries may stand between those of one batch.
    * Read your writes. Every read that starts after `append` returned sees its entries, in any
      process. The exception is a node of the storage that was cut off: until its reader appends, or
      knows a later offset, it hides the newest entries.
    * An error from `append` means that nothing was appended, except `LogUnavailable` with a true
      `in_doubt`: then any part of the batch may be on the log or appear later. Only reading
      decides.
    * Times. Each entry has the time of its append by the storage's clock, for people and retention;
      no verdict depends on it. Times never fall, except behind entries whose clock was wrong. A
      time does not count if it is more than `CLOCK_AHEAD_MS_MAX` ahead of the reader's clock
      (unless all are), or below the first time that counts. The entry then takes the next time that
      counts, or now.

    A handle serves one thread at a time, which blocks in it. Threads may pass it on between calls.
    Only `wake` may be called from any thread at any time. Several handles on one log are
    independent, also across processes.
    """

    @property
    def name(self) -> str:
        """The log's URL with secrets masked, for messages."""
        ...

    @property
    def identity(self) -> str:
        """A random id of this log. A log made anew under an old name has another one."""
        ...

    def append(self, batch: Sequence[bytes], *, timeout_ms: int) -> Sequence[int]:
        """Append `batch` in order, and return its offsets once it is durable.

        * One call is one group commit and costs about as much as one record: the host joins waiting
          records into one batch.
        * An empty batch does nothing.
        * `timeout_ms` bounds the wait for other writers. It cannot bound the disk.

        Raises `CallerError` (too large), `LogUnavailable` (see `in_doubt`), `LogStorageFull`,
        `LogDamaged`, `OperatorError`, `LogWentBack`.
        """
        ...

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        """Return the entries at `position` and above, in order, at most `limit` (positive).

        An empty answer means the end of the log. A short one does not (see `READ_ENTRIES_MAX`,
        `READ_BYTES_MAX`).

        Raises `LogTruncated` if `position < start()`, `LogWentBack` if `position > end() + 1`, and
        `LogUnavailable`, `LogDamaged`, `OperatorError`.
        """
        ...

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        """Block until there is an entry at `position` or above. Return False after `timeout_ms` or
        `wake`.

        It returns within a millisecond of any process' commit, and costs almost nothing while idle.
        Raises what `read` raises.
        """
        ...

    def wake(self) -> None:
        """End the present wait, or else the next one. Any thread may call it, also after
        `close`.
        """
        ...

    def start(self) -> int:
        """Return the lowest readable position: `FIRST_OFFSET` until the log is truncated. Raises
        what `read` raises.
        """
        ...

    def end(self) -> int:
        """Return the highest offset issued; `FIRST_OFFSET - 1` on a new log. Raises what `read`
        raises.
        """
        ...

    def position_at(self, time_ms: int) -> int:
        """Return the lowest position appended at or after Unix time `time_ms`; `end() + 1` if there
        is none.

        The time is the storage's clock, not this machine's. Raises what `read` raises.
        """
        ...

    def ahead(self, position: int) -> int | None:
        """Return the first position, at `position` or above, whose time is ahead of this machine's
        clock.

        Only times more than `CLOCK_AHEAD_MS_MAX` ahead count. Returns None if there is none. Raises
        what `read` raises.
        """
        ...

    def compacted_snapshot(self) -> SnapshotStore:
        """Return this log's compacted snapshot, on the same storage. The first claim creates it.

        It lives as long as this handle and belongs to the handle's thread.
        """
        ...

    def history_snapshot(self) -> SnapshotStore:
        """Return this log's history snapshot, the view just below the log's start, from which the
        retained log is folded.

        Otherwise as `compacted_snapshot`, which has only the end.
        """
        ...

    def truncate(self, below: int, *, timeout_ms: int) -> None:
        """Remove all entries below `below` and raise `start` to it. A lower `below` changes
        nothing.

        * As soon as it begins, readers below get `LogTruncated`.
        * If it raises, some entries may be left; another call removes them.
        * `timeout_ms` bounds each of several waits for other writers.

        Raises `LogWentBack` if `below > end() + 1`, otherwise what `append` raises.
        """
        ...

    def close(self) -> None:
        """Release everything. Afterwards only `wake` and `close` may be called, and do nothing."""
        ...


def check_batch(log: str, batch: Sequence[bytes]) -> None:
    """Raise `CallerError` if `batch` is too large for one append; `log` is its name for the
    message.
    """
    if len(batch) > BATCH_ENTRIES_MAX:
        raise _too_large(
            log=log, what="records in one batch", size=len(batch), size_max=BATCH_ENTRIES_MAX
        )
    record_bytes = max(map(len, batch), default=0)
    if record_bytes > RECORD_BYTES_MAX:
        raise _too_large(
            log=log, what="bytes in one record", size=record_bytes, size_max=RECORD_BYTES_MAX
        )
    batch_bytes = sum(map(len, batch))
    if batch_bytes > BATCH_BYTES_MAX:
        raise _too_large(
            log=log, what="bytes in one batch", size=batch_bytes, size_max=BATCH_BYTES_MAX
        )


def check_position(log: str, position: int, *, start: int, end: int) -> None:
    """Raise `LogTruncated` or `LogWentBack` unless `position` is readable in a log with this
    `start` and `end`.
    """
    if position < start:
        raise LogTruncated(log=log, position=position, start=start)
    if position > end + 1:
        raise LogWentBack(log=log, position=position, end=end)


def _too_large(*, log: str, what: str, size: int, size_max: int) -> CallerError:
    return CallerError(
        f"the log {log} accepts at most {size_max} {what}, not {size}; append less at once"
    )
