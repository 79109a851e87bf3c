"""The streaming audit on a real Spark: what it finds, where it puts it, and that it goes on where
it was.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import orjson
import pytest
from pyspark.sql import SparkSession

from equipoise.channel.log.open_log import open_log
from equipoise.channel.system.free_ports import free_row
from equipoise.spark_jobs.audit.job import run_audit
from equipoise.spark_jobs.audit.reporting import Reach, reach_in
from equipoise.spark_jobs.plain.archive import run_archive
from equipoise.spark_jobs.plain.audit import run_audit as run_plain_audit
from equipoise.spark_jobs.streams.options import ArchiveOptions, AuditOptions, Screen
from tests.kafka.fixtures import Kafka
from tests.kafka.topics import read_all
from tests.repeats import times
from tests.spark.spark_kills import audit, findings, run_with_kills, write_log
from tests.spark.spark_logs import WrittenStream

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]


@dataclass
class Said:
    """What a job says, and what Prometheus sees once it has found something."""

    port: int | None = None
    results: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    scraped: str = ""

    def screen(self) -> Screen:
        """A screen that nobody looks at."""
        return Screen(result=self.result, note=self.notes.append)

    def result(self, line: str) -> None:
        """Take a line."""
        self.results.append(line)
        if self.port is not None:
            with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                self.scraped = answer.read().decode()


def test_an_audit_reports_findings_everywhere_and_continues(
    spark: SparkSession, tmp_path: Path
) -> None:
    """On the screen, in the archive, in the table next to the log, and as a metric."""
    url, archive, port = f"sqlite:{tmp_path}/log", tmp_path / "archive", free_row(1)
    options = AuditOptions(log_url=url, archive=archive, to_end=True, metrics_port=port)
    with closing(open_log(url)) as log:
        stream = WrittenStream(log)
        stream.go_on(500)
        first = stream.garbage()
        stream.go_on(100)
        said = Said(port=port)
        assert 1 == run_audit(options, said.screen())
        assert f"equipoise channel show {first} --log {url}" == said.results[1].strip()
        assert said.results[0].startswith(f"warning malformed at {first}, the log: ")
        assert 'equipoise_audit_findings_total{rule="malformed"} 1.0' in said.scraped
        stream.go_on(100)
        second = stream.garbage()
        said = Said()
        assert 1 == run_audit(options, said.screen())
        assert any("continued from the last run" in note for note in said.notes)
        assert said.notes[-1] == (
            f"audited up to {second} of {second}: 1 finding (malformed 1) in 101"
            " entries; the archive holds 1 older"
        )
        assert Reach(audited=second, end=second) == reach_in(archive)
        assert [second] == [
            orjson.loads(document)["offsets"][-1]
            for document in kept(tmp_path / "log.observations")[1:]
        ]
        third = stream.garbage()
        said = Said()
        assert 1 == run_plain_audit(options, said.screen())  # It continues what Spark has begun.
        assert f"1 finding (malformed 1) in {third - second} entries" in said.notes[-1]
    assert [first, second, third] == [row["log_offset"] for row in findings(archive)]


def test_an_audit_begins_with_archived_records(spark: SparkSession, tmp_path: Path) -> None:
    """It goes on with the log where the archive ends, with each finding once."""
    url, archive, said = f"sqlite:{tmp_path}/log", tmp_path / "archive", Said()
    injected: list[int] = []
    with closing(open_log(url)) as log:
        stream = WrittenStream(log)
        for _ in range(2):
            stream.go_on(300)
            injected.append(stream.garbage())
            if len(injected) == 1:
                assert 0 == run_archive(
                    ArchiveOptions(log_url=url, archive=archive, to_end=True), said.screen()
                )
    options = AuditOptions(log_url=url, archive=archive, to_end=True)
    assert 2 == run_audit(options, said.screen())
    first = f"auditing {injected[0]} archived records first, on "
    assert any(note.startswith(first) for note in said.notes)
    assert said.notes[-1] == (
        f"audited up to {injected[1]} of {injected[1]}: 2 findings (malformed 2) in {injected[1]}"
        " entries"
    )
    assert injected == [row["log_offset"] for row in findings(archive)]


def kept(path: Path) -> list[str]:
    """What stands in the table beside the log."""
    with closing(sqlite3.connect(path)) as connection:
        return [
            document
            for (document,) in connection.execute("SELECT document FROM findings ORDER BY id")
        ]


def test_an_audit_of_a_topic_publishes_findings_on_another(
    spark_on_kafka: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    topic = kafka.topic("audit")
    kafka.topics.append(f"{topic}-findings")
    url, said = f"kafka://{kafka.address}/{topic}", Said()
    with closing(open_log(url)) as log:
        stream = WrittenStream(log)
        stream.go_on(300)
        injected = stream.garbage()
    assert 1 == run_audit(
        AuditOptions(log_url=url, archive=tmp_path / "archive", to_end=True), said.screen()
    )
    [(_, key, value)] = read_all(kafka.address, f"{topic}-findings")
    assert (b"log:", [injected]) == (key, orjson.loads(value or b"")["offsets"])
    assert [injected] == [row["log_offset"] for row in findings(tmp_path / "archive")]


@pytest.mark.repeats
@pytest.mark.soak
def test_findings_after_kills_are_those_of_an_undisturbed_audit(
    spark: SparkSession, tmp_path: Path
) -> None:
    kills = times(1, many=10)
    url = f"sqlite:{tmp_path}/log"
    injected = write_log(url, records=times(1_000, many=15_000))
    assert injected == audit(url, tmp_path / "whole")
    assert kills == run_with_kills(
        "audit", url, tmp_path / "cut", kills=kills, chance=random.Random(1)
    )
    assert findings(tmp_path / "whole") == findings(tmp_path / "cut")
    assert injected == len(kept(tmp_path / "log.observations"))
