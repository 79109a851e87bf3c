"""The fold's rules about bundles: every row of the two tables of docs/protocol.md, accepted and refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleChanged
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX, bundle_name
from equipoise.channel.core.records import AnyRecord, BundleTransition, Merge, Reason, Split, State
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_in, channel_with, joined


@dataclass(frozen=True, kw_only=True)
class Move:
    """A row of the table: `owner` and `source` are the roles that the record names, `target` is the broker `other`."""

    before: Phase
    after: Phase
    state: State
    who: tuple[str, ...]
    owner: str | None = None
    source: str | None = None
    new_token: bool = False

    def record(self, channel: Channel, author: Author, *, target: int | None = None) -> BundleTransition:
        """The proposal of this row, with another target if one is given."""
        owner = None if self.owner is None else channel.incarnation("other" if self.owner == "target" else self.owner)
        return BundleTransition(
            key=channel.bundle().name,
            based_on=channel.bundle().last,
            **author.signature,
            state=self.state,
            owner=owner if target is None else target,
            source=None if self.source is None else channel.incarnation(self.source),
        )


BROKERS = ("owner", "source", "other", "drained")
ANY = (*BROKERS, "admin")

MOVES = (
    Move(before="free", after="assigning", state="assigning", who=ANY, owner="target"),
    Move(before="assigning", after="owned", state="owned", who=("owner",), owner="owner", new_token=True),
    Move(before="assigning", after="free", state="free", who=("owner",)),
    Move(before="assigning", after="assigning", state="assigning", who=ANY, owner="target"),
    Move(before="owned", after="transferring", state="assigning", who=ANY, owner="target", source="owner"),
    Move(before="transferring", after="handing_over", state="releasing", who=("owner",), owner="owner", source="source"),
    Move(before="transferring", after="owned", state="owned", who=ANY, owner="source"),
    Move(before="handing_over", after="owned", state="owned", who=("source",), owner="owner", new_token=True),
    Move(before="owned", after="unloading", state="releasing", who=ANY, source="owner"),
    Move(before="unloading", after="free", state="free", who=("source",)),
    Move(before="owned", after="splitting", state="splitting", who=ANY, owner="owner"),
    Move(before="splitting", after="owned", state="owned", who=ANY, owner="owner"),
)
TARGETED = [move for move in MOVES if move.owner == "target"]
PHASES: tuple[Phase, ...] = ("free", "assigning", "transferring", "owned", "handing_over", "unloading", "splitting")
NO_ROWS = sorted({(before, after) for before in PHASES for after in PHASES} - {(move.before, move.after) for move in MOVES})
REFUSED_WHILE_DELETING = (("free", "assigning"), ("assigning", "assigning"), ("owned", "splitting"))


def move_id(move: Move) -> str:
    """A row as pytest shows it."""
    return f"{move.before}-{move.after}"


def channel_before(move: Move) -> Channel:
    """A channel whose bundle is where the row begins, with four brokers, of which one drains."""
    channel = channel_in(move.before, "other", "drained")
    channel.accept(propose.draining(channel.author("drained"), channel.broker("drained")))
    return channel


def author_of(channel: Channel, actor: str) -> Author:
    """Who proposes: an admin, or a broker with a new attempt."""
    return channel.admin() if actor == "admin" else channel.author(actor)


@pytest.mark.parametrize("actor", ANY)
@pytest.mark.parametrize("move", MOVES, ids=move_id)
def test_a_row_is_open_to_its_actors_and_to_nobody_else(move: Move, actor: str) -> None:
    """Each row of the table accepts those that it names, and answers all others that they are not the actor."""
    channel = channel_before(move)
    before = channel.bundle()
    verdict = channel.put(move.record(channel, author_of(channel, actor)))
    after = channel.bundle()
    if actor in move.who:
        assert (BundleChanged(name=before.name, before=before, after=after),) == verdict.changes
        assert move.after == after.phase
        assert channel.view.offset == after.last
        assert (channel.view.offset if move.new_token else before.token) == after.token
    else:
        assert Reason.NOT_THE_ACTOR == verdict.reason
        assert before == after
    channel.check()


@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("move", MOVES, ids=move_id)
def test_a_row_made_against_another_state_is_stale(move: Move, wrong: int) -> None:
    """The same proposal, based on anything but the last accepted record of its bundle, is stale."""
    channel = channel_before(move)
    before = channel.bundle()
    record = move.record(channel, author_of(channel, move.who[0]))
    assert Reason.STALE == channel.put(replace(record, based_on=before.last + wrong)).reason
    assert before == channel.bundle()


@pytest.mark.parametrize("move", MOVES, ids=move_id)
def test_a_row_once_accepted_is_accepted_no_more(move: Move) -> None:
    """A second copy of the same bytes changes nothing, be it a broker's (late) or an admin's (stale)."""
    for actor in move.who:
        channel = channel_before(move)
        channel.accept(move.record(channel, author_of(channel, actor)))
        after = channel.bundle()
        assert (Reason.STALE if actor == "admin" else Reason.LATE) == channel.put_bytes(channel.entries[-1][1]).reason
        assert after == channel.bundle()


@pytest.mark.parametrize(("before", "after"), NO_ROWS)
def test_what_is_no_row_is_illegal(before: Phase, after: Phase) -> None:
    """From each phase to each other that the table does not join, nobody comes; a merge or split needs its own record."""
    spelled = {move.after: move for move in MOVES}[after]
    for actor in ANY:
        channel = channel_in(before, "other", "drained")
        held = channel.bundle()
        assert Reason.ILLEGAL_TRANSITION == channel.put(spelled.record(channel, author_of(channel, actor))).reason
        assert held == channel.bundle()


@dataclass(frozen=True, kw_only=True)
class WrongHolder:
    """A record of a row's shape that names somebody else than the row lets it."""

    before: Phase
    state: State
    owner: str | None = None
    source: str | None = None


