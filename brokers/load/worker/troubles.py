"""Count faulty messages per broker, and decide when a log line is due.

Pure: the caller passes the time of a monotonic clock.
"""

from __future__ import annotations

from typing import Final

from equipoise.brokers.runtime.failures import RepeatedFailures

TOLD_AGAIN_MS: Final = 60_000
"""The least time between two lines about one broker."""

SUBJECTS_MAX: Final = 1_000
"""The most brokers counted separately, as many as a cluster may have. This bounds the memory if names are forged."""

_OTHERS: Final = "others"


class Troubles:
    """Counts faulty messages by their sender."""

    def __init__(self) -> None:
        self.total = 0
        self._by_subject: dict[str, RepeatedFailures] = {}

    def count(self, subject: str, *, now_ms: int) -> int | None:
        """Count a message of `subject`. If a log line is due now, return how many messages it covers, including this one."""
        self.total += 1
        if subject not in self._by_subject and len(self._by_subject) >= SUBJECTS_MAX:
            subject = _OTHERS
        return self._by_subject.setdefault(subject, RepeatedFailures(interval_ms=TOLD_AGAIN_MS)).failed(now_ms)
