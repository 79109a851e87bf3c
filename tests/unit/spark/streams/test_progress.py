"""Test how batches of a query are followed, measured and printed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import cast

import orjson
import pytest
from prometheus_client import generate_latest
from pyspark.sql.streaming.query import StreamingQuery

from equipoise.spark_jobs.streams.options import Screen
from equipoise.spark_jobs.streams.progress import (
    WINDOW_MS,
    BatchDone,
    Rate,
    StreamMetrics,
    Watch,
    batch_done,
    progress_line,
)
from equipoise.spark_jobs.streams.streams import Follower
from tests.docs.metrics_page import documented, misdescribed

OF_KAFKA = {
    "batchId": 7,
    "batchDuration": 950,
    "durationMs": {"addBatch": 800, "triggerExecution": 950},
    "stateOperators": [
        {"numRowsTotal": 12, "memoryUsedBytes": 1_000},
        {"numRowsTotal": 30, "memoryUsedBytes": 500},
    ],
    "sources": [
        {
            "numInputRows": 1_900,
            "endOffset": {"log": {"0": 5_000}, "log-serving": {"0": 10}},
            "latestOffset": {
                "log": {"0": 5_600},
                "log-serving": {"0": 10},
                "log-decisions": {"0": 3},
            },
        }
    ],
}


def test_sparks_report_is_parsed() -> None:
    expected = BatchDone(
        batch=7,
        rows=1_900,
        took_ms=950,
        behind=603,
        state_rows=42,
        state_bytes=1_500,
    )
    assert expected == batch_done(orjson.dumps(OF_KAFKA))


def test_an_offset_may_be_a_string_of_json() -> None:
    """Sources written in Python have such offsets."""
    source = {
        "numInputRows": 1,
        "endOffset": '{"log": "7", "loads": 4}',
        "latestOffset": '{"log": "9", "channel": 15, "loads": 4}',
    }
    assert 15 == batch_done(orjson.dumps({"sources": [source]})).behind


@pytest.mark.parametrize("newest", [None, "", "no JSON", {}, {"log": None}, '"text"', True])
def test_without_a_sources_newest_offset_the_lag_is_unknown(newest: object) -> None:
    source = {"numInputRows": 1, "endOffset": {"log": 5}, "latestOffset": newest}
    assert batch_done(orjson.dumps({"sources": [source]})).behind is None


def test_the_progress_line() -> None:
    done = batch_done(orjson.dumps(OF_KAFKA))
    line = "2,001 rows/s · 603 behind · batch 7 in 0.9 s · state 42 rows, 1.5 kB"
    assert (line, f"{line} · 1 finding") == (
        progress_line(done, rows_per_second=2_000.6, found=None),
        progress_line(done, rows_per_second=2_000.6, found=1),
    )


def test_the_progress_line_of_a_log_that_does_not_answer() -> None:
    line = progress_line(
        batch_done(orjson.dumps(OF_KAFKA)), rows_per_second=0, found=None, missed_ms=45_600
    )
    assert (
        "0 rows/s · the log does not answer, nothing for 45 s · batch 7 in 0.9 s · state 42 rows,"
        " 1.5 kB" == line
    )


def test_an_unknown_lag_is_left_out() -> None:
    """Prometheus keeps the last known one."""
    redone = {
        **OF_KAFKA,
        "sources": [{"numInputRows": 5, "endOffset": {"log": {"0": 5_000}}, "latestOffset": None}],
    }
    line = progress_line(batch_done(orjson.dumps(redone)), rows_per_second=5, found=None)
    assert "5 rows/s · batch 7 in 0.9 s · state 42 rows, 1.5 kB" == line
    metrics = StreamMetrics("archive")
    watch = Watch("archive", Printed().screen(), metrics=metrics)
    for document in (OF_KAFKA, redone):
        watch.batch(batch_done(orjson.dumps(document)))
    watch.show()
    assert 603.0 == scraped(metrics)["equipoise_archive_entries_behind"]


def test_the_rate_of_the_last_window() -> None:
    """The first batch in the window does not count, because its beginning is unknown."""
    rate = Rate()
    assert 0.0 == rate.per_second(0)
    rate.add(1_000, 900)
    rate.add(2_000, 500)
    rate.add(3_000, 500)
    assert 500.0 == rate.per_second(3_000)
    assert 50.0 == rate.per_second(2_000 + WINDOW_MS)
    assert 5.0 == rate.per_second(2_000 + 10 * WINDOW_MS)


@dataclass
class Printed:
    """The lines that a job prints."""

    results: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def screen(self) -> Screen:
        """Return a screen that no person watches."""
        return Screen(result=self.results.append, note=self.notes.append)


def scraped(metrics: StreamMetrics) -> dict[str, float]:
    """Return each figure that Prometheus would get, by its name and labels."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    }


