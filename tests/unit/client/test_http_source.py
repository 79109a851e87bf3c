"""The client's streams over HTTP, against servers that misbehave: each wait has an end, each row
has a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from equipoise.brokers.client import http_source
from equipoise.brokers.client.client import Client
from equipoise.brokers.errors import UnknownNamespace
from equipoise.brokers.runtime.service import Peer
from equipoise.channel.core.errors import CallerError, DeadlineExceeded, InvalidName, Overloaded

pytestmark = pytest.mark.integration

TIMEOUT_MS = 20_000
ROW = (
    '{"bundle": "tenant/ns/%s", "low": 0, "high": 4294967295, "state": "owned", "broker": "good",'
    ' "addresses": {"http": "x"}, "token": 1}'
)
TABLE = f'event: table\ndata: {{"offset": 1, "bundles": [{ROW % "all"}]}}\n\n'.encode()
DELETED = b"event: deleted\ndata: {}\n\n"
HEARTBEAT = b":\n\n"

Behave = Callable[[web.Request, web.StreamResponse], Awaitable[None]]


@asynccontextmanager
async def serving(behave: Behave) -> AsyncIterator[str]:
    """A made-up broker, to which every namespace is there that does not end with `not`; its
    address.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("not"):
            raise web.HTTPNotFound
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await behave(request, response)
        return response

    async with listening(answer) as address:
        yield address


@asynccontextmanager
async def listening(answer: Handler) -> AsyncIterator[str]:
    """A server that answers every GET with a handler; its address."""
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def well(_request: web.Request, response: web.StreamResponse) -> None:
    """What a good broker does."""
    await response.write(TABLE)
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def first_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stream asks the first address first."""
    monkeypatch.setattr("random.randrange", lambda _: 0)


async def owner(client: Client, namespace: str = "tenant/ns") -> str:
    """The owner that a client returns."""
    return (await client.owner(namespace, "key", timeout_ms=TIMEOUT_MS)).broker


async def test_a_stream_without_a_table_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_source, "TABLE_SECONDS_MAX", 0.05)

    async def dawdle(_request: web.Request, response: web.StreamResponse) -> None:
        while True:
            await response.write(HEARTBEAT)
            await asyncio.sleep(0.01)

    async with serving(dawdle) as bad, serving(well) as good, Client(bad, good) as client:
        assert "good" == await owner(client)
        # The table is there: from now on only silence counts.
        await asyncio.sleep(0.1)
        assert "good" == await owner(client)


async def test_streams_that_break_at_once_lengthen_the_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    def at_once(_: float, longest: float) -> float:
        pauses.append(longest)
        return 0.0

    monkeypatch.setattr("random.uniform", at_once)

    async def hang_up(_request: web.Request, response: web.StreamResponse) -> None:
        await response.write(TABLE)

    async with serving(hang_up) as address, Client(address) as client:
        assert "good" == await owner(client)
        # What is watched has no event.
        while len(pauses) <= len(http_source.BACK_OFF_SECONDS):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    longest = http_source.BACK_OFF_SECONDS[-1]
    assert [*http_source.BACK_OFF_SECONDS[1:], longest, longest] == pauses[
        : len(http_source.BACK_OFF_SECONDS) + 1
    ]


@pytest.mark.parametrize(
    ("distrust_ms", "pause_s"), [(20, 0), (1, 0.005)], ids=["distrusted", "trusted again"]
)
async def test_reports_of_a_wrong_owner_replace_a_stale_stream(
    distrust_ms: int, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the caller asks again while the owner is distrusted, or only later."""
    monkeypatch.setattr("equipoise.brokers.client.client.DISTRUST_MS", distrust_ms)
    monkeypatch.setattr(http_source, "REFRESH_SECONDS", 0.01)

    async def stale(_request: web.Request, response: web.StreamResponse) -> None:
        await response.write(TABLE.replace(b"good", b"gone"))
        await asyncio.Event().wait()

    async with serving(stale) as bad, serving(well) as good, Client(bad, good) as client:
        while (
            peer := await client.owner("tenant/ns", "key", timeout_ms=TIMEOUT_MS)
        ).broker != "good":
            client.misrouted("tenant/ns", "key", peer)
            await asyncio.sleep(pause_s)


