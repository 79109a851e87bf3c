"""Test real Pulsar clients with real brokers that move bundles and die while messages flow. The checker judges the messages."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.demo import operator
from equipoise.brokers.local.demo.checker import Verdict
from equipoise.brokers.local.demo.operator import Move
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import topic_hash
from equipoise.channel.log.table_view import TableView
from tests.load.cluster import READY_MS, running, settle
from tests.pulsar.clients import Consuming, Producing, Type
from tests.pulsar.fleet import Crew, Fleet
from tests.pulsar.lookups import LookupProxy
from tests.pulsar.programs import EVERYDAY, Language, require

# Building a program for the first time takes minutes.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

NAMESPACE = "public/default"
BROKERS, BUNDLES = 3, 4
RATE = 20.0
STALE = f"non-persistent://{NAMESPACE}/stale"
KEYS = 8  # Of each producer; see tests/pulsar/README.md.
PLAIN = tuple(f"non-persistent://{NAMESPACE}/plain-{number}" for number in range(8))
LOOK_S = 0.02
PARTITIONED, PARTITIONS = f"non-persistent://{NAMESPACE}/partitioned", 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A cluster, its channel, and an operator's HTTP session."""

    cluster: LocalCluster
    table: TableView
    http: aiohttp.ClientSession

    def bundles(self) -> Sequence[BundleEntry]:
        """Return the current bundles of the namespace."""
        return self.table.view.bundles_of(NAMESPACE)

    def owner(self, bundle: BundleEntry) -> str:
        """Return the id of a bundle's owner."""
        assert bundle.owner is not None, f"{bundle.name} has an owner while nothing moves"
        return self.table.view.live[bundle.owner].broker

    def bundle_of(self, topic: str) -> BundleEntry:
        """Return the bundle of a topic."""
        return next(bundle for bundle in self.bundles() if bundle.low <= topic_hash(topic) < bundle.high)

    def pulsar_url(self, broker: str) -> str:
        """Return a broker's Pulsar address."""
        hosts = self.cluster.pulsar_url.removeprefix("pulsar://").split(",")
        return f"pulsar://{hosts[self.cluster.broker_ids.index(broker)]}"

    async def subscribed(self, topic: str) -> None:
        """Wait until the owner of a topic has a consumer of it."""
        address = f"http://{self.owner(self.bundle_of(topic))}/admin/v2/{topic.replace('://', '/')}/stats"
        while True:
            async with self.http.get(address) as answer:
                if answer.ok and any(each["consumers"] for each in (await answer.json())["subscriptions"].values()):
                    return
            await asyncio.sleep(LOOK_S)

    async def transfer(self, bundle: BundleEntry, turn: int) -> None:
        """Move a bundle to another broker, a different one each turn."""
        others = [broker.broker for broker in self.table.view.live_brokers() if broker.incarnation != bundle.owner]
        await self.make(Move(kind=MoveKind.TRANSFER, bundle=bundle.name, to=others[turn % len(others)]))

    async def make(self, move: Move) -> None:
        """Ask the first live broker for a move."""
        address = f"http://{self.table.view.live_brokers()[0].broker}"
        problem = await operator.make(self.http, address, move)
        assert problem is None, f"{move.text}: {problem}"
        await settle(self.cluster, self.table, NAMESPACE)

    async def move_everything(self, fleet: Fleet, rounds: int) -> None:
        """Transfer each bundle `rounds` times. After each transfer all clients must make progress."""
        for turn in range(rounds):
            for bundle in self.bundles():
                await self.transfer(bundle, turn)
                await asyncio.to_thread(fleet.wait_flowing, time.monotonic_ns())

    async def finish(self, fleet: Fleet) -> Verdict:
        """Stop the clients, and return the checker's verdict."""
        verdict = await asyncio.to_thread(fleet.finish, evidence=self.cluster.evidence)
        assert verdict.problem is None
        return verdict


@asynccontextmanager
async def running_brokers(folder: Path, log_url: str) -> AsyncIterator[Running]:
    """Run brokers with the Pulsar service and evidence. Only the test moves bundles."""
    settings = ClusterSettings(
        directory=folder / "cluster",
        brokers=BROKERS,
        log_url=log_url,
        services=("pulsar",),
        pulsar_port=0,
        settings={"balance": "false"},
        evidence=True,
        ready_ms=READY_MS,
    )
    cluster = LocalCluster(settings)
    async with running(cluster, NAMESPACE, bundles=BUNDLES) as (table, http):
        yield Running(cluster=cluster, table=table, http=http)


@asynccontextmanager
async def flowing(folder: Path, crew: Crew) -> AsyncIterator[Fleet]:
    """Run clients, and kill those that are left at the end."""
    fleet = Fleet(folder, crew)
    try:
        await asyncio.to_thread(fleet.start)
        yield fleet
    finally:
        await asyncio.to_thread(fleet.kill)


