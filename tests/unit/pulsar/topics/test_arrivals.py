"""A topic that has just moved here: whom it waits for, what it holds, and when it gives up."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.topics.arrivals import Arrivals, Entry
from equipoise.brokers.pulsar.topics.topic import Replaced, SubscriptionState, TopicLimits, TopicState
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind
from tests.pulsar.topics import (
    joined,
    keyed,
    left,
    make_consumer,
    make_producer,
    make_topic,
    produced,
    receipted,
    refused_as,
    send,
    sticky,
    there,
    told,
)

EXCLUSIVE, SHARED, KEY_SHARED = SubscriptionKind.EXCLUSIVE, SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED


def test_what_is_published_before_all_are_back_waits_and_so_do_receipts() -> None:
    """The last one's permits release everything in order, the receipts too; after that the topic is like any other."""
    topic, producer = produced(left(there("a", "b")))
    assert ([], []) == (told(send(topic, producer, now_ms=1)), receipted(send(topic, producer, now_ms=2)))
    joined(topic, "a", kind=SHARED, now_ms=3)
    assert [] == told(send(topic, producer, now_ms=4))
    b = joined(topic, "b", kind=SHARED, permits=0, now_ms=5)
    assert [100] == [topic.wake_at_ms]
    outcome = topic.flow(b, 10, 6)
    assert [("a", 41), ("b", 42), ("a", 43)] == told(outcome)
    assert [41, 42, 43] == receipted(outcome)
    assert topic.wake_at_ms is None
    after = send(topic, producer, now_ms=7)
    assert ([("b", 44)], [44]) == (told(after), receipted(after))


def test_a_new_subscription_that_is_left_at_once_is_not_kept() -> None:
    """It ends with the holding, if nothing was published for it."""
    topic = make_topic(left(there("a")))
    topic.remove_consumers([joined(topic, "x", "new", EXCLUSIVE)])
    topic.tick(100)
    assert ["s"] == list(topic.subscriptions)


def test_an_answer_that_cannot_wait_ends_the_holding() -> None:
    """The receipts before it go out first, and with them what waits for those who are back."""
    topic, producer = produced(left(there("a"), there("b", subscription="t")))
    joined(topic, "b", "t", SHARED)
    send(topic, producer, now_ms=1)
    outcome = topic.release_receipts()
    assert ([("b", 41)], [41]) == (told(outcome), receipted(outcome))
    assert [] == receipted(topic.release_receipts())
    assert 1_000 == topic.wake_at_ms


def test_waiting_is_bounded_in_entries_and_in_bytes() -> None:
    """What has no room is a counted drop for that subscription; what came before it stays, and is delivered."""
    limits = TopicLimits(waiting_entries_max=3, waiting_bytes_max=10)
    topic, producer = produced(left(there("a", subscription="s1"), there("b", subscription="s2")), limits=limits)
    assert [0, 2, 0, 0, 2] == [send(topic, producer, block, now_ms=1).dropped for block in (b"12345678", b"123", b"", b"12", b"")]
    arrivals = topic.subscriptions["s1"].arrivals
    assert arrivals is not None
    assert (10, 3) == (arrivals.bytes, arrivals.messages)
    assert [("a", 41), ("a", 43), ("a", 44)] == told(topic.flow(joined(topic, "a", "s1", SHARED, permits=0), 9, 2))
    assert (0, 0) == (arrivals.bytes, arrivals.messages)


def test_a_consumer_that_bounces_before_its_permits_is_waited_for_again() -> None:
    """Coming and going without permits is not being back; leaving after permits is leaving."""
    topic, producer = produced(left(there("a", "b")))
    send(topic, producer, now_ms=1)
    topic.remove_consumers([joined(topic, "a", kind=SHARED, permits=0)])
    b = joined(topic, "b", kind=SHARED)
    assert [] == told(send(topic, producer, now_ms=2))
    topic.remove_consumers([b])
    assert [("a", 41), ("a", 42)] == told(topic.flow(joined(topic, "a", kind=SHARED, permits=0), 9, 3))


def test_two_consumers_of_one_name_are_both_waited_for() -> None:
    """Each takes one of the places, however often it grants permits."""
    topic, producer = produced(left(there("x", "x")))
    send(topic, producer, now_ms=1)
    first = joined(topic, "x", kind=SHARED)
    assert [] == told(topic.flow(first, 5, 2))
    assert 1 == len(told(topic.flow(joined(topic, "x", kind=SHARED, permits=0), 5, 3)))


