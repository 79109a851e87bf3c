"""Test what the stories of a connection cannot show: sizes of batches, long lists, and its own
counts.
"""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandSubscribe,
    KeySharedMeta,
    ServerError,
)
from equipoise.brokers.pulsar.wire.requests import Asked, LookupAsked, Published
from equipoise.channel.core.errors import Bug
from tests.pulsar.pulsar_speech import (
    TOPIC,
    commands_in,
    entry,
    lookup,
    ping,
    pong,
    send,
    subscribe,
)
from tests.pulsar.wire_stage import WireStage


def started(line: str = "connection") -> Connection:
    """A connection as a story starts it."""
    stage = WireStage()
    list(stage.perform(line))
    return stage.connection


def outgoing(connection: Connection) -> list[str]:
    """Take the outgoing commands of a connection. Return their names."""
    return [
        BaseCommand.Type.Name(command.type)
        for command, _ in commands_in(connection.take_outgoing())
    ]


@pytest.mark.parametrize(
    ("payload_bytes", "uncompressed_size", "compression", "expected"),
    [
        (1, 0, 0, 1),
        (600, 0, 0, 101),
        (600, 60_000, 0, 101),
        (600, 60_000, 3, 10_000),
        (1, 2**32 - 1, 3, 60_074),
        (600, 0, 3, 1),
    ],
)
def test_a_batch_counts_at_most_as_many_messages_as_fit_into_it(
    payload_bytes: int, uncompressed_size: int, compression: int, expected: int
) -> None:
    block = entry(
        bytes(payload_bytes), compression=compression, uncompressed_size=uncompressed_size
    )
    (request,) = started("connection with PRODUCER producer_id: 1").receive(
        send(1, 5, block, messages=2**31 - 1), 0
    )
    assert isinstance(request, Published)
    assert [(expected, block)] == [(sent.messages, sent.block) for sent in request.entries]


def test_hash_ranges_beyond_the_bound_are_refused() -> None:
    ranges = [{"start": n, "end": n} for n in range(101)]
    key_shared = {"keySharedMode": KeySharedMeta.STICKY, "hashRanges": ranges}
    asked = subscribe(1, 5, kind=CommandSubscribe.Key_Shared, keySharedMeta=key_shared)
    connection = started()
    connection.receive(asked, 0)
    ((reply, _),) = commands_in(connection.take_outgoing())
    assert (5, ServerError.ConsumerAssignError) == (
        reply.error.request_id,
        int(reply.error.error),
    )


def test_a_probe_is_answered_by_its_own_pong() -> None:
    """A PONG without a PING answers none."""
    connection = started()
    connection.receive(pong(), 0)
    connection.send(replies.close(Asked.CONSUMER, 2, None))
    probe = connection.probe()
    assert ["CLOSE_CONSUMER", "PING"] == outgoing(connection)
    assert connection.pongs < probe
    connection.receive(pong(), 0)
    assert connection.pongs == probe


def test_outgoing_bytes_are_counted() -> None:
    connection = started()
    connection.send(b"a frame", b" and a block")
    connection.receive(ping(), 0)
    outgoing_bytes = connection.outgoing_bytes
    assert outgoing_bytes == len(connection.take_outgoing())
    assert 0 == connection.outgoing_bytes


def test_a_second_answer_is_a_bug() -> None:
    connection, reply = started(), replies.located(1, "pulsar://broker:6650")
    connection.receive(lookup(1), 0)
    asked = LookupAsked(request_id=1, topic=TOPIC)
    connection.answer(asked, reply)
    with pytest.raises(Bug, match="answered LOOKUP 1, which waits for no answer"):
        connection.answer(asked, reply)
    assert ["LOOKUP_RESPONSE"] == outgoing(connection)
