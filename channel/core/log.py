"""The `Log` port: one totally ordered log of byte records, the bundle state channel's only storage.

May live here: the port with its contract, its entry type, its bounds, and the checks that every adapter makes alike.
The adapters are `memory_log`, `sqlite_log` and `kafka_log`; `open_log` chooses one by URL. What a record means is nobody's
business below the codec: to a log it is bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from equipoise.channel.core.errors import AppendTooLarge, LogTruncated, LogWentBack
from equipoise.channel.core.snapshot_store import SnapshotStore

FIRST_OFFSET: Final = 1
"""The first offset that a log may issue. Offset 0 is never issued: it stands for "nothing read yet"."""

RECORD_BYTES_MAX: Final = 1 << 20
"""The largest record. The greatest one is the creation of a namespace: 65,537 boundaries of 13 bytes each (a quoted
`0x%08x` and a comma) are 832 KiB; policies and envelope have the remaining 192 KiB."""

BATCH_ENTRIES_MAX: Final = 4_096
"""Records in one append. At 100,000 grouped appends a second one batch holds the log's write lock for 40 ms at most,
so that other writers' renewals pass between two batches."""

BATCH_BYTES_MAX: Final = 8 * RECORD_BYTES_MAX
"""Bytes in one append: 8 MiB are written in about 40 ms at 200 MB/s, the same stay of the write lock as above."""

READ_ENTRIES_MAX: Final = 8_192
"""Entries in the answer to one read: 2.4 MB of records of 300 bytes, and 70 ms of folding at 120,000 records/s."""

READ_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX
"""Bytes after which one read adds no further entry, so that a run of giant records does not fill the memory."""


CLOCK_AHEAD_MS_MAX: Final = 600_000
"""How far the log's time may be ahead of a clock: ten minutes, as much as clocks may differ that somebody looks after. Beyond that one of
the two is wrong."""


class Entry(NamedTuple):
    """One record as it stands on the log. A tuple, because a replay makes 120,000 of them a second."""

    offset: int
    data: bytes


