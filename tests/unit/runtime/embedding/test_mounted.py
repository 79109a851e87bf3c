"""A worker's HTTP in another program: what reaches the broker behind it, and what comes back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from unittest.mock import AsyncMock, MagicMock

import aiohttp
import pytest
import uvicorn
from aiohttp import web
from fastapi import FastAPI
from yarl import URL

from equipoise.brokers.http.caller import CALLED_FROM, address_of
from equipoise.brokers.http.connections import Connection
from equipoise.brokers.http.guard import ARRIVED_AT
from equipoise.brokers.runtime.embedding.mounted import MountedHttp
from equipoise.brokers.runtime.listening import bind_locally

pytestmark = pytest.mark.integration

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Behind:
    """A mounted app in a program of `kind`, whose address is `url`. `requests` are those that
    reached the broker behind it.
    """

    def __init__(self, kind: str, parts: AsyncExitStack) -> None:
        self.mounted = MountedHttp()
        self.requests: list[web.Request] = []
        self.url = ""
        self._kind = kind
        self._parts = parts

    async def answer_by(self, handler: Handler) -> None:
        """Listen where the app forwards to."""

        async def noted(request: web.Request) -> web.StreamResponse:
            self.requests.append(request)
            return await handler(request)

        app = web.Application(client_max_size=1 << 30)
        app.add_routes([web.route("*", "/{path:.*}", noted)])
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        self._parts.push_async_callback(runner.cleanup)
        path = self._parts.enter_context(self.mounted.listening())
        await web.SockSite(runner, bind_locally(path)).start()

    async def serve(self) -> None:
        """Run the program."""
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/broker"
        if self._kind == "ASGI":
            self.url = self.url.replace("broker", "my%20broker")
            program = FastAPI()
            program.mount("/my broker", self.mounted)
            server = uvicorn.Server(uvicorn.Config(program, log_config=None, lifespan="off"))
            serving = asyncio.ensure_future(server.serve(sockets=[listening]))
            self._parts.push_async_callback(asyncio.wait, [serving])
            self._parts.callback(setattr, server, "should_exit", True)  # noqa: FBT003 - as it is called
        else:
            outer = web.Application()
            outer.add_subapp("/broker", self.mounted.application())
            runner = web.AppRunner(outer)
            await runner.setup()
            self._parts.push_async_callback(runner.cleanup)
            await web.SockSite(runner, listening).start()


@asynccontextmanager
async def mounting(
    kind: str, handler: Handler | None = None
) -> AsyncIterator[tuple[Behind, aiohttp.ClientSession]]:
    """Yield a mounted app and a client of its program, in front of `handler` if one is given."""
    async with AsyncExitStack() as parts:
        behind = Behind(kind, parts)
        if handler is not None:
            await behind.answer_by(handler)
        await behind.serve()
        yield (
            behind,
            await parts.enter_async_context(aiohttp.ClientSession(auto_decompress=False)),
        )


both = pytest.mark.parametrize("kind", ["ASGI", "aiohttp"])


async def echo(request: web.Request) -> web.Response:
    """Answer with what came."""
    headers = [("X-Path", request.raw_path), ("Set-Cookie", "a"), ("Set-Cookie", "b")]
    return web.Response(body=await request.read(), status=207, headers=headers)


@both
async def test_while_the_worker_does_not_run_it_answers_503(kind: str) -> None:
    """And before the worker listens."""
    async with mounting(kind) as (behind, session):
        async with session.get(f"{behind.url}/health") as answer:
            told = await answer.json()
        with behind.mounted.listening():
            async with session.get(f"{behind.url}/health") as starting:
                assert 503 == starting.status
    assert (503, "1", "NotReady") == (answer.status, answer.headers["Retry-After"], told["error"])
    assert "the worker does not run" in told["reason"]


async def pieces() -> AsyncIterator[bytes]:
    """Yield 16 MiB, as a body without a length."""
    for number in range(256):
        yield bytes([number]) * 65_536


@both
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/a%2Fb/%25?q=%2F&r=%C3%BC", "/broker/my%20broker"])
async def test_a_request_and_its_answer_arrive_as_they_are(
    kind: str, method: str, path: str
) -> None:
    """A caller cannot say where its request arrived, which the guard of the broker trusts, or
    where it came from, which goes into records and log lines.
    """
    headers = {"X-Mine": "1", "Connection": "x-hop", "X-Hop": "1"}
    forged = {ARRIVED_AT: "evil", CALLED_FROM: "9.9.9.9"}
    async with (
        mounting(kind, echo) as (behind, session),
        session.request(
            method,
            URL(behind.url + path, encoded=True),
            data=pieces() if method == "POST" else None,
            headers={**headers, **forged},
        ) as answer,
    ):
        body = await answer.read()
    assert (207, path, ["a", "b"]) == (
        answer.status,
        answer.headers["X-Path"],
        answer.headers.getall("Set-Cookie"),
    )
    (request,) = behind.requests
    assert (method, "1", False) == (
        request.method,
        request.headers["X-Mine"],
        "X-Hop" in request.headers,
    )
    assert [["127.0.0.1"]] * 2 == [
        request.headers.getall(header) for header in (ARRIVED_AT, CALLED_FROM)
    ]
    of_mount = MagicMock(spec=Connection, peer=None)
    assert "127.0.0.1" == address_of(MagicMock(protocol=of_mount, headers=request.headers))
    assert (b"".join([piece async for piece in pieces()]) if method == "POST" else b"") == body


@both
async def test_redirects_and_compressed_answers_are_left_to_the_caller(kind: str) -> None:
    async def redirect(_: web.Request) -> web.Response:
        headers = {"Location": "http://other/x", "Content-Encoding": "gzip"}
        return web.Response(status=307, body=b"not really gzip", headers=headers)

    async with (
        mounting(kind, redirect) as (behind, session),
        session.get(f"{behind.url}/", allow_redirects=False) as answer,
    ):
        assert (307, "http://other/x", b"not really gzip") == (
            answer.status,
            answer.headers["Location"],
            await answer.read(),
        )


@both
@pytest.mark.parametrize("breaks", [False, True])
async def test_a_stream_arrives_piece_by_piece(
    kind: str, breaks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One that breaks breaks the connection of the caller. The log has one line about it, without
    a traceback.
    """
    goes_on = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"a part")
        await goes_on.wait()
        if breaks:
            assert request.transport is not None, "it is connected"
            request.transport.abort()
        else:
            await answer.write(b"and the rest")
        return answer

    async with (
        mounting(kind, stream) as (behind, session),
        session.get(f"{behind.url}/") as answer,
    ):
        assert b"a part" == await answer.content.readany()
        goes_on.set()
        if breaks:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.content.readany()
        else:
            assert b"and the rest" == await answer.read()
    assert ["WARNING"] * breaks == [
        line.levelname for line in caplog.records if "broken answer" in line.message
    ]
    assert not [line for line in caplog.records if line.exc_info]


