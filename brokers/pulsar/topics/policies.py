"""Derive the limits of a namespace's topics from its policies, and keep them until the policies
change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from equipoise.brokers.balancing import topic_policies
from equipoise.brokers.balancing.topic_policies import DispatchRate, PublishRate, SubscriptionType
from equipoise.brokers.pulsar.topics.throttling import Rate
from equipoise.brokers.pulsar.topics.topic import TopicLimits
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind
from equipoise.channel.core.records import Document

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
