"""Counters, and the rates that they come to per window.

May live here: pure arithmetic over counts and times that come in as arguments. Whose counters these are stands in
`brokers.pulsar.topics.dispatch`, `brokers.pulsar.topics.subscription` and `brokers.pulsar.topics.topic`.
"""

from __future__ import annotations

from typing import Final

_MILLISECONDS_PER_SECOND: Final = 1_000


class Meter:
    """Messages and bytes, counted without end, and their rates per second over the last window that was closed.

    A window lasts from one `roll` to the next; until the first one the rates are 0, as with Pulsar. Counts are added by
    whoever holds the meter, in place (`meter.messages += n`): a call for each message would cost more than the addition.
    """

    __slots__ = ("_bytes_before", "_messages_before", "_rolled_ms", "byte_rate", "bytes", "message_rate", "messages")

    def __init__(self, *, now_ms: int) -> None:
        """The first window begins at `now_ms`."""
        self.messages = 0
        self.bytes = 0
        self.message_rate = 0.0
        self.byte_rate = 0.0
        self._messages_before = 0
        self._bytes_before = 0
        self._rolled_ms = now_ms

    def roll(self, now_ms: int) -> None:
        """Close the window: the rates become those of the time since the last roll. No time passed: they stay."""
        elapsed_ms = now_ms - self._rolled_ms
        if elapsed_ms <= 0:
            return
        self.message_rate = (self.messages - self._messages_before) * _MILLISECONDS_PER_SECOND / elapsed_ms
        self.byte_rate = (self.bytes - self._bytes_before) * _MILLISECONDS_PER_SECOND / elapsed_ms
        self._messages_before = self.messages
        self._bytes_before = self.bytes
        self._rolled_ms = now_ms
