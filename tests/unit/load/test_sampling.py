"""From the loads of bundles to a broker's sample, by example. `tests/property/test_sampling.py`
compares averages with a slow model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, ReportRules
from equipoise.brokers.load.sampling import (
    HALF_LIFE_MS,
    BundleAverages,
    Carried,
    CostWindows,
    carried_bytes,
    sampled,
)
from equipoise.shedder.costs import BYTES_PER_CALL, IDLE_COST, costs_of
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

COST_WINDOW_MS = 120_000

MESSAGING = Messaging(
    messages_in_per_second=8,
    bytes_in_per_second=80,
    messages_out_per_second=16,
    bytes_out_per_second=160,
    producers=1,
    consumers=2,
    topics=3,
)


def settled(loads: Mapping[str, BundleLoad]) -> tuple[BundleAverages, Carried]:
    """Averages after two equal loads of each bundle, so that no bundle is a newcomer."""
    averages = BundleAverages()
    averages.update(sorted(loads), loads, elapsed_ms=0, cost_window_ms=COST_WINDOW_MS)
    return averages, averages.update(
        sorted(loads), loads, elapsed_ms=0, cost_window_ms=COST_WINDOW_MS
    )


def test_a_rate_loses_half_of_its_weight_with_each_half_life() -> None:
    """Producers, consumers and topics are those of now. The cost has a window."""
    averages, _ = settled(
        {"b": BundleLoad(calls_per_second=24, bytes_per_second=240, messaging=MESSAGING)}
    )
    after = averages.update(
        ["b"],
        {"b": BundleLoad(messaging=Messaging(producers=9))},
        elapsed_ms=HALF_LIFE_MS,
        cost_window_ms=COST_WINDOW_MS,
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


def of_calls(*rates: float) -> list[float]:
    """The costs of bundles that are called so often per second."""
    return costs_of(BundleLoad(calls_per_second=rate) for rate in rates)


def costs_after(*calls: float, seconds: int = 5) -> Carried:
    """The averages of one bundle that is called so often per second, sampled every few seconds. The
    first load makes it known.
    """
    averages, carried = BundleAverages(), Carried()
    for number in (calls[0], *calls):
        load = BundleLoad(calls_per_second=number)
        carried = averages.update(
            ["b"], {"b": load}, elapsed_ms=seconds * 1_000, cost_window_ms=COST_WINDOW_MS
        )
    return carried


def test_a_short_burst_does_not_change_a_cost_and_a_lasting_change_does() -> None:
    """The window of two minutes has 24 loads. The highest and the lowest eight of them do not
    count.
    """
    calm = (10.0,) * 24
    assert of_calls(10) == pytest.approx(costs_after(*calm, *(90.0,) * 8).costs)
    assert of_calls(90) == pytest.approx(costs_after(*calm, *(90.0,) * 16).costs)


def test_a_cost_follows_a_slow_change_of_a_load_that_hardly_varies() -> None:
    """It is the mean of the newest nine loads. Loads that vary much, or at first, count in the
    whole window. A burst counts little.
    """
    rising = [100.0 + number for number in range(24)]
    assert of_calls(119) == pytest.approx(costs_after(*rising).costs)
    for burst in (1, 2, 6):
        (cost,) = costs_after(*(100.0,) * 24, *(200.0,) * burst).costs
        assert of_calls(80)[0] <= cost <= of_calls(120)[0], burst
    varying = [10.0, 200.0, 100.0] * 8
    assert of_calls(100) == pytest.approx(costs_after(*varying).costs)
    assert of_calls(104) == pytest.approx(costs_after(*rising[:9]).costs)


def test_the_cost_of_a_new_bundle_is_the_middle_of_its_loads() -> None:
    """Its first load covers only part of a period, and counts until there is another."""
    assert of_calls(10) == costs_after(10).costs
    assert of_calls(20) == pytest.approx(costs_after(10, 20, 90).costs)
    averages = BundleAverages()
    first, second = (
        averages.update(
            ["b"],
            {"b": BundleLoad(calls_per_second=calls)},
            elapsed_ms=1_000,
            cost_window_ms=COST_WINDOW_MS,
        )
        for calls in (7, 30)
    )
    assert (of_calls(7), of_calls(30)) == (first.costs, second.costs)


def test_noise_is_unknown_at_first_and_then_falls_with_the_number_of_loads() -> None:
    assert (
        None
        is CostWindows().update(
            ["b"], [50.0], newcomers=["b"], elapsed_ms=1_000, window_ms=COST_WINDOW_MS
        )[1]
    )
    assert [0.2 * of_calls(50)[0] * share for share in (8 / 9, 1 / 3, 0)] == pytest.approx(
        [costs_after(*(50.0,) * n).noise for n in (1, 6, 9)]
    )
    # A busy broker has fewer samples.
    assert 0 == pytest.approx(costs_after(*(50.0,) * 6, seconds=20).noise)
    short, long = (costs_after(*(0.0, 100.0) * turns).noise for turns in (6, 12))
    assert short is not None
    assert long is not None
    assert 0 < long < short


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
    assert pytest.approx(sum(of_calls(0, 1, 2))) == sample.cost
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
        cost_window_ms=COST_WINDOW_MS,
    )
    loads = {"t/n/a": BundleLoad(calls_per_second=9), "t/n/b": BundleLoad(calls_per_second=1)}
    for named in (["t/n/a"], ["t/n/b", "t/n/a"]):
        carried = averages.update(
            ["t/n/a", "t/n/b"], loads, elapsed_ms=0, cost_window_ms=COST_WINDOW_MS
        )
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
            NAMES, loads, rates={"seats": 0.02}, elapsed_ms=10_000, cost_window_ms=COST_WINDOW_MS
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


def test_declared_costs_are_averaged_and_forgotten() -> None:
    """The exchange of a unit must not jump. Another unit starts anew."""
    averages = BundleAverages()

    def amount(cost: float, unit: str, names: list[str]) -> float | None:
        loads = {NAMES[0]: BundleLoad(cost=cost, unit=unit)} if unit else {}
        carried = averages.update(names, loads, elapsed_ms=60_000, cost_window_ms=COST_WINDOW_MS)
        return carried.declared["t/a"].amount if carried.declared else None

    assert [100, 60, 40, 7, None, 9] == [
        amount(100, "seats", NAMES),
        amount(20, "seats", NAMES),
        amount(20, "seats", NAMES),
        amount(7, "tokens/s", NAMES),
        amount(7, "tokens/s", NAMES[1:]),
        amount(9, "tokens/s", NAMES),
    ]
