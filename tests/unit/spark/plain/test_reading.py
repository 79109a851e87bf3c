"""Tests of reading a channel in batches without Spark."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from equipoise.channel.core.errors import CallerError, LogNotBegun
from equipoise.channel.core.side_log import Document
from equipoise.channel.log.open_log import open_log, open_side_log
from equipoise.spark_jobs.plain import reading as plain
from equipoise.spark_jobs.sequence.rows import Arrival, Positions, Source
from equipoise.spark_jobs.sources.reading import COMPANIONS, Reading
from equipoise.spark_jobs.sources.sqlite_source import BEGINNING
from tests.kafka.fixtures import Kafka
from tests.spark.archived import reading_of

LONG_MS = 20_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A log of ten records of ten bytes each."""
    url = f"sqlite:{tmp_path}/log"
    with closing(open_log(url)) as log:
        log.append([b"%010d" % number for number in range(10)], timeout_ms=1_000)
    return url


def batches(opened: Reading, begin: Positions, until: Positions | None) -> list[list[Arrival]]:
    """All batches from a position to the end."""
    found, position = [], begin
    while (batch := opened.batch(position, until=until)).arrivals:
        found.append(batch.arrivals)
        position = batch.ends
    return found


def test_entries_have_the_times_of_their_appends_and_notes_come_after_them(url: str) -> None:
    open_side_log(url, COMPANIONS[Source.DECISIONS]).append([Document("x", b"{}")])
    with closing(reading_of(url)) as opened:
        ((*channel, note),) = batches(opened, BEGINNING, None)
        assert [*range(1, 11)] == [arrival.offset for arrival in channel]
        assert all(0 < arrival.at_ms <= note.at_ms for arrival in channel)
        assert (Source.DECISIONS, b"{}") == (note.source, note.value)
        assert {**BEGINNING, "channel": 11, "decisions": 2} == opened.ends()


def test_a_wait_ends_with_the_next_entry(url: str) -> None:
    with closing(reading_of(url)) as opened, closing(open_log(url)) as log:
        assert not opened.wait(11, timeout_ms=0)
        log.append([b"next"], timeout_ms=1_000)
        assert opened.wait(11, timeout_ms=LONG_MS)


def test_a_log_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(LogNotBegun):
        reading_of(f"sqlite:{tmp_path}/none")
    with pytest.raises(CallerError, match="lives in one process"):
        reading_of("memory:log")


@pytest.mark.integration
def test_a_topic_is_read_as_a_file_is(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "ENTRIES_MAX", 4)
    topic = kafka.topic("reading")
    kafka.topics.append(f"{topic}-decisions")
    url = f"kafka://{kafka.address}/{topic}"
    with closing(open_log(url)) as log, closing(reading_of(url)) as opened:
        log.append([b"%d" % number for number in range(10)], timeout_ms=LONG_MS)
        with closing(open_side_log(url, COMPANIONS[Source.DECISIONS])) as decisions:
            decisions.append([Document("x", b"{}")])
        until = opened.ends()
        log.append([b"later"], timeout_ms=LONG_MS)
        found = batches(opened, {Source.CHANNEL: log.start()}, until)
        assert [4, 4, 3] == [len(each) for each in found]
        values = [arrival.value for batch in found for arrival in batch]
        assert [*(b"%d" % number for number in range(10)), b"{}"] == values
        assert opened.wait(until["channel"], timeout_ms=LONG_MS)
        (last,) = opened.batch(until).arrivals
        assert b"later" == last.value
