"""Placement strategies: who gets a bundle by what is known of the load, and how a batch is weighed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from equipoise.brokers.balancing import placement
from equipoise.brokers.balancing.destinations import PlacementRules
from equipoise.brokers.balancing.placement import (
    FewestBundles,
    LeastCost,
    LeastLongTermMessageRate,
    LeastResourceUsageWithWeight,
    Placement,
    RoundRobin,
    by_messages,
    by_use,
    choose_among,
)
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry
from equipoise.shedder.load_reports import Summary
from equipoise.shedder.loads import BundleTraffic
from tests.channels.folding import Channel
from tests.channels.ruled import Member, bundle_of, give, load, ruled_channel, set_policy

NS = "t/ns"
EXACT = PlacementRules(pulsar_exact=True)


def placed(channel: Channel, placement: Placement, bundles: list[BundleEntry] | None = None, *, at_most: int = 99) -> dict[str, str]:
    """The broker that each of the free bundles of the namespace goes to, by the start of its range, in order of placing."""
    free = [bundle for bundle in channel.view.bundles_of(NS) if bundle.phase == "free"] if bundles is None else bundles
    incarnations = placement.place(channel.view, free, avoid={}, at_most=at_most)
    names = {channel.incarnation(name): name for name in channel.view.brokers}
    return {name.rpartition("/")[2][2:6]: names[incarnation] for name, incarnation in incarnations.items()}


def summary(broker: str, *, cost: float, costs: Mapping[str, float] | None = None) -> Summary:
    """A report of what the bundles of a broker cost, in all and one by one."""
    bundles = tuple(BundleTraffic(bundle=name, cost=each) for name, each in (costs or {}).items())
    return Summary(broker=broker, load=replace(load(), bundle_count=len(bundles), bundles=bundles), cost=cost)


def names(channel: Channel) -> list[str]:
    """The bundles of the namespace, in order of the hash space."""
    return [bundle.name for bundle in channel.view.bundles_of(NS)]


def test_every_strategy_goes_by_the_rules() -> None:
    """A pinned bundle goes to the one broker that it is pinned to, though all others are idle."""
    channel = ruled_channel(["a", "b", "c"], {NS: None}, bundles=8)
    set_policy(channel, "pin/p", {"namespace": NS, "brokers.0": "b"})
    strategies = (FewestBundles(), LeastCost(), LeastLongTermMessageRate(), LeastResourceUsageWithWeight(), RoundRobin())
    exact = (LeastLongTermMessageRate(rules=EXACT), LeastResourceUsageWithWeight(rules=EXACT))
    for strategy in (*strategies, *exact):
        assert {"b": 8} == Counter(placed(channel, strategy).values())


def test_a_bundle_that_waits_for_its_broker_takes_nobodys_place() -> None:
    """Of eight bundles half are pinned to a broker that is away: the others are placed, be they ever so far behind."""
    channel = ruled_channel(["a", "b"], {NS: None}, bundles=8)
    set_policy(channel, "pin/p", {"namespace": NS, "range": "0x00000000_0x80000000", "brokers.0": "gone"})
    assert {"8000": "a", "a000": "b", "c000": "a"} == placed(channel, FewestBundles(), at_most=3)


def test_round_robin_goes_on_where_it_was() -> None:
    """From one batch to the next, past those that may not have a bundle."""
    channel = ruled_channel(["a", "b", "c"], {NS: None}, bundles=4)
    robin = RoundRobin()
    bundles = channel.view.bundles_of(NS)
    assert ["a", "b"] == list(placed(channel, robin, bundles[:2]).values())
    assert ["c", "a"] == list(placed(channel, robin, bundles[2:]).values())


# --- message rates ---


def test_the_fewest_messages_decide() -> None:
    """What is placed counts at once, with the rate that its last broker reported: the heaviest bundle is placed first."""
    channel = ruled_channel(["a", "b", "dead"], {NS: None}, bundles=4)
    first, second, third, fourth = names(channel)
    loads = {
        "a": load(messages=100),
        "b": load(messages=130),
        "dead": load(messages=100, bundles={first: 10, second: 60, third: 20, fourth: 10}),
    }
    channel.die("dead")
    assert {"4000": "a", "8000": "b", "0000": "b", "c000": "a"} == placed(channel, LeastLongTermMessageRate(loads=loads))


def test_an_overloaded_broker_comes_last() -> None:
    """However few messages it has; where all are overloaded the fewest messages decide again."""
    channel = ruled_channel(["a", "b"], {NS: None})
    loads = {"a": load(0.86, messages=1), "b": load(0.5, messages=100)}
    assert ["b"] == list(placed(channel, LeastLongTermMessageRate(loads=loads)).values())
    both = {"a": load(0.86, messages=1), "b": load(0.9, messages=100)}
    assert ["a"] == list(placed(channel, LeastLongTermMessageRate(loads=both)).values())


def test_pulsar_draws_among_equals() -> None:
    """Among those with the fewest messages, and among all where all are overloaded: here by the name of the bundle, and evenly enough."""
    channel = ruled_channel(["a", "b", "c"], {NS: None}, bundles=64)
    calm = {"a": load(0.1, messages=5), "b": load(0.1, messages=5), "c": load(0.1, messages=6)}
    full = {name: load(0.9, messages=number) for number, name in enumerate("abc")}
    for loads, expected in ((calm, {"a", "b"}), (full, {"a", "b", "c"})):
        chosen = [placed(channel, LeastLongTermMessageRate(loads=loads, rules=EXACT), [bundle]) for bundle in channel.view.bundles_of(NS)]
        drawn = Counter(broker for each in chosen for broker in each.values())
        assert expected == set(drawn)
        assert min(drawn.values()) >= 10


# --- resource use ---

USED = {"a": 0.1, "b": 0.3, "c": 0.8}


def test_the_worked_example_of_pulsars_settings() -> None:
    """Brokers at 10, 30 and 80 % have a mean of 40 %: with a margin of 10 % the first two are the candidates."""
    assert ["a", "b"] == choose_among("abc", USED, 10)


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ({"a": 0.1, "b": 0.3, "c": 0.6}, "a"),
        ({"a": 0.2, "b": 0.3, "c": 0.5}, "a"),
        ({"a": 0.35, "b": 0.2, "c": 0.45}, "b"),
        ({"a": 0.5, "b": 1.0}, "a"),
        ({"a": 0.5, "b": 0.5, "c": 0.5}, "abc"),
        ({}, "abc"),
    ],
)
def test_who_is_used_less_than_the_mean(used: Mapping[str, float], expected: str) -> None:
    """The cases of Pulsar's own test, with its margin of 5 %; one without a report is among all, and else not."""
    assert list(expected) == list(choose_among("abc", used, 5))


