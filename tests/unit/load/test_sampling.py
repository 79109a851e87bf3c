"""From loads to a sample: how loads decay, what they are in Pulsar's words, and what a sample tells of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, ReportRules
from equipoise.brokers.load.sampling import BundleAverages, Carried, carried_bytes, sampled
from equipoise.shedder.bundle_load import BundleLoad, Messaging
from equipoise.shedder.load_reports import SampledBundle
from equipoise.shedder.loads import BundleTraffic, Resources, Traffic, Use, Weights
from equipoise.shedder.snapshot import BYTES_PER_CALL, IDLE_COST

HALF_LIFE_MS = 10_000
MESSAGING = Messaging(
    messages_in_per_second=8,
    bytes_in_per_second=80,
    messages_out_per_second=16,
    bytes_out_per_second=160,
    producers=1,
    consumers=2,
    topics=3,
)


def calls(rate: float) -> dict[str, BundleLoad]:
    """What services say of one bundle."""
    return {"b": BundleLoad(calls_per_second=rate)}


def averages() -> BundleAverages:
    """New ones."""
    return BundleAverages(half_life_ms=HALF_LIFE_MS)


def known(rate: float) -> BundleAverages:
    """Those of one bundle that has been there for so long that it has an average: what it carried at both times."""
    found = averages()
    for _ in range(2):
        found.update(["b"], calls(rate), elapsed_ms=0)
    return found


def rates(carried: Carried) -> dict[str, float]:
    """Messages that come in, by bundle."""
    return dict(zip(carried.names, carried.messages_in, strict=True))


def test_the_first_load_is_the_average_and_so_is_the_second() -> None:
    """A bundle that has just come is believed at its word; and again, because it came in the midst of what the first word is of."""
    found = averages()
    assert {"b": 3} == rates(found.update(["b"], calls(3), elapsed_ms=1))
    assert {"b": 80} == rates(found.update(["b"], calls(80), elapsed_ms=1))
    assert {"b": 60} == rates(found.update(["b"], calls(40), elapsed_ms=HALF_LIFE_MS))


def test_a_load_weighs_half_as_much_after_each_half_life() -> None:
    """One half life after a change half of it is believed, and after another one three quarters."""
    found = known(0)
    assert {"b": 50} == rates(found.update(["b"], calls(100), elapsed_ms=HALF_LIFE_MS))
    assert {"b": 75} == rates(found.update(["b"], calls(100), elapsed_ms=HALF_LIFE_MS))


def test_a_clock_that_went_back_changes_nothing() -> None:
    """Where no time has passed a load says nothing new."""
    found = known(40)
    assert {"b": 40} == rates(found.update(["b"], calls(100), elapsed_ms=-5))


def test_what_is_not_open_is_forgotten() -> None:
    """A bundle that moved away leaves no average behind, and comes back as a new one, whoever else came or went."""
    found = averages()
    found.update(["a", "b"], calls(100), elapsed_ms=0)
    assert {"a": 0, "c": 0} == rates(found.update(["a", "c"], calls(100), elapsed_ms=1_000))
    assert {"b": 3, "c": 0} == rates(found.update(["b", "c"], calls(3), elapsed_ms=1_000))


def test_rates_decay_and_what_is_open_is_counted() -> None:
    """All rates are averaged alike, and so is the cost; producers, consumers and topics are those of now."""
    found = averages()
    for _ in range(2):
        found.update(["b"], {"b": BundleLoad(calls_per_second=24, bytes_per_second=240, messaging=MESSAGING)}, elapsed_ms=0)
    after = found.update(["b"], {"b": BundleLoad(messaging=Messaging(producers=9))}, elapsed_ms=HALF_LIFE_MS)
    expected = BundleTraffic(
        bundle="b",
        traffic=Traffic(bytes_in_per_second=40, bytes_out_per_second=80, messages_in_per_second=4, messages_out_per_second=8),
        producers=9,
    )
    assert [expected] == after.bundles()
    assert [IDLE_COST + 12 + 120 / BYTES_PER_CALL] == list(after.costs)


def test_a_service_without_messages_speaks_in_calls() -> None:
    """A call is a message that comes in, a session a consumer, and bytes are those that are told."""
    load = BundleLoad(calls_per_second=2, bytes_per_second=500, sessions=7)
    expected = BundleTraffic(bundle="b", traffic=Traffic(bytes_in_per_second=500, messages_in_per_second=2), consumers=7)
    assert [expected] == averages().update(["b"], {"b": load}, elapsed_ms=0).bundles()


def test_calls_without_bytes_count_as_bytes() -> None:
    """Whoever weighs bundles by their bytes alone must see those of a service that counts none; the network does not carry these."""
    loads = {"b": BundleLoad(calls_per_second=2), "c": BundleLoad(bytes_per_second=5), "d": BundleLoad(messaging=MESSAGING)}
    assert [2 * BYTES_PER_CALL, 5, 80] == list(averages().update(["b", "c", "d"], loads, elapsed_ms=0).bytes_in)
    assert (85, 160) == carried_bytes(loads)


def test_a_broker_without_bundles_has_a_sample() -> None:
    """It carries nothing, and says so."""
    sample = sampled(averages().update([], {}, elapsed_ms=0), broker="a", at_ms=1, resources=Resources(), settings=BalancingSettings())
    assert (0, 0.0, Traffic(), ()) == (sample.bundle_count, sample.cost, sample.traffic, sample.bundles)


@pytest.mark.parametrize(("bundles_max", "expected"), [(1, ["t/n/2"]), (None, ["t/n/1", "t/n/2"])])
def test_a_sample_names_the_busiest_and_counts_all(bundles_max: int | None, expected: list[str]) -> None:
    """Totals are over all bundles; of those that carry anything the busiest are named, the lightest first."""
    loads = {f"t/n/{calls}": BundleLoad(calls_per_second=1_000 * calls, sessions=1) for calls in (2, 0, 1)}
    found = averages()
    found.update(sorted(loads), loads, elapsed_ms=0)
    carried = found.update(sorted(loads), loads, elapsed_ms=0)
    resources = Resources(cpu=Use(used=30, limit=200), memory=Use(used=9, limit=10))
    settings = replace(BalancingSettings(), weights=Weights(cpu=2.0), reports=ReportRules(bundles_max=bundles_max, history=0.5))
    sample = sampled(carried, broker="a", at_ms=7, resources=resources, settings=settings)
    assert expected == [bundle.traffic.bundle for bundle in sample.bundles]
    assert SampledBundle(traffic=carried.bundles()[2], cost=IDLE_COST + 2_000.01) == sample.bundles[-1]
    assert 3 == sample.bundle_count
    assert pytest.approx(3 * (IDLE_COST + 0.01) + 3_000) == sample.cost
    assert Traffic(bytes_in_per_second=3_000 * BYTES_PER_CALL, messages_in_per_second=3_000) == sample.traffic
    assert ("a", 7, 0.3, 0.5, resources) == (
        sample.broker,
        sample.at_ms,
        round(sample.used, 6),
        sample.history,
        sample.resources,
    )


def test_topics_are_counted() -> None:
    """A sample says how many topics its broker has in all."""
    loads = {name: BundleLoad(messaging=MESSAGING) for name in ("a", "b")}
    carried = averages().update(["a", "b", "c"], loads, elapsed_ms=0)
    assert 6 == sampled(carried, broker="a", at_ms=0, resources=Resources(), settings=BalancingSettings()).topics


def test_an_absurd_load_is_not_believed_for_ever() -> None:
    """What is beyond all numbers when it is added up is told as it is, and gone with the next load."""
    found = averages()
    absurd = {"b": BundleLoad(calls_per_second=1e308)}
    found.update(["b"], absurd, elapsed_ms=0)
    assert {"b": 1e308} == rates(found.update(["b"], absurd, elapsed_ms=1_000))
    found.update(["b"], calls(5), elapsed_ms=1_000)
    assert {"b": 5} == {name: round(rate) for name, rate in rates(found.update(["b"], calls(5), elapsed_ms=1_000_000)).items()}


def test_a_newcomer_counts_and_is_not_named_yet() -> None:
    """What it is said to carry is of a part of the time, and whoever averages it from then on would begin with that."""
    found = averages()
    found.update(["t/n/a"], {"t/n/a": BundleLoad(calls_per_second=9)}, elapsed_ms=0)
    loads = {"t/n/a": BundleLoad(calls_per_second=9), "t/n/b": BundleLoad(calls_per_second=1)}
    for named in (["t/n/a"], ["t/n/b", "t/n/a"]):
        carried = found.update(["t/n/a", "t/n/b"], loads, elapsed_ms=0)
        assert named == [bundle.traffic.bundle for bundle in carried.busiest(2)]
        assert (10, sorted(named)) == (carried.traffic.messages_in_per_second, sorted(carried.settled))
