"""Test the load of a bundle."""

from __future__ import annotations

import pytest

from equipoise.brokers.balancing.splitting.split_points import TopicLoad
from equipoise.brokers.pulsar.hosting import load_of, topic_loads, totals_of
from equipoise.brokers.pulsar.served import Served
from equipoise.channel.core.ranges import topic_hash
from equipoise.shedder.loads import BundleLoad, Messaging
from tests.pulsar.topics import joined, make_producer, send
from tests.unit.pulsar.test_hosting import NAMES, hosting, ownership


def served(number: int) -> Served:
    """A topic with a producer, two subscriptions, and a published message of 5 bytes."""
    tables, whole = hosting(), ownership()
    tables.open(whole, {})
    made = tables.topic(whole.bundle.name, NAMES[number])
    assert made is not None
    producer = make_producer()
    made.topic.add_producer(producer)
    for subscription in ("s", "t"):
        joined(made.topic, "c", subscription)
    send(made.topic, producer)
    return made


def test_the_load_of_a_bundle_is_the_sum_of_its_topics() -> None:
    """An outgoing message counts once per subscription."""
    topics = [served(0), served(1)]
    now = {each.name: totals_of(each.topic) for each in topics}
    messaging = Messaging(
        messages_in_per_second=1,
        bytes_in_per_second=5,
        messages_out_per_second=2,
        bytes_out_per_second=10,
        producers=2,
        consumers=4,
        topics=2,
    )
    assert BundleLoad(
        calls_per_second=3, bytes_per_second=15, sessions=6, messaging=messaging
    ) == load_of(topics, {}, now, 2.0)


def test_a_batch_is_one_call_and_many_messages() -> None:
    """A hundred messages that were sent at once take the broker about as long as one message of the
    same size.
    """
    batched = served(0)
    before = {batched.name: totals_of(batched.topic)}
    send(
        batched.topic,
        next(iter(batched.topic.producers.values())),
        b"x" * 1_000,
        sequence_id=1,
        messages=100,
    )
    load = load_of([batched], before, {batched.name: totals_of(batched.topic)}, 1.0)
    assert load.messaging is not None
    assert (3.0, 3_000.0) == (load.calls_per_second, load.bytes_per_second)
    assert (100.0, 200.0) == (
        load.messaging.messages_in_per_second,
        load.messaging.messages_out_per_second,
    )


def test_a_batch_that_was_not_written_counts_nowhere() -> None:
    """A consumer's connection may end before a delivery is written. The topic takes the batch
    back.
    """
    batched = served(0)
    before = totals_of(batched.topic)
    outcome = send(
        batched.topic, next(iter(batched.topic.producers.values())), sequence_id=1, messages=100
    )
    for consumer, entry in outcome.deliveries:
        batched.topic.take_back(consumer, entry)
    after = totals_of(batched.topic)
    assert (1, 100) == (after[0] - before[0], after[1] - before[1]), "what came in"
    assert before[3:] == after[3:], "what went out"


def test_only_new_messages_are_load() -> None:
    """A topic whose counters are lower than before has no load."""
    quiet, anew = served(0), served(1)
    now = {each.name: totals_of(each.topic) for each in (quiet, anew)}
    before = {
        quiet.name: now[quiet.name],
        anew.name: (9, 9, 99, 9, 9, 99),
    }
    load = load_of([quiet, anew], before, now, 1.0)
    assert (0.0, 0.0, 6) == (load.calls_per_second, load.bytes_per_second, load.sessions)


def test_topic_loads_have_points_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.brokers.pulsar.hosting.now_ms", lambda: 0)
    quiet, busy = served(0), served(1)
    busy.topic.roll(2_000)
    expected = TopicLoad(point=topic_hash(NAMES[1]), messages_per_second=1.5, bytes_per_second=7.5)
    assert (TopicLoad(point=topic_hash(NAMES[0])), expected) == topic_loads([quiet, busy])
