"""Create the topics of the load bus if they are missing."""

from __future__ import annotations

from equipoise.brokers.load.bus.topics import LoadTopic
from equipoise.channel.kafka.answers import TopicFacts
from equipoise.channel.kafka.client import Administrator
from equipoise.channel.kafka.topic import REPLICATION, described_when_made
from equipoise.channel.system.deadline import Deadline


def made(administrator: Administrator, topic: LoadTopic, *, replication: int | None, deadline: Deadline) -> TopicFacts:
    """Return the facts about a topic. Creates a missing one, with `replication` copies if given. Raises `KafkaFailed`."""
    facts = administrator.describe(topic.name, timeout_ms=deadline.remaining_ms())
    if facts is not None:
        return facts
    copies = replication or min(REPLICATION, administrator.brokers(timeout_ms=deadline.remaining_ms()))
    administrator.create(
        topic.name, partitions=topic.partitions, replication=copies, settings=topic.settings, timeout_ms=deadline.remaining_ms()
    )
    return described_when_made(administrator, topic.name, deadline)
