"""Build the frames of a Pulsar client, and read the commands in a stream of replies."""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c

from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandSubscribe,
    MessageMetadata,
)

TOPIC = "non-persistent://public/default/t"
T = BaseCommand.Type


# The fields that Pulsar gives it.
def command(kind: BaseCommand.Type, **body: Any) -> BaseCommand:  # noqa: ANN401
    """A command with the fields of its body, by Pulsar's names."""
    fields: dict[str, Any] = {
        "type": kind,
        BaseCommand.DESCRIPTOR.fields_by_number[kind].name: body,
    }
    return BaseCommand(**fields)


def framed(command: BaseCommand, block: bytes = b"") -> bytes:
    """The frame of a command and its block."""
    encoded = command.SerializeToString()
    return struct.pack(">II", 4 + len(encoded) + len(block), len(encoded)) + encoded + block


# As above.
def frame_of(kind: BaseCommand.Type, block: bytes = b"", /, **body: Any) -> bytes:  # noqa: ANN401
    """The frame of a `command`."""
    return framed(command(kind, **body), block)


def connect(
    version: int = 20,
    client_version: str = "a test",
    *,
    token: str | None = None,
    method: str = "token",
    refreshes: bool = True,
    **body: Any,  # noqa: ANN401 - as above
) -> bytes:
    """CONNECT. With a token, or what another method needs, `refreshes` is whether the client
    answers AUTH_CHALLENGE.
    """
    body |= {"client_version": client_version, "protocol_version": version}
    if token is not None:
        body |= {
            "auth_method_name": method,
            "auth_data": token.encode(),
            "feature_flags": {"supports_auth_refresh": refreshes},
        }
    return frame_of(T.CONNECT, **body)


def auth_response(token: str, method: str = "token") -> bytes:
    """AUTH_RESPONSE."""
    return frame_of(
        T.AUTH_RESPONSE, response={"auth_method_name": method, "auth_data": token.encode()}
    )


def ping() -> bytes:
    """PING."""
    return frame_of(T.PING)


def pong() -> bytes:
    """PONG."""
    return frame_of(T.PONG)


# As above.
def producer(producer_id: int, request_id: int, topic: str = TOPIC, **body: Any) -> bytes:  # noqa: ANN401
    """PRODUCER."""
    return frame_of(T.PRODUCER, topic=topic, producer_id=producer_id, request_id=request_id, **body)


def subscribe(
    consumer_id: int,
    request_id: int,
    subscription: str = "s",
    kind: CommandSubscribe.SubType = CommandSubscribe.Shared,
    topic: str = TOPIC,
    **body: Any,  # noqa: ANN401 - as above
) -> bytes:
    """SUBSCRIBE."""
    ids = {"consumer_id": consumer_id, "request_id": request_id}
    return frame_of(
        T.SUBSCRIBE, topic=topic, subscription=subscription, subType=kind, **ids, **body
    )


def with_checksum(covered: bytes) -> bytes:
    """Put the checksum of these bytes before them."""
    return b"\x0e\x01" + struct.pack(">I", google_crc32c.value(covered)) + covered


def entry(payload: bytes = b"hello", **metadata: Any) -> bytes:  # noqa: ANN401 - as above
    """The block of an entry, with its checksum."""
    encoded = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=0, **metadata
    ).SerializeToString()
    return with_checksum(struct.pack(">I", len(encoded)) + encoded + payload)


def send(producer_id: int, sequence_id: int, block: bytes, messages: int = 1) -> bytes:
    """SEND."""
    return frame_of(
        T.SEND, block, producer_id=producer_id, sequence_id=sequence_id, num_messages=messages
    )


def commands_in(stream: bytes) -> list[tuple[BaseCommand, bytes]]:
    """Return the commands in a stream of whole frames, each with the block behind it. Fail on
    anything else.
    """
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


def lookup(request_id: int, topic: str = TOPIC) -> bytes:
    """LOOKUP."""
    return frame_of(T.LOOKUP, topic=topic, request_id=request_id)


def close_producer(producer_id: int, request_id: int) -> bytes:
    """CLOSE_PRODUCER."""
    return frame_of(T.CLOSE_PRODUCER, producer_id=producer_id, request_id=request_id)


def close_consumer(consumer_id: int, request_id: int) -> bytes:
    """CLOSE_CONSUMER."""
    return frame_of(T.CLOSE_CONSUMER, consumer_id=consumer_id, request_id=request_id)


def unsubscribe(consumer_id: int, request_id: int, *, force: bool = False) -> bytes:
    """UNSUBSCRIBE."""
    return frame_of(T.UNSUBSCRIBE, consumer_id=consumer_id, request_id=request_id, force=force)


def flow(consumer_id: int, permits: int = 5) -> bytes:
    """FLOW."""
    return frame_of(T.FLOW, consumer_id=consumer_id, messagePermits=permits)
