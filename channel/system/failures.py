"""Log repeated failures: the first, one line per interval, and the end. One line each could be
hundreds per second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from equipoise.channel.core.errors import EquipoiseError

# Background tasks are retried automatically.
_TASK_INTERVAL_MS: Final = 60_000


class RepeatedFailures:
    """Decides when to log the failures of one task. An outage ends with the first success."""

    def __init__(self, *, interval_ms: int) -> None:
        """`interval_ms` is the shortest time between two lines about failures."""
        self._interval_ms = interval_ms
        self._quiet_until_ms: int | None = None
        self._unlogged = 0
        self._is_logged = False

    def failed(self, now_ms: int) -> int | None:
        """Return how many failures a line due now stands for; None if none is due. `now_ms` never
        goes back.
        """
        self._unlogged += 1
        if self._quiet_until_ms is not None and now_ms < self._quiet_until_ms:
            return None
        # Successes do not reset this: a task that fails every other time must not log more.
        self._quiet_until_ms = now_ms + self._interval_ms
        self._is_logged = True
        return self._counted()

    def succeeded(self) -> int | None:
        """Return the number of unlogged failures if a logged outage ends now; else None."""
        if not self._is_logged:
            return None
        self._is_logged = False
        return self._counted()

    def _counted(self) -> int:
        unlogged, self._unlogged = self._unlogged, 0
        return unlogged


class LoggedFailures:
    """The failures of one task, as lines of `logger`: the first, one per interval (by default a
    minute), and the end.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        broker: str,
        failed: str,
        over: str,
        interval_ms: int = _TASK_INTERVAL_MS,
    ) -> None:
        """`failed` (followed by the error) and `over` are the messages; `broker` and the count are
        fields.
        """
        self._logger = logger
        self._broker = broker
        self._failed = failed
        self._over = over
        self._failures = RepeatedFailures(interval_ms=interval_ms)

    def failed(
        self, error: Exception, now_ms: int, about: Callable[[], Mapping[str, object]] = dict
    ) -> None:
        """Note a failure. `now_ms` never goes back. `about` returns further fields of its line; it
        is called only if one is due.

        Log other errors than `EquipoiseError` with their traceback.
        """
        failures = self._failures.failed(now_ms)
        if failures is not None:
            bug = None if isinstance(error, EquipoiseError) else error
            level = logging.WARNING if bug is None else logging.ERROR
            fields = {"broker": self._broker, **about(), "failures": failures}
            self._logger.log(
                level, "%s: %s", self._failed, error_text(error), extra=fields, exc_info=bug
            )

    def succeeded(self) -> None:
        """Note a success."""
        failures = self._failures.succeeded()
        if failures is not None:
            self._logger.info(
                "%s", self._over, extra={"broker": self._broker, "failures": failures}
            )


def error_text(error: Exception) -> str:
    """Return the message of an error, with its type if it is not an `EquipoiseError`."""
    return str(error) if isinstance(error, EquipoiseError) else f"{type(error).__name__}: {error}"
