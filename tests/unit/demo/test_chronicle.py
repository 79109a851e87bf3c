"""What the demo counts of a channel, and which records it shows."""

from __future__ import annotations

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.demo.chronicle import Chronicle
from equipoise.channel.core import propose
from equipoise.channel.core.difference import resync_between
from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.view import View
from tests.folding import MIDDLE, NAMESPACE, Channel, channel_with, joined


def chronicle_of(channel: Channel) -> Chronicle:
    """What a listener has counted after all records of a channel."""
    reader = Reader(log="memory:test", view=View())
    chronicle = Chronicle(lambda: reader.view)
    for offset, data in channel.entries:
        chronicle.folded(reader.feed(Entry(offset, data)))
    return chronicle


def test_moves_are_counted_when_they_are_done() -> None:
    """A transfer, a split and a merge count once each; a transfer that came to nothing is cancelled."""
    channel = channel_with("a", "b")
    channel.own("a")
    channel.accept(propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("b")))
    channel.accept(propose.let_go(channel.author("b"), channel.bundle()))
    channel.accept(propose.hand_over(channel.author("a"), channel.bundle(), handover=None))
    channel.accept(propose.start_split(channel.admin(), channel.bundle(), algorithm="range_equally_divide"))
    channel.accept(propose.split(channel.author("b"), channel.bundle(), cuts=[MIDDLE]))
    channel.accept(propose.merge(channel.admin(), channel.bundle(), channel.bundle(MIDDLE)))
    channel.accept(propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("a")))
    channel.accept(propose.cancel(channel.author("a"), channel.bundle(), reason="not now"))
    chronicle = chronicle_of(channel)
    assert (1, 1, 1) == tuple(chronicle.done[kind] for kind in (MoveKind.TRANSFER, MoveKind.SPLIT, MoveKind.MERGE))
    assert (1, 0, 0) == (chronicle.cancelled, chronicle.deaths, chronicle.rejected)
    assert "cancels the transfer" in chronicle.newest[-1]


def test_a_death_is_not_a_leaving() -> None:
    """Being declared dead and being replaced are deaths; leaving is none."""
    channel = channel_with("a", "b", "c")
    channel.die("a")
    channel.accept(joined("b", channel.view, nonce="second", replaces="nonce of b"))
    channel.accept(propose.left(channel.author("c"), channel.broker("c")))
    assert 2 == chronicle_of(channel).deaths


def test_renewals_are_not_shown_and_rejections_are_counted() -> None:
    """The newest records are those that tell something."""
    channel = channel_with("a")
    channel.own("a")
    before = chronicle_of(channel).newest
    channel.accept(propose.renewed(channel.author("a"), channel.broker("a")))
    assert before == chronicle_of(channel).newest
    channel.put(propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("a")))
    chronicle = chronicle_of(channel)
    assert 1 == chronicle.rejected
    assert NAMESPACE in chronicle.newest[-1]


def test_what_nobody_has_read_is_told_as_that() -> None:
    """After a resync a line says what is missing, and records are told with the names of the view that came of it."""
    channel = channel_with("a")
    views = [View()]
    chronicle = Chronicle(lambda: views[-1])
    views.append(channel.view)
    chronicle.resynced(resync_between(*views))
    assert "between offsets -1 and 3" in chronicle.newest[-1]
    assert 0 == sum(chronicle.done.values())
