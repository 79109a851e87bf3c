"""The balancer's schedule: when a round is due, and which bundles rest.

May live here: examples of `shedder.scheduler`.
"""

from __future__ import annotations

import pytest

from shedder.scheduler import IN_FLIGHT_MS_MAX, Scheduler

INTERVAL_MS, COOL_DOWN_MS = 5_000, 60_000
START_MS = 1_000


@pytest.fixture
def scheduler() -> Scheduler:
    """A schedule that has been asked for the first time at `START_MS`."""
    scheduler = Scheduler(interval_ms=INTERVAL_MS, cool_down_ms=COOL_DOWN_MS)
    assert not scheduler.due(START_MS)
    return scheduler


def test_rounds_are_an_interval_apart(scheduler: Scheduler) -> None:
    """The first round comes an interval after the first question, and each further one an interval after the last."""
    due_ms = [now_ms for now_ms in range(START_MS, START_MS + 3 * INTERVAL_MS, 500) if scheduler.due(now_ms)]
    assert [START_MS + INTERVAL_MS, START_MS + 2 * INTERVAL_MS] == due_ms


def test_a_late_question_is_no_cause_for_two_rounds(scheduler: Scheduler) -> None:
    """A broker that was asleep for many intervals begins one round, and the next an interval later."""
    late_ms = START_MS + 7 * INTERVAL_MS
    assert [True, False, True] == [scheduler.due(late_ms), scheduler.due(late_ms + 1), scheduler.due(late_ms + INTERVAL_MS)]


def test_no_round_begins_while_a_move_is_in_flight(scheduler: Scheduler) -> None:
    """Until its last move is over a round is not over, and then the next begins at once if it is due."""
    due_ms = START_MS + INTERVAL_MS
    scheduler.began("a", due_ms)
    scheduler.began("b", due_ms)
    scheduler.ended("a", due_ms)
    assert not scheduler.due(due_ms)
    scheduler.ended("b", due_ms)
    assert scheduler.due(due_ms)


def test_a_move_that_never_ends_does_not_stop_the_rounds(scheduler: Scheduler) -> None:
    """A move whose end is never told is given up after a bounded time."""
    scheduler.began("a", START_MS)
    assert not scheduler.due(START_MS + IN_FLIGHT_MS_MAX - 1)
    assert scheduler.due(START_MS + IN_FLIGHT_MS_MAX)


def test_a_bundle_rests_after_its_move(scheduler: Scheduler) -> None:
    """A bundle rests from the end of its move until the cool-down is over, and is told by name."""
    scheduler.began("b", 0)
    assert () == scheduler.resting(0)
    scheduler.ended("b", 100)
    scheduler.ended("a", 200)
    assert ("a", "b") == scheduler.resting(100 + COOL_DOWN_MS - 1)
    assert ("a",) == scheduler.resting(100 + COOL_DOWN_MS)
    assert () == scheduler.resting(200 + COOL_DOWN_MS)
