"""Test a connection with any conversation: commands in any order, garbage between them, answers
early, late and never.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand
from equipoise.brokers.pulsar.wire.requests import Damaged, Ended
from tests.pulsar.pulsar_service import DumbService
from tests.pulsar.pulsar_speech import (
    commands_in,
    connect,
    entry,
    frame_of,
    producer,
    send,
    subscribe,
)

# Small enough for these tests to reach them.
LIMITS = Limits(
    message_bytes_max=2_000,
    requests_pending_max=6,
    producers_max=2,
    consumers_max=2,
    closed_ids_max=2,
)


@dataclass(frozen=True, slots=True)
class Answer:
    favourably: bool


@dataclass(frozen=True, slots=True)
class Pass:
    milliseconds: int


@dataclass(frozen=True, slots=True)
class MoveAway:
    id: int


@dataclass(frozen=True, slots=True)
class Command:
    """A command by its name, about an id. Each request gets its own request id."""

    name: str
    id: int


@dataclass(frozen=True, slots=True)
class Garbage:
    data: bytes


Step = Answer | Pass | MoveAway | Command | Garbage
T = BaseCommand.Type
ids = st.integers(min_value=0, max_value=2)


def frame_from(name: str, id_: int, request_id: int) -> bytes:
    """The frame of a command."""
    match name:
        case "PRODUCER":
            return producer(id_, request_id)
        case "SUBSCRIBE":
            return subscribe(id_, request_id)
        case "SEND":
            return send(id_, request_id, entry())
        case "SEND damaged":
            return send(id_, request_id, entry()[:-1])
        case _:
            body = {key: id_ if value is ID else value for key, value in BODIES[name].items()}
            if name not in WITHOUT_REQUEST_ID:
                body["request_id"] = request_id
            return frame_of(getattr(T, name), **body)


ID = object()
"""Where the id of a producer or consumer goes."""
BODIES: dict[str, dict[str, object]] = {
    "PARTITIONED_METADATA": {"topic": "t"},
    "LOOKUP": {"topic": "t"},
    "GET_TOPICS_OF_NAMESPACE": {"namespace": "a/b"},
    "GET_SCHEMA": {"topic": "t"},
    "GET_OR_CREATE_SCHEMA": {"topic": "t", "schema": {"name": "s", "schema_data": b"", "type": 1}},
    "CONSUMER_STATS": {"consumer_id": ID},
    "CLOSE_PRODUCER": {"producer_id": ID},
    "CLOSE_CONSUMER": {"consumer_id": ID},
    "UNSUBSCRIBE": {"consumer_id": ID},
    "SEEK": {"consumer_id": ID},
    "GET_LAST_MESSAGE_ID": {"consumer_id": ID},
    "NEW_TXN": {},
    "ACK": {"consumer_id": ID},
    "FLOW": {"consumer_id": ID, "messagePermits": 5},
    "PING": {},
    "PONG": {},
}
WITHOUT_REQUEST_ID = frozenset({"SEND", "SEND damaged", "PING", "PONG", "FLOW"})
names = st.sampled_from([*BODIES, "PRODUCER", "SUBSCRIBE", "SEND", "SEND damaged"])
civil = st.one_of(
    st.builds(Answer, st.booleans()),
    st.builds(MoveAway, ids),
    st.builds(Pass, st.integers(min_value=0, max_value=40_000)),
    st.builds(Command, names, ids),
    st.builds(Command, names, ids),
)
wild = st.one_of(
    civil,
    st.builds(Garbage, st.binary(max_size=40)),
    st.builds(Garbage, st.just(frame_of(T.SUCCESS, request_id=1))),
)


@dataclass(slots=True, kw_only=True)
class Conversation:
    """The requests of a client, and the bytes that it got."""

    connection: Connection
    service: DumbService
    asked: set[int]
    outgoing: bytes

    def replies(self) -> Counter[int]:
        """Return the number of replies to each request."""
        counts = Counter[int]()
        for command, _ in commands_in(self.outgoing):
            body = getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[command.type].name)
            # A command without a request has this id, or none.
            if "request_id" in body.DESCRIPTOR.fields_by_name and body.request_id != 2**64 - 1:
                counts[body.request_id] += 1
        return counts

    def count(self, kind: int) -> int:
        """Return the number of outgoing commands of one type."""
        return sum(command.type == kind for command, _ in commands_in(self.outgoing))


def held(steps: list[Step]) -> Conversation:
    """Hold a conversation up to its end. Then the service answers all that still waits."""
    connection = Connection(limits=LIMITS, now_ms=0)
    service = DumbService(connection=connection)
    service.handle(connection.receive(connect(), 0))
    conversation = Conversation(connection=connection, service=service, asked=set(), outgoing=b"")
    now_ms = 0
    for number, step in enumerate(steps):
        match step:
            case Answer():
                service.answer(favourably=step.favourably)
            case Pass():
                now_ms += step.milliseconds
                service.handle(connection.tick(now_ms))
            case MoveAway():
                connection.close_producer(step.id, "pulsar://other:6650")
                connection.close_consumer(step.id, "pulsar://other:6650")
            case Garbage():
                service.handle(connection.receive(step.data, now_ms))
            case Command():
                if step.name not in WITHOUT_REQUEST_ID:
                    conversation.asked.add(number)
                service.handle(connection.receive(frame_from(step.name, step.id, number), now_ms))
        conversation.outgoing += connection.take_outgoing()
        if connection.is_ended:
            break
    service.answer()
    conversation.outgoing += connection.take_outgoing()
    return conversation


@given(st.lists(civil, max_size=40))
def test_each_request_gets_one_reply(steps: list[Step]) -> None:
    """Creations that the client cancelled are excepted."""
    conversation = held(steps)
    if not conversation.connection.is_ended:
        expected = conversation.asked - conversation.service.cancelled()
        assert Counter(expected) == conversation.replies()


@given(st.lists(civil, max_size=40))
def test_each_message_gets_one_receipt_or_error(steps: list[Step]) -> None:
    conversation = held(steps)
    if not conversation.connection.is_ended:
        assert conversation.service.entries == conversation.count(T.SEND_RECEIPT)
        assert conversation.service.count(Damaged) == conversation.count(T.SEND_ERROR)


@given(st.lists(wild, max_size=40), st.binary(max_size=100))
def test_garbage_ends_only_its_connection(steps: list[Step], more: bytes) -> None:
    """Nothing is raised, no request gets two replies, and nothing follows the end."""
    conversation = held(steps)
    assert all(count == 1 for count in conversation.replies().values())
    ends = [
        number
        for number, request in enumerate(conversation.service.seen)
        if isinstance(request, Ended)
    ]
    if conversation.connection.is_ended:
        assert [len(conversation.service.seen) - 1] == ends
        assert [] == conversation.connection.receive(more, 10**9)
        assert [] == conversation.connection.tick(10**10)
        conversation.connection.message(0, 1, -1, entry())
        assert b"" == conversation.connection.take_outgoing()
    else:
        assert [] == ends


@given(
    st.lists(wild, max_size=40),
    st.lists(st.integers(min_value=1, max_value=200), min_size=1, max_size=30),
)
def test_the_chunks_of_a_conversation_do_not_matter(steps: list[Step], cuts: list[int]) -> None:
    stream = connect()
    for number, step in enumerate(steps):
        if isinstance(step, Command | Garbage):
            stream += (
                frame_from(step.name, step.id, number) if isinstance(step, Command) else step.data
            )
    whole = Connection(limits=LIMITS, now_ms=0).receive(stream, 0)
    cut = Connection(limits=LIMITS, now_ms=0)
    asked = []
    at = 0
    while at < len(stream):
        size = cuts[at % len(cuts)]
        asked += cut.receive(stream[at : at + size], 0)
        at += size
    assert whole == asked
