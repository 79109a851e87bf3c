"""Tests of the checker of bundles: what each step of the second table allows, and what it finds where the fold goes another way.

May live here: stories of one bundle, by what `bundle_facts` spells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest

from equipoise.spark_jobs.rules.bundle import BundleMemory
from equipoise.spark_jobs.rules.memory import PERIOD_MS, REPORTED_MAX
from equipoise.spark_jobs.rules.serving import GONE_FOR_MS
from equipoise.spark_jobs.rules.transitions import DEATHS, STEPS
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


def record_of(step: Legal) -> dict[str, Any]:
    """The record of a legal step."""
    return transition(step.after["phase"], by=step.by, owner=step.after["owner"], source=step.after["source"])


@pytest.mark.parametrize("step", LEGAL, ids=lambda step: f"{step.before}-{step.after['phase']}-{step.by}")
def test_each_legal_step_is_quiet(step: Legal) -> None:
    """Nothing is said of a step that the table has, and the next record is judged by the state after it."""
    story = BundleStory().begin(step.before).accepted(record_of(step), standing_in(step.before), step.after, target="up")
    assert [] == story.findings
    story.rejected(transition("owned", by=OTHER, owner=OTHER, based_on=LAST), "stale")
    assert [] == story.findings


@pytest.mark.parametrize("step", LEGAL, ids=lambda step: f"{step.before}-{step.after['phase']}-{step.by}")
def test_each_legal_step_must_be_accepted(step: Legal) -> None:
    """A legal record that the fold rejected is a difference of verdicts."""
    story = BundleStory().begin(step.before).rejected(record_of(step), "illegal_transition", target="up")
    assert ["verdict_differs"] == story.rules


@pytest.mark.parametrize(("before", "after"), [(before, after) for before in PHASES for after in PHASES if (before, after) not in STEPS])
def test_each_step_that_the_table_lacks(before: str, after: str) -> None:
    """What the fold accepted although there is no such row is an illegal step; rejected it tells of who wrote it."""
    state = STATES[after]
    record = transition(after, by=OTHER, owner=state.get("owner"), source=state.get("source"))
    assert ["writes_what_it_may_not"] == BundleStory().begin(before).rejected(record, "illegal_transition", target="up").rules
    story = BundleStory().begin(before).accepted(record, standing_in(before), standing_in(after), target="up")
    assert "illegal_step" in story.rules


@pytest.mark.parametrize(
    ("before", "after"),
    [("assigning", "owned"), ("assigning", "free"), ("transferring", "handing_over"), ("handing_over", "owned"), ("unloading", "free")],
)
@pytest.mark.parametrize("by", [OTHER, ADMIN])
def test_a_step_that_is_not_theirs(before: str, after: str, by: int | str) -> None:
    """A stranger or an admin that takes a step of the owner or the source is found, if the fold lets it pass."""
    whom = {"owner": OWNER} if after == "owned" else {"owner": OWNER, "source": SOURCE} if after == "handing_over" else {}
    record = transition(after, by=by, **whom)
    token = NEW_TOKEN if after == "owned" else TOKEN
    made = entry(after, owner=whom.get("owner"), source=whom.get("source"), token=token)
    story = BundleStory().begin(before).accepted(record, standing_in(before), made)
    assert "wrong_actor" in story.rules
    assert [] == BundleStory().begin(before).rejected(record, "not_the_actor").findings


@pytest.mark.parametrize(
    ("context", "verdict"),
    [({"target": "dead"}, "dead_target"), ({"target": "draining"}, "draining_target"), ({"deleting": True}, "namespace_deleting")],
)
def test_a_target_that_must_not_have_it(context: dict[str, Any], verdict: str) -> None:
    """A bundle given to a broker that cannot have it is found, if the fold lets it pass; rejected for that reason it is quiet."""
    record = transition("assigning", by=OTHER, owner=OTHER)
    story = BundleStory().begin("free").accepted(record, standing_in("free"), entry("assigning", owner=OTHER), **context)
    assert ["unfit_target"] == story.rules
    assert [] == BundleStory().begin("free").rejected(record, verdict, **context).findings


def test_a_transfer_to_its_own_owner() -> None:
    """A bundle cannot be moved to who has it."""
    record = transition("transferring", by=OTHER, owner=OWNER, source=OWNER)
    assert [] == BundleStory().begin("owned").rejected(record, "illegal_transition", target="up").findings


def test_a_target_that_never_was() -> None:
    """A bundle that is given to an incarnation which no broker ever had tells of who wrote it; one that is dead does not."""
    record = transition("transferring", by=OTHER, owner=77, source=OWNER)
    assert ["writes_what_it_may_not"] == BundleStory().begin("owned").rejected(record, "dead_target", target="never").rules
    assert [] == BundleStory().begin("owned").rejected(record, "dead_target", target="dead").rules


def test_a_publisher_that_never_was() -> None:
    """A record that is signed by nobody's incarnation is without base."""
    judged = {"checked_by": f"bundle:{BUNDLE}", "expected": "dead_publisher", "publisher": "never"}
    assert ["baseless"] == BundleStory().rejected(transition("unloading", by=OTHER, source=OWNER), "dead_publisher", **judged).rules


