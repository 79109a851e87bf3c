"""Test the four ways to choose a consumer."""

from __future__ import annotations

from collections import Counter

import pytest

from equipoise.brokers.pulsar.topics.clients import Consumer
from equipoise.brokers.pulsar.topics.dispatch import Dispatcher, dispatcher
from equipoise.brokers.pulsar.topics.keys import slot_of
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind
from tests.pulsar.topics import keyed, make_consumer, refused_as, sticky

SLOT = 7


def ready(name: str, *, priority: int = 0, permits: int = 10) -> Consumer:
    """A ready consumer."""
    consumer = make_consumer(name, priority=priority)
    consumer.permits = permits
    return consumer


def names_chosen(among: Dispatcher, times: int) -> list[str | None]:
    """Return the names that the dispatcher chooses, one after another."""
    return [
        None if consumer is None else consumer.name
        for consumer in (among.choose(SLOT) for _ in range(times))
    ]


def made(kind: SubscriptionKind, *, is_sticky: bool = False, partition: int = -1) -> Dispatcher:
    """A dispatcher without consumers."""
    return dispatcher(kind, is_sticky=is_sticky, partition=partition)


@pytest.mark.parametrize("kind", SubscriptionKind)
def test_only_a_ready_consumer_is_chosen(kind: SubscriptionKind) -> None:
    among = made(kind)
    assert among.choose(SLOT) is None
    consumer = ready("a")
    among.add(consumer)
    assert consumer is among.choose(SLOT)
    consumer.is_writable = False
    assert among.choose(SLOT) is None
    consumer.is_writable, consumer.permits = True, 0
    assert among.choose(SLOT) is None
    consumer.permits = 10
    among.remove([consumer])
    assert among.choose(SLOT) is None


def test_exclusive_refuses_a_second_consumer() -> None:
    """The refusal names the holder, whose connection may be dead."""
    among = made(SubscriptionKind.EXCLUSIVE)
    holder = ready("a")
    assert [] == among.add(holder)
    answer = among.add(ready("b"))
    assert ServerError.CONSUMER_BUSY is refused_as(answer)
    assert holder is getattr(answer, "holder", None)
    assert holder is among.active
    assert [] == among.remove([holder])
    assert [] == among.add(ready("b"))


def test_failover_activates_the_first_consumer_by_priority_and_name() -> None:
    """The new, the former and the joining consumer are notified."""
    among = made(SubscriptionKind.FAILOVER)
    b, c, a, low = ready("b"), ready("c"), ready("a"), ready("0", priority=1)
    assert [(b, True)] == among.add(b)
    assert [(c, False)] == among.add(c)
    assert [(low, False)] == among.add(low)
    assert [(a, True), (b, False)] == among.add(a)
    assert ["a", "a"] == names_chosen(among, 2)
    a.permits = 0
    assert [None] == names_chosen(among, 1)  # No permits: dropped, not failed over.
    assert [] == among.remove([c])
    assert [(b, True)] == among.remove([a])
    assert [(low, True)] == among.remove([b])
    assert low is among.active
    assert [] == among.remove([low])
    assert among.active is None


@pytest.mark.parametrize(
    ("partition", "active"), [(-1, "a"), (0, "a"), (1, "b"), (2, "a"), (3, "b")]
)
def test_failover_spreads_partitions_over_the_best_priority(partition: int, active: str) -> None:
    among = made(SubscriptionKind.FAILOVER, partition=partition)
    for consumer in (ready("b"), ready("a"), ready("z", priority=5)):
        among.add(consumer)
    assert [active] == names_chosen(among, 1)


def test_failover_notifies_a_newcomer_that_activates_another_consumer() -> None:
    """In a partition each newcomer may shift which consumer is active."""
    among = made(SubscriptionKind.FAILOVER, partition=2)
    b, c, d, a = ready("b"), ready("c"), ready("d"), ready("a")
    assert [(b, True)] == among.add(b)
    assert [(c, False)] == among.add(c)
    assert [(d, True), (b, False)] == among.add(d)
    assert [(c, True), (d, False), (a, False)] == among.add(a)
    assert [(d, True)] == among.remove([c])
    assert [(a, True), (d, False)] == among.remove([b])


def test_failover_chooses_once_when_many_leave() -> None:
    among = made(SubscriptionKind.FAILOVER)
    consumers = [ready(f"{number:03}") for number in range(100)]
    for consumer in consumers:
        among.add(consumer)
    assert [(consumers[60], True)] == among.remove(consumers[:60])
    assert [] == among.remove(consumers[60:])


def test_shared_takes_turns_within_a_priority() -> None:
    """A worse priority is used only if no consumer of a better one is ready."""
    among = made(SubscriptionKind.SHARED)
    low, a, b, c = ready("low", priority=1), ready("a"), ready("b"), ready("c")
    for consumer in (low, a, b, c):
        among.add(consumer)
    assert ["a", "b", "c", "a"] == names_chosen(among, 4)
    b.permits = 0
    assert ["c", "a", "c"] == names_chosen(among, 3)
    a.permits = c.permits = 0
    assert ["low"] == names_chosen(among, 1)
    assert among.active is None


def test_shared_keeps_its_turn_when_a_consumer_leaves() -> None:
    among = made(SubscriptionKind.SHARED)
    consumers = [ready(name) for name in "abcd"]
    for consumer in consumers:
        among.add(consumer)
    assert ["a", "b"] == names_chosen(among, 2)
    among.remove([consumers[0]])
    assert ["c", "d", "b"] == names_chosen(among, 3)
    among.remove([consumers[3]])
    assert ["c", "b", "c"] == names_chosen(among, 3)


def test_key_shared_keeps_each_key_with_one_consumer() -> None:
    """The other consumers do not get its keys while it is not ready."""
    among = made(SubscriptionKind.KEY_SHARED)
    consumers = [ready("same"), ready("same"), ready("c")]
    for consumer in consumers:
        assert [] == among.add(consumer)
    slots = [slot_of(keyed(f"key {number}")) for number in range(300)]
    first = [among.choose(slot) for slot in slots]
    assert first == [among.choose(slot) for slot in slots]
    assert min(Counter(consumers.index(each) for each in first if each is not None).values()) > 30
    consumers[0].permits = 0
    expected = [None if each is consumers[0] else each for each in first]
    assert expected == [among.choose(slot) for slot in slots]
    among.remove([consumers[0]])
    kept = [
        (old, new)
        for old, new in zip(first, (among.choose(slot) for slot in slots), strict=True)
        if old is not consumers[0]
    ]
    assert all(old is new for old, new in kept)


def test_sticky_consumers_get_the_ranges_that_they_name() -> None:
    """Overlapping ranges are refused. Other slots have no consumer."""
    among = made(SubscriptionKind.KEY_SHARED, is_sticky=True)
    low = make_consumer("low", key_shared=sticky((0, 30_000)))
    low.permits = 1
    assert [] == among.add(low)
    assert ServerError.CONSUMER_ASSIGN_ERROR is refused_as(
        among.add(make_consumer("b", key_shared=sticky((30_000, 40_000))))
    )
    assert ServerError.CONSUMER_ASSIGN_ERROR is refused_as(among.add(make_consumer("b")))
    served = Counter(among.choose(slot_of(keyed(f"key {number}"))) for number in range(300))
    assert 0.3 < served[low] / 300 < 0.6
    assert {low, None} == served.keys()
    among.remove([low])
    assert [] == among.add(make_consumer("b", key_shared=sticky((30_000, 40_000))))
