"""The balancer's schedule: when a round is due, which of its moves may begin, and which bundles rest."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.shedder.plan import Move
from equipoise.shedder.scheduler import Ends, Scheduler

INTERVAL_MS, REST_MS = 5_000, 60_000
START_MS = 1_000

BROKERS = st.sampled_from(["a", "b", "c"])


def moves(*ends: tuple[str, str | None]) -> tuple[Move, ...]:
    """Moves of bundles 0, 1, 2 and so on between these brokers."""
    return tuple(
        Move(bundle=str(number), source=source, destination=destination, reason="test") for number, (source, destination) in enumerate(ends)
    )


def due(scheduler: Scheduler, now_ms: int) -> bool:
    """Whether a round is due, at the interval of these tests."""
    return scheduler.due(now_ms, interval_ms=INTERVAL_MS)


def begun(scheduler: Scheduler, *, others: dict[str, Ends] | None = None, moves_max: int = 64, broker_moves_max: int = 64) -> list[str]:
    """The bundles whose moves may begin now."""
    return [move.bundle for move in scheduler.begin(others or {}, moves_max=moves_max, broker_moves_max=broker_moves_max)]


@pytest.fixture
def scheduler() -> Scheduler:
    """A schedule that has been asked for the first time at `START_MS`."""
    scheduler = Scheduler()
    assert not due(scheduler, START_MS)
    return scheduler


def test_rounds_are_an_interval_apart(scheduler: Scheduler) -> None:
    """The first round comes an interval after the first question, and each further one an interval after the last."""
    due_ms = [now_ms for now_ms in range(START_MS, START_MS + 3 * INTERVAL_MS, 500) if due(scheduler, now_ms)]
    assert [START_MS + INTERVAL_MS, START_MS + 2 * INTERVAL_MS] == due_ms


def test_a_late_question_is_no_cause_for_two_rounds(scheduler: Scheduler) -> None:
    """A broker that was asleep for many intervals begins one round, and the next an interval later."""
    late_ms = START_MS + 7 * INTERVAL_MS
    assert [True, False, True] == [due(scheduler, late_ms), due(scheduler, late_ms + 1), due(scheduler, late_ms + INTERVAL_MS)]


def test_an_interval_that_was_changed_holds_at_once(scheduler: Scheduler) -> None:
    """A shorter interval makes a round due that would have waited."""
    assert [False, True] == [scheduler.due(START_MS + 100, interval_ms=interval_ms) for interval_ms in (200, 100)]


def test_no_round_begins_while_a_move_waits_or_is_in_flight(scheduler: Scheduler) -> None:
    """Until its last move is over a round is not over, and then the next begins at once if it is due."""
    due_ms = START_MS + INTERVAL_MS
    scheduler.planned(moves(("a", "b"), ("a", "b")))
    assert not due(scheduler, due_ms)
    assert ["0"] == begun(scheduler, moves_max=1)
    scheduler.ended("0", due_ms)
    assert not due(scheduler, due_ms)
    assert ["1"] == begun(scheduler, moves_max=1)
    assert not due(scheduler, due_ms)
    scheduler.ended("1", due_ms)
    assert due(scheduler, due_ms)


def test_a_broker_takes_part_in_so_many_moves_and_holds_up_no_others(scheduler: Scheduler) -> None:
    """What comes to a broker and what goes from it count together; a move between others passes one that waits for it."""
    scheduler.planned(moves(("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("a", None)))
    assert ["0", "3"] == begun(scheduler, broker_moves_max=1)
    scheduler.ended("0", 0)
    assert ["4"] == begun(scheduler, broker_moves_max=1)
    scheduler.ended("3", 0)
    assert ["1"] == begun(scheduler, broker_moves_max=1)


def test_what_others_move_counts(scheduler: Scheduler) -> None:
    """A drain, or an operator, takes room from the balancer, at both ends; and what is on the move already is not moved."""
    others: dict[str, Ends] = {"x": ("a", "b"), "1": ("c", None)}
    scheduler.planned(moves(("b", "c"), ("c", "d"), ("d", "e")))
    assert ["2"] == begun(scheduler, others=others, broker_moves_max=1)
    assert [] == begun(scheduler, others=others, moves_max=3)
    assert ["0"] == begun(scheduler, others={"1": ("c", None)}, moves_max=3)


def test_what_has_not_begun_can_be_dropped(scheduler: Scheduler) -> None:
    """The moves that waited are told once, and do not begin; the one in flight goes on."""
    scheduler.planned(moves(("a", "b"), ("a", "b")))
    begun(scheduler, moves_max=1)
    assert ["1"] == [move.bundle for move in scheduler.dropped()]
    assert ((), []) == (scheduler.dropped(), begun(scheduler))
    assert not due(scheduler, START_MS + INTERVAL_MS)


def test_what_others_moved_rests_too(scheduler: Scheduler) -> None:
    """A bundle rests from the latest of its moves on, in whichever order they are heard of, and is forgotten after that."""
    scheduler.moved("x", START_MS)
    scheduler.moved("y", START_MS + 1)
    scheduler.moved("y", START_MS - 1)
    assert ("x", "y") == scheduler.resting(START_MS + REST_MS - 1, rest_ms=REST_MS)
    scheduler.forget(START_MS + REST_MS, rest_ms=REST_MS)
    assert ("y",) == scheduler.resting(START_MS, rest_ms=REST_MS)


@given(
    ends=st.lists(st.tuples(BROKERS, st.none() | BROKERS).filter(lambda ends: ends[0] != ends[1]), max_size=12),
    others=st.dictionaries(st.sampled_from(["x", "y", "0"]), st.tuples(st.none() | BROKERS, st.none() | BROKERS)),
    moves_max=st.integers(1, 6),
    broker_moves_max=st.integers(1, 4),
)
def test_the_bounds_hold_and_everything_begins_in_the_end(
    ends: list[tuple[str, str | None]], others: dict[str, Ends], moves_max: int, broker_moves_max: int
) -> None:
    """Whatever is planned, what is begun never adds up to more than the bounds, and nothing waits for ever."""
    scheduler = Scheduler()
    planned = moves(*ends)
    scheduler.planned(planned)
    done: list[str] = []
    while len(done) < len(planned):
        now = scheduler.begin(others, moves_max=moves_max, broker_moves_max=broker_moves_max)
        busy = Counter(broker for move in now for broker in (move.source, move.destination) if broker is not None)
        busy_before = Counter(broker for pair in others.values() for broker in pair if broker is not None)
        assert not now or len(now) + len(others) <= moves_max
        assert all(count + busy_before[broker] <= broker_moves_max for broker, count in busy.items())
        for move in now:
            scheduler.ended(move.bundle, 0)
        done += [move.bundle for move in now]
        if not now:
            others = {}  # They have ended.
    assert sorted(move.bundle for move in planned) == sorted(done)


def test_a_bundle_rests_after_its_move(scheduler: Scheduler) -> None:
    """A bundle rests from the end of its move until its rest is over, and is told by name."""
    assert () == scheduler.resting(0, rest_ms=REST_MS)
    scheduler.ended("b", 100)
    scheduler.ended("a", 200)
    assert ("a", "b") == scheduler.resting(100 + REST_MS - 1, rest_ms=REST_MS)
    assert ("a",) == scheduler.resting(100 + REST_MS, rest_ms=REST_MS)
    assert () == scheduler.resting(200 + REST_MS, rest_ms=REST_MS)