def test_a_race_that_was_won_twice() -> None:
    """A record that is based on an older state must be stale."""
    record = transition("unloading", by=OTHER, source=OWNER, based_on=LAST - 1)
    story = BundleStory().begin("owned").accepted(record, standing_in("owned"), entry("unloading", source=OWNER))
    assert ["stale_accepted"] == story.rules
    assert [] == BundleStory().begin("owned").rejected(record, "stale").findings


def test_the_dead_who_were_heard() -> None:
    """What the membership has settled is not judged again by the state, and told once if the fold let it pass."""
    record = transition("unloading", by=OTHER, source=OWNER)
    judged = {"checked_by": f"bundle:{BUNDLE}", "expected": "dead_publisher"}
    story = BundleStory().begin("owned").accepted(record, standing_in("owned"), entry("unloading", source=OWNER), **judged)
    assert ["dead_publisher_accepted"] == story.rules
    assert [] == BundleStory().begin("owned").rejected(record, "dead_publisher", **judged).findings


def test_a_token_that_stays() -> None:
    """A new ownership with the token of the one before is found."""
    record = transition("owned", by=SOURCE, owner=OWNER)
    story = BundleStory().begin("handing_over").accepted(record, standing_in("handing_over"), entry("owned", owner=OWNER))
    assert ["token_not_renewed"] == story.rules


def test_a_token_that_falls() -> None:
    """A token below the one before is found, also where no ownership begins."""
    record = transition("owned", by=OTHER, owner=SOURCE)
    made = entry("owned", owner=SOURCE, token=TOKEN - 1)
    story = BundleStory().begin("transferring").accepted(record, standing_in("transferring"), made)
    assert ["token_fell"] == story.rules


def test_two_servers_at_once() -> None:
    """A new server while the one before has neither closed nor died overlaps with it."""
    record = transition("owned", by=OWNER, owner=OWNER)
    made = entry("owned", owner=OWNER, token=NEW_TOKEN)
    names = {str(OWNER): "b1", str(SOURCE): "b2"}
    story = BundleStory().begin("handing_over").accepted(record, standing_in("handing_over"), made, names=names)
    assert ["wrong_actor", "intervals_overlap"] == story.rules
    assert f"b1 (incarnation {OWNER}) serves it" in story.findings[1].text
    assert f"but b2 (incarnation {SOURCE}) neither released it" in story.findings[1].text
    assert (LAST, NEW_TOKEN) == story.findings[-1].offsets


@pytest.mark.parametrize(("phase", "role"), DEATHS)
def test_each_death_is_quiet(phase: str, role: str) -> None:
    """Nothing is said of what the death of an owner or a source makes of a bundle by the table."""
    made = {
        ("transferring", "owner"): entry("owned", owner=SOURCE),
        ("handing_over", "owner"): entry("owned", owner=SOURCE),
        ("transferring", "source"): entry("assigning", owner=OWNER),
        ("handing_over", "source"): entry("owned", owner=OWNER, token=NEW_TOKEN),
    }.get((phase, role), entry("free"))
    story = BundleStory().begin(phase).accepted(death(), standing_in(phase), made, dead=OWNER if role == "owner" else SOURCE)
    assert [] == story.findings


def test_a_death_that_makes_something_else() -> None:
    """A bundle that the death of its owner gives away at once is found."""
    story = BundleStory().begin("owned").accepted(death(), standing_in("owned"), entry("owned", owner=OTHER, token=NEW_TOKEN), dead=OWNER)
    assert ["state_differs"] == story.rules


