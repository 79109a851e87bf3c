"""What idle connections of Pulsar's clients cost a broker: `make bench BENCH=pulsar_connections`
prints one JSON line, in two minutes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from equipoise.brokers.local.local_cluster import LocalCluster
from tests.benchmarks.frame import (
    pulsar_brokers,
    report,
    resident_bytes,
    summary,
)
from tests.benchmarks.pulsar_wire import CONNECT, PING, PONG
from tests.load.cluster import running

NAMESPACE: Final = "bench/connections"
CONNECTIONS: Final = 5_000
AT_ONCE: Final = 50
# Twice the broker's keep-alive, and a little: each connection is asked for a sign of life twice.
IDLE_S: Final = 65.0
SAMPLES: Final = 13
_ANSWER_S: Final = 30.0


class Client(asyncio.Protocol):
    """One connection: it says CONNECT, and then PONG to each PING."""

    def __init__(self) -> None:
        self.connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_lost = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say CONNECT."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(CONNECT)

    def data_received(self, data: bytes) -> None:
        """The answer to CONNECT, or a PING, each of which is one small segment."""
        if not self.connected.done():
            self.connected.set_result(None)
            return
        assert data == PING, data
        assert self._transport is not None
        self._transport.write(PONG)

    def connection_lost(self, _: Exception | None) -> None:
        """The broker gave it up."""
        self.is_lost = True


async def connect(host: str, port: int) -> Client:
    """A connection whose handshake is done."""
    _, client = await asyncio.get_running_loop().create_connection(Client, host, port)
    await asyncio.wait_for(client.connected, _ANSWER_S)
    return client


async def connect_all(host: str, port: int) -> list[Client]:
    """All connections, some at a time."""
    clients: list[Client] = []
    while len(clients) < CONNECTIONS:
        clients += await asyncio.gather(
            *(connect(host, port) for _ in range(min(AT_ONCE, CONNECTIONS - len(clients))))
        )
    return clients


async def measure(directory: Path) -> dict[str, object]:
    """Connect, wait, and look at the broker now and then."""
    cluster = LocalCluster(pulsar_brokers(directory, brokers=1))
    async with running(cluster, NAMESPACE, bundles=4):
        host, _, port = cluster.pulsar_url.removeprefix("pulsar://").rpartition(":")
        pid = cluster.pid(0)
        assert pid is not None, "it runs"
        clients = await connect_all(host, int(port))
        sizes = [resident_bytes(pid) / 1e6]
        for _ in range(SAMPLES):
            await asyncio.sleep(IDLE_S / SAMPLES)
            sizes.append(resident_bytes(pid) / 1e6)
        assert not any(client.is_lost for client in clients), "the broker gave connections up"
    return {"rss": summary(sizes, "MB")}


if __name__ == "__main__":
    report(
        "pulsar_connections",
        measure,
        f"one broker, {CONNECTIONS} connections from one process, {IDLE_S:.0f} s without a word but"
        " PING and PONG",
    )
