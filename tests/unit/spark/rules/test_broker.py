"""Tests of the rules about a broker's attempts, and of what the audit remembers of it."""

from __future__ import annotations

from equipoise.spark_jobs.rules.broker import FORGOTTEN_AFTER_MS
from equipoise.spark_jobs.rules.memory import PERIOD_MS, REPORTED_MAX
from tests.unit.spark.rules.broker_facts import BrokerStory


def test_an_honest_broker_breaks_no_rule() -> None:
    story = BrokerStory().joined()
    story.member("renewed", after={"status": "up", "incarnation": 1, "last": 2})
    story.own()
    story.own(verdict="stale")
    story.member("draining", after={"status": "draining", "incarnation": 1, "last": 5})
    story.member("left", after={"status": "left", "incarnation": 1, "last": 6})
    story.member("joined", after={"status": "up", "incarnation": 7, "last": 7})
    story.member("renewed")
    assert [] == story.findings


def test_records_signed_by_an_unknown_incarnation_are_held_back() -> None:
    story = BrokerStory().joined()
    judged = {"checked_by": story.subject, "expected": "dead_publisher", "publisher": "never"}
    record = {
        "kind": "broker",
        "key": "b1",
        "status": "left",
        "expected_offset": 1,
        "publisher": "b9",
        "incarnation": 77,
        "sequence": 1,
    }
    for _ in range(REPORTED_MAX + 7):
        story.tell(record, verdict="dead_publisher", context=judged)
    assert ["baseless"] * REPORTED_MAX == [rule for rule, _ in story.found]


def test_a_duplicated_record_is_no_reused_number() -> None:
    story = BrokerStory().joined()
    story.own(reason="a")
    story.sequence -= 1
    story.own(reason="a", verdict="late")
    assert [] == story.findings


def test_removed_and_invented_brokers_are_forgotten() -> None:
    member, removed, invented = BrokerStory().joined(), BrokerStory().joined(), BrokerStory()
    removed.member("left")
    removed.member("removed", publisher="b2", incarnation=1, sequence=1)
    invented.own(verdict="dead_publisher")
    for story in (member, removed, invented):
        story.wait(FORGOTTEN_AFTER_MS)
    assert ([False, True, True], []) == (
        [each.audit.is_blank for each in (member, removed, invented)],
        removed.findings,
    )


def test_a_reused_number() -> None:
    story = BrokerStory().joined()
    first = story.own(reason="a")
    story.sequence -= 1
    second = story.own(reason="b", verdict="late")
    assert [("sequence_reused", (first, second))] == story.found
    assert "one of them is forged, or two processes write in this name" in story.findings[0].text


def test_incarnations_have_numbers_of_their_own() -> None:
    story = BrokerStory().joined()
    story.own(reason="a")
    story.member("left")
    story.member("joined")
    story.sequence = 0
    story.own(reason="b")
    assert [] == story.findings


def test_late_records_and_those_of_a_dead_incarnation_are_normal() -> None:
    """The fold rejects them."""
    story = BrokerStory().joined()
    story.own(sequence=9)
    story.own(sequence=8, verdict="late")
    story.member("left")
    story.own(verdict="dead_publisher")
    assert [] == story.findings


def test_a_difference_of_verdicts_breaks_its_rule() -> None:
    story = BrokerStory().joined()
    first = story.member("renewed", expected="not_the_actor")
    second = story.member("renewed", expected="accepted", verdict="stale")
    assert [("wrong_actor", (first,)), ("verdict_differs", (second,))] == story.found


def test_an_incarnation_that_never_existed() -> None:
    story = BrokerStory().joined()
    story.member("renewed")
    offset = story.own(incarnation=2, verdict="dead_publisher")
    assert [("baseless", (offset,))] == story.found


def test_an_expected_offset_where_nothing_was_accepted() -> None:
    """A stale one is normal."""
    story = BrokerStory().joined()
    story.own()
    for _ in range(3):
        story.member("renewed")
    story.member("renewed", expected_offset=3, verdict="stale")
    assert [] == story.findings
    offset = story.member("renewed", expected_offset=2, verdict="stale")
    assert [("baseless", (2, offset))] == story.found


def test_an_expected_offset_above_the_records_own() -> None:
    story = BrokerStory().joined()
    offset = story.member("renewed", expected_offset=99, verdict="stale")
    assert [("baseless", (offset,))] == story.found


def test_a_digest_that_differs_is_reported_once_per_period() -> None:
    story = BrokerStory().joined()
    first = story.member(
        "renewed", after={"status": "up", "incarnation": 1, "last": 2, "diverged": True}
    )
    story.member("renewed", after={"status": "up", "incarnation": 1, "last": 2, "diverged": True})
    assert [("digest_differs", (first,))] == story.found
    story.at_ms += PERIOD_MS
    second = story.member(
        "renewed", after={"status": "up", "incarnation": 1, "last": 2, "diverged": True}
    )
    assert [("digest_differs", (first,)), ("digest_differs", (second,))] == story.found
    assert "(1 more findings like this one" in story.findings[-1].text


def test_held_back_findings_are_counted() -> None:
    """Their number is reported with the next finding, or once at the end of the next period."""
    story = BrokerStory().joined()
    *_, last = [story.own(verdict="not_the_actor") for _ in range(REPORTED_MAX + 5)]
    story.wait(PERIOD_MS)
    assert REPORTED_MAX == len(story.findings)
    story.wait(PERIOD_MS)
    assert ("writes_what_it_may_not", (last,)) == story.found[-1]
    assert story.findings[-1].text.startswith("5 more findings")
    story.wait(PERIOD_MS)
    story.own(verdict="not_the_actor")
    assert REPORTED_MAX + 2 == len(story.findings)
    assert "held back" not in story.findings[-1].text


def test_a_status_that_the_records_do_not_give() -> None:
    story = BrokerStory().joined()
    offset = story.member("draining", after={"status": "up", "incarnation": 7, "last": 2})
    assert [("state_differs", (offset,))] == story.found


def test_a_broker_from_before_the_audit() -> None:
    """The audit uses only what it has read of such a broker."""
    story = BrokerStory()
    story.incarnation, story.last = 40, 90
    story.offset = 100
    story.member("renewed")
    story.member("down", publisher="b2", incarnation=50, sequence=9)
    assert [] == story.findings
    assert "down" == story.memory.status


def test_the_folds_state_is_adopted_at_the_first_fact() -> None:
    story = BrokerStory()
    record = {
        "kind": "broker",
        "key": "b1",
        "status": "renewed",
        "expected_offset": 9,
        "publisher": "b1",
        "incarnation": 3,
        "sequence": 5,
    }
    story.tell(record, offset=20, before={"status": "draining", "incarnation": 3, "last": 9})
    standing = story.memory
    assert ["draining", 3, [9, 20]] == [standing.status, standing.incarnation, standing.lasts]


def test_a_gap_invalidates_what_was_known() -> None:
    story = BrokerStory().joined()
    story.own(reason="a")
    story.sequence -= 1
    story.offset = 100
    record = {
        "kind": "bundle",
        "key": "k",
        "expected_offset": 0,
        "publisher": "b1",
        "incarnation": 1,
        "sequence": 1,
        "state": "free",
    }
    story.tell(record, verdict="late", context={"begun": 90})
    assert [] == story.findings
    assert ["unknown", 90] == [story.memory.status, story.memory.begun]
