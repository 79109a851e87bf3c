"""Bound how long the producers of a topic wait for permits of its consumers."""

from __future__ import annotations

from typing import Final

# Waiting may take a tenth of the time: each millisecond of it is paid for with ten.
_PRICE: Final = 10


class Patience:
    """The time that producers may still wait: at most `wait_ms` at once, and a tenth of the time in the long run.

    A consumer whose program pauses for a moment thus loses nothing. One that is slower than its producers costs them a tenth of their time.
    """

    __slots__ = ("_paid_until_ms", "_since_ms", "_window_ms")

    def __init__(self, *, wait_ms: int, now_ms: int) -> None:
        """Start with all of `wait_ms`."""
        self._window_ms = wait_ms * _PRICE
        self._paid_until_ms = now_ms - self._window_ms
        self._since_ms: int | None = None

    def wait(self, now_ms: int) -> bool:
        """Go on waiting, or start to. Return False if no time is left."""
        self.stop(now_ms)
        if max(self._paid_until_ms, now_ms - self._window_ms) >= now_ms:
            return False
        self._since_ms = now_ms
        return True

    def stop(self, now_ms: int) -> None:
        """Stop waiting, and charge for the time since the last `wait`. No-op if nobody waits."""
        if self._since_ms is None:
            return
        paid_until_ms = max(self._paid_until_ms, self._since_ms - self._window_ms) + _PRICE * (now_ms - self._since_ms)
        self._paid_until_ms = min(paid_until_ms, now_ms + self._window_ms)
        self._since_ms = None