def test_a_death_that_leaves_it() -> None:
    """A bundle that still names the dead is found; of one that names others nothing is said."""
    story = BundleStory().begin("owned").accepted(death(), None, None, dead=OWNER)
    assert ["death_left_bundle"] == story.rules
    assert f"{death()['key']} (incarnation {OWNER}) died" in story.findings[0].text
    assert [] == BundleStory().begin("owned").accepted(death(), None, None, dead=OTHER).findings


def test_a_change_by_nobody() -> None:
    """A record about another subject that ends no incarnation of this bundle cannot change it."""
    renewal = {"kind": "broker", "status": "renewed", "key": "b11", "publisher": "b11"}
    story = BundleStory().begin("owned").accepted(renewal, standing_in("owned"), entry("free"))
    assert ["state_differs"] == story.rules


def test_a_rejection_that_leaves_a_trace() -> None:
    """A rejected record changes nothing."""
    record = transition("unloading", by=OTHER, source=OWNER, based_on=LAST - 1)
    story = BundleStory().begin("owned")
    story.tell(record, verdict="stale", before=standing_in("owned"), after=entry("unloading", source=OWNER))
    assert ["state_differs"] == story.rules


def test_a_past_that_was_another() -> None:
    """What the fold says of the state before a record must be what it said after the one before."""
    record = transition("unloading", by=OTHER, source=OTHER)
    story = BundleStory().begin("owned").accepted(record, entry("owned", owner=OTHER), entry("unloading", source=OTHER))
    assert ["state_differs"] == story.rules


def test_what_is_not_known_yet() -> None:
    """Of a bundle that stood before the audit began the state before its first accepted record is taken as it is told."""
    story = BundleStory().rejected(transition("free", by=OTHER), "stale")
    story.accepted(transition("unloading", by=OTHER, source=OWNER), standing_in("owned"), entry("unloading", source=OWNER))
    assert [] == story.findings
    story.accepted(
        transition("free", by=OTHER, based_on=NEW_TOKEN + 1), entry("unloading", source=OWNER, last=NEW_TOKEN + 1), entry("free")
    )
    assert ["wrong_actor"] == story.rules


def test_a_gap_in_what_was_read() -> None:
    """After a gap the state that was known no longer holds, and nothing is said of what changed meanwhile."""
    story = BundleStory().begin("owned")
    record = transition("owned", by=OTHER, owner=OTHER, based_on=70)
    story.accepted(record, entry("assigning", owner=OTHER, last=70), entry("owned", owner=OTHER, token=NEW_TOKEN), begun=60)
    assert [] == story.findings


# --- made and unmade ------------------------------------------------------------------------------------------------------

CUT: Final = {"kind": "split", "key": BUNDLE, "based_on": LAST, "publisher": "b11", "incarnation": OWNER, "sequence": 5}
JOIN: Final = {"kind": "merge", "key": LEFT, "right": RIGHT, "based_on": LAST, "based_on_right": LAST, "publisher": ADMIN, "as_of": 9}


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


def death() -> dict[str, Any]:
    """The record of a death, as it goes with the facts of bundles."""
    return {"kind": "broker", "status": "down", "key": "b11", "publisher": "b13", "incarnation": OTHER, "sequence": 9}


def test_a_split() -> None:
    """Its owner may cut what is splitting, strictly inside, and the children are its own."""
    cut = {**CUT, "positions": [0x60000000]}
    assert [] == BundleStory().begin("splitting").accepted(cut, standing_in("splitting"), None).findings
    assert [] == BundleStory(LEFT).accepted(CUT, None, entry("owned", owner=OWNER)).findings