WRONG_HOLDERS = (
    WrongHolder(before="assigning", state="owned", owner="other"),
    WrongHolder(before="owned", state="assigning", owner="other", source="other"),
    WrongHolder(before="owned", state="assigning", owner="owner", source="owner"),
    WrongHolder(before="owned", state="releasing", source="other"),
    WrongHolder(before="owned", state="splitting", owner="other"),
    WrongHolder(before="transferring", state="releasing", owner="other", source="source"),
    WrongHolder(before="transferring", state="releasing", owner="owner", source="other"),
    WrongHolder(before="transferring", state="owned", owner="owner"),
    WrongHolder(before="transferring", state="owned", owner="other"),
    WrongHolder(before="handing_over", state="owned", owner="source"),
    WrongHolder(before="handing_over", state="owned", owner="other"),
    WrongHolder(before="splitting", state="owned", owner="other"),
    WrongHolder(before="assigning", state="assigning", owner="owner"),
)


@pytest.mark.parametrize("case", WRONG_HOLDERS, ids=lambda case: f"{case.before}-{case.state}-{case.owner}-{case.source}")
def test_a_row_binds_whom_it_names(case: WrongHolder) -> None:
    """A record that names another owner or source than its row is illegal, whoever sends it."""
    for actor in ANY:
        channel = channel_in(case.before, "other", "drained")
        held = channel.bundle()
        author = author_of(channel, actor)
        record = BundleTransition(
            key=held.name,
            based_on=held.last,
            **author.signature,
            state=case.state,
            owner=None if case.owner is None else channel.incarnation(case.owner),
            source=None if case.source is None else channel.incarnation(case.source),
        )
        assert Reason.ILLEGAL_TRANSITION == channel.put(record).reason
        assert held == channel.bundle()


