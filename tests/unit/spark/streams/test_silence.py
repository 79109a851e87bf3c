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
    batch_done,
    look,
)

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


Step = Callable[[Silence], Iterable[str]]
"""Returns the messages of one step."""


def looks(*found: Seen, is_idle: bool = False) -> Step:
    return lambda silence: told(silence, *found, is_idle=is_idle)


def seen(now_ms: int, found: Seen) -> Step:
    return lambda silence: silence.seen(now_ms, found)


def batch(now_ms: int, *, began_ms: int) -> Step:
    return lambda silence: silence.batch(now_ms, began_ms=began_ms)


def waits(now_ms: int) -> Step:
    return lambda silence: silence.wait(now_ms)


def idle(now_ms: int) -> Step:
    def step(silence: Silence) -> Iterable[str]:
        silence.idle(now_ms)
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


def after_a_batch() -> Silence:
    """A batch has ended at 0."""
    silence = Silence("kafka://k/t", 0)
    assert [] == list(silence.batch(0, began_ms=0))
    return silence


STORIES: dict[str, list[tuple[Step, list[str]]]] = {
    "an outage is reported at its beginning and its end": [
        (looks(AWAY, AWAY, AWAY, THERE), [away(10), back(40)]),
        (missed(None), []),
        (idle(4 * LOOK_MS), []),
        (seen(4 * LOOK_MS + SILENCE_MS - 1, THERE), []),
        (seen(4 * LOOK_MS + SILENCE_MS, THERE), [f"no batch has ended for 70 s: {BUSY}"]),
    ],
    "a batch ends an outage": [
        (looks(AWAY), [away(10)]),
        (missed(0), []),
        (batch(LOOK_MS + 2_000, began_ms=LOOK_MS + 1_000), [back(11)]),
        (missed(None), []),
    ],
    "a batch that was read before an outage does not end it": [
        (looks(AWAY), [away(10)]),
        (batch(LOOK_MS + 2_000, began_ms=LOOK_MS - 1_000), []),
        (missed(0), []),
        (asks(2 * LOOK_MS + 2_000), []),
        (seen(2 * LOOK_MS + 3_000, AWAY), []),
        (batch(32_000, began_ms=31_000), [back(31)]),
    ],
    "a batch that began before a check does not refute it": [
        (asks(LOOK_MS), []),
        (batch(LOOK_MS + 1_000, began_ms=LOOK_MS - 1_000), []),
        (seen(LOOK_MS + 5_000, AWAY), [away(6)]),
    ],
    "a batch that began after a check refutes it": [
        (asks(LOOK_MS), []),
        (batch(LOOK_MS + 5_000, began_ms=LOOK_MS + 1_000), []),
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
    "a check that takes too long is an outage": [
        (asks(LOOK_MS), []),
        (asks(3 * LOOK_MS, wanted=False), []),
        (waits(LOOK_MS + SILENCE_MS - 1), []),
        (waits(LOOK_MS + SILENCE_MS), [away(40, "it has not answered within 30 s")]),
        (waits(LOOK_MS + SILENCE_MS + 250), []),
        (batch(45_000, began_ms=44_000), [back(44)]),
        (waits(44_000 + SILENCE_MS - 1), []),
        (seen(50_000, THERE), []),
        (asks(45_000 + LOOK_MS), []),
    ],
    "a silence of a log that answers is explained once": [
        (looks(*[THERE] * 5), [WAITED + BUSY]),
        (batch(5 * LOOK_MS, began_ms=0), []),
        (seen(5 * LOOK_MS + SILENCE_MS - 1, THERE), []),
        (seen(5 * LOOK_MS + SILENCE_MS, THERE), [WAITED + BUSY]),
    ],
    "a log without news is idle": [(looks(*[THERE] * 5, is_idle=True), [WAITED + NOTHING_NEW])],
    "a new reason of a silence is reported": [
        (looks(*[THERE] * 3, is_idle=True), [WAITED + NOTHING_NEW]),
        (seen(3 * LOOK_MS + SILENCE_MS - 1, THERE), []),
        (seen(3 * LOOK_MS + SILENCE_MS, THERE), [f"no batch has ended for 60 s: {BUSY}"]),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_what_is_said_while_no_batch_ends(story: list[tuple[Step, list[str]]]) -> None:
    silence = after_a_batch()
    for number, (step, lines) in enumerate(story):
        assert lines == list(step(silence)), number


@pytest.mark.parametrize(("is_idle", "why"), [(True, NOTHING_NEW), (False, FIRST)])
def test_what_is_said_before_the_first_batch(*, is_idle: bool, why: str) -> None:
    assert [WAITED + why] == told(Silence("kafka://k/t", 0), *[THERE] * 5, is_idle=is_idle)


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

    def unavailable() -> Seen:
        looked.set()
        return AWAY

    metrics = StreamMetrics("audit")
    screen = Screen(result=notes.append, note=notes.append)
    watch = Watch("audit", screen, metrics=metrics, log=LookedAt("kafka://k/t", unavailable))
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
    assert [away(10)] == notes
    assert b"equipoise_audit_log_missed_seconds 10.0" in generate_latest(metrics.registry)
    now_ms[0] += 1_000
    watch.batch(batch_done(b"{}"))
    watch.show()
    assert back(11) in notes
    assert b"equipoise_audit_log_missed_seconds 0.0" in generate_latest(metrics.registry)