@pytest.mark.parametrize(
    ("phase", "fields", "rule", "verdict"),
    [
        ("owned", {"positions": [0x60000000]}, "illegal_step", "illegal_transition"),
        ("splitting", {"positions": [0x60000000], "incarnation": OTHER}, "wrong_actor", "not_the_actor"),
        ("splitting", {"positions": [0x40000000]}, "hole", "bad_boundary"),
        ("splitting", {"positions": [0x70000000, 0x60000000]}, "hole", "bad_boundary"),
        ("splitting", {"positions": []}, "hole", "bad_boundary"),
        ("splitting", {"positions": [0x60000000], "based_on": LAST - 1}, "stale_accepted", "stale"),
    ],
)
def test_a_split_that_may_not_be(phase: str, fields: dict[str, Any], rule: str, verdict: str) -> None:
    """What the table and the arithmetic forbid is found if the fold lets it pass, and quiet if it does not."""
    assert [rule] == BundleStory().begin(phase).accepted({**CUT, **fields}, standing_in(phase), None).rules
    told = ["writes_what_it_may_not"] if verdict in ("illegal_transition", "bad_boundary") else []
    assert told == BundleStory().begin(phase).rejected({**CUT, **fields}, verdict).rules


def test_a_parent_that_stays() -> None:
    """A parent that is still there after its split is found."""
    cut = {**CUT, "positions": [0x60000000]}
    story = BundleStory().begin("splitting").accepted(cut, standing_in("splitting"), entry("owned", owner=OWNER))
    assert ["state_differs"] == story.rules


def test_a_child_of_another() -> None:
    """A child that is not its parent's owner's is found, and so is one with a token from its own time."""
    assert ["state_differs"] == BundleStory(LEFT).accepted(CUT, None, entry("owned", owner=OTHER)).rules
    assert ["token_fell"] == BundleStory(LEFT).accepted(CUT, None, entry("owned", owner=OWNER, token=NEW_TOKEN)).rules


def test_a_merge() -> None:
    """Two neighbours of one owner become one, with that owner."""
    owned = standing_in("owned")
    for half in (LEFT, RIGHT):
        assert [] == BundleStory(half).begin("owned").accepted(JOIN, owned, None, owner=OWNER).findings
    assert [] == BundleStory().accepted(JOIN, None, entry("owned", owner=OWNER), owner=OWNER).findings
    assert ["state_differs"] == BundleStory().accepted(JOIN, None, entry("owned", owner=OTHER), owner=OWNER).rules


@dataclass(frozen=True, kw_only=True)
class Forbidden:
    """What one half of a merge forbids: the phase of that half, what the record has else, and who owns the left one."""

    half: str
    verdict: str
    rule: str
    phase: str = "owned"
    fields: dict[str, Any]
    owner: int = OWNER


FORBIDDEN: Final = (
    Forbidden(half=LEFT, fields={"based_on": LAST - 1}, rule="stale_accepted", verdict="stale"),
    Forbidden(half=RIGHT, fields={"based_on_right": LAST - 1}, rule="stale_accepted", verdict="stale"),
    Forbidden(half=RIGHT, fields={}, owner=OTHER, rule="illegal_step", verdict="illegal_transition"),
    Forbidden(half=LEFT, phase="splitting", fields={}, rule="illegal_step", verdict="illegal_transition"),
    Forbidden(half=LEFT, fields={"right": "t/n/0x70000000_0x80000000"}, rule="hole", verdict="not_adjacent"),
)


@pytest.mark.parametrize("case", FORBIDDEN, ids=lambda case: f"{case.verdict}-{case.phase}")
def test_a_merge_that_may_not_be(case: Forbidden) -> None:
    """What one half alone forbids is found there if the fold lets it pass, and quiet if it does not."""
    record, before = {**JOIN, **case.fields}, standing_in(case.phase)
    assert [case.rule] == BundleStory(case.half).begin(case.phase).accepted(record, before, None, owner=case.owner).rules
    assert [] == BundleStory(case.half).begin(case.phase).rejected(record, case.verdict, owner=case.owner).findings


def test_what_is_made_of_nothing() -> None:
    """Only the creation of a namespace, a split and a merge make bundles, and a transition needs one that is there."""
    assert ["illegal_step"] == BundleStory().accepted(death(), None, entry("free")).rules
    assert ["illegal_step"] == BundleStory().accepted(transition("assigning", by=ADMIN, owner=OWNER), None, entry("assigning")).rules


def test_a_namespace_that_comes_and_goes() -> None:
    """A bundle is made free with its namespace, and goes with it only if it is free."""
    born = {"kind": "namespace", "status": "created", "key": NAMESPACE, "publisher": ADMIN, "as_of": 9}
    gone = {**born, "status": "deleted"}
    story = BundleStory().accepted(born, None, entry("free", token=NEW_TOKEN))
    story.accepted(gone, entry("free", last=NEW_TOKEN, token=NEW_TOKEN), None)
    assert [] == story.findings
    assert ["namespace_deleted_in_use"] == BundleStory().begin("owned").accepted(gone, standing_in("owned"), None).rules
    assert ["state_differs"] == BundleStory().accepted(born, None, entry("free")).rules


