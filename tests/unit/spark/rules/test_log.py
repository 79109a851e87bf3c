"""Tests of the rules about the log as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.spark_jobs.rules.log import ADMINS_GENESIS_RACE_MS, GENESIS_RACE_MS, TIME_FELL_MS_MIN
from equipoise.spark_jobs.rules.memory import PERIOD_MS, REPORTED_MAX
from tests.unit.spark.rules.broker_facts import LogStory

GENESIS: dict[str, Any] = {"kind": "genesis", "key": "genesis", "publisher": "b1", "cluster": "c", "based_on": 0}

EVENTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "garbage": ({"event": "garbage", "problem": "not JSON"}, ["malformed"]),
    "malformed": ({"event": "malformed", "problem": "no key"}, ["malformed"]),
    "null": ({"event": "null", "problem": "not JSON"}, ["malformed"]),
    "level too new": ({"event": "level_too_new", "problem": "level 3"}, ["folding_stopped"]),
    "went back": ({"event": "log_went_back", "position": 9, "found": 3}, ["folding_stopped"]),
    "closed": ({"event": "log_closed", "problem": "it was copied"}, ["log_closed"]),
    "time fell": ({"event": "time_fell", "by_ms": TIME_FELL_MS_MIN}, ["time_fell"]),
    "time fell a little": ({"event": "time_fell", "by_ms": TIME_FELL_MS_MIN - 1}, []),
    "time leapt": ({"event": "time_leapt", "by_ms": 86_400_000, "stands_ms": 86_399_000}, ["time_leapt"]),
    "lost": ({"event": "records_lost", "from": 3, "to": 9, "restored": True}, ["records_lost"]),
    "unknown": ({"event": "something new"}, []),
}


@pytest.mark.parametrize("name", EVENTS)
def test_events(name: str) -> None:
    """What happened to the log itself is told by its own rule."""
    after, rules = EVENTS[name]
    story = LogStory()
    story.tell(None, verdict=None, after=after)
    assert rules == story.rules


@pytest.mark.parametrize(
    ("said", "told"), [({"copied_to": "sqlite:new.db"}, "continues at sqlite:new.db"), ({}, "that its last record does not name")]
)
def test_where_a_closed_log_goes_on(said: dict[str, str], told: str) -> None:
    """Who audits a log that was closed is told once which one to audit now."""
    story = LogStory()
    story.tell(None, verdict=None, after={"event": "log_closed", "problem": "it was copied", **said})
    assert [True] == [told in finding.text for finding in story.findings]


def test_brokers_that_start_together() -> None:
    """Several brokers may write a genesis to an empty log: the first counts, and the others are late."""
    story = LogStory()
    story.tell(GENESIS)
    story.tell({**GENESIS, "publisher": "b2"}, verdict="stale")
    assert [] == story.findings


def test_a_genesis_that_was_cut_off() -> None:
    """What a broker wrote as it started may come when it is back at the log; what an admin wrote is told by then."""
    story = LogStory()
    first = story.tell(GENESIS)
    story.at_ms += ADMINS_GENESIS_RACE_MS
    story.tell({**GENESIS, "publisher": "b2"}, verdict="stale")
    assert [] == story.findings
    second = story.tell({**GENESIS, "publisher": "admin:ops"}, verdict="stale")
    assert [("genesis_twice", (first, second))] == story.found


def test_a_genesis_in_the_middle() -> None:
    """A genesis that comes when the log has long begun is told, also where the audit did not see the first one."""
    story = LogStory()
    first = story.tell(GENESIS)
    story.at_ms += GENESIS_RACE_MS
    second = story.tell(GENESIS, verdict="stale")
    assert [("genesis_twice", (first, second))] == story.found
    late = LogStory()
    late.tell(GENESIS, verdict="stale", offset=900)
    assert [("genesis_twice", (900,))] == late.found


def test_a_second_genesis_that_was_accepted() -> None:
    """A log begins once, whatever the fold says."""
    story = LogStory()
    story.tell(GENESIS)
    second = story.tell(GENESIS, context={"checked_by": story.subject, "expected": "stale"})
    assert [("genesis_twice", (second,))] == story.found


def test_another_clusters_genesis() -> None:
    """A broker of another cluster on this log is told with the cluster's name."""
    story = LogStory()
    story.tell(GENESIS)
    story.tell({**GENESIS, "cluster": "other"}, verdict="foreign_genesis")
    assert ["foreign_genesis"] == story.rules
    assert "other" in story.findings[0].text


def test_a_flood_that_nobody_expects() -> None:
    """Records of the log's own on which the two opinions differ are held back, too."""
    story = LogStory()
    for _ in range(REPORTED_MAX + 7):
        story.tell({"kind": "policy", "publisher": "b1"}, verdict="stale", context={"checked_by": story.subject, "expected": "malformed"})
    assert ["verdict_differs"] * REPORTED_MAX == [rule for rule, _ in story.found]


def test_records_above_the_level() -> None:
    """A record that needs a level which is not in force is told; a broker that supports too little is not one."""
    story = LogStory()
    story.tell({"kind": "broker", "status": "joined", "publisher": "b1", "supported_level": 1}, verdict="level")
    assert [] == story.findings
    offset = story.tell({"kind": "bundle", "publisher": "b1", "level": 2}, verdict="level")
    assert [("above_level", (offset,))] == story.found


def test_a_level_raised_too_early() -> None:
    """A level that the second rules would not have raised is told."""
    story = LogStory()
    record = {"kind": "level", "raises_to": 2, "publisher": "b1"}
    story.tell(record, context={"checked_by": story.subject, "expected": "accepted"})
    assert [] == story.findings
    offset = story.tell(record, context={"checked_by": story.subject, "expected": "level"})
    assert [("level_raised_early", (offset,))] == story.found


def test_a_level_that_somebody_tried_to_raise() -> None:
    """A level record that was rejected because a live broker does not support it is told."""
    story = LogStory()
    offset = story.tell({"kind": "level", "raises_to": 2, "publisher": "admin:a"}, verdict="level")
    assert [("level_raised_early", (offset,))] == story.found


def test_a_flood_of_garbage() -> None:
    """Ten are told, and then how many more there were."""
    story = LogStory()
    *_, last = [story.tell(None, verdict=None, after={"event": "garbage", "problem": "not JSON"}) for _ in range(REPORTED_MAX + 7)]
    assert REPORTED_MAX == len(story.findings)
    story.wait(2 * PERIOD_MS)
    assert [("malformed", (last,))] == story.found[REPORTED_MAX:]
    assert "7 more findings like the last ones" in story.findings[-1].text


def test_a_flood_of_notes_that_nobody_can_read() -> None:
    """Notes that are none are told with their own place, at the record after which they came, and held back as other findings."""
    story = LogStory()
    for offset in range(900, 900 + REPORTED_MAX + 7):
        story.tell(None, verdict=None, offset=offset, source="serving", after={"event": "unreadable_note"}, context={"reached": 3})
    assert [("unreadable_note", (3,))] * REPORTED_MAX == story.found
    assert "at offset 900 of serving" in story.findings[0].text
    story.wait(2 * PERIOD_MS)
    assert "7 more findings like the last ones" in story.findings[-1].text
