"""Clusters as their brokers report them, for the tests of Pulsar's strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from equipoise.shedder.loads import BundleTraffic, Load, Resources, Traffic, Use
from equipoise.shedder.plan import Plan
from equipoise.shedder.policy import Policy
from equipoise.shedder.snapshot import Snapshot

NOW_MS = 1_700_000_000_000
MESSAGE_BYTES = 1_000
NAMESPACE = "tenant/space"


def broker(percent: float, /, **bytes_per_second: float) -> Load:
    """A broker with this CPU use in percent, and bundles with these bytes per second, in messages
    of 1,000 bytes.
    """
    bundles = tuple(
        bundle(f"{NAMESPACE}/{name}", throughput) for name, throughput in bytes_per_second.items()
    )
    traffic = traffic_of(sum(bytes_per_second.values()))
    return Load(
        broker="a",
        at_ms=NOW_MS,
        resources=Resources(cpu=Use(used=percent, limit=100)),
        traffic=traffic,
        average_use=percent / 100,
        average_bytes_per_second=traffic.bytes_per_second,
        bundle_count=len(bundles),
        bundles=bundles,
    )


def in_namespace(namespace: str, load: Load) -> Load:
    """The broker, with its bundles in another namespace."""
    bundles = [
        replace(each, bundle=each.bundle.replace(NAMESPACE, namespace)) for each in load.bundles
    ]
    return replace(load, bundles=tuple(bundles))


def bundle(name: str, bytes_per_second: float) -> BundleTraffic:
    return BundleTraffic(bundle=name, traffic=traffic_of(bytes_per_second), topics=1)


def traffic_of(bytes_per_second: float) -> Traffic:
    """All bytes go out."""
    return Traffic(
        bytes_out_per_second=bytes_per_second,
        messages_out_per_second=bytes_per_second / MESSAGE_BYTES,
    )


def cluster(loads: Mapping[str, Load]) -> Snapshot:
    """A cluster of live brokers that serve what they report."""
    owners = {each.bundle: name for name, load in loads.items() for each in load.bundles}
    return Snapshot(now_ms=NOW_MS, live=tuple(sorted(loads)), loads=loads, owners=owners)


def plan_of(policy: Policy, snapshot: Snapshot, memory: object = None) -> Plan:
    """The plan of one round."""
    plan, _ = policy.plan(snapshot, memory)
    return plan


def moves_of(plan: Plan) -> list[str]:
    """The moves in order, as `bundle: source -> destination`, without the namespace."""
    return [
        f"{move.bundle.rpartition('/')[2]}: {move.source} -> {move.destination or 'any'}"
        for move in plan.moves
    ]


def stays_of(plan: Plan) -> dict[str, str]:
    """The reasons of those that stay; bundles without the namespace."""
    return {stay.subject.rpartition("/")[2]: stay.reason for stay in plan.stays}


def outcome_of(plan: Plan) -> str | None:
    """The result and cause of an idle round."""
    return None if plan.idle is None else f"{plan.idle.result}/{plan.idle.cause}"
