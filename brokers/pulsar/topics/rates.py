"""Count entries, messages and bytes, and compute rates per window."""

from __future__ import annotations

from typing import Final

_MILLISECONDS_PER_SECOND: Final = 1_000


class Meter:
    """Total entries, messages and bytes, and the rates per second of messages and bytes over the
    last closed window.

    An entry is what a producer sends at once: one message, or a batch. Only the meters of a topic
    count entries; nothing else needs them.

    A window lasts from one `roll` to the next. The rates are 0 until the first `roll`, as in
    Pulsar. Callers add to the counts in place (`meter.messages += n`), because a call per message
    costs more than the addition.
    """

    __slots__ = (
        "_bytes_before",
        "_messages_before",
        "_rolled_ms",
        "byte_rate",
        "bytes",
        "entries",
        "message_rate",
        "messages",
    )

    def __init__(self, *, now_ms: int) -> None:
        """Start the first window at `now_ms`."""
        self.entries = 0
        self.messages = 0
        self.bytes = 0
        self.message_rate = 0.0
        self.byte_rate = 0.0
        self._messages_before = 0
        self._bytes_before = 0
        self._rolled_ms = now_ms

    def roll(self, now_ms: int) -> None:
        """Close the window and set the rates to those of the time since the last roll. Keep the
        rates if no time has passed.
        """
        elapsed_ms = now_ms - self._rolled_ms
        if elapsed_ms <= 0:
            return
        self.message_rate = (
            (self.messages - self._messages_before) * _MILLISECONDS_PER_SECOND / elapsed_ms
        )
        self.byte_rate = (self.bytes - self._bytes_before) * _MILLISECONDS_PER_SECOND / elapsed_ms
        self._messages_before = self.messages
        self._bytes_before = self.bytes
        self._rolled_ms = now_ms
