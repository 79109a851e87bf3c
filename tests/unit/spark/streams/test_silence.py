"""Test the messages while no batch of a stream ends, and the check of a log."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.streams import progress
from equipoise.spark_jobs.streams.batch_report import batch_done
from equipoise.spark_jobs.streams.options import Screen
from equipoise.spark_jobs.streams.progress import LookedAt, StreamMetrics, Watch
from equipoise.spark_jobs.streams.silence import LOOK_MS, REMIND_MS, SILENCE_MS, Seen, Silence, look

AWAY = Seen("Kafka did not answer")
THERE = Seen()
WAITED = "no batch has ended for 30 s: "
NOTHING_NEW = "kafka://k/t has no new entries; waiting"
BUSY = "kafka://k/t answers, but this machine is slow to process its entries; waiting"
FIRST = "the first batch takes longest, especially on a busy machine; waiting"


def told(silence: Silence, *looks: Seen, is_idle: bool = False) -> list[str]:
    """Return the messages after checks that end at once, every `LOOK_MS` from the beginning."""
    lines: list[str] = []
    for now_ms, seen in zip(
        range(LOOK_MS, (len(looks) + 1) * LOOK_MS, LOOK_MS), looks, strict=True
    ):
        if is_idle:
            silence.idle(now_ms)
        assert silence.wants_look(now_ms)
        lines += silence.seen(now_ms, seen)
    return lines


def after_a_batch() -> Silence:
    """A batch has ended at 0."""
    silence = Silence("kafka://k/t", 0)
    assert [] == list(silence.batch(0, began_ms=0))
    return silence


def test_an_outage_is_reported_at_its_beginning_and_its_end() -> None:
    silence = after_a_batch()
    assert [
        (
            "kafka://k/t is unavailable, and nothing has come from it for 10 s: Kafka did not"
            " answer; waiting"
        ),
        "kafka://k/t is available again; nothing came from it for 40 s",
    ] == told(silence, AWAY, AWAY, AWAY, THERE)
    assert silence.missed_since_ms is None
    silence.idle(4 * LOOK_MS)
    assert [] == list(silence.seen(4 * LOOK_MS + SILENCE_MS - 1, THERE))
    assert [f"no batch has ended for 70 s: {BUSY}"] == list(
        silence.seen(4 * LOOK_MS + SILENCE_MS, THERE)
    )


def test_a_batch_ends_an_outage() -> None:
    silence = after_a_batch()
    assert 1 == len(told(silence, AWAY))
    assert 0 == silence.missed_since_ms
    assert ["kafka://k/t is available again; nothing came from it for 11 s"] == list(
        silence.batch(LOOK_MS + 2_000, began_ms=LOOK_MS + 1_000)
    )
    assert silence.missed_since_ms is None


def test_a_batch_that_was_read_before_an_outage_does_not_end_it() -> None:
    silence = after_a_batch()
    assert 1 == len(told(silence, AWAY))
    assert [] == list(silence.batch(LOOK_MS + 2_000, began_ms=LOOK_MS - 1_000))
    assert 0 == silence.missed_since_ms
    assert silence.wants_look(2 * LOOK_MS + 2_000)
    assert [] == list(silence.seen(2 * LOOK_MS + 3_000, AWAY))
    assert ["kafka://k/t is available again; nothing came from it for 31 s"] == list(
        silence.batch(32_000, began_ms=31_000)
    )


def test_a_batch_that_began_before_a_check_does_not_refute_it() -> None:
    silence = after_a_batch()
    assert silence.wants_look(LOOK_MS)
    assert [] == list(silence.batch(LOOK_MS + 1_000, began_ms=LOOK_MS - 1_000))
    expected = (
        "kafka://k/t is unavailable, and nothing has come from it for 6 s: Kafka did not answer;"
        " waiting"
    )
    assert [expected] == list(silence.seen(LOOK_MS + 5_000, AWAY))


def test_an_outage_is_repeated_only_at_intervals() -> None:
    """A client words one outage in many ways."""
    looks = [Seen(f"timed out after {place} ms") for place in range(1 + REMIND_MS // LOOK_MS)]
    lines = told(after_a_batch(), *looks)
    assert ["10 s: timed out after 0 ms", "70 s: timed out after 6 ms"] == [
        line.partition(" for ")[2].partition(";")[0] for line in lines
    ]


def test_a_log_that_cannot_be_read_is_not_away() -> None:
    expected = (
        "kafka://k/t cannot be read, and nothing has come from it for 10 s: access denied; waiting"
    )
    assert [expected] == told(after_a_batch(), Seen("access denied", is_away=False))


def test_a_batch_that_began_after_a_check_refutes_it() -> None:
    silence = after_a_batch()
    assert silence.wants_look(LOOK_MS)
    assert [] == list(silence.batch(LOOK_MS + 5_000, began_ms=LOOK_MS + 1_000))
    assert [] == list(silence.seen(LOOK_MS + 10_000, AWAY))
    assert silence.missed_since_ms is None


def test_a_check_that_takes_too_long_is_an_outage() -> None:
    silence = after_a_batch()
    assert silence.wants_look(LOOK_MS)
    assert not silence.wants_look(3 * LOOK_MS)
    assert [] == list(silence.wait(LOOK_MS + SILENCE_MS - 1))
    expected = (
        "kafka://k/t is unavailable, and nothing has come from it for 40 s: it has not answered"
        " within 30 s; waiting"
    )
    assert [expected] == list(silence.wait(LOOK_MS + SILENCE_MS))
    assert [] == list(silence.wait(LOOK_MS + SILENCE_MS + 250))
    assert ["kafka://k/t is available again; nothing came from it for 44 s"] == list(
        silence.batch(45_000, began_ms=44_000)
    )
    assert [] == list(silence.wait(44_000 + SILENCE_MS - 1))
    assert [] == list(silence.seen(50_000, THERE))
    assert silence.wants_look(45_000 + LOOK_MS)


def test_a_silence_of_a_log_that_answers_is_explained_once() -> None:
    assert [WAITED + NOTHING_NEW] == told(after_a_batch(), *[THERE] * 5, is_idle=True)
    assert [WAITED + NOTHING_NEW] == told(Silence("kafka://k/t", 0), *[THERE] * 5, is_idle=True)
    assert [WAITED + FIRST] == told(Silence("kafka://k/t", 0), *[THERE] * 5)
    silence = after_a_batch()
    assert [WAITED + BUSY] == told(silence, *[THERE] * 5)
    assert [] == list(silence.batch(5 * LOOK_MS, began_ms=0))
    assert [] == list(silence.seen(5 * LOOK_MS + SILENCE_MS - 1, THERE))
    assert [WAITED + BUSY] == list(silence.seen(5 * LOOK_MS + SILENCE_MS, THERE))


def test_a_new_reason_of_a_silence_is_reported() -> None:
    silence = after_a_batch()
    assert [WAITED + NOTHING_NEW] == told(silence, *[THERE] * 3, is_idle=True)
    assert [] == list(silence.seen(3 * LOOK_MS + SILENCE_MS - 1, THERE))
    assert [f"no batch has ended for 60 s: {BUSY}"] == list(
        silence.seen(3 * LOOK_MS + SILENCE_MS, THERE)
    )


def test_checks_run_only_while_no_batch_ends() -> None:
    silence = after_a_batch()
    looks = []
    for now_ms in range(0, 3 * LOOK_MS + 1, 250):
        if silence.wants_look(now_ms):
            looks.append(now_ms)
            list(silence.seen(now_ms + 100, THERE))
    assert [LOOK_MS, 2 * LOOK_MS, 3 * LOOK_MS] == looks
    silence = after_a_batch()
    for now_ms in range(0, 10 * LOOK_MS, 1_000):
        assert [] == list(silence.batch(now_ms, began_ms=now_ms - 900))
        assert not silence.wants_look(now_ms + 500)


def test_a_check_of_a_log(tmp_path: Path) -> None:
    """It creates no log."""
    path = tmp_path / "channel.db"
    assert Seen(f"there is no file {path}") == look(f"sqlite:{path}")
    assert not path.exists()
    with closing(open_log(f"sqlite:{path}")) as log:
        log.append([b"first"], timeout_ms=5_000)
    assert THERE == look(f"sqlite:{path}")
    path.write_bytes(b"no database" * 1_000)
    assert not look(f"sqlite:{path}").is_away


def test_a_watch_checks_on_another_thread_and_prints_on_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms, looked = [0], threading.Event()
    notes: list[str] = []
    monkeypatch.setattr(progress, "_now_ms", lambda: now_ms[0])

    def away() -> Seen:
        looked.set()
        return AWAY

    metrics = StreamMetrics("audit")
    screen = Screen(result=notes.append, note=notes.append)
    watch = Watch("audit", screen, metrics=metrics, log=LookedAt("kafka://k/t", away))
    watch.show()
    assert (False, []) == (looked.is_set(), notes)
    now_ms[0] = LOOK_MS
    watch.show()
    assert looked.wait(10)
    for _ in range(1_000):  # The answer is put into a queue a moment after it was given.
        watch.show()
        if notes:
            break
        time.sleep(0.01)
    watch.show()
    assert [
        (
            "kafka://k/t is unavailable, and nothing has come from it for 10 s: Kafka did not"
            " answer; waiting"
        )
    ] == notes
    assert b"spark_audit_log_missed_seconds 10.0" in generate_latest(metrics.registry)
    now_ms[0] += 1_000
    watch.batch(batch_done(b"{}"))
    watch.show()
    assert "kafka://k/t is available again; nothing came from it for 11 s" in notes
    assert b"spark_audit_log_missed_seconds 0.0" in generate_latest(metrics.registry)
