"""The inputs that the fuzzer starts from. Good frames pass the first check at once."""

from __future__ import annotations

from typing import Final

from tests.pulsar.pulsar_speech import (
    close_consumer,
    close_producer,
    connect,
    entry,
    flow,
    lookup,
    ping,
    producer,
    send,
    subscribe,
    unsubscribe,
)

# Chunks of 64 and 7 bytes. Each input begins with the size of its chunks, less one.
_PIECES: Final = (b"\x3f", b"\x06")
_STREAMS: Final = (
    b"",
    ping() + lookup(1) + lookup(2),
    flow(0) + send(0, 0, entry()) + send(0, 1, entry(b"x" * 300), messages=100),
    send(0, 0, entry()[:-1]) + send(0, 1, entry()[6:]),
    producer(1, 5) + close_producer(1, 6) + close_producer(0, 7) + send(0, 0, entry()),
    subscribe(1, 5, "another") + unsubscribe(1, 6) + close_consumer(0, 7) + flow(0),
    producer(0, 5, "non-persistent://public/default/another") + subscribe(0, 6),
    connect(),
    lookup(1)[:-3] + ping(),
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x08\x00\x00\x00\x09",
)
INPUTS: Final = tuple(piece + stream for piece in _PIECES for stream in _STREAMS)
