"""The log on a real Kafka whose client does not do its part: it asks once too little, is not
answered, or dies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pytest

from equipoise.channel.core.errors import (
    LogUnavailable,
    OperatorError,
    SnapshotFenced,
)
from equipoise.channel.core.log import Log, SnapshotRow
from equipoise.channel.kafka import log as kafka_log
from equipoise.channel.kafka.answers import Bounds, KafkaFailed, Trouble
from equipoise.channel.kafka.client import Administrator, PartitionConsumer, Taken
from equipoise.channel.kafka.settings import HEADER_KEY
from equipoise.channel.kafka.topic import HEADER
from equipoise.channel.log.open_log import open_log
from tests.kafka.fixtures import Kafka
from tests.kafka.topics import Writer, open_transaction

pytestmark = pytest.mark.integration

TIMEOUT_MS: Final = 10_000
SHORT_MS: Final = 500
CLAIM_MS: Final = 4_000
"""A claim asks several nodes of Kafka, and waits as long again for an open transaction."""


@pytest.fixture
def log(kafka: Kafka) -> Iterator[Log]:
    """A handle on a new log."""
    with closing(open_log(f"kafka://{kafka.address}/{kafka.topic('log')}")) as opened:
        yield opened


@dataclass
class Asked:
    """What was asked of the library, of one kind."""

    times: int = 0


@pytest.fixture
def bounds_asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """How often bounds were asked for."""
    asked = Asked()
    bounds = PartitionConsumer.bounds

    def counted(consumer: PartitionConsumer, *, timeout_ms: int) -> Bounds:
        asked.times += 1
        return bounds(consumer, timeout_ms=timeout_ms)

    monkeypatch.setattr(PartitionConsumer, "bounds", counted)
    return asked


def test_a_reader_behind_a_header_asks_for_what_others_appended(
    kafka: Kafka, log: Log, bounds_asked: Asked
) -> None:
    """A reader that has passed a gap at the log's end finds nothing only where Kafka says that
    nothing is there.
    """
    log.append([b"a"], timeout_ms=TIMEOUT_MS)
    Writer(kafka.address).append(log.name.rpartition("/")[2], [(HEADER_KEY, HEADER)])
    assert [] == list(log.read(2, limit=10))
    for look in (lambda: log.read(2, limit=10), lambda: log.wait(2, timeout_ms=0)):
        bounds_asked.times = 0
        assert not look()
        assert 1 == bounds_asked.times


def test_a_reader_whose_thread_has_died_is_told_and_begins_anew(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where reading ahead has failed at the log's end, one wait says so and the next one waits
    again: nobody spins.
    """
    (offset,) = log.append([b"a"], timeout_ms=TIMEOUT_MS)
    assert [b"a"] == [entry.data for entry in log.read(offset, limit=10)]

    def failing(consumer: PartitionConsumer, limit: int, *, timeout_ms: int) -> None:
        raise RuntimeError("boom")

    with monkeypatch.context() as broken:
        broken.setattr(PartitionConsumer, "take", failing)
        with pytest.raises(LogUnavailable, match="boom"):
            log.wait(offset + 1, timeout_ms=TIMEOUT_MS)
    began_s = time.monotonic()
    assert not log.wait(offset + 1, timeout_ms=SHORT_MS)
    assert time.monotonic() - began_s >= SHORT_MS / 1_000
    log.append([b"b"], timeout_ms=TIMEOUT_MS)
    assert [b"b"] == [entry.data for entry in log.read(offset + 1, limit=10)]


