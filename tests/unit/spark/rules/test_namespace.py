"""Tests of the rules of namespaces."""

from __future__ import annotations

from typing import Any, Final

import pytest

from equipoise.spark_jobs.rules.facts import subject
from equipoise.spark_jobs.rules.memory import PERIOD_MS, REPORTED_MAX
from equipoise.spark_jobs.rules.namespace import FORGOTTEN_AFTER_MS
from tests.unit.spark.rules.broker_facts import Story

END: Final = 0xFFFFFFFF
QUARTER: Final = 0x40000000
MIDDLE: Final = 0x80000000
OWNER: Final = 11

CREATED: Final = {
    "kind": "namespace",
    "key": "t/n",
    "status": "created",
    "expected_offset": 1,
    "publisher": "admin:a",
    "as_of": 1,
}
SPLIT: Final = {
    "kind": "split",
    "key": f"t/n/0x00000000_0x{MIDDLE:08x}",
    "positions": [QUARTER],
    "publisher": "b11",
    "incarnation": OWNER,
}
MERGE: Final = {
    "kind": "merge",
    "key": f"t/n/0x00000000_0x{MIDDLE:08x}",
    "right": f"t/n/0x{MIDDLE:08x}_0xffffffff",
    "publisher": "admin:a",
}

Rows = list[list[Any]]


def owned(low: int, high: int, *, owner: int = OWNER, token: int = 5) -> list[Any]:
    """A range as a fact tells it, with its phase, owner and token."""
    return [low, high, "owned", owner, token]


class NamespaceStory(Story):
    """The story of the namespace `t/n`."""

    def __init__(self) -> None:
        super().__init__(subject("namespace", "t/n"))

    # As it is.
    def changed(
        self,
        record: dict[str, Any],
        removed: Rows,
        added: Rows,
        **context: Any,  # noqa: ANN401
    ) -> NamespaceStory:
        """An accepted record, and the ranges that went and came by it."""
        self.tell(
            record, after={"status": "created", "removed": removed, "added": added}, context=context
        )
        return self

    def created(self) -> NamespaceStory:
        """The namespace is made of two bundles."""
        return self.changed(
            {**CREATED, "boundaries": [0, MIDDLE, END]}, [], [[0, MIDDLE], [MIDDLE, END]]
        )


def test_an_honest_namespace_breaks_no_rule() -> None:
    story = NamespaceStory().created()
    story.changed(SPLIT, [owned(0, MIDDLE)], [owned(0, QUARTER), owned(QUARTER, MIDDLE)])
    back = {
        **MERGE,
        "key": f"t/n/0x00000000_0x{QUARTER:08x}",
        "right": f"t/n/0x{QUARTER:08x}_0x{MIDDLE:08x}",
    }
    story.changed(
        back, [owned(0, QUARTER), owned(QUARTER, MIDDLE, token=9)], [owned(0, MIDDLE, token=9)]
    )
    story.tell({**CREATED, "status": "policies"}, after={"status": "created"})
    story.changed({**CREATED, "status": "deleted"}, [[0, MIDDLE], [MIDDLE, END]], [])
    story.created()
    assert [] == story.findings


@pytest.mark.parametrize(
    ("added", "rule"),
    [
        ([[0, MIDDLE]], "hole"),
        ([[0, MIDDLE], [MIDDLE + 1, END]], "hole"),
        ([[0, MIDDLE], [QUARTER, END]], "overlap"),
        ([[0, QUARTER], [QUARTER, MIDDLE], [MIDDLE, END]], "state_differs"),
    ],
)
def test_a_creation_with_other_ranges(added: Rows, rule: str) -> None:
    assert (
        rule
        in NamespaceStory().changed({**CREATED, "boundaries": [0, MIDDLE, END]}, [], added).rules
    )


@pytest.mark.parametrize(
    ("added", "rule"),
    [
        ([owned(0, QUARTER)], "hole"),
        ([owned(0, QUARTER), owned(QUARTER + 1, MIDDLE)], "hole"),
        ([owned(0, MIDDLE), owned(QUARTER, MIDDLE)], "overlap"),
        ([owned(0, QUARTER - 1), owned(QUARTER - 1, MIDDLE)], "state_differs"),
        ([owned(0, QUARTER), owned(QUARTER, MIDDLE, owner=12)], "illegal_step"),
        ([owned(0, QUARTER), owned(QUARTER, MIDDLE, token=4)], "token_fell"),
        ([owned(0, QUARTER), owned(QUARTER, MIDDLE, token=6)], "state_differs"),
    ],
)
def test_a_split_with_other_ranges_owners_or_tokens(added: Rows, rule: str) -> None:
    assert [rule] == NamespaceStory().changed(SPLIT, [owned(0, MIDDLE)], added).rules


