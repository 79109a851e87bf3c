"""Test a topic that has just moved here: which consumers it waits for, what it holds, and when it
stops waiting.
"""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.topics.arrivals import Arrivals, Entry
from equipoise.brokers.pulsar.topics.topic import (
    Replaced,
    SubscriptionState,
    TopicLimits,
    TopicState,
)
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind
from tests.pulsar.topics import (
    delivered,
    expecting,
    joined,
    keyed,
    make_consumer,
    make_producer,
    make_topic,
    produced,
    receipted,
    refused_as,
    send,
    state_of,
    sticky,
)

EXCLUSIVE, SHARED, KEY_SHARED = (
    SubscriptionKind.EXCLUSIVE,
    SubscriptionKind.SHARED,
    SubscriptionKind.KEY_SHARED,
)


def test_entries_and_receipts_wait_until_all_consumers_are_back() -> None:
    """The last consumer's permits release everything in order."""
    topic, producer = produced(state_of(expecting("a", "b")))
    assert ([], []) == (
        delivered(send(topic, producer, now_ms=1)),
        receipted(send(topic, producer, now_ms=2)),
    )
    joined(topic, "a", kind=SHARED, now_ms=3)
    assert [] == delivered(send(topic, producer, now_ms=4))
    b = joined(topic, "b", kind=SHARED, permits=0, now_ms=5)
    assert [100] == [topic.wake_at_ms]
    outcome = topic.flow(b, 10, 6)
    assert [("a", 41), ("b", 42), ("a", 43)] == delivered(outcome)
    assert [41, 42, 43] == receipted(outcome)
    assert topic.wake_at_ms is None
    after = send(topic, producer, now_ms=7)
    assert ([("b", 44)], [44]) == (delivered(after), receipted(after))


def test_a_new_subscription_without_entries_ends_with_the_holding() -> None:
    topic = make_topic(state_of(expecting("a")))
    topic.remove_consumers([joined(topic, "x", "new", EXCLUSIVE)])
    topic.tick(100)
    assert ["s"] == list(topic.subscriptions)


def test_receipts_can_be_released_early() -> None:
    """Entries for consumers that are back go out with them."""
    topic, producer = produced(state_of(expecting("a"), expecting("b", subscription="t")))
    joined(topic, "b", "t", SHARED)
    send(topic, producer, now_ms=1)
    outcome = topic.release_receipts()
    assert ([("b", 41)], [41]) == (delivered(outcome), receipted(outcome))
    assert [] == receipted(topic.release_receipts())
    assert 1_000 == topic.wake_at_ms


def test_waiting_entries_are_bounded_in_number_and_bytes() -> None:
    """An entry without room is a counted drop for that subscription."""
    limits = TopicLimits(waiting_entries_max=3, waiting_bytes_max=10)
    topic, producer = produced(
        state_of(expecting("a", subscription="s1"), expecting("b", subscription="s2")),
        limits=limits,
    )
    assert [0, 2, 0, 0, 2] == [
        send(topic, producer, block, now_ms=1).dropped
        for block in (b"12345678", b"123", b"", b"12", b"")
    ]
    arrivals = topic.subscriptions["s1"].arrivals
    assert arrivals is not None
    assert (10, 3) == (arrivals.bytes, arrivals.messages)
    assert [("a", 41), ("a", 43), ("a", 44)] == delivered(
        topic.flow(joined(topic, "a", "s1", SHARED, permits=0), 9, 2)
    )
    assert (0, 0) == (arrivals.bytes, arrivals.messages)


def test_a_consumer_that_leaves_before_its_permits_is_expected_again() -> None:
    """One that leaves after its permits is not."""
    topic, producer = produced(state_of(expecting("a", "b")))
    send(topic, producer, now_ms=1)
    topic.remove_consumers([joined(topic, "a", kind=SHARED, permits=0)])
    b = joined(topic, "b", kind=SHARED)
    assert [] == delivered(send(topic, producer, now_ms=2))
    topic.remove_consumers([b])
    assert [("a", 41), ("a", 42)] == delivered(
        topic.flow(joined(topic, "a", kind=SHARED, permits=0), 9, 3)
    )


