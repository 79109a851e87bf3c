"""Tests of the rules about a broker's attempts, and of what the audit remembers of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from equipoise.spark_jobs.rules.broker import FORGOTTEN_AFTER_MS
from equipoise.spark_jobs.rules.memory import PERIOD_MS, REPORTED_MAX
from tests.unit.spark.rules.broker_facts import BrokerStory

UP: Final = {"status": "up", "incarnation": 1}
JUDGED: Final = {"checked_by": "broker:b1", "expected": "dead_publisher", "publisher": "never"}
LEFT: Final = {
    "kind": "broker",
    "key": "b1",
    "status": "left",
    "expected_offset": 1,
    "publisher": "b9",
    "incarnation": 77,
    "sequence": 1,
}


def again(story: BrokerStory, **fields: str) -> int:
    """A record with the number of the last one."""
    story.sequence -= 1
    return story.own(**fields)


def anew(story: BrokerStory, **fields: str) -> int:
    """A record with the first number."""
    story.sequence = 0
    return story.own(**fields)


def from_before_the_audit() -> BrokerStory:
    """The audit uses only what it has read of such a broker."""
    story = BrokerStory()
    story.incarnation, story.last, story.offset = 40, 90, 100
    return story


@pytest.mark.parametrize(
    ("story", "tell", "found"),
    [
        pytest.param(
            BrokerStory().joined(),
            lambda story: [
                story.member("renewed", after={**UP, "last": 2}),
                story.own(),
                story.own(verdict="stale"),
                story.member("draining", after={**UP, "status": "draining", "last": 5}),
                story.member("left", after={**UP, "status": "left", "last": 6}),
                story.member("joined", after={"status": "up", "incarnation": 7, "last": 7}),
                story.member("renewed"),
            ],
            [],
            id="an honest broker",
        ),
        pytest.param(
            BrokerStory().joined(),
            lambda story: [
                story.tell(LEFT, verdict="dead_publisher", context=JUDGED)
                for _ in range(REPORTED_MAX + 7)
            ],
            [("baseless", (offset,)) for offset in range(2, REPORTED_MAX + 2)],
            id="records of an unknown incarnation are held back",
        ),
        pytest.param(
            BrokerStory().joined(),
            lambda story: [story.own(reason="a"), again(story, reason="a", verdict="late")],
            [],
            id="a duplicated record",
        ),
        pytest.param(
            BrokerStory().joined(),
            lambda story: [story.own(reason="a"), again(story, reason="b", verdict="late")],
            [("sequence_reused", (2, 3))],
            id="a reused number",
        ),
        pytest.param(
            BrokerStory().joined(),
            lambda story: [
                story.own(reason="a"),
                story.member("left"),
                story.member("joined"),
                anew(story, reason="b"),
            ],
            [],
            id="each incarnation has numbers of its own",
        ),
        pytest.param(
            BrokerStory().joined(),
            lambda story: [
                story.own(sequence=9),
                story.own(sequence=8, verdict="late"),
                story.member("left"),
                story.own(verdict="dead_publisher"),
            ],
            [],
            id="the fold rejects late records, and those of the dead",
        ),
        pytest.param(
            BrokerStory().joined(),
            lambda story: [
                story.member("renewed", expected="not_the_actor"),
                story.member("renewed", expected="accepted", verdict="stale"),
            ],
            [("wrong_actor", (2,)), ("verdict_differs", (3,))],
            id="a difference of verdicts",
        ),
        pytest.param(
            BrokerStory().joined(),
            lambda story: [
                story.member("renewed"),
                story.own(incarnation=2, verdict="dead_publisher"),
            ],
            [("baseless", (3,))],
            id="an incarnation that never existed",
        ),
        pytest.param(
            BrokerStory().joined(),
            lambda story: [
                story.own(),
                *(story.member("renewed") for _ in range(3)),
                story.member("renewed", expected_offset=3, verdict="stale"),
                story.member("renewed", expected_offset=2, verdict="stale"),
            ],
            [("baseless", (2, 7))],
            id="an expected offset where nothing was accepted; a stale one is normal",
        ),
        pytest.param(
            BrokerStory().joined(),
            lambda story: story.member("draining", after={**UP, "incarnation": 7, "last": 2}),
            [("state_differs", (2,))],
            id="a status that the records do not give",
        ),
        pytest.param(
            from_before_the_audit(),
            lambda story: [
                story.member("renewed"),
                story.member("down", publisher="b2", incarnation=50, sequence=9),
            ],
            [],
            id="a broker from before the audit",
        ),
    ],
)
def test_what_a_broker_breaks(
    story: BrokerStory,
    tell: Callable[[BrokerStory], object],
    found: list[tuple[str, tuple[int, ...]]],
) -> None:
    tell(story)
    assert found == story.found


def test_a_reused_number_has_two_causes() -> None:
    story = BrokerStory().joined()
    story.own(reason="a")
    again(story, reason="b", verdict="late")
    assert "one of them is forged, or two processes write in this name" in story.findings[0].text


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
