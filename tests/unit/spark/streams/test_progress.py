"""Test parsing and printing of Spark's report on a batch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest
from prometheus_client import generate_latest

from equipoise.spark_jobs.streams.batch_report import WINDOW_MS, BatchDone, Rate, batch_done, progress_line, size
from equipoise.spark_jobs.streams.options import Screen
from equipoise.spark_jobs.streams.progress import StreamMetrics, Watch

OF_KAFKA = {
    "batchId": 7,
    "batchDuration": 950,
    "durationMs": {"addBatch": 800, "triggerExecution": 950},
    "stateOperators": [{"numRowsTotal": 12, "memoryUsedBytes": 1_000}, {"numRowsTotal": 30, "memoryUsedBytes": 500}],
    "sources": [
        {
            "numInputRows": 1_900,
            "endOffset": {"log": {"0": 5_000}, "log-serving": {"0": 10}},
            "latestOffset": {"log": {"0": 5_600}, "log-serving": {"0": 10}, "log-decisions": {"0": 3}},
        }
    ],
}


def test_a_batch_is_read_from_the_words_of_spark() -> None:
    """All that is told of a batch is taken from Spark's own JSON, over all sources and operators."""
    expected = BatchDone(
        batch=7,
        rows=1_900,
        took_ms=950,
        behind=603,
        state_rows=42,
        state_bytes=1_500,
    )
    assert expected == batch_done(orjson.dumps(OF_KAFKA))


def test_offsets_spelled_as_text_are_read_too() -> None:
    """A source may spell its offset as a text that holds JSON, as those written in Python do."""
    source = {"numInputRows": 1, "endOffset": '{"log": "7", "loads": 4}', "latestOffset": '{"log": "9", "channel": 15, "loads": 4}'}
    assert 15 == batch_done(orjson.dumps({"sources": [source]})).behind


@pytest.mark.parametrize("newest", [None, "", "no JSON", {}, {"log": None}, '"text"', True])
def test_a_source_that_does_not_tell_where_it_ends(newest: object) -> None:
    """Where a source does not say what it holds, nobody says how far the stream is behind."""
    source = {"numInputRows": 1, "endOffset": {"log": 5}, "latestOffset": newest}
    assert batch_done(orjson.dumps({"sources": [source]})).behind is None


def test_what_is_missing_counts_as_nothing() -> None:
    """A progress without figures, as Spark gives one of an empty batch, is no error."""
    expected = BatchDone(batch=0, rows=0, took_ms=0, behind=0, state_rows=0, state_bytes=0)
    assert expected == batch_done(b"{}")


def test_the_line_that_is_told() -> None:
    """The line says the rate, how far behind, the batch, the state, and the findings where there can be any."""
    done = batch_done(orjson.dumps(OF_KAFKA))
    line = "2,001 rows/s · 603 behind · batch 7 in 0.9 s · state 42 rows, 1.5 KiB"
    assert (line, f"{line} · 1 finding") == (
        progress_line(done, rows_per_second=2_000.6, found=None),
        progress_line(done, rows_per_second=2_000.6, found=1),
    )


def test_the_line_of_a_log_that_is_away() -> None:
    """How far behind a stream is nobody knows while the log does not answer, and the line says that."""
    line = progress_line(batch_done(orjson.dumps(OF_KAFKA)), rows_per_second=0, found=None, missed_ms=45_600)
    assert "0 rows/s · the log does not answer, nothing for 45 s · batch 7 in 0.9 s · state 42 rows, 1.5 KiB" == line


def test_what_is_not_known_is_not_told() -> None:
    """After a restart, until a batch was planned anew, the line says nothing of how far behind it is, and Prometheus keeps what it knew."""
    redone = {**OF_KAFKA, "sources": [{"numInputRows": 5, "endOffset": {"log": {"0": 5_000}}, "latestOffset": None}]}
    line = progress_line(batch_done(orjson.dumps(redone)), rows_per_second=5, found=None)
    assert "5 rows/s · batch 7 in 0.9 s · state 42 rows, 1.5 KiB" == line
    metrics = StreamMetrics("archive")
    watch = Watch("archive", Printed().screen(), metrics=metrics)
    for document in (OF_KAFKA, redone):
        watch.batch(batch_done(orjson.dumps(document)))
    watch.show()
    assert 603.0 == scraped(metrics)["spark_archive_entries_behind"]


@pytest.mark.parametrize(("count", "expected"), [(0, "0 B"), (1_023, "1023 B"), (1_024, "1.0 KiB"), (5 << 30, "5.0 GiB")])
def test_sizes(count: int, expected: str) -> None:
    """Bytes are told in the largest unit that fits."""
    assert expected == size(count)


def test_a_rate_is_that_of_the_last_while() -> None:
    """What came before the window, and the first batch in it, whose beginning is not known, count no more; one that waits slows down."""
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
    """What a job says to people."""

    results: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def screen(self) -> Screen:
        """A screen that nobody looks at."""
        return Screen(result=self.results.append, note=self.notes.append)


def scraped(metrics: StreamMetrics) -> dict[str, float]:
    """Each figure that Prometheus would get, by its name and labels."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_prometheus_is_told_of_batches_findings_and_restarts() -> None:
    """What is served is what batches, findings and restarts came to."""
    metrics, printed = StreamMetrics("audit"), Printed()
    watch = Watch("audit", printed.screen(), metrics=metrics, finds=True)
    watch.batch(batch_done(orjson.dumps(OF_KAFKA)))
    watch.batch(batch_done(orjson.dumps(OF_KAFKA)))
    watch.found("hole", 2)
    watch.restarted()
    watch.show()
    told = scraped(metrics)
    expected = {
        "spark_audit_rows_total": 3_800.0,
        "spark_audit_batches_total": 2.0,
        "spark_audit_entries_behind": 603.0,
        "spark_audit_batch_seconds": 0.95,
        "spark_audit_state_rows": 42.0,
        "spark_audit_state_bytes": 1_500.0,
        "spark_audit_restarts_total": 1.0,
        'spark_audit_findings_total{rule="hole"}': 2.0,
    }
    assert expected == {name: told[name] for name in expected}
    assert (3_800, {"hole": 2}) == (watch.rows, watch.findings)


def test_what_is_said_is_printed_by_whoever_shows() -> None:
    """A line that comes on another thread is printed when the one that prints looks, and in its order."""
    printed = Printed()
    watch = Watch("archive", printed.screen(), metrics=StreamMetrics("archive"))
    watch.say("first")
    watch.remark("aside")
    watch.say("second")
    assert ([], []) == (printed.results, printed.notes)
    watch.close()
    assert (["first", "second"], ["aside"]) == (printed.results, printed.notes)


def test_the_first_batch_has_a_rate() -> None:
    """A rate counts from the beginning of the job, so that its first batch, which may be its only one, does not go for nothing."""
    metrics = StreamMetrics("archive")
    watch = Watch("archive", Printed().screen(), metrics=metrics)
    watch.batch(batch_done(orjson.dumps(OF_KAFKA)))
    watch.show()
    assert scraped(metrics)["spark_archive_rows_per_second"] > 0


def test_every_metric_of_a_job_is_documented() -> None:
    """The page about metrics has a row for each metric of a job, and for none that is not there."""
    metrics = StreamMetrics("JOB")
    metrics.found("hole", 1)
    told = {name.partition("{")[0] for name in scraped(metrics) if not name.partition("{")[0].endswith("_created")}
    page = (Path(__file__).parents[4] / "docs/reference/metrics.md").read_text(encoding="utf-8")
    assert told == set(re.findall(r"^\| `(spark_\w+)`", page, flags=re.MULTILINE))
