"""Watch for a process that is about to run out of files: report it, and drain the broker while it
still can.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.system.open_files import files_left, reserve

_logger: Final = logging.getLogger(__name__)

PROBLEM: Final = "files"
"""The key of this problem in the worker's `client_problems`."""

LOOK_S: Final = 1.0
"""The interval of looks at what may change: files, certificates, keys, and addresses of brokers."""

# Connections never use the reserve. If three quarters of it are gone, something else leaks files.
_SHORT_DIVISOR: Final = 4


class FileWatch:
    """Watches one broker. Without files it would still renew its lease, although no client could
    connect.
    """

    def __init__(self, worker: Worker, *, left: Callable[[], tuple[int, int]] = files_left) -> None:
        """`left` returns how many more files may be opened, and the limit."""
        self._worker = worker
        self._left = left
        self._short_since_ms: int | None = None
        self._has_drained = False

    def look(self) -> None:
        """Report whether files are short. Drain once they have been for a lease, if another broker
        can take the bundles.

        It does not drain earlier, because a drain cannot be undone. It does not drain without
        another broker, because then no broker would serve.
        """
        worker, (left, limit) = self._worker, self._left()
        if left >= reserve(limit) // _SHORT_DIVISOR:
            self._short_since_ms = None
            worker.client_problems.pop(PROBLEM, None)
            return
        now_ms = worker.clock.now().boot_ms
        self._short_since_ms = now_ms if self._short_since_ms is None else self._short_since_ms
        problem = (
            f"its process may open only {left} more files of {limit}: raise that limit (ulimit -n),"
            " or find what leaves files open"
        )
        worker.client_problems[PROBLEM] = problem
        drains_after_ms = self._drains_after_ms()
        if (
            not self._has_drained
            and drains_after_ms is not None
            and now_ms - self._short_since_ms >= drains_after_ms
        ):
            self._has_drained = True
            _logger.error(
                "broker drains, restart it: %s", problem, extra={"broker": worker.broker_id}
            )
            worker.drain()

    def _drains_after_ms(self) -> int | None:
        """Return how long files must be short before this broker drains; None if no other broker
        takes bundles.

        A machine may be short of files for all its brokers at once. So the youngest drains first.
        Each older one waits until it has read of the drain before its own, and the oldest finds no
        other broker.
        """
        me, config, others = (
            self._worker.agent.entry,
            self._worker.config,
            self._worker.view.live_brokers(),
        )
        if me is None or not self._worker.view.can_give(me.incarnation):
            return None
        younger = sum(broker.incarnation > me.incarnation for broker in others)
        # Two brokers see the same shortage up to one look apart, and each drains up to one look
        # late.
        return config.lease_ms + younger * (config.renew_ms + 2 * round(LOOK_S * 1_000))