@pytest.mark.parametrize("move", TARGETED, ids=move_id)
def test_a_target_is_alive_and_does_not_drain(move: Move) -> None:
    """A bundle is given to no broker that drains, is dead, was never there, or has joined again since."""
    channel = channel_before(move)
    draining, gone = channel.incarnation("drained"), channel.incarnation("other")
    assert Reason.DRAINING_TARGET == channel.put(move.record(channel, channel.admin(), target=draining)).reason
    assert Reason.DEAD_TARGET == channel.put(move.record(channel, channel.admin(), target=channel.view.offset + 1)).reason
    channel.die("other")
    assert Reason.DEAD_TARGET == channel.put(move.record(channel, channel.admin(), target=gone)).reason
    channel.join("other")
    assert Reason.DEAD_TARGET == channel.put(move.record(channel, channel.admin(), target=gone)).reason
    assert channel.put(move.record(channel, channel.admin())).accepted
    channel.check()


@pytest.mark.parametrize("move", MOVES, ids=move_id)
def test_a_deleting_namespace_refuses_assignment_and_split_alone(move: Move) -> None:
    """In a namespace that is being deleted nothing free is given away and nothing is cut; all else goes on."""
    channel = channel_before(move)
    channel.accept(propose.start_deleting_namespace(channel.admin(), channel.view, name=NAMESPACE))
    verdict = channel.put(move.record(channel, author_of(channel, move.who[0])))
    expected = Reason.NAMESPACE_DELETING if (move.before, move.after) in REFUSED_WHILE_DELETING else None
    assert expected == verdict.reason


def test_the_way_to_a_split_is_kept_with_the_bundle_while_it_splits() -> None:
    """Algorithm and positions stand in the entry from `splitting` on, and are gone when it is cancelled."""
    channel = channel_in("splitting")
    assert ("specified_positions_divide", (MIDDLE,)) == (channel.bundle().algorithm, channel.bundle().positions)
    channel.accept(propose.cancel(channel.admin(), channel.bundle(), reason="too long"))
    assert (None, None) == (channel.bundle().algorithm, channel.bundle().positions)


def test_a_bundle_that_is_not_there_is_unknown() -> None:
    """Transition, split and merge of a bundle that the view does not have are refused, whatever they are based on."""
    channel = channel_in("owned")
    author, name = channel.admin(), bundle_name(NAMESPACE, 0, 1)
    ours = channel.bundle().name
    for record in (
        BundleTransition(key=name, based_on=channel.view.removed_at, **author.signature, state="free"),
        Split(key=name, based_on=channel.view.removed_at, **author.signature, positions=(1,)),
        Merge(key=name, based_on=0, **author.signature, right=ours, based_on_right=channel.bundle().last),
        Merge(key=ours, based_on=channel.bundle().last, **author.signature, right=name, based_on_right=0),
    ):
        assert Reason.UNKNOWN_BUNDLE == channel.put(record).reason


# --- split and merge ---


def test_a_split_leaves_children_that_cover_the_range_with_the_token_of_the_parent() -> None:
    """The children stay with their owner, inherit the token, and are based on the split."""
    channel = channel_in("splitting")
    parent = channel.bundle()
    verdict = channel.put(propose.split(channel.author("owner"), parent, cuts=(1, MIDDLE)))
    children = channel.view.bundles_of(NAMESPACE)
    assert [(0, 1), (1, MIDDLE), (MIDDLE, HASH_MAX)] == [(child.low, child.high) for child in children]
    assert {("owned", parent.owner, None, parent.token, channel.view.offset)} == {
        (child.phase, child.owner, child.source, child.token, child.last) for child in children
    }
    gone = BundleChanged(name=parent.name, before=parent, after=None)
    assert (gone, *(BundleChanged(name=child.name, before=None, after=child) for child in children)) == verdict.changes
    assert children == channel.view.held_by(channel.incarnation("owner"))
    channel.check()


