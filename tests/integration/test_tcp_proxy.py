"""The proxy between clients and Kafka does to bytes and connections what it is told, and nothing
else.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from tests.kafka.proxy import HOST, TcpProxy

pytestmark = pytest.mark.integration

DEADLINE_S = 20.0
SILENCE_S = 0.2
"""How long nothing must come for a test to believe that nothing comes: a hop through the proxy
takes a millisecond."""
CHUNK_BYTES = 1 << 16


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that says back what it hears, and ends where its client ends."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                while chunk := self.request.recv(CHUNK_BYTES):
                    self.request.sendall(chunk)

    with socketserver.ThreadingTCPServer((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"{HOST}:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: str) -> Iterator[TcpProxy]:
    """A proxy before that server."""
    with TcpProxy(echo) as proxy:
        yield proxy


def connected(proxy: TcpProxy) -> socket.socket:
    """A client's connection to the proxy."""
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def received(client: socket.socket, count: int) -> bytes:
    """The next so many bytes, or what comes until the end."""
    found = b""
    while len(found) < count and (chunk := client.recv(count - len(found))):
        found += chunk
    return found


def assert_silent(client: socket.socket) -> None:
    """Nothing comes for a while, not even the end."""
    client.settimeout(SILENCE_S)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(DEADLINE_S)


def wait_until_forwarded(proxy: TcpProxy, client: socket.socket) -> None:
    """A first exchange, so that the connection is known to reach the server."""
    client.sendall(b"?")
    assert b"?" == received(client, 1)
    assert proxy.connections >= 1


def test_a_black_hole_swallows_without_a_word_until_it_heals(proxy: TcpProxy) -> None:
    """Neither old nor new connections hear anything, and none breaks; afterwards all comes out."""
    with connected(proxy) as old:
        wait_until_forwarded(proxy, old)
        proxy.black_hole()
        with connected(proxy) as new:
            old.sendall(b"old")
            new.sendall(b"new")
            assert_silent(old)
            assert_silent(new)
            proxy.heal()
            assert b"old" == received(old, 3)
            assert b"new" == received(new, 3)
