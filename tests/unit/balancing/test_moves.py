"""Moves recognised in folded records: one story for each way in which a move starts and ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from equipoise.brokers.balancing.moves import (
    MoveKind,
    MoveResult,
    Moves,
    ObservedMove,
    has_left,
    moved_in,
)
from equipoise.channel.core import propose
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.table import resync_between
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_in, channel_with


def record_of(channel: Channel, step: str) -> AnyRecord:
    """The record of a step, about the first bundle: `WHO VERB`, and with some verbs a broker."""
    who, verb, *others = step.split()
    author = channel.admin() if who == "admin" else channel.author(who)
    bundle, incarnation = channel.bundle(), channel.incarnation(others[0]) if others else 0
    match verb:
        case "transfer":
            return propose.transfer(author, bundle, destination=incarnation)
        case "assign":
            return propose.assign(author, bundle, owner=incarnation)
        case "declares":
            entry = channel.broker(others[0])
            return propose.down(author, entry, instance_id=entry.joined.instance_id)
        case "cancel":
            return propose.cancel(author, bundle, reason="cold feet")
        case "start_split":
            return propose.start_split(author, bundle, algorithm="range_equally_divide")
        case "split":
            return propose.split(author, bundle, cuts=(MIDDLE,))
        case "merge":
            return propose.merge(author, bundle, channel.bundle(MIDDLE))
        case "start_deleting_namespace" | "delete_namespace":
            found: AnyRecord = getattr(propose, verb)(author, channel.view, name=NAMESPACE)
            return found
    made: AnyRecord = getattr(propose, verb)(author, bundle)
    return made


class Story:
    """A channel whose moves are watched. Each record is read one second after the previous one."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.ended: list[ObservedMove] = []
        self.moved: list[str] = []
        self.moves = Moves()
        self._now_ns = 0

    def tell(self, *steps: str) -> None:
        """Append an accepted record for each step, and read it."""
        for step in steps:
            record = record_of(self.channel, step)
            self._now_ns += 10**9
            verdict = self.channel.put(record)
            assert verdict.accepted, verdict
            folded = Folded(offset=self.channel.view.offset, record=record, verdict=verdict)
            self.ended += self.moves.folded(folded, self._now_ns)
            self.moved += [name.rpartition("/")[2] for name in moved_in(verdict.changes)]


def two_owned() -> Channel:
    """Two neighbours of one owner."""
    channel = channel_with("owner", bundles=2)
    for low in even_boundaries(2)[:2]:
        channel.own("owner", low)
    return channel


TRANSFER, UNLOAD, DEATH, SPLIT = (
    MoveKind.TRANSFER,
    MoveKind.UNLOAD,
    MoveKind.DEATH,
    MoveKind.SPLIT,
)
DONE, CUT_SHORT, CANCELLED = MoveResult.DONE, MoveResult.CUT_SHORT, MoveResult.CANCELLED
WHOLE, HALVES = (
    ["0x00000000_0xffffffff"],
    ["0x00000000_0x80000000", "0x80000000_0xffffffff"],
)
BEGUN = ("owner transfer target", "target prepared")
STORIES: dict[str, tuple[Sequence[str], list[tuple[MoveKind, MoveResult, int]], Sequence[str]]] = {
    "a transfer is done when its destination owns": (
        (*BEGUN, "owner hand_over"),
        [(TRANSFER, DONE, 2)],
        WHOLE,
    ),
    "a transfer is under way until then": (BEGUN, [], []),
    "a transfer may be cancelled": (
        ("owner transfer target", "target cancel"),
        [(TRANSFER, CANCELLED, 1)],
        [],
    ),
    "the death of a destination cuts a transfer short": (
        ("owner transfer target", "admin declares target"),
        [(TRANSFER, CUT_SHORT, 1)],
        [],
    ),
    "also if it was warm": ((*BEGUN, "admin declares target"), [(TRANSFER, CUT_SHORT, 2)], []),
    "the death of a source begins another move": (
        ("owner transfer target", "admin declares owner", "target opened"),
        [(TRANSFER, CUT_SHORT, 1), (DEATH, DONE, 1)],
        [],
    ),
    "the death of a source completes a warm transfer": (
        (*BEGUN, "admin declares owner"),
        [(TRANSFER, DONE, 2)],
        [],
    ),
    "an unload is done when the bundle is owned again": (
        ("owner unload", "owner released", "target assign target", "target opened"),
        [(UNLOAD, DONE, 3)],
        WHOLE,
    ),
    "a death counts until the bundle is owned again, also after a second one": (
        (
            "admin declares owner",
            "target assign source",
            "admin declares source",
            "target assign target",
            "target opened",
        ),
        [(DEATH, DONE, 4)],
        [],
    ),
    "a deleted namespace ends what was under way": (
        (
            "admin start_deleting_namespace",
            "owner unload",
            "owner released",
            "admin delete_namespace",
        ),
        [(UNLOAD, MoveResult.DELETED, 2)],
        WHOLE,
    ),
    "a split is done with its record, and its children are new": (
        ("target start_split", "owner split"),
        [(SPLIT, DONE, 1)],
        HALVES,
    ),
    "a split may be cancelled, and cut short by a death": (
        ("target start_split", "owner cancel", "target start_split", "admin declares owner"),
        [(SPLIT, CANCELLED, 1), (SPLIT, CUT_SHORT, 1)],
        [],
    ),
}


