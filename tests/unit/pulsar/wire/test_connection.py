"""Test a connection by example: handshake, own answers, violations, keep-alive and bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.errors import ServerError, Violation
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandSubscribe,
    KeySharedMeta,
)
from equipoise.brokers.pulsar.wire.requests import (
    AccessMode,
    Acked,
    Connected,
    Damaged,
    KeyShared,
    LookupAsked,
    ProducerAsked,
    Published,
    Request,
    Sent,
    Sought,
    SubscribeAsked,
    SubscriptionKind,
    TurnedAway,
)
from tests.pulsar.pulsar_speech import (
    TOPIC,
    asked_for_producer,
    commands_in,
    connect,
    connected,
    entry,
    frame_of,
    framed,
    lookup,
    outgoing,
    ping,
    pong,
    producer,
    refused,
    seek,
    send,
    subscribe,
    violation,
    with_consumer,
    with_producer,
)

B = BaseCommand
MINUS_ONE = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class Version:
    client: int
    expected: int


@pytest.mark.parametrize(
    "version",
    [
        Version(client=6, expected=6),
        Version(client=20, expected=20),
        Version(client=21, expected=20),
    ],
    ids=repr,
)
def test_the_handshake_agrees_on_the_older_version(version: Version) -> None:
    connection = Connection(limits=Limits(message_bytes_max=1_000_000), now_ms=0)
    expected = [Connected(client_version="a test")]
    assert expected == connection.receive(connect(version.client), 0)
    ((reply, _),) = commands_in(connection.take_outgoing())
    assert (version.expected, 1_000_000) == (
        reply.connected.protocol_version,
        reply.connected.max_message_size,
    )


def test_a_client_that_is_too_old_learns_why() -> None:
    connection = Connection(limits=Limits(), now_ms=0)
    assert Violation.UNSUPPORTED_VERSION is violation(connection.receive(connect(5), 0))
    ((reply, _),) = commands_in(connection.take_outgoing())
    assert (MINUS_ONE, ServerError.UNSUPPORTED_VERSION) == (
        reply.error.request_id,
        int(reply.error.error),
    )


@dataclass(frozen=True, kw_only=True)
class Breach:
    name: str
    data: bytes
    expected: Violation


BREACHES = (
    Breach(name="second handshake", data=connect(), expected=Violation.UNEXPECTED_COMMAND),
    Breach(
        name="command of brokers",
        data=frame_of(B.SUCCESS, request_id=1),
        expected=Violation.UNEXPECTED_COMMAND,
    ),
    Breach(
        name="unknown type",
        data=b"\x00\x00\x00\x06\x00\x00\x00\x02\x08\x7f",
        expected=Violation.UNKNOWN_COMMAND,
    ),
    Breach(
        name="no protobuf",
        data=b"\x00\x00\x00\x06\x00\x00\x00\x02\xff\xff",
        expected=Violation.MALFORMED_COMMAND,
    ),
    Breach(name="no body", data=framed(B(type=B.LOOKUP)), expected=Violation.MALFORMED_COMMAND),
    Breach(
        name="half a body",
        data=b"\x00\x00\x00\x0b\x00\x00\x00\x07\x08\x17\xba\x01\x02\x10\x01",
        expected=Violation.MALFORMED_COMMAND,
    ),
    Breach(
        name="no UTF-8",
        data=lookup(1, "topic").replace(b"topic", b"to\xffic"),
        expected=Violation.MALFORMED_COMMAND,
    ),
    Breach(
        name="block behind a command that has none",
        data=frame_of(B.LOOKUP, b"x", topic="t", request_id=1),
        expected=Violation.MALFORMED_FRAME,
    ),
    Breach(
        name="message of an unknown producer",
        data=send(7, 0, entry()),
        expected=Violation.UNKNOWN_PRODUCER,
    ),
    Breach(
        name="message without an entry", data=send(1, 0, b""), expected=Violation.MALFORMED_FRAME
    ),
    Breach(
        name="message with an entry too short",
        data=send(1, 0, b"\x00\x00\x00\x09x"),
        expected=Violation.MALFORMED_FRAME,
    ),
    Breach(
        name="message with unreadable metadata",
        data=send(1, 0, b"\x00\x00\x00\x01x"),
        expected=Violation.MALFORMED_COMMAND,
    ),
    Breach(name="frame too large", data=b"\xff\xff\xff\xff", expected=Violation.FRAME_TOO_LARGE),
    Breach(name="same id twice", data=lookup(1) + lookup(1), expected=Violation.UNEXPECTED_COMMAND),
)


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.name)
def test_a_violation_ends_the_connection(breach: Breach) -> None:
    """Commands before it are handled, commands behind it are not."""
    connection = with_producer()
    requests = connection.receive(lookup(99) + breach.data + lookup(100), 0)
    lookup_asked = LookupAsked(request_id=99, topic=TOPIC)
    assert lookup_asked == requests[0]
    assert breach.expected is violation(requests)
    assert connection.is_ended
    connection.answer(lookup_asked, replies.located(99, "pulsar://broker:6650"))
    connection.receipt(1, 0, 0, 0)
    assert b"" == connection.take_outgoing()


def test_a_command_before_the_handshake_is_a_violation() -> None:
    connection = Connection(limits=Limits(), now_ms=0)
    assert Violation.UNEXPECTED_COMMAND is violation(connection.receive(ping(), 0))


def test_a_pong_overtakes_messages() -> None:
    connection = with_consumer()
    connection.message(2, 1, -1, entry())
    connection.receive(ping(), 0)
    assert ["PONG", "MESSAGE"] == outgoing(connection)


def test_a_silent_client_gets_one_ping_and_is_then_disconnected() -> None:
    connection = connected(Limits(keep_alive_ms=100))
    assert [] == connection.tick(99)
    assert [] == outgoing(connection)
    assert [] == connection.tick(100) + connection.tick(199)
    assert ["PING"] == outgoing(connection)
    assert Violation.NO_ANSWER is violation(connection.tick(200))


def test_a_client_that_is_not_read_gets_pings_and_is_not_silent() -> None:
    """Afterwards it has the whole time to answer."""
    connection = connected(Limits(keep_alive_ms=100))
    for now_ms in range(0, 1_050, 50):
        assert [] == connection.tick(now_ms, is_read=False)
    assert ["PING"] * 10 == outgoing(connection)
    assert [] == connection.tick(1_099)
    assert Violation.NO_ANSWER is violation(connection.tick(1_100))


def test_any_byte_is_a_sign_of_life() -> None:
    connection = connected(Limits(keep_alive_ms=100))
    connection.tick(100)
    connection.receive(b"\x00", 150)
    assert [] == connection.tick(249)
    assert ["PING"] == outgoing(connection)
    assert [] == connection.tick(250)
    assert ["PING"] == outgoing(connection)


def test_a_client_without_a_handshake_is_disconnected() -> None:
    """Other bytes do not extend the deadline."""
    connection = Connection(limits=Limits(handshake_ms=100), now_ms=1000)
    connection.receive(b"\x00", 1099)
    assert [] == connection.tick(1099)
    assert Violation.NO_HANDSHAKE is violation(connection.tick(1100))


def test_a_probe_is_answered_by_its_own_pong() -> None:
    """A PONG without a PING answers none."""
    connection = with_consumer()
    connection.receive(pong(), 0)
    connection.message(2, 1, -1, entry())
    probe = connection.probe()
    assert ["MESSAGE", "PING"] == outgoing(connection)
    assert connection.pongs < probe
    connection.receive(pong(), 0)
    assert connection.pongs == probe


def test_all_fields_of_producer_are_read() -> None:
    data = producer(
        0,
        0,
        producer_name="mine",
        metadata=[{"key": "a", "value": "b"}],
        epoch=3,
        user_provided_producer_name=False,
        producer_access_mode=1,
    )
    expected = ProducerAsked(
        producer_id=0,
        request_id=0,
        topic=TOPIC,
        name="mine",
        epoch=3,
        access_mode=AccessMode.EXCLUSIVE,
        properties=(("a", "b"),),
    )
    assert [expected] == connected().receive(data, 0)


def test_all_fields_of_subscribe_are_read() -> None:
    data = subscribe(
        4,
        5,
        kind=CommandSubscribe.Key_Shared,
        consumer_name="mine",
        priority_level=2,
        metadata=[{"key": "a", "value": "b"}],
        read_compacted=True,
        force_topic_creation=False,
        keySharedMeta={
            "keySharedMode": KeySharedMeta.STICKY,
            "hashRanges": [{"start": 0, "end": 9}],
            "allowOutOfOrderDelivery": True,
        },
    )
    expected = SubscribeAsked(
        consumer_id=4,
        request_id=5,
        topic=TOPIC,
        subscription="s",
        kind=SubscriptionKind.KEY_SHARED,
        name="mine",
        priority=2,
        key_shared=KeyShared(is_sticky=True, ranges=((0, 9),)),
        properties=(("a", "b"),),
        read_compacted=True,
    )
    assert [expected] == connected().receive(data, 0)


def test_an_entry_comes_unchanged_with_its_producer() -> None:
    block = entry(b"a batch of three")
    requests = with_producer().receive(send(1, 5, block, messages=3), 0)
    assert [Published(producer="the producer", entries=[Sent(5, 0, 3, block)])] == requests


@dataclass(frozen=True, kw_only=True)
class Batch:
    payload_bytes: int
    uncompressed_size: int = 0
    compression: int = 0
    expected: int


@pytest.mark.parametrize(
    "batch",
    [
        Batch(payload_bytes=1, expected=1),
        Batch(payload_bytes=600, expected=101),
        Batch(payload_bytes=600, uncompressed_size=60_000, expected=101),
        Batch(payload_bytes=600, uncompressed_size=60_000, compression=3, expected=10_000),
        Batch(payload_bytes=1, uncompressed_size=2**32 - 1, compression=3, expected=60_074),
        Batch(payload_bytes=600, compression=3, expected=1),
    ],
    ids=repr,
)
def test_a_batch_counts_at_most_as_many_messages_as_fit_into_it(batch: Batch) -> None:
    block = entry(
        bytes(batch.payload_bytes),
        compression=batch.compression,
        uncompressed_size=batch.uncompressed_size,
    )
    (request,) = with_producer().receive(send(1, 5, block, messages=2**31 - 1), 0)
    assert isinstance(request, Published)
    assert [batch.expected] == [sent.messages for sent in request.entries]


@pytest.mark.parametrize(("claimed", "expected"), [(-1, 1), (0, 1), (7, 7), (2**31 - 1, 10)])
def test_the_messages_of_a_batch_are_bounded(claimed: int, expected: int) -> None:
    (request,) = with_producer(Limits(messages_per_entry_max=10)).receive(
        send(1, 5, entry(b"x" * 100), messages=claimed), 0
    )
    assert isinstance(request, Published)
    assert [expected] == [sent.messages for sent in request.entries]


def test_a_damaged_message_goes_to_the_service() -> None:
    """The error must not overtake receipts."""
    connection = with_producer()
    damaged = entry()[:-1] + b"\x00"
    first, second = connection.receive(send(1, 5, damaged) + send(1, 6, entry()), 0)
    assert Damaged(producer="the producer", sequence_id=5) == first
    assert isinstance(second, Published)
    assert [] == outgoing(connection)


def test_seek_last_message_and_ack_are_answered_without_the_service() -> None:
    connection = with_consumer()
    last = frame_of(B.GET_LAST_MESSAGE_ID, consumer_id=2, request_id=23)
    acknowledgement = frame_of(B.ACK, consumer_id=2, request_id=24)
    expected: list[Request] = [Sought(consumer="the consumer"), Acked(consumer="the consumer")]
    assert expected == connection.receive(seek(2, 22) + last + acknowledgement, 0)
    (success, _), (last_id, _), (acknowledged, _) = commands_in(connection.take_outgoing())
    assert 22 == success.success.request_id
    response = last_id.get_last_message_id_response
    assert (23, MINUS_ONE, MINUS_ONE) == (
        response.request_id,
        response.last_message_id.ledgerId,
        response.last_message_id.entryId,
    )
    assert 24 == acknowledged.ack_response.request_id


def test_lookups_beyond_the_bound_are_refused() -> None:
    """An answer makes room for one more."""
    connection = connected(Limits(requests_pending_max=1))
    (waiting,) = connection.receive(lookup(1), 0)
    assert isinstance(waiting, LookupAsked)
    assert [TurnedAway(what="LOOKUP")] == connection.receive(lookup(2), 0)
    ((reply, _),) = commands_in(connection.take_outgoing())
    assert (2, ServerError.TOO_MANY_REQUESTS) == (
        reply.lookup_response.request_id,
        int(reply.lookup_response.error),
    )
    connection.answer(waiting, replies.located(1, "pulsar://broker:6650"))
    assert [LookupAsked(request_id=3, topic=TOPIC)] == connection.receive(lookup(3), 0)


def test_creations_beyond_the_bound_should_be_retried() -> None:
    connection = connected(replace(Limits(), pending_bytes_max=10))
    connection.receive(producer(1, 1) + subscribe(2, 2), 0)
    codes = [
        int(reply.error.error)
        for reply, _ in commands_in(connection.take_outgoing())
        if reply.type == B.ERROR
    ]
    assert [ServerError.SERVICE_NOT_READY, ServerError.SERVICE_NOT_READY] == codes


def test_the_producers_of_a_connection_are_bounded() -> None:
    """Pending ones count, closed ones do not."""
    connection = with_producer(Limits(producers_max=2))
    asked_for_producer(connection, 2, 11)
    assert [("PRODUCER", 12, ServerError.TOO_MANY_REQUESTS)] == refused(connection, producer(3, 12))
    connection.close_producer(1)
    asked_for_producer(connection, 3, 13)


SHARED, KEY_SHARED = CommandSubscribe.Shared, CommandSubscribe.Key_Shared


def with_ranges(kind: CommandSubscribe.SubType, mode: KeySharedMeta.Mode, count: int) -> bytes:
    """SUBSCRIBE with `count` hash ranges."""
    ranges = [{"start": n, "end": n} for n in range(count)]
    return subscribe(
        1, 5, kind=kind, topic="t", keySharedMeta={"keySharedMode": mode, "hashRanges": ranges}
    )


@pytest.mark.parametrize(
    ("data", "what", "error"),
    [
        (producer(0, 5, "t" * 11), "PRODUCER", ServerError.NOT_ALLOWED),
        (producer(0, 5, "t", producer_name="n" * 11), "PRODUCER", ServerError.NOT_ALLOWED),
        (
            producer(0, 5, "t", metadata=[{"key": "k" * 6, "value": "v" * 6}]),
            "PRODUCER",
            ServerError.NOT_ALLOWED,
        ),
        (
            producer(0, 5, "t", metadata=[{"key": "\N{EURO SIGN}", "value": "\N{EURO SIGN}" * 2}]),
            "PRODUCER",
            ServerError.NOT_ALLOWED,
        ),
        (
            producer(0, 5, "t", metadata=[{"key": "", "value": ""}] * 2),
            "PRODUCER",
            ServerError.NOT_ALLOWED,
        ),
        (producer(0, 5, "t", producer_access_mode=9), "PRODUCER", ServerError.NOT_ALLOWED),
        (subscribe(1, 5, "", topic="t"), "SUBSCRIBE", ServerError.PRODUCER_BUSY),  # Pulsar's code.
        (
            with_ranges(KEY_SHARED, KeySharedMeta.STICKY, 101),
            "SUBSCRIBE",
            ServerError.CONSUMER_ASSIGN_ERROR,
        ),
        (frame_of(B.NEW_TXN, request_id=5), "NEW_TXN", ServerError.NOT_ALLOWED),
    ],
    ids=[
        "topic",
        "name",
        "properties",
        "bytes of properties",
        "many properties",
        "mode",
        "no subscription",
        "ranges",
        "transaction",
    ],
)
def test_an_impossible_request_is_refused(data: bytes, what: str, error: ServerError) -> None:
    """The connection continues."""
    connection = connected(Limits(name_characters_max=10, properties_bytes_max=70))
    assert [(what, 5, error)] == refused(connection, data)
    assert not connection.is_ended


def test_kept_names_and_properties_are_bounded_per_connection() -> None:
    """Producers and consumers share the bound, pending or live."""
    connection = connected(Limits(kept_bytes_max=600))
    metadata = [{"key": "k", "value": "v" * 99}] * 3

    def asked(id_: int) -> bytes:
        return producer(id_, id_, "t", producer_name="n", metadata=metadata)

    (first,) = connection.receive(asked(1), 0)
    assert isinstance(first, ProducerAsked)
    subscribed = subscribe(1, 3, topic="t", metadata=metadata)
    too_many = [
        ("PRODUCER", 2, ServerError.TOO_MANY_REQUESTS),
        ("SUBSCRIBE", 3, ServerError.TOO_MANY_REQUESTS),
    ]
    assert too_many == refused(connection, asked(2) + subscribed)
    connection.producer_opened(first, "n", "the producer")
    outgoing(connection)
    assert too_many[:1] == refused(connection, asked(2))
    connection.close_producer(1)
    (second,) = connection.receive(asked(2), 0)
    assert isinstance(second, ProducerAsked)
    connection.producer_refused(second, ServerError.PRODUCER_BUSY, "taken")
    (third,) = connection.receive(subscribed, 0)
    assert isinstance(third, SubscribeAsked)


@pytest.mark.parametrize(
    ("kind", "mode", "expected"),
    [
        (SHARED, KeySharedMeta.STICKY, None),
        (KEY_SHARED, KeySharedMeta.AUTO_SPLIT, KeyShared(is_sticky=False, ranges=())),
    ],
)
def test_only_sticky_consumers_keep_their_hash_ranges(
    kind: CommandSubscribe.SubType, mode: KeySharedMeta.Mode, expected: KeyShared | None
) -> None:
    (request,) = connected().receive(with_ranges(kind, mode, 25_000), 0)
    assert isinstance(request, SubscribeAsked)
    assert expected == request.key_shared


def test_a_long_client_version_is_cut() -> None:
    connection = Connection(limits=Limits(name_characters_max=10), now_ms=0)
    expected = [Connected(client_version="v" * 10)]
    assert expected == connection.receive(connect(client_version="v" * 99), 0)


def test_outgoing_bytes_are_counted() -> None:
    connection = with_consumer()
    connection.message(2, 1, -1, entry())
    connection.receive(ping(), 0)
    outgoing_bytes = connection.outgoing_bytes
    assert outgoing_bytes == len(connection.take_outgoing())
    assert 0 == connection.outgoing_bytes


def test_the_bytes_of_requests_are_bounded_only_while_they_wait() -> None:
    connection = connected(Limits(pending_bytes_max=len(lookup(1))))
    for request_id in range(10):
        (request,) = connection.receive(lookup(request_id), 0)
        assert isinstance(request, LookupAsked)
        connection.answer(request, replies.located(request_id, "pulsar://broker:6650"))


def test_the_work_of_one_turn_is_bounded() -> None:
    """The rest follows in order in later turns."""
    connection = connected(Limits(turn_cost_max=16))
    taken = [connection.receive(b"".join(lookup(request_id) for request_id in range(5)), 0)]
    while connection.reader.has_more:
        taken.append(connection.receive(b"", 0))
    assert [2, 2, 1] == [len(requests) for requests in taken]
    asked = [
        request.request_id
        for requests in taken
        for request in requests
        if isinstance(request, LookupAsked)
    ]
    assert list(range(5)) == asked


def test_a_frame_before_the_handshake_cannot_be_large() -> None:
    announced = (1_000_000).to_bytes(4, "big")
    connection = Connection(limits=Limits(), now_ms=0)
    assert Violation.FRAME_TOO_LARGE is violation(connection.receive(announced, 0))
    connection = Connection(limits=Limits(), now_ms=0)
    connection.receive(connect() + announced, 0)
    assert not connection.is_ended
