"""The client over HTTP: a stream from real brokers, of which some come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from equipoise.brokers.client.client import Client
from equipoise.brokers.runtime.embedding.embedded import Worker
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.channel.system.deadline import Deadline

pytestmark = pytest.mark.integration

NAMESPACE = "shop/orders"
TIMEOUT_MS = 20_000


class Idle(Service):
    """A service that serves nothing."""

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        pass

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
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
        (owner,) = (
            worker.broker_id
            for worker in self.workers
            if worker.ownership(NAMESPACE, key) is not None
        )
        return owner

    def other(self, broker: str) -> str:
        """The other broker."""
        return next(worker.broker_id for worker in self.workers if worker.broker_id != broker)

    async def admin(self, method: str, path: str, status: int = 204) -> None:
        """One call of administration, at the first broker that still runs."""
        async with self.session.request(
            method, f"http://{next(iter(self.leaving))}/admin/v2/{path}"
        ) as response:
            assert status == response.status, await response.text()

    async def move(self, key: str, destination: str) -> None:
        """Transfer the bundle of a key."""
        (ownership,) = (
            found
            for worker in self.workers
            if (found := worker.ownership(NAMESPACE, key)) is not None
        )
        await self.admin(
            "PUT", f"namespaces/{ownership.bundle.name}/unload?destinationBroker={destination}"
        )

    async def stop(self, broker: str) -> None:
        """Stop a broker gracefully."""
        await self.leaving.pop(broker).aclose()


@asynccontextmanager
async def party(log_url: str) -> AsyncIterator[Party]:
    """Two brokers with HTTP, and a namespace of two bundles that are both served."""
    async with AsyncExitStack() as everything:
        made = Party(
            workers=[],
            leaving={},
            session=await everything.enter_async_context(aiohttp.ClientSession()),
        )
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


async def named(client: Client, key: str, broker: str) -> None:
    """Wait until the client names a broker."""
    while True:
        if (await client.owner(NAMESPACE, key, timeout_ms=TIMEOUT_MS)).broker == broker:
            return
        await asyncio.sleep(0.002)


async def test_every_key_has_the_owner_that_the_brokers_name(log_url: str) -> None:
    async with party(log_url) as brokers, Client(*brokers.addresses) as client:
        for key in "abcdefgh":
            peer = await client.owner(NAMESPACE, key, timeout_ms=TIMEOUT_MS)
            assert (brokers.owner(key), {"http": f"http://{peer.broker}"}) == (
                peer.broker,
                peer.addresses,
            )


async def test_a_client_moves_to_another_broker_when_its_own_stops(
    log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.randrange", lambda _: 0)
    async with (
        party(log_url) as brokers,
        Client("http://127.0.0.1:9", *brokers.addresses) as client,
    ):
        first = brokers.workers[0].broker_id
        await client.owner(NAMESPACE, "a", timeout_ms=TIMEOUT_MS)
        other = brokers.other(first)
        await brokers.stop(first)
        for key in "abcdefgh":
            await named(client, key, other)
