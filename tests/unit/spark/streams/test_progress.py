"""Test how batches are measured and printed, and what is said while none comes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from equipoise.spark_jobs.streams import progress
from equipoise.spark_jobs.streams.options import Screen
from equipoise.spark_jobs.streams.progress import (
    WINDOW_MS,
    BatchDone,
    Rate,
    StreamMetrics,
    Watch,
    progress_line,
)

DONE = BatchDone(batch=7, rows=1_900, took_ms=950, behind=603, state_rows=42, state_bytes=1_500)
LOG = "kafka://k/t"


def test_the_progress_line() -> None:
    line = "2,001 rows/s · 603 behind · batch 7 in 0.9 s · state 42 rows, 1.5 kB"
    assert (line, f"{line} · 1 finding") == (
        progress_line(DONE, rows_per_second=2_000.6, found=None),
        progress_line(DONE, rows_per_second=2_000.6, found=1),
    )
    assert (
        "0 rows/s · the log does not answer, nothing for 45 s · batch 7 in 0.9 s · state 42 rows,"
        " 1.5 kB" == progress_line(DONE, rows_per_second=0, found=None, missed_ms=45_600)
    )


def test_an_unknown_lag_is_left_out() -> None:
    """Prometheus keeps the last known one."""
    redone = replace(DONE, behind=None)
    line = progress_line(redone, rows_per_second=5, found=None)
    assert "5 rows/s · batch 7 in 0.9 s · state 42 rows, 1.5 kB" == line
    metrics = StreamMetrics("archive")
    watch = Watch("archive", Printed().screen(), log=LOG, metrics=metrics)
    for done in (DONE, redone):
        watch.batch(done)
    told = scraped(metrics)
    assert 603.0 == told["equipoise_archive_entries_behind"]
    assert told["equipoise_archive_rows_per_second"] > 0  # The first batch has one: it may be all.


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
    metrics = StreamMetrics("audit")
    watch = Watch("audit", Printed().screen(), log=LOG, metrics=metrics, finds=True)
    watch.batch(DONE)
    watch.batch(DONE)
    watch.found("hole", 2)
    watch.repeated()
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


def test_every_metric_of_a_job_is_documented() -> None:
    metrics = StreamMetrics("JOB", rules=("hole",))
    told = {
        name.partition("{")[0]
        for name in scraped(metrics)
        if not name.partition("{")[0].endswith("_created")
    }
    page = (Path(__file__).parents[4] / "docs/reference/metrics.md").read_text(encoding="utf-8")
    assert told == set(re.findall(r"^\| `(equipoise_JOB_\w+)`", page, flags=re.MULTILINE))


# --- while nothing comes ---


def away(seconds: int, problem: str = "no answer") -> str:
    return f"{LOG} is unavailable, and nothing has come from it for {seconds} s: {problem}; waiting"


def back(seconds: int) -> str:
    return f"{LOG} is available again; nothing came from it for {seconds} s"


def quiet(seconds: int) -> str:
    return (
        f"nothing has come from {LOG} for {seconds} s, although it answers: it has no new entries;"
        " waiting"
    )


STORIES: dict[str, list[tuple[int, str | bool, list[str]]]] = {
    "an outage is reported after a while, now and then, and at its end": [
        (9, "no answer", []),
        (10, "no answer", [away(10)]),
        (69, "another answer", []),
        (70, "another answer", [away(70, "another answer")]),
        (75, True, [back(75)]),
        (84, "no answer", []),
    ],
    "a silence of a log that answers is reported once": [
        (29, False, []),
        (30, False, [quiet(30)]),
        (90, False, []),
        (91, True, []),
        (120, False, []),
        (121, False, [quiet(30)]),
    ],
    "a log may come back without an entry": [
        (40, "gone", [away(40, "gone")]),
        (50, False, [back(50), quiet(50)]),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_what_is_said_while_nothing_comes(
    story: list[tuple[int, str | bool, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step has a time in seconds, and the problem of the log or whether it has entries."""
    now_ms = [0]
    monkeypatch.setattr(progress, "_now_ms", lambda: now_ms[0])
    metrics, printed = StreamMetrics("audit"), Printed()
    watch = Watch("audit", printed.screen(), log=LOG, metrics=metrics)
    for seconds, found, lines in story:
        printed.notes.clear()
        now_ms[0] = 1_000 * seconds
        if isinstance(found, str):
            watch.away(found)
        else:
            watch.answered(is_new=found)
        assert lines == printed.notes, seconds
        if lines and isinstance(found, str):
            assert seconds == scraped(metrics)["equipoise_audit_log_missed_seconds"]
    if not isinstance(found, str):
        assert 0 == scraped(metrics)["equipoise_audit_log_missed_seconds"]
