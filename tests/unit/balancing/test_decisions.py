"""Decisions: how they are made from plans, summarised, encoded and decoded."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.decisions import STAYS_MAX, Decision, decision_of
from equipoise.brokers.decision_log import decode, encode
from equipoise.brokers.side_topics import DOCUMENT_BYTES_MAX
from equipoise.shedder.plan import Plan, Stay
from tests.decisions import decisions, idle, move, shed, with_plan


def test_a_plan_becomes_a_decision() -> None:
    """Moves, figures and counts are those of the plan. A bounded number of stays is kept."""
    stays = tuple(
        Stay(subject=f"{number:03}", reason="it may stay") for number in range(STAYS_MAX + 5)
    )
    plan = Plan(moves=(move(0), move(1)), stays=stays, mean=0.5, deviation=0.4, deviation_after=0.1)
    decided = decision_of(plan, at_ms=7, broker="a", strategy="BalancedShedder", kind="shed")
    assert (stays[:STAYS_MAX], 5) == (decided.plan.stays, decided.stays_left_out)
    assert (plan.moves, {("Success", "Overloaded"): 2}) == (decided.plan.moves, decided.counted)
    assert (0.5, 0.4, 0.1) == (
        decided.plan.mean,
        decided.plan.deviation,
        decided.plan.deviation_after,
    )


def test_a_round_has_one_result_and_cause() -> None:
    """That of an idle round, else the pair counted most, else a skip."""
    assert ("Skip", "CoolDown") == idle(cause="CoolDown").outcome
    counted = {("Failure", "Unknown"): 2, ("Success", "Topics"): 2, ("Success", "Sessions"): 1}
    assert ("Failure", "Unknown") == replace(shed(), counted=counted).outcome
    assert ("Skip", "Unknown") == Decision(at_ms=1, broker="a", kind="split", strategy="x").outcome


def test_a_round_has_one_reason() -> None:
    """Why it was idle, else the reason of its first move, else of its first stay."""
    assert "the load is even" == idle().reason
    assert move(0).reason == shed().reason
    assert (
        "it rests" == with_plan(shed(moves=0), stays=(Stay(subject="x", reason="it rests"),)).reason
    )
    assert shed(moves=0).reason is None


@given(decisions)
def test_a_decision_is_decoded_as_it_was_encoded(decision: Decision) -> None:
    assert decision == decode(encode(decision))


def test_a_figure_that_is_not_finite_is_left_out() -> None:
    """JSON has no NaN and no infinity: they are read as unknown."""
    decision = with_plan(shed(), mean=math.nan, deviation=math.inf)
    assert with_plan(shed(), mean=None, deviation=None) == decode(encode(decision))


def test_the_document_repeats_result_cause_and_reason() -> None:
    document = json.loads(encode(idle()))
    assert ("Skip", "HitCount", "the load is even") == (
        document["result"],
        document["cause"],
        document["reason"],
    )


@given(
    st.binary(max_size=300)
    | st.sampled_from(
        [b"{}", b"[]", b"null", encode(shed())[:-1], encode(shed()).replace(b"shed", b"sing")]
    )
)
def test_garbage_decodes_to_none(data: bytes) -> None:
    assert decode(data) is None


def test_unknown_fields_are_ignored() -> None:
    document = {**json.loads(encode(shed())), "remark": "from another version"}
    assert shed() == decode(json.dumps(document).encode())


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 4_000))
def test_no_document_is_too_long(moves: int, stays: int, length: int) -> None:
    """A long document loses the last of its moves and stays, counts them, and keeps the first."""
    decision = with_plan(
        shed(),
        moves=tuple(replace(move(number), reason="x" * length) for number in range(moves)),
        stays=tuple(Stay(subject=str(number), reason="y" * length) for number in range(stays)),
    )
    data = encode(decision)
    assert len(data) <= DOCUMENT_BYTES_MAX
    found = decode(data)
    assert found is not None
    assert (moves, stays) == (
        len(found.plan.moves) + found.moves_left_out,
        len(found.plan.stays) + found.stays_left_out,
    )
    assert (
        decision.plan.moves[: len(found.plan.moves)],
        decision.plan.stays[: len(found.plan.stays)],
    ) == (
        found.plan.moves,
        found.plan.stays,
    )