@pytest.mark.slow
@pytest.mark.parametrize(
    "language", [pytest.param(Language.PYTHON, marks=pytest.mark.on_every_log), *(each for each in EVERYDAY if each is not Language.PYTHON)]
)
async def test_a_client_goes_through_every_kind_of_move(language: Language, tmp_path: Path, log_url: str) -> None:
    """Transfers and a graceful stop lose nothing. An unload and a death may lose messages only while they last."""
    require(language)
    async with running_brokers(tmp_path, log_url) as on:
        url = on.cluster.pulsar_url
        async with flowing(tmp_path, everyday_crew(language, url)) as fleet:
            await on.move_everything(fleet, 2)
            await retire(on, fleet)
            await give_up(on, fleet)
            await die(on, fleet)
            await on.move_everything(fleet, 1)
            verdict = await on.finish(fleet)
        assert {} == verdict.violations
        assert verdict.totals["pieces_of_work_in_evidence"] > 0
        assert 0 == verdict.totals["never_settled"]


def everyday_crew(language: Language, url: str) -> Crew:
    """One producer, an exclusive consumer, and two that share a subscription."""
    return [
        (language, Consuming(url=url, name="alone", subscription="exclusive", topics=PLAIN)),
        (language, Consuming(url=url, name="shared-0", subscription="shared", topics=PLAIN, type=Type.SHARED)),
        (language, Consuming(url=url, name="shared-1", subscription="shared", topics=PLAIN, type=Type.SHARED)),
        (language, Producing(url=url, name="producer", topics=PLAIN, rate=RATE)),
    ]


async def retire(on: Running, fleet: Fleet) -> None:
    """Stop a broker gracefully and start it again. Its bundles move away first, as in a transfer."""
    await asyncio.to_thread(on.cluster.stop, BROKERS - 1)
    await asyncio.to_thread(fleet.wait_flowing, time.monotonic_ns())
    await settle(on.cluster, on.table, NAMESPACE)
    await asyncio.to_thread(on.cluster.restart, BROKERS - 1)


async def give_up(on: Running, fleet: Fleet) -> None:
    """Unload a bundle without a destination. Its next owner knows no consumers, and drops messages until they are back."""
    loop = asyncio.get_running_loop()
    move = Move(kind=MoveKind.TRANSFER, bundle=on.bundles()[0].name)

    def unload() -> None:
        with fleet.excused():
            asyncio.run_coroutine_threadsafe(on.make(move), loop).result()

    await asyncio.to_thread(unload)


async def die(on: Running, fleet: Fleet) -> None:
    """Kill the owner of the first topic, and start it again once all clients make progress."""
    number = on.cluster.broker_ids.index(on.owner(on.bundle_of(PLAIN[0])))

    def kill() -> None:
        with fleet.excused():
            on.cluster.kill(number)

    await asyncio.to_thread(kill)
    await settle(on.cluster, on.table, NAMESPACE)
    await asyncio.to_thread(on.cluster.restart, number)


@pytest.mark.parametrize("language", Language)
async def test_a_stale_lookup_costs_no_message(language: Language, tmp_path: Path, log_url: str) -> None:
    """A client may find a former owner at its start and in each transfer. Every message with a receipt arrives once."""
    require(language)
    async with running_brokers(tmp_path, log_url) as on:
        target = on.cluster.pulsar_url.removeprefix("pulsar://").partition(",")[0]
        async with LookupProxy(target) as of_consumer, LookupProxy(target) as of_producer:
            crew: Crew = [
                (language, Consuming(url=of_consumer.url, name="consumer", subscription="s", topics=(STALE,))),
                (language, Producing(url=of_producer.url, name="producer", topics=(STALE,), rate=5 * RATE)),
            ]
            fleet = Fleet(tmp_path, crew)
            try:
                await begin_at_a_wrong_broker(on, fleet, of_consumer, of_producer)
                for turn in range(2):
                    former = on.owner(on.bundle_of(STALE))
                    of_consumer.falsify(on.pulsar_url(former))
                    of_producer.falsify(on.pulsar_url(former))
                    await on.transfer(on.bundle_of(STALE), turn)
                    await asyncio.to_thread(fleet.wait_flowing, time.monotonic_ns())
                await asyncio.to_thread(fleet.wait_receipts, int(5 * RATE))
                verdict = await on.finish(fleet)
            finally:
                await asyncio.to_thread(fleet.kill)
        assert {} == verdict.violations
        assert (0, 0, 0) == tuple(verdict.totals[name] for name in ("lost", "doubled", "failed"))
        assert verdict.totals["receipted"] == verdict.totals["deliveries"] > 5 * RATE


