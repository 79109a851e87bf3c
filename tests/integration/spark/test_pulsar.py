"""Test `equipoise spark pulsar`: the recording of a real Pulsar cluster becomes an archive, and its
faults become findings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from equipoise.pulsar_cluster.archive import open_archive
from equipoise.pulsar_cluster.records import BROKER_LOADS, TOP_BUNDLES, Report
from equipoise.spark_jobs.audit.pulsar import run_pulsar
from equipoise.spark_jobs.report.job import made_report, run_report
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.options import PulsarOptions, ReportOptions, Screen
from equipoise.spark_jobs.tables.reading import Tables
from tests.pulsar.faults import FAULTS, GOLDEN, golden_reads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

URL = "pulsar://127.0.0.1:6650"


def load_reports() -> list[Report]:
    """Return the load reports of the golden cluster in order of time."""
    found = []
    for name, topic in (("broker_load", BROKER_LOADS), ("top_bundles", TOP_BUNDLES)):
        for line in (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            message = json.loads(line)
            value = None if message["value"] is None else json.dumps(message["value"]).encode()
            found.append(Report(message["published_ms"], topic, message["key"], value))
    return sorted(found, key=lambda report: report.at_ms)


def audited(recording: Path) -> tuple[int, list[str]]:
    said: list[str] = []
    options = PulsarOptions(
        recording=recording, archive=recording.with_suffix(".archive"), as_json=True
    )
    return run_pulsar(options, Screen(result=said.append, note=lambda _line: None)), said


def test_a_recording_becomes_an_archive_and_a_page(spark: SparkSession, tmp_path: Path) -> None:
    """The second run, of a recording that goes on with two faults, replaces what the first one
    wrote.
    """
    recording, page = tmp_path / "pulsar.db", tmp_path / "report.html"
    reads = golden_reads()
    with open_archive(recording, create_for=URL) as opened:
        opened.append(reads)
        opened.add_reports(load_reports())
    assert (0, []) == audited(recording)

    old, ghost = (
        FAULTS["a record with an old version"],
        FAULTS["a record of a broker that was gone"],
    )
    with open_archive(recording) as opened:
        opened.append([old.message(reads), ghost.message(reads)])
    found, said = audited(recording)
    assert 2 == found
    assert [("pulsar_old_version", 469), ("pulsar_gone_broker", 470)] == [
        (finding["rule"], finding["offsets"][-1]) for finding in map(orjson.loads, said)
    ]
    assert all(
        "PIP-192" in finding["source"] and finding["advice"] for finding in map(orjson.loads, said)
    )

    archive = recording.with_suffix(".archive")
    assert list(range(471)) == Tables(archive).table(Table.RECORDS)["log_offset"].to_pylist()
    report = made_report(ReportOptions(out=page), archive)
    assert 0 == run_report(
        ReportOptions(out=page, archive=archive),
        Screen(result=lambda _line: None, note=lambda _line: None),
    )
    assert 2 == report.findings.count
    assert 32 == sum(each.count - each.accepted for each in report.records)
    assert (99, 22) == (report.moves.results["done"], report.moves.results["unloaded"])
    assert 175 == report.moves.pause_max_ms
    assert 4 == report.splits_and_merges.count
    assert {(1, 2)} == {
        (each.before_count, each.after_count) for each in report.splits_and_merges.shown
    }
    assert [("127.0.0.1:19043", 4), ("127.0.0.1:12088", 3)] == [
        (each.broker, each.bundles) for each in report.deaths.shown
    ]
    assert 6 == len(report.cpu.brokers)
    assert {*report.owned.brokers} <= {*report.cpu.brokers}
    assert report.unserved_ms < 10_000
    shown = page.read_text(encoding="utf-8")
    assert "pulsar_gone_broker" in shown
    assert "Source: PIP-192" in shown