def test_an_entry_that_no_sticky_consumer_takes_holds_nobody_up() -> None:
    """Once all are back, what falls into a gap between their ranges is dropped, and the rest goes on."""
    state = SubscriptionState(name="s", kind=KEY_SHARED, is_sticky=True, expected=("a",))
    topic, producer = produced(left(state))
    for number in range(20):
        send(topic, producer, keyed(f"key {number}"), now_ms=1)
    a = make_consumer("a", key_shared=sticky((0, 30_000)))
    topic.subscribe(a, "s", KEY_SHARED, is_durable=True, now_ms=2)
    outcome = topic.flow(a, 100, 3)
    assert 20 == len(outcome.deliveries) + outcome.dropped
    assert 0 < outcome.dropped < 20


def test_the_state_of_a_topic_at_rest_names_those_who_took_messages() -> None:
    """Who never granted permits is not worth waiting for; subscriptions, kinds and the last entry id go along."""
    topic, producer = produced()
    for name in ("b", "a"):
        joined(topic, name, "shared", SHARED)
    joined(topic, "idle", "shared", SHARED, permits=0)
    send(topic, producer)
    topic.fence()
    expected = TopicState(last_entry_id=1, subscriptions=(SubscriptionState(name="shared", kind=SHARED, expected=("a", "b")),))
    assert expected == topic.state()


def test_a_topic_that_moves_on_while_it_waits_hands_everything_on() -> None:
    """Who is back, who is half back and who is missing are expected again; entries go along; held receipts come out on fencing."""
    topic, producer = (
        make_topic(left(there("a", "b", "c", "c"), there(subscription="full", waiting=(40,)), entries=(Entry(40, b"x", 1),))),
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
            subscriptions=(there("a", "b", "c", "c", waiting=(41,)), there(subscription="full", waiting=(40, 41))),
            entries=(Entry(40, b"x", 1), Entry(41, b"block", 1)),
        )
        == topic.state()
    )


def test_expectations_beyond_the_bounds_are_let_go() -> None:
    """A state larger than this broker allows is taken as far as it fits, and ids without entries are passed over."""
    entries = tuple(Entry(number, b"", 1) for number in range(3))
    limits = TopicLimits(subscriptions_max=1, waiting_entries_max=2)
    topic = make_topic(left(there("a", waiting=(0, 1, 2, 9)), there("b", subscription="t"), entries=entries), limits=limits)
    arrivals = topic.subscriptions["s"].arrivals
    assert ["s"] == list(topic.subscriptions)
    assert arrivals is not None
    assert [0, 1] == [entry.entry_id for entry in arrivals.entries]
    assert 1 == topic.subscriptions["s"].dropped.messages


def test_a_subscription_without_anybody_to_expect_is_not_made() -> None:
    """Where nobody ever took messages and nothing waits, the subscription begins anew with its first consumer."""
    topic, producer = produced(left(there()))
    assert {} == dict(topic.subscriptions)
    assert topic.wake_at_ms is None
    assert [41] == receipted(send(topic, producer, now_ms=1))


def test_who_is_only_expected_holds_no_place() -> None:
    """A client that died on the way must not keep its successor out, even one of another kind, and is not waited for beside that one."""
    topic, producer = produced(left(there("a", kind=EXCLUSIVE)))
    assert [] == told(send(topic, producer, now_ms=1))
    b = joined(topic, "b", kind=SHARED, permits=0)
    assert ServerError.CONSUMER_BUSY is refused_as(topic.subscribe(make_consumer("a"), "s", EXCLUSIVE, is_durable=True, now_ms=2))
    assert SHARED is topic.subscriptions["s"].kind
    assert [("b", 41)] == told(topic.flow(b, 5, 3))


@pytest.mark.parametrize("kind", [SubscriptionKind.FAILOVER, KEY_SHARED])
def test_who_is_back_is_stopped_for_the_missing_only_for_a_moment(kind: SubscriptionKind) -> None:
    """After a second those who are there go on, and who comes later joins them; where nobody is there, the first who comes does."""
    topic, producer = produced(left(there("a", "b", kind=kind), there("c", "d", subscription="t", kind=kind)))
    joined(topic, "b", kind=kind)
    send(topic, producer, now_ms=1)
    assert [] == told(topic.tick(999))
    assert 1_000 == topic.wake_at_ms
    assert [("b", 41)] == told(topic.tick(1_000))
    assert 10_000 == topic.wake_at_ms
    assert [("b", 42)] == told(send(topic, producer, now_ms=1_001))
    assert [("d", 41), ("d", 42)] == told(topic.flow(joined(topic, "d", "t", kind, permits=0, now_ms=5_000), 9, 5_000))
    assert topic.wake_at_ms is None


