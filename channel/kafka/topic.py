"""Create, check and mark the topics of a log, its snapshot and its history snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from equipoise.channel.core.errors import LogDamaged, LogNotBegun, unfit_topic
from equipoise.channel.kafka.answers import Bounds, KafkaFailed, TopicFacts, Trouble
from equipoise.channel.kafka.client import (
    REQUEST_BYTES_MAX,
    Administrator,
    PartitionConsumer,
    PartitionProducer,
    Taken,
)
from equipoise.channel.kafka.settings import HEADER_KEY
from equipoise.channel.system.clocks import Deadline

FORMAT: Final = 1

HEADER: Final = orjson.dumps({"log": "equipoise", "format": FORMAT})
"""The message at offset 0. It is no entry: a log's first offset is 1. Two processes that open a new
topic at once may both write one."""

LAG_MS_MIN: Final = 3_600_000
"""How long the snapshot's rows and tombstones stay readable after newer ones: longer than any load
takes."""

REPLICATION: Final = 3
"""Copies of a new topic by default, if there are as many brokers: one may fail while another is
upgraded."""

_MADE_LOOK_S: Final = 0.02  # A new topic is known to all of Kafka within some milliseconds.


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """One setting: the value for new topics, the condition for existing ones, and a description of
    that condition.
    """

    name: str
    made: str
    description: str
    fits: Callable[[str], bool]


def _exactly(name: str, value: str) -> Needed:
    return Needed(name=name, made=value, description=value, fits=lambda found: found == value)


def _at_least(name: str, value: int) -> Needed:
    return Needed(
        name=name,
        made=str(value),
        description=f"at least {value}",
        fits=lambda found: found.lstrip("-").isdigit() and int(found) >= value,
    )


def _made_with(name: str, value: str) -> Needed:
    """Return a setting that is only applied to new topics."""
    return Needed(name=name, made=value, description="anything", fits=lambda _: True)


def _insync(replication: int) -> Needed:
    """Return how many copies must have an acknowledged record. With two, one may be lost for ever
    without loss of data.
    """
    least = 2 if replication >= REPLICATION else 1
    return Needed(
        name="min.insync.replicas",
        made=str(least),
        description=f"{least} to {replication}, of {replication} copies",
        fits=lambda found: found.isdigit() and least <= int(found) <= replication,
    )


def needed_of_log(replication: int) -> Sequence[Needed]:
    """Return the settings of a log's topic: only truncation removes records, and no acknowledged
    record is lost.
    """
    return (
        # Kafka's compaction would keep a rejected record and drop the accepted one.
        _exactly("cleanup.policy", "delete"),
        _exactly("retention.ms", "-1"),
        _exactly("retention.bytes", "-1"),
        _insync(replication),
        _exactly("unclean.leader.election.enable", "false"),
        _exactly("message.timestamp.type", "LogAppendTime"),
        _at_least("max.message.bytes", REQUEST_BYTES_MAX),
    )


def needed_of_snapshot(replication: int) -> Sequence[Needed]:
    """Return the settings of a snapshot topic: Kafka keeps the last row of each key, also while a
    reader loads it.
    """
    return (
        _exactly("cleanup.policy", "compact"),
        _at_least("min.compaction.lag.ms", LAG_MS_MIN),
        _at_least("delete.retention.ms", LAG_MS_MIN),
        # The cleaner skips the newest segment, which by default lasts a week.
        _made_with("segment.ms", str(LAG_MS_MIN)),
        _insync(replication),
        _exactly("unclean.leader.election.enable", "false"),
        _at_least("max.message.bytes", REQUEST_BYTES_MAX),
    )


def fitting_topic(
    administrator: Administrator,
    topic: str,
    needed: Callable[[int], Sequence[Needed]],
    *,
    log: str,
    replication: int | None,
    create: bool,
    deadline: Deadline,
) -> TopicFacts | None:
    """Return the facts about a topic, or None if there is none; `create` makes a missing one.

    `replication` is the required number of copies, if given. Raises `OperatorError`, `KafkaFailed`.
    """
    facts = administrator.describe(topic, timeout_ms=deadline.remaining_ms())
    if facts is None and create:
        copies = replication or min(
            REPLICATION, administrator.brokers(timeout_ms=deadline.remaining_ms())
        )
        settings = {each.name: each.made for each in needed(copies)}
        administrator.create(
            topic, replication=copies, settings=settings, timeout_ms=deadline.remaining_ms()
        )
        facts = described_when_made(administrator, topic, deadline)
    if facts is not None:
        check_topic(facts, needed(facts.replication), log=log, topic=topic, replication=replication)
    return facts


def described_when_made(administrator: Administrator, topic: str, deadline: Deadline) -> TopicFacts:
    """Wait until a new topic is known to the broker that is asked, and return its facts."""
    while True:
        facts = administrator.describe(topic, timeout_ms=deadline.remaining_ms())
        if facts is not None:
            return facts
        if not deadline.remaining_ms():
            raise KafkaFailed(
                trouble=Trouble.AWAY,
                problem=(
                    f"the topic {topic} was created, but is not visible after"
                    f" {deadline.timeout_ms} ms"
                ),
            )
        time.sleep(_MADE_LOOK_S)


def check_topic(
    facts: TopicFacts, needed: Sequence[Needed], *, log: str, topic: str, replication: int | None
) -> None:
    """Raise `OperatorError` with the first requirement that the topic does not meet."""
    if facts.partitions != 1:
        raise unfit_topic(
            log=log,
            topic=topic,
            setting="the number of partitions",
            found=str(facts.partitions),
            needed="1",
        )
    if replication is not None and facts.replication != replication:
        found, wanted = str(facts.replication), f"{replication}, as in the URL"
        raise unfit_topic(
            log=log, topic=topic, setting="the number of copies", found=found, needed=wanted
        )
    for each in needed:
        found = facts.settings.get(each.name, "unknown")
        if not each.fits(found):
            raise unfit_topic(
                log=log, topic=topic, setting=each.name, found=found, needed=each.description
            )


def mark(
    asker: PartitionConsumer,
    reader: PartitionConsumer,
    producer: PartitionProducer | None,
    *,
    log: str,
    topic: str,
    deadline: Deadline,
) -> None:
    """Write the header to an empty topic, or check the header of one that still has its first
    message.

    `reader` is unusable afterwards. Without `producer` an empty topic stays empty. Raises
    `LogNotBegun`, `LogDamaged` for a topic of another program, `KafkaFailed`.
    """
    bounds = _bounds_when_led(asker, deadline)
    if bounds.low > 0:  # Truncated: the header is gone, but only our logs are truncated like this.
        return
    if bounds.high == 0:
        if producer is None:
            raise LogNotBegun(log=log, problem=f"the topic {topic} is empty")
        sent = producer.send([HEADER], key=HEADER_KEY, timeout_ms=deadline.remaining_ms())
        if sent.failure is not None:
            raise sent.failure
        if sent.offsets[0] == 0:
            return
    reader.start_at(0)
    while deadline.remaining_ms():
        taken = reader.take(1, timeout_ms=deadline.remaining_ms()) or Taken()
        for offset, message in taken.messages:
            _check_header(offset, message.key(), message.value(), log=log, topic=topic)
            return
        if taken.failure is not None:
            raise taken.failure
    raise KafkaFailed(
        trouble=Trouble.AWAY,
        problem=(
            f"the first message of the topic {topic} did not arrive within {deadline.timeout_ms} ms"
        ),
    )


def _bounds_when_led(asker: PartitionConsumer, deadline: Deadline) -> Bounds:
    """Return the bounds of an existing topic. Waits for its leader, which is unknown for a while if
    the topic or Kafka is new.
    """
    while True:
        try:
            return asker.bounds(timeout_ms=deadline.remaining_ms())
        except KafkaFailed as failed:
            if (
                failed.trouble not in (Trouble.AWAY, Trouble.NO_TOPIC)
                or not deadline.remaining_ms()
            ):
                raise
        time.sleep(_MADE_LOOK_S)


def _check_header(
    offset: int, key: bytes | None, value: bytes | None, *, log: str, topic: str
) -> None:
    if offset != 0 or key != HEADER_KEY:
        problem = (
            f"the topic {topic} holds messages of another program: its first one is not the header"
            " of a log"
        )
        raise LogDamaged(log=log, problem=problem)
    if value != HEADER:
        problem = (
            f"the topic {topic} has the header {value!r:.100}, and this version reads"
            f" {HEADER.decode()}"
        )
        raise LogDamaged(log=log, problem=problem)
