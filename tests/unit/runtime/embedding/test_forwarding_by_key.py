"""Requests that a program forwards to the owner of their key: bodies and answers, broken owners,
and moves meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
from aiohttp import web

from equipoise.brokers.client.attempts import FORWARDED_BY, OUTCOME, RequestOutcome
from equipoise.brokers.runtime.embedding import by_key as module
from equipoise.brokers.runtime.embedding.by_key import ByKey
from equipoise.brokers.runtime.embedding.forwarding import Message, Receive, Send, end_to_end
from equipoise.brokers.runtime.service import Ownership, Peer
from equipoise.channel.core.errors import DeadlineExceeded
from tests.unit.runtime.service_bench import good_ownership

pytestmark = pytest.mark.integration

NAMESPACE = "web/pages"
TIMEOUT_MS = 30_000
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Host:
    """A broker that routes by a list; the last entry stays. None is this broker."""

    broker_id = "here"

    def __init__(self, served: Sequence[str | None]) -> None:
        self.served = list(served)

    def owned(self, namespace: str, key: str) -> Ownership | None:
        return None

    async def route(self, namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        if not timeout_ms:
            raise DeadlineExceeded(what="an owner", waited_ms=0)
        address = self.served.pop(0) if len(self.served) > 1 else self.served[0]
        if address is not None:
            return Peer(broker="owner", addresses={"http": address})
        return good_ownership(NAMESPACE)


async def own_app(scope: Message, receive: Receive, send: Send) -> None:
    """Answer with the body, as the program of this broker."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here " + body})


class Owner:
    """A server that answers by a list of handlers; the last one stays."""

    def __init__(self, *handlers: Handler) -> None:
        self.handlers = list(handlers)
        self.requests: list[web.Request] = []
        self.address = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        handler = self.handlers.pop(0) if len(self.handlers) > 1 else self.handlers[0]
        return await handler(request)


@asynccontextmanager
async def program(
    owner: Owner, *then: str | None, before: Sequence[str] = ()
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a program whose key is served at `owner`, and by its broker's view there
    `before` and elsewhere `then`.
    """
    async with AsyncExitStack() as parts:
        app = web.Application(client_max_size=1 << 30)
        app.add_routes([web.route("*", "/{path:.*}", owner.handle)])
        runner = web.AppRunner(app)
        await runner.setup()
        parts.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        owner.address = str(site.name)
        here = ByKey(
            own_app,
            Host([*before, owner.address, *then]),
            namespace=NAMESPACE,
            key="/visits/{key}",
            forward=True,
            timeout_ms=TIMEOUT_MS,
        )

        async def end() -> None:
            async def nothing(*_: object) -> Message:
                return {}

            # It ends at once.
            await here({"type": "lifespan"}, nothing, nothing)  # type: ignore[arg-type]

        parts.push_async_callback(end)
        yield await parts.enter_async_context(
            httpx.AsyncClient(transport=httpx.ASGITransport(here), base_url="http://here")
        )


async def echo(request: web.Request) -> web.Response:
    return web.Response(
        status=207, body=b"there " + await request.read(), headers={"X-Path": request.raw_path}
    )


async def misdirected(request: web.Request) -> web.Response:
    """Refuse as a program that does not own the key, without reading the body."""
    return web.Response(status=421)


async def breaking(request: web.Request) -> web.Response:
    """Break the connection after the body."""
    await request.read()
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def pieces() -> AsyncIterator[bytes]:
    """A body without a length."""
    for _ in range(3):
        yield b"piece "
        await asyncio.sleep(0)


async def test_the_owner_gets_the_request_and_the_caller_its_answer() -> None:
    owner = Owner(echo)
    async with program(owner) as client:
        answer = await client.post(
            "/visits/a%20b?c=%2F", content=pieces(), headers={"Authorization": "mine"}
        )
    assert (207, b"there piece piece piece ", "/visits/a%20b?c=%2F") == (
        answer.status_code,
        answer.content,
        answer.headers["X-Path"],
    )
    (request,) = owner.requests
    assert ("mine", "here", owner.address) == (
        request.headers["Authorization"],
        request.headers[FORWARDED_BY],
        f"http://{request.headers['Host']}",
    )


async def test_a_request_is_sent_again_if_the_owner_did_not_start_it() -> None:
    """With its whole body, also to this program if the key has come here meanwhile."""
    owner = Owner(misdirected, echo)
    async with program(owner) as client:
        assert b"there body" == (await client.post("/visits/home", content=b"body")).content
    owner = Owner(misdirected)
    async with program(owner, None) as client:
        assert (
            b"here piece piece piece "
            == (await client.post("/visits/home", content=pieces())).content
        )
        assert 1 == len(owner.requests)


async def test_an_owner_that_takes_no_connection_is_asked_again() -> None:
    """Whatever the method: nothing was sent."""
    owner = Owner(echo)
    async with program(owner, before=("http://127.0.0.1:1",)) as client:
        assert b"there body" == (await client.post("/visits/home", content=b"body")).content


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_request_that_may_have_been_executed_is_sent_again_only_if_it_is_idempotent(
    method: str,
) -> None:
    owner = Owner(breaking, echo)
    async with program(owner) as client:
        answer = await client.request(method, "/visits/home", content=b"body")
    if method == "PUT":
        assert (207, 2) == (answer.status_code, len(owner.requests))
    else:
        assert (502, "BrokerUnreachable", RequestOutcome.UNKNOWN.value) == (
            answer.status_code,
            answer.json()["error"],
            answer.headers[OUTCOME],
        )
        assert "it may have executed the request" in answer.json()["reason"]
        assert 1 == len(owner.requests)


async def test_a_large_body_streams_and_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner's refusal goes to the caller, who has the body."""
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 5)
    owner = Owner(echo)
    async with program(owner) as client:
        assert (
            b"there piece piece piece "
            == (await client.post("/visits/home", content=pieces())).content
        )

    async def late(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=421)

    owner = Owner(late)
    async with program(owner) as client:
        assert 421 == (await client.post("/visits/home", content=pieces())).status_code
    assert 1 == len(owner.requests)


async def test_an_owner_that_refuses_for_too_long_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the next pause would last longer than the caller waits."""
    monkeypatch.setattr(module, "pause_ms", lambda failures, _: 0 if failures == 1 else TIMEOUT_MS)
    owner = Owner(misdirected)
    async with program(owner) as client:
        answer = await client.post("/visits/home")
    assert (503, RequestOutcome.NOT_STARTED.value) == (answer.status_code, answer.headers[OUTCOME])
    assert "of owner, which serves web/pages/home (it answered 421)" in answer.json()["reason"]
    assert 2 == len(owner.requests)


def test_a_length_does_not_go_on_without_the_encoding_that_made_it_void() -> None:
    assert [(b"accept", b"*/*")] == end_to_end(
        [(b"Content-Length", b"3"), (b"Transfer-Encoding", b"chunked"), (b"Accept", b"*/*")]
    )
    assert [(b"content-length", b"3")] == end_to_end([(b"Content-Length", b"3")])
