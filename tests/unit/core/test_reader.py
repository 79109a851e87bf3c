"""From entries of a log to folded records: offsets, and where a reader must not go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.entries import BrokerChanged, BundleChanged, NamespaceChanged
from equipoise.channel.core.errors import BegunAbove, LevelTooNew, LogWentBack, OperatorError
from equipoise.channel.core.log import Entry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import Joined, Reason
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.table import Resync, resync_between
from equipoise.channel.core.view import View, apply
from tests.channels.folding import (
    CLUSTER,
    NAMESPACE,
    Channel,
    channel_in,
    channel_with,
    joined,
    raise_level,
)

BASE = 5_000


def genesis(*, base: int = 0, cluster: str = CLUSTER) -> bytes:
    """The first record of a log."""
    return encode(propose.genesis(Author(publisher="admin:ops"), cluster=cluster, base=base))


def entries(channel: Channel) -> list[Entry]:
    """The log of a channel whose base is 0."""
    return [Entry(offset, data) for offset, data in channel.entries]


def test_a_reader_comes_to_the_view_of_the_log() -> None:
    """Entry by entry it tells offset, record and verdict, and ends with the live view."""
    channel = channel_in("handing_over")
    reader = Reader(log="memory:x", cluster=CLUSTER)
    folded = [reader.feed(entry) for entry in entries(channel)]
    assert [offset for offset, _ in channel.entries] == [each.offset for each in folded]
    assert {True} == {each.verdict.accepted for each in folded}
    assert isinstance(folded[1].record, Joined)
    assert to_bytes(channel.view) == to_bytes(reader.view)
    assert channel.view.offset + 1 == reader.position


def view_of_a_copy() -> View:
    """The view with which a copy begins above `BASE`, of a channel that nobody has joined."""
    channel = Channel()
    channel.genesis()
    view = channel.view
    view.go_on_above(BASE, level=view.level, level_last=view.level_last)
    return view


def test_offsets_in_a_view_are_counted_from_the_base() -> None:
    """On a copy each offset is the log's own plus its base, also of what stands before its
    genesis.
    """
    reader = Reader(log="memory:x", view=view_of_a_copy())
    assert 1 == reader.position
    assert BASE + 1 == reader.feed(Entry(1, b"")).offset
    assert BASE + 3 == reader.feed(Entry(3, genesis(base=BASE))).offset
    join = encode(joined("a", reader.view, instance_id="n"))
    assert BASE + 7 == reader.feed(Entry(7, join)).offset
    assert BASE + 7 == reader.view.brokers["a"].incarnation
    assert 8 == reader.position


def test_the_genesis_of_a_copy_is_not_folded_from_nothing() -> None:
    """Whoever followed the log while it was empty does not have what it goes on above, and must not
    go on.
    """
    reader = Reader(log="memory:x")
    reader.feed(Entry(1, b""))
    before = to_bytes(reader.view)
    for _ in range(2):
        with pytest.raises(BegunAbove) as caught:
            reader.feed(Entry(3, genesis(base=BASE)))
        assert ("memory:x", BASE) == (caught.value.log, caught.value.base)
    assert (before, 2) == (to_bytes(reader.view), reader.position)


@pytest.mark.parametrize("fed", [0, 1, 2, 3])
def test_a_reader_goes_on_from_a_snapshot(fed: int) -> None:
    """Before, at and after a genesis with a base, a reader of a restored view wants the entry that
    the first one wants.
    """
    log = [Entry(2, b""), Entry(3, genesis(base=BASE)), Entry(9, b"")]
    first = Reader(log="memory:x", view=view_of_a_copy())
    for entry in log[:fed]:
        first.feed(entry)
    second = Reader(log="memory:x", view=from_bytes(to_bytes(first.view)))
    assert first.position == second.position
    for entry in log[fed:]:
        assert first.feed(entry) == second.feed(entry)
    assert to_bytes(first.view) == to_bytes(second.view)


def test_a_refused_genesis_moves_no_offset() -> None:
    """A genesis that is no record, and a second one, leave offsets as they are counted, whatever
    base they name.
    """
    reader = Reader(log="memory:x")
    broken = encode(
        replace(
            propose.genesis(Author(publisher="admin:ops"), cluster=CLUSTER, base=BASE),
            expected_offset=1,
        )
    )
    assert 1 == reader.feed(Entry(1, broken)).offset
    assert 2 == reader.feed(Entry(2, genesis())).offset
    second = reader.feed(Entry(3, genesis(base=BASE)))
    assert (3, Reason.STALE) == (second.offset, second.verdict.reason)
    assert 3 == reader.view.offset


def test_an_entry_below_the_position_is_a_log_that_went_back() -> None:
    """An offset that was folded already, or lies below, stops the reader, and nothing is folded
    twice.
    """
    channel = channel_with("a")
    reader = Reader(log="memory:x")
    for entry in entries(channel):
        reader.feed(entry)
    for offset in (1, channel.view.offset):
        with pytest.raises(LogWentBack) as caught:
            reader.feed(Entry(offset, b""))
        assert ("memory:x", channel.view.offset + 1, offset) == (
            caught.value.log,
            caught.value.position,
            caught.value.end,
        )
    assert to_bytes(channel.view) == to_bytes(reader.view)


def test_the_log_of_another_cluster_is_refused() -> None:
    """Its genesis is not folded, and a view of another cluster is not read on from."""
    reader = Reader(log="memory:x", cluster="ours")
    foreign = f"memory:x belongs to cluster '{CLUSTER}', not 'ours'"
    with pytest.raises(OperatorError, match=foreign):
        reader.feed(Entry(1, genesis()))
    assert to_bytes(View()) == to_bytes(reader.view)
    with pytest.raises(OperatorError, match=foreign):
        Reader(log="memory:x", cluster="ours", view=channel_with("a").view)


def test_a_reader_stops_for_good_at_a_level_that_it_does_not_know() -> None:
    """The record that raises the level is the last that is folded, also after a restart from a
    snapshot.
    """
    channel = Channel()
    channel.genesis()
    channel.accept(raise_level(channel.admin(), channel.view, level=2))
    raised = channel.view.offset
    channel.put_bytes(b"")
    reader = Reader(log="memory:x")
    first, second, third = entries(channel)
    reader.feed(first)
    for entry in second, third, third:
        with pytest.raises(LevelTooNew) as caught:
            reader.feed(entry)
        assert (2, 1, raised) == (caught.value.level, caught.value.supported, caught.value.offset)
    assert raised == reader.view.offset
    with pytest.raises(LevelTooNew):
        Reader(log="memory:x", view=reader.view)


def test_a_resync_tells_where_it_began_and_where_it_ended() -> None:
    """A resync bears both offsets, and its changes: here the namespace's creation before that of
    its bundle.
    """
    channel = channel_with("a")
    before = View()
    for offset, data in channel.entries[:1]:
        apply(before, offset, decode(data))
    resync = resync_between(before, channel.view)
    assert (1, channel.view.offset) == (resync.before, resync.offset)
    kinds = [type(change) for change in resync.changes]
    assert [NamespaceChanged, BrokerChanged, BundleChanged] == kinds
    assert NAMESPACE == getattr(resync.changes[0], "name", None)


def test_nothing_changed_is_a_resync_without_changes() -> None:
    """A view compared with an equal one, and across renewals alone, has not changed."""
    channel = channel_with("a")
    same = from_bytes(to_bytes(channel.view))
    assert Resync(before=same.offset, offset=same.offset, changes=()) == resync_between(
        same, channel.view
    )
