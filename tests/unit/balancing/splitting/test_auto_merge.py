"""The merges of one broker's round: which pairs, when, how many, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from equipoise.brokers.balancing.splitting.auto_merge import (
    MergePlan,
    MergeSettings,
    MergeSnapshot,
    Pair,
    plan_merges,
)
from equipoise.brokers.balancing.splitting.split_points import BundleLimits
from equipoise.shedder.loads import BundleTraffic, Traffic

A, B, C, D = (
    f"t/ns/0x{low}0000000_0x{high}"
    for low, high in (("0", "40000000"), ("4", "80000000"), ("8", "c0000000"), ("c", "ffffffff"))
)
AT_ONCE = MergeSettings(
    limits=BundleLimits(topics_max=100, sessions_max=100, messages_per_second_max=100),
    hits_threshold=0,
    bundles_min=1,
)
NO_NEIGHBOUR = "its right neighbour is not at a:1, cannot be merged now, or does not exist"


def bundle(name: str, topics: int = 0, messages: float = 0.0) -> BundleTraffic:
    return BundleTraffic(
        bundle=name, topics=topics, traffic=Traffic(messages_out_per_second=messages)
    )


def snapshot(*bundles: BundleTraffic, **more: object) -> MergeSnapshot:
    """A round with nothing in the way, except for `more`."""
    given = {"bundle_counts": {"t/ns": 4, "t/other": 4}, "brokers": 1, **more}
    # Fields by their names.
    return MergeSnapshot(broker="a:1", bundles=bundles, **given)  # type: ignore[arg-type]


def merged(plan: MergePlan) -> list[Pair]:
    return [(merge.left, merge.right) for merge in plan.merges]


def told(plan: MergePlan) -> dict[str, str]:
    """Why each of the others is not merged."""
    return {stay.subject: stay.reason for stay in plan.stays}


def test_two_cold_neighbours_are_merged_with_a_reason() -> None:
    (merge,) = plan_merges(snapshot(bundle(A, 10, 5.0), bundle(B, 20, 44.0)), AT_ONCE, {}).merges
    reason = "both have been cold for 1 round: together 49 messages/s (limit: 100)"
    assert (A, B, reason) == (merge.left, merge.right, merge.reason)


def test_half_of_any_limit_is_too_much() -> None:
    """Although each of the two uses less."""
    plan = plan_merges(snapshot(bundle(A, 25), bundle(B, 25)), AT_ONCE, {})
    reason = (
        "together with its right neighbour it has 50 topics (limit: 100); cold is below 50% of the"
        " limit"
    )
    assert ([], {A: reason, B: NO_NEIGHBOUR}, {}) == (merged(plan), told(plan), plan.hits)


def test_a_pair_must_be_cold_for_a_row_of_rounds() -> None:
    """A warm round ends the row, and a merge uses it up."""
    settings = replace(AT_ONCE, hits_threshold=2)
    hits: Mapping[Pair, int] = {}
    rows = []
    for topics in (0, 0, 60, 0, 0, 0, 0):
        plan = plan_merges(snapshot(bundle(A, topics), bundle(B)), settings, hits)
        hits = plan.hits
        rows.append((merged(plan), dict(hits)))
    row: list[tuple[list[Pair], dict[Pair, int]]] = [([], {(A, B): 1}), ([], {(A, B): 2})]
    assert [*row, ([], {}), *row, ([(A, B)], {}), row[0]] == rows
    plan = plan_merges(snapshot(bundle(A), bundle(B)), settings, {(A, B): 1})
    assert {
        A: "it and its right neighbour have been cold for 2 of 3 rounds",
        B: NO_NEIGHBOUR,
    } == told(plan)


def test_a_pair_whose_right_bundle_was_split_starts_a_new_row() -> None:
    half = "t/ns/0x40000000_0x60000000"
    plan = plan_merges(
        snapshot(bundle(A), bundle(half)), replace(AT_ONCE, hits_threshold=1), {(A, B): 5}
    )
    assert ([], {(A, half): 1}) == (merged(plan), plan.hits)


def test_nothing_is_merged_twice_in_a_round() -> None:
    """Of three in a row the colder pair is merged, and the third waits. Four become two."""
    plan = plan_merges(snapshot(bundle(A, 10), bundle(B, 2), bundle(C, 1)), AT_ONCE, {})
    assert ([(B, C)], {A: "it or its right neighbour is merged with another bundle"}) == (
        merged(plan),
        told(plan),
    )
    plan = plan_merges(snapshot(bundle(A), bundle(B), bundle(C), bundle(D)), AT_ONCE, {})
    assert [(A, B), (C, D)] == merged(plan)


BOUNDS: dict[str, tuple[MergeSettings, Mapping[str, object], list[Pair], str]] = {
    "a round": (
        replace(AT_ONCE, merges_max=1),
        {},
        [(A, B)],
        "this round has 1 merge already",
    ),
    "the namespace": (
        replace(AT_ONCE, bundles_min=3),
        {},
        [(A, B)],
        "t/ns has 4 bundles and keeps 3; each of 1 brokers may merge 1",
    ),
    "others may merge, too": (
        replace(AT_ONCE, bundles_min=2),
        {"brokers": 2},
        [(A, B)],
        "t/ns has 4 bundles and keeps 2; each of 2 brokers may merge 1",
    ),
    "all that there are": (
        replace(AT_ONCE, bundles_min=5),
        {},
        [],
        "t/ns has 4 bundles and keeps 5; each of 1 brokers may merge 0",
    ),
    "unknown": (
        AT_ONCE,
        {"bundle_counts": {}},
        [],
        "the number of bundles of t/ns is unknown",
    ),
}


@pytest.mark.parametrize(
    ("settings", "more", "merges", "reason"), BOUNDS.values(), ids=BOUNDS.keys()
)
def test_merges_are_bounded(
    settings: MergeSettings, more: Mapping[str, object], merges: list[Pair], reason: str
) -> None:
    """A namespace never gets too few bundles, even if all brokers merge at once."""
    plan = plan_merges(snapshot(bundle(A), bundle(B), bundle(C), bundle(D), **more), settings, {})
    assert (merges, reason) == (merged(plan), told(plan)[C])


def test_only_neighbours_that_rest_here_are_merged() -> None:
    """No gap, no other namespace, nothing pending, no impossible figure or name."""
    other = "t/other/0x40000000_0x80000000"
    for stranger in (C, other):
        plan = plan_merges(snapshot(bundle(A), bundle(stranger)), AT_ONCE, {})
        assert ([], dict.fromkeys((A, stranger), NO_NEIGHBOUR)) == (merged(plan), told(plan))
    plan = plan_merges(
        snapshot(
            bundle(A),
            bundle(B),
            bundle(C, -1),
            bundle("t/ns/all"),
            pending={A: "it was moved lately"},
        ),
        AT_ONCE,
        {(A, B): 9},
    )
    assert ([], {}) == (merged(plan), plan.hits)
    name = told(plan).pop("t/ns/all")
    assert name.startswith("'t/ns/all' is not a bundle name")
    bad = "it has topics=-1, which is not plausible"
    assert {A: "it was moved lately", B: NO_NEIGHBOUR, C: bad, "t/ns/all": name} == told(plan)
