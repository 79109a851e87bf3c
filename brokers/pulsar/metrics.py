"""Export the metrics of the Pulsar service and its server to Prometheus.

They are read from plain counters at each scrape, so that a message costs none of
prometheus-client's locks. `docs/reference/metrics.md` explains each one.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from equipoise.brokers.pulsar.connections import Connections
from equipoise.brokers.pulsar.link import ClientLink
from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.pulsar.wire.errors import Violation


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
