"""Splits and merges together under a constant load: they come to rest, and never undo each
other.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from equipoise.brokers.balancing.splitting.auto_merge import (
    MergeSettings,
    MergeSnapshot,
    Pair,
    plan_merges,
)
from equipoise.brokers.balancing.splitting.auto_split import (
    SplitSettings,
    SplitSnapshot,
    plan_splits,
)
from equipoise.brokers.balancing.splitting.split_points import (
    ALGORITHMS,
    RANGE_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
    BundleLimits,
    SplitQuestion,
    TopicLoad,
    fault_of_bundle,
    split_points,
)
from equipoise.channel.core.ranges import (
    HASH_MAX,
    bundle_contains,
    bundle_name,
    children,
    parse_bundle,
)
from equipoise.shedder.loads import BundleTraffic, Traffic

NAMESPACE = "t/ns"
LIMITS = BundleLimits(
    topics_max=4, sessions_max=40, messages_per_second_max=1_000, bytes_per_second_max=1_000
)

# More than the longest row that a world asks for: what is still to come would have come by then.
QUIET_ROUNDS = 6

TOPICS_MAX = 12
FIRST_BUNDLES_MAX = 8

# A range comes back only if it, or one around it, is made after it was cut. So if none is both made
# and cut, there is an end. Each range that is cut holds a topic. Halving cuts at most 32 nested
# ranges around one; other algorithms cut only between two.
CUTS_MAX = 32 * TOPICS_MAX

# A merge takes back one cut, or joins two of the first bundles.
MERGES_MAX = CUTS_MAX + FIRST_BUNDLES_MAX

# At worst each split and each merge has rounds of its own. Twelve hot points and one split a round
# take about 450 rounds.
ROUNDS_MAX = QUIET_ROUNDS * (CUTS_MAX + MERGES_MAX + 1)


@dataclass(frozen=True, kw_only=True)
class Topic:
    """What does not change: the place of a topic, and its load."""

    point: int
    messages: float
    sessions: int


@dataclass(kw_only=True)
class World:
    """A namespace whose bundles are split and merged; `owners` by range. It remembers all ranges
    that were cut or made.
    """

    topics: list[Topic]
    owners: dict[tuple[int, int], str]
    algorithm: str
    split: SplitSettings
    merge: MergeSettings
    are_counted: bool = True
    cut: set[tuple[int, int]] = field(default_factory=set)
    made: set[tuple[int, int]] = field(default_factory=set)
    split_hits: dict[str, dict[str, int]] = field(default_factory=dict)
    merge_hits: dict[str, dict[Pair, int]] = field(default_factory=dict)
    fewest: int = HASH_MAX

    def round(self) -> None:
        """Let each broker split and merge once."""
        for broker in sorted(set(self.owners.values())):
            self._split(broker)
        # They merge at the same time, none knowing of the others.
        counted = len(self.owners)
        for broker in sorted(set(self.owners.values())):
            self._merge(broker, counted)
        self.fewest = min(self.fewest, len(self.owners))

    def _split(self, broker: str) -> None:
        snapshot = SplitSnapshot(
            broker=broker,
            bundles=self._bundles(broker),
            bundle_counts={NAMESPACE: len(self.owners)},
        )
        plan = plan_splits(snapshot, self.split, self.split_hits.get(broker, {}))
        self.split_hits = {**self.split_hits, broker: dict(plan.hits)}
        for decision in plan.splits:
            _, low, high = parse_bundle(decision.bundle)
            self.cut.add((low, high))
            self.owners = {
                place: owner for place, owner in self.owners.items() if place != (low, high)
            }
            self.owners |= dict.fromkeys(children(low, high, self._cuts(low, high)), broker)

    def _merge(self, broker: str, counted: int) -> None:
        snapshot = MergeSnapshot(
            broker=broker,
            bundles=self._bundles(broker),
            bundle_counts={NAMESPACE: counted},
            brokers=len(set(self.owners.values())),
        )
        plan = plan_merges(snapshot, self.merge, self.merge_hits.get(broker, {}))
        self.merge_hits = {**self.merge_hits, broker: dict(plan.hits)}
        for decision in plan.merges:
            left, right = parse_bundle(decision.left), parse_bundle(decision.right)
            gone = ((left.low, left.high), (right.low, right.high))
            assert [broker, broker] == [self.owners[place] for place in gone]
            assert left.high == right.low
            self.owners = {
                place: owner for place, owner in self.owners.items() if place not in gone
            }
            self.owners[left.low, right.high] = broker
            self.made.add((left.low, right.high))

    def _inside(self, low: int, high: int) -> list[Topic]:
        return [topic for topic in self.topics if bundle_contains(low, high, topic.point)]

    def _bundles(self, broker: str) -> list[BundleTraffic]:
        bundles = []
        for low, high in (place for place, owner in self.owners.items() if owner == broker):
            inside = self._inside(low, high)
            messages = float(sum(topic.messages for topic in inside))
            bundles.append(
                BundleTraffic(
                    bundle=bundle_name(NAMESPACE, low, high),
                    traffic=Traffic(messages_in_per_second=messages),
                    topics=len(inside) if self.are_counted else 0,
                    consumers=sum(topic.sessions for topic in inside),
                )
            )
        return bundles

    def _cuts(self, low: int, high: int) -> tuple[int, ...]:
        topics = [
            TopicLoad(point=topic.point, messages_per_second=topic.messages)
            for topic in self._inside(low, high)
        ]
        return split_points(
            self.algorithm,
            SplitQuestion(low=low, high=high, topics=topics, limits=LIMITS, margin=0.0),
        )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """One to eight bundles of one to three brokers, with topics that may lie close together."""
    points = st.one_of(
        st.integers(0, HASH_MAX),
        st.sampled_from([5, 6, 7, 100, 0x40000000, HASH_MAX - 1, HASH_MAX]),
    )
    messages = st.sampled_from(
        [0.0, 10.0, 100.0, 250.0, 499.0, 500.0, 501.0, 999.0, 1_001.0, 5_000.0]
    )
    topic = st.builds(
        Topic, point=points, messages=messages, sessions=st.sampled_from([0, 1, 12, 50])
    )
    topics = draw(st.lists(topic, max_size=TOPICS_MAX))
    inside = st.one_of(points, st.integers(1, HASH_MAX - 1)).filter(lambda cut: 0 < cut < HASH_MAX)
    cuts = sorted(draw(st.sets(inside, max_size=FIRST_BUNDLES_MAX - 1)))
    brokers = st.sampled_from(["a:1", "b:1", "c:1"][: draw(st.integers(1, 3))])
    return World(
        topics=topics,
        owners={place: draw(brokers) for place in children(0, HASH_MAX, cuts)},
        algorithm=draw(
            st.sampled_from([name for name in ALGORITHMS if name != SPECIFIED_POSITIONS_DIVIDE])
        ),
        split=SplitSettings(
            limits=LIMITS,
            hits_threshold=draw(st.integers(0, 2)),
            splits_max=draw(st.integers(1, 4)),
            bundles_max=24,
        ),
        merge=MergeSettings(
            limits=LIMITS,
            cold_ratio=draw(st.sampled_from([0.1, 0.5, 0.99])),
            hits_threshold=draw(st.integers(0, 2)),
            merges_max=draw(st.integers(1, 4)),
            bundles_min=draw(st.integers(1, 6)),
        ),
        are_counted=draw(st.booleans()),
    )


def come_to_rest(world: World) -> None:
    """Run rounds until nothing changes. Raise `AssertionError` if a range is both made and cut."""
    quiet = 0
    for _ in range(ROUNDS_MAX):
        before = world.owners
        world.round()
        assert not world.cut & world.made, f"made and cut: {sorted(world.cut & world.made)}"
        quiet = quiet + 1 if world.owners == before else 0
        if quiet == QUIET_ROUNDS:
            return
    raise AssertionError(f"still at it after {ROUNDS_MAX} rounds: {world.owners}")


@settings(max_examples=200, deadline=None)
@given(worlds())
@example(
    # Each of the five points exceeds a limit alone. Halving cuts each of them free, with one split
    # a round: 145 rounds.
    World(
        topics=[
            Topic(point=0, messages=501.0, sessions=50),
            Topic(point=1_048_575, messages=0.0, sessions=50),
            Topic(point=536_870_911, messages=1_001.0, sessions=0),
            Topic(point=1_073_741_823, messages=1_001.0, sessions=0),
            Topic(point=2_147_483_647, messages=10.0, sessions=50),
        ],
        owners={(0, HASH_MAX): "a:1"},
        algorithm=RANGE_EQUALLY_DIVIDE,
        split=SplitSettings(limits=LIMITS, hits_threshold=0, splits_max=1, bundles_max=24),
        merge=MergeSettings(
            limits=LIMITS, cold_ratio=0.1, hits_threshold=1, merges_max=1, bundles_min=1
        ),
        are_counted=False,
    )
)
def test_under_a_constant_load_splits_and_merges_end(world: World) -> None:
    """Splits and merges end. No range that a merge made is cut, and no range that was cut is made
    again.
    """
    start, history_snapshot = len(world.owners), world.merge.bundles_min
    come_to_rest(world)
    assert world.fewest >= min(start, history_snapshot)
    assert [(0, HASH_MAX)] == [
        (min(low for low, _ in world.owners), max(high for _, high in world.owners))
    ]
    assert all(one[1] == other[0] for one, other in pairwise(sorted(world.owners)))


# --- whatever a report says ---

FIGURES = st.sampled_from([0.0, 1.0, 200.0, 501.0, float("nan"), float("inf"), -1.0, 1e300])
POINTS = [0, 1, 2, 0x1000, 0x40000000, 0x80000000, HASH_MAX - 1, HASH_MAX]
NAMES = [
    bundle_name(namespace, low, high)
    for namespace in ("t/ns1", "t/ns10")
    for low, high in pairwise(POINTS)
]


@st.composite
def rounds(draw: st.DrawFn) -> tuple[MergeSnapshot, MergeSettings, dict[Pair, int]]:
    """A round of neighbours, some with impossible figures, some pending, some with a row that has
    started.
    """
    names = draw(
        st.lists(
            st.sampled_from([*NAMES, "nonsense", bundle_name("t/ns1", 0, HASH_MAX)]), unique=True
        )
    )
    traffics = st.builds(Traffic, messages_in_per_second=FIGURES, bytes_out_per_second=FIGURES)
    snapshot = MergeSnapshot(
        broker="a:1",
        bundles=[
            BundleTraffic(
                bundle=name, traffic=draw(traffics), topics=draw(st.sampled_from([0, 1, 3, -1]))
            )
            for name in names
        ],
        bundle_counts=draw(
            st.dictionaries(st.sampled_from(["t/ns1", "t/ns10"]), st.integers(1, 20))
        ),
        brokers=draw(st.integers(1, 4)),
        pending=dict.fromkeys(
            draw(st.lists(st.sampled_from(names), unique=True)) if names else [],
            "it was moved lately",
        ),
    )
    wanted = MergeSettings(
        limits=LIMITS,
        hits_threshold=draw(st.integers(0, 3)),
        merges_max=draw(st.integers(1, 4)),
        bundles_min=draw(st.integers(1, 8)),
    )
    pairs = st.sampled_from(list(pairwise(NAMES)))
    return snapshot, wanted, draw(st.dictionaries(pairs, st.integers(1, 5), max_size=12))


@given(rounds(), st.randoms(use_true_random=False))
def test_every_bundle_is_merged_within_all_bounds_or_has_a_reason(
    drawn: tuple[MergeSnapshot, MergeSettings, dict[Pair, int]], chance: random.Random
) -> None:
    """Merged neighbours are plausible, at rest and were cold for long enough, and a namespace keeps
    its least number of bundles. The order of the report does not matter.
    """
    snapshot, wanted, hits = drawn
    plan = plan_merges(snapshot, wanted, hits)
    reported = {bundle.bundle: bundle for bundle in snapshot.bundles}
    assert len(plan.merges) <= wanted.merges_max
    merged: Counter[str] = Counter()
    for merge in plan.merges:
        left, right = parse_bundle(merge.left), parse_bundle(merge.right)
        assert (left.namespace, left.high) == (right.namespace, right.low)
        assert not {merge.left, merge.right} & set(snapshot.pending)
        assert [None, None] == [
            fault_of_bundle(reported[name]) for name in (merge.left, merge.right)
        ]
        assert (
            wanted.limits.fullest(reported[merge.left], reported[merge.right]).share
            < wanted.cold_ratio
        )
        assert hits.get((merge.left, merge.right), 0) >= wanted.hits_threshold
        merged[left.namespace] += 1
    for namespace, fewer in merged.items():
        assert snapshot.bundle_counts[namespace] - fewer * snapshot.brokers >= wanted.bundles_min
    assert sorted(reported) == sorted(
        [
            *(name for merge in plan.merges for name in (merge.left, merge.right)),
            *(stay.subject for stay in plan.stays),
        ]
    )
    shuffled = replace(
        snapshot, bundles=chance.sample(list(snapshot.bundles), len(snapshot.bundles))
    )
    assert plan == plan_merges(shuffled, wanted, hits)
