"""The topics of the load plane are made if they are not there.

May live here: that alone. What they are is told in `brokers.load.bus.topics`.
"""

from __future__ import annotations

from equipoise.brokers.load.bus.topics import LoadTopic
from equipoise.channel.kafka.answers import TopicFacts
from equipoise.channel.kafka.client import Administrator
from equipoise.channel.kafka.topic import REPLICATION, described_when_made
from equipoise.channel.system.deadline import Deadline


def made(administrator: Administrator, topic: LoadTopic, *, replication: int | None, deadline: Deadline) -> TopicFacts:
    """What Kafka says of a topic; one that is not there is made, with `replication` copies if that is said. Raises `KafkaFailed`."""
    facts = administrator.describe(topic.name, timeout_ms=deadline.remaining_ms())
    if facts is not None:
        return facts
    copies = replication or min(REPLICATION, administrator.brokers(timeout_ms=deadline.remaining_ms()))
    administrator.create(
        topic.name, partitions=topic.partitions, replication=copies, settings=topic.settings, timeout_ms=deadline.remaining_ms()
    )
    return described_when_made(administrator, topic.name, deadline)
