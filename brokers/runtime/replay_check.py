"""Fold the log again after views diverged. The broker serves on: the other view is most likely wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from equipoise.brokers.runtime.directory.snapshots import Snapshots
from equipoise.channel.core.errors import Bug, EquipoiseError
from equipoise.channel.core.view import View

_logger: Final = logging.getLogger(__name__)


class ReplayCheck:
    """The comparison of one broker's view with its log."""

    def __init__(self, snapshots: Snapshots, *, log_url: str, broker: str, fail: Callable[[EquipoiseError], None]) -> None:
        """`fail` ends the broker."""
        self._snapshots = snapshots
        self._log_url = log_url
        self._broker = broker
        self._fail = fail
        self._task: asyncio.Task[None] | None = None

    def begin(self, view: View) -> bool:
        """Start to compare the current `view` with the log. Return False if a comparison is already running."""
        if self._task is not None:
            return False
        self._task = asyncio.get_running_loop().create_task(self._compare(view.offset, view.digest()))
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
            _logger.warning("the log could not be folded again: %s", error, extra={"broker": self._broker})
        except Exception:
            _logger.exception("the log could not be folded again", extra={"broker": self._broker})
        finally:
            self._task = None  # The next alarm starts another check in any case.
        if other is not None and other != digest:
            problem = f"the view of broker {self._broker} at offset {offset} is not what the log folds to"
            self._fail(Bug(f"{problem}; it stops serving, start it again, and report this with the log"))
