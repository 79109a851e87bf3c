"""Outcomes of rounds: what is predicted, when it is measured, and what keeps it from being
measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.decisions import (
    ROUNDS_MAX,
    WAIT_MS,
    Decision,
    RoundOutcomes,
    ends_of,
    plausible,
    predicted_loads,
)
from equipoise.channel.core import propose
from equipoise.channel.core.ranges import HASH_MAX, even_boundaries
from equipoise.channel.core.records import AnyRecord
from equipoise.shedder.loads import Load, averaged
from equipoise.shedder.plan import Move, Predicted, Stay
from tests.channels.folding import Channel, channel_with, joined

CAPACITIES = {"a": 100, "b": 100, "c": 200}
END_MS = 1_000_000


def move(
    name: str = "t/n/0",
    *,
    source: tuple[float, float] = (1.6, 1.2),
    destination: tuple[float, float] = (0.4, 0.8),
) -> Move:
    """A move from a to b."""
    return Move(
        bundle=name,
        source="a",
        destination="b",
        reason="why",
        predicted=Predicted(source=source, destination=destination),
    )


class Watched:
    """The outcomes of the leader `a`, and the newest reports."""

    def __init__(self) -> None:
        self.outcomes = RoundOutcomes()
        self.costs = {"a": 100.0, "b": 100.0, "c": 200.0}

    def plan(self, *moves: Move, capacities: Mapping[str, int] = CAPACITIES) -> None:
        self.outcomes.planned(moves, strategy="BalancedShedder", capacities=capacities)

    def end(self, *bundles: str, at_ms: int = END_MS) -> None:
        for bundle in bundles:
            self.outcomes.ended(bundle, at_ms=at_ms, duration_ms=12)

    def measure(self, *, after_ms: int) -> list[Decision]:
        """Let all brokers report so long after the end, and measure."""
        at_ms = END_MS + after_ms
        summaries = [
            averaged(None, Load(broker=broker, at_ms=at_ms, cost=cost))
            for broker, cost in self.costs.items()
        ]
        return list(self.outcomes.measured(plausible(summaries), broker="a", now_ms=at_ms))

    def measure_twice(self) -> list[Decision]:
        """Let all brokers report twice."""
        assert [] == self.measure(after_ms=2_500)
        return self.measure(after_ms=5_000)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_broker_is_measured_by_its_second_report_after_its_last_move(watched: Watched) -> None:
    """Its load is compared with the mean of the brokers that the plan compared."""
    watched.plan(move())
    assert [] == watched.measure(after_ms=-1)
    watched.end("t/n/0")
    assert [] == watched.measure(after_ms=-1) + watched.measure(after_ms=0) + watched.measure(
        after_ms=1
    ) + watched.measure(after_ms=1)
    watched.costs = {"a": 130.0, "b": 70.0, "c": 200.0, "not in the plan": 1e9}
    (outcome,) = watched.measure(after_ms=2_500)
    assert ("outcome", "BalancedShedder", "a", END_MS + 2_500) == (
        outcome.kind,
        outcome.strategy,
        outcome.broker,
        outcome.at_ms,
    )
    assert ((move(),), (), {"t/n/0": 12}) == (
        outcome.plan.moves,
        outcome.plan.stays,
        outcome.durations_ms,
    )
    assert [("a", 1.6, 1.2, 1.3), ("b", 0.4, pytest.approx(0.8), 0.7)] == [
        (each.broker, each.before, pytest.approx(each.predicted), each.measured)
        for each in outcome.brokers
    ]
    assert not watched.outcomes
    assert "a had 160 % of the mean load, 120 % was predicted, 130 % was measured" == outcome.reason


def test_a_later_move_of_the_round_starts_the_wait_again(watched: Watched) -> None:
    watched.plan(move("t/n/0"), move("t/n/1"))
    watched.end("t/n/0", at_ms=END_MS - 10_000)
    assert [] == watched.measure(after_ms=-5_000) + watched.measure(after_ms=-2_500)
    watched.end("t/n/1")
    assert ["t/n/0", "t/n/1"] == [each.bundle for each in watched.measure_twice()[0].plan.moves]


def test_moves_of_one_broker_add_up_and_a_failed_move_changes_nothing(watched: Watched) -> None:
    """The first move was to bring a from 160 % to 140 %; the prediction of the second counts from
    there, whatever came of the first.
    """
    first = move("t/n/0", source=(1.6, 1.4), destination=(0.4, 0.6))
    watched.plan(first, move("t/n/1", source=(1.4, 1.1), destination=(0.6, 0.9)))
    watched.outcomes.ended("t/n/0", at_ms=END_MS, problem="b refused it")
    watched.end("t/n/1")
    (outcome,) = watched.measure_twice()
    assert (["t/n/1"], (Stay(subject="t/n/0", reason="b refused it"),)) == (
        [each.bundle for each in outcome.plan.moves],
        outcome.plan.stays,
    )
    assert [1.6, 1.3, 0.4, 0.7] == pytest.approx(
        [figure for each in outcome.brokers for figure in (each.before, each.predicted)]
    )
    assert ("Success", "Unknown") == outcome.outcome


def test_a_round_whose_moves_all_failed_is_not_awaited(watched: Watched) -> None:
    watched.plan(move())
    watched.outcomes.ended("t/n/0", at_ms=END_MS, problem="b refused it")
    (outcome,) = watched.measure(after_ms=0)
    assert ((), (), "b refused it", ("Failure", "Unknown")) == (
        outcome.plan.moves,
        outcome.brokers,
        outcome.reason,
        outcome.outcome,
    )


@pytest.mark.parametrize("cost", [math.nan, -1.0, math.inf])
def test_the_wait_is_bounded(watched: Watched, cost: float) -> None:
    """An impossible report is none."""
    watched.plan(move())
    watched.end("t/n/0")
    watched.costs["b"] = cost
    assert [] == watched.measure(after_ms=1) + watched.measure(after_ms=WAIT_MS - 1)
    (outcome,) = watched.measure(after_ms=WAIT_MS)
    assert [("a", None), ("b", "it has not reported its load twice since")] == [
        (each.broker, each.reason) for each in outcome.brokers
    ]
    assert "b had 40 % of the mean load, 80 % was predicted, not measured: it has not reported" in (
        outcome.outcome_line("t/n/0") or ""
    )
    assert outcome.outcome_line("t/n/1") is None


def test_a_clock_that_was_set_back_ends_the_wait(watched: Watched) -> None:
    watched.plan(move())
    watched.end("t/n/0")
    assert [] == watched.measure(after_ms=-1)
    (outcome,) = watched.measure(after_ms=-WAIT_MS)
    assert [None, None] == [each.measured for each in outcome.brokers]


def test_the_number_of_rounds_is_bounded(watched: Watched) -> None:
    """The oldest one is over first, also while its moves are open."""
    for number in range(ROUNDS_MAX + 2):
        watched.plan(move(f"t/n/{number}"))
    watched.end("t/n/0")
    assert [["t/n/0"], []] == [
        [each.bundle for each in outcome.plan.moves] for outcome in watched.measure(after_ms=1)
    ]


@pytest.mark.parametrize("leads", [True, False])
def test_what_is_not_awaited(watched: Watched, *, leads: bool) -> None:
    """Moves without predictions, and anything once the broker does not lead any more."""
    watched.plan(replace(move(), predicted=None) if leads else move())
    if not leads:
        watched.outcomes.forget()
    watched.end("t/n/0")
    assert not watched.outcomes


# --- what else happens ---


THE_MOVE = "a a b"
MOVED_BACK, MOVED_THERE = "a b a", "c c b"


def happen(watched: Watched, channel: Channel, points: Mapping[str, int], event: str) -> None:
    """Write what happens: a move (`BUNDLE SOURCE DESTINATION`, a bundle by its first owner), or
    that somebody joins or dies, or a new namespace. `THE_MOVE` is that of the round, and ends.
    """
    point, source, destination = points.get(event[0], 0), event[2], event[-1]
    dead = channel.broker("c")
    others: dict[str, Callable[[], AnyRecord]] = {
        "join": lambda: joined("d", channel.view, instance_id="d"),
        "death": lambda: propose.down(channel.admin(), dead, instance_id=dead.joined.instance_id),
        "namespace": lambda: propose.create_namespace(
            channel.admin(), channel.view, name="t/new", boundaries=(0, HASH_MAX)
        ),
    }
    moving: list[Callable[[], AnyRecord]] = [
        lambda: propose.transfer(
            channel.author(source),
            channel.bundle(point),
            destination=channel.incarnation(destination),
        ),
        lambda: propose.prepared(channel.author(destination), channel.bundle(point)),
        lambda: propose.hand_over(channel.author(source), channel.bundle(point)),
    ]
    records = [others[event]] if event in others else moving
    for make in records:
        verdict = channel.put(make())
        assert verdict.accepted, verdict
        watched.outcomes.changed(verdict.changes, channel.view)
    if event == THE_MOVE:
        watched.end(channel.bundle(points["a"]).name)


@pytest.mark.parametrize(
    ("events", "source", "destination"),
    [
        ([THE_MOVE], None, None),
        ([MOVED_THERE, THE_MOVE], None, "{c} moved, too"),
        ([THE_MOVE, MOVED_THERE], None, "{c} moved, too"),
        ([THE_MOVE, MOVED_BACK], "{a} moved, too", "{a} moved, too"),
        ([THE_MOVE, "join"], "d joined meanwhile", "d joined meanwhile"),
        ([THE_MOVE, "death"], "c left meanwhile", "c left meanwhile"),
        ([THE_MOVE, "namespace"], None, None),
    ],
)
def test_what_else_happens_to_the_brokers_of_a_round_is_named(
    watched: Watched, events: list[str], source: str | None, destination: str | None
) -> None:
    """Brokers that join or leave change the mean. A new namespace disturbs nothing."""
    channel = channel_with("a", "b", "c", bundles=3)
    points = dict(zip("abc", even_boundaries(3), strict=False))
    for broker, point in points.items():
        channel.own(broker, point)
    names = {broker: channel.bundle(point).name for broker, point in points.items()}
    watched.plan(move(names["a"]))
    for event in events:
        happen(watched, channel, points, event)
    (outcome,) = [*watched.measure(after_ms=2_500), *watched.measure(after_ms=5_000)]
    expected = {"a": source, "b": destination}
    assert {name: why and why.format(**names) for name, why in expected.items()} == {
        each.broker: each.reason for each in outcome.brokers
    }


# --- any round ---

_shares = st.floats(0, 10, allow_nan=False)
_plans = st.lists(
    st.builds(
        Move,
        bundle=st.sampled_from("uvwxyz"),
        source=st.sampled_from("abc"),
        destination=st.sampled_from("def"),
        reason=st.just("why"),
        predicted=st.builds(
            Predicted, source=st.tuples(_shares, _shares), destination=st.tuples(_shares, _shares)
        ),
    ),
    max_size=6,
    unique_by=lambda each: each.bundle,
)


@given(_plans, st.sets(st.sampled_from("uvwxyz")), st.data())
def test_every_round_ends_and_only_done_moves_count(
    moves: list[Move], failed: set[str], data: st.DataObject
) -> None:
    """Whatever is reported, each round gives one outcome within the wait, about the ends of the
    moves that were done.
    """
    watched = Watched()
    watched.plan(*moves)
    watched.costs = {
        broker: data.draw(st.floats(allow_nan=True))
        for broker in data.draw(st.sets(st.sampled_from("abcdef")))
    }
    done = [each for each in moves if each.bundle not in failed]
    for each in moves:
        watched.outcomes.ended(
            each.bundle, at_ms=END_MS, problem="refused" if each.bundle in failed else None
        )
    found = [
        *watched.measure(after_ms=1),
        *watched.measure(after_ms=2),
        *watched.measure(after_ms=WAIT_MS),
    ]
    assert (len(found), bool(watched.outcomes)) == (1 if moves else 0, False)
    for outcome in found:
        assert done == list(outcome.plan.moves)
        assert sorted({broker for each in done for broker in ends_of(each)}) == [
            each.broker for each in outcome.brokers
        ]
        assert all((each.measured is None) != (each.reason is None) for each in outcome.brokers)
    assert {each.broker for outcome in found for each in outcome.brokers} == set(
        predicted_loads(moves, done={each.bundle for each in done})
    )
