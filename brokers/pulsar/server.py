"""Put together the parts that serve Pulsar clients, accept connections, check them at intervals,
and export their metrics to Prometheus.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from equipoise.brokers.pulsar.connections import Connections
from equipoise.brokers.pulsar.directory import Admission, Directory
from equipoise.brokers.pulsar.link import ClientLink
from equipoise.brokers.pulsar.peers import Peers
from equipoise.brokers.pulsar.rights import Rights
from equipoise.brokers.pulsar.schemas import ClusterSchemas
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.pulsar.session import Parts, Session
from equipoise.brokers.pulsar.topics.arrivals import Arrivals
from equipoise.brokers.pulsar.topics.names import PULSAR
from equipoise.brokers.pulsar.wire.requests import Violation
from equipoise.brokers.runtime.listening import listen
from equipoise.brokers.runtime.service import WorkerEnded
from equipoise.brokers.runtime.worker import Lookups, Worker
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.system.clocks import now_ms

_logger: Final = logging.getLogger(__name__)

# How long one wait for changes of policies takes. Any number will do.
_FOLLOW_MS: Final = 3_600_000

T = TypeVar("T")


class Server:
    """The parts that serve the clients of one broker."""

    def __init__(self, service: PulsarService, worker: Worker, lookups: Lookups) -> None:
        """Serve `service`, which `worker` runs. `lookups` answers its lookups."""
        settings = service.settings
        self.service = service
        self.peers = Peers(
            worker, service.hosting, timeout_ms=settings.peer_ms, moving_ms=settings.moving_ms
        )
        self.directory = Directory(service, worker, lookups, self.peers)
        self.schemas = ClusterSchemas(service.schemas, self.peers)
        self.admission = Admission(service, self.directory, self.peers)
        self._settings = settings
        self._worker = worker
        self._connections = Connections[ClientLink](worker, settings)
        authorization = worker.access.authorization
        self._rights = None if authorization is None else Rights(authorization, worker)
        self._parts = Parts(
            service=service,
            connections=self._connections,
            directory=self.directory,
            schemas=self.schemas,
            admission=self.admission,
            rights=self._rights,
        )

    def new_link(self) -> ClientLink:
        """Return the link of a new connection."""
        return ClientLink(
            self._connections,
            lambda link: Session(link, self._parts),
            settle_ms=self._worker.config.pulsar_settle_ms,
        )

    @asynccontextmanager
    async def serving(self, listening: socket.socket) -> AsyncIterator[None]:
        """Serve on a bound socket. On exit write pending answers and disconnect all clients."""
        loop = asyncio.get_running_loop()
        metrics = PulsarMetrics(self.service, self._connections, broker=self._worker.broker_id)
        self._worker.metrics.register(metrics)
        server = await listen(
            listening,
            self.new_link,
            port=PULSAR,
            certificates=self._worker.access.certificates,
            handshakes=self._worker.access.handshakes,
        )
        tasks = [
            loop.create_task(self._sweep(), name="the sweep of Pulsar clients"),
            loop.create_task(self._follow_policies(), name="the policies of Pulsar's namespaces"),
        ]
        if self._rights is not None:
            follow = self._rights.follow(self._connections.all)
            tasks.append(loop.create_task(follow, name="the rights of Pulsar clients"))
        try:
            async with self.peers.asking():
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            server.close()
            await self.service.hosting.all_redirected()
            await self._connections.close_all()
            self._worker.metrics.unregister(metrics)

    async def _sweep(self) -> None:
        rolled_ms = now_ms()
        while True:
            await asyncio.sleep(self._settings.tick_ms / 1_000)
            try:
                await self._for_each(self._connections.all(), self._tick)
                await self._relieve()
                if now_ms() - rolled_ms >= self._worker.config.pulsar_stats_ms:
                    rolled_ms = now_ms()
                    await self._for_each(
                        list(self.service.hosting.topics.values()),
                        lambda served: served.topic.roll(now_ms()),
                    )
            except Exception:  # One failing topic must not stop keep-alive.
                _logger.exception(
                    "a sweep of Pulsar clients failed", extra={"broker": self._worker.broker_id}
                )

    async def _relieve(self) -> None:
        """If more waits after moves than `all_waiting_bytes_max`, stop waiting in the largest
        topics.
        """
        waiting = self.service.hosting.deadlines.waiting()
        # An upper bound: entries that several subscriptions wait for are stored once. The exact
        # size is computed only if needed.
        if (
            sum(arrivals.bytes for served in waiting for arrivals in _arrivals_of(served))
            <= self._settings.all_waiting_bytes_max
        ):
            return
        sizes: dict[Served, int] = {}
        for served in waiting:
            sizes[served] = _waiting_bytes(served)
            await asyncio.sleep(0)
        too_much_bytes = sum(sizes.values()) - self._settings.all_waiting_bytes_max
        for served in sorted(sizes, key=lambda each: (-sizes[each], each.name)):
            if too_much_bytes <= 0:
                break
            if served.ownership.is_good:
                too_much_bytes -= sizes[served]
                await self._wait_no_longer(served)

    async def _wait_no_longer(self, served: Served) -> None:
        """Stop waiting in one topic, one step per turn of the loop."""
        topic, limits = served.topic, self._settings.topics
        while topic.wake_at_ms is not None and not topic.is_fenced and served.ownership.is_good:
            served.carry_out(
                topic.tick(now_ms() + limits.receipt_wait_ms + limits.reconnect_wait_ms)
            )
            await asyncio.sleep(0)

    def _tick(self, link: ClientLink) -> None:
        """Check one client. Abort it if that fails, so that the others are still checked."""
        try:
            link.tick(now_ms())
        except Exception:
            _logger.exception(
                "the sweep of a Pulsar client failed",
                extra={"broker": self._worker.broker_id, "client": link.address},
            )
            link.abort()

    async def _for_each(self, things: Sequence[T], do: Callable[[T], None]) -> None:
        """Call `do` for each thing, and yield to the loop after each batch."""
        for start in range(0, len(things), self._settings.tick_batch):
            for thing in things[start : start + self._settings.tick_batch]:
                do(thing)
            await asyncio.sleep(0)

    async def _follow_policies(self) -> None:
        """Apply changed policies to the topics that are served."""
        policies = self.service.policies
        while True:
            try:
                what, timeout_ms = "changes of policies", _FOLLOW_MS
                changed = await self._worker.until(
                    lambda _: policies.changed() or None, timeout_ms=timeout_ms, what=what
                )
            except WorkerEnded:
                return
            except EquipoiseError:  # Nothing changed for long, or too many callers wait.
                await asyncio.sleep(self._settings.tick_ms / 1_000)
                continue
            for namespace in changed:
                try:
                    self.service.hosting.limit(namespace)
                except Exception:  # Policies of other namespaces must still apply.
                    about = {"broker": self._worker.broker_id, "namespace": namespace}
                    _logger.exception(
                        "the policies of a namespace could not be applied to its topics",
                        extra=about,
                    )


def _arrivals_of(served: Served) -> Iterator[Arrivals]:
    return (
        each.arrivals for each in served.topic.subscriptions.values() if each.arrivals is not None
    )


def _waiting_bytes(served: Served) -> int:
    """Return the bytes that wait in a topic. Entries that several subscriptions wait for count
    once.
    """
    return sum(
        {
            entry.entry_id: len(entry.block)
            for arrivals in _arrivals_of(served)
            for entry in arrivals.entries
        }.values()
    )


class PulsarMetrics(Collector):
    """The metrics of the connections and the service of one broker. Collect them on its loop."""

    def __init__(
        self, service: PulsarService, connections: Connections[ClientLink], *, broker: str
    ) -> None:
        """Label every metric with `broker`, the broker's id."""
        self._service = service
        self._connections = connections
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
        yield from self._gauges()
        yield from self._counters()
        counts = self._connections.counts
        text = "Clients disconnected for a protocol violation, silence or memory."
        broken_off = CounterMetricFamily(
            "equipoise_pulsar_disconnections", text, labels=("broker", "reason")
        )
        # Export all from the start: a series that appears with its first event has no rate.
        for violation in Violation:
            broken_off.add_metric((self._broker, violation.value), counts.violations[violation])
        yield broken_off
        turned_away = CounterMetricFamily(
            "equipoise_pulsar_requests_refused",
            "Requests refused without asking the service.",
            labels=("broker", "command"),
        )
        for command, count in sorted(counts.turned_away.items()):
            turned_away.add_metric((self._broker, command), count)
        yield turned_away

    def _gauges(self) -> Iterator[Metric]:
        service = self._service
        topics = service.hosting.topics.values()
        for name, text, value in (
            ("connections", "Clients connected.", self._connections.count),
            ("topics", "Topics in use.", len(topics)),
            (
                "producers",
                "Producers connected.",
                sum(len(served.topic.producers) for served in topics),
            ),
            (
                "consumers",
                "Consumers connected.",
                sum(served.topic.consumer_count for served in topics),
            ),
            (
                "behind_bytes",
                "Bytes that wait for clients to read them.",
                self._connections.behind.bytes,
            ),
            (
                "unfinished_bytes",
                "Bytes of frames that clients have not finished sending.",
                self._connections.unfinished.bytes,
            ),
            (
                "topics_waiting",
                "Topics that moved here and wait for their former clients.",
                len(service.hosting.deadlines.waiting()),
            ),
        ):
            family = GaugeMetricFamily(f"equipoise_pulsar_{name}", text, labels=("broker",))
            family.add_metric((self._broker,), value)
            yield family

    def _counters(self) -> Iterator[Metric]:
        server, service = self._connections.counts, self._service.counts
        for name, text, value in (
            ("connections_accepted", "Connections accepted.", server.accepted),
            (
                "connections_refused",
                "Connections refused because there were too many.",
                server.refused,
            ),
            ("messages_published", "Messages received from producers.", service.published),
            (
                "published_bytes",
                "Bytes of entries received from producers.",
                service.published_bytes,
            ),
            ("messages_delivered", "Messages written to consumers.", service.delivered),
            ("delivered_bytes", "Bytes of entries written to consumers.", service.delivered_bytes),
            (
                "messages_dropped",
                "Messages dropped because no consumer of a subscription was ready.",
                service.dropped,
            ),
            ("messages_damaged", "Entries with a wrong checksum.", server.damaged),
            (
                "receipts_withheld",
                "Messages without a receipt because the broker no longer owned their bundle.",
                service.receipts_withheld,
            ),
            (
                "handovers_damaged",
                "Bundles that opened without the state of their former owner.",
                service.handovers_damaged,
            ),
            (
                "consumers_forgotten",
                "Consumers whose names did not fit into the handover of their bundle.",
                service.consumers_forgotten,
            ),
            (
                "clients_redirected",
                "Producers and consumers that came although another broker serves their topic.",
                server.redirected,
            ),
            (
                "acknowledgements",
                "Acknowledgements received; they have no effect.",
                server.acknowledgements,
            ),
        ):
            family = CounterMetricFamily(f"equipoise_pulsar_{name}", text, labels=("broker",))
            family.add_metric((self._broker,), value)
            yield family
