"""Run brokers with the Pulsar service under real clients, and move their bundles."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import topic_hash
from equipoise.channel.log.table_view import TableView
from tests.load import admin_requests
from tests.load.admin_requests import Move
from tests.load.cluster import READY_MS, running, settle
from tests.load.verdicts import Verdict
from tests.pulsar.clients import Consuming, Producing, Type
from tests.pulsar.fleet import Crew, Fleet
from tests.pulsar.lookups import LookupProxies
from tests.pulsar.programs import Language
from tests.tls.secured import Secured

NAMESPACE: Final = "public/default"
BROKERS, BUNDLES = 3, 4
BATCH: Final = 10
# Other tests take the CPU for longer than the default of 2 ms, in which a client's second thread
# has to hand over its messages.
BUSY_SETTLE_MS: Final = 20
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A cluster, its channel, and an operator's HTTP session."""

    cluster: LocalCluster
    table: TableView
    http: aiohttp.ClientSession
    secured: Secured | None = None

    def bundles(self) -> Sequence[BundleEntry]:
        """Return the current bundles of the namespace."""
        return self.table.view.bundles_of(NAMESPACE)

    def owner(self, bundle: BundleEntry) -> str:
        """Return the id of a bundle's owner."""
        assert bundle.owner is not None, f"{bundle.name} has an owner while nothing moves"
        return self.table.view.live[bundle.owner].broker

    def bundle_of(self, topic: str) -> BundleEntry:
        """Return the bundle of a topic."""
        return next(
            bundle for bundle in self.bundles() if bundle.low <= topic_hash(topic) < bundle.high
        )

    def address(self, broker: str) -> str:
        """Return a broker's HTTP address."""
        return self.cluster.addresses[self.cluster.broker_ids.index(broker)]

    def pulsar_url(self, broker: str) -> str:
        """Return a broker's Pulsar address."""
        hosts = self.cluster.pulsar_url.removeprefix("pulsar://").split(",")
        return f"pulsar://{hosts[self.cluster.broker_ids.index(broker)]}"

    async def subscribed(self, topic: str) -> None:
        """Wait until the owner of a topic has a consumer of it."""
        address = f"{self.address(self.owner(self.bundle_of(topic)))}/admin/v2/{topic.replace('://', '/')}/stats"  # noqa: E501
        while True:
            async with self.http.get(address) as answer:
                if answer.ok and any(
                    each["consumers"] for each in (await answer.json())["subscriptions"].values()
                ):
                    return
            await asyncio.sleep(_LOOK_S)

    async def transfer(self, bundle: BundleEntry, turn: int) -> None:
        """Move a bundle to another broker, a different one each turn."""
        others = [
            broker.broker
            for broker in self.table.view.live_brokers()
            if broker.incarnation != bundle.owner
        ]
        await self.make(
            Move(kind=MoveKind.TRANSFER, bundle=bundle.name, to=others[turn % len(others)])
        )

    async def make(self, move: Move) -> None:
        """Ask the first live broker for a move."""
        problem = await admin_requests.make(
            self.http, self.address(self.table.view.live_brokers()[0].broker), move
        )
        assert problem is None, f"{move.text}: {problem}"
        await settle(self.cluster, self.table, NAMESPACE)

    async def move_everything(self, fleet: Fleet, rounds: int) -> None:
        """Transfer each bundle `rounds` times. After each transfer all clients must make
        progress.
        """
        for turn in range(rounds):
            for bundle in self.bundles():
                await self.transfer(bundle, turn)
                await asyncio.to_thread(fleet.wait_flowing, time.monotonic_ns())

    async def die(self, fleet: Fleet, topic: str) -> None:
        """Kill the owner of a topic, and start it again once all clients make progress.

        If the first broker owns the topic, another one gets it before: Rust's client takes only the
        first host of its URL.
        """
        if self.owner(self.bundle_of(topic)) == self.cluster.broker_ids[0]:
            await self.transfer(self.bundle_of(topic), 0)
            # A broker keeps messages for consumers that are on their way to it. They would be lost
            # with it.
            await asyncio.to_thread(fleet.wait_flowing, time.monotonic_ns())
        number = self.cluster.broker_ids.index(self.owner(self.bundle_of(topic)))

        def kill() -> None:
            with fleet.excused():
                self.cluster.kill(number)

        await asyncio.to_thread(kill)
        await settle(self.cluster, self.table, NAMESPACE)
        await asyncio.to_thread(self.cluster.restart, number)

    async def finish(self, fleet: Fleet, *, is_batched: bool = False) -> Verdict:
        """Stop the clients, and return the checker's verdict.

        With batches it leaves out the brokers' evidence, which names one message of each batch.
        """
        verdict = await asyncio.to_thread(
            fleet.finish, evidence=tuple if is_batched else self.cluster.evidence
        )
        assert verdict.problem is None, verdict.problem
        return verdict


