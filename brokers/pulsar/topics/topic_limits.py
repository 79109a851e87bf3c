"""Every bound on what one topic may cost, and how long it waits for clients, with the arithmetic.

May live here: `TopicLimits`. The bounds of a connection are in `brokers.pulsar.wire.limits`, those of a broker in
`brokers.pulsar.settings`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """The bounds of one topic, and how long it waits for clients after a move.

    What waits is held once however many subscriptions wait for it, and is bounded for each of them: 10 s of 1,000 entries/s
    of 800 bytes. Where messages are larger the bytes bind; one entry of the largest size (5 MiB) always fits.

    Of one subscription, 500 consumers: a publish looks at all of them where none is ready (30 us), and one that comes or goes
    costs 0.2 ms at most (Key_Shared, whose ring has 50,000 points then).
    """

    producers_max: int = 10_000
    subscriptions_max: int = 1_000
    consumers_max: int = 10_000
    subscription_consumers_max: int = 500
    waiting_entries_max: int = 10_000
    waiting_bytes_max: int = 8 * 1024 * 1024
    # Of what waits, so much is handed out or given up in one step, or what waits for one subscription; some 10 ms.
    step_entries_max: int = 1_000
    receipt_wait_ms: int = 100
    # How long those who are back stand still for one who is not, and may never be: he may have been closed as the bundle moved.
    absent_wait_ms: int = 1_000
    reconnect_wait_ms: int = 10_000