def test_what_is_stuck() -> None:
    """A bundle that the membership says is overdue is found, with the offset at which it set out."""
    story = BundleStory().begin("handing_over")
    story.tell({"kind": "broker", "status": "renewed"}, context={"overdue": {BUNDLE: LAST - 1}})
    story.tell({"kind": "broker", "status": "renewed"}, context={"overdue": {LEFT: LAST}})
    assert [("stuck_in_flight", (LAST - 1, LAST, NEW_TOKEN))] == story.found


def test_what_is_gone_is_forgotten() -> None:
    """An hour after a bundle is gone, or after evidence about one that never was, nothing of it is kept."""
    for story in (
        BundleStory().begin("splitting").accepted({**CUT, "positions": [0x60000000]}, standing_in("splitting"), None),
        BundleStory(),
    ):
        story.tell(EVIDENCE, verdict=None, source="serving")
        story.wait(60_000)
        assert not story.audit.is_blank
        story.wait(GONE_FOR_MS)
        assert (True, None) == (story.audit.is_blank, story.audit.memory.due_ms)


def test_a_flood_is_held_back() -> None:
    """Of what is wrong in one way with one bundle ten are told, and then how many more there were; another rule has its own ten."""
    story = BundleStory().begin("owned")
    senseless = transition("transferring", by=OTHER, owner=77, source=OWNER)
    for _ in range(REPORTED_MAX + 7):
        story.rejected(senseless, "dead_target", target="never")
    story.rejected(senseless, "stale", target="up")
    assert ["writes_what_it_may_not"] * REPORTED_MAX + ["verdict_differs"] == [rule for rule, _ in story.found]
    story.wait(2 * PERIOD_MS)
    assert "7 more findings like the last ones were held back" in story.findings[-1].text


def test_a_flood_about_what_never_was() -> None:
    """What was told of a bundle that is not there is forgotten with all else."""
    story = BundleStory()
    judged = {"checked_by": f"bundle:{BUNDLE}", "expected": "dead_publisher", "publisher": "never"}
    for _ in range(REPORTED_MAX + 7):
        story.rejected(transition("unloading", by=OTHER, source=OWNER), "dead_publisher", **judged)
    assert REPORTED_MAX == len(story.findings)
    for _ in range(2):
        story.wait(GONE_FOR_MS)
    assert (True, None) == (story.audit.is_blank, story.audit.memory.due_ms)


def test_what_is_there_is_not_forgotten() -> None:
    """A bundle that came back, or that only evidence told of before, is kept."""
    story = BundleStory()
    story.tell(EVIDENCE, verdict=None, source="serving")
    story.accepted(JOIN, None, entry("owned", owner=OWNER), owner=OWNER)
    story.wait(GONE_FOR_MS)
    story.wait(GONE_FOR_MS)
    memory = story.audit.memory
    assert isinstance(memory, BundleMemory)
    assert (True, 1) == (memory.state is not None, len(memory.serving.stretches))


def test_evidence_is_joined_with_ownerships() -> None:
    """Evidence of serving is judged by the ownerships of this state: without one it is found, and within one it is quiet."""
    story = BundleStory()
    story.accepted(JOIN, None, entry("owned", owner=OWNER), owner=OWNER)
    story.tell(EVIDENCE, verdict=None, source="serving")
    assert [] == story.findings
    story.tell({**EVIDENCE, "incarnation": OTHER, "boot": "another"}, verdict=None, source="serving")
    assert ["served_without_ownership"] == story.rules


def test_a_finding_names_its_command() -> None:
    """A finding tells the rule, the bundle, the publisher, and the command that shows the bundle's story."""
    record = transition("unloading", by=OTHER, source=OWNER, based_on=LAST - 1)
    (found,) = BundleStory().begin("owned").accepted(record, standing_in("owned"), entry("unloading", source=OWNER)).findings
    assert (f"bundle:{BUNDLE}", "b13") == (found.subject, found.publisher)
    assert f"equipoise channel why {BUNDLE} --log {{log}}" == found.command
