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
    """All that is said of looks that end `LOOK_MS` apart, the first one that long after the beginning, at once."""
    lines: list[str] = []
    for now_ms, seen in zip(range(LOOK_MS, (len(looks) + 1) * LOOK_MS, LOOK_MS), looks, strict=True):
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


def test_a_log_that_is_away_is_named_and_so_is_its_return() -> None:
    """The first look that finds it away tells, the next ones do not, and the first that finds it again tells for how long."""
    silence = after_a_batch()
    assert [
        "kafka://k/t is unavailable, and nothing has come from it for 10 s: Kafka did not answer; waiting",
        "kafka://k/t is available again; nothing came from it for 40 s",
    ] == told(silence, AWAY, AWAY, AWAY, THERE)
    assert silence.missed_since_ms is None
    silence.idle(4 * LOOK_MS)
    assert [] == list(silence.seen(4 * LOOK_MS + SILENCE_MS - 1, THERE))
    assert [f"no batch has ended for 70 s: {BUSY}"] == list(silence.seen(4 * LOOK_MS + SILENCE_MS, THERE))


def test_a_batch_is_a_return_too() -> None:
    """What comes from a log says that it is there, whatever the last look found."""
    silence = after_a_batch()
    assert 1 == len(told(silence, AWAY))
    assert 0 == silence.missed_since_ms
    assert ["kafka://k/t is available again; nothing came from it for 11 s"] == list(
        silence.batch(LOOK_MS + 2_000, began_ms=LOOK_MS + 1_000)
    )
    assert silence.missed_since_ms is None


def test_a_batch_that_was_read_before_an_outage_is_no_return() -> None:
    """What a batch worked on may have been read long ago: only one that begins after the look that missed the log says otherwise."""
    silence = after_a_batch()
    assert 1 == len(told(silence, AWAY))
    assert [] == list(silence.batch(LOOK_MS + 2_000, began_ms=LOOK_MS - 1_000))
    assert 0 == silence.missed_since_ms
    assert silence.wants_look(2 * LOOK_MS + 2_000)
    assert [] == list(silence.seen(2 * LOOK_MS + 3_000, AWAY))
    assert ["kafka://k/t is available again; nothing came from it for 31 s"] == list(silence.batch(32_000, began_ms=31_000))


def test_a_batch_that_began_before_a_look_does_not_answer_for_it() -> None:
    """A log may go away while a batch is worked on: a look since then is believed, although the batch ended after it."""
    silence = after_a_batch()
    assert silence.wants_look(LOOK_MS)
    assert [] == list(silence.batch(LOOK_MS + 1_000, began_ms=LOOK_MS - 1_000))
    expected = "kafka://k/t is unavailable, and nothing has come from it for 6 s: Kafka did not answer; waiting"
    assert [expected] == list(silence.seen(LOOK_MS + 5_000, AWAY))


