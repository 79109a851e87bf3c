"""How a compaction writes: rows and marker in one transaction, read back before anything is removed that only they hold then.

May live here: the steps that a compaction tells of, and what it does alike with a log's twin and with its floor. When is told in
`compactor` and `floor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from equipoise.channel.core.errors import CompactionRefused, TwinFenced
from equipoise.channel.core.log import Log
from equipoise.channel.core.twin import LOADS_MAX, Check, Twin, TwinImage, TwinRow
from equipoise.channel.snapshots.twin_rows import decode_marker, view_of


class Step(StrEnum):
    """What a compaction has just done, in this order. Tests let it die at each."""

    BEGUN = "begun"
    CLAIMED = "claimed"
    LOADED = "loaded"
    FOLDED = "folded"
    AGREED = "agreed"
    CUT_CHOSEN = "cut_chosen"
    FLOOR_CLAIMED = "floor_claimed"
    FLOOR_FOLDED = "floor_folded"
    FLOOR_FIRST_ROW = "floor_first_row"
    FLOOR_LAST_ROW = "floor_last_row"
    FLOOR_REPLACED = "floor_replaced"
    FLOOR_READ_BACK = "floor_read_back"
    SPELLED = "spelled"
    FIRST_ROW = "first_row"
    LAST_ROW = "last_row"
    REPLACED = "replaced"
    READ_BACK = "read_back"
    CUT_CHECKED = "cut_checked"
    TRUNCATED = "truncated"
    START_VERIFIED = "start_verified"


class Writing(NamedTuple):
    """What is written, in words, and the steps of that."""

    what: str
    first_row: Step
    last_row: Step
    replaced: Step
    read_back: Step


TWIN: Final = Writing("twin", Step.FIRST_ROW, Step.LAST_ROW, Step.REPLACED, Step.READ_BACK)
FLOOR: Final = Writing("floor", Step.FLOOR_FIRST_ROW, Step.FLOOR_LAST_ROW, Step.FLOOR_REPLACED, Step.FLOOR_READ_BACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scribe:
    """Writes for one compaction of `log`. `timeout_ms` bounds each wait for other writers; `step` is told what is done."""

    log: Log
    timeout_ms: int
    step: Callable[[str], None]
    check: Check

    def write(self, twin: Twin, rows: Iterable[TwinRow], meant: TwinImage, *, writing: Writing) -> None:
        """Write these rows, and the marker of what the twin, which is claimed, is meant to hold then; and make sure that it does.

        Raises `TwinFenced`, also where another compactor has written more since; `CompactionRefused`; what `Twin` raises.
        """
        twin.replace(self._announced(rows, writing), meant.marker, timeout_ms=self.timeout_ms)
        self.step(writing.replaced)
        self._read_back(twin, meant, writing)

    def _announced(self, rows: Iterable[TwinRow], writing: Writing) -> Iterator[TwinRow]:
        """The rows, with the steps that a twin takes while it asks for them."""
        is_first = True
        for row in rows:
            yield row
            if is_first:
                self.step(writing.first_row)
                is_first = False
        self.step(writing.last_row)

    def _read_back(self, twin: Twin, meant: TwinImage, writing: Writing) -> None:
        found: TwinImage | None = None
        for _ in range(LOADS_MAX):
            found = twin.load(check=self.check)
            if found == meant:
                view_of(meant, check=self.check)  # As any reader will; so that no slip of the spelling is found when it is too late.
                self.step(writing.read_back)
                return
        if found is not None and decode_marker(found.marker).horizon > decode_marker(meant.marker).horizon:
            raise TwinFenced(log=self.log.name)
        raise CompactionRefused(
            log=self.log.name,
            problem=f"what its {writing.what} holds is not what was written to it just now",
            remedy=f"nothing was removed; look at the {writing.what}'s storage, then run it again",
        )
