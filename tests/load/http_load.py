"""A closed loop of HTTP requests over many connections, cheap enough that the server is what is
measured.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from dataclasses import dataclass, field
from typing import Final, cast

_CONTENT_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)

# A server that has not answered by then does not answer.
_LATE_S: Final = 30.0

_END_OF_HEAD: Final = b"\r\n\r\n"


@dataclass(slots=True, kw_only=True)
class Load:
    """What was measured: latencies in ms, the statuses that were not 200, and the last body."""

    latencies_ms: list[float] = field(default_factory=list)
    failures: list[bytes] = field(default_factory=list)
    body: bytes = b""
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies_ms) / self.seconds


class _Connection(asyncio.Protocol):
    """From `start` on, sends one request, waits for the whole answer, and sends the next."""

    def __init__(self, request: bytes, load: Load) -> None:
        self._request = request
        self._load = load
        self._end_s = 0.0
        self._received = b""
        self._sent_s = 0.0
        self._transport: asyncio.WriteTransport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Of a TCP connection; uvloop's is of no class of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)

    def start(self, end_s: float) -> None:
        """Send until `end_s`."""
        assert self._transport is not None, "it is connected"
        self._end_s = end_s
        self._send(self._transport)

    def _send(self, transport: asyncio.WriteTransport) -> None:
        self._sent_s = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(_END_OF_HEAD)
        length = _CONTENT_LENGTH.search(head) if end else None
        if length is None or len(body) < int(length[1]) or self._transport is None:
            return
        now_s = time.perf_counter()
        self._load.latencies_ms.append((now_s - self._sent_s) * 1e3)
        if not head.startswith(b"HTTP/1.1 200"):
            self._load.failures.append(head)
        self._received, self._load.body = b"", body
        if now_s < self._end_s:
            self._send(self._transport)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def load(
    host: str,
    port: int,
    path: str,
    *,
    connections: int,
    seconds: float,
    tls: ssl.SSLContext | None = None,
) -> Load:
    """Ask for `path` over so many connections at once, each as fast as it is answered. The time to
    connect does not count.
    """
    measured = Load()
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: keep-alive\r\n\r\n".encode()
    )
    loop = asyncio.get_running_loop()
    pairs = [
        await loop.create_connection(lambda: _Connection(request, measured), host, port, ssl=tls)
        for _ in range(connections)
    ]
    began_s = time.perf_counter()
    for _, connection in pairs:
        connection.start(began_s + seconds)
    async with asyncio.timeout(seconds + _LATE_S):
        await asyncio.gather(*(connection.ended for _, connection in pairs))
    measured.seconds = time.perf_counter() - began_s
    return measured
