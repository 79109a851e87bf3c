"""Test the tables of bundles and topics through openings, closings, splits and merges."""

from __future__ import annotations

import pytest

from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.pulsar.hosting import Hosting
from equipoise.brokers.pulsar.topics.policies import PolicyTable
from equipoise.brokers.pulsar.topics.topic import SubscriptionState, TopicLimits, TopicState
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind
from equipoise.brokers.runtime.service import Ownership
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.ranges import HASH_MAX, bundle_name, topic_hash
from equipoise.channel.core.records import Document, Scalar
from tests.pulsar.topics import make_producer
from tests.unit.runtime.test_ownership import clock_at_start, good_lease

NAMESPACE = "public/default"
MIDDLE = 0x80000000
NAMES = [f"non-persistent://{NAMESPACE}/{number}" for number in range(8)]
LOW, HIGH = (
    [name for name in NAMES if topic_hash(name) < MIDDLE],
    [name for name in NAMES if topic_hash(name) >= MIDDLE],
)


def ownership(low: int = 0, high: int = HASH_MAX) -> Ownership:
    """An ownership of a range of the namespace."""
    name = bundle_name(NAMESPACE, low, high)
    handle = Handle(
        bundle=name,
        namespace=NAMESPACE,
        low=low,
        high=high,
        token=9,
        lease=good_lease(),
        is_open=True,
    )
    return Ownership(handle, clock=clock_at_start())


def hosting(topics_max: int = 100, tenant_topics_max: int = 100) -> Hosting:
    """Tables without bundles."""
    return Hosting(
        limits=lambda _: TopicLimits(),
        topics_max=topics_max,
        tenant_topics_max=lambda: tenant_topics_max,
    )


def filed(tables: Hosting) -> dict[str, list[str]]:
    """Return the topics of each bundle."""
    return {bundle: sorted(hosted.topics) for bundle, hosted in tables.bundles.items()}


def test_the_names_lie_in_both_halves() -> None:
    assert LOW
    assert HIGH


def test_topics_follow_their_bundles_through_splits_and_merges() -> None:
    tables, whole, left, right = (
        hosting(),
        ownership(),
        ownership(0, MIDDLE),
        ownership(MIDDLE, HASH_MAX),
    )
    assert () == tables.open(whole, {}, now_ms=0)
    made = [tables.topic(whole.bundle.name, name, now_ms=0) for name in NAMES]
    tables.reshape([whole.bundle], [left, right])
    assert {left.bundle.name: LOW, right.bundle.name: HIGH} == filed(tables)
    assert all(
        served is not None and served.ownership is (left if served.point < MIDDLE else right)
        for served in made
    )
    tables.reshape([left.bundle, right.bundle], [whole])
    assert {whole.bundle.name: NAMES} == filed(tables)
    assert NAMES == sorted(tables.topics)


def test_the_policies_of_a_deleted_namespace_are_forgotten() -> None:
    """All its bundles are closed before it is deleted."""
    policies, none = dict[str, Document](), dict[str, Scalar]()
    table = PolicyTable(TopicLimits(), lambda namespace: policies.get(namespace, none))
    tables = Hosting(limits=table.limits_of, topics_max=9, tenant_topics_max=lambda: 9)
    whole, policies[NAMESPACE] = ownership(), {"max_producers_per_topic": 1}
    tables.open(whole, {}, now_ms=0)
    tables.topic(whole.bundle.name, NAMES[0], now_ms=0)
    policies[NAMESPACE] = {}
    assert [NAMESPACE] == table.changed()
    tables.limit(NAMESPACE, now_ms=0)
    tables.close(whole.bundle.name)
    del policies[NAMESPACE]
    assert [NAMESPACE] == table.changed()
    tables.limit(NAMESPACE, now_ms=0)
    policies[NAMESPACE] = {}
    assert [] == table.changed()


def test_a_closed_bundle_takes_its_topics_along() -> None:
    tables, left, right = hosting(), ownership(0, MIDDLE), ownership(MIDDLE, HASH_MAX)
    for half, names in ((left, LOW), (right, HIGH)):
        tables.open(half, {}, now_ms=0)
        for name in names:
            tables.topic(half.bundle.name, name, now_ms=0)
    assert LOW == sorted(served.name for served in tables.close(left.bundle.name))
    assert () == tables.close(left.bundle.name)
    assert tables.topics.get(LOW[0]) is None
    assert tables.topic(left.bundle.name, LOW[0], now_ms=0) is None
    assert HIGH == list(tables.of_namespace(NAMESPACE))


def test_a_bundle_opens_with_the_topics_handed_over() -> None:
    """Topics that are not in it are left out."""
    waiting = TopicState(
        last_entry_id=7,
        subscriptions=(SubscriptionState(name="s", kind=SubscriptionKind.SHARED, expected=("c",)),),
    )
    tables, left = hosting(), ownership(0, MIDDLE)
    opened = tables.open(left, {LOW[0]: waiting, HIGH[0]: waiting}, now_ms=0)
    assert [LOW[0]] == [served.name for served in opened]
    assert (7, False) == (opened[0].topic.last_entry_id, opened[0].topic.is_idle)


def test_topics_are_bounded() -> None:
    tables, whole = hosting(topics_max=2), ownership()
    tables.open(whole, {}, now_ms=0)
    served = [tables.topic(whole.bundle.name, name, now_ms=0) for name in NAMES[:2]]
    assert served[0] is tables.topic(whole.bundle.name, NAMES[0], now_ms=0)
    with pytest.raises(Overloaded):
        tables.topic(whole.bundle.name, NAMES[2], now_ms=0)


def test_the_topics_of_a_tenant_are_bounded() -> None:
    """Those that a former owner hands over may exceed the bound. Topics that are gone make room."""
    tables, whole = hosting(tenant_topics_max=2), ownership()
    kept = tables.open(whole, dict.fromkeys(NAMES[:3], TopicState()), now_ms=0)
    with pytest.raises(Overloaded, match="tenant public"):
        tables.topic(whole.bundle.name, NAMES[3], now_ms=0)
    tables.forget(tables.renew(kept[0], TopicState(), now_ms=0))
    tables.forget(kept[0])
    with pytest.raises(Overloaded):
        tables.topic(whole.bundle.name, NAMES[3], now_ms=0)
    tables.forget(kept[1])
    assert tables.topic(whole.bundle.name, NAMES[3], now_ms=0) is not None
    tables.close(whole.bundle.name)
    tables.open(whole, {}, now_ms=0)
    assert all(tables.topic(whole.bundle.name, name, now_ms=0) is not None for name in NAMES[:2])


def test_an_idle_topic_is_dropped() -> None:
    """Another topic of the same name is not."""
    tables, whole = hosting(), ownership()
    tables.open(whole, {}, now_ms=0)
    served = tables.topic(whole.bundle.name, NAMES[0], now_ms=0)
    assert served is not None
    producer = make_producer()
    served.topic.add_producer(producer)
    tables.forget_if_idle(served)
    assert served is tables.topics.get(NAMES[0])
    served.topic.remove_producers([producer])
    tables.forget_if_idle(served)
    assert tables.topics.get(NAMES[0]) is None
    again = tables.topic(whole.bundle.name, NAMES[0], now_ms=0)
    tables.forget_if_idle(served)
    assert again is tables.topics.get(NAMES[0])
