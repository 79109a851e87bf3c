"""How long Pulsar's producers wait when their broker dies or leaves: `make bench
BENCH=pulsar_failover`, in four minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import topic_hash
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.clocks import boot_ns
from tests.benchmarks.failover import Observer
from tests.benchmarks.frame import pulsar_brokers, report, spread
from tests.benchmarks.pulsar_load import Gap, clients, counted, longest_gap, receipts
from tests.load.cluster import running, settle
from tests.pulsar.clients import Consuming, Producing, Type

NAMESPACE: Final = "bench/pulsar"
BROKERS, BUNDLES = 3, 12
TOPICS, RATE = 32, 20.0
DEATHS, STOPS = 8, 10
WARM_UP_S: Final = 2.0
# After all bundles have an owner again, and after a broker is back: clients connect, brokers renew
# in peace.
SETTLE_S: Final = 2.0
_PERIOD_NS: Final = int(1e9 / RATE)
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A broker that went: the topics that it served, and when, by the clients' clock; `over_ns` is
    when its lease and grace period were over.
    """

    topics: tuple[str, ...]
    began_ns: int
    over_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the measurement works on."""

    cluster: LocalCluster
    table: TableView
    observer: Observer
    topics: Sequence[str]

    def busiest(self) -> tuple[int, tuple[str, ...]]:
        """The broker that serves the most topics, and these topics."""
        owners = {topic: self._owner(topic) for topic in self.topics}
        busiest, _ = Counter(owners.values()).most_common(1)[0]
        return self.cluster.broker_ids.index(busiest), tuple(
            topic for topic, owner in owners.items() if owner == busiest
        )

    def _owner(self, topic: str) -> str:
        bundle: BundleEntry | None = self.table.view.bundle_at(NAMESPACE, topic_hash(topic))
        assert bundle is not None, "a namespace has no holes"
        assert bundle.owner is not None, "all is settled"
        return self.table.view.live[bundle.owner].broker

    async def loss(self, go: Callable[[int], None]) -> Loss:
        """Have a broker go, wait until others serve what it served, and bring it back."""
        number, topics = self.busiest()
        broker = self.table.view.brokers[self.cluster.broker_ids[number]]
        began_ns = time.monotonic_ns()
        await asyncio.to_thread(go, number)
        await settle(self.cluster, self.table, NAMESPACE, without=broker.incarnation)
        patience_ns = (broker.joined.lease_ms + broker.joined.grace_ms) * _NS_PER_MS
        over_ns = (
            self.observer.renewed_ns[broker.incarnation]
            + patience_ns
            - (boot_ns() - time.monotonic_ns())
        )
        await asyncio.sleep(SETTLE_S)
        ended_ns = time.monotonic_ns()
        await asyncio.to_thread(self.cluster.restart, number)
        await asyncio.sleep(SETTLE_S)
        return Loss(topics=topics, began_ns=began_ns, over_ns=over_ns, ended_ns=ended_ns)

    async def deaths(self) -> list[Loss]:
        """Kill brokers, one after another."""
        return [await self.loss(self.cluster.kill) for _ in range(DEATHS)]

    async def stops(self) -> list[Loss]:
        """Stop brokers gracefully, one after another."""
        return [await self.loss(self.cluster.stop) for _ in range(STOPS)]


async def measured(
    directory: Path, losses: Callable[[Bench], Awaitable[list[Loss]]], *, prove_deaths: bool
) -> tuple[list[Loss], dict[str, list[int]], dict[str, object]]:
    """Set a cluster up, and have its brokers go under load: what went when, when receipts came, and
    what became of all messages.
    """
    cluster = LocalCluster(pulsar_brokers(directory, brokers=BROKERS, prove_deaths=prove_deaths))
    topics = tuple(f"non-persistent://{NAMESPACE}/topic-{number}" for number in range(TOPICS))
    observer = Observer()
    async with running(cluster, NAMESPACE, bundles=BUNDLES) as (table, _):
        table.listen(observer.folded)
        url = cluster.pulsar_url
        tasks = (
            Consuming(url=url, name="one", topics=topics, subscription="shared", type=Type.SHARED),
            Producing(url=url, name="steady", topics=topics, rate=RATE),
        )
        async with clients(directory, tasks) as histories:
            await asyncio.sleep(WARM_UP_S)
            done = await losses(
                Bench(cluster=cluster, table=table, observer=observer, topics=topics)
            )
    return done, receipts(histories[-1]), await counted(histories)


def gaps(losses: Sequence[Loss], came: dict[str, list[int]]) -> list[tuple[Loss, Gap]]:
    """The longest gap between receipts of each producer of each broker that went."""
    return [
        (loss, longest_gap(came[topic], began_ns=loss.began_ns, ended_ns=loss.ended_ns))
        for loss in losses
        for topic in loss.topics
    ]


async def measure(folder: Path) -> dict[str, object]:
    """Deaths that nobody tells of, and graceful stops."""
    deaths, came, fate = await measured(folder / "deaths", Bench.deaths, prove_deaths=False)
    results: dict[str, object] = {
        "back_after_lease_and_grace": spread(
            [(gap.ended_ns - death.over_ns) / _NS_PER_MS for death, gap in gaps(deaths, came)]
        ),
        "back_after_kill": spread(
            [(gap.ended_ns - death.began_ns) / _NS_PER_MS for death, gap in gaps(deaths, came)]
        ),
        "messages_of_deaths": fate,
    }
    stops, came, fate = await measured(folder / "stops", Bench.stops, prove_deaths=True)
    pauses = [(gap.length_ns - _PERIOD_NS) / _NS_PER_MS for _, gap in gaps(stops, came)]
    return {**results, "graceful_stop_pause": spread(pauses), "messages_of_stops": fate}


if __name__ == "__main__":
    report(
        "pulsar_failover",
        measure,
        f"{BROKERS} brokers, {BUNDLES} bundles and all clients on the same CPUs, default lease,"
        f" {TOPICS} topics at {RATE:.0f} messages/s of Python's client, whose service URL names all"
        f" brokers; pauses between receipts above the period; {DEATHS} deaths, {STOPS} stops",
    )