GARBAGE = {
    "no event": b"hello",
    "no JSON": b"event: table\ndata: {\n\n",
    "another document": b'event: table\ndata: {"bundles": 5}\n\n',
    "a row without a range": b'event: table\ndata: {"bundles": [{"bundle": "x"}]}\n\n',
    "no UTF-8": b"event: \xff\ndata: {}\n\n",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_a_server_that_is_no_broker_is_skipped(garbage: bytes) -> None:
    async def answer(_request: web.Request, response: web.StreamResponse) -> None:
        await response.write(garbage)

    async with (
        serving(answer) as stranger,
        serving(well) as good,
        Client("http://127.0.0.1:9", stranger, good) as client,
    ):
        assert "good" == await owner(client)


async def test_a_timeout_says_that_no_program_serves_the_namespace_or_no_broker_answers() -> None:
    unserved = TABLE.replace(b'"good"', b"null").replace(
        b'"offset"', b'"unserved": "no broker that is up serves tenant/ns", "offset"'
    )

    async def answer(_request: web.Request, response: web.StreamResponse) -> None:
        await response.write(unserved)
        await asyncio.Event().wait()

    advice = "serves tenant/ns; start a program that serves it"
    async with serving(answer) as address, Client(address) as client:
        with pytest.raises(DeadlineExceeded, match=advice):
            await client.request("GET", "tenant/ns", "key", "/", timeout_ms=500)
    async with Client("http://127.0.0.1:9") as client:
        with pytest.raises(DeadlineExceeded, match=r"no broker answers at http://127.0.0.1:9;"):
            await client.request("GET", "tenant/ns", "key", "/", timeout_ms=50)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_token_is_an_error_until_a_broker_accepts_it(
    tmp_path: Path, status: int
) -> None:
    """Also one of a role without the right. The caller learns why at once, and a file with another
    token helps without a restart.
    """
    file = tmp_path / "token"
    file.write_text("old", encoding="ascii")

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] != "Bearer new":
            return web.json_response({"reason": "the token has expired"}, status=status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await well(request, response)
        return response

    async with listening(answer) as address, Client(address, token=f"file://{file}") as client:
        with pytest.raises(CallerError, match="refuses this client: the token has expired"):
            await owner(client)
        file.write_text("new", encoding="ascii")
        while True:
            with suppress(CallerError):
                assert "good" == await owner(client)
                break
            await asyncio.sleep(0)


async def test_the_stream_of_a_deleted_namespace_is_closed() -> None:
    left = asyncio.Event()

    async def linger(_request: web.Request, response: web.StreamResponse) -> None:
        await response.write(TABLE + DELETED)
        try:
            while True:
                await response.write(HEARTBEAT)
                await asyncio.sleep(0.002)
        except ConnectionError:
            left.set()

    async with serving(linger) as address, Client(address) as client:
        with suppress(UnknownNamespace):
            await owner(client)
        await left.wait()
        with pytest.raises(UnknownNamespace):
            await owner(client)


async def test_unknown_and_idle_namespaces_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_source, "NAMESPACES_MAX", 2)

    async with serving(well) as address, Client(address) as client:
        for name in ("tenant/a-not", "tenant/b-not", "tenant/c-not"):
            with pytest.raises(UnknownNamespace):
                await owner(client, name)
        assert ["good", "good"] == [
            await owner(client, name) for name in ("tenant/one", "tenant/two")
        ]
        with pytest.raises(Overloaded):
            await owner(client, "tenant/three")
        monkeypatch.setattr(http_source, "IDLE_SECONDS", 0.0)
        assert "good" == await owner(client, "tenant/three")


async def test_a_stream_with_too_many_bundles_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_source, "ROWS_MAX", 3)
    told: list[int] = []

    async def flood(_request: web.Request, response: web.StreamResponse) -> None:
        await response.write(b'event: table\ndata: {"offset": 1, "bundles": []}\n\n')
        while True:
            told.append(len(told))
            row = (ROW % len(told)).replace("good", "flood")
            await response.write(
                f'event: change\ndata: {{"offset": 1, "bundles": [{row}], "gone": []}}\n\n'.encode()
            )
            await asyncio.sleep(0.002)

    async with serving(flood) as bad, serving(well) as good, Client(bad, good) as client:
        while True:
            peer = await client.owner("tenant/ns", "key", timeout_ms=TIMEOUT_MS)
            if peer.broker == "good":
                break
            await asyncio.sleep(0.002)
        assert len(told) > http_source.ROWS_MAX


async def test_callers_outside_the_context_get_an_error_at_once() -> None:
    async def silent(_request: web.Request, _response: web.StreamResponse) -> None:
        await asyncio.Event().wait()

    async with serving(silent) as address:
        client = Client(address)
        peer = Peer(broker="b", addresses={})
        with pytest.raises(CallerError, match="it has not been started"):
            await owner(client)
        async with client:
            with pytest.raises(DeadlineExceeded):
                await client.owner("tenant/ns", "key", timeout_ms=0)
            waiting = asyncio.ensure_future(
                client.owner("tenant/ns", "key", timeout_ms=24 * 3_600_000)
            )
            await asyncio.sleep(0)
        with pytest.raises(CallerError, match="it has ended"):
            await waiting
        with pytest.raises(CallerError, match="it has ended"):
            client.misrouted("tenant/ns", "key", peer)
        with pytest.raises(CallerError, match="it was started before"):
            await client.__aenter__()


async def test_an_invalid_namespace_reaches_no_broker() -> None:
    asked: list[str] = []

    async def note(request: web.Request, _response: web.StreamResponse) -> None:
        asked.append(request.path)

    async with serving(note) as address, Client(address) as client:
        for name in ("../../admin/v2/brokers", "tenant/ns?x", "tenant/ns/more", ""):
            with pytest.raises(InvalidName):
                await owner(client, name)
            with pytest.raises(InvalidName):
                client.misrouted(name, "key", Peer(broker="b", addresses={}))
    assert [] == asked
