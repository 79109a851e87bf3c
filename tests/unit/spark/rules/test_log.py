"""Tests of the rules about the log as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.spark_jobs.rules.log import ADMINS_GENESIS_RACE_MS, GENESIS_RACE_MS, TIME_FELL_MS_MIN
from equipoise.spark_jobs.rules.memory import PERIOD_MS, REPORTED_MAX
from tests.unit.spark.rules.broker_facts import LogStory

GENESIS: dict[str, Any] = {
    "kind": "genesis",
    "key": "genesis",
    "publisher": "b1",
    "cluster": "c",
    "expected_offset": 0,
}

EVENTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "garbage": ({"event": "garbage", "problem": "not JSON"}, ["malformed"]),
    "malformed": ({"event": "malformed", "problem": "no key"}, ["malformed"]),
    "damaged": ({"event": "damaged", "problem": "not JSON"}, ["entry_damaged"]),
    "missing": ({"event": "entries_missing", "from": 3, "to": 5}, ["entries_missing"]),
    "spreads": ({"event": "damage_spreads", "damage": 3}, ["damage_spreads"]),
    "level too new": ({"event": "level_too_new", "problem": "level 3"}, ["folding_stopped"]),
    "went back": ({"event": "log_went_back", "position": 9, "found": 3}, ["folding_stopped"]),
    "closed": ({"event": "log_closed", "problem": "it was copied"}, ["log_closed"]),
    "time fell": ({"event": "time_fell", "by_ms": TIME_FELL_MS_MIN}, ["time_fell"]),
    "time fell a little": ({"event": "time_fell", "by_ms": TIME_FELL_MS_MIN - 1}, []),
    "time leapt": (
        {"event": "time_leapt", "by_ms": 86_400_000, "stands_ms": 86_399_000},
        ["time_leapt"],
    ),
    "lost": ({"event": "records_lost", "from": 3, "to": 9, "restored": True}, ["records_lost"]),
    "unknown": ({"event": "something new"}, []),
}


@pytest.mark.parametrize("name", EVENTS)
def test_each_event_has_its_rule(name: str) -> None:
    after, rules = EVENTS[name]
    story = LogStory()
    story.tell(None, verdict=None, after=after)
    assert rules == story.rules


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"copied_to": "sqlite:new.db"}, "continues at sqlite:new.db"),
        ({}, "that its last record does not name"),
    ],
)
def test_a_closed_log_names_the_log_that_continues_it(said: dict[str, str], told: str) -> None:
    story = LogStory()
    story.tell(
        None, verdict=None, after={"event": "log_closed", "problem": "it was copied", **said}
    )
    assert [True] == [told in finding.text for finding in story.findings]


ADMINS_GENESIS: dict[str, Any] = {**GENESIS, "publisher": "admin:ops"}
RAISED: dict[str, Any] = {"kind": "level", "raises_to": 2, "publisher": "b1"}

GENESES: dict[
    str, tuple[int, dict[str, Any], dict[str, Any], list[tuple[str, tuple[int, ...]]]]
] = {
    "brokers that start together": (0, {**GENESIS, "publisher": "b2"}, {"verdict": "stale"}, []),
    "a broker's late retry": (
        ADMINS_GENESIS_RACE_MS,
        {**GENESIS, "publisher": "b2"},
        {"verdict": "stale"},
        [],
    ),
    "an admin's late command": (
        ADMINS_GENESIS_RACE_MS,
        ADMINS_GENESIS,
        {"verdict": "stale"},
        [("genesis_twice", (1, 2))],
    ),
    "later than any race": (
        GENESIS_RACE_MS,
        GENESIS,
        {"verdict": "stale"},
        [("genesis_twice", (1, 2))],
    ),
    "accepted by the fold": (
        0,
        GENESIS,
        {"context": {"checked_by": "log:", "expected": "stale"}},
        [("genesis_twice", (2,))],
    ),
    "of another cluster": (
        0,
        {**GENESIS, "cluster": "other"},
        {"verdict": "foreign_genesis"},
        [("foreign_genesis", (1, 2))],
    ),
}


@pytest.mark.parametrize("name", GENESES)
def test_a_second_genesis(name: str) -> None:
    """A race between starting brokers explains some."""
    wait_ms, record, fields, found = GENESES[name]
    story = LogStory()
    story.tell(GENESIS)
    story.at_ms += wait_ms
    story.tell(record, **fields)
    assert found == story.found


def test_a_rejected_genesis_after_an_unread_first_one() -> None:
    story = LogStory()
    story.tell(GENESIS, verdict="stale", offset=900)
    assert [("genesis_twice", (900,))] == story.found


LEVELS: tuple[tuple[dict[str, Any], dict[str, Any], list[str]], ...] = (
    (
        {"kind": "broker", "status": "joined", "publisher": "b1", "supported_level": 1},
        {"verdict": "level"},
        [],
    ),
    ({"kind": "bundle", "publisher": "b1", "level": 2}, {"verdict": "level"}, ["above_level"]),
    (RAISED, {"context": {"checked_by": "log:", "expected": "accepted"}}, []),
    (RAISED, {"context": {"checked_by": "log:", "expected": "level"}}, ["level_raised_early"]),
    ({**RAISED, "publisher": "admin:a"}, {"verdict": "level"}, ["level_raised_early"]),
)


@pytest.mark.parametrize(("record", "fields", "rules"), LEVELS)
def test_format_versions(record: dict[str, Any], fields: dict[str, Any], rules: list[str]) -> None:
    story = LogStory()
    story.tell(record, **fields)
    assert rules == story.rules


def test_unreadable_notes_are_reported_at_the_last_record_before_them() -> None:
    story = LogStory()
    for offset in range(900, 900 + REPORTED_MAX + 7):
        story.tell(
            None,
            verdict=None,
            offset=offset,
            source="serving",
            after={"event": "unreadable_note"},
            context={"reached": 3},
        )
    assert [("unreadable_note", (3,))] * REPORTED_MAX == story.found
    assert "at offset 900 of serving" in story.findings[0].text
    story.wait(2 * PERIOD_MS)
    assert "7 more findings like the last ones" in story.findings[-1].text
