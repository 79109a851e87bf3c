"""Filter the log lines of the Kafka client library: drop repeats and lower their level."""

from __future__ import annotations

import logging
import re
import time
from typing import Final

LIBRARY_LOGGER: Final = "equipoise.channel.kafka.client.librdkafka"
"""The name of the library's logger."""

QUIET_S: Final = 60.0
"""The least time between two equal lines of the library.

An outage brings about ten lines a second; our own line, with the reason, appears every ten seconds.
"""

# Lines that differ only in client, thread, attempt or port are equal: `FAIL [equipoise#producer-7]
# [thrd:10.0.0.1:9092/1]: 10.0.0.1:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused
# (after 0ms in state CONNECT, 30 identical error(s) suppressed)`.
_without_details: Final = re.compile(r"\[[^]]*\]|\(.*\)|\d+").sub

_match_no_trouble: Final = re.compile(r"GETPID .*Coordinator load in progress: retrying").search
"""Normal: a producer asks a Kafka that has just started for its id, and gets it a moment later."""

_SENTENCES_MAX: Final = 256
"""Distinct lines that are remembered. The library has about a hundred; a day of outages brings
ten."""


class NotAgain(logging.Filter):
    """Passes a line of the library that did not appear lately, since an outage is reported by every
    broker at every attempt.

    No line passes above the level warning. Harmless ones pass only at debug. Users of the log
    report what a failure means for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._passed_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is new."""
        text = record.getMessage()
        if _match_no_trouble(text):
            record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
            if not logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
                return False
        sentence = _without_details("", text)
        now_s = time.monotonic()
        if now_s - self._passed_s.get(sentence, -QUIET_S) < QUIET_S:
            return False
        if len(self._passed_s) >= _SENTENCES_MAX:
            self._passed_s.clear()
        self._passed_s[sentence] = now_s
        if record.levelno > logging.WARNING:
            record.levelno, record.levelname = (
                logging.WARNING,
                logging.getLevelName(logging.WARNING),
            )
        return True
