"""Test that `room_for` of each kind of subscription agrees with choosing a consumer for one entry
after another.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.pulsar.topics.arrivals import Entry
from equipoise.brokers.pulsar.topics.clients import Consumer
from equipoise.brokers.pulsar.topics.dispatch import KeySharing, dispatcher
from equipoise.brokers.pulsar.wire.requests import Sent, SubscriptionKind
from tests.pulsar.pulsar_speech import entry
from tests.pulsar.topics import make_consumer, sticky

BLOCKS = [entry(partition_key=str(number)) for number in range(8)]


@st.composite
def consumers(draw: st.DrawFn) -> Consumer:
    """A consumer with few permits, perhaps overdrawn, that takes the lower or the upper half of the
    slots if it is STICKY.
    """
    half = draw(st.integers(0, 1)) << 15
    consumer = make_consumer(
        "c", priority=draw(st.integers(0, 1)), key_shared=sticky((half, half + (1 << 15) - 1))
    )
    consumer.permits = draw(st.integers(-2, 5))
    consumer.is_writable = draw(st.integers(0, 4)) > 0
    return consumer


sent = st.builds(Sent, st.just(0), st.just(0), st.integers(1, 3), st.sampled_from(BLOCKS))


@given(
    st.sampled_from(SubscriptionKind),
    st.booleans(),
    st.lists(consumers(), max_size=4),
    st.lists(sent, min_size=1, max_size=12),
)
def test_room_agrees_with_choosing_one_by_one(
    kind: SubscriptionKind, is_sticky: bool, joining: list[Consumer], entries: list[Sent]
) -> None:
    """It is never too much, and 0 only if the first entry has no consumer. For messages sent one by
    one it is exact.
    """
    among = dispatcher(
        kind, is_sticky=is_sticky and kind is SubscriptionKind.KEY_SHARED, partition=-1
    )
    for joined in joining:
        among.add(joined)  # One that is refused stays outside.
    room = among.room_for(entries)
    one_by_one = 0
    for each in entries:
        entry = Entry(1, each.block, each.messages)
        consumer = among.choose(entry)
        if consumer is None and not (
            isinstance(among, KeySharing) and among.consumer_of(entry.slot) is None
        ):
            break
        if consumer is not None:
            consumer.permits -= each.messages
        one_by_one += 1
    assert room <= one_by_one
    assert (room == 0) == (one_by_one == 0)
    if all(each.messages == 1 for each in entries):
        assert room == one_by_one
