"""The splits of one broker's round: Pulsar's own answers, and the differences from Pulsar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from equipoise.brokers.balancing.splitting.auto_split import (
    FAILURE,
    SplitPlan,
    SplitSettings,
    SplitSnapshot,
    plan_splits,
)
from equipoise.brokers.balancing.splitting.split_points import BundleLimits, Excess
from equipoise.shedder.loads import BundleTraffic, Traffic
from tests.vectors.cases import Case, read_cases
from tests.vectors.split_decisions import settings_of, snapshot_of

LEFT, RIGHT = "t/ns/0x00000000_0x80000000", "t/ns/0x80000000_0xffffffff"
LIMITS = BundleLimits(
    topics_max=100, sessions_max=100, messages_per_second_max=100, bytes_per_second_max=100
)
AT_ONCE = SplitSettings(limits=LIMITS, hits_threshold=0)


def with_topics(name: str, count: int) -> BundleTraffic:
    return BundleTraffic(bundle=name, topics=count)


def snapshot(*bundles: BundleTraffic, **more: object) -> SplitSnapshot:
    """A round with nothing in the way, except for `more`."""
    given = {"bundle_counts": {"t/ns": 2}, **more}
    # Fields by their names.
    return SplitSnapshot(broker="a:1", bundles=bundles, **given)  # type: ignore[arg-type]


def split(plan: SplitPlan) -> list[str]:
    return [decision.bundle for decision in plan.splits]


def told(plan: SplitPlan) -> dict[str, str]:
    """Why each of the others is not split."""
    return {stay.subject: stay.reason for stay in plan.stays}


# --- Pulsar's own answers ---


def test_pulsars_own_test_of_rows_and_of_splits_a_round() -> None:
    """Two bundles over a limit, one split per round, a threshold of 3: the fourth round splits the
    first, the fifth the second.
    """
    whole, part = "t/ns/0x00000000_0xffffffff", "t/ns/0x00000000_0x0fffffff"
    settings = SplitSettings(
        limits=replace(LIMITS, topics_max=4), hits_threshold=3, splits_max=1, pulsar_exact=True
    )
    hits: Mapping[str, int] = {}
    seen = []
    for _ in range(5):
        plan = plan_splits(snapshot(with_topics(whole, 5), with_topics(part, 5)), settings, hits)
        hits = plan.hits
        seen.append(split(plan))
    assert [[], [], [], [whole], [part]] == seen


TRAFFIC_OF_TWO = BundleTraffic(bundle=LEFT, topics=2)
EXCESSES = {
    Excess.TOPICS: (
        replace(
            with_topics(LEFT, 1_234), consumers=999, traffic=Traffic(messages_in_per_second=999)
        ),
        "1,234 topics",
    ),
    Excess.SESSIONS: (
        replace(
            TRAFFIC_OF_TWO,
            consumers=60,
            producers=41,
            traffic=Traffic(messages_in_per_second=999),
        ),
        "101 sessions",
    ),
    Excess.MESSAGES: (
        replace(
            TRAFFIC_OF_TWO,
            traffic=Traffic(messages_in_per_second=60, messages_out_per_second=41),
        ),
        "101 messages/s",
    ),
    Excess.BYTES: (
        replace(TRAFFIC_OF_TWO, traffic=Traffic(bytes_in_per_second=60, bytes_out_per_second=41)),
        "101 bytes/s",
    ),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("excess", EXCESSES, ids=lambda each: str(each.value))
def test_the_first_limit_that_is_exceeded_is_the_reason(excess: Excess, *, exact: bool) -> None:
    """Topics, sessions, messages, bytes, in this order, both directions together. A load equal to
    the limit is allowed.
    """
    bundle, load = EXCESSES[excess]
    (decision,) = plan_splits(snapshot(bundle), replace(AT_ONCE, pulsar_exact=exact), {}).splits
    reason = f"it has been over a limit for 1 round: {load} (limit: 100)"
    assert (LEFT, excess, reason) == (decision.bundle, decision.excess, decision.reason)


def test_a_bundle_in_a_row_shows_its_rounds() -> None:
    """A round below the limit ends the row."""
    settings = replace(AT_ONCE, hits_threshold=2)
    hits: Mapping[str, int] = {}
    for count in (1, 2):
        plan = plan_splits(snapshot(with_topics(LEFT, 101)), settings, hits)
        hits = plan.hits
        reason = f"it has been over a limit for {count} of 3 rounds: 101 topics (limit: 100)"
        assert ({LEFT: reason}, {LEFT: count}) == (told(plan), hits)
    plan = plan_splits(snapshot(with_topics(LEFT, 100)), settings, hits)
    assert ({LEFT: "it exceeds no limit"}, {}) == (told(plan), plan.hits)


VECTORS = read_cases("split_decisions")


def differing(case: Case) -> bool:
    """Whether our own rules decide any round of a case otherwise than Pulsar's."""
    hits: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {})
    for bundles in case["input"]["rounds"]:
        plans = [
            plan_splits(
                snapshot_of(case, bundles), settings_of(case, pulsar_exact=exact), hits[exact]
            )
            for exact in (False, True)
        ]
        if sorted(split(plans[0])) != sorted(split(plans[1])):
            return True
        hits = (plans[0].hits, plans[1].hits)
    return False


