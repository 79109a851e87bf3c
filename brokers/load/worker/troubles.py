"""What is wrong with what brokers say: counted, and named in a log line now and then.

May live here: for how many messages a line stands that is due. Pure: the time comes from a clock that never goes back.
"""

from __future__ import annotations

from typing import Final

from equipoise.brokers.runtime.failures.repeated_failures import RepeatedFailures

TOLD_AGAIN_MS: Final = 60_000
"""Between two lines about one broker lies a minute at least."""

SUBJECTS_MAX: Final = 1_000
"""So many brokers are told apart, as many as one cluster is meant for: whoever invents names fills no memory."""

_OTHERS: Final = "others"


class Troubles:
    """The messages with which something is wrong, by whom they are of."""

    def __init__(self) -> None:
        self.total = 0
        self._by_subject: dict[str, RepeatedFailures] = {}

    def count(self, subject: str, *, now_ms: int) -> int | None:
        """For how many messages of `subject` a line stands that is due now, this one among them; None if none is."""
        self.total += 1
        if subject not in self._by_subject and len(self._by_subject) >= SUBJECTS_MAX:
            subject = _OTHERS
        return self._by_subject.setdefault(subject, RepeatedFailures(told_again_ms=TOLD_AGAIN_MS)).failed(now_ms)
