"""Tests of the rules of bundles: what the transition table allows, and what they find where the
fold does something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest

from equipoise.spark_jobs.rules.bundle import STEPS
from equipoise.spark_jobs.rules.memory import REPORTED_MAX
from equipoise.spark_jobs.rules.serving import GONE_FOR_MS
from tests.unit.spark.rules.bundle_facts import (
    ADMIN,
    BUNDLE,
    LAST,
    LEFT,
    NAMESPACE,
    OTHER,
    OWNER,
    RIGHT,
    SOURCE,
    STATES,
    TOKEN,
    BundleStory,
    entry,
    standing_in,
    transition,
)

PHASES: Final = tuple(STATES)
NEW_TOKEN: Final = 100
"""The offset of the first record of a story."""

CUT: Final = {
    "kind": "split",
    "key": BUNDLE,
    "expected_offset": LAST,
    "publisher": "b11",
    "incarnation": OWNER,
    "sequence": 5,
}
CUT_IN_TWO: Final = {**CUT, "positions": [0x60000000]}
JOIN: Final = {
    "kind": "merge",
    "key": LEFT,
    "right": RIGHT,
    "expected_offset": LAST,
    "expected_offset_right": LAST,
    "publisher": ADMIN,
    "as_of": 9,
}
DEATH: Final = {
    "kind": "broker",
    "status": "down",
    "key": "b11",
    "publisher": "b13",
    "incarnation": OTHER,
    "sequence": 9,
}
RENEWAL: Final = {"kind": "broker", "status": "renewed", "key": "b11", "publisher": "b11"}
CREATED: Final = {
    "kind": "namespace",
    "status": "created",
    "key": NAMESPACE,
    "publisher": ADMIN,
    "as_of": 9,
}
DELETED: Final = {**CREATED, "status": "deleted"}
EVIDENCE: Final = {
    "log": "l",
    "broker": "b11",
    "incarnation": OWNER,
    "bundle": BUNDLE,
    "token": TOKEN,
    "boot": "boot",
    "started_ns": 5_000_000_000,
    "answered_ns": None,
    "lease_deadline_ns": 9_000_000_000,
    "ended": None,
    "by_token": False,
    "at_ms": 1_000_100,
    "at_ns": 5_000_000_000,
}
DEAD: Final = {"checked_by": f"bundle:{BUNDLE}", "expected": "dead_publisher"}


@dataclass(frozen=True, kw_only=True)
class Legal:
    """A step from `before`, written by `by`, and what it makes of the bundle."""

    before: str
    by: int | str
    after: dict[str, Any]


LEGAL: Final = (
    Legal(before="free", by=OTHER, after=entry("assigning", owner=OTHER)),
    Legal(before="free", by=ADMIN, after=entry("assigning", owner=OTHER)),
    Legal(before="assigning", by=OWNER, after=entry("owned", owner=OWNER, token=NEW_TOKEN)),
    Legal(before="assigning", by=OWNER, after=entry("free")),
    Legal(before="assigning", by=OTHER, after=entry("assigning", owner=OTHER)),
    Legal(before="owned", by=ADMIN, after=entry("transferring", owner=OTHER, source=OWNER)),
    Legal(before="transferring", by=OWNER, after=entry("handing_over", owner=OWNER, source=SOURCE)),
    Legal(before="transferring", by=OTHER, after=entry("owned", owner=SOURCE)),
    Legal(before="handing_over", by=SOURCE, after=entry("owned", owner=OWNER, token=NEW_TOKEN)),
    Legal(before="owned", by=OWNER, after=entry("unloading", source=OWNER)),
    Legal(before="unloading", by=SOURCE, after=entry("free")),
    Legal(before="owned", by=OTHER, after=entry("splitting", owner=OWNER)),
    Legal(before="splitting", by=ADMIN, after=entry("owned", owner=OWNER)),
)


@pytest.mark.parametrize(
    "step", LEGAL, ids=lambda step: f"{step.before}-{step.after['phase']}-{step.by}"
)
def test_each_legal_step(step: Legal) -> None:
    """It breaks no rule if it is accepted. If it is rejected, the verdicts differ."""
    record = transition(
        step.after["phase"], by=step.by, owner=step.after["owner"], source=step.after["source"]
    )
    story = (
        BundleStory()
        .begin(step.before)
        .accepted(record, standing_in(step.before), step.after, target="up")
    )
    story.rejected(transition("owned", by=OTHER, owner=OTHER, expected_offset=LAST), "stale")
    assert [] == story.findings
    assert ["verdict_differs"] == BundleStory().begin(step.before).rejected(
        record, "illegal_transition", target="up"
    ).rules


@pytest.mark.parametrize(
    ("before", "after"),
    [(before, after) for before in PHASES for after in PHASES if (before, after) not in STEPS],
)
def test_each_illegal_step(before: str, after: str) -> None:
    """It breaks a rule if it is accepted. If it is rejected, its writer is at fault."""
    state = STATES[after]
    record = transition(after, by=OTHER, owner=state.get("owner"), source=state.get("source"))
    assert ["writes_what_it_may_not"] == BundleStory().begin(before).rejected(
        record, "illegal_transition", target="up"
    ).rules
    story = (
        BundleStory()
        .begin(before)
        .accepted(record, standing_in(before), standing_in(after), target="up")
    )
    assert "illegal_step" in story.rules


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("assigning", "owned"),
        ("assigning", "free"),
        ("transferring", "handing_over"),
        ("handing_over", "owned"),
        ("unloading", "free"),
    ],
)
@pytest.mark.parametrize("by", [OTHER, ADMIN])
def test_a_step_by_the_wrong_party(before: str, after: str, by: int | str) -> None:
    whom = (
        {"owner": OWNER}
        if after == "owned"
        else {"owner": OWNER, "source": SOURCE}
        if after == "handing_over"
        else {}
    )
    record = transition(after, by=by, **whom)
    token = NEW_TOKEN if after == "owned" else TOKEN
    made = entry(after, owner=whom.get("owner"), source=whom.get("source"), token=token)
    story = BundleStory().begin(before).accepted(record, standing_in(before), made)
    assert "wrong_actor" in story.rules
    assert [] == BundleStory().begin(before).rejected(record, "not_the_actor").findings


GIVEN: Final = transition("assigning", by=OTHER, owner=OTHER)
ASSIGNED: Final = entry("assigning", owner=OTHER)
UNLOADED: Final = transition("unloading", by=OTHER, source=OWNER)
UNLOADING: Final = entry("unloading", source=OWNER)
OWNED: Final = entry("owned", owner=OWNER)
NEWLY_OWNED: Final = entry("owned", owner=OWNER, token=NEW_TOKEN)
HANDED_OVER: Final = transition("owned", by=SOURCE, owner=OWNER)
CANCELLED: Final = transition("owned", by=OTHER, owner=SOURCE)
STOLEN: Final = entry("owned", owner=OTHER)


@pytest.mark.parametrize(
    ("phase", "record", "after", "context", "rule"),
    [
        ("free", GIVEN, ASSIGNED, {"target": "dead"}, "unfit_target"),
        ("free", GIVEN, ASSIGNED, {"target": "draining"}, "unfit_target"),
        ("free", GIVEN, ASSIGNED, {"target": "not_serving"}, "unfit_target"),
        ("free", GIVEN, ASSIGNED, {"deleting": True}, "unfit_target"),
        ("owned", {**UNLOADED, "expected_offset": LAST - 1}, UNLOADING, {}, "stale_accepted"),
        ("owned", UNLOADED, UNLOADING, DEAD, "dead_publisher_accepted"),
        ("handing_over", HANDED_OVER, OWNED, {}, "token_not_renewed"),
        (
            "transferring",
            CANCELLED,
            entry("owned", owner=SOURCE, token=TOKEN - 1),
            {},
            "token_fell",
        ),
        (
            "transferring",
            CANCELLED,
            entry("owned", owner=SOURCE, token=TOKEN + 1),
            {},
            "state_differs",
        ),
        pytest.param(
            "owned",
            DEATH,
            {**STOLEN, "token": NEW_TOKEN},
            {"dead": OWNER},
            "state_differs",
            id="a death gives it away",
        ),
        pytest.param(
            "owned",
            RENEWAL,
            entry("free"),
            {},
            "state_differs",
            id="changed by a record about another subject",
        ),
        pytest.param("splitting", CUT_IN_TWO, OWNED, {}, "state_differs", id="a parent stays"),
        pytest.param("owned", DELETED, None, {}, "namespace_deleted_in_use", id="deleted in use"),
        pytest.param(None, CUT, STOLEN, {}, "state_differs", id="a child of another owner"),
        pytest.param(None, CUT, NEWLY_OWNED, {}, "token_fell", id="a child with a new token"),
        pytest.param(
            None, JOIN, STOLEN, {"owner": OWNER}, "state_differs", id="a union of another owner"
        ),
        pytest.param(None, DEATH, entry("free"), {}, "illegal_step", id="made by a death"),
        pytest.param(
            None,
            transition("assigning", by=ADMIN, owner=OWNER),
            ASSIGNED,
            {},
            "illegal_step",
            id="does not exist",
        ),
        pytest.param(
            None, CREATED, entry("free"), {}, "state_differs", id="created with an old token"
        ),
    ],
)
def test_what_must_not_be_accepted(
    phase: str | None,
    record: dict[str, Any],
    after: dict[str, Any] | None,
    context: dict[str, Any],
    rule: str,
) -> None:
    """`phase` is the bundle's before the record; None if there was no bundle."""
    story = BundleStory(LEFT if record is CUT else BUNDLE)
    if phase is None:
        assert [rule] == story.accepted(record, None, after, **context).rules
    else:
        assert [rule] == story.begin(phase).accepted(
            record, standing_in(phase), after, **context
        ).rules