@pytest.mark.parametrize("actor", ["source", "other", "admin"])
def test_only_the_owner_cuts_its_bundle(actor: str) -> None:
    """A `split` by anybody but the owner is refused."""
    channel = channel_in("splitting", "other")
    assert Reason.NOT_THE_ACTOR == channel.put(propose.split(author_of(channel, actor), channel.bundle(), cuts=(1,))).reason


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "splitting"])
def test_only_a_splitting_bundle_is_cut(phase: Phase) -> None:
    """A `split` of a bundle in any other phase is illegal."""
    channel = channel_in(phase)
    assert Reason.ILLEGAL_TRANSITION == channel.put(propose.split(channel.author("owner"), channel.bundle(), cuts=(1,))).reason


@pytest.mark.parametrize("cuts", [(), (0,), (HASH_MAX,), (2, 1), (1, 1), (1, HASH_MAX + 5)])
def test_cuts_rise_strictly_inside_the_bundle(cuts: tuple[int, ...]) -> None:
    """Cuts on an end, outside, twice, in another order or none at all would leave a hole or an overlap."""
    channel = channel_in("splitting")
    parent = channel.bundle()
    assert Reason.BAD_BOUNDARY == channel.put(propose.split(channel.author("owner"), parent, cuts=cuts)).reason
    assert [parent] == channel.view.bundles_of(NAMESPACE)


def test_a_split_made_against_another_state_is_stale() -> None:
    """A split that was cancelled and begun anew does not take the cuts that were made for the first."""
    channel = channel_in("splitting")
    first = propose.split(channel.author("owner"), channel.bundle(), cuts=(1,))
    channel.accept(propose.cancel(channel.admin(), channel.bundle(), reason="too long"))
    channel.accept(propose.start_split(channel.admin(), channel.bundle(), algorithm="range_equally_divide"))
    assert Reason.STALE == channel.put(first).reason


def halves(first: str = "owner", second: str = "owner") -> Channel:
    """A channel with two bundles, each owned."""
    channel = channel_with("owner", "source", "other", bundles=2)
    channel.own(first, 0)
    channel.own(second, MIDDLE)
    return channel


@pytest.mark.parametrize("actor", ["owner", "other", "admin"])
def test_a_merge_keeps_the_owner_and_takes_the_greater_token(actor: str) -> None:
    """Any live broker or admin may merge two neighbours of one owner."""
    channel = halves()
    left, right = channel.view.bundles_of(NAMESPACE)
    channel.accept(propose.merge(author_of(channel, actor), left, right))
    (union,) = channel.view.bundles_of(NAMESPACE)
    assert right.token > left.token
    assert (0, HASH_MAX, "owned", left.owner, None, right.token, channel.view.offset) == (
        union.low, union.high, union.phase, union.owner, union.source, union.token, union.last,
    )  # fmt: skip
    channel.check()


def test_a_merge_needs_one_owner() -> None:
    """Neighbours of two owners are not merged: somebody's sessions would move without a hand-over."""
    channel = halves("owner", "other")
    assert Reason.ILLEGAL_TRANSITION == channel.put(propose.merge(channel.admin(), *channel.view.bundles_of(NAMESPACE))).reason


@pytest.mark.parametrize("point", [0, MIDDLE])
def test_a_merge_needs_both_owned(point: int) -> None:
    """While either of the two is being moved, there is no merge."""
    channel = halves()
    channel.accept(propose.transfer(channel.admin(), channel.bundle(point), destination=channel.incarnation("other")))
    assert Reason.ILLEGAL_TRANSITION == channel.put(propose.merge(channel.admin(), *channel.view.bundles_of(NAMESPACE))).reason


def test_a_merge_made_against_another_state_of_either_is_stale() -> None:
    """Both neighbours must be as the proposal saw them."""
    channel = halves()
    left, right = channel.view.bundles_of(NAMESPACE)
    for before in (replace(left, last=left.last - 1), right), (left, replace(right, last=right.last - 1)):
        assert Reason.STALE == channel.put(propose.merge(channel.admin(), *before)).reason


