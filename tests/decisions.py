"""Decisions for tests: examples, and a strategy for hypothesis."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from hypothesis import strategies as st

from equipoise.brokers.balancing.decisions import BrokerOutcome, Decision, Kind
from equipoise.shedder.plan import Cause, Idle, Move, Plan, Predicted, Result, Stay

AT_MS = 1_700_000_000_000


def idle(at_ms: int = AT_MS, *, broker: str = "a", cause: Cause = "HitCount") -> Decision:
    """A round of shedding that moves nothing."""
    return Decision(
        at_ms=at_ms,
        broker=broker,
        kind="shed",
        strategy="TransferShedder",
        plan=Plan(
            stays=(Stay(subject=broker, reason="it is used by 40 %"),),
            idle=Idle(result="Skip", cause=cause, reason="the load is even"),
            mean=0.4,
            deviation=0.01,
            deviation_after=0.01,
        ),
        counted={("Skip", cause): 1},
    )


def shed(at_ms: int = AT_MS, *, broker: str = "a", moves: int = 2) -> Decision:
    """A round that moves bundles of one broker to another."""
    return Decision(
        at_ms=at_ms,
        broker=broker,
        kind="shed",
        strategy="TransferShedder",
        plan=Plan(
            moves=tuple(move(number) for number in range(moves)),
            mean=0.5,
            deviation=0.4,
            deviation_after=0.1,
        ),
        counted={("Success", "Overloaded"): moves},
    )


def outcome(at_ms: int = AT_MS, *, broker: str = "a") -> Decision:
    """The outcome of a round that moved one bundle, and was to move another."""
    predicted = Predicted(source=(1.6, 1.2), destination=(0.4, 0.8), duration_ms=10)
    return Decision(
        at_ms=at_ms,
        broker=broker,
        kind="outcome",
        strategy="BalancedShedder",
        plan=Plan(
            moves=(replace(move(0), predicted=predicted),),
            stays=(Stay(subject="t/n/1", reason="b refused it"),),
        ),
        brokers=(
            BrokerOutcome(broker="a", before=1.6, predicted=1.2, measured=1.25),
            BrokerOutcome(
                broker="b", before=0.4, predicted=0.8, measured=None, reason="t/n/7 moved, too"
            ),
        ),
        durations_ms={"t/n/0": 12},
    )


def with_plan(decision: Decision, **changes: object) -> Decision:
    """The decision with these fields of its plan changed."""
    return replace(decision, plan=replace(decision.plan, **changes))  # type: ignore[arg-type]


def move(number: int) -> Move:
    return Move(
        bundle=f"t/n/{number}",
        source="a",
        destination="b",
        reason=f"a is used by 90 %, b by 10 % ({number})",
    )


_texts = st.text(max_size=20)  # Without surrogates, as everything that is decoded.
_figures = st.none() | st.floats(allow_nan=False, allow_infinity=False)
_shares = st.floats(allow_nan=False, allow_infinity=False)
_predictions = st.builds(
    Predicted,
    source=st.tuples(_shares, _shares),
    destination=st.tuples(_shares, _shares),
    duration_ms=st.none() | st.floats(0, 1e9),
)
_moves = st.builds(
    Move,
    bundle=_texts,
    source=_texts,
    destination=st.none() | _texts,
    reason=_texts,
    cause=st.sampled_from(get_args(Cause)),
    predicted=st.none() | _predictions,
)
_broker_outcomes = st.builds(
    BrokerOutcome,
    broker=_texts,
    before=_shares,
    predicted=_shares,
    measured=st.none() | _shares,
    reason=st.none() | _texts,
)
_stays = st.builds(Stay, subject=_texts, reason=_texts)
_idles = st.builds(
    Idle,
    result=st.sampled_from(get_args(Result)),
    cause=st.sampled_from(get_args(Cause)),
    reason=_texts,
)

decisions = st.builds(
    Decision,
    at_ms=st.integers(0, 2**53),
    broker=_texts,
    kind=st.sampled_from(get_args(Kind)),
    strategy=_texts,
    plan=st.builds(
        Plan,
        moves=st.lists(_moves, max_size=4).map(tuple),
        stays=st.lists(_stays, max_size=4).map(tuple),
        idle=st.none() | _idles,
        mean=_figures,
        deviation=_figures,
        deviation_after=_figures,
    ),
    moves_left_out=st.integers(0, 9),
    stays_left_out=st.integers(0, 9),
    counted=st.dictionaries(st.tuples(_texts, _texts), st.integers(1, 9), max_size=3),
    brokers=st.lists(_broker_outcomes, max_size=3).map(tuple),
    durations_ms=st.dictionaries(_texts, st.integers(0, 2**31), max_size=3),
)
