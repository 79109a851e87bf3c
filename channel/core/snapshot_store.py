"""Define the `SnapshotStore` port: the state of a channel beside its log, for readers of a
truncated log.

A row is a key with bytes and a marker is bytes; `snapshot_rows` interprets them.
`Log.compacted_snapshot` and `Log.history_snapshot` return the two stores of a log, which differ
only in their place in the log. Each adapter of `Log` has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

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
        and `LogUnavailable`, `LogDamaged`, `LogStorageFull`, `OperatorError`.
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