def test_most_of_pulsars_decisions_are_ours() -> None:
    """Wherever a case meets none of Pulsar's faults and enough splits are allowed."""
    assert 30 < sum(not differing(case) for case in VECTORS)


# --- where ours differ ---


@dataclass(frozen=True, kw_only=True)
class Difference:
    id: str
    bundles: Sequence[BundleTraffic]
    pulsar: list[str]
    ours: list[str]
    settings: SplitSettings = AT_ONCE
    splitting: Sequence[str] = ()
    not_owned: Sequence[str] = ()
    hits: Mapping[str, int] = field(default_factory=dict)
    hits_of_pulsar: Mapping[str, int] = field(default_factory=dict)
    hits_of_ours: Mapping[str, int] = field(default_factory=dict)


DIFFERENCES = [
    Difference(
        id="the hottest come first",
        bundles=(with_topics(LEFT, 101), with_topics(RIGHT, 500)),
        settings=replace(AT_ONCE, splits_max=1),
        pulsar=[LEFT],
        ours=[RIGHT],
        hits_of_ours={LEFT: 1},
    ),
    Difference(
        id="what comes after the last split of a round is counted, too",
        bundles=(with_topics(LEFT, 500), with_topics(RIGHT, 101)),
        settings=replace(AT_ONCE, splits_max=1),
        hits={RIGHT: 7},
        pulsar=[LEFT],
        ours=[LEFT],
        hits_of_pulsar={RIGHT: 7},
        hits_of_ours={RIGHT: 8},
    ),
    Difference(
        id="another namespace whose name begins alike is not in the way",
        bundles=(with_topics(LEFT, 101),),
        splitting=("t/ns10/0x00000000_0x40000000",),
        pulsar=[],
        ours=[LEFT],
        hits_of_pulsar={LEFT: 1},
    ),
    Difference(
        id="an overlap need not begin or end alike",
        bundles=(with_topics(LEFT, 101),),
        splitting=("t/ns/0x40000000_0xc0000000",),
        pulsar=[LEFT],
        ours=[],
        hits_of_ours={LEFT: 1},
    ),
    Difference(
        id="a neighbour is no overlap",
        bundles=(with_topics(LEFT, 101),),
        splitting=("t/ns/0x80000000_0x90000000",),
        pulsar=[LEFT],
        ours=[LEFT],
    ),
    Difference(
        id="two of one round do not overlap",
        bundles=(with_topics(LEFT, 101), with_topics("t/ns/0x00000000_0x40000000", 102)),
        pulsar=[LEFT, "t/ns/0x00000000_0x40000000"],
        ours=["t/ns/0x00000000_0x40000000"],
        hits_of_ours={LEFT: 1},
    ),
    Difference(
        id="a row is broken by a round without topics to divide",
        bundles=(with_topics(LEFT, 1),),
        hits={LEFT: 2},
        pulsar=[],
        ours=[],
        hits_of_pulsar={LEFT: 2},
    ),
    Difference(
        id="a row is broken by another owner",
        bundles=(with_topics(LEFT, 101),),
        not_owned=(LEFT,),
        hits={LEFT: 2},
        pulsar=[],
        ours=[],
        hits_of_pulsar={LEFT: 2},
    ),
    Difference(
        id="keys are no topics",
        bundles=(replace(with_topics(LEFT, 0), traffic=Traffic(messages_in_per_second=101)),),
        pulsar=[],
        ours=[LEFT],
    ),
    Difference(
        id="a figure that is none",
        bundles=(
            replace(with_topics(LEFT, 101), traffic=Traffic(bytes_in_per_second=float("nan"))),
        ),
        pulsar=[LEFT],
        ours=[],
    ),
]