@asynccontextmanager
async def running_brokers(
    folder: Path, log_url: str, *, is_secured: bool = False, settle_ms: int | None = BUSY_SETTLE_MS
) -> AsyncIterator[Running]:
    """Run brokers with the Pulsar service and evidence, and TLS and tokens if `is_secured`. Only
    the test moves bundles.

    `settle_ms` is `pulsar_settle_ms`; None: the default.
    """
    secured = Secured(folder / "secrets") if is_secured else None
    settings = ClusterSettings(
        directory=folder / "cluster",
        brokers=BROKERS,
        log_url=log_url,
        services=("pulsar",),
        pulsar_port=0,
        settings={
            "balance": "false",
            "extend_ms": 0,  # On Kafka a long lease: a busy machine stalls, and nobody shall move.
            **({} if settle_ms is None else {"pulsar_settle_ms": settle_ms}),
            **(secured.settings if secured else {}),
        },
        evidence=True,
        ready_ms=READY_MS,
    )
    cluster = LocalCluster(settings)
    session = secured.session if secured else aiohttp.ClientSession
    async with running(cluster, NAMESPACE, bundles=BUNDLES, session=session) as (table, http):
        yield Running(cluster=cluster, table=table, http=http, secured=secured)


def every_subscription(
    language: Language, on: Running, topics: Sequence[str], *, rate: float
) -> Crew:
    """A consumer of each type of subscription, a producer to all topics, and one of batches to the
    first topic.

    `rate` is in messages per second to each topic. Batches come ten times as fast, so that each has
    some messages.
    """
    url, secured = on.cluster.pulsar_url, on.secured
    kinds = (Type.EXCLUSIVE, Type.SHARED, Type.FAILOVER, Type.KEY_SHARED)
    return [
        *(
            (
                language,
                Consuming(
                    url=url,
                    name=kind.lower(),
                    subscription=kind.lower(),
                    topics=tuple(topics),
                    type=kind,
                    secured=secured,
                ),
            )
            for kind in kinds
        ),
        (
            language,
            Producing(url=url, name="plain", topics=tuple(topics), rate=rate, secured=secured),
        ),
        (
            language,
            Producing(
                url=url,
                name="batches",
                topics=(topics[0],),
                rate=10 * rate,
                batch=BATCH,
                secured=secured,
            ),
        ),
    ]


@asynccontextmanager
async def flowing(folder: Path, crew: Crew) -> AsyncIterator[Fleet]:
    """Run clients, and kill those that are left at the end."""
    fleet = Fleet(folder, crew)
    try:
        await asyncio.to_thread(fleet.start)
        yield fleet
    finally:
        await asyncio.to_thread(fleet.kill)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misled:
    """A consumer and a producer of one topic, each behind proxies of its own that falsify its
    lookups.
    """

    on: Running
    topic: str
    fleet: Fleet
    of_consumer: LookupProxies
    of_producer: LookupProxies

    @property
    def falsified(self) -> tuple[int, int]:
        """The number of falsified lookups of the consumer and of the producer."""
        return self.of_consumer.falsified, self.of_producer.falsified

    async def start(self) -> None:
        """Send the consumer, and then the producer, to a broker that is not the owner. Wait until
        messages flow.
        """
        owner = self.on.owner(self.on.bundle_of(self.topic))
        other = next(each for each in self.on.cluster.broker_ids if each != owner)
        for proxies, (client,) in (
            (self.of_consumer, self.fleet.consumers),
            (self.of_producer, self.fleet.producers),
        ):
            proxies.falsify(self.on.pulsar_url(other))
            client.start()
            await asyncio.to_thread(client.wait_ready)
            if proxies is self.of_consumer:
                await self.on.subscribed(self.topic)
        await asyncio.to_thread(self.fleet.wait_flowing, time.monotonic_ns())

    async def transfer(self, turn: int) -> None:
        """Move the topic while the next lookup of each client names the former owner. Wait until
        messages flow.
        """
        bundle = self.on.bundle_of(self.topic)
        former = self.on.pulsar_url(self.on.owner(bundle))
        self.of_consumer.falsify(former)
        self.of_producer.falsify(former)
        await self.on.transfer(bundle, turn)
        # Until then, a client may still read what its former broker sent.
        await asyncio.gather(self.of_consumer.wait_falsified(), self.of_producer.wait_falsified())
        await asyncio.to_thread(self.fleet.wait_flowing, time.monotonic_ns())


@asynccontextmanager
async def misled(
    on: Running, folder: Path, language: Language, topic: str, rate: float
) -> AsyncIterator[Misled]:
    """Run two clients whose first lookup names a wrong broker. Kill those that are left at the
    end.
    """
    urls = [on.pulsar_url(broker) for broker in on.cluster.broker_ids]
    async with LookupProxies(urls) as of_consumer, LookupProxies(urls) as of_producer:
        crew: Crew = [
            (
                language,
                Consuming(url=of_consumer.url, name="consumer", subscription="s", topics=(topic,)),
            ),
            (language, Producing(url=of_producer.url, name="producer", topics=(topic,), rate=rate)),
        ]
        clients = Misled(
            on=on,
            topic=topic,
            fleet=Fleet(folder, crew),
            of_consumer=of_consumer,
            of_producer=of_producer,
        )
        try:
            await clients.start()
            yield clients
        finally:
            await asyncio.to_thread(clients.fleet.kill)