def test_a_merge_with_other_ranges_owners_or_tokens() -> None:
    halves = [owned(0, MIDDLE), owned(MIDDLE, END, token=9)]
    assert ["hole"] == NamespaceStory().changed(MERGE, halves, [owned(0, MIDDLE, token=9)]).rules
    assert ["token_fell"] == NamespaceStory().changed(MERGE, halves, [owned(0, END)]).rules
    strangers = [owned(0, MIDDLE), owned(MIDDLE, END, owner=12)]
    assert ["illegal_step"] == NamespaceStory().changed(MERGE, strangers, [owned(0, END)]).rules


def test_a_merge_that_leaves_a_half() -> None:
    story = NamespaceStory().changed(MERGE, [owned(MIDDLE, END)], [owned(0, END)])
    assert "overlap" in story.rules


def test_a_split_of_a_bundle_that_does_not_exist() -> None:
    cut = [owned(0, MIDDLE)], [owned(0, QUARTER), owned(QUARTER, MIDDLE)]
    story = NamespaceStory().changed(SPLIT, *cut)
    assert [] == story.findings
    assert ["state_differs"] == story.changed(SPLIT, *cut, unknown=[SPLIT["key"]]).rules


def test_a_deletion_that_leaves_ranges() -> None:
    story = NamespaceStory().changed({**CREATED, "status": "deleted"}, [[0, MIDDLE]], [])
    assert ["hole"] == story.rules


def test_records_that_may_not_change_ranges() -> None:
    assert ["state_differs"] == NamespaceStory().changed(
        {**CREATED, "status": "policies"}, [], [[0, END]]
    ).rules
    story = NamespaceStory()
    story.tell(
        SPLIT,
        verdict="stale",
        after={"removed": [owned(0, MIDDLE)], "added": [owned(0, QUARTER), owned(QUARTER, MIDDLE)]},
    )
    assert ["state_differs"] == story.rules


def test_verdicts_on_deletion() -> None:
    record = {**CREATED, "status": "deleted"}
    story = NamespaceStory()
    story.tell(record, verdict="bundles_in_use")
    assert [] == story.findings
    story.tell(record, verdict="stale")
    assert ["verdict_differs"] == story.rules


def test_a_deletion_of_a_namespace_that_was_not_set_to_deleting() -> None:
    story = NamespaceStory()
    context = {"checked_by": "namespace:t/n", "expected": "illegal_transition"}
    story.tell({**CREATED, "status": "deleted"}, verdict="illegal_transition", context=context)
    story.tell({**CREATED, "status": "policies"}, verdict="illegal_transition", context=context)
    assert [("writes_what_it_may_not", (1,))] == story.found


def test_the_memberships_verdict_is_compared() -> None:
    story = NamespaceStory()
    context = {"checked_by": "namespace:t/n", "expected": "bad_boundary"}
    story.tell({**CREATED, "boundaries": [0, 5]}, context=context)
    assert ["hole"] == story.rules
    story.tell({**CREATED, "boundaries": [0, 5]}, verdict="bad_boundary", context=context)
    assert ["hole", "writes_what_it_may_not"] == story.rules


def test_an_invented_namespace_is_forgotten() -> None:
    story = NamespaceStory()
    context = {"checked_by": "namespace:t/n", "publisher": "never", "expected": "dead_publisher"}
    story.tell(CREATED, verdict="dead_publisher", context=context)
    assert ["baseless"] == story.rules
    story.wait(FORGOTTEN_AFTER_MS - 1)
    assert not story.audit.is_blank
    story.wait(1)
    assert story.audit.is_blank


def test_findings_held_back_before_a_gap_are_counted_after_it() -> None:
    story = NamespaceStory()
    for _ in range(REPORTED_MAX + 2):
        story.changed({**CREATED, "status": "deleted"}, [[0, MIDDLE]], [])
    story.tell(
        {**CREATED, "status": "policies"}, after={"status": "created"}, context={"begun": 50}
    )
    story.wait(2 * PERIOD_MS)
    assert [
        ("hole", (offset,)) for offset in (*range(1, REPORTED_MAX + 1), REPORTED_MAX + 2)
    ] == story.found
    assert "2 more findings" in story.findings[-1].text
