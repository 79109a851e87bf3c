"""Estimate how much of the channel a broker still has to restore or read, and log it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_logger: Final = logging.getLogger(__name__)

_TOLD_AGAIN_NS: Final = 2_000_000_000
"""Interval of progress lines, for an operator who waits."""

_ESTIMATED_AFTER_NS: Final = 500_000_000
"""Before this a rate means nothing: the first read may wait for the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is left of a long task: its name, records (or rows) and seconds, if known."""

    what: str
    records: int | None
    seconds: float | None

    def __str__(self) -> str:
        """Return it as text for people."""
        records = "" if self.records is None else f": {self.records:,} left"
        seconds = "" if self.seconds is None else f", about {self.seconds:.0f} s"
        return f"it is still {self.what}{records}{seconds}"


class ReplayProgress:
    """One broker's progress to the end of the log. Report from one thread at a time."""

    def __init__(self, *, broker: str, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """`broker` is a field of each line; `now_ns` is a clock that only rises."""
        self._broker = broker
        self._now_ns = now_ns
        self._what: str | None = None
        self._began_ns = self._told_ns = 0
        self._done = 0
        self._left: int | None = None

    @property
    def left(self) -> Left | None:
        """What is left; None if nothing is in progress."""
        if self._what is None:
            return None
        took_ns = self._now_ns() - self._began_ns
        is_known = self._left is not None and self._done > 0 and took_ns >= _ESTIMATED_AFTER_NS
        seconds = self._left * took_ns / self._done / 1e9 if is_known and self._left is not None else None
        return Left(what=self._what, records=self._left, seconds=seconds)

    def restored(self, done: int, total: int | None) -> None:
        """Note that `done` of `total` rows of the channel's snapshot are loaded."""
        self._go_on("loading the channel's snapshot", done, None if total is None else max(total - done, 0))

    def read(self, records: int, left: int) -> None:
        """Note that `records` more records of the log are folded, and about `left` remain."""
        done = self._done if self._what == _READING else 0
        self._go_on(_READING, done + records, left)

    def ended(self) -> None:
        """Note that the end is reached."""
        self._what = None

    def _go_on(self, what: str, done: int, left: int | None) -> None:
        now_ns = self._now_ns()
        if what != self._what:
            self._what, self._began_ns, self._told_ns = what, now_ns, now_ns
        self._done, self._left = done, left
        if now_ns - self._told_ns >= _TOLD_AGAIN_NS:
            self._told_ns = now_ns
            way = self.left
            assert way is not None, "it is under way"
            seconds = None if way.seconds is None else round(way.seconds, 1)
            _logger.info(what, extra={"broker": self._broker, "done": done, "left": left, "seconds_left": seconds})


_READING: Final = "reading the channel"
