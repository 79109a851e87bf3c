"""What the demo counts of a channel and calculates from load reports."""

from __future__ import annotations

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.demo.figures import ChannelCounts, Utilization, busiest, utilization
from equipoise.channel.core import propose
from equipoise.channel.core.difference import resync_between
from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.view import View
from equipoise.shedder.load_reports import Summary
from equipoise.shedder.loads import Averages, BrokerLoad, BundleTraffic, Traffic
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_with, joined


def counts_of(channel: Channel) -> ChannelCounts:
    """Return the counts after all records of a channel."""
    reader = Reader(log="memory:test", view=View())
    counts = ChannelCounts(lambda: reader.view)
    for offset, data in channel.entries:
        counts.folded(reader.feed(Entry(offset, data)))
    return counts


def test_moves_are_counted_when_they_are_done() -> None:
    """A transfer, a split and a merge count once each; a cancelled transfer counts as cancelled."""
    channel = channel_with("a", "b")
    channel.own("a")
    channel.accept(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("b"))
    )
    channel.accept(propose.prepared(channel.author("b"), channel.bundle()))
    channel.accept(propose.hand_over(channel.author("a"), channel.bundle(), handover=None))
    channel.accept(
        propose.start_split(channel.admin(), channel.bundle(), algorithm="range_equally_divide")
    )
    channel.accept(propose.split(channel.author("b"), channel.bundle(), cuts=[MIDDLE]))
    channel.accept(propose.merge(channel.admin(), channel.bundle(), channel.bundle(MIDDLE)))
    channel.accept(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("a"))
    )
    channel.accept(propose.cancel(channel.author("a"), channel.bundle(), reason="not now"))
    counts = counts_of(channel)
    assert (1, 1, 1) == tuple(
        counts.done[kind] for kind in (MoveKind.TRANSFER, MoveKind.SPLIT, MoveKind.MERGE)
    )
    assert (1, 0) == (counts.cancelled, counts.deaths)
    assert ["14", "cancel"] == counts.newest[-1].split()[:2]


def test_a_death_is_not_a_leaving() -> None:
    """Being declared dead and being replaced are deaths; leaving is none."""
    channel = channel_with("a", "b", "c")
    channel.die("a")
    channel.accept(joined("b", channel.view, nonce="second", replaces="nonce of b"))
    channel.accept(propose.left(channel.author("c"), channel.broker("c")))
    assert 2 == counts_of(channel).deaths


def test_renewals_are_not_shown_and_rejections_are() -> None:
    """The newest records include rejections but not renewals."""
    channel = channel_with("a")
    channel.own("a")
    before = counts_of(channel).newest
    channel.accept(propose.renewed(channel.author("a"), channel.broker("a")))
    assert before == counts_of(channel).newest
    channel.put(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("a"))
    )
    assert "rejected" in counts_of(channel).newest[-1]


def test_skipped_records_are_shown_as_one_line() -> None:
    """After a resync a line names the missing offsets, and their moves are not counted."""
    channel = channel_with("a")
    views = [View()]
    counts = ChannelCounts(lambda: views[-1])
    views.append(channel.view)
    counts.resynced(resync_between(*views))
    assert "between offsets -1 and 3" in counts.newest[-1]
    assert 0 == sum(counts.done.values())


def summary(broker: str, used: float, *bundles: BundleTraffic, taken_ms: int = 0) -> Summary:
    """Return the load report of a broker with this average use."""
    load = BrokerLoad(
        taken_ms=taken_ms, averages=Averages(weighted_max=used, bytes_per_second=0), bundles=bundles
    )
    return Summary(broker=broker, load=load, cost=0)


def bundle(name: str, messages: float, *, topics: int = 0) -> BundleTraffic:
    """Return the reported load of a bundle."""
    return BundleTraffic(
        bundle=name, topics=topics, traffic=Traffic(messages_in_per_second=messages)
    )


def test_the_deviation_is_over_all_live_brokers() -> None:
    """Dead brokers do not count, and the text names each live one with its use."""
    view = channel_with("b", "a").view
    found = utilization(view, [summary("a", 0.5), summary("b", 0.1), summary("dead", 9.0)])
    assert Utilization(used={"a": 0.5, "b": 0.1}) == found
    assert "a 50%, b 10%; deviation 20.0%" == found.text
    assert [False, True] == [found.within(0.19), found.within(0.21)]


def test_without_all_reports_the_deviation_is_unknown() -> None:
    """The text names the brokers that have not reported."""
    view = channel_with("a", "b").view
    found = utilization(view, [summary("a", 0.5)])
    assert (None, False, "a 50%; no report from b") == (
        found.deviation,
        found.within(1.0),
        found.text,
    )
    assert "no broker reports; no report from a, b" == utilization(view, ()).text


def test_the_busiest_bundle_is_one_that_can_be_split() -> None:
    """It is in the namespace, reported by its owner, and does not consist of one topic."""
    channel = channel_with("a", "b", bundles=4)
    first, second, third, fourth = (found.name for found in channel.view.bundles_of(NAMESPACE))
    for place, broker in enumerate("aabb"):
        channel.own(broker, place << 30)
    reports = [
        summary(
            "a",
            0.1,
            bundle(first, 10.0, topics=2),
            bundle(second, 90.0, topics=1),
            bundle(third, 99.0),
            bundle("t/gone/x", 99.0),
        ),
        summary("b", 0.1, bundle(third, 30.0), bundle(fourth, 20.0)),
    ]
    found = busiest(channel.view, reports, NAMESPACE)
    assert found is not None
    assert (third, 30.0) == (found.bundle, found.traffic.messages_per_second)
    assert busiest(channel.view, reports, "t/none") is None
