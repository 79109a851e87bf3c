"""What the Kafka client's library has to say, as a process's log tells it: each line once in a while, and none too loud.

May live here: a filter for the library's logger.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final

LIBRARY_LOGGER: Final = "equipoise.channel.kafka.client.librdkafka"
"""What Python's logging calls the library."""

QUIET_S: Final = 60.0
"""The least time between two lines of the library's log that say the same. An outage brings some ten a second, and has a line of
ours, with its reason, every ten seconds."""

# The same of another client, thread, try or port is the same: `FAIL [equipoise#producer-7] [thrd:10.0.0.1:9092/1]: 10.0.0.1:9092/1:
# Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT, 30 identical error(s) suppressed)`.
_without_details: Final = re.compile(r"\[[^]]*\]|\(.*\)|\d+").sub

_match_no_trouble: Final = re.compile(r"GETPID .*Coordinator load in progress: retrying").search
"""A producer asks a Kafka that has just started for its number, and has it a moment later."""

_SENTENCES_MAX: Final = 256
"""Different lines of the library that are remembered: it has some hundred, of which a day of outages brings ten."""


class NotAgain(logging.Filter):
    """Lets a line of the library's log pass that was not there lately: an outage is told by every broker, at every attempt.

    None passes as more than a warning, and one that tells of no trouble only where everything is told. What it means for the log
    is for those to say who use the log.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is new."""
        said = record.getMessage()
        if _match_no_trouble(said):
            record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
            if not logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
                return False
        sentence = _without_details("", said)
        now_s = time.monotonic()
        if now_s - self._told_s.get(sentence, -QUIET_S) < QUIET_S:
            return False
        if len(self._told_s) >= _SENTENCES_MAX:
            self._told_s.clear()
        self._told_s[sentence] = now_s
        if record.levelno > logging.WARNING:
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        return True
