"""How long bundles go without an owner when a broker dies or leaves: `make bench BENCH=failover`
prints one JSON line, in four minutes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.entries import BundleChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Joined, Renewed
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.clocks import Deadline, boot_ns
from tests.benchmarks.frame import report, summary
from tests.load import admin_requests
from tests.load.admin_requests import Move
from tests.load.cluster import READY_MS, counters, running, settle

NAMESPACE: Final = "bench/failover"
BROKERS, BUNDLES_EACH = 3, 256
BUNDLES: Final = BROKERS * BUNDLES_EACH
DEATHS, PROVEN_DEATHS, STOPS = 10, 10, 10
MOVES_AT_ONCE: Final = 32
# One tenant asks for hundreds of moves at once, and owners die again and again.
CHANGES: Final = {"tenants.records_per_second_max": 1_000_000, "quarantine.deaths": 0}
_NS_PER_MS: Final = 1_000_000


@dataclass(slots=True, kw_only=True)
class Observer:
    """What was read of the channel, and when: the last word of each incarnation, and how long each
    bundle had no owner.
    """

    renewed_ns: dict[int, int] = field(default_factory=dict)
    unowned_since_ns: dict[str, int] = field(default_factory=dict)
    gaps_ms: list[float] = field(default_factory=list)

    def folded(self, folded: Folded) -> None:
        """Take in one record."""
        now_ns, record = boot_ns(), folded.record
        if isinstance(record, Joined | Renewed) and folded.verdict.accepted:
            self.renewed_ns[record.incarnation or folded.offset] = now_ns
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and change.after is not None:
                # `handing_over` asks the source to release, and it serves until it reads that: a
                # hop more than the truth.
                if change.after.phase in ("handing_over", "free", "assigning", "unloading"):
                    self.unowned_since_ns.setdefault(change.name, now_ns)
                elif (since_ns := self.unowned_since_ns.pop(change.name, None)) is not None:
                    self.gaps_ms.append((now_ns - since_ns) / _NS_PER_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the measurement works on."""

    cluster: LocalCluster
    table: TableView
    http: aiohttp.ClientSession
    observer: Observer

    def incarnation(self, number: int) -> int:
        """The newest incarnation of a broker."""
        return self.table.view.brokers[self.cluster.broker_ids[number]].incarnation

    async def level(self) -> None:
        """Give every broker its 256 bundles, as soon as the observer has read that all are
        members.
        """
        deadline = Deadline.after(timeout_ms=READY_MS)
        while len(self.table.view.live) < BROKERS:
            deadline.check("all brokers in the observer's view")
            await asyncio.sleep(0.01)
        await settle(self.cluster, self.table, NAMESPACE)
        view, moves = self.table.view, list[Move]()
        held = Counter(
            {
                broker.incarnation: view.held_count(broker.incarnation)
                for broker in view.live_brokers()
            }
        )
        for bundle in view.bundles_of(NAMESPACE):
            (most, many), (least, few) = held.most_common()[0], held.most_common()[-1]
            if bundle.owner == most and many > BUNDLES_EACH > few:
                moves.append(
                    Move(kind=MoveKind.TRANSFER, bundle=bundle.name, to=view.live[least].broker)
                )
                held[most] -= 1
                held[least] += 1
        waiting = iter(moves)

        async def make_some() -> None:
            for move in waiting:
                problem = await admin_requests.make(self.http, self.cluster.addresses[0], move)
                assert problem is None, problem

        await asyncio.gather(*(make_some() for _ in range(MOVES_AT_ONCE)))
        await settle(self.cluster, self.table, NAMESPACE)
        # The other brokers read what the observer has read, and renew once more in peace.
        await asyncio.sleep(1.5)

    async def revive(self, number: int) -> None:
        """Start a broker again, and level."""
        await asyncio.to_thread(self.cluster.restart, number)
        await self.level()

    async def death(self, number: int, *, prove_deaths: bool) -> float:
        """Milliseconds until all bundles are served again: from a kill -9 that others prove, or
        from the end of lease and grace period.
        """
        broker = self.table.view.brokers[self.cluster.broker_ids[number]]
        killed_ns = boot_ns()
        await asyncio.to_thread(self.cluster.kill, number)
        await settle(self.cluster, self.table, NAMESPACE, without=broker.incarnation)
        served_ns = boot_ns()
        patience_ms = broker.joined.lease_ms + broker.joined.grace_ms
        over_ns = self.observer.renewed_ns[broker.incarnation] + patience_ms * _NS_PER_MS
        await self.revive(number)
        return (served_ns - (killed_ns if prove_deaths else over_ns)) / _NS_PER_MS

    async def graceful_stop(self, number: int) -> float:
        """The longest time in ms that a bundle had no owner while a broker left."""
        self.observer.gaps_ms.clear()
        await asyncio.to_thread(self.cluster.stop, number)
        longest_ms = max(self.observer.gaps_ms)
        assert len(self.observer.gaps_ms) >= BUNDLES_EACH, "every bundle moved"
        await self.revive(number)
        return longest_ms


Measurement = Callable[[Bench, int], Awaitable[float]]


async def measured(
    directory: Path, *, prove_deaths: bool, repeats: int, measure: Measurement
) -> list[float]:
    """Set a cluster up, and measure something of each of its brokers in turn."""
    cluster = LocalCluster(
        counters(directory, brokers=BROKERS, prove_deaths=prove_deaths, balance="false")
    )
    observer = Observer()
    async with running(cluster, NAMESPACE, bundles=BUNDLES) as (table, http):
        table.listen(observer.folded)
        bench = Bench(cluster=cluster, table=table, http=http, observer=observer)
        await asyncio.to_thread(admin_requests.tune, cluster.log_url, CHANGES)
        await bench.level()
        return [await measure(bench, number % BROKERS) for number in range(repeats)]


async def measure(folder: Path) -> dict[str, object]:
    """All three, each in a cluster of its own."""
    since_lease = await measured(
        folder / "deaths",
        prove_deaths=False,
        repeats=DEATHS,
        measure=partial(Bench.death, prove_deaths=False),
    )
    proven = await measured(
        folder / "proven",
        prove_deaths=True,
        repeats=PROVEN_DEATHS,
        measure=partial(Bench.death, prove_deaths=True),
    )
    gaps = await measured(
        folder / "stops", prove_deaths=True, repeats=STOPS, measure=Bench.graceful_stop
    )
    return {
        "served_after_lease_and_grace": summary(since_lease, "ms"),
        "served_after_kill_on_the_same_machine": summary(proven, "ms"),
        "graceful_stop_longest_without_owner": summary(gaps, "ms"),
    }


if __name__ == "__main__":
    report(
        "failover",
        measure,
        f"{BROKERS} brokers of {BUNDLES_EACH} bundles each, default lease, nobody calling",
    )