class Log(Protocol):
    """A totally ordered, durable log of records that many processes append to and read.

    What holds for every adapter, and is tested by one suite for all of them:

    * Total order. Each entry has an offset; every reader sees the same entries at the same offsets, in rising order.
      Offsets only rise, over restarts and truncation too, and none is issued twice. Gaps are normal: never count on
      `offset + 1` being there. These are the storage's own offsets; a channel's `base` is added by those who fold it.
    * A position is the offset that a reader wants next: the last that it has read, plus one. A reader that wants the
      log from its very beginning starts at `FIRST_OFFSET`, and meets `LogTruncated` if that is gone; one that wants
      what is left starts at `start()`. There is no number that means "wherever it begins".
    * A prefix is final. What a read returned never changes, and no entry ever appears below one that was read.
    * Durability. When `append` returns, its batch was appended whole and in its order, and survives the death of every
      process, and that of the machine as far as the adapter's settings promise it. Entries of other writers may stand
      between those of one batch.
    * Read your writes. What `append` returned is seen by every read that begins afterwards, in any process.
    * An error from `append` means that nothing was appended, with one exception: `LogUnavailable` whose `in_doubt` is
      true. That batch, or any part of it, may be on the log, or appear there later; only reading tells.
    * Each entry has the time at which it was appended, by the storage's own clock. Times are for people and retention: no
      verdict depends on them. They never fall from one entry to the next, except behind entries whose clock was wrong. A time
      does not count if it is more than `CLOCK_AHEAD_MS_MAX` ahead of the reader's clock (unless all are), or lower than the
      first time on the log that counts. The entry then has the next time that counts, or now.

    A handle belongs to one thread at a time, which blocks in it; it may be handed over between calls. Only `wake` may be
    called from any thread at any time. Several handles on one log are independent, whether in one process or in many.
    """

    @property
    def name(self) -> str:
        """The log's URL with secrets masked, for messages."""
        ...

    @property
    def identity(self) -> str:
        """An id made at random when this log was created: a log made anew under an old name has another one."""
        ...

    def append(self, batch: Sequence[bytes], *, timeout_ms: int) -> Sequence[int]:
        """Append `batch` in its order, and return its offsets once it is durable.

        One call is one group commit, at the price of about one record: the host joins what is waiting into one batch.
        An empty batch does nothing. `timeout_ms` bounds the wait for other writers; it cannot bound the disk itself.

        Raises `AppendTooLarge`, `LogUnavailable` (see `in_doubt`), `LogStorageFull`, `LogDamaged`, `LogReplaced`.
        """
        ...

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        """The entries at `position` and above, in order, as many as are there, but at most `limit` (positive).

        Fewer than `limit` does not mean that the end was reached (see `READ_ENTRIES_MAX`, `READ_BYTES_MAX`); none does.

        Raises `LogTruncated` if `position < start()`, `LogWentBack` if `position > end() + 1`, and `LogUnavailable`,
        `LogDamaged`, `LogReplaced`.
        """
        ...

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        """Block until there is an entry at `position` or above; whether there is one.

        False after `timeout_ms`, or after `wake`. Wakes within a millisecond of a commit, of this or another process,
        at next to no cost while nothing happens. Raises what `read` raises.
        """
        ...

    def wake(self) -> None:
        """Make the wait in progress return, or else the next one. From any thread; harmless after `close`."""
        ...

    def start(self) -> int:
        """The lowest position that can be read: `FIRST_OFFSET` until the log is truncated. Raises what `read` raises."""
        ...

    def end(self) -> int:
        """The offset that the next append will exceed; `FIRST_OFFSET - 1` on a new log. Raises what `read` raises."""
        ...

    def position_at(self, time_ms: int) -> int:
        """The lowest position whose entry was appended at or after the Unix time `time_ms`; `end() + 1` if there is none.

        By the storage's own clock, which need not be this machine's. Raises what `read` raises.
        """
        ...

    def ahead(self, position: int) -> int | None:
        """Return the first position, at `position` or above, whose time is ahead of this machine's clock.

        That is by more than `CLOCK_AHEAD_MS_MAX`; None if there is none. Raises what `read` raises.
        """
        ...

    def compacted_snapshot(self) -> SnapshotStore:
        """The snapshot of this log, on the same storage: made when it is first claimed, and this handle's thread's to use.

        It lives as long as this handle.
        """
        ...

    def history_snapshot(self) -> SnapshotStore:
        """The history snapshot of this log: beside its snapshot, in the same form, the view just below where the log begins.

        From it what is left of the log can be told, of which the snapshot has only the end. Otherwise as `snapshot`.
        """
        ...

    def truncate(self, below: int, *, timeout_ms: int) -> None:
        """Remove all entries with an offset below `below`, and raise `start` to it; to a lower one changes nothing.

        From the moment at which it begins readers below get `LogTruncated`. If it raises, some entries may be left;
        calling it again removes them. `timeout_ms` bounds each wait for other writers, of which there may be several.

        Raises `LogWentBack` if `below > end() + 1`, otherwise what `append` raises.
        """
        ...

    def close(self) -> None:
        """Let go of everything. Afterwards only `wake` and `close` may be called; both do nothing."""
        ...


@runtime_checkable
class Skipping(Log, Protocol):
    """A log that can leave out offsets, so that what stood in another one can stand at the same offsets here."""

    def skip(self, below: int, *, timeout_ms: int) -> None:
        """Issue no more offsets below `below`; a lower one than the next to be issued changes nothing. Raises what `append` raises."""
        ...


def check_batch(log: str, batch: Sequence[bytes]) -> None:
    """Raise `AppendTooLarge` if a log must not take `batch` in one append; `log` is its name for the message."""
    if len(batch) > BATCH_ENTRIES_MAX:
        raise AppendTooLarge(log=log, what="records in one batch", size=len(batch), size_max=BATCH_ENTRIES_MAX)
    record_bytes = max(map(len, batch), default=0)
    if record_bytes > RECORD_BYTES_MAX:
        raise AppendTooLarge(log=log, what="bytes in one record", size=record_bytes, size_max=RECORD_BYTES_MAX)
    batch_bytes = sum(map(len, batch))
    if batch_bytes > BATCH_BYTES_MAX:
        raise AppendTooLarge(log=log, what="bytes in one batch", size=batch_bytes, size_max=BATCH_BYTES_MAX)


def check_position(log: str, position: int, *, start: int, end: int) -> None:
    """Raise `LogTruncated` or `LogWentBack` unless a log that has `start` and `end` can be read from `position`."""
    if position < start:
        raise LogTruncated(log=log, position=position, start=start)
    if position > end + 1:
        raise LogWentBack(log=log, position=position, end=end)
