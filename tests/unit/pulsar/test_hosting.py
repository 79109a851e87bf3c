"""Test the tables of bundles and topics through openings, closings, splits and merges."""

from __future__ import annotations

import pytest

from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.pulsar.hosting import Hosting
from equipoise.brokers.pulsar.settings import PolicyTable, Settings
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
        Settings(topics_max=topics_max),
        limits=lambda _: TopicLimits(),
        tenant_topics_max=lambda: tenant_topics_max,
    )


def filed(tables: Hosting) -> dict[str, list[str]]:
    """Return the topics of each bundle."""
    return {bundle: sorted(hosted.topics) for bundle, hosted in tables.bundles.items()}


def test_topics_follow_their_bundles_through_splits_and_merges() -> None:
    tables, whole, left, right = (
        hosting(),
        ownership(),
        ownership(0, MIDDLE),
        ownership(MIDDLE, HASH_MAX),
    )
    tables.open(whole, {})
    made = [tables.topic(whole.bundle.name, name) for name in NAMES]
    tables.reshape([whole.bundle], [left, right])
    assert {left.bundle.name: LOW, right.bundle.name: HIGH} == filed(tables)
    assert all(
        served is not None and served.ownership is (left if served.name in LOW else right)
        for served in made
    )
    tables.reshape([left.bundle, right.bundle], [whole])
    assert {whole.bundle.name: NAMES} == filed(tables)
    assert NAMES == sorted(tables.topics)


def test_the_policies_of_a_deleted_namespace_are_forgotten() -> None:
    """All its bundles are closed before it is deleted."""
    policies, none = dict[str, Document](), dict[str, Scalar]()
    table = PolicyTable(TopicLimits(), lambda namespace: policies.get(namespace, none))
    tables = Hosting(Settings(), limits=table.limits_of, tenant_topics_max=lambda: 9)
    whole, policies[NAMESPACE] = ownership(), {"max_producers_per_topic": 1}
    tables.open(whole, {})
    tables.topic(whole.bundle.name, NAMES[0])
    policies[NAMESPACE] = {}
    assert [NAMESPACE] == table.changed()
    tables.limit(NAMESPACE)
    tables.close(whole.bundle.name, None)
    del policies[NAMESPACE]
    assert [NAMESPACE] == table.changed()
    tables.limit(NAMESPACE)
    policies[NAMESPACE] = {}
    assert [] == table.changed()


def test_a_closed_bundle_takes_its_topics_along() -> None:
    tables, left, right = hosting(), ownership(0, MIDDLE), ownership(MIDDLE, HASH_MAX)
    for half, names in ((left, LOW), (right, HIGH)):
        tables.open(half, {})
        for name in names:
            tables.topic(half.bundle.name, name)
    assert LOW == sorted(tables.close(left.bundle.name, None))
    assert {} == tables.close(left.bundle.name, None)
    assert tables.topics.get(LOW[0]) is None
    assert tables.topic(left.bundle.name, LOW[0]) is None
    assert HIGH == [served.name for served in tables.in_namespace(NAMESPACE)]


async def test_a_bundle_opens_with_the_topics_handed_over() -> None:
    """Topics that are not in it are left out."""
    waiting = TopicState(
        last_entry_id=7,
        subscriptions=(SubscriptionState(name="s", kind=SubscriptionKind.SHARED, expected=("c",)),),
    )
    tables, left = hosting(), ownership(0, MIDDLE)
    tables.open(left, {LOW[0]: waiting, HIGH[0]: waiting})
    ((name, served),) = tables.topics.items()
    assert (LOW[0], 7, False) == (name, served.topic.last_entry_id, served.topic.is_idle)


def test_topics_are_bounded() -> None:
    tables, whole = hosting(topics_max=2), ownership()
    tables.open(whole, {})
    served = [tables.topic(whole.bundle.name, name) for name in NAMES[:2]]
    assert served[0] is tables.topic(whole.bundle.name, NAMES[0])
    with pytest.raises(Overloaded):
        tables.topic(whole.bundle.name, NAMES[2])


async def test_the_topics_of_a_tenant_are_bounded() -> None:
    """Those that a former owner hands over may exceed the bound. Topics that are gone make room."""
    tables, whole = hosting(tenant_topics_max=2), ownership()
    tables.open(whole, dict.fromkeys(NAMES[:3], TopicState()))
    kept = [*tables.topics.values()]
    with pytest.raises(Overloaded, match="tenant public"):
        tables.topic(whole.bundle.name, NAMES[3])
    tables.unload(kept[0])
    tables.delete(tables.topics[kept[0].name])
    tables.delete(kept[0])
    with pytest.raises(Overloaded):
        tables.topic(whole.bundle.name, NAMES[3])
    tables.delete(kept[1])
    assert tables.topic(whole.bundle.name, NAMES[3]) is not None
    tables.close(whole.bundle.name, None)
    tables.open(whole, {})
    assert all(tables.topic(whole.bundle.name, name) is not None for name in NAMES[:2])


def test_an_idle_topic_is_dropped() -> None:
    """Another topic of the same name is not."""
    tables, whole = hosting(), ownership()
    tables.open(whole, {})
    served = tables.topic(whole.bundle.name, NAMES[0])
    assert served is not None
    producer = make_producer()
    served.topic.add_producer(producer)
    tables.forget_if_idle(served)
    assert served is tables.topics.get(NAMES[0])
    served.topic.remove_producers([producer])
    tables.forget_if_idle(served)
    assert tables.topics.get(NAMES[0]) is None
    again = tables.topic(whole.bundle.name, NAMES[0])
    tables.forget_if_idle(served)
    assert again is tables.topics.get(NAMES[0])