def test_the_folds_state_before_a_record_differs() -> None:
    record = transition("unloading", by=OTHER, source=OTHER)
    assert ["state_differs"] == BundleStory().begin("owned").accepted(
        record, STOLEN, entry("unloading", source=OTHER)
    ).rules


@pytest.mark.parametrize(
    ("phase", "record", "verdict", "context", "rules"),
    [
        ("free", GIVEN, "dead_target", {"target": "dead"}, []),
        ("free", GIVEN, "draining_target", {"target": "draining"}, []),
        ("free", GIVEN, "not_served", {"target": "not_serving"}, []),
        ("free", GIVEN, "namespace_deleting", {"deleting": True}, []),
        (
            "owned",
            transition("transferring", by=OTHER, owner=OWNER, source=OWNER),
            "illegal_transition",
            {"target": "up"},
            [],
        ),
        (
            "owned",
            transition("transferring", by=OTHER, owner=77, source=OWNER),
            "dead_target",
            {"target": "dead"},
            [],
        ),
        (
            "owned",
            transition("transferring", by=OTHER, owner=77, source=OWNER),
            "dead_target",
            {"target": "never"},
            ["writes_what_it_may_not"],
        ),
        ("owned", {**UNLOADED, "expected_offset": LAST - 1}, "stale", {}, []),
        ("owned", UNLOADED, "dead_publisher", DEAD, []),
        ("owned", UNLOADED, "dead_publisher", {**DEAD, "publisher": "never"}, ["baseless"]),
    ],
)
def test_what_must_be_rejected(
    phase: str, record: dict[str, Any], verdict: str, context: dict[str, Any], rules: list[str]
) -> None:
    """A correct rejection breaks a rule only if no correct writer proposes the record."""
    assert rules == BundleStory().begin(phase).rejected(record, verdict, **context).rules


