"""Log that a background task of a broker fails repeatedly, and that it succeeds again."""

from __future__ import annotations

import logging
from typing import Final

from equipoise.brokers.runtime.failures.repeated_failures import RepeatedFailures
from equipoise.channel.core.errors import EquipoiseError

# These tasks are retried automatically. Failures of the log are logged elsewhere.
_TOLD_AGAIN_MS: Final = 60_000


class ToldFailures:
    """The failures of one task, as lines of `logger`: the first, one per minute, and the end."""

    def __init__(self, logger: logging.Logger, *, broker: str, failed: str, over: str) -> None:
        """`failed` (followed by the error) and `over` are the messages; `broker` and the count are fields."""
        self._logger = logger
        self._broker = broker
        self._failed = failed
        self._over = over
        self._failures = RepeatedFailures(told_again_ms=_TOLD_AGAIN_MS)

    def failed(self, error: Exception, now_ms: int) -> None:
        """Note a failure. `now_ms` never goes back. Log other errors than `EquipoiseError` with their traceback."""
        failures = self._failures.failed(now_ms)
        if failures is not None:
            bug = None if isinstance(error, EquipoiseError) else error
            level = logging.WARNING if bug is None else logging.ERROR
            self._logger.log(level, "%s: %s", self._failed, told_error(error), extra=self._fields(failures), exc_info=bug)

    def succeeded(self) -> None:
        """Note a success."""
        untold = self._failures.succeeded()
        if untold is not None:
            self._logger.info("%s", self._over, extra=self._fields(untold))

    def _fields(self, failures: int) -> dict[str, object]:
        return {"broker": self._broker, "failures": failures}


def told_error(error: Exception) -> str:
    """Return the message of an error, with its type if it is not an `EquipoiseError`."""
    return str(error) if isinstance(error, EquipoiseError) else f"{type(error).__name__}: {error}"