def test_a_merge_needs_neighbours_in_their_order() -> None:
    """Right before left, a bundle with itself, over a gap, or across namespaces: not adjacent."""
    channel = channel_with("owner", bundles=4)
    channel.create((0, MIDDLE, HASH_MAX), namespace="tenant/other")
    for bundle in channel.view.bundles_of(NAMESPACE):
        channel.own("owner", bundle.low)
    first, second, third, _ = channel.view.bundles_of(NAMESPACE)
    upper = channel.bundle(MIDDLE, namespace="tenant/other")
    for left, right in (second, first), (first, first), (first, third), (second, upper):
        assert Reason.NOT_ADJACENT == channel.put(propose.merge(channel.admin(), left, right)).reason


# --- deaths ---


@dataclass(frozen=True, kw_only=True)
class Death:
    """A row of the table of deaths: what becomes of a bundle when the broker in this role dies."""

    before: Phase
    dead: str
    after: Phase
    owner: str | None
    new_token: bool = False


DEATHS = (
    Death(before="owned", dead="owner", after="free", owner=None),
    Death(before="splitting", dead="owner", after="free", owner=None),
    Death(before="assigning", dead="owner", after="free", owner=None),
    Death(before="unloading", dead="source", after="free", owner=None),
    Death(before="transferring", dead="owner", after="owned", owner="source"),
    Death(before="handing_over", dead="owner", after="owned", owner="source"),
    Death(before="transferring", dead="source", after="assigning", owner="owner"),
    Death(before="handing_over", dead="source", after="owned", owner="owner", new_token=True),
)
WAYS_TO_DIE = ("down", "declared dead", "left", "replaced", "after silence")


def end(channel: Channel, dead: str, way: str) -> tuple[object, ...]:
    """Let an incarnation end in one of five ways; the changes of that one record."""
    entry = channel.view.brokers[dead]
    record: AnyRecord
    match way:
        case "down":
            record = propose.down(channel.author("other"), entry)
        case "declared dead":
            record = propose.down(channel.admin(), entry, nonce=entry.joined.nonce)
        case "left":
            record = propose.left(channel.author(dead), entry)
        case "replaced":
            record = joined(dead, channel.view, nonce="second", replaces=entry.joined.nonce)
        case _:
            record = joined(dead, channel.view, nonce="second", after_silence=True)
    verdict = channel.put(record)
    assert verdict.accepted
    return verdict.changes


@pytest.mark.parametrize("way", WAYS_TO_DIE)
@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"{death.before}-{death.dead}")
def test_a_death_changes_what_the_dead_was_part_of(death: Death, way: str) -> None:
    """Each row, for each way in which an incarnation ends, in the very record that ends it."""
    channel = channel_in(death.before, "other")
    before, x = channel.bundle(), channel.incarnation(death.dead)
    owner = None if death.owner is None else channel.incarnation(death.owner)
    changes = end(channel, death.dead, way)
    after = channel.bundle()
    token = channel.view.offset if death.new_token else before.token
    assert (death.after, owner, None, token, channel.view.offset) == (after.phase, after.owner, after.source, after.token, after.last)
    assert (BundleChanged(name=before.name, before=before, after=after),) == changes[1:]
    assert [] == channel.view.held_by(x)
    channel.check()


@pytest.mark.parametrize("phase", PHASES)
def test_a_death_leaves_alone_what_the_dead_had_no_part_in(phase: Phase) -> None:
    """A bundle that does not name the dead stays as it was."""
    channel = channel_in(phase, "other", "bystander")
    before = channel.bundle()
    assert 1 == len(end(channel, "bystander", "down"))
    assert before == channel.bundle()


def test_one_death_changes_all_its_bundles_in_order_of_their_names() -> None:
    """A broker that holds many bundles loses them all in one record."""
    channel = channel_with("owner", "other", bundles=16)
    for bundle in reversed(channel.view.bundles_of(NAMESPACE)):
        channel.own("owner", bundle.low)
    names = [bundle.name for bundle in channel.view.bundles_of(NAMESPACE)]
    assert names == [change.name for change in end(channel, "owner", "down")[1:] if isinstance(change, BundleChanged)]
    assert names == [bundle.name for bundle in channel.view.unsettled()]
    channel.check()
