"""Fetching state from a former owner: its answers, and the bounds on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from equipoise.brokers.runtime import handover as module
from equipoise.brokers.runtime.handover import fetch_from
from equipoise.brokers.runtime.service import Peer
from equipoise.brokers.security.own_token import NO_TOKEN, OwnToken
from equipoise.channel.core.errors import PeerError

BUNDLE = "t/n/0x00000000_0xffffffff"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def fetched(handler: Handler, token: OwnToken = NO_TOKEN) -> bytes | None:
    """Fetch from a former owner whose HTTP answers with `handler`."""

    async def story() -> bytes | None:
        app = web.Application()
        app.add_routes([web.get("/v1/handover/{bundle:.*}", handler)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            return await fetch_from(Peer(broker="b", addresses={"http": f"http://{host}:{port}"}), BUNDLE, token=token)
        finally:
            await runner.cleanup()

    return asyncio.run(story())


async def endless(request: web.Request) -> web.StreamResponse:
    """Answer without a length and without an end."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65_536)


async def silent(request: web.Request) -> web.StreamResponse:
    """Begin an answer, and never end it."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"x")
    await asyncio.Event().wait()
    return response


def answering(body: bytes, status: int = 200) -> Handler:
    """Return a handler with this answer."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status)

    return answer


def test_the_token_of_the_broker_is_sent() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=request.headers["Authorization"])

    assert b"Bearer mine" == fetched(answer, token=OwnToken("mine"))


def test_state_arrives_unchanged() -> None:
    """204 means that there is none."""
    assert b"\x00state\xff" == fetched(answering(b"\x00state\xff"))
    assert b"" == fetched(answering(b""))
    assert fetched(answering(b"", status=204)) is None


@pytest.mark.parametrize("handler", [endless, answering(b"x" * 2_000)], ids=["endless", "known length"])
def test_state_that_is_too_large_is_refused(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STATE_BYTES_MAX", 1_000)
    with pytest.raises(PeerError, match="larger than 1000 bytes"):
        fetched(handler)


def test_the_whole_fetch_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.05)
    with pytest.raises(PeerError, match="TimeoutError"):
        fetched(silent)


@pytest.mark.parametrize(
    ("handler", "problem"),
    [(answering(b"no\xff" * 10_000, status=503), "it answers 503: no"), (answering(b"", status=307), "it answers 307")],
    ids=["refusal", "redirect"],
)
def test_a_refusal_is_quoted_in_short(handler: Handler, problem: str) -> None:
    """Redirects are not followed."""
    with pytest.raises(PeerError, match=problem) as caught:
        fetched(handler)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("addresses", [{}, {"http": "http://127.0.0.1:1"}, {"http": "no address"}], ids=["none", "nobody", "nonsense"])
def test_an_unreachable_owner_is_named(addresses: dict[str, str]) -> None:
    with pytest.raises(PeerError, match="broker b does not hand over"):
        asyncio.run(fetch_from(Peer(broker="b", addresses=addresses), BUNDLE))
