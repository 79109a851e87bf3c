"""Queue the frames that a connection has not written yet.

The callers bound the queue.
"""

from __future__ import annotations


class Outgoing:
    """A queue of whole frames. Urgent ones go first: a PONG behind a backlog would come too late."""

    __slots__ = ("_bulk", "_is_closed", "_urgent", "waiting_bytes")

    def __init__(self) -> None:
        """Start empty."""
        self._urgent: list[bytes] = []
        self._bulk: list[bytes] = []
        self._is_closed = False
        self.waiting_bytes = 0

    def say(self, *parts: bytes) -> None:
        """Append a frame, whole or in parts. No-op after `close`."""
        if not self._is_closed:
            self._bulk += parts
            for part in parts:
                self.waiting_bytes += len(part)

    def say_first(self, frame: bytes) -> None:
        """Append an urgent frame. It always answers what just came, so it never comes after `close`."""
        self._urgent.append(frame)
        self.waiting_bytes += len(frame)

    def close(self) -> None:
        """Accept no more frames. Those queued are still written."""
        self._is_closed = True

    def take(self) -> bytes:
        """Remove and return everything queued."""
        taken = b"".join((*self._urgent, *self._bulk))
        self._urgent.clear()
        self._bulk.clear()
        self.waiting_bytes = 0
        return taken
