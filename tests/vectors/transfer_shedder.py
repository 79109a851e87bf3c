"""The vectors of `TransferShedder`, asked of `shedder.transfer` with `pulsar_exact`, in Pulsar's
debug mode and without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from equipoise.shedder.loads import BundleTraffic, Load
from equipoise.shedder.plan import Idle, Plan
from equipoise.shedder.snapshot import Candidates, Rules, Snapshot
from equipoise.shedder.transfer import TransferMemory, TransferShedder
from tests.vectors.broker_load_data import resources_of, traffic_of
from tests.vectors.cases import Case

# Any time that is greater than every age.
NOW_MS = 1_700_000_000_000


def replay(case: Case) -> object:
    """What each call of a case decides, counts and leaves behind."""
    return {
        name: _calls(case["input"], debug=name == "debugOn") for name in ("debugOn", "debugOff")
    }


def _calls(asked: Mapping[str, Any], *, debug: bool) -> list[object]:
    strategy = strategy_of(asked["config"], debug=debug)
    gave_ms = {
        broker: NOW_MS - ago_ms for broker, ago_ms in asked["recentlyUnloadedBrokersAgoMs"].items()
    }
    memory, mean, deviation = TransferMemory(), 0.0, 0.0
    told = list[object]()
    for name in asked["calls"]:
        memory = replace(memory, gave_ms=gave_ms)
        plan, memory = _plan(strategy, asked, name, memory)
        if plan.mean is not None and plan.deviation is not None:
            mean, deviation = plan.mean, plan.deviation
        told.append(
            {
                "decisions": [
                    [move.source, move.bundle, move.destination, "Success", move.cause, False]
                    for move in plan.moves
                ],
                "counted": [] if plan.idle is None else [f"{plan.idle.result}/{plan.idle.cause}"],
                "avg": mean,
                "std": deviation,
                "finalStd": plan.deviation_after or 0.0,
                "hitCount": memory.hits,
                "recentlyUnloadedBrokersLeft": list(memory.gave_ms),
            }
        )
    return told


def _plan(
    strategy: TransferShedder, asked: Mapping[str, Any], name: str, memory: TransferMemory
) -> tuple[Plan, TransferMemory]:
    if asked.get("registryFails"):
        # With us whoever takes the snapshot fails, and no shedder is asked.
        reason = "the live brokers are not known"
        return Plan(idle=Idle(result="Failure", cause="Unknown", reason=reason)), memory
    return strategy.plan(snapshot_of(asked, name), memory)


def strategy_of(config: Mapping[str, Any], *, debug: bool) -> TransferShedder:
    """The strategy with the settings of a case."""
    return TransferShedder(
        target_deviation=config["targetStd"],
        hit_count_threshold=config["hitCountThreshold"],
        sources_max=config["maxBrokersPerCycle"],
        transfer=config["transferEnabled"],
        overloaded_percent=config["overloadedThresholdPercentage"],
        load_ttl_ms=config["loadDataTtlSeconds"] * 1_000,
        cool_down_ms=config["sheddingDelaySeconds"] * 1_000,
        with_policies=config["sheddingBundlesWithPoliciesEnabled"],
        excluded_namespaces=frozenset(config["excludedNamespaces"]),
        pulsar_exact=True,
        pulsar_debug=debug,
    )


def snapshot_of(asked: Mapping[str, Any], name: str) -> Snapshot:
    """One of the snapshots of a case, with what holds for all of them."""
    told = asked["snapshots"][name]
    owners = {
        bundle[0]: broker
        for broker, bundles in told["topBundles"].items()
        for bundle in bundles
        if f"{broker}|{bundle[0]}" not in asked["notOwned"]
    }
    return Snapshot(
        now_ms=NOW_MS,
        live=tuple(asked["availableBrokers"]),
        loads={
            broker: _load_of(broker, load, told["topBundles"].get(broker))
            for broker, load in told["brokers"].items()
        },
        owners=owners,
        resting=dict.fromkeys(asked["recentlyUnloadedBundles"], "it has moved lately"),
        policies={
            **dict.fromkeys(asked["antiAffinityNamespaces"], "anti-affinity"),
            **dict.fromkeys(asked["isolationNamespaces"], "isolation"),
        },
        rules=_rules_of(asked),
    )


def _load_of(broker: str, told: Mapping[str, Any], bundles: list[list[Any]] | None) -> Load:
    return Load(
        broker=broker,
        at_ms=NOW_MS - told["ageMs"],
        resources=resources_of(
            [
                told[name]
                for name in ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")
            ]
        ),
        traffic=traffic_of(
            [
                told[name]
                for name in ("msgThroughputIn", "msgThroughputOut", "msgRateIn", "msgRateOut")
            ]
        ),
        average_use=told["weightedMaxEMA"],
        average_bytes_per_second=told["msgThroughputEMA"],
        bundle_count=told["bundleCount"],
        topics=told["topics"],
        bundles=tuple(
            BundleTraffic(bundle=name, traffic=traffic_of(traffic), topics=topics)
            for name, *traffic, topics in bundles or ()
        ),
    )


def _rules_of(asked: Mapping[str, Any]) -> Rules:
    by_bundle, by_namespace = (
        asked.get("filterAllowedByBundle", {}),
        asked["filterAllowedByNamespace"],
    )
    everybody = asked["availableBrokers"]

    def rules(bundle: str) -> Candidates:
        if asked.get("filterFails"):
            return Candidates(
                allowed=(), refused=dict.fromkeys(everybody, "the rules cannot be read")
            )
        namespace = bundle.rpartition("/")[0]
        kept = by_bundle.get(bundle, by_namespace.get(namespace, everybody))
        return Candidates(allowed=tuple(broker for broker in everybody if broker in kept))

    return rules
