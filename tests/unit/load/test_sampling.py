"""From the loads of bundles to a broker's sample, by example. `tests/property/test_sampling.py`
compares averages with a slow model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from random import Random

import pytest

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, ReportRules
from equipoise.brokers.load.sampling import (
    HALF_LIFE_MS,
    BundleAverages,
    Carried,
    CostForecasts,
    carried_bytes,
    sampled,
)
from equipoise.shedder.costs import ASSUMED, BYTES_PER_CALL, IDLE_COST, Coefficients, costs_of
from equipoise.shedder.loads import (
    BundleLoad,
    BundleTraffic,
    Messaging,
    Resources,
    Traffic,
    Use,
    Weights,
    tag_of,
    unpack,
)

WINDOW_MS = 900_000

MESSAGING = Messaging(
    messages_in_per_second=8,
    bytes_in_per_second=80,
    messages_out_per_second=16,
    bytes_out_per_second=160,
    producers=1,
    consumers=2,
    topics=3,
)


def cost_of(calls: float) -> float:
    """What a bundle costs that is called so often per second."""
    return costs_of([BundleLoad(calls_per_second=calls)])[0]


def settled(loads: Mapping[str, BundleLoad]) -> tuple[BundleAverages, Carried]:
    """Averages after two equal loads of each bundle, so that no bundle is a newcomer."""
    averages = BundleAverages()
    averages.update(sorted(loads), loads, elapsed_ms=0, cost_window_ms=WINDOW_MS)
    return averages, averages.update(sorted(loads), loads, elapsed_ms=0, cost_window_ms=WINDOW_MS)


def test_a_rate_loses_half_of_its_weight_with_each_half_life() -> None:
    """Producers, consumers and topics are those of now. The cost has a window."""
    averages, _ = settled(
        {"b": BundleLoad(calls_per_second=24, bytes_per_second=240, messaging=MESSAGING)}
    )
    after = averages.update(
        ["b"],
        {"b": BundleLoad(messaging=Messaging(producers=9))},
        elapsed_ms=HALF_LIFE_MS,
        cost_window_ms=WINDOW_MS,
    )
    expected = BundleTraffic(
        bundle="b",
        traffic=Traffic(
            bytes_in_per_second=40,
            bytes_out_per_second=80,
            messages_in_per_second=4,
            messages_out_per_second=8,
        ),
        producers=9,
        cost=IDLE_COST,
    )
    (found,) = after.bundles()
    assert expected == replace(found, cost=IDLE_COST)
    assert pytest.approx(IDLE_COST, abs=1e-6) == found.cost


def costs_after(*calls: float, averages: BundleAverages | None = None, others: int = 0) -> Carried:
    """The averages of one bundle that is called so often per second, and of `others` with 100
    calls, sampled every 5 s. The first load makes them known.
    """
    averages, carried = averages or BundleAverages(), Carried()
    for number in (calls[0], *calls):
        loads = {"b": BundleLoad(calls_per_second=number)}
        loads |= {f"o{place}": BundleLoad(calls_per_second=100.0) for place in range(others)}
        carried = averages.update(list(loads), loads, elapsed_ms=5_000, cost_window_ms=WINDOW_MS)
    return carried


def share_of_a_rise(*calls: float) -> float:
    """How much of the rise from 100 to 200 calls counts after 15 s, after these calls."""
    low, high = (
        costs_after(*calls, *(number,) * 3).costs[0] - cost_of(100) for number in (100.0, 200.0)
    )
    return (high - low) / (cost_of(200) - cost_of(100))


CALM = (100.0,) * 240
BURSTS = ((100.0,) * 36 + (200.0,) * 6) * 6
DRIFT = tuple(100.0 + (place if place < 120 else 240 - place) for place in range(240))


def test_what_of_a_change_counts_is_what_has_lasted_of_those_before() -> None:
    """A change unlike any before is believed. Bursts teach that it passes."""
    assert share_of_a_rise(*CALM) > 0.35
    assert share_of_a_rise(*BURSTS) < 0.25
    assert cost_of(100) == pytest.approx(costs_after(*BURSTS).costs[0], rel=0.2)
    lag = DRIFT[-1] - (costs_after(*DRIFT).costs[0] - cost_of(0)) / (cost_of(1) - cost_of(0))
    assert abs(lag) < 15, "a drift is followed"


def test_a_coefficient_that_is_learned_changes_no_load() -> None:
    """All costs double with every 20th sample. The noise is that of equal coefficients."""
    known, learning = BundleAverages(), BundleAverages()
    chance = Random(1)
    for turn in range(120):
        loads = {
            name: BundleLoad(calls_per_second=50 + 100 * chance.random(), sessions=turn)
            for name in "abcdefgh"
        }
        found = [
            averages.update(
                list(loads),
                loads,
                coefficients=Coefficients(
                    **{name: value * times for name, value in asdict(ASSUMED).items()}
                ),
                elapsed_ms=5_000,
                cost_window_ms=WINDOW_MS,
            )
            for averages, times in ((known, 1.0), (learning, 2.0 ** (turn // 20)))
        ]
        usual, doubled = ([*each.costs, each.noise or 0.0] for each in found)
        assert doubled == pytest.approx([2.0 ** (turn // 20) * each for each in usual])


def test_a_load_a_hundred_times_as_high_is_found_within_15_seconds() -> None:
    assert costs_after(*CALM, *(10_000.0,) * 3, others=20).costs[0] > 30 * cost_of(100)


IDLE = (0.0,) * 12


@pytest.mark.parametrize("before", [IDLE, CALM])
@pytest.mark.parametrize("others", [0, 20])
def test_another_load_counts_in_full_after_two_samples(
    before: tuple[float, ...], others: int
) -> None:
    """It is no noise, either: what was expected of another load was no error."""
    carried = costs_after(*before, *(10_000.0,) * 3, others=others)
    assert carried.costs[0] == pytest.approx(cost_of(10_000), rel=0.01)
    later = costs_after(*before, *(10_000.0,) * 8, others=others)
    assert later.noise is not None
    assert later.noise < 0.2 * later.cost


def test_one_sample_is_no_other_load() -> None:
    """A bundle that is called now and then has the mean of its loads."""
    carried = costs_after(*((100.0,) + (0.0,) * 19) * 20, others=20)
    assert carried.costs[0] < cost_of(10)


def test_a_figure_that_is_reported_again_is_no_second_sample() -> None:
    """A service may count every 10 s, and samples are taken more often."""
    averages = BundleAverages()
    costs_after(*CALM, averages=averages)
    loads = {"b": BundleLoad(calls_per_second=10_000.0)}
    for _ in range(3):
        averages.update(["b"], loads, elapsed_ms=2_500, cost_window_ms=WINDOW_MS)
    carried = averages.update(["b"], loads, elapsed_ms=2_500, cost_window_ms=WINDOW_MS)
    assert carried.costs[0] < 0.9 * cost_of(10_000)


def test_a_deviation_that_may_pass_is_noise_until_it_shows() -> None:
    """It costs about half of it more, and may cost all of it or nothing."""
    carried = costs_after(*BURSTS, *(100.0,) * 36, *(400.0,) * 2)
    assert carried.noise is not None
    assert carried.noise > 0.25 * carried.cost
    assert carried.cost > cost_of(110)


def test_noise_is_what_predictions_missed() -> None:
    """It is large at first, nearly nothing once loads have been as predicted, large where they come
    and go, and one change for good does not make it so.
    """
    first, calm, bursts = (costs_after(*calls, others=20) for calls in ((100.0,), CALM, BURSTS))
    assert first.noise is not None
    assert calm.noise is not None
    assert bursts.noise is not None
    assert first.noise > 0.15 * first.cost
    assert calm.noise < 0.02 * calm.cost
    assert bursts.noise > 1.3 * calm.noise
    changed = costs_after(*CALM, *(1_000.0,) * 60, others=20)
    assert changed.noise is not None
    assert changed.noise < 0.1 * changed.cost


def noise_after(samples: int, *, bundles: int, newcomers: int = 0) -> float:
    """The noise relative to the cost, after so many samples of bundles whose loads vary by chance
    (the standard deviation is a sixth), when newcomers are known by one of them.
    """
    forecasts, random = CostForecasts(), Random(1)
    names = [f"b{number}" for number in range(bundles)]
    old, costs, noise = names[newcomers:], list[float](), None
    for sample in range(samples + 1):
        known = names if sample >= samples - 1 else old
        found, noise = forecasts.update(
            known,
            [random.uniform(70, 130) for _ in known],
            newcomers={samples - 1: names[:newcomers], 0: old}.get(sample, ()),
            elapsed_ms=2_500,
            window_ms=WINDOW_MS,
        )
        costs = list(found)
    assert noise is not None
    return noise / math.fsum(costs)


@pytest.mark.parametrize("bundles", [3, 20])
def test_errors_of_costs_that_were_hardly_known_say_little_of_later_ones(bundles: int) -> None:
    """A few seconds of loads say hardly more than one, and half a minute says a lot."""
    shares = [math.sqrt(bundles) * noise_after(number, bundles=bundles) for number in (1, 4, 12)]
    assert shares[0] > 0.9
    assert 0.3 < shares[1] < 0.6
    assert 0.03 < shares[2] < 0.1


def test_bundles_that_have_just_come_are_noise() -> None:
    calm = noise_after(12, bundles=20)
    assert noise_after(12, bundles=20, newcomers=5) > 1.3 * calm
    assert noise_after(12, bundles=20, newcomers=20) > 4 * calm


def test_noise_is_unknown_without_a_whole_load() -> None:
    update = CostForecasts().update
    assert ([50.0], None) == update(
        ["b"], [50.0], newcomers=["b"], elapsed_ms=1_000, window_ms=WINDOW_MS
    )
    assert ([], None) == update([], [], newcomers=(), elapsed_ms=1_000, window_ms=WINDOW_MS)


def test_the_cost_of_a_new_bundle_is_the_mean_of_its_loads() -> None:
    """Its first load covers only part of a period, and counts until there is another."""
    averages = BundleAverages()
    found = [
        averages.update(
            ["b"],
            {"b": BundleLoad(calls_per_second=calls)},
            elapsed_ms=1_000,
            cost_window_ms=WINDOW_MS,
        ).costs[0]
        for calls in (7, 30, 40)
    ]
    assert [cost_of(7), cost_of(30), cost_of(35)] == pytest.approx(found)


def test_an_impossible_load_counts_as_what_the_bundle_had_before() -> None:
    forecasts = CostForecasts()
    *_, (costs, noise) = [
        forecasts.update(["b"], [load], newcomers=(), elapsed_ms=10_000, window_ms=WINDOW_MS)
        for load in (1.0, 1.0, 1e300)
    ]
    assert [1.0] == costs
    assert noise is not None
    assert math.isfinite(noise)


def test_a_load_without_messaging_figures_is_converted() -> None:
    """A call counts as an incoming message, a session as a consumer. Without bytes, each call
    counts as bytes, but not on the network. So does CPU time, with and without bytes.
    """
    loads = {
        "a": BundleLoad(calls_per_second=2, bytes_per_second=500, sessions=7),
        "b": BundleLoad(calls_per_second=2),
        "hot": BundleLoad(bytes_per_second=80, cpu_seconds_per_second=0.001),
    }
    expected = [
        BundleTraffic(
            bundle="a",
            traffic=Traffic(bytes_in_per_second=500, messages_in_per_second=2),
            consumers=7,
        ),
        BundleTraffic(
            bundle="b",
            traffic=Traffic(bytes_in_per_second=2 * BYTES_PER_CALL, messages_in_per_second=2),
        ),
        BundleTraffic(bundle="hot", traffic=Traffic(bytes_in_per_second=80 + 10 * BYTES_PER_CALL)),
    ]
    _, carried = settled(loads)
    assert [
        replace(bundle, cost=cost)
        for bundle, cost in zip(expected, costs_of(loads.values()), strict=True)
    ] == carried.bundles()
    assert (660, 160) == carried_bytes({**loads, "c": BundleLoad(messaging=MESSAGING)})


def test_a_broker_without_bundles_has_a_sample() -> None:
    _, carried = settled({})
    sample = sampled(
        carried, broker="a", at_ms=1, resources=Resources(), settings=BalancingSettings()
    )
    assert (0, 0.0, Traffic(), ()) == (
        sample.bundle_count,
        sample.cost,
        sample.traffic,
        sample.bundles,
    )


@pytest.mark.parametrize(("bundles_max", "expected"), [(1, ["t/n/2"]), (None, ["t/n/1", "t/n/2"])])
def test_a_sample_names_the_busiest_and_counts_all(
    bundles_max: int | None, expected: list[str]
) -> None:
    """Totals are over all bundles. Idle bundles are not named."""
    messaging = Messaging(topics=3)
    loads = {
        f"t/n/{calls}": BundleLoad(
            calls_per_second=calls, messaging=replace(messaging, bytes_in_per_second=1e6 * calls)
        )
        for calls in (2, 0, 1)
    }
    _, carried = settled(loads)
    resources = Resources(cpu=Use(used=30, limit=200), memory=Use(used=9, limit=10))
    settings = replace(
        BalancingSettings(),
        weights=Weights(cpu=2.0),
        reports=ReportRules(bundles_max=bundles_max, history=0.5),
    )
    sample = sampled(carried, broker="a", at_ms=7, resources=resources, settings=settings)
    assert expected == [bundle.bundle for bundle in sample.bundles]
    assert carried.bundles()[2] == sample.bundles[-1]
    assert pytest.approx(sum(map(cost_of, (0, 1, 2)))) == sample.cost
    assert (3, 9, Traffic(bytes_in_per_second=3e6)) == (
        sample.bundle_count,
        sample.topics,
        sample.traffic,
    )
    assert ("a", 7, 0.5, resources) == (
        sample.broker,
        sample.at_ms,
        sample.history,
        sample.resources,
    )
    assert pytest.approx(0.3) == sample.average_use


def test_a_newcomer_counts_but_is_not_named_yet() -> None:
    """Its first load covers only a part of the period, and an average that began with it would be
    too low.
    """
    averages = BundleAverages()
    averages.update(
        ["t/n/a"],
        {"t/n/a": BundleLoad(calls_per_second=9)},
        elapsed_ms=0,
        cost_window_ms=WINDOW_MS,
    )
    loads = {"t/n/a": BundleLoad(calls_per_second=9), "t/n/b": BundleLoad(calls_per_second=1)}
    for named in (["t/n/a"], ["t/n/b", "t/n/a"]):
        carried = averages.update(["t/n/a", "t/n/b"], loads, elapsed_ms=0, cost_window_ms=WINDOW_MS)
        assert named == [bundle.bundle for bundle in carried.busiest(2)]
        assert (10, sorted(named)) == (
            carried.traffic.messages_in_per_second,
            sorted(carried.settled),
        )
        # The other counts as the bundle that is known, and no reader takes it for its cost.
        sample = sampled(
            carried, broker="a", at_ms=7, resources=Resources(), settings=BalancingSettings()
        )
        total = carried.settled["t/n/a"] + carried.settled.get("t/n/b", carried.settled["t/n/a"])
        assert pytest.approx(total) == sample.cost
        assert {tag_of(name) for name in named} == set(unpack(sample.column, sample.cost))


NAMES = ["t/a/0x00000000_0x80000000", "t/a/0x80000000_0xffffffff", "t/b/0x00000000_0xffffffff"]


def test_declared_costs_count_in_cores_and_are_reported_by_namespace() -> None:
    """They also rank bundles for Pulsar's strategies."""
    averages = BundleAverages()
    loads = {
        NAMES[0]: BundleLoad(cost=30, unit="seats", calls_per_second=100),
        NAMES[1]: BundleLoad(cost=10, unit="seats"),
        NAMES[2]: BundleLoad(calls_per_second=2_000),
    }

    def updated() -> Carried:
        return averages.update(
            NAMES, loads, rates={"seats": 0.02}, elapsed_ms=10_000, cost_window_ms=WINDOW_MS
        )

    carried = [updated() for _ in range(60)][-1]
    assert [pytest.approx(cost, rel=1e-3) for cost in (0.6, 0.2, 0.2)] == list(carried.costs)
    ((namespace, declared),) = carried.declared.items()
    assert ("t/a", "seats", 0.02) == (namespace, declared.unit, declared.rate)
    assert [pytest.approx(40), pytest.approx(0.01, rel=1e-2)] == [
        declared.amount,
        declared.estimate,
    ]
    assert NAMES[0] == carried.busiest(1)[0].bundle


