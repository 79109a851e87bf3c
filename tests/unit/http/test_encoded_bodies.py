"""A compressed body is never decompressed: every port refuses it by its head, and closes
connections with unread bodies.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import uvicorn
from aiohttp import http_parser, web

from equipoise.brokers.http import connections
from equipoise.brokers.runtime.embedding.embedded import Worker
from tests.unit.http.cluster import NAMESPACE, Gate, cluster
from tests.unit.pulsar.wire_client import brokers
from tests.unit.security.signing import SETTINGS

pytestmark = pytest.mark.integration

ZEROS: Final = bytes(16 << 20)
DECOMPRESSED_MAX: Final = 1 << 20
"""What the own server of a program may decompress before its handler, the mount, is called."""

BODIES: Final[Mapping[str, bytes]] = {
    "gzip": gzip.compress(ZEROS),
    "deflate": zlib.compress(ZEROS),
    "br": b"\x00" * 1_000,  # Nobody reads it.
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(1_000),
}


@pytest.fixture(autouse=True)
def _short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a broker that does not wait for a body close its connection soon. Each test waits for
    that.
    """
    monkeypatch.setattr(connections, "_LINGER_S", 0.05)


@pytest.fixture
def decompressed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what aiohttp's servers decompress in this process."""
    sizes: list[int] = []

    def feed(self: http_parser.DeflateBuffer, chunk: bytes, *size: int) -> bool:
        before = self.out.total_bytes
        has_more = feed_data(self, chunk, *size)
        sizes.append(self.out.total_bytes - before)
        return has_more

    feed_data = http_parser.DeflateBuffer.feed_data
    monkeypatch.setattr(http_parser.DeflateBuffer, "feed_data", feed)
    return sizes


Port = tuple[str, ssl.SSLContext | None]
"""The address of a port, and how it is verified."""


@asynccontextmanager
async def http(folder: Path, **settings: Any) -> AsyncIterator[Port]:  # noqa: ANN401 - any settings
    async with cluster(folder, **settings) as made:
        yield made.brokers[0].url, None


@asynccontextmanager
async def pulsar(folder: Path) -> AsyncIterator[Port]:
    async with brokers(folder) as made:
        yield made.members[0].http_url, None


def mountable(listening: socket.socket, folder: Path) -> Worker:
    addresses = {"http": f"http://127.0.0.1:{listening.getsockname()[1]}"}
    return Worker(
        "memory:encoded",
        Gate(),
        data_dir=folder / "worker",
        broker_id="mounted",
        advertised_addresses=addresses,
    )


@asynccontextmanager
async def asgi(folder: Path) -> AsyncIterator[Port]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        worker = mountable(listening, folder)
        server = uvicorn.Server(uvicorn.Config(worker.asgi(), log_config=None, lifespan="off"))
        async with worker:
            serving = asyncio.ensure_future(server.serve(sockets=[listening]))
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", None
            server.should_exit = True
            await serving


@asynccontextmanager
async def subapp(folder: Path) -> AsyncIterator[Port]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        worker = mountable(listening, folder)
        program = web.Application()
        program.add_subapp("/at", worker.aiohttp_app("/at"))
        runner = web.AppRunner(program)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        async with worker:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/at", None
        await runner.cleanup()


async def said(
    port: Port, head: str, *headers: str, body: bytes = b"", path: str = "/health"
) -> bytes:
    """Send a request whose body never ends, and return all that comes until the connection is
    closed.
    """
    place = urlsplit(port[0])
    reader, writer = await asyncio.open_connection(place.hostname, place.port, ssl=port[1])
    fields = "\r\n".join(
        (
            f"{head} {place.path}{path} HTTP/1.1",
            "Host: localhost",
            f"Content-Length: {len(body) + 1_000}",
            *headers,
        )
    )
    writer.write(fields.encode() + b"\r\n\r\n" + body)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("opened", [http, pulsar, asgi, subapp])
async def test_no_port_decompresses_a_body(
    opened: Callable[[Path], AbstractAsyncContextManager[Port]],
    tmp_path: Path,
    decompressed: list[int],
) -> None:
    """With br, which aiohttp may lack, the own server of a program refuses such a body itself."""
    requests = (
        ("POST", "/health"),
        ("PUT", f"/admin/v2/non-persistent/{NAMESPACE}/topic/partitions"),
        ("POST", "/nowhere"),
    )
    async with opened(tmp_path) as port:
        for (encoding, body), (method, path) in product(BODIES.items(), requests):
            answer = await said(port, method, f"Content-Encoding: {encoding}", body=body, path=path)
            if opened is subapp:
                assert not answer or answer.split()[1] in (b"415", b"400")
            else:
                assert b"415" == answer.split()[1], answer
                assert b'"EncodedBody"' in answer
                assert b"\r\nconnection: close\r\n" in answer.lower()
    most = len(BODIES) * len(requests) * DECOMPRESSED_MAX if opened is subapp else 0
    assert sum(decompressed) <= most


@pytest.mark.parametrize("settings", [{}, SETTINGS], ids=["open", "authenticated"])
async def test_an_answer_that_does_not_wait_for_the_body_ends_the_connection(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    async with http(tmp_path, **settings) as port:
        for method, path in (
            ("GET", "/health"),
            ("POST", "/nowhere"),
            ("GET", "/admin/v2/tenants"),
        ):
            answer = await said(port, method, path=path, body=b"{")
            assert b"\r\nConnection: close\r\n" in answer, answer


async def test_a_client_is_not_invited_to_send_its_body_before_it_is_let_in(tmp_path: Path) -> None:
    async with http(tmp_path, **SETTINGS) as port:
        answer = await said(
            port,
            "PUT",
            "Expect: 100-continue",
            "Content-Type: application/json",
            path="/admin/v2/namespaces/acme/new",
        )
        assert answer.startswith(b"HTTP/1.1 401 ")
