"""Define the bounds and timeouts of the Pulsar service, with their arithmetic, and what policies of
a namespace make of them.

The bounds are fixed for the product. `brokers.runtime.config` has the operator's settings,
`brokers.pulsar.wire.limits` the bounds of one connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from equipoise.brokers.balancing import topic_policies
from equipoise.brokers.balancing.topic_policies import DispatchRate, PublishRate, SubscriptionType
from equipoise.brokers.pulsar.topics.throttling import Rate
from equipoise.brokers.pulsar.topics.topic import TopicLimits
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind
from equipoise.channel.core.records import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The bounds and timeouts of the service. Durations are in milliseconds, sizes in bytes."""

    topics: TopicLimits = field(default_factory=TopicLimits)
    # An idle topic with one producer and one consumer takes 6 KiB: 600 MB in total.
    topics_max: int = 100_000
    # How long a created topic exists without clients: Pulsar's default for inactive topics.
    inactive_ms: int = 60_000
    # Clients time out a request after 30 s. If it fails before that, they retry it.
    hold_ms: int = 25_000
    # A source closes within its deadline of 5 s, or the move is abandoned.
    warming_hold_ms: int = 5_000
    # How long the consumers of a moved bundle wait until their client has received its messages. A
    # slower client loses the rest, as in Pulsar. A process that gets no CPU for 0.3 s is common on
    # a busy machine. The bundle and other clients do not wait for it, except consumers of the same
    # subscription, which wait `absent_wait_ms` at most. A broker that ends waits for twice this
    # time.
    drain_wait_ms: int = 1_000
    # The minimum of `pulsar_settle_ms` (`brokers.runtime.config`) for Java clients: their PONG
    # overtakes messages that pass from one thread to the next.
    settle_java_ms: int = 25
    # Kept states of closed bundles: all that may wait in topics (`all_waiting_bytes_max`), since a
    # drain closes them all at once, and a quarter more for rows and names. The states are not
    # copied.
    closed_bytes_max: int = 640 * 1024 * 1024
    # The next owner fetches while it opens, within 10 s by default, and perhaps once more if that
    # fails.
    closed_ms: int = 60_000
    # A stopping broker answers fetches this long, since next owners open within 10 s. It stops
    # earlier if no fetch comes for `next_fetch_ms`.
    all_fetched_ms: int = 10_000
    next_fetch_ms: int = 2_000
    # A fetch that fails within this time is retried, so that both tries fit into those 10 s.
    fetch_again_ms: int = 2_000
    # Unread bytes of one client in this process: 50 ms at 20 MB/s. More messages are dropped and
    # counted.
    write_buffer_bytes: int = 1024 * 1024
    # The same for what waited for a client after a move (8 MiB per subscription), plus an entry of
    # the largest size.
    messages_behind_bytes_max: int = 16 * 1024 * 1024
    # The same for messages and answers. Only a client that keeps asking and never reads exceeds
    # this; it is disconnected.
    behind_bytes_max: int = 24 * 1024 * 1024
    # Unread bytes of all clients of a broker: 24 clients at their worst, or 5,000 with 100 KiB
    # each. Beyond the first bound, messages for clients above their share are dropped. Beyond the
    # second, such clients are disconnected if they still ask.
    all_messages_behind_bytes_max: int = 384 * 1024 * 1024
    all_behind_bytes_max: int = 512 * 1024 * 1024
    # Unfinished frames of all clients: 50 entries of the largest size. Beyond this the slowest
    # client is disconnected.
    all_unfinished_bytes_max: int = 256 * 1024 * 1024
    # Bytes that wait in all topics after moves, checked each tick: 64 busy topics at their worst.
    # Beyond this the largest topics stop waiting.
    all_waiting_bytes_max: int = 512 * 1024 * 1024
    # A name may be held by a connection that died unnoticed. It has this long to answer a PING.
    probe_ms: int = 2_000
    # How often connections are checked for silence. A keep-alive of 30 s is then at most 3 % late.
    tick_ms: int = 1_000
    # Connections or topics handled per batch of a tick: about 1 ms.
    tick_batch: int = 500
    # How long another broker may take to list its topics.
    peer_ms: int = 5_000
    # How long brokers are asked again while a bundle moves. A caller may wait for two shared
    # answers, each taking this long plus one more question: 26 s in total, of the client's 30 s.
    moving_ms: int = 8_000


_KINDS: Final[Mapping[SubscriptionType, SubscriptionKind]] = {
    each: SubscriptionKind[each.name] for each in SubscriptionType
}
_MILLISECONDS_PER_SECOND: Final = 1_000


def limits_under(base: TopicLimits, policies: Document) -> TopicLimits:
    """Return the limits of the topics of a namespace: `base`, or the policies where they are
    lower.
    """

    def lower(bound: int, policy: topic_policies.TopicPolicy) -> int:
        # As in Pulsar, 0 is no limit.
        return min(bound, policy.value_in(policies) or bound)

    types = topic_policies.SUBSCRIPTION_TYPES.value_in(policies)
    return replace(
        base,
        producers_max=lower(base.producers_max, topic_policies.MAX_PRODUCERS),
        consumers_max=lower(base.consumers_max, topic_policies.MAX_CONSUMERS),
        subscription_consumers_max=lower(
            base.subscription_consumers_max, topic_policies.MAX_SUBSCRIPTION_CONSUMERS
        ),
        subscriptions_max=lower(base.subscriptions_max, topic_policies.MAX_SUBSCRIPTIONS),
        kinds=frozenset(_KINDS[each] for each in types) if types else None,
        publish_rate=_rate(topic_policies.PUBLISH_RATE.value_in(policies)),
        dispatch_rate=_rate(topic_policies.DISPATCH_RATE.value_in(policies)),
        subscription_dispatch_rate=_rate(
            topic_policies.SUBSCRIPTION_DISPATCH_RATE.value_in(policies)
        ),
    )


def _rate(rate: PublishRate | DispatchRate | None) -> Rate | None:
    """Return a rate of a policy; None if it limits nothing."""
    if rate is None or max(rate.messages, rate.bytes) <= 0:
        return None
    period_s = rate.period_s if isinstance(rate, DispatchRate) else 1
    messages, bytes_ = (each if each > 0 else None for each in (rate.messages, rate.bytes))
    return Rate(messages=messages, bytes=bytes_, period_ms=period_s * _MILLISECONDS_PER_SECOND)


class PolicyTable:
    """The policies of the namespaces whose topics are served here, and what follows from them."""

    def __init__(self, base: TopicLimits, current: Callable[[str], Document]) -> None:
        """`base` are the limits of a topic without policies, `current` returns the policies of a
        namespace.
        """
        self._current = current
        self._base = base
        self._known: dict[str, tuple[Document, TopicLimits]] = {}

    def limits_of(self, namespace: str) -> TopicLimits:
        """Return the limits of the topics of a namespace."""
        known = self._known.get(namespace)
        if known is None:
            policies = self._current(namespace)
            known = self._known[namespace] = policies, limits_under(self._base, policies)
        return known[1]

    def changed(self) -> Sequence[str]:
        """Return the namespaces whose policies have changed since `limits_of`, and forget them."""
        changed = [
            name
            for name, (policies, _) in self._known.items()
            if self._current(name) is not policies
        ]
        for name in changed:
            del self._known[name]
        return changed
