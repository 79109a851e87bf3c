"""Limit how fast a topic is published to, and how fast it delivers. This module is pure: times are
milliseconds that callers pass.

Pulsar limits delivery for stored topics only. There a message above the rate waits; here nothing
can wait, so it is dropped for the subscription, as when its consumers have no permits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.pulsar.topics.clients import Producer
from equipoise.brokers.pulsar.wire.requests import Sent

_MILLISECONDS_PER_SECOND: Final = 1_000

# The longest wait for a debt, in periods. A producer with a rate per second thus waits at most 10 s
# for the next entry, which is less than clients wait for the answer to a PING.
_WAIT_PERIODS_MAX: Final = 10

TURN_LOST_MS: Final = 1_000
"""How long the others wait for the producer that is next. Producers that wait ask twice as
often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How many messages and bytes are allowed in each period. None is no limit."""

    messages: int | None = None
    bytes: int | None = None
    period_ms: int = _MILLISECONDS_PER_SECOND


class Bucket:
    """A token bucket for messages and bytes. It starts full, and holds the tokens of one period at
    most.

    A caller may spend more than there is, because an entry is never divided. The bucket is then
    empty until it has paid the debt and holds a whole token, so that the rate over a longer time is
    the allowed one. Only an entry so large that it takes more than 10 periods exceeds it: more debt
    is forgiven.
    """

    __slots__ = (
        "_bytes",
        "_bytes_max",
        "_bytes_per_ms",
        "_messages",
        "_messages_max",
        "_messages_per_ms",
        "_refilled_ms",
    )

    def __init__(self, rate: Rate, *, now_ms: int) -> None:
        self._messages_max = math.inf if rate.messages is None else float(rate.messages)
        self._bytes_max = math.inf if rate.bytes is None else float(rate.bytes)
        self._messages_per_ms = self._messages_max / rate.period_ms
        self._bytes_per_ms = self._bytes_max / rate.period_ms
        self._messages = self._messages_max
        self._bytes = self._bytes_max
        self._refilled_ms = now_ms

    def refill(self, now_ms: int) -> None:
        """Add the tokens of the time since the last call."""
        elapsed_ms = now_ms - self._refilled_ms
        if elapsed_ms > 0:
            self._refilled_ms = now_ms
            self._messages = min(
                self._messages + elapsed_ms * self._messages_per_ms, self._messages_max
            )
            self._bytes = min(self._bytes + elapsed_ms * self._bytes_per_ms, self._bytes_max)

    def spend(self, messages: int, bytes_: int) -> None:
        """Take tokens, also if there are not enough."""
        self._messages = max(self._messages - messages, 1 - _WAIT_PERIODS_MAX * self._messages_max)
        self._bytes = max(self._bytes - bytes_, 1 - _WAIT_PERIODS_MAX * self._bytes_max)

    def room_for(self, entries: Sequence[Sent]) -> int:
        """Return how many of these entries to spend before the bucket is empty, with the one that
        empties it.
        """
        messages, bytes_ = self._messages, self._bytes
        for place, entry in enumerate(entries):
            if messages < 1 or bytes_ < 1:
                return place
            messages -= entry.messages
            bytes_ -= len(entry.block)
        return len(entries)

    @property
    def is_empty(self) -> bool:
        """Whether the next entry must wait or be dropped."""
        return self._messages < 1 or self._bytes < 1

    @property
    def wait_ms(self) -> int:
        """The time until the bucket is no longer empty; 0 if it is not."""
        supplies = ((self._messages, self._messages_per_ms), (self._bytes, self._bytes_per_ms))
        return max(
            (math.ceil((1 - tokens) / per_ms) for tokens, per_ms in supplies if tokens < 1),
            default=0,
        )


# Waiting may take a tenth of the time: each millisecond of it is paid for with ten.
_PRICE: Final = 10


class Patience:
    """The time that producers may still wait: at most `wait_ms` at once, and a tenth of the time in
    the long run.

    A consumer whose program pauses for a moment thus loses nothing. One that is slower than its
    producers costs them a tenth of their time.
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
        paid_until_ms = max(self._paid_until_ms, self._since_ms - self._window_ms) + _PRICE * (
            now_ms - self._since_ms
        )
        self._paid_until_ms = min(paid_until_ms, now_ms + self._window_ms)
        self._since_ms = None


class Turns:
    """The producers of a topic that wait for its publish rate, in the order of their turns.

    Without turns, the producer that happens to ask first after each wait would take all that the
    rate allows, each time.
    """

    __slots__ = ("_asked_ms",)

    def __init__(self) -> None:
        self._asked_ms: dict[Producer, int] = {}

    def take(self, producer: Producer, room: int, now_ms: int) -> int:
        """Return `room`, how many entries the rate allows now, if it is the producer's turn.
        Otherwise let it wait, and return 0.
        """
        if room and self._first(producer, now_ms) is producer:
            self._asked_ms.pop(producer, None)
            return room
        self._asked_ms[producer] = now_ms  # One that waits already keeps its turn.
        return 0

    def _first(self, producer: Producer, now_ms: int) -> Producer:
        """Return the next producer. Drop those that ask no longer."""
        while (
            first := next(iter(self._asked_ms), producer)
        ) is not producer and now_ms - self._asked_ms[first] >= TURN_LOST_MS:
            del self._asked_ms[first]
        return first

    def forget(self, producer: Producer) -> None:
        """Drop a producer that is gone."""
        self._asked_ms.pop(producer, None)

    @property
    def are_awaited(self) -> bool:
        """Whether producers wait."""
        return bool(self._asked_ms)
