"""Test that a log gives the same frame from a file and from Kafka, as a batch and as a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from equipoise.brokers.decision_log import DecisionLog
from equipoise.brokers.load.bus import LOADS
from equipoise.brokers.side_topics import SERVING
from equipoise.channel.core.side_log import Document
from equipoise.channel.kafka.settings import HEADER_KEY
from equipoise.channel.kafka.topic import HEADER
from equipoise.channel.log.open_log import open_log, open_side_log
from equipoise.spark_jobs.sequence.rows import Source
from equipoise.spark_jobs.sources import kafka_source
from equipoise.spark_jobs.sources.frames import channel_frame
from tests.decisions import idle, shed
from tests.kafka.fixtures import Kafka
from tests.kafka.topics import Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

RECORDS = tuple(b'{"kind":"%d"}' % number for number in range(25))
LINES = {
    Source.SERVING: (("a", b'{"token":1}'), ("b", b'{"token":2}')),
    Source.LOADS: (("a", b'{"cpu":0.5}'),),
}
DEADLINE_S = 300.0

Seen = tuple[str, bytes]


def observe(url: str) -> None:
    """Write beside the log at `url` what brokers would."""
    for topic in (SERVING, LOADS):
        open_side_log(url, topic).append(
            [Document(key, value) for key, value in LINES[Source(topic.name)]]
        )


def decide(url: str) -> None:
    """Write two decisions beside the log at `url`."""
    decisions = DecisionLog(url)
    decisions.write(idle())
    decisions.write(shed())


def filled_file(folder: Path) -> str:
    """A log in a file, with something in every source."""
    url = f"sqlite:{folder / 'channel.db'}"
    with closing(open_log(url)) as log:
        log.append(RECORDS, timeout_ms=5_000)
    decide(url)
    observe(url)
    return url


def filled_topic(kafka: Kafka) -> str:
    """The same on Kafka."""
    topic = kafka.topic("sources")
    url = f"kafka://{kafka.address}/{topic}"
    with closing(open_log(url)) as log:
        log.append(RECORDS, timeout_ms=20_000)
    # As a handle appends it that has to prove the log's end.
    Writer(kafka.address).append(topic, [(HEADER_KEY, HEADER)])
    decide(url)
    kafka.topics.extend(f"{topic}-{source}" for source in LINES)
    observe(url)
    return url


def by_source(rows: Sequence[Any]) -> list[Seen]:
    """What a frame holds of each source in its order, without times and offsets, which are each
    storage's own.
    """
    return [
        (row.source, bytes(row.value))
        for row in sorted(rows, key=lambda row: (row.source, row.offset))
    ]


class Sink:
    """Collects the rows of a stream, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def __call__(self, frame: DataFrame, _: int) -> None:
        self.batches.append(frame.collect())

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.batches for row in batch]


def until_end(frame: DataFrame, checkpoint: Path) -> Sink:
    """Run a stream over what is there now, to its end."""
    sink = Sink()
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(DEADLINE_S)), "it ends by itself"
    return sink


def wait_until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    """Wait for a condition while a query lives, at most until the deadline."""
    give_up_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < give_up_s, "it comes in time"
        time.sleep(0.05)


def test_a_file_and_a_topic_give_the_same_frame(
    spark_on_kafka: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    streams = [
        until_end(
            channel_frame(spark_on_kafka, url, start={}, per_trigger=100),
            tmp_path / f"checkpoint-{number}",
        ).rows
        for number, url in enumerate((filled_file(tmp_path), filled_topic(kafka)))
    ]
    expected, found = map(by_source, streams)
    assert [(Source.CHANNEL.value, record) for record in RECORDS] == [
        seen for seen in expected if seen[0] == Source.CHANNEL
    ]
    assert 2 == len([seen for seen in expected if seen[0] == Source.DECISIONS])
    assert expected == found
    for rows in streams:
        assert list(range(1, len(RECORDS) + 1)) == sorted(
            row.offset for row in rows if row.source == Source.CHANNEL
        )
        assert all(row.at_ms > 0 for row in rows)


def test_a_topic_is_read_from_given_positions(
    spark_on_kafka: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    """Sources without a position are read from their beginning."""
    frame = channel_frame(
        spark_on_kafka, filled_topic(kafka), start={"channel": 20, "serving": 1}, per_trigger=100
    )
    rows = until_end(frame, tmp_path / "checkpoint").rows
    assert list(range(20, 26)) == sorted(row.offset for row in rows if row.source == Source.CHANNEL)
    assert [1, 1, 2] == [
        len([row for row in rows if row.source == source])
        for source in ("serving", "loads", "decisions")
    ]


def test_an_unwanted_source_is_not_read(
    spark_on_kafka: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    wanted = frozenset({Source.CHANNEL, Source.DECISIONS})
    for number, url in enumerate((filled_file(tmp_path), filled_topic(kafka))):
        frame, checkpoint = (
            channel_frame(spark_on_kafka, url, sources=wanted, start={}, per_trigger=10),
            tmp_path / f"checkpoint-{number}",
        )
        assert wanted == {row.source for row in until_end(frame, checkpoint).rows}
        with closing(open_log(url)) as log:
            log.append([b"later"], timeout_ms=5_000)
        assert [("channel", b"later")] == by_source(until_end(frame, checkpoint).rows)


def test_load_reports_on_a_topic_have_a_lower_bound(
    spark_on_kafka: SparkSession, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "LOADS_PER_TRIGGER", 2)
    url = filled_topic(kafka)
    for _ in range(5):
        open_side_log(url, LOADS).append([Document("a", b"{}")])
    read = until_end(
        channel_frame(spark_on_kafka, url, start={}, per_trigger=100), tmp_path / "checkpoint"
    )
    sizes = [len([row for row in batch if row.source == Source.LOADS]) for batch in read.batches]
    assert [2, 2, 2] == [size for size in sizes if size]
    assert len(RECORDS) == len([row for row in read.batches[0] if row.source == Source.CHANNEL])


def test_a_stream_outlives_a_file_that_goes_away(spark: SparkSession, tmp_path: Path) -> None:
    url = filled_file(tmp_path)
    path, away = tmp_path / "channel.db", tmp_path / "away"
    sink = Sink()
    frame = channel_frame(spark, url, start={}, per_trigger=100)
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        wait_until(lambda: len(sink.rows) == len(RECORDS) + 5, query)
        away.mkdir()
        for found in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            if found.exists():
                found.rename(away / found.name)
        time.sleep(1)  # So long it looks for the file, and does not find it.
        assert query.isActive
        with closing(open_log(f"sqlite:{away / path.name}")) as log:
            log.append([b"later"], timeout_ms=5_000)
        (away / path.name).rename(path)
        wait_until(lambda: len(sink.rows) == len(RECORDS) + 6, query)
    finally:
        query.stop()
    assert [b"later"] == [bytes(row.value) for row in sink.rows if row.source == Source.CHANNEL][
        len(RECORDS) :
    ]