def test_sticky_consumers_are_waited_for_to_the_end() -> None:
    """Only the one that is missing takes the messages in its slots: for the others to go on would be to lose them."""
    state = SubscriptionState(name="s", kind=KEY_SHARED, is_sticky=True, expected=("a", "b"))
    topic, producer = produced(left(state))
    low, high = make_consumer("a", key_shared=sticky((0, 30_000))), make_consumer("b", key_shared=sticky((30_001, 65_535)))
    topic.subscribe(low, "s", KEY_SHARED, is_durable=True, now_ms=0)
    topic.flow(low, 100, 0)
    for number in range(20):
        send(topic, producer, keyed(f"key {number}"), now_ms=1)
    outcome = topic.tick(1_000)
    assert (0, 0) == (len(outcome.deliveries), outcome.dropped)
    topic.subscribe(high, "s", KEY_SHARED, is_durable=True, now_ms=5_000)
    outcome = topic.flow(high, 100, 5_000)
    assert {"a", "b"} == {name for name, _ in told(outcome)}
    assert (20, 0) == (len(outcome.deliveries), outcome.dropped)


def test_one_whose_name_its_broker_chose_is_known_again_by_having_none() -> None:
    """The next broker gives it another name, under which nobody could be waited for; others are not taken for it."""
    former = make_topic()
    joined(former, "consumer-1", kind=SHARED, is_name_users=False)
    former.fence()
    assert left(there("")).subscriptions == former.state().subscriptions
    topic, producer = produced(former.state())
    joined(topic, "named", kind=SHARED)
    assert [] == told(send(topic, producer, now_ms=1))
    back = joined(topic, "consumer-2", kind=SHARED, permits=0, is_name_users=False)
    assert [] == told(topic.tick(2))
    assert [("named", 1)] == told(topic.flow(back, 5, 3))


def test_arrivals_say_who_is_missing() -> None:
    """Each name as often as it is still missing."""
    arrivals = Arrivals(["b", "a", "b"], entries_max=1, bytes_max=1)
    assert ["a", "b", "b"] == [*arrivals.missing]
    b = make_consumer("b")
    arrivals.subscribed(b)
    arrivals.subscribed(make_consumer("stranger"))
    assert (["a", "b"], True) == ([*arrivals.missing], arrivals.is_awaited(b))
    arrivals.flowed(b)
    arrivals.left(b)
    assert (["a", "b"], False) == ([*arrivals.missing], arrivals.is_complete)


def test_what_producers_leave_without_a_receipt_waits_for_nobody() -> None:
    """It is sent again: neither delivered nor handed on, as little when a producer comes again in its own place."""
    topic, p, q, r = make_topic(left(there("a"), there("b", subscription="t"))), make_producer("p"), make_producer("q"), make_producer("r")
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


def test_what_was_noted_comes_with_the_next_tick() -> None:
    """Permits, or room, that a consumer had while nothing could be delivered bring it what waited, though no time has passed."""
    topic, producer = produced(left(there("a", kind=EXCLUSIVE)))
    for _ in range(3):
        send(topic, producer, now_ms=1)
    a = joined(topic, "a", kind=EXCLUSIVE, permits=0, now_ms=1)
    assert [] == told(topic.tick(2))
    topic.note_flow(a, 2)
    assert [] == told(send(topic, producer, now_ms=2))
    noted = topic.tick(2)
    assert ([("a", 41), ("a", 42)], [41, 42, 43, 44]) == (told(noted), receipted(noted))
    topic.writable(a, is_writable=False, now_ms=2)
    topic.note_flow(a, 2)
    assert [] == told(topic.tick(2))
    topic.note_flow(a, 0)
    assert [] == told(topic.tick(2))
    topic.note_writable(a)
    assert [("a", 43), ("a", 44)] == told(topic.tick(2))
    assert [] == told(topic.tick(2))


def test_what_was_noted_comes_in_order() -> None:
    """Subscriptions whose consumers came first are handed out first."""
    names = [f"s{number}" for number in range(20)]
    topic, producer = produced(left(*(there("a", subscription=name) for name in names)))
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
    topic, producer = produced(left(*(there("a", subscription=name) for name in names)), limits=limits)
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
