"""The placement `FewestBundles`, against a slow and obvious model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.placement import FewestBundles
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.view import View
from tests.channels.folding import NAMESPACE, Channel, joined

NOBODY_AVOIDED: Mapping[str, frozenset[int]] = {}


def channel_of(capacities: Mapping[str, int], *, bundles: int) -> Channel:
    """Return a channel with brokers of these capacities, and one namespace of free bundles."""
    channel = Channel()
    channel.genesis()
    for broker, capacity in capacities.items():
        channel.accept(
            replace(
                joined(broker, channel.view, instance_id=f"instance_id of {broker}"),
                capacity=capacity,
            )
        )
    channel.create(even_boundaries(bundles))
    return channel


def model_of(
    view: View, bundles: list[BundleEntry], avoid: Mapping[str, frozenset[int]], at_most: int
) -> dict[str, int]:
    """Place one bundle after the other at the broker with the smallest share after taking it,
    counting bundles one by one.
    """
    placed: dict[str, int] = {}
    for bundle in bundles:
        best = None
        for broker in sorted(view.live_brokers(), key=lambda broker: broker.broker):
            me = broker.incarnation
            if broker.status != "up" or me in avoid.get(bundle.name, ()):
                continue
            held = sum(1 for other in view.bundles.values() if me in (other.owner, other.source))
            share = (
                held + sum(1 for owner in placed.values() if owner == me) + 1
            ) / broker.joined.capacity
            if best is None or share < best[0]:
                best = (share, me)
        if best is not None and len(placed) < at_most:
            placed[bundle.name] = best[1]
    return placed


@given(data=st.data())
def test_the_placement_is_that_of_the_model(data: st.DataObject) -> None:
    names = data.draw(st.permutations(["a", "b", "c", "d"]))
    capacities = {name: data.draw(st.sampled_from([1, 50, 100, 300])) for name in names}
    channel = channel_of(capacities, bundles=8)
    for bundle in channel.view.bundles_of(NAMESPACE)[:4]:
        channel.accept(
            propose.assign(
                channel.admin(),
                bundle,
                owner=channel.incarnation(data.draw(st.sampled_from(names))),
            )
        )
    for name in data.draw(st.lists(st.sampled_from(names), unique=True, max_size=4)):
        channel.accept(propose.draining(channel.author(name), channel.broker(name)))
    free = [bundle for bundle in channel.view.bundles_of(NAMESPACE) if bundle.phase == "free"]
    refusers = st.frozensets(st.sampled_from([channel.incarnation(name) for name in names]))
    avoid = {bundle.name: data.draw(refusers) for bundle in free[::2]}
    at_most = data.draw(st.integers(0, len(free) + 1))
    assert model_of(channel.view, free, avoid, at_most) == FewestBundles().place(
        channel.view, free, avoid=avoid, at_most=at_most
    )


def test_a_batch_is_placed_evenly_by_capacity() -> None:
    channel = channel_of({"small": 100, "large": 300}, bundles=8)
    placed = FewestBundles().place(
        channel.view, channel.view.bundles_of(NAMESPACE), avoid=NOBODY_AVOIDED, at_most=8
    )
    assert {"small": 2, "large": 6} == {
        name: list(placed.values()).count(channel.incarnation(name)) for name in ("small", "large")
    }