def test_an_outage_is_told_again_now_and_then() -> None:
    """A file of lines does not end with one that is an hour old; nor is it full of the many ways in which a client spells one outage."""
    looks = [Seen(f"timed out after {place} ms") for place in range(1 + REMIND_MS // LOOK_MS)]
    lines = told(after_a_batch(), *looks)
    assert ["10 s: timed out after 0 ms", "70 s: timed out after 6 ms"] == [line.partition(" for ")[2].partition(";")[0] for line in lines]


def test_a_log_that_cannot_be_read_is_not_away() -> None:
    """Where the log is there, and does not let anybody in, waiting may not be enough: its own words are told."""
    expected = "kafka://k/t cannot be read, and nothing has come from it for 10 s: access denied; waiting"
    assert [expected] == told(after_a_batch(), Seen("access denied", is_away=False))


def test_a_look_from_before_a_batch_tells_of_no_outage() -> None:
    """A look takes seconds: what it found is past if a batch has begun since it did."""
    silence = after_a_batch()
    assert silence.wants_look(LOOK_MS)
    assert [] == list(silence.batch(LOOK_MS + 5_000, began_ms=LOOK_MS + 1_000))
    assert [] == list(silence.seen(LOOK_MS + 10_000, AWAY))
    assert silence.missed_since_ms is None


def test_a_look_that_does_not_end_is_told() -> None:
    """One look is under way at a time, and one that hangs says as much as one that fails; until a batch says otherwise."""
    silence = after_a_batch()
    assert silence.wants_look(LOOK_MS)
    assert not silence.wants_look(3 * LOOK_MS)
    assert [] == list(silence.wait(LOOK_MS + SILENCE_MS - 1))
    expected = "kafka://k/t is unavailable, and nothing has come from it for 40 s: it has not answered within 30 s; waiting"
    assert [expected] == list(silence.wait(LOOK_MS + SILENCE_MS))
    assert [] == list(silence.wait(LOOK_MS + SILENCE_MS + 250))
    assert ["kafka://k/t is available again; nothing came from it for 44 s"] == list(silence.batch(45_000, began_ms=44_000))
    assert [] == list(silence.wait(44_000 + SILENCE_MS - 1))
    assert [] == list(silence.seen(50_000, THERE))
    assert silence.wants_look(45_000 + LOOK_MS)


def test_a_silence_of_a_log_that_is_there_is_explained() -> None:
    """Nothing new, a batch that takes long, and the first batch are told apart, each once until a batch ends."""
    assert [WAITED + NOTHING_NEW] == told(after_a_batch(), *[THERE] * 5, is_idle=True)
    assert [WAITED + NOTHING_NEW] == told(Silence("kafka://k/t", 0), *[THERE] * 5, is_idle=True)
    assert [WAITED + FIRST] == told(Silence("kafka://k/t", 0), *[THERE] * 5)
    silence = after_a_batch()
    assert [WAITED + BUSY] == told(silence, *[THERE] * 5)
    assert [] == list(silence.batch(5 * LOOK_MS, began_ms=0))
    assert [] == list(silence.seen(5 * LOOK_MS + SILENCE_MS - 1, THERE))
    assert [WAITED + BUSY] == list(silence.seen(5 * LOOK_MS + SILENCE_MS, THERE))


def test_a_batch_that_takes_long_after_a_quiet_time_is_told() -> None:
    """Where the reason of a silence changes the new one is told, too."""
    silence = after_a_batch()
    assert [WAITED + NOTHING_NEW] == told(silence, *[THERE] * 3, is_idle=True)
    assert [] == list(silence.seen(3 * LOOK_MS + SILENCE_MS - 1, THERE))
    assert [f"no batch has ended for 60 s: {BUSY}"] == list(silence.seen(3 * LOOK_MS + SILENCE_MS, THERE))


def test_a_log_is_looked_at_while_nothing_comes_from_it() -> None:
    """Some seconds after the last batch, and then as often as that; never while batches end."""
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


def test_a_look_at_a_log(tmp_path: Path) -> None:
    """A look says whether a log is there, or why it cannot be read; it makes no log."""
    path = tmp_path / "channel.db"
    assert Seen(f"there is no file {path}") == look(f"sqlite:{path}")
    assert not path.exists()
    with closing(open_log(f"sqlite:{path}")) as log:
        log.append([b"first"], timeout_ms=5_000)
    assert THERE == look(f"sqlite:{path}")
    path.write_bytes(b"no database" * 1_000)
    assert not look(f"sqlite:{path}").is_away


def test_a_watch_looks_and_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a stream is quiet its log is looked at on another thread, and what that finds is printed, drawn and measured by who shows."""
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
    assert ["kafka://k/t is unavailable, and nothing has come from it for 10 s: Kafka did not answer; waiting"] == notes
    assert b"spark_audit_log_missed_seconds 10.0" in generate_latest(metrics.registry)
    now_ms[0] += 1_000
    watch.batch(batch_done(b"{}"))
    watch.show()
    assert "kafka://k/t is available again; nothing came from it for 11 s" in notes
    assert b"spark_audit_log_missed_seconds 0.0" in generate_latest(metrics.registry)
