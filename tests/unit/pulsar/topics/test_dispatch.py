"""The four ways of choosing a consumer, seen through their dispatchers."""

from __future__ import annotations

from collections import Counter

import pytest

from equipoise.brokers.pulsar.topics.dispatch import Consumer, Dispatcher, dispatcher
from equipoise.brokers.pulsar.topics.keys import slot_of
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind
from tests.pulsar.topics import keyed, make_consumer, refused_as, sticky

SLOT = 7


def ready(name: str, *, priority: int = 0, permits: int = 10) -> Consumer:
    """A consumer that may be chosen."""
    consumer = make_consumer(name, priority=priority)
    consumer.permits = permits
    return consumer


def names_chosen(among: Dispatcher, times: int) -> list[str | None]:
    """Whom the dispatcher chooses, one after another."""
    return [None if consumer is None else consumer.name for consumer in (among.choose(SLOT) for _ in range(times))]


def made(kind: SubscriptionKind, *, is_sticky: bool = False, partition: int = -1) -> Dispatcher:
    """A dispatcher without consumers."""
    return dispatcher(kind, is_sticky=is_sticky, partition=partition)


@pytest.mark.parametrize("kind", SubscriptionKind)
def test_only_who_is_ready_is_chosen(kind: SubscriptionKind) -> None:
    """Without a consumer, permits, or room on the connection nobody is chosen."""
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


def test_exclusive_lets_nobody_in_beside_its_consumer() -> None:
    """The second consumer is refused, and the refusal names the holder, whose connection may be dead."""
    among = made(SubscriptionKind.EXCLUSIVE)
    holder = ready("a")
    assert [] == among.add(holder)
    answer = among.add(ready("b"))
    assert ServerError.CONSUMER_BUSY is refused_as(answer)
    assert holder is getattr(answer, "holder", None)
    assert holder is among.active
    assert [] == among.remove([holder])
    assert [] == among.add(ready("b"))


def test_failover_activates_the_first_by_priority_and_name_and_tells_whom_it_concerns() -> None:
    """Told are who becomes active, who ceases to be, and who comes to stand by."""
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


@pytest.mark.parametrize(("partition", "active"), [(-1, "a"), (0, "a"), (1, "b"), (2, "a"), (3, "b")])
def test_failover_spreads_partitions_over_those_of_the_best_priority(partition: int, active: str) -> None:
    """The partition's index chooses among the best, one after another."""
    among = made(SubscriptionKind.FAILOVER, partition=partition)
    for consumer in (ready("b"), ready("a"), ready("z", priority=5)):
        among.add(consumer)
    assert [active] == names_chosen(among, 1)


def test_failover_tells_a_newcomer_that_makes_another_one_active() -> None:
    """In a partition the place in the order decides, and whoever comes may shift it from one of the others to the next."""
    among = made(SubscriptionKind.FAILOVER, partition=2)
    b, c, d, a = ready("b"), ready("c"), ready("d"), ready("a")
    assert [(b, True)] == among.add(b)
    assert [(c, False)] == among.add(c)
    assert [(d, True), (b, False)] == among.add(d)
    assert [(c, True), (d, False), (a, False)] == among.add(a)
    assert [(d, True)] == among.remove([c])
    assert [(a, True), (d, False)] == among.remove([b])


def test_failover_chooses_once_when_many_leave() -> None:
    """Nobody is made active who leaves in the same step, and who leaves is told nothing."""
    among = made(SubscriptionKind.FAILOVER)
    consumers = [ready(f"{number:03}") for number in range(100)]
    for consumer in consumers:
        among.add(consumer)
    assert [(consumers[60], True)] == among.remove(consumers[:60])
    assert [] == among.remove(consumers[60:])


def test_shared_takes_turns_within_a_priority() -> None:
    """Those of the lowest number take turns as far as they are ready; the others only if none of those is."""
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


def test_shared_skips_nobody_when_somebody_leaves() -> None:
    """Whoever would have been next is next, although one before it has gone."""
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
    """All entries of a key go to one consumer, ready or not, and the keys are spread over all."""
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
    kept = [(old, new) for old, new in zip(first, (among.choose(slot) for slot in slots), strict=True) if old is not consumers[0]]
    assert all(old is new for old, new in kept)


def test_sticky_consumers_take_what_they_asked_for() -> None:
    """A slot that nobody asked for is nobody's; ranges that overlap are refused; a consumer that goes frees its range."""
    among = made(SubscriptionKind.KEY_SHARED, is_sticky=True)
    low = make_consumer("low", key_shared=sticky((0, 30_000)))
    low.permits = 1
    assert [] == among.add(low)
    assert ServerError.CONSUMER_ASSIGN_ERROR is refused_as(among.add(make_consumer("b", key_shared=sticky((30_000, 40_000)))))
    assert ServerError.CONSUMER_ASSIGN_ERROR is refused_as(among.add(make_consumer("b")))
    served = Counter(among.choose(slot_of(keyed(f"key {number}"))) for number in range(300))
    assert 0.3 < served[low] / 300 < 0.6
    assert {low, None} == served.keys()
    among.remove([low])
    assert [] == among.add(make_consumer("b", key_shared=sticky((30_000, 40_000))))
