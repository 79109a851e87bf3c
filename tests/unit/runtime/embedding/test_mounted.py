"""The ASGI app of a worker: what reaches the broker behind it, and what comes back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from unittest.mock import MagicMock

import aiohttp
import httpx
import pytest
import uvicorn
from aiohttp import web
from fastapi import FastAPI
from yarl import URL

from equipoise.brokers.http.caller import CALLED_FROM, address_of
from equipoise.brokers.http.connections import Connection
from equipoise.brokers.http.guard import ARRIVED_AT
from equipoise.brokers.runtime.broker import bind_locally
from equipoise.brokers.runtime.embedding.forwarding import Message
from equipoise.brokers.runtime.embedding.mounted import MountedHttp

pytestmark = pytest.mark.integration

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PREFIX = "/my broker"


class Behind:
    """A mounted app in front of `handler`. `requests` are those that reached it."""

    def __init__(self, parts: AsyncExitStack) -> None:
        self.mounted = MountedHttp()
        self.requests: list[web.Request] = []
        self._parts = parts

    @asynccontextmanager
    async def server(self) -> AsyncIterator[str]:
        """Run a program of aiohttp that has added the app. Yield the address of the app."""
        program = web.Application()
        program.add_subapp("/broker", self.mounted.application())
        runner = web.AppRunner(program)
        await runner.setup()
        listening = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listening).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/broker"
        finally:
            await runner.cleanup()

    async def answers_by(self, handler: Handler) -> None:
        """Listen where the app forwards to."""

        async def noted(request: web.Request) -> web.StreamResponse:
            self.requests.append(request)
            return await handler(request)

        app = web.Application(client_max_size=1 << 30)
        app.add_routes([web.route("*", "/{path:.*}", noted)])
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        self._parts.push_async_callback(runner.cleanup)
        await web.SockSite(
            runner, bind_locally(self._parts.enter_context(self.mounted.listening()))
        ).start()

    def client(self) -> httpx.AsyncClient:
        """Return a client of a program that has mounted the app."""
        program = FastAPI()
        program.mount(PREFIX, self.mounted)
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(program), base_url="http://program:8000"
        )


@asynccontextmanager
async def mounting(handler: Handler | None = None) -> AsyncIterator[Behind]:
    """Yield a mounted app, in front of `handler` if one is given."""
    async with AsyncExitStack() as parts:
        behind = Behind(parts)
        if handler is not None:
            await behind.answers_by(handler)
        yield behind


async def echo(request: web.Request) -> web.Response:
    """Answer with what came."""
    return web.Response(
        body=await request.read(),
        status=207,
        headers=[("X-Path", request.raw_path), ("Set-Cookie", "a"), ("Set-Cookie", "b")],
    )


async def test_before_the_worker_runs_it_answers_503() -> None:
    """And after it."""
    async with mounting() as behind, behind.client() as client:
        answer = await client.get(f"{PREFIX}/health")
        with behind.mounted.listening():
            starting = await client.get(f"{PREFIX}/health")
    assert (503, "1", "NotReady") == (
        answer.status_code,
        answer.headers["Retry-After"],
        answer.json()["error"],
    )
    assert "the worker does not run" in answer.json()["reason"]
    assert (503, "NotReady") == (starting.status_code, starting.json()["error"])


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/a/b", "/a%2Fb/%25?q=%2F&r=ü", "/my broker/my broker"])
async def test_a_request_and_its_answer_arrive_as_they_are(method: str, path: str) -> None:
    async with mounting(echo) as behind, behind.client() as client:
        answer = await client.request(
            method, PREFIX + path, headers={"X-Mine": "1", "Connection": "x-hop", "X-Hop": "1"}
        )
    (request,) = behind.requests
    sent = httpx.URL("http://program" + path).raw_path.decode()
    assert (207, sent, ["a", "b"]) == (
        answer.status_code,
        answer.headers["X-Path"],
        answer.headers.get_list("Set-Cookie"),
    )
    assert (method, "program:8000", "1") == (
        request.method,
        request.headers["Host"],
        request.headers["X-Mine"],
    )
    assert "X-Hop" not in request.headers
    assert not request.body_exists


async def test_a_caller_cannot_say_where_its_request_arrived() -> None:
    """The guard of the broker trusts that address. Nor can it say where it came from, which goes
    into records and log lines.
    """
    async with mounting(echo) as behind, behind.client() as client:
        await client.get(f"{PREFIX}/", headers={ARRIVED_AT: "evil", CALLED_FROM: "9.9.9.9"})
    assert ["program"] == behind.requests[0].headers.getall(ARRIVED_AT)
    assert ["127.0.0.1"] == behind.requests[0].headers.getall(CALLED_FROM)
    of_mount = MagicMock(spec=Connection, peer=None)
    assert "127.0.0.1" == address_of(
        MagicMock(protocol=of_mount, headers=behind.requests[0].headers)
    )


async def pieces(size: int, count: int) -> AsyncIterator[bytes]:
    """Yield a body piece by piece."""
    for number in range(count):
        yield bytes([number % 256]) * size


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_large_body_passes_both_ways(is_chunked: bool) -> None:
    body = b"".join([piece async for piece in pieces(65_536, 256)])
    async with mounting(echo) as behind, behind.client() as client:
        answer = await client.post(
            f"{PREFIX}/", content=pieces(65_536, 256) if is_chunked else body
        )
    assert body == answer.content


async def test_redirects_and_compressed_answers_are_left_to_the_caller() -> None:
    async def redirect(_: web.Request) -> web.Response:
        return web.Response(
            status=307,
            body=b"not really gzip",
            headers={"Location": "http://other/x", "Content-Encoding": "gzip"},
        )

    async with (
        mounting(redirect) as behind,
        behind.client() as client,
        client.stream("GET", f"{PREFIX}/") as answer,
    ):
        assert [b"not really gzip"] == [piece async for piece in answer.aiter_raw()]
    assert (307, "http://other/x") == (answer.status_code, answer.headers["Location"])


class Caller:
    """A caller at the level of ASGI, which httpx has no streams for: `received` are the messages
    that it got.
    """

    def __init__(self) -> None:
        self.received: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self.sent.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def call(self, app: MountedHttp, kind: str = "http") -> None:
        """Call the app, as a server does."""
        scope = {
            "type": kind,
            "method": "GET",
            "path": "/",
            "query_string": b"",
            "headers": [(b"host", b"x")],
            "server": None,
        }
        await app(scope, self.sent.get, self.received.put)


async def test_a_stream_arrives_piece_by_piece() -> None:
    goes_on = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"data: 1\n\n")
        await goes_on.wait()
        await answer.write(b"data: 2\n\n")
        return answer

    caller = Caller()
    async with mounting(stream) as behind:
        calling = asyncio.ensure_future(caller.call(behind.mounted))
        assert 200 == (await caller.received.get())["status"]
        assert b"data: 1\n\n" == (await caller.received.get())["body"]
        goes_on.set()
        await calling
    assert [b"data: 2\n\n", b""] == [caller.received.get_nowait()["body"] for _ in range(2)]


def breaking(goes_on: asyncio.Event) -> Handler:
    """Return a handler that sends a part, waits, and breaks the connection."""

    async def part(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"a part")
        await goes_on.wait()
        assert request.transport is not None, "it is connected"
        request.transport.abort()
        return answer

    return part


async def test_an_answer_that_breaks_has_no_end(caplog: pytest.LogCaptureFixture) -> None:
    """A server then breaks the caller's connection. The log has one line about it, without a
    traceback.
    """
    goes_on, caller = asyncio.Event(), Caller()
    async with mounting(breaking(goes_on)) as behind:
        calling = asyncio.ensure_future(caller.call(behind.mounted))
        assert 200 == (await caller.received.get())["status"]
        assert {
            "type": "http.response.body",
            "body": b"a part",
            "more_body": True,
        } == await caller.received.get()
        goes_on.set()
        await calling
    assert caller.received.empty()
    assert [("WARNING", None)] == [
        (line.levelname, line.exc_info)
        for line in caplog.records
        if "broken answer" in line.message
    ]


async def test_under_uvicorn_an_answer_that_breaks_breaks_the_connection_of_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    goes_on = asyncio.Event()
    async with mounting(breaking(goes_on)) as behind, aiohttp.ClientSession() as session:
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(behind.mounted, log_config=None, lifespan="off"))
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        try:
            async with session.get(f"http://127.0.0.1:{listening.getsockname()[1]}/") as answer:
                assert b"a part" == await answer.content.readany()
                goes_on.set()
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.content.readany()
        finally:
            server.should_exit = True
            await serving
    assert not [line for line in caplog.records if line.exc_info]


async def test_a_caller_that_leaves_ends_the_request_behind() -> None:
    cancelled = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        try:
            caller.sent.put_nowait({"type": "http.disconnect"})
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return web.Response()

    caller = Caller()
    async with mounting(wait) as behind:
        await caller.call(behind.mounted)
        await cancelled.wait()
    assert caller.received.empty()


async def test_a_web_socket_is_refused() -> None:
    caller = Caller()
    await caller.call(MountedHttp(), "websocket")
    assert "websocket.close" == caller.received.get_nowait()["type"]


async def test_a_server_that_starts_the_app_itself_learns_that_it_is_to_be_mounted() -> None:
    with pytest.raises(NotImplementedError, match="mount it into a program"):
        await Caller().call(MountedHttp(), "lifespan")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/", "/a%2Fb/%25?q=%2F&r=%C3%BC", "/broker/broker"])
async def test_in_aiohttp_a_request_and_its_answer_arrive_as_they_are(
    method: str, path: str
) -> None:
    async with (
        mounting(echo) as behind,
        behind.server() as address,
        aiohttp.ClientSession() as session,
    ):
        body = pieces(65_536, 64) if method == "POST" else None
        headers = {"X-Mine": "1", "Connection": "x-hop", "X-Hop": "1", ARRIVED_AT: "evil"}
        async with session.request(
            method, URL(address + path, encoded=True), data=body, headers=headers
        ) as answer:
            returned = await answer.read()
    (request,) = behind.requests
    assert (207, path, ["a", "b"]) == (
        answer.status,
        answer.headers["X-Path"],
        answer.headers.getall("Set-Cookie"),
    )
    assert (method, "1", ["127.0.0.1"]) == (
        request.method,
        request.headers["X-Mine"],
        request.headers.getall(ARRIVED_AT),
    )
    assert "X-Hop" not in request.headers
    assert (64 * 65_536 if method == "POST" else 0) == len(returned)


async def test_in_aiohttp_it_answers_503_while_the_worker_does_not_run() -> None:
    async with (
        mounting() as behind,
        behind.server() as address,
        aiohttp.ClientSession() as session,
        session.get(f"{address}/health") as answer,
    ):
        assert (503, "1", "NotReady") == (
            answer.status,
            answer.headers["Retry-After"],
            (await answer.json())["error"],
        )


async def test_in_aiohttp_an_answer_that_breaks_breaks_the_connection_of_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    goes_on = asyncio.Event()
    async with (
        mounting(breaking(goes_on)) as behind,
        behind.server() as address,
        aiohttp.ClientSession() as session,
        session.get(f"{address}/") as answer,
    ):
        assert b"a part" == await answer.content.readany()
        goes_on.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.readany()
    assert [("WARNING", None)] == [
        (line.levelname, line.exc_info)
        for line in caplog.records
        if "broken answer" in line.message
    ]
