"""What is said while no batch of a stream ends, and what a look at a log finds."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from channel.open_log import open_log
from spark_jobs import progress
from spark_jobs.options import Screen
from spark_jobs.progress import LookedAt, StreamMetrics, Watch
from spark_jobs.silence import LOOK_MS, REMIND_MS, SILENCE_MS, Seen, Silence, look
from spark_jobs.stream_progress import batch_done

AWAY = Seen(None, "Kafka did not answer")


def told(silence: Silence, *looks: Seen, is_behind: bool = False) -> list[str]:
    """All that is said of looks that end `LOOK_MS` apart, the first one that long after the beginning."""
    return [line for place, seen in enumerate(looks, start=1) for line in silence.seen(place * LOOK_MS, seen, is_behind=is_behind)]


def after_a_batch() -> Silence:
    """A batch has ended at 0."""
    silence = Silence("kafka://k/t", 0)
    assert [] == list(silence.batch(0))
    return silence


def test_a_log_that_is_away_is_named_and_so_is_its_return() -> None:
    """The first look that finds it away tells, the next of the same kind do not, and the first that finds it again tells how long."""
    silence = after_a_batch()
    assert [
        "kafka://k/t has been away for 10 s: Kafka did not answer; waiting for it",
        "kafka://k/t is there again, after 40 s",
    ] == told(silence, AWAY, AWAY, AWAY, Seen(7))
    assert silence.away_ms(5 * LOOK_MS) is None
    assert [] == list(silence.seen(4 * LOOK_MS + SILENCE_MS - 1, Seen(7), is_behind=False))
    assert 1 == len(list(silence.seen(4 * LOOK_MS + SILENCE_MS, Seen(7), is_behind=False)))


def test_a_batch_is_a_return_too() -> None:
    """What comes from a log says that it is there, whatever the last look found."""
    silence = after_a_batch()
    assert 1 == len(told(silence, AWAY))
    assert LOOK_MS + 2_000 == silence.away_ms(LOOK_MS + 2_000)
    assert ["kafka://k/t is there again, after 12 s"] == list(silence.batch(LOOK_MS + 2_000))
    assert silence.away_ms(LOOK_MS + 3_000) is None


def test_an_outage_is_told_again_now_and_then() -> None:
    """A file of lines does not end with one that is an hour old; another problem is told at once."""
    silence = after_a_batch()
    looks = [AWAY] * (1 + REMIND_MS // LOOK_MS)
    assert ["for 10 s", "for 70 s"] == [line.partition(": ")[0][-len("for 10 s") :] for line in told(silence, *looks)]
    lines = list(silence.seen(90_000, Seen(None, "its disk is full"), is_behind=False))
    assert ["kafka://k/t has been away for 90 s: its disk is full; waiting for it"] == lines


def test_a_silence_of_a_log_that_is_there_is_explained_once() -> None:
    """Nothing new, a batch that takes long, and the first batch are told apart, each once until a batch ends."""
    assert ["no batch has ended for 30 s: nothing new is on kafka://k/t; waiting for it"] == told(after_a_batch(), *[Seen(7)] * 5)
    busy = ["no batch has ended for 30 s: kafka://k/t answers, and this machine takes long over what is on it; waiting"]
    assert busy == told(after_a_batch(), *[Seen(7)] * 5, is_behind=True)
    silence = after_a_batch()
    assert busy == told(silence, Seen(7), Seen(8), Seen(9), Seen(9))
    assert [] == list(silence.batch(5 * LOOK_MS))
    assert [] == list(silence.seen(5 * LOOK_MS + SILENCE_MS - 1, Seen(9), is_behind=False))
    assert 1 == len(list(silence.seen(5 * LOOK_MS + SILENCE_MS, Seen(9), is_behind=False)))
    first = ["no batch has ended for 30 s: the first takes the longest, the more so where this machine is busy; waiting"]
    assert first == told(Silence("kafka://k/t", 0), *[Seen(7)] * 5)


def test_a_log_is_looked_at_while_nothing_comes_from_it() -> None:
    """Some seconds after the last batch, and then as often as that; never while batches end."""
    silence = after_a_batch()
    looks = [now_ms for now_ms in range(0, 3 * LOOK_MS + 1, 250) if silence.wants_look(now_ms)]
    assert [LOOK_MS, 2 * LOOK_MS, 3 * LOOK_MS] == looks
    silence = after_a_batch()
    for now_ms in range(0, 10 * LOOK_MS, 1_000):
        assert [] == list(silence.batch(now_ms))
        assert not silence.wants_look(now_ms + 500)


def test_a_look_at_a_log(tmp_path: Path) -> None:
    """A look says where a log ends, or why nobody can say; it makes no log."""
    path = tmp_path / "channel.db"
    assert look(f"sqlite:{path}").end is None
    assert str(path) in look(f"sqlite:{path}").problem
    assert not path.exists()
    with closing(open_log(f"sqlite:{path}")) as log:
        offsets = log.append([b"first"], timeout_ms=5_000)
    assert Seen(offsets[-1]) == look(f"sqlite:{path}")


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
    assert ["kafka://k/t has been away for 10 s: Kafka did not answer; waiting for it"] == notes
    assert b"spark_audit_log_away_seconds 10.0" in generate_latest(metrics.registry)
    watch.batch(batch_done(b"{}"))
    watch.close()
    assert "kafka://k/t is there again, after 10 s" == notes[-1]
    assert b"spark_audit_log_away_seconds 0.0" in generate_latest(metrics.registry)