def test_both_consumers_of_one_name_are_expected() -> None:
    topic, producer = produced(state_of(expecting("x", "x")))
    send(topic, producer, now_ms=1)
    first = joined(topic, "x", kind=SHARED)
    assert [] == delivered(topic.flow(first, 5, 2))
    assert 1 == len(delivered(topic.flow(joined(topic, "x", kind=SHARED, permits=0), 5, 3)))


def test_an_entry_in_no_sticky_range_is_dropped() -> None:
    """It does not delay the others."""
    state = SubscriptionState(name="s", kind=KEY_SHARED, is_sticky=True, expected=("a",))
    topic, producer = produced(state_of(state))
    for number in range(20):
        send(topic, producer, keyed(f"key {number}"), now_ms=1)
    a = make_consumer("a", key_shared=sticky((0, 30_000)))
    topic.subscribe(a, "s", KEY_SHARED, now_ms=2)
    outcome = topic.flow(a, 100, 3)
    assert 20 == len(outcome.deliveries) + outcome.dropped
    assert 0 < outcome.dropped < 20


def test_the_state_names_the_consumers_that_granted_permits() -> None:
    topic, producer = produced()
    for name in ("b", "a"):
        joined(topic, name, "shared", SHARED)
    joined(topic, "idle", "shared", SHARED, permits=0)
    send(topic, producer)
    topic.fence()
    expected = TopicState(
        last_entry_id=1,
        subscriptions=(SubscriptionState(name="shared", kind=SHARED, expected=("a", "b")),),
    )
    assert expected == topic.state()


def test_a_topic_that_moves_again_while_it_waits_hands_over_everything() -> None:
    """All former consumers are expected again. Fencing returns the held receipts."""
    topic, producer = (
        make_topic(
            state_of(
                expecting("a", "b", "c", "c"),
                expecting(subscription="full", waiting=(40,)),
                entries=(Entry(40, b"x", 1),),
            )
        ),
        make_producer(),
    )
    topic.add_producer(producer)
    joined(topic, "b", kind=SHARED)
    joined(topic, "c", kind=SHARED, permits=0)
    send(topic, producer, now_ms=1)
    assert [41] == receipted(topic.fence())
    assert (
        TopicState(
            last_entry_id=41,
            subscriptions=(
                expecting("a", "b", "c", "c", waiting=(41,)),
                expecting(subscription="full", waiting=(40, 41)),
            ),
            entries=(Entry(40, b"x", 1), Entry(41, b"block", 1)),
        )
        == topic.state()
    )


def test_a_state_beyond_the_bounds_is_taken_as_far_as_it_fits() -> None:
    """Ids without entries are skipped."""
    entries = tuple(Entry(number, b"", 1) for number in range(3))
    limits = TopicLimits(subscriptions_max=1, waiting_entries_max=2)
    topic = make_topic(
        state_of(
            expecting("a", waiting=(0, 1, 2, 9)), expecting("b", subscription="t"), entries=entries
        ),
        limits=limits,
    )
    arrivals = topic.subscriptions["s"].arrivals
    assert ["s"] == list(topic.subscriptions)
    assert arrivals is not None
    assert [0, 1] == [entry.entry_id for entry in arrivals.entries]
    assert 1 == topic.subscriptions["s"].dropped.messages


def test_a_subscription_without_expected_consumers_or_entries_is_not_created() -> None:
    topic, producer = produced(state_of(expecting()))
    assert {} == dict(topic.subscriptions)
    assert topic.wake_at_ms is None
    assert [41] == receipted(send(topic, producer, now_ms=1))


