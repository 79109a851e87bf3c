"""Define the bounds of one topic, and how long it waits for clients after a move.

`brokers.pulsar.wire.limits` holds the bounds of a connection, `brokers.pulsar.settings` those of a broker.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """The bounds of one topic, and how long it waits for clients after a move.

    * `waiting_entries_max`, `waiting_bytes_max`: the backlog of one subscription; 10 s of 1,000 entries/s of 800 bytes. The topic stores an
      entry once, however many subscriptions wait for it. With larger messages the bytes bind; one entry of the largest size (5 MiB) always
      fits.
    * `subscription_consumers_max`: a publish looks at all 500 consumers if none is ready (30 us). Adding or removing one costs 0.2 ms at
      most (Key_Shared, whose ring then has 50,000 points).
    """

    producers_max: int = 10_000
    subscriptions_max: int = 1_000
    consumers_max: int = 10_000
    subscription_consumers_max: int = 500
    waiting_entries_max: int = 10_000
    waiting_bytes_max: int = 8 * 1024 * 1024
    # One step delivers or drops at most this many waiting entries, or all entries of one subscription. Takes about 10 ms.
    step_entries_max: int = 1_000
    receipt_wait_ms: int = 100
    # How long consumers that are back wait for a missing one, which may have closed during the move and never return.
    absent_wait_ms: int = 1_000
    reconnect_wait_ms: int = 10_000
