"""How long a transfer holds up Pulsar's producers, and what it loses: `make bench
BENCH=pulsar_transfer [LOG=kafka]`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import aiohttp

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import topic_hash
from equipoise.channel.log.table_view import TableView
from tests.benchmarks.frame import (
    pulsar_brokers,
    report_on_log,
    resident_bytes,
    spread,
    summary,
)
from tests.benchmarks.pulsar_load import clients, counted, longest_gap, receipts
from tests.load import admin_requests
from tests.load.admin_requests import Move
from tests.load.cluster import running
from tests.load.log_places import LogKind, new_log
from tests.pulsar.clients import Consuming, Producing, Type

NAMESPACE: Final = "bench/pulsar"
BROKERS, BUNDLES = 3, 4
TOPICS, RATE = 32, 20.0
HOT_RATE: Final = 500.0
# A transfer and what follows from it, as clients see it; and then things settle.
WINDOW_S: Final = 0.25
SETTLE_S: Final = 0.15
WARM_UP_S: Final = 2.0
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


class Kind(StrEnum):
    """What is done to a bundle: nothing, a transfer to a named broker, or an unload, after which it
    gets some owner.
    """

    CONTROL = "control"
    TRANSFER = "transfer"
    UNLOAD = "unload"


MOVES: Final = {Kind.TRANSFER: 100, Kind.UNLOAD: 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time, by the clients' clock, the topics looked at, and what was done to their
    bundle at its beginning.
    """

    kind: Kind
    topics: tuple[str, ...]
    began_ns: int

    @property
    def ended_ns(self) -> int:
        """When it is over."""
        return self.began_ns + int(WINDOW_S * _NS_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the measurement works on."""

    cluster: LocalCluster
    table: TableView
    http: aiohttp.ClientSession

    async def window(self, topics: Iterable[str], bundle: BundleEntry, kind: Kind) -> Window:
        """Move a bundle, to the broker with the next higher number if it is a transfer, or do
        nothing; and let some time pass.
        """
        began_ns = time.monotonic_ns()
        if kind is not Kind.CONTROL:
            to = self._next(bundle.name) if kind is Kind.TRANSFER else None
            problem = await admin_requests.make(
                self.http,
                self.cluster.addresses[0],
                Move(kind=MoveKind.TRANSFER, bundle=bundle.name, to=to),
            )
            assert problem is None, problem
        took_ns = time.monotonic_ns() - began_ns
        await asyncio.sleep(max(WINDOW_S - took_ns / _NS_PER_S, 0.0) + SETTLE_S)
        within = tuple(topic for topic in topics if bundle.low <= topic_hash(topic) < bundle.high)
        return Window(kind=kind, topics=within, began_ns=began_ns)

    def _next(self, name: str) -> str:
        bundle = self.table.view.bundles[name]
        ids = sorted(self.cluster.broker_ids)
        owner = next(
            broker.broker
            for broker in self.table.view.live_brokers()
            if broker.incarnation == bundle.owner
        )
        return ids[(ids.index(owner) + 1) % len(ids)]

    async def windows(
        self, topics: Sequence[str], bundles: Iterable[BundleEntry], kind: Kind
    ) -> list[Window]:
        """Every window, those of the control among the others; `bundles` are moved in turn."""
        done: list[Window] = []
        for bundle in islice(cycle(bundles), MOVES[kind]):
            done.append(await self.window(topics, bundle, Kind.CONTROL))
            done.append(await self.window(topics, bundle, kind))
        return done


def pauses(windows: Sequence[Window], came: dict[str, list[int]], rate: float) -> dict[str, object]:
    """The pauses of each producer in each window above its period."""
    period_ns = int(_NS_PER_S / rate)
    return {
        kind: spread(
            [
                (
                    longest_gap(
                        came[topic], began_ns=window.began_ns, ended_ns=window.ended_ns
                    ).length_ns
                    - period_ns
                )
                / _NS_PER_MS
                for window in windows
                if window.kind is kind
                for topic in window.topics
                if topic in came
            ]
        )
        for kind in sorted({window.kind for window in windows})
    }


async def measured(
    directory: Path, log_url: str, kind: Kind, *, has_hot_topic: bool
) -> dict[str, object]:
    """Move bundles under load, or only the bundle of the hot topic, if there is one. The checker
    checks all messages.
    """
    # The balancer is switched off: it would move bundles in windows of the control.
    cluster = LocalCluster(pulsar_brokers(directory, brokers=BROKERS, log_url=log_url))
    topics = tuple(f"non-persistent://{NAMESPACE}/topic-{number}" for number in range(TOPICS))
    hot = f"non-persistent://{NAMESPACE}/hot"
    async with running(cluster, NAMESPACE, bundles=BUNDLES) as (table, http):
        url = cluster.pulsar_url
        # Of the topics, each with one consumer, have an Exclusive subscription, the others a Shared
        # one.
        half = TOPICS // 2
        tasks: list[Producing | Consuming] = [
            Consuming(
                url=url,
                name="one",
                topics=topics[:half],
                subscription="exclusive",
                type=Type.EXCLUSIVE,
            ),
            Consuming(
                url=url, name="other", topics=topics[half:], subscription="shared", type=Type.SHARED
            ),
            Producing(url=url, name="steady", topics=topics, rate=RATE),
        ]
        bundles: Sequence[BundleEntry] = table.view.bundles_of(NAMESPACE)
        if has_hot_topic:
            tasks.insert(
                0,
                Consuming(
                    url=url, name="hot-one", topics=(hot,), subscription="hot", type=Type.EXCLUSIVE
                ),
            )
            tasks.append(Producing(url=url, name="hot", topics=(hot,), rate=HOT_RATE))
            bundles = [bundle for bundle in bundles if bundle.low <= topic_hash(hot) < bundle.high]
        async with clients(directory, tasks) as histories:
            await asyncio.sleep(WARM_UP_S)
            windows = await Bench(cluster=cluster, table=table, http=http).windows(
                (*topics, hot), bundles, kind
            )
            sizes = [
                resident_bytes(pid) / 2**20
                for number in range(BROKERS)
                if (pid := cluster.pid(number)) is not None
            ]
    came = {
        task.name: receipts(history)
        for task, history in zip(tasks, histories, strict=True)
        if isinstance(task, Producing)
    }
    results: dict[str, object] = {
        "steady": pauses(windows, came["steady"], RATE),
        "broker_rss": summary(sizes, "MiB"),
    }
    if has_hot_topic:
        results["hot"] = pauses(windows, came["hot"], HOT_RATE)
    return {**results, **await counted(histories)}


def measure(folder: Path, _: str, log_kind: LogKind) -> dict[str, object]:
    """Transfers without a hot topic and with one, and unloads, each on a new log."""
    results: dict[str, object] = {}
    for name, kind, has_hot_topic in (
        ("transfers", Kind.TRANSFER, False),
        ("transfers_with_hot_topic", Kind.TRANSFER, True),
        ("unloads", Kind.UNLOAD, False),
    ):
        directory = folder / name
        directory.mkdir()
        with new_log(log_kind, directory) as log_url:
            results[name] = asyncio.run(
                measured(directory, log_url, kind, has_hot_topic=has_hot_topic)
            )
    return results


if __name__ == "__main__":
    report_on_log(
        "pulsar_transfer",
        measure,
        f"{BROKERS} brokers, {BUNDLES} bundles and all clients on the same CPUs, {TOPICS} topics at"
        f" {RATE:.0f} messages/s of Python's client, half with an Exclusive subscription and half"
        f" with a Shared one; hot: one more topic at {HOT_RATE:.0f} messages/s in the bundle that"
        f" is moved; pauses between receipts above the period, in windows of {WINDOW_S} s",
    )
