"""Check, for any order of appends by two subscribers and a third writer, that each subscriber gets
the log once and in order.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.log import FIRST_OFFSET, READ_ENTRIES_MAX, Entry
from equipoise.channel.log.append_queue import Appended
from equipoise.channel.log.memory_log import MemoryLog
from tests.channels.subscriber import LOG_NAMES, Subscriber
from tests.channels.troubled_log import TroubledLog


@dataclass(frozen=True, kw_only=True)
class Append:
    """Records of one of the subscribers."""

    number: int
    records: int


@dataclass(frozen=True, kw_only=True)
class Write:
    """Records of another process."""

    records: int


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of the loop."""


Step = Append | Write | Turn

STEPS = st.lists(
    st.one_of(
        st.builds(Append, number=st.integers(0, 1), records=st.integers(1, 40)),
        st.builds(Write, records=st.integers(1, 600)),
        st.builds(Turn),
    ),
    max_size=12,
)


async def play(
    steps: Sequence[Step], subscribers: Sequence[Subscriber], appended: Sequence[list[bytes]]
) -> None:
    """Take the steps, and wait until every subscriber has all outcomes and entries."""
    numbers = itertools.count()
    for subscriber in subscribers:
        subscriber.subscription.start()
    for step in steps:
        match step:
            case Append(number=number, records=records):
                for _ in range(records):
                    appended[number].append(b"%d" % next(numbers))
                    subscribers[number].subscription.append(
                        appended[number][-1], subscribers[number].note
                    )
            case Write(records=records):
                subscribers[0].write(*[b"of another process"] * records)
            case Turn():
                await asyncio.sleep(0)
    for subscriber, own in zip(subscribers, appended, strict=True):
        # Mypy knows no such lambda.
        await subscriber.until(
            lambda subscriber=subscriber, own=own: len(own) == len(outcomes(subscriber))  # type: ignore[misc]
        )
    end = subscribers[0].writer.end()
    for subscriber in subscribers:
        # As above.
        await subscriber.until(lambda subscriber=subscriber: len(subscriber.entries) == end)  # type: ignore[misc]
        await subscriber.stop()


def outcomes(subscriber: Subscriber) -> list[Appended]:
    """The outcomes of the subscriber's records, in order."""
    return [event for event in subscriber.events if isinstance(event, Appended)]


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_every_subscriber_gets_the_log(steps: Sequence[Step]) -> None:
    """The outcome of each own record comes before its entry and has its offset."""
    name = next(LOG_NAMES)
    log = MemoryLog(name=name)  # Keeps the entries when the subscribers have closed their handles.
    subscribers = [Subscriber(TroubledLog(name=name)) for _ in range(2)]
    appended: list[list[bytes]] = [[], []]
    asyncio.run(play(steps, subscribers, appended))
    entries = log.read(FIRST_OFFSET, limit=READ_ENTRIES_MAX) if log.end() else ()
    for subscriber, own in zip(subscribers, appended, strict=True):
        assert list(entries) == subscriber.entries
        for record, outcome in zip(own, outcomes(subscriber), strict=True):
            assert Entry(outcome.offset, record) in entries
            assert subscriber.events.index(outcome) < subscriber.events.index(record)