def test_a_declared_cost_is_reported_at_once() -> None:
    """What was counted does not cover the first period of a bundle. What a service declares does
    not depend on a period, and a program must not be filled beyond its capacity until it does.
    """
    loads = {
        NAMES[0]: BundleLoad(cost=30, unit="seats"),
        NAMES[2]: BundleLoad(calls_per_second=2_000),
    }
    carried = BundleAverages().update(
        NAMES[::2], loads, rates={"seats": 0.02}, elapsed_ms=10_000, cost_window_ms=WINDOW_MS
    )
    (reported,) = carried.busiest(None)
    assert NAMES[0] == reported.bundle
    assert pytest.approx(0.6, rel=1e-3) == reported.cost


def test_declared_costs_are_averaged_and_forgotten() -> None:
    """The exchange of a unit must not jump. Another unit starts anew."""
    averages = BundleAverages()

    def amount(cost: float, unit: str, names: list[str]) -> float | None:
        loads = {NAMES[0]: BundleLoad(cost=cost, unit=unit)} if unit else {}
        carried = averages.update(names, loads, elapsed_ms=60_000, cost_window_ms=WINDOW_MS)
        return carried.declared["t/a"].amount if carried.declared else None

    assert [100, 60, 40, 7, None, 9] == [
        amount(100, "seats", NAMES),
        amount(20, "seats", NAMES),
        amount(20, "seats", NAMES),
        amount(7, "tokens/s", NAMES),
        amount(7, "tokens/s", NAMES[1:]),
        amount(9, "tokens/s", NAMES),
    ]


