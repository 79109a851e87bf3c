"""How well the cost of a bundle follows the CPU time that its broker takes: `make bench
BENCH=costs`, in two minutes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.shedder.costs import IDLE_COST, costs_of
from equipoise.shedder.loads import BundleLoad
from tests.benchmarks.frame import pulsar_brokers, report, single
from tests.benchmarks.pulsar_throughput import NAMESPACE, rounds
from tests.load.cluster import running

# Messages of an entry, and the bytes of each.
TRAFFIC: Final = (
    (1, 100),
    (1, 4_000),
    (1, 16_000),
    (1, 64_000),
    (1, 250_000),
    (10, 100),
    (10, 1_000),
    (100, 100),
    (100, 1_000),
    (1_000, 100),
)
ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One kind of traffic: the CPU time of an entry, in and out, and its cost."""

    cpu_s: float
    cost: float


def cost(calls: float, message_bytes: float) -> float:
    """The cost of calls and bytes beyond that of an idle bundle."""
    (total,) = costs_of([BundleLoad(calls_per_second=calls, bytes_per_second=message_bytes)])
    return total - IDLE_COST


async def measured(directory: Path) -> list[Measured]:
    """Send each kind of traffic through one broker."""
    cluster = LocalCluster(pulsar_brokers(directory, brokers=1))
    found = []
    async with running(cluster, NAMESPACE, bundles=1):
        host, _, port = cluster.pulsar_url.removeprefix("pulsar://").rpartition(":")
        pid = cluster.pid(0)
        assert pid is not None, "it runs"
        for messages, size in TRAFFIC:
            done = await asyncio.to_thread(
                rounds,
                (host, int(port)),
                pid,
                messages=messages,
                message_bytes=size,
                repeats=ROUNDS,
            )
            found.append(
                Measured(
                    cpu_s=median(one.cpu_s * messages / one.messages for one in done),
                    cost=cost(2, 2 * messages * size),
                )
            )
    return found


async def measure(directory: Path) -> dict[str, object]:
    """The CPU time of each kind, and how much the cost of a second of it differs."""
    found = await measured(directory)
    ratios = [each.cost / each.cpu_s for each in found]
    cpu = {
        f"cpu_{messages}x{size}": single(each.cpu_s * 1e6, "us/entry")
        for (messages, size), each in zip(TRAFFIC, found, strict=True)
    }
    return {
        **cpu,
        "least": single(min(ratios) / median(ratios), "ratio"),
        "most": single(max(ratios) / median(ratios), "ratio"),
    }


if __name__ == "__main__":
    report(
        "costs",
        measure,
        f"one producer and one Exclusive consumer at full speed, {ROUNDS} rounds each; cpu_NxB: the"
        " broker's CPU time for an entry of N messages of B bytes, in and out; least and most: the"
        " cost of a second of CPU time, relative to the median",
    )
