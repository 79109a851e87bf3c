"""How well the cost of a bundle follows the CPU time that its broker takes: `make bench
BENCH=costs`, in two minutes.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.shedder.bundle_load import BundleLoad
from equipoise.shedder.snapshot import IDLE_COST, costs_of
from tests.benchmarks.figures import machine, print_line, summary
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
    """One kind of traffic: the CPU time of an entry, in and out, and its cost by entries and by
    messages.
    """

    cpu_s: float
    by_entries: float
    by_messages: float


def cost(calls: float, message_bytes: float) -> float:
    """The cost of calls and bytes beyond that of an idle bundle."""
    (total,) = costs_of([BundleLoad(calls_per_second=calls, bytes_per_second=message_bytes)])
    return total - IDLE_COST


async def measure(directory: Path) -> list[Measured]:
    """Send each kind of traffic through one broker."""
    settings = ClusterSettings(
        directory=directory,
        brokers=1,
        services=("pulsar",),
        pulsar_port=0,
        settings={"balance": "false"},
    )
    cluster = LocalCluster(settings)
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
            both_ways = 2 * messages * size
            found.append(
                Measured(
                    cpu_s=median(one.cpu_s * messages / one.messages for one in done),
                    by_entries=cost(2, both_ways),
                    by_messages=cost(2 * messages, both_ways),
                )
            )
    return found


def main() -> None:
    """Measure and print."""
    before = machine()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder)))
    results: dict[str, object] = {
        f"cpu_{messages}x{size}": summary([each.cpu_s * 1e6], "us/entry")
        for (messages, size), each in zip(TRAFFIC, found, strict=True)
    }
    for name in ("by_entries", "by_messages"):
        ratios = [getattr(each, name) / each.cpu_s for each in found]
        middle = median(ratios)
        results[f"{name}_least"] = summary([min(ratios) / middle], "ratio")
        results[f"{name}_most"] = summary([max(ratios) / middle], "ratio")
    conditions = (
        f"{before}, one producer and one Exclusive consumer at full speed, {ROUNDS} rounds each;"
        " cpu_NxB: the broker's CPU time for an entry of N messages of B bytes, in and out; least"
        " and most: the cost of a second of CPU time, relative to the median"
    )
    print_line("costs", results, conditions)


if __name__ == "__main__":
    main()