def test_an_expected_consumer_reserves_no_place() -> None:
    """Its client may have died. A consumer of another kind takes its place, and nothing waits for
    the dead one.
    """
    topic, producer = produced(state_of(expecting("a", kind=EXCLUSIVE)))
    assert [] == delivered(send(topic, producer, now_ms=1))
    b = joined(topic, "b", kind=SHARED, permits=0)
    assert ServerError.CONSUMER_BUSY is refused_as(
        topic.subscribe(make_consumer("a"), "s", EXCLUSIVE, now_ms=2)
    )
    assert SHARED is topic.subscriptions["s"].kind
    assert [("b", 41)] == delivered(topic.flow(b, 5, 3))


@pytest.mark.parametrize("kind", [SubscriptionKind.FAILOVER, KEY_SHARED])
def test_consumers_that_are_back_wait_a_second_for_missing_ones(kind: SubscriptionKind) -> None:
    """If none is back by then, the first that comes gets everything."""
    topic, producer = produced(
        state_of(expecting("a", "b", kind=kind), expecting("c", "d", subscription="t", kind=kind))
    )
    joined(topic, "b", kind=kind)
    send(topic, producer, now_ms=1)
    assert [] == delivered(topic.tick(999))
    assert 1_000 == topic.wake_at_ms
    assert [("b", 41)] == delivered(topic.tick(1_000))
    assert 10_000 == topic.wake_at_ms
    assert [("b", 42)] == delivered(send(topic, producer, now_ms=1_001))
    assert [("d", 41), ("d", 42)] == delivered(
        topic.flow(joined(topic, "d", "t", kind, permits=0, now_ms=5_000), 9, 5_000)
    )
    assert topic.wake_at_ms is None


def test_sticky_consumers_are_awaited_until_the_last_deadline() -> None:
    """Only the missing one takes the messages in its slots, so that the others would lose them."""
    state = SubscriptionState(name="s", kind=KEY_SHARED, is_sticky=True, expected=("a", "b"))
    topic, producer = produced(state_of(state))
    low, high = (
        make_consumer("a", key_shared=sticky((0, 30_000))),
        make_consumer("b", key_shared=sticky((30_001, 65_535))),
    )
    topic.subscribe(low, "s", KEY_SHARED, now_ms=0)
    topic.flow(low, 100, 0)
    for number in range(20):
        send(topic, producer, keyed(f"key {number}"), now_ms=1)
    outcome = topic.tick(1_000)
    assert (0, 0) == (len(outcome.deliveries), outcome.dropped)
    topic.subscribe(high, "s", KEY_SHARED, now_ms=5_000)
    outcome = topic.flow(high, 100, 5_000)
    assert {"a", "b"} == {name for name, _ in delivered(outcome)}
    assert (20, 0) == (len(outcome.deliveries), outcome.dropped)


def test_a_consumer_with_a_generated_name_is_recognised_as_nameless() -> None:
    """The next broker gives it another name."""
    former = make_topic()
    joined(former, "consumer-1", kind=SHARED, is_name_users=False)
    former.fence()
    assert state_of(expecting("")).subscriptions == former.state().subscriptions
    topic, producer = produced(former.state())
    joined(topic, "named", kind=SHARED)
    assert [] == delivered(send(topic, producer, now_ms=1))
    back = joined(topic, "consumer-2", kind=SHARED, permits=0, is_name_users=False)
    assert [] == delivered(topic.tick(2))
    assert [("named", 1)] == delivered(topic.flow(back, 5, 3))


def test_missing_names_are_listed_as_often_as_they_are_missing() -> None:
    arrivals = Arrivals(["b", "a", "b"], entries_max=1, bytes_max=1)
    assert ["a", "b", "b"] == [*arrivals.missing]
    b = make_consumer("b")
    arrivals.subscribed(b)
    arrivals.subscribed(make_consumer("stranger"))
    assert (["a", "b"], True) == ([*arrivals.missing], arrivals.is_awaited(b))
    arrivals.flowed(b)
    arrivals.left(b)
    assert (["a", "b"], False) == ([*arrivals.missing], arrivals.is_complete)


