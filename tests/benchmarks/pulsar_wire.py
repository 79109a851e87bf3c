"""A Pulsar client made for speed: frames spelled beforehand, and answers that are counted and not
read.
"""

from __future__ import annotations

import socket
import struct
from typing import Final, Self

from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandFlow,
    CommandPong,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    MessageMetadata,
    SingleMessageMetadata,
)
from tests.pulsar.pulsar_speech import connect, framed, ping, with_checksum

RECEIVE_BYTES: Final = 256 * 1024
_TIMEOUT_S: Final = 10.0
# Sizes of the frame and of the command, and the command's type: a tag of one byte and a number
# below 128.
_HEAD: Final = struct.Struct(">IIBB")
_SIZE_BYTES: Final = 4


CONNECT: Final = connect()
PING: Final = ping()
PONG: Final = framed(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))


def producer(topic: str) -> bytes:
    """PRODUCER with id 0 and request 0."""
    return framed(
        BaseCommand(
            type=BaseCommand.PRODUCER,
            producer=CommandProducer(topic=topic, producer_id=0, request_id=0),
        )
    )


def consumer(topic: str) -> bytes:
    """SUBSCRIBE with id 0 and request 0, Exclusive."""
    subscribe = CommandSubscribe(
        topic=topic,
        subscription="s",
        subType=CommandSubscribe.Exclusive,
        consumer_id=0,
        request_id=0,
    )
    return framed(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe))


def flow(permits: int) -> bytes:
    """FLOW of consumer 0."""
    return framed(
        BaseCommand(type=BaseCommand.FLOW, flow=CommandFlow(consumer_id=0, messagePermits=permits))
    )


def send(*, messages: int, message_bytes: int) -> bytes:
    """SEND of producer 0: one message, or, if there are more, a batch of them."""
    payload = b"x" * message_bytes
    metadata = MessageMetadata(producer_name="bench", sequence_id=0, publish_time=0)
    if messages > 1:
        single = SingleMessageMetadata(payload_size=message_bytes).SerializeToString()
        payload = (struct.pack(">I", len(single)) + single + payload) * messages
        metadata.num_messages_in_batch = messages
    head = metadata.SerializeToString()
    command = CommandSend(producer_id=0, sequence_id=0, num_messages=messages)
    return framed(
        BaseCommand(type=BaseCommand.SEND, send=command),
        with_checksum(struct.pack(">I", len(head)) + head + payload),
    )


class Wire:
    """A connection whose handshake is done, as a context."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, _TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._skip = 0
        self.ask(CONNECT, BaseCommand.CONNECTED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, request: bytes, answer: int) -> None:
        """Send, and wait for one answer of a type."""
        self.socket.sendall(request)
        while not self.count(answer):
            pass

    def count(self, kind: int) -> int:
        """Receive what there is, and count the frames of a type that begin in it; fails on any
        other type, or at the end of the stream.
        """
        data = self.socket.recv(RECEIVE_BYTES)
        assert data, "the broker closed the connection"
        if self._rest:
            data = self._rest + data
        at, end, frames = self._skip, len(data), 0
        while at + _HEAD.size <= end:
            size, _, _, found = _HEAD.unpack_from(data, at)
            assert found == kind, (
                f"a command {BaseCommand.Type.Name(found)} where only {BaseCommand.Type.Name(kind)}"
                " is expected"
            )
            at += _SIZE_BYTES + size
            frames += 1
        # The rest of a frame that was counted is skipped, of a head only its beginning may be here.
        self._rest, self._skip = (data[at:], 0) if at < end else (b"", at - end)
        return frames