async def test_a_caller_that_leaves_ends_the_request_behind() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return web.Response()

    async with mounting("ASGI", wait) as (behind, session):
        calling = asyncio.ensure_future(session.get(f"{behind.url}/"))
        await begun.wait()
        calling.cancel()
        await cancelled.wait()


async def test_what_is_no_request_is_refused() -> None:
    """A server that starts the app itself learns that it is to be mounted."""
    send = AsyncMock()
    await MountedHttp()({"type": "websocket"}, AsyncMock(), send)
    assert "websocket.close" == send.await_args_list[0].args[0]["type"]
    with pytest.raises(NotImplementedError, match="mount it into a program"):
        await MountedHttp()({"type": "lifespan"}, AsyncMock(), send)


async def test_the_mount_itself_leads_to_the_page_below_it() -> None:
    """The page finds its files beside itself. A program with `install` passes this on; frameworks
    redirect themselves.
    """
    sent = AsyncMock()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/my broker",
        "root_path": "/my broker",
        "query_string": b"",
        "headers": [],
    }
    received = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, object]:
        return received.pop() if received else await asyncio.Future()

    await MountedHttp()(scope, receive, sent)
    start = sent.await_args_list[0].args[0]
    assert (308, b"my%20broker/") == (start["status"], dict(start["headers"])[b"location"])
