"""How often a client that arrives while its topic moves is sent to a former owner: `make bench
BENCH=pulsar_arrivals [LOG=kafka]`.

A move starts, and within some milliseconds clients look its topic up, each at another broker, go
where they are sent, and send one message.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import aiohttp

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.ranges import topic_hash
from equipoise.channel.log.table_view import TableView
from tests.benchmarks.frame import pulsar_brokers, report_on_log, single, spread
from tests.load import admin_requests
from tests.load.admin_requests import Move
from tests.load.cluster import running
from tests.load.log_places import LogKind
from tests.unit.pulsar.wire_client import T, WireClient

NAMESPACE: Final = "bench/arrivals"
TOPIC: Final = f"non-persistent://{NAMESPACE}/topic"
BROKERS, BUNDLES, MOVES = 3, 4, 200
# A transfer takes about 10 ms on SQLite, and 40 ms on Kafka.
ARRIVE_WITHIN_S: Final[Mapping[LogKind, float]] = {LogKind.SQLITE: 0.02, LogKind.KAFKA: 0.06}
ANSWER_S: Final = 60.0
_REDIRECTED: Final = "equipoise_pulsar_clients_redirected_total{"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One client: how long its first receipt took after its lookup was answered, and how often it
    was sent on before that.
    """

    took_ms: float
    redirects: int


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """Clients of each broker, connected beforehand, as libraries keep them."""

    clients: dict[str, WireClient]
    ids: Iterator[int] = field(default_factory=itertools.count)

    async def arrive(self, asked: str, delay_s: float) -> Arrival:
        """Look the topic up at one broker after a while, and send a message through where that
        leads.
        """
        await asyncio.sleep(delay_s)
        url = await self.clients[asked].located(TOPIC)
        began_ns = time.monotonic_ns()
        redirects = 0
        while (closed := await self._publish(url)) is not None:
            redirects += 1
            url = closed or await self.clients[asked].located(TOPIC)
        return Arrival(took_ms=(time.monotonic_ns() - began_ns) / 1e6, redirects=redirects)

    async def _publish(self, url: str) -> str | None:
        """Send one message at a broker. Return None after its receipt, or the broker to go to,
        empty to look the topic up again.
        """
        client, producer_id = self.clients[url], next(self.ids)
        await client.producer(producer_id, TOPIC)
        client.publish(producer_id, 0, "x")
        receipt = asyncio.ensure_future(client.receipt(producer_id, 0))
        closing = asyncio.ensure_future(
            client.receive(
                T.CLOSE_PRODUCER, lambda each: each.close_producer.producer_id == producer_id
            )
        )
        done, pending = await asyncio.wait(
            {receipt, closing}, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        assert done, f"{url} answered nothing within {ANSWER_S} s"
        return None if receipt in done else closing.result().close_producer.assignedBrokerServiceUrl


async def redirected(http: aiohttp.ClientSession, addresses: Sequence[str]) -> int:
    """How many clients all brokers together have sent on so far."""
    count = 0.0
    for address in addresses:
        async with http.get(f"{address}/metrics") as answer:
            count += sum(
                float(line.rpartition(" ")[2])
                for line in (await answer.text()).splitlines()
                if line.startswith(_REDIRECTED)
            )
    return int(count)


async def measure(directory: Path, log_url: str, log_kind: LogKind) -> dict[str, object]:
    """Move the topic's bundle again and again, each time with one client that asks each broker."""
    cluster = LocalCluster(pulsar_brokers(directory, brokers=BROKERS, log_url=log_url))
    random = Random(7)
    found: list[Arrival] = []
    async with running(cluster, NAMESPACE, bundles=BUNDLES) as (table, http):
        urls = [
            f"pulsar://{host}" for host in cluster.pulsar_url.removeprefix("pulsar://").split(",")
        ]
        arrivals = Arrivals(clients={url: await WireClient.connected(url) for url in urls})
        before = await redirected(http, cluster.addresses)
        for _ in range(MOVES):
            coming = [
                arrivals.arrive(url, random.uniform(0.0, ARRIVE_WITHIN_S[log_kind])) for url in urls
            ]
            move = Move(kind=MoveKind.TRANSFER, bundle=_bundle(table), to=_next(cluster, table))
            came, problem = await asyncio.gather(
                asyncio.gather(*coming), admin_requests.make(http, cluster.addresses[0], move)
            )
            assert problem is None, problem
            found += came
        misled = await redirected(http, cluster.addresses) - before
        for client in arrivals.clients.values():
            await client.close()
    print(f"sent to a former owner: {misled} of {len(found)}", file=sys.stderr)
    return {
        "sent_to_a_former_owner": single(misled, f"of {len(found)} clients in {MOVES} moves"),
        "first_receipt_of_those_sent_on": spread(
            [each.took_ms for each in found if each.redirects]
        ),
        "first_receipt_of_the_others": spread(
            [each.took_ms for each in found if not each.redirects]
        ),
    }


def _bundle(table: TableView) -> str:
    bundle = table.view.bundle_at(NAMESPACE, topic_hash(TOPIC))
    assert bundle is not None, "the namespace is there"
    return bundle.name


def _next(cluster: LocalCluster, table: TableView) -> str:
    """The broker after the owner, by id."""
    ids = sorted(cluster.broker_ids)
    owner = table.view.bundles[_bundle(table)].owner
    assert owner is not None, "each move is waited for"
    return ids[(ids.index(table.view.live[owner].broker) + 1) % len(ids)]


if __name__ == "__main__":
    report_on_log(
        "pulsar_arrivals",
        measure,
        f"{BROKERS} brokers, one scripted client of each within 20 ms (on Kafka 60 ms) of the"
        " request of each move; from the answer to its lookup to the receipt of its first message",
    )
