"""Report how far a broker has read the channel at its start, and compare its view with the log
later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.runtime.snapshots import Snapshots
from equipoise.channel.core.errors import Bug, EquipoiseError
from equipoise.channel.core.view import View

_logger: Final = logging.getLogger(__name__)

_INTERVAL_NS: Final = 2_000_000_000
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
        self._began_ns = self._logged_ns = 0
        self._done = 0
        self._left: int | None = None

    @property
    def left(self) -> Left | None:
        """What is left; None if nothing is in progress."""
        if self._what is None:
            return None
        took_ns = self._now_ns() - self._began_ns
        is_known = self._left is not None and self._done > 0 and took_ns >= _ESTIMATED_AFTER_NS
        seconds = (
            self._left * took_ns / self._done / 1e9 if is_known and self._left is not None else None
        )
        return Left(what=self._what, records=self._left, seconds=seconds)

    def restored(self, done: int, total: int | None) -> None:
        """Note that `done` of `total` rows of the channel's snapshot are loaded."""
        self._go_on(
            "loading the channel's snapshot", done, None if total is None else max(total - done, 0)
        )

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
            self._what, self._began_ns, self._logged_ns = what, now_ns, now_ns
        self._done, self._left = done, left
        if now_ns - self._logged_ns >= _INTERVAL_NS:
            self._logged_ns = now_ns
            way = self.left
            assert way is not None, "it is under way"
            seconds = None if way.seconds is None else round(way.seconds, 1)
            _logger.info(
                what,
                extra={"broker": self._broker, "done": done, "left": left, "seconds_left": seconds},
            )


_READING: Final = "reading the channel"


class ReplayCheck:
    """The comparison of one broker's view with its log."""

    def __init__(
        self,
        snapshots: Snapshots,
        *,
        log_url: str,
        broker: str,
        fail: Callable[[EquipoiseError], None],
    ) -> None:
        """`fail` ends the broker."""
        self._snapshots = snapshots
        self._log_url = log_url
        self._broker = broker
        self._fail = fail
        self._task: asyncio.Task[None] | None = None

    def begin(self, view: View) -> bool:
        """Start to compare the current `view` with the log. Return False if a comparison is already
        running.
        """
        if self._task is not None:
            return False
        self._task = asyncio.get_running_loop().create_task(
            self._compare(view.offset, view.digest())
        )
        return True

    def cancel(self) -> None:
        """Cancel the comparison. A thread that reads the log runs to its end."""
        if self._task is not None:
            self._task.cancel()

    async def _compare(self, offset: int, digest: int) -> None:
        other = None
        try:
            other = await asyncio.to_thread(self._snapshots.refold, self._log_url, offset)
        except EquipoiseError as error:
            _logger.warning(
                "replay check failed: the log could not be folded: %s",
                error,
                extra={"broker": self._broker},
            )
        except Exception:
            _logger.exception(
                "replay check failed: the log could not be folded", extra={"broker": self._broker}
            )
        finally:
            self._task = None  # The next alarm starts another check in any case.
        if other is not None and other != digest:
            problem = (
                f"the view of broker {self._broker} at offset {offset} is not what the log folds to"
            )
            self._fail(
                Bug(f"{problem}; it stops serving, start it again, and report this with the log")
            )
