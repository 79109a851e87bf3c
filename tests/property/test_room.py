"""No round of any policy brings a broker above a limit, whatever its brokers report."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.brokers.balancing.placement import LeastCost
from equipoise.brokers.balancing.planning import cluster_snapshot_of, plan_round
from equipoise.brokers.balancing.settings.balancing_settings import (
    SHEDDERS,
    BalancingSettings,
    RoundSettings,
)
from equipoise.shedder.loads import BundleTraffic, Declared, Load, Resources, Traffic, Use
from tests.load.loaded import uneven_channel

NOW_MS = 1_700_000_000_000
BROKERS = "abcd"
MIB = 1 << 20
EAGER: Mapping[str, Mapping[str, float]] = {
    "transfer": {"hit_count_threshold": 0, "target_deviation": 0.05},
    "average": {"low_hits": 1, "messages_min": 0, "bytes_min": 0},
    "uniform": {"messages_min": 0, "bytes_min": 0},
    "threshold": {"bytes_min": 0},
}
"""Settings with which policies move something at once."""


@settings(max_examples=150, deadline=None)
@given(
    owners=st.text(BROKERS, min_size=8, max_size=16),
    memory=st.lists(st.sampled_from([0, 30, 70, 80, 85, 86, 99]), min_size=4, max_size=4),
    keeps=st.lists(st.sampled_from([0, 10, 50, 200]), min_size=16, max_size=16),
    costs=st.lists(st.floats(1, 1_000), min_size=16, max_size=16),
    seats=st.lists(st.sampled_from([0, 100, 1_000, 4_000]), min_size=4, max_size=4),
    shedder=st.sampled_from(sorted(SHEDDERS)),
)
def test_no_round_brings_a_broker_above_a_limit(
    *,
    owners: str,
    memory: list[int],
    keeps: list[int],
    costs: list[float],
    seats: list[int],
    shedder: str,
) -> None:
    """Each has 1,000 MiB, and a number of seats, if that is not 0. A seat costs a half."""
    channel = uneven_channel(owners, brokers=BROKERS)
    bundles = [bundle.name for bundle in channel.view.bundles_of("tenant/ns")]
    kept = dict(zip(bundles, keeps, strict=False))
    loads = []
    for broker, percent, limit in zip(BROKERS, memory, seats, strict=True):
        traffic = [
            BundleTraffic(
                bundle=name,
                traffic=Traffic(bytes_in_per_second=1e6 * cost, messages_in_per_second=cost),
                cache_bytes=kept[name] * MIB,
                cost=cost,
            )
            for name, owner, cost in zip(bundles, owners, costs, strict=False)
            if owner == broker
        ]
        cost = sum(each.cost for each in traffic)
        loads.append(
            Load(
                broker=broker,
                at_ms=NOW_MS,
                resources=Resources(
                    cpu=Use(used=cost, limit=1_000), memory=Use(used=10 * percent, limit=1_000)
                ),
                average_use=cost / 1_000,
                average_bytes_per_second=1e6 * cost,
                traffic=Traffic(bytes_in_per_second=1e6 * cost, messages_in_per_second=cost),
                bundle_count=len(traffic),
                cost=cost,
                bundles=tuple(traffic),
                declared={"tenant/ns": Declared(unit="seats", rate=0.5)},
                capacities={"seats": limit} if limit else {},
            )
        )
    chosen = BalancingSettings(balancing=RoundSettings(shedder=shedder))
    for group, values in EAGER.items():
        chosen = chosen.with_group(group, **values)
    cluster = cluster_snapshot_of(channel.view, loads, chosen, now_ms=NOW_MS)
    planned = plan_round(
        cluster,
        chosen,
        LeastCost(loads={load.broker: load for load in loads}),
        memory=chosen.policy.as_if_due(cluster.snapshot),
    )
    used = {broker: 10 * percent for broker, percent in zip(BROKERS, memory, strict=True)}
    taken = {load.broker: 2 * load.cost for load in loads}
    weight = dict(zip(bundles, costs, strict=False))
    for move in planned.plan.moves:
        if move.destination is not None:
            used[move.destination] += kept[move.bundle]
            taken[move.destination] += 2 * weight[move.bundle]
            assert used[move.destination] <= 850
            limit = seats[BROKERS.index(move.destination)]
            assert taken[move.destination] <= (limit + 1e-6 if limit else math.inf)
