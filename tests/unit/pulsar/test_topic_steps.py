"""What waits in a topic goes in steps, however much it is, and many who leave leave in one."""

from __future__ import annotations

from equipoise.brokers.pulsar.topics.topic import TopicLimits
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind
from tests.unit.pulsar.topics import joined, left, make_producer, make_topic, receipted, send, there, told

EXCLUSIVE, SHARED = SubscriptionKind.EXCLUSIVE, SubscriptionKind.SHARED


def test_what_was_noted_comes_in_order() -> None:
    """Subscriptions whose consumers came first are handed out first."""
    names = [f"s{number}" for number in range(20)]
    topic, producer = make_topic(left(*(there("a", subscription=name) for name in names))), make_producer()
    topic.add_producer(producer)
    send(topic, producer, now_ms=1)
    consumers = {joined(topic, "a", name, kind=SHARED, permits=0): name for name in names}
    topic.tick(100)
    noted = list(reversed(consumers))
    for consumer in noted:
        topic.note_flow(consumer, 1)
    assert noted == [consumer for consumer, _ in topic.tick(101).deliveries]


def test_what_waited_is_handed_out_in_steps() -> None:
    """However many subscriptions wait, one step delivers no more than it may, every receipt comes with the first, and nothing is lost."""
    limits = TopicLimits(step_entries_max=4)
    names = [f"s{number}" for number in range(5)]
    topic, producer = make_topic(left(*(there("a", subscription=name) for name in names)), limits=limits), make_producer()
    topic.add_producer(producer)
    for _ in range(2):
        send(topic, producer, now_ms=1)
    consumers = [joined(topic, "a", name, kind=SHARED, permits=0) for name in names]
    outcomes = [topic.flow(consumer, 100, 2) for consumer in consumers]
    assert [[]] * 4 == [told(outcome) for outcome in outcomes[:-1]]
    outcomes = outcomes[-1:]
    while topic.wake_at_ms is not None:
        outcomes += [topic.tick(2)]
    assert ([4, 4, 2], [41, 42]) == ([len(told(outcome)) for outcome in outcomes], receipted(outcomes[0]))
    assert consumers == list(dict.fromkeys(consumer for outcome in outcomes for consumer, _ in outcome.deliveries))
    assert [("a", 43)] * 5 == told(send(topic, producer, now_ms=3))


def test_who_loses_room_sets_nothing_off() -> None:
    """What a next step is to hand out to others stays until then: room is lost in the midst of writing, where nobody takes an outcome."""
    limits = TopicLimits(step_entries_max=1)
    topic, producer = make_topic(left(there("a", subscription="s0"), there("b", "c", subscription="s1")), limits=limits), make_producer()
    topic.add_producer(producer)
    send(topic, producer, now_ms=1)
    blocked, _ = (joined(topic, name, "s1", kind=SHARED) for name in "bc")
    assert [("a", 41)] == told(topic.flow(joined(topic, "a", "s0", kind=SHARED, permits=0), 10, 2))
    outcome = topic.writable(blocked, is_writable=False, now_ms=2)
    assert ([], [], 0) == (outcome.deliveries, outcome.receipts, outcome.dropped)
    assert [("c", 41)] == told(topic.tick(2))


def test_many_producers_leave_in_one_step() -> None:
    """What they sent without a receipt goes with them, and nothing of those who stay."""
    topic = make_topic(left(there("a", kind=EXCLUSIVE)))
    leaving, staying = [make_producer(f"p{number}") for number in range(3)], make_producer("q")
    for producer in (*leaving, staying):
        topic.add_producer(producer)
    for producer in (*leaving, staying, *leaving):
        send(topic, producer, now_ms=1)
    assert (41, 42, 43, 45, 46, 47) == topic.remove_producers(leaving)
    assert () == topic.remove_producers(leaving)
    assert ["q"] == list(topic.producers)
    assert [("a", 44)] == told(topic.flow(joined(topic, "a", kind=EXCLUSIVE, permits=0), 10, 2))


def test_those_who_waited_are_given_up_in_steps() -> None:
    """However many subscriptions wait, one step drops no more than it may, and says that there is more to do."""
    limits = TopicLimits(step_entries_max=3)
    topic, producer = make_topic(left(*(there("a", subscription=f"s{number}") for number in range(4))), limits=limits), make_producer()
    topic.add_producer(producer)
    send(topic, producer, now_ms=1)
    send(topic, producer, now_ms=1)
    late_ms = limits.reconnect_wait_ms
    topic.release_receipts()
    dropped = []
    while topic.wake_at_ms is not None:
        assert topic.wake_at_ms <= late_ms
        dropped.append(topic.tick(late_ms).dropped)
    assert [2, 2, 2, 2] == dropped
