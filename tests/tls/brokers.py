"""Brokers with certificates, which share a log in a file and serve one bundle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.runtime.broker import Broker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import even_boundaries
from tests.tls.authority import Authority

NAMESPACE: Final = "public/default"
TOPIC: Final = f"non-persistent://{NAMESPACE}/orders"
PATIENCE_MS: Final = 60_000


@asynccontextmanager
async def secure_brokers(
    folder: Path,
    authority: Authority,
    services: Sequence[Service],
    *hosts: str,
    is_mutual: bool = False,
    settings: Mapping[str, object] = {},
) -> AsyncIterator[list[Worker]]:
    """Yield ready brokers, each with a service and with a certificate for these hosts."""
    async with AsyncExitStack() as parts:
        workers: list[Worker] = []
        for number, service in enumerate(services):
            name = f"broker-{number}"
            own: dict[str, object] = {
                "log_url": f"sqlite:{folder / 'channel.db'}",
                "data_dir": folder / f"data-{number}",
                "broker_id": name,
                "http_port": 0,
                "pulsar_port": 0 if isinstance(service, PulsarService) else None,
                "balance": False,
                **authority.settings(name, *hosts, is_mutual=is_mutual),
                **settings,
            }
            broker = Broker(WorkerConfig.model_validate(own), {"*": service})
            workers.append(await parts.enter_async_context(broker))
            await workers[-1].ready(timeout_ms=PATIENCE_MS)
        await workers[0].request(
            CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(1)), timeout_ms=PATIENCE_MS
        )
        yield workers
