"""Log failed appends: the first of an outage, and how many followed. One line each would be hundreds per second."""

from __future__ import annotations

import logging
from typing import Final

import orjson

from equipoise.brokers.runtime.failures.repeated_failures import RepeatedFailures
from equipoise.channel.core.errors import EquipoiseError

_logger: Final = logging.getLogger(__name__)

# One line per interval shows an outage and its rate.
_TOLD_AGAIN_MS: Final = 10_000


class FailedAppends:
    """Logs one broker's failed appends. An outage ends with the first success."""

    def __init__(self, *, broker: str) -> None:
        """`broker` is a field of each line."""
        self.problem: str | None = None
        """The error of the last append; None if it succeeded."""
        self._broker = broker
        self._failures = RepeatedFailures(told_again_ms=_TOLD_AGAIN_MS)

    def failed(self, data: bytes, error: EquipoiseError, now_ms: int) -> None:
        """Note that the append of `data` failed, or may have. `now_ms` never goes back."""
        self.problem = str(error)
        failures = self._failures.failed(now_ms)
        if failures is not None:
            record = orjson.loads(data)
            about = {"kind": record["kind"], "key": record["key"], "failures": failures}
            _logger.warning("append failed: %s", error, extra={"broker": self._broker, **about})

    def appended(self) -> None:
        """Note a successful append. Unlogged failures are logged now or with the next failure."""
        self.problem = None
        failures = self._failures.succeeded()
        if failures is not None:
            _logger.info("appends succeed again", extra={"broker": self._broker, "failures": failures})
