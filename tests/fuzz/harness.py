"""Check the Pulsar protocol with any bytes in any chunks."""

from __future__ import annotations

from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.frames import FrameReader
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.requests import Ended, Request
from tests.pulsar.pulsar_service import DumbService
from tests.pulsar.pulsar_speech import commands_in, connect, producer, subscribe

LIMITS = Limits(
    message_bytes_max=4_096,
    command_bytes_max=1_024,
    requests_pending_max=20,
    producers_max=4,
    consumers_max=4,
)


def take(data: bytes) -> None:
    """Check one input. Its first byte is the size of the chunks of the rest. Raises
    `AssertionError`.
    """
    if not data:
        return
    piece_bytes = data[0] % 64 + 1
    check_frames(data[1:], piece_bytes)
    check_connection(data[1:], piece_bytes)


def pieces(stream: bytes, piece_bytes: int) -> list[bytes]:
    """Split a stream into chunks of one size."""
    return [stream[at : at + piece_bytes] for at in range(0, len(stream), piece_bytes)]


def check_frames(stream: bytes, piece_bytes: int) -> None:
    """Check that chunks do not change the frames, and that the reader keeps a bounded number of
    bytes.
    """
    whole = FrameReader(
        frame_bytes_max=LIMITS.frame_bytes_max, command_bytes_max=LIMITS.command_bytes_max
    )
    cut = FrameReader(
        frame_bytes_max=LIMITS.frame_bytes_max, command_bytes_max=LIMITS.command_bytes_max
    )
    expected = whole.feed(stream)
    found = []
    for piece in pieces(stream, piece_bytes):
        found += cut.feed(piece)
        assert cut.pending_bytes < LIMITS.frame_bytes_max + 4, "more than one frame is kept"
    assert expected == found, "frames depend on the cut"
    assert str(whole.problem) == str(cut.problem), "the problem depends on the cut"


def check_connection(stream: bytes, piece_bytes: int) -> None:
    """Check that a connection answers in whole frames, and sends nothing after its end."""
    connection = Connection(limits=LIMITS, now_ms=0)
    service = DumbService(connection=connection)
    service.handle(connection.receive(connect() + producer(0, 0) + subscribe(0, 0), 0))
    service.answer()
    for piece in pieces(stream, piece_bytes):
        requests: list[Request] = connection.receive(piece, 0)
        service.handle(requests)
        service.answer(favourably=len(requests) % 2 == 0)
        commands_in(connection.take_outgoing())
    ends = [isinstance(request, Ended) for request in service.seen]
    assert ends.count(True) == connection.is_ended, "the end is not reported exactly once"
    assert not connection.is_ended or ends[-1], "something follows the end"
