"""The `SnapshotStore` port: a channel's short form beside its log, from which a reader begins where the log's beginning is gone.

May live here: the port with its contract, and what passes through it. To a snapshot a row is a key with bytes, and a marker is
bytes; what they say is in `snapshot_rows`. The adapters are `memory_snapshot_store`, `sqlite_snapshot_store` and `kafka_snapshot`;
`Log.snapshot` gives the one that lies on the log's own storage, and `Log.history snapshot` another one, which is like it in all but where
it stands in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

LOADS_MAX: Final = 3
"""How often a snapshot is loaded that does not fit: where the storage itself removes old rows, it may have done so while we read,
and a compactor may have cut the log meanwhile. Twice in a row is bad luck, three times is damage."""

Check = Callable[[], None]
"""Called now and then in the course of something long, which it may end by raising."""

Progress = Callable[[int, int | None], None]
"""Called now and then with how much is done, and of how much, if that is known."""


def unchecked() -> None:
    """The `Check` of those whom nothing hurries."""


def unwatched(done: int, total: int | None) -> None:
    """The `Progress` of those whom nobody watches."""


class SnapshotRow(NamedTuple):
    """One key and what it now is; no data is a tombstone: the key is gone."""

    key: str
    data: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedSnapshot:
    """What a snapshot holds as of its last marker: that marker, and the row of each key that is there, in no order."""

    marker: bytes
    rows: Mapping[str, bytes]


class SnapshotStore(Protocol):
    """The rows of a channel's keys and one marker, replaced in one transaction and read as of the last one.

    What holds for every adapter, and is tested by one suite for all of them:

    * Whole or not at all. A reader sees all rows and the marker of a `replace` that returned, or, before, none of them.
      What a writer left that died on the way is never seen, and is in nobody's way.
    * One writer. Only the newest claimant can replace, as often as it likes; any other meets `SnapshotFenced`, and has changed
      nothing. One whose replacement failed must claim again before the next.
    * Durable as the log is. What a `replace` that returned wrote survives what the log's appends survive.

    A snapshot belongs to its log's handle, and so to one thread at a time. Reading needs no claim.
    """

    def claim(self, *, timeout_ms: int) -> None:
        """Become the one who may replace: from here on each older claimant, of whatever process, is fenced.

        Raises `LogUnavailable`, `LogDamaged`, `LogStorageFull`, `LogReplaced`.
        """
        ...

    def load(self, *, check: Check = unchecked, progress: Progress = unwatched) -> CompactedSnapshot | None:
        """What the snapshot holds as of its last marker; None if it was never written.

        `progress` counts rows. Raises `CompactedSnapshotDamaged` where only the snapshot cannot be read, what `claim` raises, and what
        `check` raises.
        """
        ...

    def replace(self, rows: Iterable[SnapshotRow], marker: bytes, *, timeout_ms: int) -> None:
        """Write these rows, each of another key, and this marker, in ONE transaction; keys that are not named stay as they are.

        Rows may be made while they are asked for: no lock is held meanwhile. `timeout_ms` bounds each wait for other
        writers, of which there may be several.

        Raises `SnapshotFenced` if another has claimed the snapshot since, and what `claim` raises; after `LogUnavailable` whose
        `in_doubt` is true the rows may be there, or appear later, and whoever goes on claims and loads again.
        """
        ...