def test_metrics() -> None:
    metrics, printed = StreamMetrics("audit"), Printed()
    watch = Watch("audit", printed.screen(), metrics=metrics, finds=True)
    watch.batch(batch_done(orjson.dumps(OF_KAFKA)))
    watch.batch(batch_done(orjson.dumps(OF_KAFKA)))
    watch.found("hole", 2)
    watch.restarted()
    watch.show()
    told = scraped(metrics)
    expected = {
        "equipoise_audit_rows_total": 3_800.0,
        "equipoise_audit_batches_total": 2.0,
        "equipoise_audit_entries_behind": 603.0,
        "equipoise_audit_batch_seconds": 0.95,
        "equipoise_audit_state_rows": 42.0,
        "equipoise_audit_state_bytes": 1_500.0,
        "equipoise_audit_restarts_total": 1.0,
        'equipoise_audit_findings_total{rule="hole"}': 2.0,
    }
    assert expected == {name: told[name] for name in expected}
    assert (3_800, {"hole": 2}) == (watch.rows, watch.findings)


def test_lines_from_other_threads_are_printed_by_show_or_close() -> None:
    printed = Printed()
    watch = Watch("archive", printed.screen(), metrics=StreamMetrics("archive"))
    watch.say("first")
    watch.remark("aside")
    watch.say("second")
    assert ([], []) == (printed.results, printed.notes)
    watch.close()
    assert (["first", "second"], ["aside"]) == (printed.results, printed.notes)


def test_the_first_batch_has_a_rate() -> None:
    """It may be the only one."""
    metrics = StreamMetrics("archive")
    watch = Watch("archive", Printed().screen(), metrics=metrics)
    watch.batch(batch_done(orjson.dumps(OF_KAFKA)))
    watch.show()
    assert scraped(metrics)["equipoise_archive_rows_per_second"] > 0


def test_every_metric_of_a_job_is_documented() -> None:
    metrics = StreamMetrics("JOB", rules=("hole",))
    told = {
        name.partition("{")[0]
        for name in scraped(metrics)
        if not name.partition("{")[0].endswith("_created")
    }
    assert told == {name for name in documented() if name.startswith("equipoise_JOB_")}
    assert {} == misdescribed(generate_latest(metrics.registry).decode())


# --- following a query ---


@dataclass(frozen=True)
class Progress:
    batchId: int  # noqa: N815 - Spark calls it so
    rows: int
    timestamp: str
    is_idle: bool = False

    @property
    def durationMs(self) -> dict[str, int]:  # noqa: N802 - Spark calls it so
        return {} if self.is_idle else {"addBatch": 1}

    @property
    def json(self) -> str:
        return json.dumps({"batchId": self.batchId, "sources": [{"numInputRows": self.rows}]})


@dataclass
class Query:
    recentProgress: list[Progress] = field(default_factory=list)  # noqa: N815 - Spark calls it so

    @property
    def lastProgress(self) -> Progress | None:  # noqa: N802 - Spark calls it so
        return self.recentProgress[-1] if self.recentProgress else None


def test_each_batch_is_reported_once() -> None:
    """A planned batch that has not run means that nothing is new."""
    query, watch = (
        Query(),
        Watch("archive", Screen(note=print, result=print), metrics=StreamMetrics("archive")),
    )
    follower = Follower(cast("StreamingQuery", query), watch)
    idle = Progress(1, 0, "12:00:02", is_idle=True)
    waited = []
    for come in (
        (),
        (Progress(0, 5, "12:00:01"),),
        (),
        (idle,),
        (Progress(1, 7, "12:00:03"), Progress(2, 11, "12:00:04")),
    ):
        query.recentProgress += come
        follower.follow()
        watch.show()
        waited.append(follower.has_waited)
    assert [23, 3] == [watch.rows, watch.batches]
    assert [False, False, False, True, True] == waited
