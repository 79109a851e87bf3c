"""How evenly brokers are used, and which bundle is the busiest, as the demo tells it."""

from __future__ import annotations

from equipoise.brokers.local.demo.evenness import Evenness, busiest, evenness_of
from equipoise.shedder.load_reports import Summary
from equipoise.shedder.loads import Averages, BrokerLoad, BundleTraffic, Traffic
from tests.folding import NAMESPACE, channel_with


def summary(broker: str, used: float, *bundles: BundleTraffic, taken_ms: int = 0) -> Summary:
    """What is known of a broker that uses so much on average."""
    load = BrokerLoad(taken_ms=taken_ms, averages=Averages(weighted_max=used, bytes_per_second=0), bundles=bundles)
    return Summary(broker=broker, load=load, cost=0)


def bundle(name: str, messages: float, *, topics: int = 0) -> BundleTraffic:
    """What is known of a bundle."""
    return BundleTraffic(bundle=name, topics=topics, traffic=Traffic(messages_in_per_second=messages))


def test_the_deviation_is_that_of_all_live_brokers() -> None:
    """Those that are dead do not count, and the text names each with its use."""
    view = channel_with("b", "a").view
    found = evenness_of(view, [summary("a", 0.5), summary("b", 0.1), summary("dead", 9.0)])
    assert Evenness(used={"a": 0.5, "b": 0.1}) == found
    assert "a 50%, b 10%; deviation 20.0%" == found.text
    assert [False, True] == [found.within(0.19), found.within(0.21)]


def test_where_somebody_is_silent_nothing_is_even() -> None:
    """The deviation is not known before all have spoken, and the text says who has not."""
    view = channel_with("a", "b").view
    found = evenness_of(view, [summary("a", 0.5)])
    assert (None, False, "a 50%; nothing is known of b") == (found.deviation, found.within(1.0), found.text)
    assert "nobody says anything; nothing is known of a, b" == evenness_of(view, ()).text


def test_the_busiest_bundle_is_one_that_can_be_divided() -> None:
    """Of a namespace, by the word of who owns it, and of those that have several topics or are not made of topics."""
    channel = channel_with("a", "b", bundles=4)
    first, second, third, fourth = (found.name for found in channel.view.bundles_of(NAMESPACE))
    for place, broker in enumerate("aabb"):
        channel.own(broker, place << 30)
    told = [
        summary("a", 0.1, bundle(first, 10.0, topics=2), bundle(second, 90.0, topics=1), bundle(third, 99.0), bundle("t/gone/x", 99.0)),
        summary("b", 0.1, bundle(third, 30.0), bundle(fourth, 20.0)),
    ]
    found = busiest(channel.view, told, NAMESPACE)
    assert found is not None
    assert (third, 30.0) == (found.bundle, found.traffic.messages_per_second)
    assert busiest(channel.view, told, "t/none") is None