@pytest.mark.parametrize("case", DIFFERENCES, ids=lambda case: case.id)
def test_a_difference_from_pulsar_applies_unless_pulsar_exact_is_set(case: Difference) -> None:
    asked = snapshot(*case.bundles, splitting=case.splitting, not_owned=case.not_owned)
    ours = plan_splits(asked, case.settings, case.hits)
    pulsar = plan_splits(asked, replace(case.settings, pulsar_exact=True), case.hits)
    assert (case.ours, case.hits_of_ours) == (split(ours), ours.hits)
    assert (case.pulsar, case.hits_of_pulsar) == (split(pulsar), pulsar.hits)


# --- why not ---


HOT, HOTTER = with_topics(LEFT, 101), with_topics(RIGHT, 500)
OVER = "it has 101 topics (limit: 100), but "
NARROW = "t/ns/0x00000010_0x00000011"
ONE = replace(AT_ONCE, splits_max=1)
REFUSALS: dict[
    str,
    tuple[Sequence[BundleTraffic], Mapping[str, object], SplitSettings, Mapping[str, str], int],
] = {
    "no limit exceeded": ([with_topics(LEFT, 100)], {}, AT_ONCE, {LEFT: "it exceeds no limit"}, 0),
    "no limit of sessions": (
        [BundleTraffic(bundle=LEFT, topics=2, consumers=10_000)],
        {},
        replace(AT_ONCE, limits=replace(LIMITS, sessions_max=None)),
        {LEFT: "it exceeds no limit"},
        0,
    ),
    "one topic": ([with_topics(LEFT, 1)], {}, AT_ONCE, {LEFT: "it has fewer than two topics"}, 0),
    "not ours": ([HOT], {"not_owned": (LEFT,)}, AT_ONCE, {LEFT: "a:1 does not own it"}, 0),
    "under way": ([HOT], {"splitting": (LEFT,)}, AT_ONCE, {LEFT: "it is being split already"}, 0),
    "bad figure": (
        [replace(HOT, producers=-3)],
        {},
        AT_ONCE,
        {LEFT: "it has producers=-3, which is not plausible"},
        1,
    ),
    "narrow": (
        [with_topics(NARROW, 101)],
        {},
        AT_ONCE,
        {NARROW: "its range is too narrow to be cut"},
        1,
    ),
    "overlap": (
        [HOT],
        {"splitting": ("t/ns/0x00000000_0x10000000",)},
        AT_ONCE,
        {LEFT: f"{OVER}t/ns/0x00000000_0x10000000, which it overlaps, is being split"},
        0,
    ),
    "unknown number": (
        [HOT],
        {"bundle_counts": {}},
        AT_ONCE,
        {LEFT: f"{OVER}the number of bundles of t/ns is unknown"},
        1,
    ),
    "enough bundles": (
        [HOT],
        {},
        replace(AT_ONCE, bundles_max=2),
        {LEFT: f"{OVER}t/ns has 2 bundles, and may have at most 2"},
        0,
    ),
    "more loaded ones come first": (
        [HOT, HOTTER],
        {},
        ONE,
        {LEFT: f"{OVER}this round has 1 split of more loaded bundles already"},
        0,
    ),
    "in Pulsar the first come first": (
        [HOT, HOTTER],
        {},
        replace(ONE, pulsar_exact=True),
        {RIGHT: "this round has 1 split already"},
        0,
    ),
    "a split whose cuts the service finds later counts as one more bundle": (
        [HOT, HOTTER],
        {},
        replace(AT_ONCE, bundles_max=3),
        {LEFT: f"{OVER}t/ns has 3 bundles, and may have at most 3"},
        0,
    ),
    "an invalid name keeps no other bundle from being split": (
        [with_topics("t/ns/all", 101), HOT],
        {},
        AT_ONCE,
        {"t/ns/all": "'t/ns/all' is not a bundle name"},
        1,
    ),
}


@pytest.mark.parametrize(
    ("bundles", "more", "settings", "stays", "failures"), REFUSALS.values(), ids=REFUSALS.keys()
)
def test_a_bundle_that_is_not_split_says_why(
    bundles: Sequence[BundleTraffic],
    more: Mapping[str, object],
    settings: SplitSettings,
    stays: Mapping[str, str],
    failures: int,
) -> None:
    """A bundle that should be split and cannot be counts as a failure. The others are split."""
    plan = plan_splits(snapshot(*bundles, **more), settings, {})
    assert stays == {name: why.partition(": expected")[0] for name, why in told(plan).items()}
    assert {bundle.bundle for bundle in bundles} - set(stays) == set(split(plan))
    assert failures == plan.counted.get(FAILURE, 0)
