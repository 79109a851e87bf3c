"""The vectors of Pulsar's split strategy, asked of `brokers.balancing.splitting.auto_split` round
after round.
"""

from __future__ import annotations

from typing import Any

from equipoise.brokers.balancing.splitting.auto_split import (
    SplitPlan,
    SplitSettings,
    SplitSnapshot,
    plan_splits,
)
from equipoise.brokers.balancing.splitting.split_points import (
    MIB,
    RANGE_EQUALLY_DIVIDE,
    BundleLimits,
    SplitQuestion,
    split_points,
)
from equipoise.channel.core.ranges import children, parse_bundle
from equipoise.shedder.loads import BundleTraffic
from tests.vectors.broker_load_data import traffic_of
from tests.vectors.cases import Case

# The number of bundles of a namespace of which a case does not say it.
_BUNDLES_UNTOLD = 4


def replay(case: Case) -> object:
    """What each round decides, counts and remembers."""
    hits: dict[str, int] = {}
    answers = []
    for bundles in case["input"]["rounds"]:
        plan = plan_splits(snapshot_of(case, bundles), settings_of(case), hits)
        hits = dict(plan.hits)
        answers.append(_answer(case["input"]["me"], plan))
    return answers


def settings_of(case: Case, *, pulsar_exact: bool = True) -> SplitSettings:
    """The settings of a case; a number of sessions that is not above 0 stands for none."""
    config = case["input"]["config"]
    sessions_max = config["maxSessions"]
    limits = BundleLimits(
        topics_max=config["maxTopics"],
        sessions_max=sessions_max if sessions_max > 0 else None,
        messages_per_second_max=config["maxMsgRate"],
        bytes_per_second_max=config["maxBandwidthMbytes"] * MIB,
    )
    return SplitSettings(
        limits=limits,
        hits_threshold=config["hitCountThreshold"],
        splits_max=config["maxSplitsPerCycle"],
        bundles_max=config["maxBundlesPerNamespace"],
        pulsar_exact=pulsar_exact,
    )


def snapshot_of(case: Case, bundles: dict[str, list[float]]) -> SplitSnapshot:
    """What a round of a case looks at."""
    asked = case["input"]
    namespaces = {name.rpartition("/")[0] for name in bundles}
    counts = {
        namespace: asked["bundleCount"].get(namespace, _BUNDLES_UNTOLD) for namespace in namespaces
    }
    counts.pop(asked["bundleCountFails"], None)

    return SplitSnapshot(
        broker=asked["me"],
        bundles=tuple(_traffic(name, figures) for name, figures in bundles.items()),
        bundle_counts=counts,
        not_owned=asked["notOwned"],
        splitting=[name for name, state in asked["states"].items() if state == "Splitting"],
    )


def _traffic(name: str, figures: list[float]) -> BundleTraffic:
    topics, consumers, producers, messages_in, messages_out, bytes_in, bytes_out = figures
    return BundleTraffic(
        bundle=name,
        traffic=traffic_of([bytes_in, bytes_out, messages_in, messages_out]),
        topics=int(topics),
        consumers=int(consumers),
        producers=int(producers),
    )


def _answer(broker: str, plan: SplitPlan) -> dict[str, Any]:
    decisions = []
    for split in plan.splits:
        _, low, high = parse_bundle(split.bundle)
        parts = [
            f"0x{start:08x}_0x{end:08x}"
            for start, end in children(
                low, high, split_points(RANGE_EQUALLY_DIVIDE, SplitQuestion(low=low, high=high))
            )
        ]
        decisions.append([split.bundle, broker, parts, "Success", split.excess.value])
    return {
        "decisions": decisions,
        "counted": {
            "/".join(result_and_reason): count for result_and_reason, count in plan.counted.items()
        },
        "hitCounts": dict(plan.hits),
    }