async def begin_at_a_wrong_broker(on: Running, fleet: Fleet, of_consumer: LookupProxy, of_producer: LookupProxy) -> None:
    """Send the consumer, and then the producer, to a broker that is not the owner. Wait until messages flow."""
    owner = on.owner(on.bundle_of(STALE))
    other = next(each for each in on.cluster.broker_ids if each != owner)
    for proxy, clients in ((of_consumer, fleet.consumers), (of_producer, fleet.producers)):
        proxy.falsify(on.pulsar_url(other))
        for client in clients:
            client.start()
            await asyncio.to_thread(client.wait_ready)
        assert 1 == proxy.falsified, "the first lookup"
        if proxy is of_consumer:
            await on.subscribed(STALE)
    await asyncio.to_thread(fleet.wait_flowing, time.monotonic_ns())


@pytest.mark.slow
async def test_every_kind_of_consumer_goes_through_transfers(tmp_path: Path, log_url: str) -> None:
    """A partitioned topic, a pattern, Failover and Key_Shared lose nothing in transfers."""
    require(Language.JAVA, Language.GO)
    async with running_brokers(tmp_path, log_url) as on:
        url = on.cluster.pulsar_url
        await make_partitions(on)
        async with flowing(tmp_path, every_kind(url)) as fleet:
            await on.move_everything(fleet, 3)
            still_ns = time.monotonic_ns()
            await asyncio.to_thread(fleet.wait_receipts, 2 * KEYS * (1 + len(PLAIN)))
            verdict = await on.finish(fleet)
        assert {} == verdict.violations
        assert (0, 0, 0) == tuple(verdict.totals[name] for name in ("lost", "doubled", "never_settled"))
        by_key = consumers(fleet, "keys", still_ns, lambda said: (said["topic"], said["producer"], said["n"] % KEYS))
        assert ({1}, {"keys-0", "keys-1"}) == (set(map(len, by_key.values())), set().union(*by_key.values()))
        assert {"plain": {"failover-0"}} == consumers(fleet, "failover", 0, lambda _: "plain")
        assert set(PLAIN) == consumers(fleet, "pattern", 0, lambda said: said["topic"]).keys()
        partitions = {f"{PARTITIONED}-partition-{number}" for number in range(PARTITIONS)}
        assert partitions == consumers(fleet, "partitions", 0, lambda said: said["topic"]).keys()


async def make_partitions(on: Running) -> None:
    """Create the partitioned topic over HTTP."""
    path = f"{on.cluster.addresses[0]}/admin/v2/{PARTITIONED.replace('://', '/')}/partitions"
    async with on.http.put(path, data=str(PARTITIONS), headers={"Content-Type": "application/json"}) as answer:
        assert answer.ok, await answer.text()


def every_kind(url: str) -> Crew:
    """Producers of two languages, and each type of subscription, with consumers of two languages if it can have two."""
    pattern = f"non-persistent://{NAMESPACE}/plain-.*"
    consumers: list[tuple[Language, str, str, dict[str, Any]]] = [
        (Language.PYTHON, "failover-0", "failover", {"topics": PLAIN, "type": Type.FAILOVER}),
        (Language.JAVA, "failover-1", "failover", {"topics": PLAIN, "type": Type.FAILOVER}),
        (Language.GO, "keys-0", "keys", {"topics": PLAIN, "type": Type.KEY_SHARED}),
        (Language.JAVA, "keys-1", "keys", {"topics": PLAIN, "type": Type.KEY_SHARED}),
        (Language.PYTHON, "pattern", "pattern", {"pattern": pattern}),
        (Language.GO, "partitions", "partitions", {"topics": (PARTITIONED,)}),
        (Language.PYTHON, "both", "both", {"topics": (PARTITIONED, *PLAIN[:2])}),
    ]
    return [
        *((language, Consuming(url=url, name=name, subscription=of, **how)) for language, name, of, how in consumers),
        (Language.PYTHON, Producing(url=url, name="python", topics=(PARTITIONED, *PLAIN), rate=RATE / 2)),
        (Language.GO, Producing(url=url, name="go", topics=(PARTITIONED, *PLAIN), rate=RATE / 2)),
    ]


def consumers(fleet: Fleet, subscription: str, since_ns: int, by: Callable[[dict[str, Any]], object]) -> dict[object, set[str]]:
    """Return the consumers that received messages of a subscription after `since_ns`, grouped `by` a property of the message."""
    found: defaultdict[object, set[str]] = defaultdict(set)
    for client in fleet.consumers:
        for line in client.history.read_bytes().splitlines():
            said = orjson.loads(line)
            if said["event"] == "received" and said["subscription"] == subscription and said["at_ns"] > since_ns:
                found[by(said)].add(said["consumer"])
    return dict(found)