def test_the_least_used_gets_it_until_it_is_no_longer() -> None:
    """Each bundle adds its share of its last broker's use, so that a batch ends even."""
    channel = ruled_channel(["a", "b", "dead"], {NS: None}, bundles=4)
    bundles = dict.fromkeys(names(channel), 100.0)
    loads = {"a": load(0.1, throughput=1), "b": load(0.3, throughput=9), "dead": load(0.8, throughput=400, bundles=bundles)}
    channel.die("dead")
    assert ["a", "b", "a", "b"] == list(placed(channel, LeastResourceUsageWithWeight(loads=loads)).values())


def test_pulsar_goes_by_its_last_reports_alone() -> None:
    """The whole batch goes to the one that is idle."""
    channel = ruled_channel(["a", "b", "c"], {NS: None}, bundles=16)
    loads = {"a": load(0.1), "b": load(0.8), "c": load(0.9)}
    assert {"a": 16} == Counter(placed(channel, LeastResourceUsageWithWeight(loads=loads, rules=EXACT)).values())


def test_one_without_a_report_counts_as_the_mean() -> None:
    """So that a broker that has just joined gets something, and not everything."""
    channel = ruled_channel(["a", "b", "new"], {NS: None}, bundles=4)
    bundles = dict.fromkeys(names(channel), 100.0)
    loads = {"a": load(0.5, throughput=400, bundles=bundles), "b": load(0.5)}
    assert 1 <= Counter(placed(channel, LeastResourceUsageWithWeight(loads=loads)).values())["new"] <= 2


def test_a_report_that_cannot_be_is_not_believed() -> None:
    """A broker that lies low, with figures that no broker can have, counts as one without a report."""
    channel = ruled_channel(["a", "b", "c"], {NS: None})
    for lie in (float("nan"), -1.0, float("inf"), 1e300):
        used = {"a": load(lie), "b": load(0.2), "c": load(0.4)}
        assert ["b"] == list(placed(channel, LeastResourceUsageWithWeight(loads=used)).values())
        messages = {"a": load(messages=lie), "b": load(messages=5), "c": load(messages=9)}
        assert ["b"] == list(placed(channel, LeastLongTermMessageRate(loads=messages)).values())


