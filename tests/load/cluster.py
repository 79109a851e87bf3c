"""A local cluster with the counter service, for tests and benchmarks that need real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from equipoise.brokers.balancing.settings.settings_records import Changes
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.channel.log.open_log import open_log
from equipoise.channel.log.table_view import TableView
from tests.load import admin_requests
from tests.load.log_places import settled_ms

READY_MS: Final = 90_000
"""How long a broker's start may take: seconds, but for a machine that is busy with all this."""

BY_USE: Final[Changes] = {
    **admin_requests.CPU_ONLY,
    "balancing.shedder": "TransferShedder",
    "transfer.target_deviation": "0.06",
    "transfer.hit_count_threshold": 1,
    "transfer.cool_down_ms": 1_000,
}
"""Balance the brokers' use of processors, as Pulsar's default strategy does, but within seconds."""

_LOOK_S: Final = 0.02


def counters(
    directory: Path,
    *,
    brokers: int,
    log_url: str | None = None,
    prove_deaths: bool = True,
    evidence: bool = False,
    **settings: str | int,
) -> ClusterSettings:
    """Brokers in `directory` that count in `directory/counter.db`; `settings` are those of each
    broker.

    `log_url` is by default a file in `directory`.
    """
    environment = {"EQUIPOISE_COUNTER_STORE": str(directory / "counter.db")}
    return ClusterSettings(
        directory=directory,
        brokers=brokers,
        log_url=log_url,
        services=("counter",),
        settings={"prove_deaths": str(prove_deaths).lower(), **settings},
        environment=environment,
        evidence=evidence,
        ready_ms=READY_MS,
    )


@asynccontextmanager
async def running(
    cluster: LocalCluster,
    namespace: str,
    *,
    bundles: int,
    session: Callable[[], aiohttp.ClientSession] = aiohttp.ClientSession,
) -> AsyncIterator[tuple[TableView, aiohttp.ClientSession]]:
    """Start a cluster, and share a namespace out; its channel, followed, and a session for HTTP. No
    process is left at the end.
    """
    async with AsyncExitStack() as parts:
        parts.push_async_callback(asyncio.to_thread, cluster.stop_all)
        await asyncio.to_thread(cluster.start)
        table = await parts.enter_async_context(
            TableView(lambda: open_log(cluster.log_url), name=cluster.log_url)
        )
        http = await parts.enter_async_context(session())
        await create_namespace(http, cluster, namespace, bundles=bundles)
        await settle(cluster, table, namespace)
        yield table, http


async def settle(
    cluster: LocalCluster, table: TableView, namespace: str, *, without: int | None = None
) -> None:
    """Wait until live brokers own every bundle, and none is owned by incarnation `without`. Raises
    `DeadlineExceeded`.
    """
    await admin_requests.settled(
        table, namespace, without=without, timeout_ms=settled_ms(cluster.log_url)
    )


async def create_namespace(
    http: aiohttp.ClientSession, cluster: LocalCluster, namespace: str, *, bundles: int
) -> None:
    problem = await admin_requests.create_namespace(
        http, cluster.addresses[0], namespace, bundles=bundles
    )
    assert problem is None, problem
