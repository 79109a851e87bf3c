"""The load bus on a Kafka topic beside the log's: one message for each report, of which the last of each broker counts.

May live here: `KafkaLoadBus`, its topic, and the spelling of a report as a message. What Kafka is asked for is in
`channel.kafka_client`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import TypeAdapter, ValidationError

from brokers.errors import InvalidLoad, LoadBusUnavailable
from brokers.load import Report
from channel.errors import InvalidKafkaSetting
from channel.kafka_answers import KafkaFailed, Trouble
from channel.kafka_client import REQUEST_BYTES_MAX, Clients, Message, PartitionConsumer, PartitionProducer
from channel.kafka_topic import REPLICATION

TOPIC_SUFFIX: Final = "-loads"

# As long as files are kept (`brokers.load_bus.files`): a broker that has said nothing for an hour is gone.
KEPT_MS: Final = 3_600_000

# A third of the default interval, in which a report is of use: what Kafka does not take or give by then is lost, as reports may be.
_ANSWER_MS_MAX: Final = 1_500

# Messages taken at once; each replaces the one before of its broker, so that they do not pile up.
_TAKEN_MAX: Final = 1_000

_SETTINGS: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(KEPT_MS),
    "segment.ms": str(KEPT_MS // 4),  # Nothing is removed from the segment that is written to.
    "max.message.bytes": str(REQUEST_BYTES_MAX),
}
_REPORT: Final = TypeAdapter(Report)


class KafkaLoadBus:
    """A handle on the bus of one topic, which is made with the first report. See `LoadBus`."""

    def __init__(self, clients: Clients, topic: str) -> None:
        self._clients = clients
        self._topic = topic
        self._is_made = False
        self._producer: PartitionProducer | None = None
        self._consumer: PartitionConsumer | None = None
        self._position = 0  # Where `_consumer` goes on.
        self._latest: dict[str, tuple[int, Report]] = {}  # By broker, with the time at which Kafka took it.

    def publish(self, report: Report) -> None:
        """See `LoadBus.publish`."""
        data = _REPORT.dump_json(report)
        if len(data) > REQUEST_BYTES_MAX // 2:
            raise self._unavailable(
                f"a report of {len(report.bundles)} bundles is {len(data)} bytes, and it takes {REQUEST_BYTES_MAX // 2}"
            )
        try:
            if not self._is_made:
                self._make()
            if self._producer is None:
                self._producer = self._clients.producer(self._topic)
            sent = self._producer.send([data], key=report.broker.encode(), timeout_ms=_ANSWER_MS_MAX)
        except (KafkaFailed, InvalidKafkaSetting) as error:
            raise self._unavailable(str(error)) from error
        if sent.failure is not None:
            if sent.failure.trouble is not Trouble.AWAY:  # It passes by itself; what else it was, the next report looks at anew.
                self._producer.close()
                self._producer, self._is_made = None, False
            raise self._unavailable(sent.failure.problem) from sent.failure

    def _make(self) -> None:
        with self._clients.administrator() as administrator:
            if administrator.describe(self._topic, timeout_ms=_ANSWER_MS_MAX) is None:
                copies = min(REPLICATION, administrator.brokers(timeout_ms=_ANSWER_MS_MAX))
                administrator.create(self._topic, replication=copies, settings=_SETTINGS, timeout_ms=_ANSWER_MS_MAX)
        self._is_made = True

    def latest(self) -> Sequence[Report]:
        """See `LoadBus.latest`."""
        now_ms = time.time_ns() // 1_000_000
        try:
            for message in self._new_messages(now_ms - KEPT_MS):
                self._take(message)
        except KafkaFailed as failed:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
            if failed.trouble is not Trouble.NO_TOPIC:  # Nobody has published anything yet.
                raise self._unavailable(failed.problem) from failed
        except InvalidKafkaSetting as error:
            raise self._unavailable(str(error)) from error
        self._latest = {broker: (at_ms, report) for broker, (at_ms, report) in self._latest.items() if at_ms > now_ms - KEPT_MS}
        return [self._latest[broker][1] for broker in sorted(self._latest)]

    def _new_messages(self, since_ms: int) -> Iterator[Message]:
        """What came since the last call, up to the end that the topic has now; at the first call, since `since_ms`."""
        consumer = self._consumer
        if consumer is None:
            consumer = self._consumer = self._clients.consumer(self._topic)
            bounds = consumer.bounds(timeout_ms=_ANSWER_MS_MAX)
            found = consumer.offset_at(since_ms, timeout_ms=_ANSWER_MS_MAX)
            self._position = bounds.high if found is None else found
            consumer.start_at(self._position)
        end = consumer.bounds(timeout_ms=_ANSWER_MS_MAX).high
        give_up_s = time.monotonic() + _ANSWER_MS_MAX / 1_000
        while self._position < end and (remaining_s := give_up_s - time.monotonic()) > 0:
            for message in consumer.take(_TAKEN_MAX, timeout_ms=int(remaining_s * 1_000)):
                error, offset = message.error(), message.offset()
                if error is None and offset is not None:
                    self._position = offset + 1
                    yield message
                elif error is not None and (failed := consumer.failed(error)) is not None and failed.trouble is not Trouble.AWAY:
                    raise failed
                elif offset is not None:  # The end, behind what compaction took away.
                    self._position = max(self._position, offset)

    def _take(self, message: Message) -> None:
        """Note a report; a message that is none tells of nobody."""
        _, at_ms = message.timestamp()
        try:
            report = _REPORT.validate_json(message.value() or b"")
        except (ValidationError, InvalidLoad):
            return
        self._latest[report.broker] = at_ms, report

    def _unavailable(self, problem: str) -> LoadBusUnavailable:
        return LoadBusUnavailable(bus=f"the topic {self._topic}", problem=problem)
