"""How soon a broker is ready, and how large it is: `make bench BENCH=start` prints one JSON line,
in about a minute.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import aiohttp

from equipoise.brokers.local.local_cluster import ClusterEvent, EventKind, LocalCluster
from equipoise.channel.log.table_view import TableView
from tests.benchmarks.frame import report, resident_bytes, summary
from tests.load.cluster import counters, running, settle

NAMESPACE: Final = "bench/start"
BUNDLES: Final = 1_000
STARTS: Final = 8
LOOK_S: Final = 0.005
READY_S: Final = 30.0


async def until_ready(http: aiohttp.ClientSession, address: str) -> None:
    """Ask `/ready` until it says so."""
    async with asyncio.timeout(READY_S):
        # Another process has no event of ours.
        while not await _is_ready(http, address):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


async def _is_ready(http: aiohttp.ClientSession, address: str) -> bool:
    try:
        async with http.get(f"{address}/ready") as response:
            return response.ok
    except aiohttp.ClientError:
        return False


async def started(
    cluster: LocalCluster, http: aiohttp.ClientSession, began: list[float], *, kill: bool
) -> float:
    """Milliseconds from the start of the process until it is ready; `began` is where the cluster
    notes its starts.
    """
    if kill:
        await asyncio.to_thread(cluster.kill, 0)
    else:
        await asyncio.to_thread(cluster.stop, 0)
    starting = asyncio.ensure_future(asyncio.to_thread(cluster.restart, 0))
    await until_ready(http, cluster.addresses[0])
    ready = time.monotonic()
    await starting
    return (ready - began[-1]) * 1e3


def size_mib(cluster: LocalCluster) -> float:
    """The memory of the broker's process."""
    pid = cluster.pid(0)
    assert pid is not None, "it runs"
    return resident_bytes(pid) / 2**20


async def measure(directory: Path) -> dict[str, object]:
    """Start again and again."""
    began: list[float] = []

    def note(happening: ClusterEvent) -> None:
        if happening.what is EventKind.STARTED:
            began.append(time.monotonic())

    cluster = LocalCluster(counters(directory, brokers=1), report=note)
    async with running(cluster, NAMESPACE, bundles=BUNDLES) as (table, http):
        sizes, graceful, killed = [size_mib(cluster)], list[float](), list[float]()
        for number in range(2 * STARTS):
            (killed if number % 2 else graceful).append(
                await started(cluster, http, began, kill=number % 2 == 1)
            )
            await calm_down(cluster, table)
            sizes.append(size_mib(cluster))
    return {
        "ready_after_graceful_stop": summary(graceful, "ms"),
        "ready_after_kill": summary(killed, "ms"),
        "rss": summary(sizes, "MiB"),
    }


async def calm_down(cluster: LocalCluster, table: TableView) -> None:
    """Wait until all bundles are owned again, and all that follows is over, the first snapshot
    among it.
    """
    await settle(cluster, table, NAMESPACE)
    await asyncio.sleep(1.0)


if __name__ == "__main__":
    report(
        "start",
        measure,
        f"one broker of {BUNDLES} bundles, imports of Python included, files warm",
    )
