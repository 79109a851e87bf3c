"""The splits of one broker's round: Pulsar's own answers, and the differences from Pulsar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from equipoise.brokers.balancing.splitting.auto_split import (
    FAILURE,
    SplitPlan,
    SplitSettings,
    SplitSnapshot,
    plan_splits,
)
from equipoise.brokers.balancing.splitting.bundle_limits import BundleLimits, Excess
from equipoise.brokers.balancing.splitting.split_points import (
    RANGE_EQUALLY_DIVIDE,
    SplitQuestion,
    split_points,
)
from equipoise.channel.core.errors import invalid_boundaries
from equipoise.channel.core.ranges import parse_bundle
from equipoise.shedder.loads import BundleTraffic, Traffic
from tests.vectors.cases import Case, read_cases
from tests.vectors.split_decisions import settings_of, snapshot_of

LEFT, RIGHT = "t/ns/0x00000000_0x80000000", "t/ns/0x80000000_0xffffffff"
LIMITS = BundleLimits(
    topics_max=100, sessions_max=100, messages_per_second_max=100, bytes_per_second_max=100
)
AT_ONCE = SplitSettings(limits=LIMITS, hits_threshold=0)


def halves(bundle: BundleTraffic) -> tuple[int, ...]:
    _, low, high = parse_bundle(bundle.bundle)
    return split_points(RANGE_EQUALLY_DIVIDE, SplitQuestion(low=low, high=high))


def with_topics(name: str, count: int) -> BundleTraffic:
    return BundleTraffic(bundle=name, topics=count)


def snapshot(*bundles: BundleTraffic, **more: object) -> SplitSnapshot:
    """A round with nothing in the way, except for `more`."""
    given = {"bundle_counts": {"t/ns": 2}, "find_cuts": halves, **more}
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
        seen.append([(decision.bundle, decision.cuts) for decision in plan.splits])
    assert [[], [], [], [(whole, (0x7FFFFFFF,))], [(part, (0x07FFFFFF,))]] == seen


@dataclass(frozen=True, kw_only=True)
class ExcessCase:
    bundle: BundleTraffic
    excess: Excess
    reason: str


@pytest.mark.parametrize(
    "case",
    [
        ExcessCase(
            bundle=replace(
                with_topics(LEFT, 1_234), consumers=999, traffic=Traffic(messages_in_per_second=999)
            ),
            excess=Excess.TOPICS,
            reason="it has been over a limit for 1 round: 1,234 topics (limit: 100)",
        ),
        ExcessCase(
            bundle=BundleTraffic(
                bundle=LEFT,
                topics=2,
                consumers=60,
                producers=41,
                traffic=Traffic(messages_in_per_second=999),
            ),
            excess=Excess.SESSIONS,
            reason="it has been over a limit for 1 round: 101 sessions (limit: 100)",
        ),
        ExcessCase(
            bundle=BundleTraffic(
                bundle=LEFT,
                topics=2,
                traffic=Traffic(messages_in_per_second=60, messages_out_per_second=41),
            ),
            excess=Excess.MESSAGES,
            reason="it has been over a limit for 1 round: 101 messages/s (limit: 100)",
        ),
        ExcessCase(
            bundle=BundleTraffic(
                bundle=LEFT,
                topics=2,
                traffic=Traffic(bytes_in_per_second=60, bytes_out_per_second=41),
            ),
            excess=Excess.BYTES,
            reason="it has been over a limit for 1 round: 101 bytes/s (limit: 100)",
        ),
    ],
    ids=lambda case: case.excess.value,
)
def test_the_first_limit_that_is_exceeded_is_the_reason(case: ExcessCase) -> None:
    """Topics, sessions, messages, bytes, in this order, both directions together. A load equal to
    the limit is allowed.
    """
    for exact in (False, True):
        (decision,) = plan_splits(
            snapshot(case.bundle), replace(AT_ONCE, pulsar_exact=exact), {}
        ).splits
        assert (LEFT, (0x40000000,), case.excess, case.reason) == (
            decision.bundle,
            decision.cuts,
            decision.excess,
            decision.reason,
        )


def test_without_a_limit_sessions_split_nothing() -> None:
    bundle = BundleTraffic(bundle=LEFT, topics=2, consumers=10_000)
    settings = replace(AT_ONCE, limits=replace(LIMITS, sessions_max=None))
    assert {LEFT: "it exceeds no limit"} == told(plan_splits(snapshot(bundle), settings, {}))


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
    assert 100 == len(VECTORS)
    assert 60 < sum(not differing(case) for case in VECTORS)


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
    find_cuts: Callable[[BundleTraffic], tuple[int, ...]] = halves


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
        id="more than two parts",
        bundles=(with_topics(LEFT, 101),),
        find_cuts=lambda _: (1, 2),
        pulsar=[],
        ours=[LEFT],
        hits_of_pulsar={LEFT: 1},
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
    asked = snapshot(
        *case.bundles, splitting=case.splitting, not_owned=case.not_owned, find_cuts=case.find_cuts
    )
    ours = plan_splits(asked, case.settings, case.hits)
    pulsar = plan_splits(asked, replace(case.settings, pulsar_exact=True), case.hits)
    assert (case.ours, case.hits_of_ours) == (split(ours), ours.hits)
    assert (case.pulsar, case.hits_of_pulsar) == (split(pulsar), pulsar.hits)


# --- why not ---


def fails(bundle: BundleTraffic) -> tuple[int, ...]:
    """A service that cannot say where to cut."""
    raise invalid_boundaries(subject=bundle.bundle, problem="it says no")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    id: str
    bundle: BundleTraffic
    reason: str
    failures: int = 0
    more: Mapping[str, object] = field(default_factory=dict)
    settings: SplitSettings = AT_ONCE


HOT = with_topics(LEFT, 101)
OVER = "it has 101 topics (limit: 100), but "
REFUSALS = [
    Refusal(id="one topic", bundle=with_topics(LEFT, 1), reason="it has fewer than two topics"),
    Refusal(id="not ours", bundle=HOT, more={"not_owned": (LEFT,)}, reason="a:1 does not own it"),
    Refusal(
        id="under way", bundle=HOT, more={"splitting": (LEFT,)}, reason="it is being split already"
    ),
    Refusal(
        id="bad figure",
        bundle=replace(HOT, producers=-3),
        reason="it has producers=-3, which is not plausible",
        failures=1,
    ),
    Refusal(
        id="narrow",
        bundle=with_topics("t/ns/0x00000010_0x00000011", 101),
        reason="its range is too narrow to be cut",
        failures=1,
    ),
    Refusal(
        id="overlap",
        bundle=HOT,
        more={"splitting": ("t/ns/0x00000000_0x10000000",)},
        reason=f"{OVER}t/ns/0x00000000_0x10000000, which it overlaps, is being split",
    ),
    Refusal(
        id="unknown number",
        bundle=HOT,
        more={"bundle_counts": {}},
        reason=f"{OVER}the number of bundles of t/ns is unknown",
        failures=1,
    ),
    Refusal(
        id="enough bundles",
        bundle=HOT,
        settings=replace(AT_ONCE, bundles_max=2),
        reason=f"{OVER}t/ns has 2 bundles, and may have at most 2",
    ),
    Refusal(
        id="too many parts",
        bundle=HOT,
        more={"find_cuts": lambda _: (1, 2)},
        settings=replace(AT_ONCE, bundles_max=3),
        reason=f"{OVER}t/ns would have 4 bundles, and may have at most 3",
    ),
    Refusal(
        id="no place",
        bundle=HOT,
        more={"find_cuts": lambda _: ()},
        reason=f"{OVER}there is no place to cut it",
        failures=1,
    ),
    Refusal(
        id="no answer",
        bundle=HOT,
        more={"find_cuts": fails},
        reason=f"{OVER}it has no valid cut: the boundaries of {LEFT} cannot be used: it says no",
        failures=1,
    ),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.id)
def test_a_bundle_that_is_not_split_says_why(case: Refusal) -> None:
    """A bundle that should be split and cannot be counts as a failure."""
    plan = plan_splits(snapshot(case.bundle, **case.more), case.settings, {})
    assert {case.bundle.bundle: case.reason} == told(plan)
    assert ({FAILURE: case.failures} if case.failures else {}) == plan.counted


def test_an_invalid_name_is_a_failure() -> None:
    """It keeps no other bundle from being split."""
    plan = plan_splits(snapshot(with_topics("t/ns/all", 101), HOT), AT_ONCE, {})
    assert ([LEFT], {FAILURE: 1}) == (split(plan), plan.counted)
    assert told(plan)["t/ns/all"].startswith("'t/ns/all' is not a bundle name")


def test_bundles_with_more_load_come_first() -> None:
    settings = replace(AT_ONCE, splits_max=1)
    plan = plan_splits(snapshot(HOT, with_topics(RIGHT, 500)), settings, {})
    assert {LEFT: f"{OVER}this round has 1 split of more loaded bundles already"} == told(plan)
    plan = plan_splits(
        snapshot(HOT, with_topics(RIGHT, 500)), replace(settings, pulsar_exact=True), {}
    )
    assert {RIGHT: "this round has 1 split already"} == told(plan)


def test_the_service_may_say_later_where_to_cut() -> None:
    """Such a split counts as one more bundle."""
    settings = replace(AT_ONCE, bundles_max=3)
    plan = plan_splits(snapshot(HOT, with_topics(RIGHT, 500), find_cuts=None), settings, {})
    assert [(RIGHT, None)] == [(decision.bundle, decision.cuts) for decision in plan.splits]
    assert {LEFT: f"{OVER}t/ns has 3 bundles, and may have at most 3"} == told(plan)
