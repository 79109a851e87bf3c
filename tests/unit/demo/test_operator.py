"""The moves that the demo's operator chooses are moves that the fold accepts."""

from __future__ import annotations

from random import Random

import pytest

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.demo.operator import Move, choose, is_settled
from equipoise.channel.core import propose
from tests.channels.folding import NAMESPACE, Channel, channel_with

SEEDS = range(20)


def shared(*owners: str) -> Channel:
    """A channel with one bundle for each owner named, in order of the hash space."""
    channel = channel_with(*sorted(set(owners)), bundles=len(owners))
    for place, owner in enumerate(owners):
        channel.own(owner, channel.view.bundles_of(NAMESPACE)[place].low)
    return channel


def chosen(kind: MoveKind, channel: Channel) -> list[Move]:
    """What is chosen under many seeds."""
    return [
        move
        for seed in SEEDS
        if (move := choose(kind, channel.view, NAMESPACE, Random(seed))) is not None
    ]


def test_a_transfer_goes_to_another_broker_that_takes_it() -> None:
    """A destination is up, does not drain, and is not the owner."""
    channel = shared("a", "b", "c")
    channel.accept(propose.draining(channel.author("c"), channel.broker("c")))
    moves = chosen(MoveKind.TRANSFER, channel)
    assert len(SEEDS) == len(moves)
    for move in moves:
        assert move.to is not None
        bundle = channel.view.bundles[move.bundle]
        assert move.to in {"a", "b"} - {channel.view.live[bundle.owner or 0].broker}
        assert f"transfer {move.bundle} to {move.to}" == move.text


def test_a_merge_is_of_neighbours_with_one_owner() -> None:
    """Where two neighbours have one owner, the left of them is chosen."""
    channel = shared("a", "b", "b")
    assert {channel.view.bundles_of(NAMESPACE)[1].name} == {
        move.bundle for move in chosen(MoveKind.MERGE, channel)
    }


def test_a_merge_that_needs_a_transfer_is_that_transfer() -> None:
    """Where no neighbours have one owner, the right one of two is to come to the left one's
    owner.
    """
    channel = shared("a", "b")
    right = channel.view.bundles_of(NAMESPACE)[1].name
    assert {Move(kind=MoveKind.TRANSFER, bundle=right, to="a")} == set(
        chosen(MoveKind.MERGE, channel)
    )


def test_a_split_is_of_a_bundle_that_is_wide_enough() -> None:
    """A bundle of a few hash points is not cut."""
    channel = shared("a")
    assert [channel.bundle().name] * len(SEEDS) == [
        move.bundle for move in chosen(MoveKind.SPLIT, channel)
    ]
    narrow = channel_with("a")
    narrow.create((0, 4096, 0xFFFFFFFF), namespace="t/narrow")
    narrow.accept(
        propose.assign(
            narrow.admin(), narrow.bundle(namespace="t/narrow"), owner=narrow.incarnation("a")
        )
    )
    narrow.accept(propose.opened(narrow.author("a"), narrow.bundle(namespace="t/narrow")))
    assert choose(MoveKind.SPLIT, narrow.view, "t/narrow", Random(0)) is None


@pytest.mark.parametrize("kind", [MoveKind.TRANSFER, MoveKind.SPLIT, MoveKind.MERGE])
def test_nothing_is_chosen_where_nothing_can_be_done(kind: MoveKind) -> None:
    """With all bundles free there is nothing to transfer, split or merge; with one broker, nowhere
    to transfer to.
    """
    assert [] == chosen(kind, channel_with("a", "b", bundles=2))
    assert [] == chosen(MoveKind.TRANSFER, shared("a"))


def test_settled_is_what_live_brokers_own() -> None:
    """Bundles that are free, or owned by an incarnation that is to be gone, are not settled; nor is
    what does not exist.
    """
    channel = shared("a", "b")
    assert is_settled(channel.view, NAMESPACE)
    assert not is_settled(channel.view, NAMESPACE, without=channel.incarnation("a"))
    assert not is_settled(channel.view, "t/none")
    channel.die("a")
    assert not is_settled(channel.view, NAMESPACE)
