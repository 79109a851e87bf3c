"""Tests of the rules about leases: deaths, joining over a live incarnation, and silence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from equipoise.spark_jobs.rules.broker import CLOCK_RATE_ERROR_PERCENT
from equipoise.spark_jobs.rules.membership.members import APPEND_TIME_ERROR_MS
from tests.unit.spark.rules.broker_facts import LEASE_MS, MARGIN_MS, BrokerStory

SHORTEST_MS = (LEASE_MS + MARGIN_MS) * (100 - CLOCK_RATE_ERROR_PERCENT) // 100 - APPEND_TIME_ERROR_MS
TELLING_MS = 10
BY_ANOTHER: dict[str, Any] = {"publisher": "b2", "incarnation": 5, "sequence": 5}


@dataclass(frozen=True, kw_only=True)
class End:
    """How an incarnation ends, how long after it was heard of, and which rules that breaks."""

    status: str
    fields: dict[str, Any]
    after_ms: int
    rules: list[str]


ENDS = {
    "down, after the silence": End(status="down", fields=BY_ANOTHER, after_ms=SHORTEST_MS, rules=[]),
    "down, too early": End(status="down", fields=BY_ANOTHER, after_ms=SHORTEST_MS - 1, rules=["premature_down"]),
    "down, with the nonce": End(status="down", fields={"publisher": "admin:a", "nonce": "nonce-1"}, after_ms=0, rules=[]),
    "joined, after the silence": End(status="joined", fields={"after_silence": True}, after_ms=SHORTEST_MS, rules=[]),
    "joined, too early": End(status="joined", fields={"after_silence": True}, after_ms=SHORTEST_MS - 1, rules=["premature_join"]),
    "joined, in place of itself": End(status="joined", fields={"replaces": "nonce-1", "after_silence": True}, after_ms=0, rules=[]),
    "left": End(status="left", fields={}, after_ms=0, rules=[]),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_an_incarnation_ends(name: str) -> None:
    """A lease is kept, unless a nonce or its owner's word ends it before its time."""
    end = ENDS[name]
    story = BrokerStory().joined()
    heard = story.member("renewed")
    story.at_ms += end.after_ms - TELLING_MS
    offset = story.member(end.status, **end.fields)
    assert [(rule, (heard, offset)) for rule in end.rules] == story.found


def test_a_broker_that_is_dead_already() -> None:
    """A death that was accepted twice has no lease that it could break: what is wrong with it is its verdict."""
    story = BrokerStory().joined()
    story.member("left")
    offset = story.member("down", expected="illegal_transition", **BY_ANOTHER)
    assert [("illegal_step", (offset,))] == story.found


def test_a_lease_that_nobody_saw() -> None:
    """Of a broker whose last renewal stands before the audit's beginning nobody can say whether it was silent."""
    story = BrokerStory().joined()
    story.standing = {**(story.standing or {}), "last_at_ms": None}
    story.member("down", **BY_ANOTHER)
    assert [] == story.findings


@pytest.mark.parametrize("excuse", [{"timeless": True}, {"unseen_ms": 1}])
def test_a_log_whose_clock_was_set_back(excuse: dict[str, Any]) -> None:
    """Time that passed and that the log does not show counts as silence, as far as it is known how long it was."""
    story = BrokerStory().joined()
    story.member("renewed")
    story.at_ms += SHORTEST_MS - 1 - TELLING_MS
    story.excuse = excuse
    story.member("down", **BY_ANOTHER)
    assert [] == story.findings


def test_an_accuser_that_was_away() -> None:
    """Whoever accuses counts from its own return, if that was later than what it last heard."""
    story = BrokerStory().joined()
    story.member("renewed")
    story.at_ms += 10 * SHORTEST_MS
    story.back_ms = story.at_ms - SHORTEST_MS + 2 * TELLING_MS
    offset = story.member("down", **BY_ANOTHER)
    assert [("premature_down", (offset - 1, offset))] == story.found


def test_a_proof_that_was_rejected() -> None:
    """That somebody tried to declare a broker dead with a wrong nonce is told, although the fold did not let it."""
    story = BrokerStory().joined()
    offset = story.member("down", verdict="still_alive", publisher="admin:a", nonce="guessed")
    assert [("false_proof", (offset,))] == story.found


def test_silence_that_nobody_ends() -> None:
    """Brokers that have been silent for too long are told by whoever's record shows it, each under its own name."""
    story = BrokerStory().joined()
    record = {"kind": "broker", "key": "b1", "status": "renewed", "based_on": 1, "publisher": "b1", "incarnation": 1, "sequence": 1}
    offset = story.tell({**record, "digest": 1}, context={"silent": [["b2", 1, story.at_ms - 70_000], ["b3", 1, None]]})
    assert [("silent_too_long", (1, offset))] * 2 == story.found
    assert ["broker:b2", "broker:b3"] == [finding.subject for finding in story.findings]
    assert "70 s ago" in story.findings[0].text
