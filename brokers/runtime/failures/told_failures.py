"""What a broker does over and over by itself, and how its log tells that it fails, and that it succeeds again.

May live here: the two lines of one such thing. When they are due is said by `brokers.runtime.failures.repeated_failures`.
"""

from __future__ import annotations

import logging
from typing import Final

from equipoise.brokers.runtime.failures.repeated_failures import RepeatedFailures
from equipoise.channel.core.errors import EquipoiseError

# All of this is tried anew without anybody's doing. What it cannot do for want of the log is told already, by others.
_TOLD_AGAIN_MS: Final = 60_000


class ToldFailures:
    """The failures of one thing at one broker, as lines of `logger`: the first, one a minute, and the end."""

    def __init__(self, logger: logging.Logger, *, broker: str, failed: str, over: str) -> None:
        """`failed` and `over` are the two lines; what has failed follows the former, `broker` and how often are fields of both."""
        self._logger = logger
        self._broker = broker
        self._failed = failed
        self._over = over
        self._failures = RepeatedFailures(told_again_ms=_TOLD_AGAIN_MS)

    def failed(self, error: Exception, now_ms: int) -> None:
        """It has failed; `now_ms` is of a clock that never goes back. What is none of our own errors is a bug, told with its traceback."""
        failures = self._failures.failed(now_ms)
        if failures is not None:
            bug = None if isinstance(error, EquipoiseError) else error
            level = logging.WARNING if bug is None else logging.ERROR
            self._logger.log(level, "%s: %s", self._failed, told_error(error), extra=self._fields(failures), exc_info=bug)

    def succeeded(self) -> None:
        """It has not failed."""
        untold = self._failures.succeeded()
        if untold is not None:
            self._logger.info("%s", self._over, extra=self._fields(untold))

    def _fields(self, failures: int) -> dict[str, object]:
        return {"broker": self._broker, "failures": failures}


def told_error(error: Exception) -> str:
    """An error in a sentence: ours have one, and of all others their type belongs to it."""
    return str(error) if isinstance(error, EquipoiseError) else f"{type(error).__name__}: {error}"
