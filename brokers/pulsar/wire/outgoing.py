"""What a connection has to say and has not written yet.

May live here: the order in which frames go out. How many bytes may pile up is for those to say who decide on messages.
"""

from __future__ import annotations


class Outgoing:
    """Whole frames, of which the urgent ones overtake the others: a sign of life stuck behind a backlog would come too late."""

    __slots__ = ("_bulk", "_is_closed", "_urgent", "waiting_bytes")

    def __init__(self) -> None:
        """Nothing to say yet."""
        self._urgent: list[bytes] = []
        self._bulk: list[bytes] = []
        self._is_closed = False
        self.waiting_bytes = 0

    def say(self, *parts: bytes) -> None:
        """A frame, whole or in parts; unless all has been said."""
        if not self._is_closed:
            self._bulk += parts
            for part in parts:
                self.waiting_bytes += len(part)

    def say_first(self, frame: bytes) -> None:
        """A frame that goes before all that is not as urgent; only ever an answer to what came just now, so never after the end."""
        self._urgent.append(frame)
        self.waiting_bytes += len(frame)

    def close(self) -> None:
        """What was said goes out still, and nothing after it."""
        self._is_closed = True

    def take(self) -> bytes:
        """All that waits, and then nothing does."""
        taken = b"".join((*self._urgent, *self._bulk))
        self._urgent.clear()
        self._bulk.clear()
        self.waiting_bytes = 0
        return taken
