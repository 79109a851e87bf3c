"""What tests do with a Kafka beside the channel: make topics, write and read them as they stand,
see who leads them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

# An election takes as long as the session of a node that was killed, and the machine may be busy.
_CALL_S: Final = 30.0
_LOOK_S: Final = 0.1
_NOBODY: Final = -1


class KafkaFailedError(AssertionError):
    """Kafka did not do in time what a test needs of it."""


def create_topic(
    address: str,
    topic: str,
    *,
    partitions: int = 1,
    replicas: int = 1,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Make a topic, of one partition by default. Raises `KafkaFailedError`."""
    wanted = NewTopic(
        topic, num_partitions=partitions, replication_factor=replicas, config=dict(settings or {})
    )
    # What it promises is broken when nobody holds it any more.
    client = AdminClient({"bootstrap.servers": address})
    try:
        client.create_topics([wanted])[topic].result(_CALL_S)
    except KafkaException as error:
        raise KafkaFailedError(f"the topic {topic} could not be made: {error}") from error


def delete_topics(address: str, topics: Collection[str]) -> None:
    """Delete the topics that are there, among those named. Raises `KafkaFailedError`."""
    client = AdminClient({"bootstrap.servers": address})
    there = sorted(set(topics) & client.list_topics(timeout=_CALL_S).topics.keys())
    for deleting in client.delete_topics(there).values() if there else ():
        try:
            deleting.result(_CALL_S)
        except KafkaException as error:
            raise KafkaFailedError(
                f"the topics {', '.join(there)} could not be deleted: {error}"
            ) from error


def leader_of(address: str, topic: str, *, other_than: int = 0) -> int:
    """The number of the node that leads the only partition of a topic, once it is not the one
    named. Raises `KafkaFailedError`.
    """
    deadline_s = time.monotonic() + _CALL_S
    while time.monotonic() < deadline_s:
        # One that has found all nodes may ask any of them.
        client = AdminClient({"bootstrap.servers": address})
        known = client.list_topics(topic, timeout=_CALL_S).topics[topic].partitions
        if 0 in known and known[0].leader not in (_NOBODY, other_than):
            return int(known[0].leader)
        time.sleep(_LOOK_S)
    raise KafkaFailedError(f"{topic} has had no leader other than {other_than} for {_CALL_S:.0f} s")


def advertised(address: str) -> Sequence[str]:
    """Where Kafka tells a client that comes in at `address` to find its nodes, in order of their
    numbers.
    """
    nodes = AdminClient({"bootstrap.servers": address}).list_topics(timeout=_CALL_S).brokers
    return [f"{node.host}:{node.port}" for _, node in sorted(nodes.items())]


@contextmanager
def open_transaction(address: str, topic: str) -> Iterator[None]:
    """A transaction of another program, which has written a message and is aborted afterwards.
    Raises `KafkaFailedError`.
    """
    producer = Producer({"bootstrap.servers": address, "transactional.id": f"{topic}-other"})
    producer.init_transactions(_CALL_S)
    producer.begin_transaction()
    producer.produce(topic, b"other", b"other", 0)
    if producer.flush(_CALL_S):
        raise KafkaFailedError(f"the message of another transaction on {topic} has no receipt")
    try:
        yield
    finally:
        producer.abort_transaction(_CALL_S)


class Writer:
    """A producer, which stays connected from its first append on."""

    def __init__(self, address: str, *, timeout_s: float = _CALL_S) -> None:
        """Each append may take `timeout_s`."""
        self._timeout_s = timeout_s
        timeout_ms = int(timeout_s * 1_000)
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": timeout_ms,
            }
        )

    def append(self, topic: str, messages: Collection[tuple[bytes, bytes | None]]) -> None:
        """Append messages (key and value), and wait for all receipts. Raises `KafkaFailedError` if
        one does not come in time.
        """
        failures: list[str] = []
        for key, value in messages:
            self._producer.produce(
                topic,
                key=key,
                value=value,
                on_delivery=lambda error, _: failures.append(str(error)) if error else None,
            )
        self._producer.flush(self._timeout_s + _CALL_S)
        if failures:
            raise KafkaFailedError(
                f"{len(failures)} of {len(messages)} messages have no receipt: {failures[0]}"
            )


def write_numbers(address: str, topic: str, numbers: range, *, partitions: int) -> None:
    """Append each number to each partition, over a second or so. Raises `KafkaFailedError` if a
    receipt does not come in time.
    """
    producer = Producer({"bootstrap.servers": address})
    for number in numbers:
        for partition in range(partitions):
            producer.produce(topic, str(number).encode(), partition=partition)
        producer.poll(0.003)
    if missing := producer.flush(_CALL_S):
        raise KafkaFailedError(f"{missing} messages have no receipt")


def read_all(address: str, topic: str) -> Sequence[tuple[int, bytes, bytes | None]]:
    """Offset, key and value of all that stands in a topic now. Raises `KafkaFailedError`."""
    with _reading(address) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[tuple[int, bytes, bytes | None]] = []
        deadline_s = time.monotonic() + _CALL_S
        while time.monotonic() < deadline_s:
            message = consumer.poll(_LOOK_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append((message.offset() or 0, message.key() or b"", message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001, since librdkafka's own codes are spelled so.
                return found
        raise KafkaFailedError(
            f"{topic} could not be read to its end in {_CALL_S:.0f} s; {len(found)} records were"
        )


@contextmanager
def _reading(address: str) -> Iterator[Consumer]:
    settings = {"group.id": "tests", "enable.auto.commit": False, "enable.partition.eof": True}
    with closing(Consumer({"bootstrap.servers": address, **settings})) as consumer:
        yield consumer