def test_entries_without_a_receipt_leave_with_their_producers() -> None:
    """Producers send them again, so they are neither delivered nor handed over."""
    topic = make_topic(state_of(expecting("a"), expecting("b", subscription="t")))
    p, q, r = (make_producer(name) for name in "pqr")
    for producer in (p, q, r):
        topic.add_producer(producer)
    for producer in (p, q, r, p):
        send(topic, producer, b"12345", now_ms=1)
    assert (41, 43, 44) == topic.remove_producers([p, r])
    assert () == topic.remove_producers([p, r])
    assert ["q"] == list(topic.producers)
    arrivals = topic.subscriptions["t"].arrivals
    assert arrivals is not None
    assert (5, 1) == (arrivals.bytes, arrivals.messages)
    assert Replaced(former=q, forgotten=(42,)) == topic.add_producer(make_producer("q", epoch=1))
    assert ((), 44) == (topic.state().entries, topic.state().last_entry_id)


def test_noted_permits_take_effect_at_the_next_tick() -> None:
    topic, producer = produced(state_of(expecting("a", kind=EXCLUSIVE)))
    for _ in range(3):
        send(topic, producer, now_ms=1)
    a = joined(topic, "a", kind=EXCLUSIVE, permits=0, now_ms=1)
    assert [] == delivered(topic.tick(2))
    topic.note_flow(a, 2)
    assert [] == delivered(send(topic, producer, now_ms=2))
    noted = topic.tick(2)
    assert ([("a", 41), ("a", 42)], [41, 42, 43, 44]) == (delivered(noted), receipted(noted))
    topic.writable(a, is_writable=False, now_ms=2)
    topic.note_flow(a, 2)
    assert [] == delivered(topic.tick(2))
    topic.note_flow(a, 0)
    assert [] == delivered(topic.tick(2))
    topic.note_writable(a)
    assert [("a", 43), ("a", 44)] == delivered(topic.tick(2))
    assert [] == delivered(topic.tick(2))


def test_noted_subscriptions_are_released_in_order() -> None:
    names = [f"s{number}" for number in range(20)]
    topic, producer = produced(state_of(*(expecting("a", subscription=name) for name in names)))
    send(topic, producer, now_ms=1)
    consumers = {joined(topic, "a", name, kind=SHARED, permits=0): name for name in names}
    topic.tick(100)
    noted = list(reversed(consumers))
    for consumer in noted:
        topic.note_flow(consumer, 1)
    assert noted == [consumer for consumer, _ in topic.tick(101).deliveries]


def test_waiting_entries_are_delivered_in_bounded_steps() -> None:
    """All receipts come with the first step."""
    limits = TopicLimits(step_entries_max=4)
    names = [f"s{number}" for number in range(5)]
    topic, producer = produced(
        state_of(*(expecting("a", subscription=name) for name in names)), limits=limits
    )
    for _ in range(2):
        send(topic, producer, now_ms=1)
    consumers = [joined(topic, "a", name, kind=SHARED, permits=0) for name in names]
    outcomes = [topic.flow(consumer, 100, 2) for consumer in consumers]
    assert [[]] * 4 == [delivered(outcome) for outcome in outcomes[:-1]]
    outcomes = outcomes[-1:]
    while topic.wake_at_ms is not None:
        outcomes += [topic.tick(2)]
    assert ([4, 4, 2], [41, 42]) == (
        [len(delivered(outcome)) for outcome in outcomes],
        receipted(outcomes[0]),
    )
    assert consumers == list(
        dict.fromkeys(consumer for outcome in outcomes for consumer, _ in outcome.deliveries)
    )
    assert [("a", 43)] * 5 == delivered(send(topic, producer, now_ms=3))
