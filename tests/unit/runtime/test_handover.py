"""Asking a former owner for state: what it may answer, and what is made of an answer that has no end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from equipoise.brokers.runtime import handover as module
from equipoise.brokers.runtime.handover import fetch_from
from equipoise.brokers.runtime.service import Peer
from equipoise.channel.core.errors import PeerError

BUNDLE = "t/n/0x00000000_0xffffffff"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def fetched(handler: Handler) -> bytes | None:
    """What a former owner gives that answers as `handler` does."""

    async def story() -> bytes | None:
        app = web.Application()
        app.add_routes([web.get("/v1/handover/{bundle:.*}", handler)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            return await fetch_from(Peer(broker="b", addresses={"http": f"http://{host}:{port}"}), BUNDLE)
        finally:
            await runner.cleanup()

    return asyncio.run(story())


async def endless(request: web.Request) -> web.StreamResponse:
    """An answer that says nothing of its length, and has none."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65_536)


async def silent(request: web.Request) -> web.StreamResponse:
    """An answer that begins, and never ends."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"x")
    await asyncio.Event().wait()
    return response


def answering(body: bytes, status: int = 200) -> Handler:
    """One that gives this answer."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status)

    return answer


def test_state_comes_as_it_was_left() -> None:
    """Bytes come through as they are, and 204 means that there are none."""
    assert b"\x00state\xff" == fetched(answering(b"\x00state\xff"))
    assert b"" == fetched(answering(b""))
    assert fetched(answering(b"", status=204)) is None


@pytest.mark.parametrize("handler", [endless, answering(b"x" * 2_000)], ids=["endless", "known length"])
def test_too_much_is_not_read(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger than the bound is refused, whether or not it says so beforehand."""
    monkeypatch.setattr(module, "STATE_BYTES_MAX", 1_000)
    with pytest.raises(PeerError, match="larger than 1000 bytes"):
        fetched(handler)


def test_all_of_it_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that begins to answer and falls silent is given up on."""
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.05)
    with pytest.raises(PeerError, match="TimeoutError"):
        fetched(silent)


@pytest.mark.parametrize(
    ("handler", "told"),
    [(answering(b"no\xff" * 10_000, status=503), "it answers 503: no"), (answering(b"", status=307), "it answers 307")],
    ids=["refusal", "redirect"],
)
def test_an_answer_that_is_none_is_told_in_short(handler: Handler, told: str) -> None:
    """A refusal is told with its status and the beginning of its text; nobody is followed elsewhere."""
    with pytest.raises(PeerError, match=told) as caught:
        fetched(handler)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("addresses", [{}, {"http": "http://127.0.0.1:1"}, {"http": "no address"}], ids=["none", "nobody", "nonsense"])
def test_an_owner_that_cannot_be_found_is_told(addresses: dict[str, str]) -> None:
    """An owner without an address, with nobody at it, or with one that is none, is named in the error."""
    with pytest.raises(PeerError, match="broker b does not hand over"):
        asyncio.run(fetch_from(Peer(broker="b", addresses=addresses), BUNDLE))
