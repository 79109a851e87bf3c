"""Test the messages while no batch of a stream ends, and the check of a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.streams import progress
from equipoise.spark_jobs.streams.options import Screen
from equipoise.spark_jobs.streams.progress import (
    LOOK_MS,
    REMIND_MS,
    SILENCE_MS,
    LookedAt,
    Seen,
    Silence,
    StreamMetrics,
    Watch,
    look,
)

AWAY = Seen("Kafka did not answer")
THERE = Seen()


def quiet(seconds: int) -> str:
    return (
        f"no batch has ended for {seconds} s, although kafka://k/t answers: it has no new entries,"
        " or this machine is slow; waiting"
    )


def told(silence: Silence, *looks: Seen) -> list[str]:
    """Return the messages after checks that end at once, every `LOOK_MS` from the beginning."""
    lines: list[str] = []
    for now_ms, seen in zip(
        range(LOOK_MS, (len(looks) + 1) * LOOK_MS, LOOK_MS), looks, strict=True
    ):
        assert silence.wants_look(now_ms)
        lines += silence.seen(now_ms, seen)
    return lines


Step = Callable[[Silence], Iterable[str]]
"""Returns the messages of one step."""


def looks(*found: Seen) -> Step:
    return lambda silence: told(silence, *found)


def seen(now_ms: int, found: Seen) -> Step:
    return lambda silence: silence.seen(now_ms, found)


def batch(now_ms: int) -> Step:
    def step(silence: Silence) -> Iterable[str]:
        silence.batch(now_ms)
        return ()

    return step


def asks(now_ms: int, *, wanted: bool = True) -> Step:
    """A check is wanted, or not."""
    return lambda silence: () if wanted == silence.wants_look(now_ms) else ("not so",)


def missed(since_ms: int | None) -> Step:
    return lambda silence: () if since_ms == silence.missed_since_ms else ("not so",)


def away(seconds: int, why: str = "Kafka did not answer", what: str = "is unavailable") -> str:
    return f"kafka://k/t {what}, and nothing has come from it for {seconds} s: {why}; waiting"


def back(seconds: int) -> str:
    return f"kafka://k/t is available again; nothing came from it for {seconds} s"


STORIES: dict[str, list[tuple[Step, list[str]]]] = {
    "an outage is reported at its beginning and its end": [
        (looks(AWAY, AWAY, AWAY, THERE), [away(10), back(40)]),
        (missed(None), []),
        (seen(5 * LOOK_MS, THERE), [quiet(50)]),
    ],
    "a batch does not end an outage, because it may have begun before it": [
        (looks(AWAY), [away(10)]),
        (batch(LOOK_MS + 2_000), []),
        (missed(0), []),
        (asks(2 * LOOK_MS - 1, wanted=False), []),
        (asks(2 * LOOK_MS), []),
        (seen(2 * LOOK_MS + 3_000, THERE), [back(23)]),
        (missed(None), []),
    ],
    "a batch that ended after a check began refutes it": [
        (asks(LOOK_MS), []),
        (batch(LOOK_MS + 5_000), []),
        (seen(LOOK_MS + 10_000, AWAY), []),
        (missed(None), []),
    ],
    "an outage is repeated only at intervals, whatever a client's words": [
        (
            looks(*(Seen(f"after {place} ms") for place in range(1 + REMIND_MS // LOOK_MS))),
            [away(10, "after 0 ms"), away(70, "after 6 ms")],
        )
    ],
    "a log that cannot be read is not away": [
        (looks(Seen("denied", is_away=False)), [away(10, "denied", "cannot be read")])
    ],
    "a silence of a log that answers is reported once": [
        (looks(*[THERE] * 5), [quiet(30)]),
        (batch(5 * LOOK_MS), []),
        (seen(5 * LOOK_MS + SILENCE_MS - 1, THERE), []),
        (seen(5 * LOOK_MS + SILENCE_MS, THERE), [quiet(30)]),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_what_is_said_while_no_batch_ends(story: list[tuple[Step, list[str]]]) -> None:
    silence = Silence("kafka://k/t", 0)
    for number, (step, lines) in enumerate(story):
        assert lines == list(step(silence)), number


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
    answers, notes = iter([AWAY]), list[str]()
    monkeypatch.setattr(progress, "_now_ms", lambda: now_ms[0])

    def look() -> Seen:
        looked.set()
        return next(answers, THERE)

    def show_until(count: int) -> None:
        for _ in range(1_000):  # An answer is put into a queue a moment after it was given.
            watch.show()
            if len(notes) == count:
                break
            time.sleep(0.01)
        watch.show()

    metrics = StreamMetrics("audit")
    screen = Screen(result=notes.append, note=notes.append)
    watch = Watch("audit", screen, metrics=metrics, log=LookedAt("kafka://k/t", look))
    watch.show()
    assert (False, []) == (looked.is_set(), notes)
    now_ms[0] = LOOK_MS
    watch.show()
    assert looked.wait(10)
    show_until(1)
    assert [away(10)] == notes
    assert b"equipoise_audit_log_missed_seconds 10.0" in generate_latest(metrics.registry)
    now_ms[0] = 2 * LOOK_MS
    show_until(2)
    assert back(20) == notes[-1]
    assert b"equipoise_audit_log_missed_seconds 0.0" in generate_latest(metrics.registry)