def test_next_to_no_throughput_says_nothing_of_what_a_byte_costs() -> None:
    """A broker that is busy with other things, and one of a byte in ages, make no weight that is no number."""
    channel = ruled_channel(["a", "b"], {NS: None})
    (name,) = names(channel)
    for throughput in (0.0, 5e-324, 1e-300, 0.5, 1.0, 1e18):
        loads = {"a": load(1e3, throughput=throughput, bundles={name: 0.0}), "b": load(0.5, throughput=throughput)}
        scale = by_use(loads).scale(channel.view)
        assert all(0 <= figure < float("inf") for figure in (*scale.carried.values(), *scale.weights.values(), scale.usual))
        assert ["b"] == list(placed(channel, LeastResourceUsageWithWeight(loads=loads)).values())


# --- scales ---


def test_what_moved_since_the_reports_counts_where_it_is() -> None:
    """A herd of lookups does not pick one idle broker: what it was given weighs there before it says so itself."""
    channel = ruled_channel(["a", "b"], {NS: None}, bundles=4)
    first, second, third, fourth = names(channel)
    told = load(0.4, throughput=240, messages=240, bundles={first: 60, second: 60})
    loads = {"a": told, "b": load(0.1, throughput=50, messages=50)}
    give(channel, first, "b")
    give(channel, third, "b")
    assert {"a": 180.0, "b": 50.0 + 60.0 + 60.0} == by_messages(loads).scale(channel.view).carried
    assert {"a": pytest.approx(0.3), "b": pytest.approx(0.1 + 0.1 + 0.1)} == by_use(loads).scale(channel.view).carried
    scale = by_messages({**loads, "a": replace(told, bundle_count=5)}).scale(channel.view)
    assert ({"a": 180.0, "b": 50.0 + 60.0 + 40.0}, 40.0) == (scale.carried, scale.weight(fourth))


def test_a_batch_is_weighed_by_the_cost_that_levelling_goes_by() -> None:
    """The heaviest first, for the capacity of each; what nobody has weighed costs the mean."""
    channel = ruled_channel([Member(broker="small"), Member(broker="large", capacity=300)], {NS: None}, bundles=4)
    summaries = {
        "small": summary("small", cost=0),
        "large": summary("large", cost=0),
        "dead": summary("dead", cost=60, costs=dict(zip(names(channel)[:3], (10.0, 40.0, 10.0), strict=True))),
    }
    assert {"4000": "large", "c000": "large", "0000": "small", "8000": "small"} == placed(channel, LeastCost(summaries=summaries))


def test_a_cost_that_cannot_be_draws_nothing_to_its_broker() -> None:
    """Who says that its bundles cost less than nothing, or no number, counts as a broker that says nothing."""
    for cost in (-1e9, math.nan, math.inf):
        channel = ruled_channel(["a", "b"], {NS: None}, bundles=4)
        summaries = {"a": summary("a", cost=cost), "b": summary("b", cost=10)}
        assert {"a": 2, "b": 2} == Counter(placed(channel, LeastCost(summaries=summaries)).values())


def test_between_equals_the_fewest_bundles_decide_and_then_the_name() -> None:
    """Where nothing is known of any load, bundles spread by number."""
    channel = ruled_channel(["a", "b", "c"], {NS: None}, bundles=8)
    give(channel, bundle_of(channel, NS, 0).name, "a")
    for strategy in (LeastResourceUsageWithWeight(), LeastLongTermMessageRate()):
        assert ["b", "c", "a", "b", "c", "a", "b"] == list(placed(channel, strategy).values())


def test_a_draining_broker_gets_nothing_by_load() -> None:
    """Not even if it is the idlest of all."""
    channel = ruled_channel(["a", "b"], {NS: None}, bundles=2)
    channel.accept(propose.draining(channel.author("a"), channel.broker("a")))
    for strategy in (
        LeastLongTermMessageRate(loads={"b": load(0.9, messages=9)}),
        LeastResourceUsageWithWeight(loads={"a": load(0.0), "b": load(0.9)}),
    ):
        assert {"b": 2} == Counter(placed(channel, strategy).values())


def test_what_no_view_changes_is_found_when_a_placement_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """To place one bundle, as for each lookup of a free one, reads no report again."""
    channel = ruled_channel(["a", "b"], {NS: None}, bundles=4)
    loads = {"a": load(0.5, messages=5), "b": load(0.1, messages=1)}
    summaries = {"a": summary("a", cost=50), "b": summary("b", cost=1)}
    strategies = (
        LeastCost(summaries=summaries),
        FewestBundles(loads=loads),
        LeastLongTermMessageRate(loads=loads),
        LeastResourceUsageWithWeight(loads=loads),
    )
    monkeypatch.setattr(placement, "fault_of", None)
    monkeypatch.setattr(placement, "fault_of_summary", None)
    assert ["b", "a", "b", "b"] == [placed(channel, strategy, at_most=1)["0000"] for strategy in strategies]
