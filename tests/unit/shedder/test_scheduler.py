"""The balancer's schedule: when a round is due, which of its moves may start, and which bundles
rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.shedder.plan import Move
from equipoise.shedder.scheduler import RETURNS, Ends, Scheduler

INTERVAL_MS, REST_MS = 5_000, 60_000
START_MS = 1_000

BROKERS = st.sampled_from(["a", "b", "c"])


def moves(*ends: tuple[str, str | None]) -> tuple[Move, ...]:
    """Moves of bundles 0, 1, 2, ... between these brokers."""
    return tuple(
        Move(bundle=str(number), source=source, destination=destination, reason="test")
        for number, (source, destination) in enumerate(ends)
    )


def begun(
    scheduler: Scheduler,
    *,
    others: dict[str, Ends] | None = None,
    moves_max: int = 64,
    broker_moves_max: int = 64,
) -> list[str]:
    """The bundles whose moves may start now."""
    return [
        move.bundle
        for move in scheduler.begin(
            others or {}, moves_max=moves_max, broker_moves_max=broker_moves_max
        )
    ]


@pytest.fixture
def scheduler() -> Scheduler:
    """A schedule that was first asked at `START_MS`."""
    scheduler = Scheduler()
    assert not scheduler.due(START_MS, interval_ms=INTERVAL_MS)
    return scheduler


def due(scheduler: Scheduler, *now_ms: int, interval_ms: int = INTERVAL_MS) -> list[int]:
    """At which of these times a round is due."""
    return [each for each in now_ms if scheduler.due(each, interval_ms=interval_ms)]


@pytest.mark.parametrize(
    ("asked_ms", "interval_ms", "due_ms"),
    [
        # The first round is due one interval after the first question.
        (
            range(START_MS, START_MS + 3 * INTERVAL_MS, 500),
            INTERVAL_MS,
            [START_MS + INTERVAL_MS, START_MS + 2 * INTERVAL_MS],
        ),
        # A late question starts one round.
        (
            [START_MS + 36_000, START_MS + 36_001, START_MS + 41_000],
            INTERVAL_MS,
            [START_MS + 36_000, START_MS + 41_000],
        ),
        # A changed interval applies at once.
        ([START_MS + 100], 200, []),
        ([START_MS + 100], 100, [START_MS + 100]),
    ],
)
def test_rounds_are_an_interval_apart(
    scheduler: Scheduler, asked_ms: Sequence[int], interval_ms: int, due_ms: list[int]
) -> None:
    assert due_ms == due(scheduler, *asked_ms, interval_ms=interval_ms)


def test_a_round_for_a_broker_that_joined_is_not_repeated_if_nothing_was_planned(
    scheduler: Scheduler,
) -> None:
    """Balancing is off or paused, or the round failed. The next regular round comes after the
    interval.
    """
    scheduler.joined("b", START_MS)
    scheduler.reported(["b"])
    first, second, regular = START_MS + 1, START_MS + 2, START_MS + 1 + INTERVAL_MS
    assert [first, regular] == due(scheduler, first, second, regular)


def test_the_first_report_of_a_broker_that_joined_starts_a_round(scheduler: Scheduler) -> None:
    """Only its first report does, and only after it joined lately."""
    scheduler.joined("a", START_MS + 100)
    assert (frozenset({"a"}), []) == (
        scheduler.awaited(START_MS + 200),
        due(scheduler, START_MS + 200),
    )
    scheduler.reported(["a", "b"])
    assert frozenset() == scheduler.awaited(START_MS + 300)
    assert due(scheduler, START_MS + 300)
    scheduler.planned(())
    scheduler.reported(["a"])
    assert not due(scheduler, START_MS + 400)
    scheduler.joined("c", START_MS)
    assert frozenset() == scheduler.awaited(START_MS + 10_000)


def test_rounds_follow_each_other_while_a_broker_that_joined_is_filled(
    scheduler: Scheduler,
) -> None:
    """Each waits for the moves of the one before. A round without moves ends it."""
    scheduler.joined("b", START_MS)
    scheduler.reported(["b"])
    assert due(scheduler, START_MS + 1)
    scheduler.planned(moves(("a", "b")))
    begun(scheduler)
    assert not due(scheduler, START_MS + 2)
    scheduler.ended("0", START_MS + 3)
    assert due(scheduler, START_MS + 3)
    scheduler.planned(())
    regular_ms = START_MS + 3 + INTERVAL_MS
    assert [regular_ms] == due(scheduler, START_MS + 4, regular_ms)


def test_rounds_follow_each_other_while_they_fill_a_broker(scheduler: Scheduler) -> None:
    """Whoever it is: its maintenance may have ended."""
    scheduler.planned(moves(("a", "b")), fills=True)
    begun(scheduler)
    scheduler.ended("0", START_MS)
    assert due(scheduler, START_MS + 1)
    scheduler.planned((), fills=True)
    assert not due(scheduler, START_MS + 2)


def test_brokers_that_return_in_a_rolling_restart_take_part_at_its_end(
    scheduler: Scheduler,
) -> None:
    """It ends when none has come or gone for 5 s. Then a round is due at once."""
    scheduler.left(START_MS)
    scheduler.joined("a", START_MS + 1_000)
    scheduler.left(START_MS + 5_999)
    assert {"a": RETURNS} == scheduler.returning(START_MS + 9_000)
    scheduler.joined("b", START_MS + 10_998)
    end_ms = START_MS + 15_998
    assert {"a": RETURNS, "b": RETURNS} == scheduler.returning(end_ms - 1)
    assert due(scheduler, end_ms - 1)
    assert not due(scheduler, end_ms)
    assert {} == scheduler.returning(end_ms)
    assert due(scheduler, end_ms)
    assert not due(scheduler, end_ms + 1)


def test_a_broker_that_replaces_none_takes_part_at_once(scheduler: Scheduler) -> None:
    scheduler.joined("a", START_MS)
    scheduler.left(START_MS)
    scheduler.joined("b", START_MS + 60_000)
    assert {} == scheduler.returning(START_MS + 60_000)


def test_brokers_that_come_and_go_keep_nobody_apart_for_long(scheduler: Scheduler) -> None:
    scheduler.left(START_MS)
    for number in range(62):
        scheduler.joined(str(number), START_MS + number * 1_000)
        scheduler.left(START_MS + number * 1_000)
    assert [str(number) for number in range(2, 62)] == list(scheduler.returning(START_MS + 61_999))


def test_no_round_begins_while_a_move_waits_or_is_in_flight(scheduler: Scheduler) -> None:
    """When the last move has ended, the next round is due at once if its interval is over."""
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


def test_a_busy_broker_delays_only_its_own_moves(scheduler: Scheduler) -> None:
    """Moves to and from a broker count together. A move between other brokers does not wait for
    it.
    """
    scheduler.planned(moves(("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("a", None)))
    assert ["0", "3"] == begun(scheduler, broker_moves_max=1)
    scheduler.ended("0", 0)
    assert ["4"] == begun(scheduler, broker_moves_max=1)
    scheduler.ended("3", 0)
    assert ["1"] == begun(scheduler, broker_moves_max=1)


def test_moves_of_others_count(scheduler: Scheduler) -> None:
    """Moves by a drain or an operator take slots at both ends, and their bundles are not moved
    again.
    """
    others: dict[str, Ends] = {"x": ("a", "b"), "1": ("c", None)}
    scheduler.planned(moves(("b", "c"), ("c", "d"), ("d", "e")))
    assert ["2"] == begun(scheduler, others=others, broker_moves_max=1)
    assert [] == begun(scheduler, others=others, moves_max=3)
    assert ["0"] == begun(scheduler, others={"1": ("c", None)}, moves_max=3)


def test_waiting_moves_can_be_dropped(scheduler: Scheduler) -> None:
    """The waiting moves are returned once and do not start. The one in flight continues."""
    scheduler.planned(moves(("a", "b"), ("a", "b")))
    begun(scheduler, moves_max=1)
    assert ["1"] == [move.bundle for move in scheduler.dropped()]
    assert ((), []) == (scheduler.dropped(), begun(scheduler))
    assert not due(scheduler, START_MS + INTERVAL_MS)


def test_bundles_rest_from_their_last_move(scheduler: Scheduler) -> None:
    """Whoever moved them and in whatever order they ended. After that they are forgotten."""
    scheduler.ended("x", START_MS)
    scheduler.moved("y", START_MS + 1)
    scheduler.moved("y", START_MS - 1)
    over_ms = START_MS + REST_MS
    assert ("x", "y") == scheduler.resting(over_ms - 1, rest_ms=REST_MS)
    scheduler.forget(over_ms, rest_ms=REST_MS)
    assert [("y",), ("y",), ()] == [
        scheduler.resting(now_ms, rest_ms=REST_MS) for now_ms in (START_MS, over_ms, over_ms + 1)
    ]


@given(
    ends=st.lists(
        st.tuples(BROKERS, st.none() | BROKERS).filter(lambda ends: ends[0] != ends[1]), max_size=12
    ),
    others=st.dictionaries(
        st.sampled_from(["x", "y", "0"]), st.tuples(st.none() | BROKERS, st.none() | BROKERS)
    ),
    moves_max=st.integers(1, 6),
    broker_moves_max=st.integers(1, 4),
)
def test_the_bounds_hold_and_every_move_starts_in_the_end(
    ends: list[tuple[str, str | None]],
    others: dict[str, Ends],
    moves_max: int,
    broker_moves_max: int,
) -> None:
    """For any plan, the moves in flight stay within the bounds, and none waits forever."""
    scheduler = Scheduler()
    planned = moves(*ends)
    scheduler.planned(planned)
    done: list[str] = []
    while len(done) < len(planned):
        now = scheduler.begin(others, moves_max=moves_max, broker_moves_max=broker_moves_max)
        busy = Counter(
            broker
            for move in now
            for broker in (move.source, move.destination)
            if broker is not None
        )
        busy_before = Counter(
            broker for pair in others.values() for broker in pair if broker is not None
        )
        assert not now or len(now) + len(others) <= moves_max
        assert all(
            count + busy_before[broker] <= broker_moves_max for broker, count in busy.items()
        )
        for move in now:
            scheduler.ended(move.bundle, 0)
        done += [move.bundle for move in now]
        if not now:
            others = {}  # They have ended.
    assert sorted(move.bundle for move in planned) == sorted(done)
