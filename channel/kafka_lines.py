"""What the Kafka client's library has to say, as a process's log tells it: each line once in a while, and none too loud.

May live here: a filter for the library's logger.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final

LIBRARY_LOGGER: Final = "channel.kafka_client.librdkafka"
"""What Python's logging calls the library."""

QUIET_S: Final = 10.0
"""The least time between two lines of the library's log that differ in numbers alone. An outage brings some ten a second."""

_without_numbers: Final = re.compile(r"\d+").sub

_SENTENCES_MAX: Final = 256
"""Different lines of the library that are remembered: it has some hundred, of which a day of outages brings ten."""


class NotAgain(logging.Filter):
    """Lets a line of the library's log pass that was not there lately: an outage is told by every broker, at every attempt.

    None passes as more than a warning. What it means for the log is for those to say who use the log.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is new."""
        sentence = _without_numbers("", record.getMessage())
        now_s = time.monotonic()
        if now_s - self._told_s.get(sentence, -QUIET_S) < QUIET_S:
            return False
        if len(self._told_s) >= _SENTENCES_MAX:
            self._told_s.clear()
        self._told_s[sentence] = now_s
        if record.levelno > logging.WARNING:
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        return True
