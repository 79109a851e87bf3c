"""Write a snapshot in one transaction and read it back, before the log or rows that it replaces are
removed.

`compactor` uses it for the compacted snapshot, `history_snapshot` for the history snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from equipoise.channel.core.errors import SnapshotFenced, compaction_refused
from equipoise.channel.core.log import (
    LOADS_MAX,
    Check,
    CompactedSnapshot,
    Log,
    SnapshotRow,
    SnapshotStore,
)
from equipoise.channel.snapshots.snapshot_rows import decode_marker, view_of


class Step(StrEnum):
    """The last completed step of a compaction, in this order. Tests let it die at each."""

    BEGUN = "begun"
    CLAIMED = "claimed"
    LOADED = "loaded"
    FOLDED = "folded"
    AGREED = "agreed"
    CUT_CHOSEN = "cut_chosen"
    HISTORY_CLAIMED = "history_claimed"
    HISTORY_FOLDED = "history_folded"
    HISTORY_FIRST_ROW = "history_first_row"
    HISTORY_LAST_ROW = "history_last_row"
    HISTORY_REPLACED = "history_replaced"
    HISTORY_READ_BACK = "history_read_back"
    ENCODED = "encoded"
    FIRST_ROW = "first_row"
    LAST_ROW = "last_row"
    REPLACED = "replaced"
    READ_BACK = "read_back"
    CUT_CHECKED = "cut_checked"
    TRUNCATED = "truncated"
    START_VERIFIED = "start_verified"


class Writing(NamedTuple):
    """The name of what is written, and the steps of the write."""

    what: str
    first_row: Step
    last_row: Step
    replaced: Step
    read_back: Step


SNAPSHOT: Final = Writing("snapshot", Step.FIRST_ROW, Step.LAST_ROW, Step.REPLACED, Step.READ_BACK)
HISTORY: Final = Writing(
    "history snapshot",
    Step.HISTORY_FIRST_ROW,
    Step.HISTORY_LAST_ROW,
    Step.HISTORY_REPLACED,
    Step.HISTORY_READ_BACK,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scribe:
    """Writes for one compaction of `log`. `timeout_ms` bounds each wait for other writers; `step`
    is called after each step.
    """

    log: Log
    timeout_ms: int
    step: Callable[[str], None]
    check: Check

    def write(
        self,
        store: SnapshotStore,
        rows: Iterable[SnapshotRow],
        meant: CompactedSnapshot,
        *,
        writing: Writing,
    ) -> None:
        """Write these rows and the marker of `meant` to the claimed snapshot. Check that it then
        equals `meant`.

        Raises `SnapshotFenced`, also if another compactor has written since; `OperatorError`;
        and what `SnapshotStore` raises.
        """
        store.replace(self._announced(rows, writing), meant.marker, timeout_ms=self.timeout_ms)
        self.step(writing.replaced)
        self._read_back(store, meant, writing)

    def _announced(self, rows: Iterable[SnapshotRow], writing: Writing) -> Iterator[SnapshotRow]:
        """Yield the rows, and report the steps while the store asks for them."""
        is_first = True
        for row in rows:
            yield row
            if is_first:
                self.step(writing.first_row)
                is_first = False
        self.step(writing.last_row)

    def _read_back(self, store: SnapshotStore, meant: CompactedSnapshot, writing: Writing) -> None:
        found: CompactedSnapshot | None = None
        for _ in range(LOADS_MAX):
            found = store.load(check=self.check)
            if found == meant:
                # As any reader would, so that an encoding error is found before it is too late.
                view_of(meant, check=self.check)
                self.step(writing.read_back)
                return
        if (
            found is not None
            and decode_marker(found.marker).horizon > decode_marker(meant.marker).horizon
        ):
            raise SnapshotFenced(log=self.log.name)
        raise compaction_refused(
            log=self.log.name,
            problem=f"what its {writing.what} holds is not what was written to it just now",
            remedy=f"nothing was removed; look at the {writing.what}'s storage, then run it again",
        )
