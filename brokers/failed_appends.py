"""Failed appends, as a broker's log tells of them: the first of an outage, and how many came after it.

May live here: what is told when. A log whose disk is full refuses each renewal and each proposal that is made again, so that a
line for each would be hundreds a second, of which the first says it all.
"""

from __future__ import annotations

import logging
from typing import Final

import orjson

from channel.errors import EquipoiseError

_logger: Final = logging.getLogger(__name__)

# While an outage lasts one line in this time says that it does: often enough for whoever looks, and for a rate to be seen.
_TOLD_AGAIN_MS: Final = 10_000


class FailedAppends:
    """What one broker has told of the appends that its log did not take. An outage ends with the first that it does take."""

    def __init__(self, *, broker: str) -> None:
        """`broker` is a field of each line."""
        self._broker = broker
        self._quiet_until_ms: int | None = None
        self._untold = 0
        self._is_told = False

    def failed(self, data: bytes, error: EquipoiseError, now_ms: int) -> None:
        """The log did not take the record `data`, or may not have; `now_ms` is of a clock that never goes back."""
        self._untold += 1
        if self._quiet_until_ms is not None and now_ms < self._quiet_until_ms:
            return
        record = orjson.loads(data)
        about = {"kind": record["kind"], "key": record["key"], "failures": self._untold}
        _logger.warning("append failed: %s", error, extra={"broker": self._broker, **about})
        # From here on, whether or not the log takes something in between: one that takes every other record is no less loud.
        self._quiet_until_ms = now_ms + _TOLD_AGAIN_MS
        self._untold = 0
        self._is_told = True

    def appended(self) -> None:
        """The log took a record. What nobody was told of is told now, or with the next failure."""
        if self._is_told:
            _logger.info("appends succeed again", extra={"broker": self._broker, "failures": self._untold})
            self._is_told = False
            self._untold = 0
