"""Failed appends, as a broker's log tells of them: the first of an outage, and how many came after it.

May live here: what these lines say, and how often. A log whose disk is full refuses each renewal and each proposal that is made
again, so that a line for each would be hundreds a second, of which the first says it all.
"""

from __future__ import annotations

import logging
from typing import Final

import orjson

from equipoise.brokers.runtime.failures.repeated_failures import RepeatedFailures
from equipoise.channel.core.errors import EquipoiseError

_logger: Final = logging.getLogger(__name__)

# While an outage lasts one line in this time says that it does: often enough for whoever looks, and for a rate to be seen.
_TOLD_AGAIN_MS: Final = 10_000


class FailedAppends:
    """What one broker tells of the appends that its log did not take. An outage ends with the first that it does take."""

    def __init__(self, *, broker: str) -> None:
        """`broker` is a field of each line."""
        self.problem: str | None = None
        """Why the log took no record when it was last asked to; None if it took it."""
        self._broker = broker
        self._failures = RepeatedFailures(told_again_ms=_TOLD_AGAIN_MS)

    def failed(self, data: bytes, error: EquipoiseError, now_ms: int) -> None:
        """The log did not take the record `data`, or may not have; `now_ms` is of a clock that never goes back."""
        self.problem = str(error)
        failures = self._failures.failed(now_ms)
        if failures is not None:
            record = orjson.loads(data)
            about = {"kind": record["kind"], "key": record["key"], "failures": failures}
            _logger.warning("append failed: %s", error, extra={"broker": self._broker, **about})

    def appended(self) -> None:
        """The log took a record. What nobody was told of is told now, or with the next failure."""
        self.problem = None
        failures = self._failures.succeeded()
        if failures is not None:
            _logger.info("appends succeed again", extra={"broker": self._broker, "failures": failures})