@pytest.mark.parametrize(("steps", "outcomes", "moved"), STORIES.values(), ids=STORIES.keys())
def test_how_a_move_ends(
    steps: Sequence[str],
    outcomes: list[tuple[MoveKind, MoveResult, int]],
    moved: Sequence[str],
) -> None:
    """What ended with its seconds, and which ranges have moved: what was lost has not."""
    story = Story(channel_in("owned", "target"))
    story.tell(*steps)
    assert outcomes == [(move.kind, move.result, move.duration_ns // 10**9) for move in story.ended]
    assert moved == story.moved


def test_a_move_has_both_ends_and_a_reason() -> None:
    story = Story(channel_in("owned", "target"))
    owner, target = story.channel.incarnation("owner"), story.channel.incarnation("target")
    story.tell("owner transfer target", "target cancel", *BEGUN, "owner hand_over")
    cancelled, done = story.ended
    bundle = story.channel.bundle()
    assert ("cold feet", target) == (cancelled.reason, cancelled.destination)
    assert (bundle.name, bundle.last, bundle.token) == (done.bundle, done.offset, done.token)
    assert (owner, target) == (done.source, done.destination)


@pytest.mark.parametrize(
    ("steps", "pauses_s"),
    [
        ((*BEGUN, "owner hand_over"), [1]),
        (("owner unload", "owner released", "target assign target", "target opened"), [3]),
        (("admin declares owner", "target assign target", "target opened"), [2]),
        (("owner transfer target", "target cancel"), [0]),
    ],
)
def test_calls_wait_from_the_release_to_the_end(
    steps: Sequence[str], pauses_s: Sequence[int]
) -> None:
    """Until it is released, the source serves. A dead one does not."""
    story = Story(channel_in("owned", "target"))
    story.tell(*steps)
    assert pauses_s == [move.pause_ns // 10**9 for move in story.ended]


def test_a_merge_takes_one_record() -> None:
    story = Story(two_owned())
    story.tell("owner merge")
    (merge,) = story.ended
    assert (MoveKind.MERGE, DONE, 0) == (merge.kind, merge.result, merge.duration_ns)
    assert WHOLE == story.moved


def test_a_move_whose_start_or_end_was_not_read_is_not_counted() -> None:
    """It has no duration. What comes after a gap does not count as its end, and the owners on both
    sides of the gap show which bundles have moved.
    """
    started = Story(channel_in("handing_over"))
    started.tell("source hand_over")
    assert [] == started.ended
    story = Story(channel_in("owned", "target"))
    before = from_bytes(to_bytes(story.channel.view))
    story.tell("owner transfer target")
    for step in ("target prepared", "owner hand_over"):
        story.channel.accept(record_of(story.channel, step))
    story.channel.create(even_boundaries(2), namespace="tenant/new")
    resync = resync_between(before, story.channel.view)
    story.moves.resynced(resync)
    story.tell("target unload", "target released", "owner assign owner", "owner opened")
    assert [UNLOAD] == [move.kind for move in story.ended]
    assert (story.channel.bundle().name,) == moved_in(resync.changes)


def test_new_and_lost_bundles_have_not_moved() -> None:
    """Neither the bundles of a new namespace, nor a first placement, nor one after a death."""
    story = Story(channel_with("owner", "target"))
    made = story.channel.put(
        propose.create_namespace(
            story.channel.admin(),
            story.channel.view,
            name="tenant/new",
            boundaries=even_boundaries(2),
        )
    )
    for broker in ("owner", "target"):
        story.tell(f"admin assign {broker}", f"{broker} opened", f"admin declares {broker}")
    assert ((), []) == (moved_in(made.changes), story.moved)


def test_brokers_that_drain_and_leave_are_recognised() -> None:
    channel = channel_with("a", "b")

    def tells(record: AnyRecord) -> bool:
        return has_left(channel.put(record).changes)

    assert not tells(propose.renewed(channel.author("a"), channel.broker("a")))
    assert tells(propose.draining(channel.author("a"), channel.broker("a")))
    assert not tells(propose.renewed(channel.author("a"), channel.broker("a")))
    assert tells(propose.left(channel.author("a"), channel.broker("a")))
    assert not tells(record_of(channel, "a declares b"))
