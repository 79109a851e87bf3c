"""The example that owns Kafka partitions, on a real Kafka: three brokers, transfers, and a broker
that dies and does not notice.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest

from equipoise import Tasks
from equipoise.brokers.agent.requests import CreateNamespace, Transfer
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.kafka.client import Message
from equipoise.examples.kafka_partitions import Partitions
from tests.kafka.fixtures import Kafka
from tests.kafka.topics import create_topic, write_numbers
from tests.waiting import all_owned

pytestmark = pytest.mark.integration

NAMESPACE = "shop/orders"
PARTITIONS, BUNDLES, MOVES = 8, 4, 12
RECORDS = 300
"""Of each partition, before a broker dies, and again after it."""
PATIENCE_MS = 60_000


@dataclass
class Group:
    """Three brokers, and what they have processed: partition and number of each record."""

    folder: Path
    topic: str
    address: str
    workers: list[Worker] = field(default_factory=list)
    processed: list[tuple[int, str]] = field(default_factory=list)
    holding: Event = field(default_factory=Event)
    """While it is not set, the first broker does not finish a record."""

    async def join(self, number: int) -> None:
        """Start a broker."""

        def process(message: Message) -> str:
            assert number or self.holding.wait(PATIENCE_MS / 1_000)
            partition, value = message.partition(), (message.value() or b"").decode()
            assert partition is not None
            self.processed.append((partition, value))
            return value

        kafka, results = {"bootstrap.servers": self.address}, self.folder / "results.db"
        own = Partitions(self.topic, PARTITIONS, kafka=kafka, results=results, process=process)
        service = Tasks(NAMESPACE, own.work)
        settings = {
            "log_url": f"sqlite:{self.folder / 'channel.db'}",
            "data_dir": self.folder / f"b{number}",
            "broker_id": f"b{number}",
        }
        worker = Worker(WorkerConfig.model_validate(settings), {"*": service}, addresses={})
        await worker.start()
        self.workers.append(worker)
        await worker.ready(timeout_ms=PATIENCE_MS)

    def results(self) -> dict[int, list[str]]:
        """The results of each partition, by offset."""
        with closing(sqlite3.connect(self.folder / "results.db")) as connection:
            rows = connection.execute(
                "SELECT partition, result FROM results ORDER BY partition, offset"
            ).fetchall()
        return {
            number: [result for partition, result in rows if partition == number]
            for number in range(PARTITIONS)
        }

    async def until(self, numbers: range) -> None:
        """Wait until each partition has the results of all its records."""
        expected = {partition: list(map(str, numbers)) for partition in range(PARTITIONS)}
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            while (found := self.results()) != expected:
                assert all(
                    of_one == expected[partition][: len(of_one)]
                    for partition, of_one in found.items()
                )
                await asyncio.sleep(0.05)


@asynccontextmanager
async def group(kafka: Kafka, folder: Path) -> AsyncIterator[Group]:
    """Three brokers, and a topic without records."""
    topic = kafka.topic("orders")
    create_topic(kafka.address, topic, partitions=PARTITIONS)
    running = Group(folder, topic, kafka.address)
    running.holding.set()
    try:
        for number in range(3):
            await running.join(number)
        await running.workers[0].request(
            CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(BUNDLES)),
            timeout_ms=PATIENCE_MS,
        )
        await running.workers[0].until(all_owned, timeout_ms=PATIENCE_MS, what="owners")
        yield running
    finally:
        running.holding.set()
        await asyncio.gather(*(worker.stop() for worker in running.workers))


async def move(running: Group) -> None:
    """Move each bundle to the next broker, some times."""
    first = running.workers[0]
    for number in range(MOVES):
        bundle = first.view.bundles_of(NAMESPACE)[number % BUNDLES]
        owner = next(
            place
            for place, worker in enumerate(running.workers)
            if worker.agent.incarnation == bundle.owner
        )
        target = running.workers[(owner + 1) % len(running.workers)]
        await first.request(
            Transfer(bundle=bundle.name, destination=target.broker_id, reason="test"),
            timeout_ms=PATIENCE_MS,
        )
        await first.until(all_owned, timeout_ms=PATIENCE_MS, what="the move")


async def test_each_record_has_one_result_in_order(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Through transfers no record is processed twice. A dead broker that goes on processes some
    twice, and commits nothing.
    """
    async with group(kafka, tmp_path) as running:
        await asyncio.gather(
            asyncio.to_thread(
                write_numbers, kafka.address, running.topic, range(RECORDS), partitions=PARTITIONS
            ),
            move(running),
        )
        await running.until(range(RECORDS))
        assert {1} == set(Counter(running.processed).values())
        assert "task failed" not in caplog.text

        zombie, *others = running.workers
        if not zombie.open_bundles:
            bundle = zombie.view.bundles_of(NAMESPACE)[0]
            await others[0].request(
                Transfer(bundle=bundle.name, destination=zombie.broker_id, reason="test"),
                timeout_ms=PATIENCE_MS,
            )
            await zombie.until(
                lambda _: bool(zombie.open_bundles) or None, timeout_ms=PATIENCE_MS, what="a bundle"
            )
        running.holding.clear()
        await asyncio.to_thread(
            write_numbers,
            kafka.address,
            running.topic,
            range(RECORDS, 2 * RECORDS),
            partitions=PARTITIONS,
        )
        # Its service is not told, and holds records that it has not committed.
        await zombie.abort()
        await running.until(range(2 * RECORDS))
        running.holding.set()
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            while "is older: stop to process it" not in caplog.text:  # noqa: ASYNC110 - a log line
                await asyncio.sleep(0.01)
        await running.until(range(2 * RECORDS))
        assert {1, 2} == set(Counter(running.processed).values())
