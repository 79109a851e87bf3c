"""Tests of the rules about rejected records."""

from __future__ import annotations

import pytest

from equipoise.spark_jobs.rules.rejections import KINDS_MAX, NEVER_WRITTEN, REJECTED_MAX, REJECTED_OTHERWISE_MAX, WINDOW_MS
from tests.unit.spark.rules.broker_facts import BrokerStory, LogStory


@pytest.mark.parametrize("reason", NEVER_WRITTEN)
def test_what_nobody_writes_by_a_race(reason: str) -> None:
    """One record that no race explains is a finding."""
    story = BrokerStory().joined()
    offset = story.own(verdict=reason)
    assert [("writes_what_it_may_not", (offset,))] == story.found
    expected = f'the record "bundle free" of b1, about t/n/0x00000000_0xffffffff, was rejected as {reason}: {NEVER_WRITTEN[reason]}'
    assert expected == story.findings[0].text


def test_the_living_are_not_removed() -> None:
    """A broker asks to join while its id looks alive; nobody asks to forget one that lives."""
    story = BrokerStory().joined()
    story.own(verdict="still_alive", kind="broker", key="b2", status="joined")
    assert [] == story.findings
    offset = story.own(verdict="still_alive", kind="broker", key="b2", status="removed")
    assert [("writes_what_it_may_not", (offset,))] == story.found


@pytest.mark.parametrize("reason", ["still_alive", "bad_boundary"])
def test_too_many_of_one_reason(reason: str) -> None:
    """The record with which the bound is passed is told, with the first of its window, and those after it are not."""
    limit = REJECTED_MAX.get(reason, REJECTED_OTHERWISE_MAX)
    story = BrokerStory().joined()
    story.at_ms += WINDOW_MS - story.at_ms % WINDOW_MS
    offsets = [story.own(verdict=reason) for _ in range(limit + 5)]
    assert [("too_many_rejections", (offsets[0], offsets[limit]))] == story.found


def test_as_many_in_a_longer_time() -> None:
    """Rejections that are spread over two windows are within bounds."""
    story = BrokerStory().joined()
    for _ in range(2):
        story.at_ms += WINDOW_MS - story.at_ms % WINDOW_MS
        for _ in range(REJECTED_OTHERWISE_MAX):
            story.own(verdict="bad_boundary")
    assert [] == story.findings


def test_admins_are_counted_by_name() -> None:
    """An admin has no subject of its own: the log's checker counts what is rejected of each, and of endless names together."""
    story = LogStory()
    story.at_ms += WINDOW_MS - story.at_ms % WINDOW_MS
    for number in range(KINDS_MAX):
        story.tell({"kind": "policy", "publisher": f"admin:{number}"}, verdict="bad_boundary")
    for number in range(REJECTED_OTHERWISE_MAX):
        story.tell({"kind": "policy", "publisher": f"admin:more-{number}"}, verdict="bad_boundary")
    assert [] == story.findings
    offset = story.tell({"kind": "policy", "publisher": "admin:last"}, verdict="bad_boundary")
    assert [("too_many_rejections", (KINDS_MAX + 1, offset))] == story.found


def test_an_admin_that_plays_a_broker() -> None:
    """An admin that writes what the table leaves to brokers is told of."""
    story = LogStory()
    offset = story.tell({"kind": "bundle", "publisher": "admin:a"}, verdict="not_the_actor")
    assert [("writes_what_it_may_not", (offset,))] == story.found
