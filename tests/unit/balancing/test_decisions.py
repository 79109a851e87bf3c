"""Decisions: what a plan becomes, what a round comes to, and how it is encode."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.decisions import STAYS_MAX, Decision, decision_of
from equipoise.brokers.decision_log.documents import DOCUMENT_BYTES_MAX, decode, encode
from equipoise.shedder.plan import Plan, Stay
from tests.decisions import decisions, idle, move, shed


def test_a_plan_becomes_a_decision() -> None:
    """Moves, figures and counts are those of the plan, and of its stays so many are kept as may be."""
    stays = tuple(Stay(subject=f"{number:03}", reason="it may stay") for number in range(STAYS_MAX + 5))
    plan = Plan(moves=(move(0), move(1)), stays=stays, mean=0.5, deviation=0.4, deviation_after=0.1)
    decided = decision_of(plan, at_ms=7, broker="a", strategy="BalancedShedder", kind="shed")
    assert (stays[:STAYS_MAX], 5) == (decided.stays, decided.stays_left_out)
    assert (plan.moves, {("Success", "Overloaded"): 2}) == (decided.moves, decided.counted)
    assert (0.5, 0.4, 0.1) == (decided.mean, decided.deviation, decided.deviation_after)


def test_a_round_comes_to_one_result() -> None:
    """An idle round to what it was idle for, another one to what it counted most of, and one that says nothing to a skip."""
    assert ("Skip", "CoolDown") == idle(cause="CoolDown").outcome
    counted = {("Failure", "Unknown"): 2, ("Success", "Topics"): 2, ("Success", "Sessions"): 1}
    assert ("Failure", "Unknown") == replace(shed(), counted=counted).outcome
    assert ("Skip", "Unknown") == Decision(at_ms=1, broker="a", kind="split", strategy="x").outcome


def test_a_round_has_one_reason() -> None:
    """That of its being idle, else of its first move, else of its first stay."""
    assert "the load is even" == idle().reason
    assert move(0).reason == shed().reason
    assert "it rests" == replace(shed(moves=0), stays=(Stay(subject="x", reason="it rests"),)).reason
    assert shed(moves=0).reason is None


@given(decisions)
def test_what_is_spelled_is_parsed(decision: Decision) -> None:
    """Any decision comes back as it was."""
    assert decision == decode(encode(decision))


def test_what_is_no_number_is_left_out() -> None:
    """Figures that JSON has no word for are as those that are not known."""
    decision = replace(shed(), mean=math.nan, deviation=math.inf)
    assert replace(shed(), mean=None, deviation=None) == decode(encode(decision))


def test_the_document_bears_what_is_counted_by() -> None:
    """Result, cause and reason stand beside the rest, so that nobody needs to work them out again."""
    document = json.loads(encode(idle()))
    assert ("Skip", "HitCount", "the load is even") == (document["result"], document["cause"], document["reason"])


@given(st.binary(max_size=300) | st.sampled_from([b"{}", b"[]", b"null", encode(shed())[:-1], encode(shed()).replace(b"shed", b"sing")]))
def test_what_is_no_decision_is_none(data: bytes) -> None:
    """Garbage is told from decisions, whatever it is."""
    assert decode(data) is None


def test_what_a_later_version_adds_is_passed_over() -> None:
    """A field that nobody knows here does no harm."""
    document = {**json.loads(encode(shed())), "remark": "from another version"}
    assert shed() == decode(json.dumps(document).encode())


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 4_000))
def test_no_document_is_too_long(moves: int, stays: int, length: int) -> None:
    """What is too long loses the last of its moves and stays, counts them, and keeps the first."""
    decision = replace(
        shed(),
        moves=tuple(replace(move(number), reason="x" * length) for number in range(moves)),
        stays=tuple(Stay(subject=str(number), reason="y" * length) for number in range(stays)),
    )
    data = encode(decision)
    assert len(data) <= DOCUMENT_BYTES_MAX
    found = decode(data)
    assert found is not None
    assert (moves, stays) == (len(found.moves) + found.moves_left_out, len(found.stays) + found.stays_left_out)
    assert (decision.moves[: len(found.moves)], decision.stays[: len(found.stays)]) == (found.moves, found.stays)
