"""Tests of the rules about leases: deaths, joining over a live incarnation, and silence."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.spark_jobs.rules.broker import CLOCK_RATE_ERROR_PERCENT
from equipoise.spark_jobs.rules.membership.members import APPEND_TIME_ERROR_MS
from tests.unit.spark.rules.broker_facts import GRACE_MS, LEASE_MS, BrokerStory

SHORTEST_MS = (LEASE_MS + GRACE_MS) * (100 - CLOCK_RATE_ERROR_PERCENT) // 100 - APPEND_TIME_ERROR_MS
TELLING_MS = 10
BY_ANOTHER: dict[str, Any] = {"publisher": "b2", "incarnation": 5, "sequence": 5}


SILENT: dict[str, Any] = {"after_silence": True}


@pytest.mark.parametrize(
    ("status", "fields", "after_ms", "rules"),
    [
        ("down", BY_ANOTHER, SHORTEST_MS, []),
        ("down", BY_ANOTHER, SHORTEST_MS - 1, ["premature_down"]),
        ("down", {"publisher": "admin:a", "instance_id": "instance_id-1"}, 0, []),
        ("joined", SILENT, SHORTEST_MS, []),
        ("joined", SILENT, SHORTEST_MS - 1, ["premature_join"]),
        # In place of itself.
        ("joined", {**SILENT, "replaces": "instance_id-1"}, 0, []),
        ("left", {}, 0, []),
    ],
)
def test_how_an_incarnation_ends(
    status: str, fields: dict[str, Any], after_ms: int, rules: list[str]
) -> None:
    """`after_ms` is the time since it was heard of."""
    story = BrokerStory().joined()
    heard = story.member("renewed")
    story.at_ms += after_ms - TELLING_MS
    offset = story.member(status, **fields)
    assert [(rule, (heard, offset)) for rule in rules] == story.found


@pytest.mark.parametrize(
    ("status", "fields", "rules"),
    [("joined", SILENT, ["premature_join"]), ("down", BY_ANOTHER, [])],
    ids=["an id is taken", "a death is declared"],
)
def test_only_who_gave_no_assurance_waits_for_the_end_of_an_extension(
    status: str, fields: dict[str, Any], rules: list[str]
) -> None:
    story = BrokerStory().joined()
    story.standing = {**(story.standing or {}), "extend_ms": 2 * LEASE_MS}
    story.member("renewed")
    story.at_ms += 2 * SHORTEST_MS - 5 * APPEND_TIME_ERROR_MS
    story.member(status, **fields)
    assert rules == [rule for rule, _ in story.found]


def test_the_death_of_a_dead_broker_breaks_no_lease() -> None:
    story = BrokerStory().joined()
    story.member("left")
    offset = story.member("down", expected="illegal_transition", **BY_ANOTHER)
    assert [("illegal_step", (offset,))] == story.found


def test_a_lease_from_before_the_audit_cannot_be_checked() -> None:
    story = BrokerStory().joined()
    story.standing = {**(story.standing or {}), "last_at_ms": None}
    story.member("down", **BY_ANOTHER)
    assert [] == story.findings


def test_an_accuser_counts_silence_from_its_own_return() -> None:
    story = BrokerStory().joined()
    story.member("renewed")
    story.at_ms += 10 * SHORTEST_MS
    story.back_ms = story.at_ms - SHORTEST_MS + 2 * TELLING_MS
    offset = story.member("down", **BY_ANOTHER)
    assert [("premature_down", (offset - 1, offset))] == story.found


def test_a_rejected_false_proof_is_reported() -> None:
    story = BrokerStory().joined()
    offset = story.member("down", verdict="still_alive", publisher="admin:a", instance_id="guessed")
    assert [("false_proof", (offset,))] == story.found


def test_silent_brokers_are_reported_under_their_own_names() -> None:
    story = BrokerStory().joined()
    record = {
        "kind": "broker",
        "key": "b1",
        "status": "renewed",
        "expected_offset": 1,
        "publisher": "b1",
        "incarnation": 1,
        "sequence": 1,
    }
    offset = story.tell(
        {**record, "digest": 1},
        context={"silent": [["b2", 1, story.at_ms - 70_000], ["b3", 1, None]]},
    )
    assert [("silent_too_long", (1, offset))] * 2 == story.found
    assert ["broker:b2", "broker:b3"] == [finding.subject for finding in story.findings]
    assert "70 s ago" in story.findings[0].text
