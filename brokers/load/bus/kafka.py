"""Exchange load reports on Kafka topics beside the log's: brokers write samples and read the
summaries that load workers make.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Final

from equipoise.brokers.errors import UnreadableLoad, load_bus_unavailable
from equipoise.brokers.load.bus.documents import decode_summary, encode_sample
from equipoise.brokers.load.bus.topics import SUMMARIES_KEPT_MS, LoadTopic, LoadTopics, differences
from equipoise.channel.core.errors import InvalidKafkaSetting, PeerError
from equipoise.channel.kafka.answers import KafkaFailed, TopicFacts, Trouble
from equipoise.channel.kafka.client import (
    BY_KEY,
    Administrator,
    Clients,
    Message,
    PartitionConsumer,
    PartitionProducer,
)
from equipoise.channel.kafka.topic import REPLICATION, described_when_made
from equipoise.channel.system.deadline import Deadline
from equipoise.shedder.load_reports import Sample, Summary

logger = logging.getLogger(__name__)

# A third of the default report interval. Reports that Kafka does not take or return in this time
# are lost, which is harmless.
_ANSWER_MS_MAX: Final = 1_500

# Messages taken at once. Each replaces the previous one of its broker, so they do not pile up.
_TAKEN_MAX: Final = 1_000


class KafkaLoadBus:
    """A handle on the load bus beside the topic `log`. The first sample creates its topics. See
    `LoadBus`.

    A load worker turns a sample into a summary within milliseconds. Without workers, the results of
    `latest` grow old, which their age shows.
    """

    def __init__(self, clients: Clients, log: str, *, replication: int | None = None) -> None:
        """`replication` is the number of copies of new topics, if given."""
        self._clients = clients
        self._topics = LoadTopics(log=log)
        self._replication = replication
        self._is_made = False
        self._producer: PartitionProducer | None = None
        self._consumer: PartitionConsumer | None = None
        self._position = 0  # Where `_consumer` reads on.
        # By broker, with the time at which a worker wrote it.
        self._latest: dict[str, tuple[int, Summary]] = {}

    def publish(self, sample: Sample) -> None:
        """See `LoadBus.publish`."""
        self._send(sample.broker, encode_sample(sample))

    def withdraw(self, broker: str) -> None:
        """See `LoadBus.withdraw`. Load workers pass it on."""
        self._send(broker, None)

    def _send(self, broker: str, value: bytes | None) -> None:
        topic = self._topics.samples.name
        try:
            if not self._is_made:
                self._make()
            if self._producer is None:
                self._producer = self._clients.producer(topic, partition=BY_KEY)
            sent = self._producer.send([value], key=broker.encode(), timeout_ms=_ANSWER_MS_MAX)
        except (KafkaFailed, InvalidKafkaSetting) as error:
            raise _unavailable(topic, str(error)) from error
        if sent.failure is not None:
            # AWAY passes without action. After any other failure, the next sample checks the topics
            # again.
            if sent.failure.trouble is not Trouble.AWAY:
                self._producer.close()
                self._producer, self._is_made = None, False
            raise _unavailable(topic, sent.failure.problem) from sent.failure

    def _make(self) -> None:
        deadline = Deadline.after(timeout_ms=_ANSWER_MS_MAX)
        with self._clients.administrator() as administrator:
            for topic in (self._topics.samples, self._topics.summaries):
                facts = made(administrator, topic, replication=self._replication, deadline=deadline)
                for difference in differences(topic, facts):
                    logger.warning(
                        "topic not as it would be made",
                        extra={"topic": topic.name, "difference": difference},
                    )
        self._is_made = True

    def latest(self) -> Sequence[Summary]:
        """See `LoadBus.latest`."""
        topic = self._topics.summaries.name
        oldest_ms = time.time_ns() // 1_000_000 - SUMMARIES_KEPT_MS
        try:
            for message in self._new_messages(topic, oldest_ms):
                self._take(message)
        except KafkaFailed as failed:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
            if failed.trouble is not Trouble.NO_TOPIC:  # Nothing has been published yet.
                raise _unavailable(topic, failed.problem) from failed
        except InvalidKafkaSetting as error:
            raise _unavailable(topic, str(error)) from error
        self._latest = {
            broker: (at_ms, summary)
            for broker, (at_ms, summary) in self._latest.items()
            if at_ms > oldest_ms
        }
        return [self._latest[broker][1] for broker in sorted(self._latest)]

    def _new_messages(self, topic: str, since_ms: int) -> Iterator[Message]:
        """Yield messages since the last call up to the topic's current end. The first call starts
        at `since_ms`.
        """
        consumer = self._consumer
        if consumer is None:
            consumer = self._consumer = self._clients.consumer(topic)
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
                elif (
                    error is not None
                    and (failed := consumer.failed(error)) is not None
                    and failed.trouble is not Trouble.AWAY
                ):
                    raise failed
                elif offset is not None:  # The end, after a gap from compaction.
                    self._position = max(self._position, offset)

    def _take(self, message: Message) -> None:
        """Store a summary, or remove that of a withdrawn broker. Ignores unreadable messages."""
        _, at_ms = message.timestamp()
        value = message.value()
        if value is None:
            self._latest.pop((message.key() or b"").decode(errors="replace"), None)
            return
        try:
            summary = decode_summary(value)
        except UnreadableLoad:
            return
        self._latest[summary.broker] = at_ms, summary


def _unavailable(topic: str, problem: str) -> PeerError:
    return load_bus_unavailable(bus=f"the topic {topic}", problem=problem)


def made(
    administrator: Administrator, topic: LoadTopic, *, replication: int | None, deadline: Deadline
) -> TopicFacts:
    """Return the facts about a topic. Creates a missing one, with `replication` copies if given.
    Raises `KafkaFailed`.
    """
    facts = administrator.describe(topic.name, timeout_ms=deadline.remaining_ms())
    if facts is not None:
        return facts
    copies = replication or min(
        REPLICATION, administrator.brokers(timeout_ms=deadline.remaining_ms())
    )
    administrator.create(
        topic.name,
        partitions=topic.partitions,
        replication=copies,
        settings=topic.settings,
        timeout_ms=deadline.remaining_ms(),
    )
    return described_when_made(administrator, topic.name, deadline)