def test_a_reader_whose_consumer_fetches_no_more_gets_another(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that stays silent about what is known to be there, as some do once their broker
    was restarted, is replaced.
    """
    monkeypatch.setattr(kafka_log, "READ_MS_MAX", SHORT_MS)
    (first,) = log.append([b"a"], timeout_ms=TIMEOUT_MS)
    take, stuck = PartitionConsumer.take, set[PartitionConsumer]()

    def sticking(consumer: PartitionConsumer, limit: int, *, timeout_ms: int) -> Taken | None:
        taken = take(consumer, limit, timeout_ms=timeout_ms)
        if taken is not None and any(offset == first for offset, _ in taken.messages):
            stuck.add(consumer)
            return taken
        return None if consumer in stuck else taken

    monkeypatch.setattr(PartitionConsumer, "take", sticking)
    assert [b"a"] == [entry.data for entry in log.read(first, limit=10)]
    (second,) = log.append([b"b"], timeout_ms=TIMEOUT_MS)
    for _ in range(kafka_log.MISSED_MAX):
        with pytest.raises(LogUnavailable, match="did not arrive"):
            log.read(second, limit=10)
    assert [b"b"] == [entry.data for entry in log.read(second, limit=10)]


def test_a_look_at_the_topic_that_nobody_answers_keeps_nobody_from_reading(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, bounds_asked: Asked
) -> None:
    """The look-up of now and then may fail while bounds are answered; after an outage the topic
    must be known to be the same.
    """
    monkeypatch.setattr(kafka_log, "LOOK_MS", 0)
    with closing(open_log(f"kafka://{kafka.address}/{kafka.topic('looked-up')}")) as log:
        log.append([b"a"], timeout_ms=TIMEOUT_MS)
        with monkeypatch.context() as unanswered:
            unanswered.setattr(Administrator, "identity", silent)
            bounds_asked.times = 0
            assert [1, 1] == [log.end(), log.end()]
            assert 2 == bounds_asked.times
            with monkeypatch.context() as out:
                out.setattr(PartitionConsumer, "bounds", silent)
                with pytest.raises(LogUnavailable, match="nobody answers"):
                    log.end()
            with pytest.raises(LogUnavailable, match="nobody answers"):
                log.end()
        assert 1 == log.end()


def test_a_topic_is_gone_when_nobody_has_known_of_it_for_a_while(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer that there is no such topic is an outage, which ends when somebody knows of it;
    one that lasts ends the log.
    """
    monkeypatch.setattr(kafka_log, "LOOK_MS", 0)
    with closing(open_log(f"kafka://{kafka.address}/{kafka.topic('unknown')}")) as log:
        with monkeypatch.context() as unknown:
            unknown.setattr(
                Administrator, "identity", lambda administrator, topic, *, timeout_ms: None
            )
            log.end()
            with pytest.raises(LogUnavailable, match="there is no topic"):
                log.end()
        assert 0 == log.end()
        monkeypatch.setattr(kafka_log, "MISSING_MS", 0)
        monkeypatch.setattr(
            Administrator, "identity", lambda administrator, topic, *, timeout_ms: None
        )
        with pytest.raises(OperatorError):
            log.end()


@pytest.mark.parametrize("trouble", [Trouble.AWAY, Trouble.NO_TOPIC])
def test_a_new_topic_may_have_no_leader_yet(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, trouble: Trouble
) -> None:
    """Opening waits for the leader of a topic that has just been made, and for the one who is asked
    to know of it.
    """
    bounds = PartitionConsumer.bounds
    failures = [KafkaFailed(trouble=trouble, problem="not the leader")] * 2

    def early(consumer: PartitionConsumer, *, timeout_ms: int) -> Bounds:
        if failures:
            raise failures.pop()
        return bounds(consumer, timeout_ms=timeout_ms)

    monkeypatch.setattr(PartitionConsumer, "bounds", early)
    with closing(open_log(f"kafka://{kafka.address}/{kafka.topic('new')}")) as log:
        assert [] == failures
        assert 0 == log.end()


def silent(client: object, topic: str = "", *, timeout_ms: int) -> None:
    """In place of a request: one that nobody answers."""
    raise KafkaFailed(trouble=Trouble.AWAY, problem="nobody answers")


def test_a_snapshot_that_was_replaced_is_there_for_all(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replacement returns once the end of its transaction has come to the partition, and not when
    that was only decided on.
    """
    bounds = PartitionConsumer.bounds
    told: list[Bounds] = []

    def late(consumer: PartitionConsumer, *, timeout_ms: int) -> Bounds:
        told.append(bounds(consumer, timeout_ms=timeout_ms))
        return told[-1] if len(told) > 2 else Bounds(low=0, high=2)

    compacted_snapshot = log.compacted_snapshot()
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    monkeypatch.setattr(PartitionConsumer, "bounds", late)
    compacted_snapshot.replace(
        [SnapshotRow("a", b"1"), SnapshotRow("b", b"2")], b"first", timeout_ms=TIMEOUT_MS
    )
    assert len(told) > 2
    assert 4 == told[-1].high  # Two rows, the marker, and the transaction's end.


def test_a_snapshot_whose_transaction_does_not_end_is_in_doubt(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replacement that nobody can read in its time says that its rows may appear later, and its
    producer claims again.
    """
    compacted_snapshot = log.compacted_snapshot()
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    with monkeypatch.context() as endless:
        endless.setattr(
            PartitionConsumer, "bounds", lambda consumer, *, timeout_ms: Bounds(low=0, high=0)
        )
        with pytest.raises(
            LogUnavailable,
            match=r"that began at offset 0 of the topic .*-snapshot .* is still open",
        ) as caught:
            compacted_snapshot.replace([SnapshotRow("a", b"1")], b"first", timeout_ms=SHORT_MS)
    assert caught.value.in_doubt
    with pytest.raises(SnapshotFenced):
        compacted_snapshot.replace([], b"second", timeout_ms=SHORT_MS)
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    compacted_snapshot.replace([], b"third", timeout_ms=TIMEOUT_MS)
    image = compacted_snapshot.load()
    assert image is not None
    assert (b"third", {"a": b"1"}) == (image.marker, dict(image.rows))


def test_an_open_transaction_of_another_program_is_named(kafka: Kafka, log: Log) -> None:
    """Nobody would read what is written after it. So nothing is written, and the operator learns
    which transaction it is, and where.
    """
    compacted_snapshot = log.compacted_snapshot()
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    compacted_snapshot.replace([SnapshotRow("a", b"1")], b"first", timeout_ms=TIMEOUT_MS)
    topic = f"{log.name.rpartition('/')[2]}-snapshot"
    with open_transaction(kafka.address, topic):
        with pytest.raises(
            match=rf"the transaction that began at offset 3 of the topic {topic} .* is still open",
        ):
            compacted_snapshot.claim(timeout_ms=CLAIM_MS)
        with pytest.raises(SnapshotFenced):
            compacted_snapshot.replace([], b"second", timeout_ms=SHORT_MS)
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    compacted_snapshot.replace([], b"third", timeout_ms=TIMEOUT_MS)
    image = compacted_snapshot.load()
    assert image is not None
    assert (b"third", {"a": b"1"}) == (image.marker, dict(image.rows))