def test_two_servers_at_once() -> None:
    names = {str(OWNER): "b1", str(SOURCE): "b2"}
    record = transition("owned", by=OWNER, owner=OWNER)
    story = (
        BundleStory()
        .begin("handing_over")
        .accepted(record, standing_in("handing_over"), NEWLY_OWNED, names=names)
    )
    assert ["wrong_actor", "intervals_overlap"] == story.rules
    assert f"b1 (incarnation {OWNER}) serves it" in story.findings[1].text
    assert f"but b2 (incarnation {SOURCE}) neither released it" in story.findings[1].text
    assert (LAST, NEW_TOKEN) == story.findings[-1].offsets


def test_a_death_that_leaves_the_bundle() -> None:
    story = BundleStory().begin("owned").accepted(DEATH, None, None, dead=OWNER)
    assert ["death_left_bundle"] == story.rules
    assert f"b11 (incarnation {OWNER}) died" in story.findings[0].text
    assert [] == BundleStory().begin("owned").accepted(DEATH, None, None, dead=OTHER).findings


def test_a_rejected_record_that_changes_the_bundle() -> None:
    story = BundleStory().begin("owned")
    story.tell(
        {**UNLOADED, "expected_offset": LAST - 1},
        verdict="stale",
        before=standing_in("owned"),
        after=UNLOADING,
    )
    assert ["state_differs"] == story.rules


def test_a_gap_invalidates_the_state() -> None:
    story = BundleStory().begin("owned")
    record = transition("owned", by=OTHER, owner=OTHER, expected_offset=70)
    story.accepted(
        record,
        entry("assigning", owner=OTHER, last=70),
        entry("owned", owner=OTHER, token=NEW_TOKEN),
        begun=60,
    )
    assert [] == story.findings


# --- splits, merges and namespaces ---


