"""Splits for any report: every bundle has an answer, every bound holds, and only a row of rounds
splits.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.splitting.auto_split import (
    FAILURE,
    SplitSettings,
    SplitSnapshot,
    plan_splits,
)
from equipoise.brokers.balancing.splitting.split_points import BundleLimits, fault_of_bundle
from equipoise.channel.core.ranges import HASH_MAX, bundle_name, parse_bundle
from equipoise.shedder.loads import BundleTraffic, Traffic

LIMITS = BundleLimits(
    topics_max=10, sessions_max=10, messages_per_second_max=10, bytes_per_second_max=10
)
POINTS = [0, 1, 2, 0x1000, 0x40000000, 0x80000000, HASH_MAX - 1, HASH_MAX]
NAMES = [
    bundle_name(namespace, low, high)
    for namespace in ("t/ns1", "t/ns10")
    for low, high in combinations(POINTS, 2)
]
FIGURES = st.sampled_from(
    [0.0, 1.0, 9.0, 10.0, 11.0, 50.0, float("nan"), float("inf"), -1.0, 1e300]
)
COUNTS = st.sampled_from([0, 1, 2, 9, 11, 40, -1])
TRAFFICS = st.builds(
    Traffic,
    bytes_in_per_second=FIGURES,
    bytes_out_per_second=FIGURES,
    messages_in_per_second=FIGURES,
    messages_out_per_second=FIGURES,
)
BUNDLES = st.builds(
    BundleTraffic,
    bundle=st.sampled_from([*NAMES, "nonsense", "t/ns1/0x1_0x2"]),
    traffic=TRAFFICS,
    topics=COUNTS,
    consumers=COUNTS,
    producers=COUNTS,
)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[SplitSnapshot, SplitSettings, dict[str, int]]:
    """A round with any report, and rows of hits that have started."""
    bundles = draw(st.lists(BUNDLES, max_size=14, unique_by=lambda bundle: bundle.bundle))
    names = [bundle.bundle for bundle in bundles]
    some = st.lists(st.sampled_from(names), unique=True) if names else st.just([])
    snapshot = SplitSnapshot(
        broker="a:1",
        bundles=bundles,
        bundle_counts=draw(
            st.dictionaries(st.sampled_from(["t/ns1", "t/ns10"]), st.integers(1, 20))
        ),
        not_owned=draw(some),
        splitting=draw(st.lists(st.sampled_from(NAMES), max_size=2)),
    )
    settings = SplitSettings(
        limits=LIMITS,
        hits_threshold=draw(st.integers(0, 3)),
        splits_max=draw(st.integers(1, 4)),
        bundles_max=draw(st.integers(1, 20)),
        pulsar_exact=False,
    )
    return (
        snapshot,
        settings,
        draw(
            st.dictionaries(
                some.map("".join) if not names else st.sampled_from(names), st.integers(1, 5)
            )
        ),
    )


@given(rounds(), st.randoms(use_true_random=False))
def test_every_bundle_is_split_within_all_bounds_or_has_a_reason(
    drawn: tuple[SplitSnapshot, SplitSettings, dict[str, int]], chance: random.Random
) -> None:
    """Split bundles are owned, plausible and over a limit, ranges that overlap are split one at a
    time, and no namespace gets too many bundles. The order of the report does not matter.
    """
    snapshot, settings, hits = drawn
    plan = plan_splits(snapshot, settings, hits)
    stays = [stay.subject for stay in plan.stays]
    split = [decision.bundle for decision in plan.splits]
    assert sorted(bundle.bundle for bundle in snapshot.bundles) == sorted(split + stays)
    assert plan.counted.get(FAILURE, 0) <= len(stays)
    assert len(split) <= settings.splits_max
    reported = {bundle.bundle: bundle for bundle in snapshot.bundles}
    added, busy = Counter[str](), [parse_bundle(name) for name in snapshot.splitting]
    for decision in plan.splits:
        namespace, low, high = parse_bundle(decision.bundle)
        assert decision.bundle not in (*snapshot.not_owned, *snapshot.splitting)
        assert settings.limits.exceeded(reported[decision.bundle]) is not None
        assert fault_of_bundle(reported[decision.bundle]) is None
        assert reported[decision.bundle].topics != 1
        assert hits.get(decision.bundle, 0) >= settings.hits_threshold
        added[namespace] += 1
        assert all(
            namespace != other.namespace or high <= other.low or other.high <= low for other in busy
        )
        busy.append(parse_bundle(decision.bundle))
    assert all(
        snapshot.bundle_counts[namespace] + more <= settings.bundles_max
        for namespace, more in added.items()
    )
    shuffled = replace(
        snapshot,
        bundles=chance.sample(list(snapshot.bundles), len(snapshot.bundles)),
        splitting=chance.sample(list(snapshot.splitting), len(snapshot.splitting)),
    )
    assert plan == plan_splits(shuffled, settings, hits)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=14), st.integers(0, 3))
def test_only_a_row_of_rounds_splits(weather: list[list[bool]], hits_threshold: int) -> None:
    """A bundle is split exactly when it has exceeded a limit in more rounds in a row than the
    threshold.
    """
    settings = SplitSettings(limits=LIMITS, hits_threshold=hits_threshold)
    names = [bundle_name("t/ns", low, low + 0x1000) for low in (0, 0x1000, 0x2000)]
    rows = dict.fromkeys(names, 0)
    hits: dict[str, int] = {}
    for hot in weather:
        bundles = [
            BundleTraffic(bundle=name, topics=11 if is_hot else 2)
            for name, is_hot in zip(names, hot, strict=True)
        ]
        rows = {
            name: rows[name] + 1 if is_hot else 0 for name, is_hot in zip(names, hot, strict=True)
        }
        expected = [name for name in names if rows[name] > hits_threshold]
        plan = plan_splits(
            SplitSnapshot(broker="a:1", bundles=bundles, bundle_counts={"t/ns": 3}), settings, hits
        )
        assert expected == [decision.bundle for decision in plan.splits]
        rows.update(dict.fromkeys(expected, 0))
        hits = dict(plan.hits)
        assert {name: row for name, row in rows.items() if row > 0} == hits
