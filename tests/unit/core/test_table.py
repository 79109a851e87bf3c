"""Questions about a view: lookups by hash point, neighbours, holders, who leads."""

from __future__ import annotations

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.view import View
from tests.channels.folding import MIDDLE, NAMESPACE, channel_in, channel_with

BOUNDARIES = (0, 1, 7, MIDDLE, HASH_MAX)


def test_a_namespace_that_is_not_there_has_no_bundles() -> None:
    """No lookup and no list of it, and no error."""
    assert View().bundle_at(NAMESPACE, 0) is None
    assert [] == View().bundles_of(NAMESPACE)


def test_a_neighbour_is_the_bundle_to_the_right() -> None:
    """Each bundle has one, but for the last of its namespace."""
    channel = channel_with("a")
    channel.create(BOUNDARIES, namespace="t/n")
    bundles = channel.view.bundles_of("t/n")
    assert [*bundles[1:], None] == [channel.view.right_neighbour(bundle) for bundle in bundles]


def test_nobody_leads_an_empty_cluster() -> None:
    """Without live brokers there is no leader."""
    assert View().leader() is None
    channel = channel_with("a")
    channel.die("a")
    assert channel.view.leader() is None


def test_the_oldest_broker_that_does_not_drain_leads() -> None:
    """Age is the incarnation's; if all drain, the oldest leads; a death makes the next one leader
    in the same record.
    """
    channel = channel_with("b", "a", "c")

    def leader() -> str:
        entry = channel.view.leader()
        assert entry is not None
        return entry.broker

    assert ["b", "a", "c"] == [entry.broker for entry in channel.view.live_brokers()]
    leaders = [leader()]
    for broker in ("b", "a", "c"):
        channel.accept(propose.draining(channel.author(broker), channel.broker(broker)))
        leaders.append(leader())
    channel.die("b")
    leaders.append(leader())
    channel.join("b")
    leaders.append(leader())
    assert ["b", "a", "c", "b", "a", "b"] == leaders


SERVED_BY: dict[Phase, str | None] = {
    "free": None,
    "assigning": None,
    "transferring": "source",
    "owned": "owner",
    "handing_over": "source",
    "unloading": "source",
    "splitting": "owner",
}


@pytest.mark.parametrize("phase", SERVED_BY)
def test_a_bundle_tells_who_serves_it(phase: Phase) -> None:
    """Nobody while it is free or being opened, the source until it has closed, else the owner."""
    channel = channel_in(phase)
    by = SERVED_BY[phase]
    assert (None if by is None else channel.incarnation(by)) == channel.bundle().server


def test_the_bundles_of_a_namespace_are_counted() -> None:
    """The count follows a split, is 0 for a namespace that is not there, and says the same as the
    bundles themselves.
    """
    channel = channel_in("splitting")
    counts = [channel.view.bundle_count("tenant/none"), channel.view.bundle_count(NAMESPACE)]
    channel.accept(propose.split(channel.author("owner"), channel.bundle(), cuts=(MIDDLE,)))
    assert [0, 1, 2, 2] == [
        *counts,
        channel.view.bundle_count(NAMESPACE),
        len(channel.view.bundles_of(NAMESPACE)),
    ]


def test_an_absent_broker_is_based_on_the_last_removal() -> None:
    """What a record of a broker's key must be based on, whether it is there or not."""
    channel = channel_with("a")
    assert channel.view.brokers["a"].last == channel.view.last_of_broker("a")
    assert channel.view.removed_at == channel.view.last_of_broker("b")
