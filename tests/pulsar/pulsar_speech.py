"""What a Pulsar client says and hears, for tests: frames of commands and entries, and the commands in a stream of replies."""

from __future__ import annotations

import struct

import google_crc32c

from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.errors import Violation
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnect,
    CommandFlow,
    CommandLookupTopic,
    CommandPing,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    CommandUnsubscribe,
    MessageMetadata,
)
from equipoise.brokers.pulsar.wire.requests import Ended, Request

TOPIC = "non-persistent://public/default/t"


def framed(command: BaseCommand, block: bytes = b"") -> bytes:
    """A frame as Pulsar's documents describe it."""
    spelled = command.SerializeToString()
    return struct.pack(">II", 4 + len(spelled) + len(block), len(spelled)) + spelled + block


def connect(version: int = 20, client_version: str = "a test") -> bytes:
    """CONNECT of a client that speaks this version, and calls itself so."""
    return framed(BaseCommand(type=BaseCommand.CONNECT, connect=CommandConnect(client_version=client_version, protocol_version=version)))


def ping() -> bytes:
    """PING."""
    return framed(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))


def producer(producer_id: int, request_id: int, topic: str = TOPIC) -> bytes:
    """PRODUCER."""
    body = CommandProducer(topic=topic, producer_id=producer_id, request_id=request_id)
    return framed(BaseCommand(type=BaseCommand.PRODUCER, producer=body))


def subscribe(consumer_id: int, request_id: int, subscription: str = "s") -> bytes:
    """SUBSCRIBE to a Shared subscription."""
    body = CommandSubscribe(
        topic=TOPIC, subscription=subscription, subType=CommandSubscribe.Shared, consumer_id=consumer_id, request_id=request_id
    )
    return framed(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=body))


def with_checksum(covered: bytes) -> bytes:
    """What is covered by a checksum, with it."""
    return b"\x0e\x01" + struct.pack(">I", google_crc32c.value(covered)) + covered


def entry(payload: bytes = b"hello") -> bytes:
    """The block of an entry, with its checksum."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0).SerializeToString()
    return with_checksum(struct.pack(">I", len(metadata)) + metadata + payload)


def send(producer_id: int, sequence_id: int, block: bytes, messages: int = 1) -> bytes:
    """SEND."""
    body = CommandSend(producer_id=producer_id, sequence_id=sequence_id, num_messages=messages)
    return framed(BaseCommand(type=BaseCommand.SEND, send=body), block)


def heard(stream: bytes) -> list[tuple[BaseCommand, bytes]]:
    """The commands in a stream of whole frames, each with the block behind it; fails on anything else."""
    commands = []
    at = 0
    while at < len(stream):
        total, size = struct.unpack_from(">II", stream, at)
        end = at + 4 + total
        assert end <= len(stream), "the stream ends within a frame"
        command = BaseCommand.FromString(stream[at + 8 : at + 8 + size])
        assert command.IsInitialized()
        commands.append((command, stream[at + 8 + size : end]))
        at = end
    return commands


def said(connection: Connection) -> list[str]:
    """The names of the commands that a connection has to say, taken from it."""
    return [BaseCommand.Type.Name(command.type) for command, _ in heard(connection.take_outgoing())]


def connected(limits: Limits | None = None, version: int = 20) -> Connection:
    """A connection behind its handshake, at time 0, with nothing outgoing."""
    connection = Connection(limits=limits or Limits(), now_ms=0)
    connection.receive(connect(version), 0)
    connection.take_outgoing()
    return connection


def lookup(request_id: int, topic: str = TOPIC) -> bytes:
    """LOOKUP."""
    return framed(BaseCommand(type=BaseCommand.LOOKUP, lookup=CommandLookupTopic(topic=topic, request_id=request_id)))


def close_producer(producer_id: int, request_id: int) -> bytes:
    """CLOSE_PRODUCER."""
    return framed(
        BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=CommandCloseProducer(producer_id=producer_id, request_id=request_id))
    )


def close_consumer(consumer_id: int, request_id: int) -> bytes:
    """CLOSE_CONSUMER."""
    return framed(
        BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id))
    )


def unsubscribe(consumer_id: int, request_id: int) -> bytes:
    """UNSUBSCRIBE."""
    return framed(BaseCommand(type=BaseCommand.UNSUBSCRIBE, unsubscribe=CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)))


def flow(consumer_id: int) -> bytes:
    """FLOW."""
    return framed(BaseCommand(type=BaseCommand.FLOW, flow=CommandFlow(consumer_id=consumer_id, messagePermits=5)))


def with_producer(limits: Limits | None = None) -> Connection:
    """A connection with producer 1, to which "the producer" is attached."""
    connection = connected(limits)
    connection.receive(producer(1, 10), 0)
    assert connection.producer_opened(1, 10, "named", "the producer")
    connection.take_outgoing()
    return connection


def with_consumer(limits: Limits | None = None) -> Connection:
    """A connection with consumer 2, to which "the consumer" is attached."""
    connection = connected(limits)
    connection.receive(subscribe(2, 20), 0)
    assert connection.consumer_opened(2, 20, "the consumer")
    connection.take_outgoing()
    return connection


def violation(requests: list[Request]) -> Violation:
    """What ended a connection, which must have ended."""
    end = requests[-1]
    assert isinstance(end, Ended)
    return end.counted_as