def test_a_unit_that_nothing_is_charged_in_keeps_what_it_counts_as() -> None:
    """Averages of an idle night would make the first call of the morning cost more than the whole
    cluster. So would those of a night in which one caller is awake. What is declared at first is no
    average with the time before it.
    """
    averages = BundleAverages()

    def amounts(cost: float, turns: int) -> list[float]:
        loads = {NAMES[0]: BundleLoad(cost=cost, unit="seats")}
        return [
            averages.update(NAMES, loads, elapsed_ms=60_000, cost_window_ms=WINDOW_MS)
            .declared["t/a"]
            .amount
            for _ in range(turns)
        ]

    assert [0, 100, 100, 70] == [
        amounts(cost, turns)[-1] for cost, turns in ((0, 2), (100, 1), (0, 500), (40, 1))
    ]
    assert amounts(0.01, 500)[-1] > 30


def test_after_a_sleep_that_is_longer_than_the_window_costs_go_on() -> None:
    """A machine that slept takes its next sample hours later."""
    forecasts, found = CostForecasts(), list[float]()
    for turn in range(40):
        load, elapsed_ms = (0.2, 10 * WINDOW_MS) if turn == 20 else (0.1 + turn % 2 / 5, 2_500)
        costs, _ = forecasts.update(
            ["a"], [load], newcomers=(), elapsed_ms=elapsed_ms, window_ms=WINDOW_MS
        )
        found.extend(costs)
    assert pytest.approx(0.2, rel=0.2) == found[-1]
