"""What the vectors of Pulsar's four classic strategies have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from equipoise.shedder.loads import BundleTraffic, Load, Weights
from equipoise.shedder.plan import Plan
from equipoise.shedder.policy import Policy
from equipoise.shedder.snapshot import Snapshot
from tests.vectors.broker_load_data import resources_of, traffic_of
from tests.vectors.cases import Case


def snapshots_of(case: Case) -> Iterator[Snapshot]:
    """The snapshot of each call of a case, without a memory.

    A bundle of which nothing is known is counted among those of its broker, and not reported.
    """
    asked = case["input"]
    for call in asked["calls"]:
        yield Snapshot(
            live=tuple(call),
            loads={
                broker: _load_of(asked, broker, resources) for broker, resources in call.items()
            },
            resting=dict.fromkeys(asked["recentlyUnloadedBundles"], "it has moved lately"),
        )


def _load_of(asked: Mapping[str, Any], broker: str, resources: list[list[float]]) -> Load:
    bundles = asked["bundles"][broker]
    return Load(
        broker=broker,
        at_ms=0,
        resources=resources_of(resources),
        traffic=traffic_of(asked["brokerTraffic"][broker]),
        average_use=0.0,
        average_bytes_per_second=0.0,
        bundle_count=len(bundles),
        bundles=tuple(
            BundleTraffic(bundle=name, traffic=traffic_of(traffic))
            for name, *traffic in bundles
            if None not in traffic
        ),
    )


def unloads_of(plan: Plan) -> dict[str, list[str]]:
    """What each broker gives, in order."""
    found: dict[str, list[str]] = {}
    for move in plan.moves:
        found.setdefault(move.source, []).append(move.bundle)
    return found


def plans_of(
    policy: Policy, case: Case, weights: Weights | None = None
) -> Iterator[tuple[Snapshot, Plan, Any]]:
    """The plan of each call, with what it was made of and what is remembered after it."""
    memory: object = None
    for snapshot in snapshots_of(case):
        given = replace(snapshot, weights=weights or Weights())
        plan, memory = policy.plan(given, memory)
        yield given, plan, memory
