"""Test a connection with any conversation: commands in any order, garbage between them, answers
early, late and never.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.requests import Damaged, Ended
from tests.pulsar.pulsar_speech import connect
from tests.pulsar.wire_stage import WireStage, frame_in

# Small enough for these tests to reach them.
LIMITS = {
    "message_bytes_max": 2_000,
    "requests_pending_max": 6,
    "producers_max": 2,
    "consumers_max": 2,
    "closed_ids_max": 2,
}
# Lines of a story; see tests/pulsar/wire_stage.py. Each of these has a request id of its own, and
# ID is that of a producer or consumer.
REQUESTS = (
    'PARTITIONED_METADATA topic: "t"',
    "LOOKUP",
    'GET_TOPICS_OF_NAMESPACE namespace: "a/b"',
    'GET_SCHEMA topic: "t"',
    'GET_OR_CREATE_SCHEMA topic: "t" schema { name: "s" schema_data: "" type: 1 }',
    "CONSUMER_STATS consumer_id: ID",
    "PRODUCER producer_id: ID",
    "SUBSCRIBE consumer_id: ID",
    "CLOSE_PRODUCER producer_id: ID",
    "CLOSE_CONSUMER consumer_id: ID",
    "UNSUBSCRIBE consumer_id: ID",
    "SEEK consumer_id: ID",
    "GET_LAST_MESSAGE_ID consumer_id: ID",
    "NEW_TXN",
    "ACK consumer_id: ID",
)
OTHERS = ("FLOW consumer_id: ID", "PING", "PONG")
# For an unknown producer they end the connection.
MESSAGES = (
    "SEND producer_id: ID sequence_id: 0",
    "SEND producer_id: ID sequence_id: 0 + damaged",
)
# Most requests are granted, so that producers and consumers come to live.
OF_BROKER = (
    *("granted",) * 4,
    "refused",
    "broker closes-producer ID pulsar://other:6650",
    "broker closes-consumer ID pulsar://other:6650",
)


def lines(*choices: str) -> st.SearchStrategy[str]:
    """Any of these lines, about any id."""
    return st.builds(
        str.replace, st.sampled_from(choices), st.just(" ID"), st.sampled_from((" 0", " 1"))
    )


waits = st.integers(min_value=0, max_value=20_000).map("after {} ms".format)
civil = st.one_of(lines(*OF_BROKER), waits, lines(*REQUESTS, *OTHERS), lines(*REQUESTS))
commands = lines(*REQUESTS, *OTHERS, *MESSAGES)
garbage = st.one_of(
    st.binary(max_size=40).map(lambda data: f"bytes {data.hex()}"), st.just("SUCCESS request_id: 1")
)
wild = st.one_of(civil, commands, garbage)


def numbered(line: str, number: int) -> str:
    """A command with a request id, if it needs one."""
    is_request = line.startswith(tuple(each.partition(" ")[0] for each in REQUESTS))
    return f"{line} request_id: {number}" if is_request else line


@dataclass
class Conversation:
    """A connection, the requests of its client, and what was written to it."""

    stage: WireStage = field(default_factory=WireStage)
    asked: set[int] = field(default_factory=set)
    told: list[str] = field(default_factory=list)

    def hold(self, steps: list[str], first: str) -> None:
        """Go on to the end. Then the service answers all that still waits."""
        settings = " ".join(f"{name}={value}" for name, value in LIMITS.items())
        list(self.stage.perform(f"connection {settings}{first}"))
        for number, step in enumerate(steps):
            line = numbered(step, number)
            if line != step:
                self.asked.add(number)
            self.told += self.stage.perform(line)
            if self.stage.connection.is_ended:
                break
        self.told += self.stage.perform("granted")

    def replies(self) -> Counter[int]:
        """Return the number of replies to each request."""
        written = (line for line in self.told if line.startswith("writes"))
        found = (re.search(r"\brequest_id: (\d+)", line) for line in written)
        return Counter(int(each[1]) for each in found if each is not None)

    def count(self, name: str) -> int:
        """Return the number of written commands of one type."""
        return sum(line.startswith(f"writes {name} ") for line in self.told)


def held(steps: list[str], first: str = "") -> Conversation:
    """Hold a conversation."""
    conversation = Conversation()
    conversation.hold(steps, first)
    return conversation


@given(st.lists(civil, max_size=40))
def test_each_request_gets_one_reply(steps: list[str]) -> None:
    """Creations that the client cancelled are excepted."""
    conversation = held(steps)
    if not conversation.stage.connection.is_ended:
        expected = conversation.asked - conversation.stage.service.cancelled()
        assert Counter(expected) == conversation.replies()


@given(st.lists(st.one_of(lines(*MESSAGES, *OF_BROKER), waits), min_size=10, max_size=40))
def test_each_message_gets_one_receipt_or_error(steps: list[str]) -> None:
    conversation = held(steps, " with PRODUCER producer_id: 0 with PRODUCER producer_id: 1")
    if not conversation.stage.connection.is_ended:
        service = conversation.stage.service
        assert service.entries == conversation.count("SEND_RECEIPT")
        assert service.count(Damaged) == conversation.count("SEND_ERROR")


@given(st.lists(wild, max_size=40), st.binary(max_size=100))
def test_garbage_ends_only_its_connection(steps: list[str], more: bytes) -> None:
    """Nothing is raised, no request gets two replies, and nothing follows the end."""
    conversation = held(steps)
    connection, seen = conversation.stage.connection, conversation.stage.service.seen
    assert all(count == 1 for count in conversation.replies().values())
    ends = [number for number, request in enumerate(seen) if isinstance(request, Ended)]
    if connection.is_ended:
        assert [len(seen) - 1] == ends
        assert [] == connection.receive(more, 10**9) + connection.tick(10**10)
        connection.send(b"late")
        assert b"" == connection.take_outgoing()
    else:
        assert [] == ends


@given(
    st.lists(st.one_of(commands, garbage), max_size=40),
    st.lists(st.integers(min_value=1, max_value=200), min_size=1, max_size=30),
)
def test_the_chunks_of_a_conversation_do_not_matter(steps: list[str], cuts: list[int]) -> None:
    stream = connect() + b"".join(frame_in(numbered(step, n)) for n, step in enumerate(steps))
    limits = Limits(**LIMITS)
    whole = Connection(limits=limits, now_ms=0).receive(stream, 0)
    cut, asked, at = Connection(limits=limits, now_ms=0), [], 0
    while at < len(stream):
        size = cuts[at % len(cuts)]
        asked += cut.receive(stream[at : at + size], 0)
        at += size
    assert whole == asked
