"""Tests of the rules about rejected records."""

from __future__ import annotations

from equipoise.spark_jobs.rules.rejections import (
    KINDS_MAX,
    REJECTED_OTHERWISE_MAX,
    WINDOW_MS,
)
from tests.unit.spark.rules.broker_facts import BrokerStory, LogStory


def test_the_removal_of_a_live_broker() -> None:
    """To join while the id looks alive is normal."""
    story = BrokerStory().joined()
    story.own(verdict="still_alive", kind="broker", key="b2", status="joined")
    assert [] == story.findings
    offset = story.own(verdict="still_alive", kind="broker", key="b2", status="removed")
    assert [("writes_what_it_may_not", (offset,))] == story.found


def test_windows_are_counted_apart() -> None:
    story = BrokerStory().joined()
    for _ in range(2):
        story.at_ms += WINDOW_MS - story.at_ms % WINDOW_MS
        for _ in range(REJECTED_OTHERWISE_MAX):
            story.own(verdict="bad_boundary")
    assert [] == story.findings


def test_admins_are_counted_by_name() -> None:
    """Beyond a number of names, all others are counted together."""
    story = LogStory()
    story.at_ms += WINDOW_MS - story.at_ms % WINDOW_MS
    for number in range(KINDS_MAX):
        story.tell({"kind": "policy", "publisher": f"admin:{number}"}, verdict="bad_boundary")
    for number in range(REJECTED_OTHERWISE_MAX):
        story.tell({"kind": "policy", "publisher": f"admin:more-{number}"}, verdict="bad_boundary")
    assert [] == story.findings
    offset = story.tell({"kind": "policy", "publisher": "admin:last"}, verdict="bad_boundary")
    assert [("too_many_rejections", (KINDS_MAX + 1, offset))] == story.found
