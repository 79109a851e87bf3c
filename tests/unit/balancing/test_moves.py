"""Moves recognised in folded records: one story for each way in which a move starts and ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from equipoise.brokers.balancing.moves import MoveKind, MoveResult, Moves, ObservedMove, moved_in
from equipoise.channel.core import propose
from equipoise.channel.core.difference import resync_between
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.view import View
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_in, channel_with

Proposal = Callable[[Author, BundleEntry], AnyRecord]


class Story:
    """A channel whose moves are watched. Each record is read one second after the previous one."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.ended: list[ObservedMove] = []
        self._moves = Moves()
        self._now_ns = 0

    def tell(self, record: AnyRecord) -> None:
        """Append an accepted record, and read it."""
        self._now_ns += 10**9
        verdict = self.channel.put(record)
        assert verdict.accepted, verdict
        self.ended += self._moves.folded(
            Folded(offset=self.channel.view.offset, record=record, verdict=verdict), self._now_ns
        )

    def resync(self, before: View) -> None:
        """Resync after records that were not read since `before`."""
        self._moves.resynced(resync_between(before, self.channel.view))

    def about(self, broker: str, make: Proposal) -> None:
        self.tell(make(self.channel.author(broker), self.channel.bundle()))

    def transfer(self, destination: str = "target") -> None:
        """Start to move the first bundle."""
        incarnation = self.channel.incarnation(destination)
        self.about(
            "owner",
            lambda author, bundle: propose.transfer(author, bundle, destination=incarnation),
        )

    def assign(self, owner: str) -> None:
        """Give the first bundle to a broker, which opens it."""
        incarnation = self.channel.incarnation(owner)
        self.about(owner, lambda author, bundle: propose.assign(author, bundle, owner=incarnation))
        self.about(owner, propose.opened)

    def die(self, broker: str) -> None:
        """Declare a broker dead."""
        entry = self.channel.broker(broker)
        self.tell(propose.down(self.channel.admin(), entry, instance_id=entry.joined.instance_id))

    def outcome(self) -> list[tuple[MoveKind, MoveResult, int]]:
        """The moves that have ended, with their seconds."""
        return [(move.kind, move.result, move.duration_ns // 10**9) for move in self.ended]


@pytest.fixture
def story() -> Story:
    """One bundle, owned by `owner`; `source` and `target` are there, too."""
    return Story(channel_in("owned", "target"))


def test_a_transfer_is_done_when_its_destination_owns(story: Story) -> None:
    story.transfer()
    story.about("target", propose.prepared)
    assert [] == story.ended
    story.about("owner", propose.hand_over)
    assert [(MoveKind.TRANSFER, MoveResult.DONE, 2)] == story.outcome()
    (move,) = story.ended
    bundle = story.channel.bundle()
    assert (bundle.name, bundle.last, bundle.token) == (move.bundle, move.offset, move.token)
    assert (story.channel.incarnation("owner"), bundle.owner) == (move.source, move.destination)


def test_a_transfer_may_be_cancelled(story: Story) -> None:
    story.transfer()
    story.about("target", lambda author, bundle: propose.cancel(author, bundle, reason="cold feet"))
    assert [(MoveKind.TRANSFER, MoveResult.CANCELLED, 1)] == story.outcome()
    assert ("cold feet", story.channel.incarnation("target")) == (
        story.ended[0].reason,
        story.ended[0].destination,
    )


@pytest.mark.parametrize("warm", [False, True])
def test_the_death_of_a_destination_cuts_a_transfer_short(story: Story, *, warm: bool) -> None:
    """The source keeps the bundle."""
    story.transfer()
    if warm:
        story.about("target", propose.prepared)
    story.die("target")
    assert [MoveResult.CUT_SHORT] == [result for _, result, _ in story.outcome()]


def test_the_death_of_a_source_begins_another_move(story: Story) -> None:
    """If the destination was not warm, the bundle has no owner until it is opened there."""
    dead = story.channel.incarnation("owner")
    story.transfer()
    story.die("owner")
    story.about("target", propose.opened)
    assert [
        (MoveKind.TRANSFER, MoveResult.CUT_SHORT, 1),
        (MoveKind.DEATH, MoveResult.DONE, 1),
    ] == story.outcome()
    assert [dead, dead] == [move.source for move in story.ended]


def test_the_death_of_a_source_completes_a_warm_transfer(story: Story) -> None:
    story.transfer()
    story.about("target", propose.prepared)
    story.die("owner")
    assert [(MoveKind.TRANSFER, MoveResult.DONE, 2)] == story.outcome()


def test_an_unload_is_done_when_the_bundle_is_owned_again(story: Story) -> None:
    story.about("owner", propose.unload)
    story.about("owner", propose.released)
    assert [] == story.ended
    story.assign("target")
    assert [(MoveKind.UNLOAD, MoveResult.DONE, 3)] == story.outcome()


def test_a_death_counts_until_the_bundle_is_owned_again(story: Story) -> None:
    """A second death does not end the move."""
    story.die("owner")
    incarnation = story.channel.incarnation("source")
    story.about("target", lambda author, bundle: propose.assign(author, bundle, owner=incarnation))
    story.die("source")
    story.assign("target")
    assert [(MoveKind.DEATH, MoveResult.DONE, 4)] == story.outcome()


def test_a_deleted_namespace_ends_what_was_under_way(story: Story) -> None:
    story.tell(
        propose.start_deleting_namespace(story.channel.admin(), story.channel.view, name=NAMESPACE)
    )
    story.about("owner", propose.unload)
    story.about("owner", propose.released)
    story.tell(propose.delete_namespace(story.channel.admin(), story.channel.view, name=NAMESPACE))
    assert [(MoveKind.UNLOAD, MoveResult.DELETED, 2)] == story.outcome()


def test_a_split_is_done_with_its_record(story: Story) -> None:
    story.about(
        "target",
        lambda author, bundle: propose.start_split(
            author, bundle, algorithm="range_equally_divide"
        ),
    )
    story.about("owner", lambda author, bundle: propose.split(author, bundle, cuts=(MIDDLE,)))
    assert [(MoveKind.SPLIT, MoveResult.DONE, 1)] == story.outcome()


def test_a_split_may_be_cancelled_or_cut_short(story: Story) -> None:
    """By an owner that cancels, or dies."""
    for _ in range(2):
        story.about(
            "target",
            lambda author, bundle: propose.start_split(
                author, bundle, algorithm="range_equally_divide"
            ),
        )
        if not story.ended:
            story.about(
                "owner",
                lambda author, bundle: propose.cancel(author, bundle, reason="nowhere to cut"),
            )
    story.die("owner")
    assert [
        (MoveKind.SPLIT, MoveResult.CANCELLED, 1),
        (MoveKind.SPLIT, MoveResult.CUT_SHORT, 1),
    ] == story.outcome()


def test_a_merge_takes_one_record() -> None:
    channel = channel_with("owner", bundles=2)
    for low in even_boundaries(2)[:2]:
        channel.own("owner", low)
    story = Story(channel)
    story.about(
        "owner", lambda author, bundle: propose.merge(author, bundle, channel.bundle(MIDDLE))
    )
    assert [(MoveKind.MERGE, MoveResult.DONE, 0)] == story.outcome()


def test_a_move_that_started_before_the_watch_is_not_counted() -> None:
    """The end of a move whose start was not seen has no duration, and does not count."""
    story = Story(channel_in("handing_over"))
    story.about("source", propose.hand_over)
    assert [] == story.ended


def test_a_move_that_went_on_unread_is_not_counted() -> None:
    """How it ended is unknown, and what comes next does not count as its end."""
    story = Story(channel_in("owned", "target"))
    story.transfer()
    before = from_bytes(to_bytes(story.channel.view))
    story.channel.accept(propose.prepared(story.channel.author("target"), story.channel.bundle()))
    story.resync(before)
    story.about("owner", propose.hand_over)
    assert [] == story.ended


def moved_by(channel: Channel, *records: AnyRecord) -> list[str]:
    """The ranges that moved, one record after the other."""
    return [
        name.rpartition("/")[2]
        for record in records
        for name in moved_in(channel.put(record).changes)
    ]


@pytest.mark.parametrize("low", [0, MIDDLE])
def test_a_bundle_that_its_owner_released_has_moved(low: int) -> None:
    """A transfer moves its bundle when the source has closed it, an unload when it is free. A
    cancelled transfer moves nothing.
    """
    channel = channel_with("owner", "target", bundles=2)
    channel.own("owner", low)
    target, bundle = channel.incarnation("target"), channel.bundle(low).name.rpartition("/")[2]
    assert [] == moved_by(
        channel, propose.transfer(channel.author("owner"), channel.bundle(low), destination=target)
    )
    assert [] == moved_by(
        channel, propose.cancel(channel.author("owner"), channel.bundle(low), reason="cold feet")
    )
    assert [] == moved_by(
        channel, propose.transfer(channel.author("owner"), channel.bundle(low), destination=target)
    )
    assert [] == moved_by(channel, propose.prepared(channel.author("target"), channel.bundle(low)))
    assert [bundle] == moved_by(
        channel, propose.hand_over(channel.author("owner"), channel.bundle(low))
    )
    assert [] == moved_by(channel, propose.unload(channel.admin(), channel.bundle(low)))
    assert [bundle] == moved_by(
        channel, propose.released(channel.author("target"), channel.bundle(low))
    )


def test_results_of_splits_and_merges_have_moved() -> None:
    """The children of a split and the union of a merge are new."""
    channel = channel_in("splitting")
    assert ["0x00000000_0x80000000", "0x80000000_0xffffffff"] == moved_by(
        channel, propose.split(channel.author("owner"), channel.bundle(), cuts=(MIDDLE,))
    )
    assert ["0x00000000_0xffffffff"] == moved_by(
        channel, propose.merge(channel.author("owner"), channel.bundle(), channel.bundle(MIDDLE))
    )


def test_new_and_lost_bundles_have_not_moved() -> None:
    """Neither the bundles of a new namespace, nor a first placement, nor a placement after a
    death.
    """
    channel = channel_with("owner", "target")
    made = propose.create_namespace(
        channel.admin(), channel.view, name="tenant/new", boundaries=even_boundaries(2)
    )
    assert [] == moved_by(channel, made)
    before = channel.view.offset
    for broker in ("owner", "target"):
        assert [] == moved_by(
            channel,
            propose.assign(channel.admin(), channel.bundle(), owner=channel.incarnation(broker)),
        )
        assert [] == moved_by(channel, propose.opened(channel.author(broker), channel.bundle()))
        entry = channel.broker(broker)
        assert [] == moved_by(
            channel, propose.down(channel.admin(), entry, instance_id=entry.joined.instance_id)
        )
    assert before + 6 == channel.view.offset


def test_a_resync_shows_which_bundles_have_moved() -> None:
    """The owners in the views on both sides of the gap show it."""
    channel = channel_in("owned", "target")
    before = from_bytes(to_bytes(channel.view))
    channel.accept(
        propose.transfer(
            channel.admin(), channel.bundle(), destination=channel.incarnation("target")
        )
    )
    channel.accept(propose.prepared(channel.author("target"), channel.bundle()))
    channel.accept(propose.hand_over(channel.author("owner"), channel.bundle()))
    channel.create(even_boundaries(2), namespace="tenant/new")
    assert (channel.bundle().name,) == moved_in(resync_between(before, channel.view).changes)
