"""The client over HTTP: a stream from real brokers, of which some come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web

from equipoise.brokers.client import http_source
from equipoise.brokers.client.client import Client
from equipoise.brokers.errors import UnknownNamespace
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.server.embedded import Worker
from equipoise.channel.core.errors import DeadlineExceeded, Overloaded
from equipoise.channel.system.deadline import Deadline

pytestmark = pytest.mark.integration

NAMESPACE = "shop/orders"
TIMEOUT_MS = 20_000
DEADLINE_S = 120.0


class Idle(Service):
    """A service that serves nothing."""

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        pass

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None:
        return None


@dataclass(kw_only=True)
class Party:
    """Two brokers, each of which serves one of two bundles, and what moves bundles between them."""

    workers: list[Worker]
    leaving: dict[str, AsyncExitStack]
    session: aiohttp.ClientSession

    @property
    def addresses(self) -> list[str]:
        """Where the brokers listen."""
        return [f"http://{worker.broker_id}" for worker in self.workers]

    def owner(self, key: str) -> str:
        """Who owns a key, by the brokers themselves."""
        (owner,) = (worker.broker_id for worker in self.workers if worker.ownership(NAMESPACE, key) is not None)
        return owner

    def other(self, broker: str) -> str:
        """The other broker."""
        return next(worker.broker_id for worker in self.workers if worker.broker_id != broker)

    async def admin(self, method: str, path: str, status: int = 204) -> None:
        """One call of administration, at the first broker that still runs."""
        async with self.session.request(method, f"http://{next(iter(self.leaving))}/admin/v2/{path}") as response:
            assert status == response.status, await response.text()

    async def move(self, key: str, destination: str) -> None:
        """Transfer the bundle of a key."""
        (ownership,) = (found for worker in self.workers if (found := worker.ownership(NAMESPACE, key)) is not None)
        await self.admin("PUT", f"namespaces/{ownership.bundle.name}/unload?destinationBroker={destination}")

    async def stop(self, broker: str) -> None:
        """Stop a broker gracefully."""
        await self.leaving.pop(broker).aclose()


@asynccontextmanager
async def party(log_url: str) -> AsyncIterator[Party]:
    """Two brokers with HTTP, and a namespace of two bundles that are both served."""
    async with AsyncExitStack() as everything:
        made = Party(workers=[], leaving={}, session=await everything.enter_async_context(aiohttp.ClientSession()))
        for _ in range(2):
            leaving = await everything.enter_async_context(AsyncExitStack())
            worker = await leaving.enter_async_context(Worker(log_url, Idle(), http_port=0))
            made.workers.append(worker)
            made.leaving[worker.broker_id] = leaving
        for worker in made.workers:
            await worker.create_namespace(NAMESPACE, bundles=2)
            for key in "abcdefgh":
                await worker.route(NAMESPACE, key)
        yield made


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Run one test on a loop of its own, with a bound on the whole of it."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story()

    asyncio.run(bounded())


async def named(client: Client, key: str, broker: str) -> None:
    """Wait until the client names a broker; the deadline of `run` bounds it."""
    while True:
        if (await client.owner(NAMESPACE, key, timeout_ms=TIMEOUT_MS)).broker == broker:
            return
        await asyncio.sleep(0.002)


async def there(client: Client, namespace: str, *, is_there: bool) -> None:
    """Wait until the client knows a namespace, or does not know it any more."""
    while True:
        try:
            await client.owner(namespace, "a", timeout_ms=TIMEOUT_MS)
        except UnknownNamespace:
            if not is_there:
                return
        else:
            if is_there:
                return
        await asyncio.sleep(0.002)


async def test_every_key_has_the_owner_that_the_brokers_name(log_url: str) -> None:
    async with party(log_url) as brokers, Client(*brokers.addresses) as client:
        for key in "abcdefgh":
            peer = await client.owner(NAMESPACE, key, timeout_ms=TIMEOUT_MS)
            assert (brokers.owner(key), {"http": f"http://{peer.broker}"}) == (peer.broker, peer.addresses)


async def test_a_client_learns_of_a_move_without_a_report(log_url: str) -> None:
    async with party(log_url) as brokers, Client(*brokers.addresses) as client:
        before = await client.owner(NAMESPACE, "a", timeout_ms=TIMEOUT_MS)
        await brokers.move("a", brokers.other(before.broker))
        await named(client, "a", brokers.other(before.broker))


async def test_a_client_moves_to_another_broker_when_its_own_stops(log_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.randrange", lambda _: 0)
    async with party(log_url) as brokers, Client("http://127.0.0.1:9", *brokers.addresses) as client:
        first = brokers.workers[0].broker_id
        await client.owner(NAMESPACE, "a", timeout_ms=TIMEOUT_MS)
        other = brokers.other(first)
        await brokers.stop(first)
        for key in "abcdefgh":
            await named(client, key, other)


async def test_a_client_learns_of_new_and_deleted_namespaces(log_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_source, "UNKNOWN_SECONDS", 0.01)
    async with party(log_url) as brokers, Client(*brokers.addresses) as client:
        with pytest.raises(UnknownNamespace):
            await client.owner("shop/returns", "a", timeout_ms=TIMEOUT_MS)
        await brokers.workers[1].create_namespace("shop/returns", bundles=1)
        await there(client, "shop/returns", is_there=True)
        await brokers.admin("DELETE", "namespaces/shop/returns")
        await there(client, "shop/returns", is_there=False)


async def test_nobody_to_ask_is_a_deadline() -> None:
    async with Client("http://127.0.0.1:9", "http://127.0.0.1:10") as client:
        with pytest.raises(DeadlineExceeded):
            await client.owner(NAMESPACE, "a", timeout_ms=100)


async def test_a_client_follows_so_many_namespaces(log_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_source, "NAMESPACES_MAX", 1)
    async with party(log_url) as brokers, Client(*brokers.addresses) as client:
        peer = await client.owner(NAMESPACE, "a", timeout_ms=TIMEOUT_MS)
        with pytest.raises(Overloaded):
            await client.owner("shop/returns", "a", timeout_ms=TIMEOUT_MS)
        assert peer == await client.owner(NAMESPACE, "a", timeout_ms=TIMEOUT_MS)


GARBAGE = {
    "no event": b"hello",
    "no JSON": b"event: table\ndata: {\n\n",
    "another document": b'event: table\ndata: {"bundles": 5}\n\n',
    "a row without a range": b'event: table\ndata: {"bundles": [{"bundle": "x"}]}\n\n',
    "no UTF-8": b"event: \xff\ndata: {}\n\n",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_a_stranger_among_the_addresses_is_passed_over(garbage: bytes, log_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.randrange", lambda _: 0)  # It asks the first address first.

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=garbage, content_type="text/event-stream")

    stranger = web.Application()
    stranger.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(stranger)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with party(log_url) as brokers, Client(address, brokers.addresses[0]) as client:
            assert brokers.owner("a") == (await client.owner(NAMESPACE, "a", timeout_ms=TIMEOUT_MS)).broker
    finally:
        await runner.cleanup()


async def test_a_stale_stream_is_left_for_another(log_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.randrange", lambda _: 0)
    monkeypatch.setattr("equipoise.brokers.client.client.DISTRUST_MS", 20)
    monkeypatch.setattr(http_source, "REFRESH_SECONDS", 0.01)
    table = (
        b'event: table\ndata: {"offset": 1, "bundles": [{"bundle": "x", "low": 0, "high": 4294967295, "state": "owned", '
        b'"broker": "gone", "addresses": {}, "token": 1}]}\n\n'
    )

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(table)
        await asyncio.Event().wait()
        return response

    stuck = web.Application()
    stuck.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(stuck, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with party(log_url) as brokers, Client(address, brokers.addresses[0]) as client:
            while True:
                seen = await client.owner(NAMESPACE, "a", timeout_ms=TIMEOUT_MS)
                if seen.broker == brokers.owner("a"):
                    break
                client.misrouted(NAMESPACE, "a", seen)
    finally:
        await runner.cleanup()
