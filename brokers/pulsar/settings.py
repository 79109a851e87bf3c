"""How the Pulsar service behaves: its bounds and its patience, with the arithmetic of each.

May live here: `Settings`, whose values are the product's and not an operator's to turn; what he may turn is in
`brokers.runtime.config`. The bounds of one connection are in `brokers.pulsar.wire.limits`, those of a topic with the topic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from equipoise.brokers.pulsar.topics.topic_limits import TopicLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Durations in milliseconds, sizes in bytes."""

    topics: TopicLimits = field(default_factory=TopicLimits)
    # An idle topic with one producer and one consumer takes 6 KiB: 600 MB in all.
    topics_max: int = 100_000
    # Clients give up a request after 30 s, and one that is answered before that asks again by itself.
    hold_ms: int = 25_000
    # A source closes within its own deadline of 5 s, or it is abandoned.
    warming_hold_ms: int = 5_000
    # How long a move waits for clients to take what they were sent. One that is slower loses what it has not taken, as in Pulsar.
    drain_wait_ms: int = 50
    # What clients in Java have at least of what `brokers.runtime.config` says of `pulsar_settle_ms`: their PONG overtakes messages on the
    # way from one thread to the next.
    settle_java_ms: int = 25
    # States of bundles that were closed here, kept for their next owners: all that may have waited in topics (`all_waiting_bytes_max`),
    # which a drain closes at once, and a quarter more for rows and names. It is what the topics held, and not copied.
    parted_bytes_max: int = 640 * 1024 * 1024
    # The next owner asks while it opens, for which it has 10 s by default; and after it, if it fails at that, perhaps one more.
    parted_ms: int = 60_000
    # A broker that ends answers for as long: next owners open within 10 s. It goes before that if nobody has asked for so long.
    all_fetched_ms: int = 10_000
    next_fetch_ms: int = 2_000
    # A question for such a state that failed within this time is asked again, so that both fit into those 10 s.
    fetch_again_ms: int = 2_000
    # What a client may be behind with what is written to it, in the process: 50 ms at 20 MB/s. More is dropped, and counted.
    write_buffer_bytes: int = 1024 * 1024
    # The same for what waited for a client after a move (8 MiB of a subscription), and for an entry of the largest size on top.
    messages_behind_bytes_max: int = 16 * 1024 * 1024
    # The same for all: beyond are only answers to one who asks on and on, and never reads. It is disconnected.
    behind_bytes_max: int = 24 * 1024 * 1024
    # The same of all clients of a broker together. Beyond the first, messages for those who are behind by more than their share are
    # dropped; beyond the second, who is, and still asks, is disconnected. 24 clients at their worst, or 5,000 with 100 KiB each.
    all_messages_behind_bytes_max: int = 384 * 1024 * 1024
    all_behind_bytes_max: int = 512 * 1024 * 1024
    # What all clients of a broker have begun to say and not finished: 50 entries of the largest size. Beyond, the slowest has to go.
    all_unfinished_bytes_max: int = 256 * 1024 * 1024
    # What waits in all topics for clients that are to come back after a move, looked at each tick: 64 busy topics at their worst.
    # Beyond, those topics wait no longer in which most does.
    all_waiting_bytes_max: int = 512 * 1024 * 1024
    # A name that is taken may be held by a connection that died unheard. It has this long to show that it lives.
    probe_ms: int = 2_000
    # How often connections are looked at for silence: a keep-alive of 30 s is then off by 3 % at most.
    tick_ms: int = 1_000
    # Of what is done for each connection, or each topic, at a tick: so many at a time, which is a millisecond.
    tick_batch: int = 500
    # How long another broker may take to say which topics it has.
    peer_ms: int = 5_000
    # How long they are asked again, because a bundle is on its way between them. Who shares the next answer may wait for two, each
    # as long as this and one more question: 26 s in all, of the 30 that clients have.
    moving_ms: int = 8_000