def test_an_honest_split_merge_creation_and_deletion() -> None:
    owned = standing_in("owned")
    assert (
        []
        == BundleStory()
        .begin("splitting")
        .accepted(CUT_IN_TWO, standing_in("splitting"), None)
        .findings
    )
    assert [] == BundleStory(LEFT).accepted(CUT, None, OWNED).findings
    for half in (LEFT, RIGHT):
        assert (
            [] == BundleStory(half).begin("owned").accepted(JOIN, owned, None, owner=OWNER).findings
        )
    assert [] == BundleStory().accepted(JOIN, None, OWNED, owner=OWNER).findings
    story = BundleStory().accepted(CREATED, None, entry("free", token=NEW_TOKEN))
    assert (
        [] == story.accepted(DELETED, entry("free", last=NEW_TOKEN, token=NEW_TOKEN), None).findings
    )


@pytest.mark.parametrize(
    ("phase", "fields", "rule", "verdict"),
    [
        ("owned", {}, "illegal_step", "illegal_transition"),
        ("splitting", {"incarnation": OTHER}, "wrong_actor", "not_the_actor"),
        ("splitting", {"positions": [0x40000000]}, "hole", "bad_boundary"),
        ("splitting", {"positions": [0x70000000, 0x60000000]}, "hole", "bad_boundary"),
        ("splitting", {"positions": []}, "hole", "bad_boundary"),
        ("splitting", {"expected_offset": LAST - 1}, "stale_accepted", "stale"),
    ],
)
def test_a_wrong_split(phase: str, fields: dict[str, Any], rule: str, verdict: str) -> None:
    record = {**CUT_IN_TWO, **fields}
    assert [rule] == BundleStory().begin(phase).accepted(record, standing_in(phase), None).rules
    of_writer = (
        ["writes_what_it_may_not"] if verdict in ("illegal_transition", "bad_boundary") else []
    )
    assert of_writer == BundleStory().begin(phase).rejected(record, verdict).rules


@pytest.mark.parametrize(
    ("half", "fields", "phase_and_left_owner", "rule", "verdict"),
    [
        (LEFT, {"expected_offset": LAST - 1}, ("owned", OWNER), "stale_accepted", "stale"),
        (RIGHT, {"expected_offset_right": LAST - 1}, ("owned", OWNER), "stale_accepted", "stale"),
        (RIGHT, {}, ("owned", OTHER), "illegal_step", "illegal_transition"),
        (LEFT, {}, ("splitting", OWNER), "illegal_step", "illegal_transition"),
        (LEFT, {"right": "t/n/0x70000000_0x80000000"}, ("owned", OWNER), "hole", "not_adjacent"),
    ],
)
def test_a_wrong_merge(
    half: str,
    fields: dict[str, Any],
    phase_and_left_owner: tuple[str, int],
    rule: str,
    verdict: str,
) -> None:
    """Each half reports what the half alone forbids."""
    phase, owner = phase_and_left_owner
    record = {**JOIN, **fields}
    assert [rule] == BundleStory(half).begin(phase).accepted(
        record, standing_in(phase), None, owner=owner
    ).rules
    assert [] == BundleStory(half).begin(phase).rejected(record, verdict, owner=owner).findings


# --- evidence and memory ---


def test_a_bundle_that_the_membership_calls_overdue() -> None:
    story = BundleStory().begin("handing_over")
    story.tell({"kind": "broker", "status": "renewed"}, context={"overdue": {BUNDLE: LAST - 1}})
    story.tell({"kind": "broker", "status": "renewed"}, context={"overdue": {LEFT: LAST}})
    assert [("stuck_in_flight", (LAST - 1, LAST, NEW_TOKEN))] == story.found


def test_a_deleted_bundle_is_forgotten_after_an_hour() -> None:
    """So is evidence about a bundle that never existed."""
    for story in (
        BundleStory().begin("splitting").accepted(CUT_IN_TWO, standing_in("splitting"), None),
        BundleStory(),
    ):
        story.tell(EVIDENCE, verdict=None, source="serving")
        story.wait(60_000)
        assert not story.audit.is_blank
        story.wait(GONE_FOR_MS)
        assert (True, None) == (story.audit.is_blank, story.audit.memory.due_ms)


def test_a_flood_about_a_bundle_that_never_existed_is_forgotten() -> None:
    story = BundleStory()
    for _ in range(REPORTED_MAX + 7):
        story.rejected(
            transition("unloading", by=OTHER, source=OWNER),
            "dead_publisher",
            **DEAD,
            publisher="never",
        )
    assert REPORTED_MAX == len(story.findings)
    for _ in range(2):
        story.wait(GONE_FOR_MS)
    assert (True, None) == (story.audit.is_blank, story.audit.memory.due_ms)
