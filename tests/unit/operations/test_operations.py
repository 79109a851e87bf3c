"""The pure parts of operations: what is refused, the next step, and how each move ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest

from equipoise.brokers.agent.requests import (
    RACES_MAX,
    Cancel,
    CreateNamespace,
    DeleteNamespace,
    Intent,
    MoveAway,
    SplitBundle,
    StartDeletingNamespace,
    Transfer,
    Unload,
    may_run_again,
)
from equipoise.brokers.balancing.policies import pin_document, quarantine_key
from equipoise.brokers.balancing.settings.settings_records import KEY
from equipoise.brokers.errors import (
    Rejected,
)
from equipoise.brokers.operations import moves
from equipoise.brokers.operations.checks import (
    check_destination,
    check_request,
    unless_overtaken,
)
from equipoise.brokers.operations.moves import (
    BY_OPERATOR,
    CANCELLED_BY_OPERATOR,
    UNLOADS_AT_ONCE,
    cancels_of,
)
from equipoise.brokers.operations.on_channel import run
from equipoise.brokers.operations.outcomes import RequestedMove, begun_by, made_by
from equipoise.brokers.operations.verbs import next_of_deletion
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import CallerError, PeerError
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import bundle_name, even_boundaries
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, Reason
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_in, channel_with
from tests.channels.operating import FoldingPort
from tests.channels.ruled import set_policy

Proposal = Callable[[Author, BundleEntry], AnyRecord]
# One of a row of proposals.
CUT: Proposal = lambda author, bundle: propose.split(author, bundle, cuts=(MIDDLE,))  # noqa: E731
# As above.
CANCEL: Proposal = lambda author, bundle: propose.cancel(author, bundle, reason="no room")  # noqa: E731


class Story:
    """A channel on which `owner` owns the only bundle, and one move of it that is followed."""

    def __init__(self, begin: Proposal) -> None:
        self.channel = channel_in("owned", "target", "third")
        self.move = begun_by(self.fold(begin(self.channel.admin(), self.channel.bundle())))

    def fold(self, record: AnyRecord) -> Folded:
        """Append a record, which may be rejected."""
        verdict = self.channel.put(record)
        return Folded(offset=self.channel.view.offset, record=record, verdict=verdict)

    def tell(self, record: AnyRecord) -> tuple[BundleEntry, ...] | None:
        """Append a record; what the move has made by it."""
        return made_by(self.move, self.fold(record), self.channel.view)

    def about(self, broker: str, make: Proposal) -> tuple[BundleEntry, ...] | None:
        """Let a broker propose something about the bundle; what the move has made by it."""
        return self.tell(make(self.channel.author(broker), self.channel.bundle()))

    def die(self, broker: str) -> tuple[BundleEntry, ...] | None:
        """An admin proves that a broker is dead; what the move has made by it."""
        entry = self.channel.broker(broker)
        return self.tell(
            propose.down(self.channel.admin(), entry, instance_id=entry.joined.instance_id)
        )


def transferred() -> Story:
    """A transfer to `target`, the third broker that joined."""
    return Story(lambda author, bundle: propose.transfer(author, bundle, destination=4))


def split() -> Story:
    return Story(
        lambda author, bundle: propose.start_split(author, bundle, algorithm="range_equally_divide")
    )


def test_a_transfer_ends_when_its_destination_owns() -> None:
    story = transferred()
    whole = story.channel.bundle().name
    assert RequestedMove(bundle=whole, kind=story.move.kind, offset=9, destination=4) == story.move
    assert (
        story.tell(propose.renewed(story.channel.author("third"), story.channel.broker("third")))
        is None
    )
    assert story.about("third", propose.opened) is None  # Rejected.
    assert story.about("target", propose.prepared) is None
    made = story.about("owner", propose.hand_over)
    assert (story.channel.bundle(),) == made
    assert (4, "owned") == (story.channel.bundle().owner, story.channel.bundle().phase)


def test_records_before_a_move_do_not_end_it() -> None:
    story = transferred()
    channel = channel_in("owned", "target", "third")
    begin = propose.transfer(channel.admin(), channel.bundle(), destination=4)
    accepted = Folded(offset=9, record=begin, verdict=channel.put(begin))
    assert made_by(story.move, accepted, channel.view) is None


@pytest.mark.parametrize("warm", [False, True])
def test_a_transfer_outlives_its_source(*, warm: bool) -> None:
    story = transferred()
    if warm:
        story.about("target", propose.prepared)
        made = story.die("owner")
    else:
        assert story.die("owner") is None
        made = story.about("target", propose.opened)
    assert (story.channel.bundle(),) == made


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (
            lambda story: story.about("target", CANCEL),
            "cancel tenant/ns/0x00000000_0xffffffff transfer to target by target; reason: no room",
        ),
        (lambda story: story.die("target"), "down target"),
        (
            lambda story: (
                story.die("owner"),
                story.about("target", lambda a, b: propose.refuse(a, b, reason="full")),
            ),
            "reason: full",
        ),
        (
            lambda story: (
                story.die("owner"),
                story.tell(propose.assign(story.channel.admin(), story.channel.bundle(), owner=5)),
            ),
            "target -> third",
        ),
    ],
    ids=[
        "cancelled",
        "destination dies",
        "refused after a death",
        "given to another after a death",
    ],
)
def test_a_failed_transfer_reports_the_record_that_ended_it(
    last: Callable[[Story], object], told: str
) -> None:
    story = transferred()
    with pytest.raises(PeerError, match=f"^the transfer of .*{re.escape(told)}") as caught:
        last(story)
    state = f"{story.channel.bundle().token}, last changed at offset {story.channel.view.offset}"
    assert f" token {state}; " in str(caught.value)


@pytest.mark.parametrize(
    "last", [lambda story: story.about("owner", propose.released), lambda story: story.die("owner")]
)
def test_an_unload_ends_with_a_release_or_the_death_of_the_owner(
    last: Callable[[Story], object],
) -> None:
    story = Story(propose.unload)
    assert () == last(story)


def test_a_split_ends_with_its_children() -> None:
    story = split()
    assert story.about("target", CUT) is None  # Rejected: only the owner may.
    assert [(0, MIDDLE), (MIDDLE, 0xFFFFFFFF)] == [
        (child.low, child.high) for child in story.about("owner", CUT) or ()
    ]


@pytest.mark.parametrize(
    "last", [lambda story: story.about("owner", CANCEL), lambda story: story.die("owner")]
)
def test_a_failed_split_reports_the_record_that_ended_it(last: Callable[[Story], object]) -> None:
    story = split()
    with pytest.raises(
        PeerError, match="the split of tenant/ns/0x00000000_0xffffffff was cancelled: record 10: "
    ):
        last(story)


def test_only_lost_races_are_retried() -> None:
    view = channel_with("a").view
    assert [True, False] == [
        may_run_again(view, None, Reason.STALE, race) for race in (RACES_MAX - 1, RACES_MAX)
    ]
    assert not any(
        may_run_again(view, None, reason, 1) for reason in Reason if reason is not Reason.STALE
    )


@pytest.mark.parametrize("reason", [Reason.DEAD_TARGET, Reason.DRAINING_TARGET])
def test_a_destination_that_changed_is_a_lost_race(reason: Reason) -> None:
    channel = channel_with("up", "draining", "dead")
    channel.accept(propose.draining(channel.author("draining"), channel.broker("draining")))
    channel.die("dead")
    transfers = {
        broker: Transfer(bundle="b", destination=broker, reason="r")
        for broker in ("up", "draining", "dead", "unknown")
    }
    retried = [
        broker
        for broker, intent in transfers.items()
        if may_run_again(channel.view, intent, reason, 1)
    ]
    assert ["up"] == retried
    assert may_run_again(channel.view, MoveAway(bundle="b", reason="r"), reason, 1)
    assert not may_run_again(channel.view, transfers["up"], reason, RACES_MAX)


def test_a_step_may_be_overtaken() -> None:
    def refused(reason: Reason) -> None:
        raise Rejected(key="k", reason=reason, problem=None, offset=None)

    for reason in (Reason.STALE, Reason.ILLEGAL_TRANSITION, Reason.UNKNOWN_BUNDLE):
        with unless_overtaken():
            refused(reason)
    with pytest.raises(Rejected), unless_overtaken():
        refused(Reason.DEAD_PUBLISHER)


@pytest.mark.parametrize(
    ("setting", "most", "intent", "problem"),
    [
        (
            "namespaces_max",
            1,
            CreateNamespace(name="tenant/b", boundaries=even_boundaries(1)),
            "has 1 namespaces, and may have 1",
        ),
        (
            "bundles_max",
            5,
            CreateNamespace(name="tenant/b", boundaries=even_boundaries(4)),
            "has 2 bundles, and may have 5, which 4 more",
        ),
        (
            "bundles_max",
            2,
            SplitBundle(bundle=bundle_name(NAMESPACE, 0, MIDDLE), algorithm="x", reason="r"),
            "has 2 bundles, and may have 2, which 1 more",
        ),
    ],
)
def test_a_tenant_gets_no_more_than_its_quota(
    setting: str, most: int, intent: Intent, problem: str
) -> None:
    """Others get theirs."""
    channel = channel_with("a", bundles=2)
    check_request(channel.view, intent)
    set_policy(channel, KEY, {f"tenants.{setting}": most})
    with pytest.raises(
        CallerError,
        match=f"tenant tenant {problem}.*equipoise balancing set tenants.{setting}=NUMBER",
    ):
        check_request(channel.view, intent)
    check_request(channel.view, CreateNamespace(name="other/b", boundaries=even_boundaries(2)))


def test_a_destination_is_forbidden_by_rules_alone() -> None:
    channel = channel_with("a", "b", "c", "d")
    bundle = channel.bundle()
    for broker in "abcd":
        check_destination(channel.view, bundle, broker)
    set_policy(channel, "pin/x", pin_document(namespace=NAMESPACE, brokers=["a", "c", "d"]))
    channel.accept(propose.draining(channel.author("c"), channel.broker("c")))
    channel.die("d")
    for broker in ("a", "c", "d", "nobody"):
        check_destination(channel.view, bundle, broker)
    with pytest.raises(
        CallerError,
        match=f"{bundle.name} was .*: b may not have it: pin/x keeps this bundle at a, c, d",
    ):
        check_destination(channel.view, bundle, "b")


def test_cancels_come_in_batches() -> None:
    count = UNLOADS_AT_ONCE + 4
    channel = channel_with("a", "b", bundles=count)
    first, second, third, *others = channel.view.bundles_of(NAMESPACE)
    for bundle in (first, second, *others):
        channel.own("a", bundle.low)
    for bundle in others:
        channel.accept(
            propose.transfer(
                channel.admin(), channel.bundle(bundle.low), destination=channel.incarnation("b")
            )
        )
    channel.accept(
        propose.start_split(
            channel.admin(), channel.bundle(first.low), algorithm="range_equally_divide"
        )
    )
    channel.accept(propose.unload(channel.admin(), channel.bundle(second.low)))
    channel.accept(propose.assign(channel.admin(), third, owner=channel.incarnation("a")))
    channel.accept(propose.prepared(channel.author("b"), channel.bundle(others[0].low)))
    batches = list(cancels_of(channel.view.bundles_of(NAMESPACE)))
    assert [UNLOADS_AT_ONCE, 1] == [len(batch) for batch in batches]
    expected = [
        Cancel(bundle=bundle.name, reason=CANCELLED_BY_OPERATOR) for bundle in (first, *others[1:])
    ]
    assert expected == [cancel for batch in batches for cancel in batch]


def test_a_deletion_has_its_steps_in_order() -> None:
    channel = channel_with("a", bundles=2)
    channel.own("a")
    channel.accept(
        propose.assign(channel.admin(), channel.bundle(MIDDLE), owner=channel.incarnation("a"))
    )
    assert (StartDeletingNamespace(name=NAMESPACE),) == next_of_deletion(channel.view, NAMESPACE)
    channel.accept(propose.start_deleting_namespace(channel.admin(), channel.view, name=NAMESPACE))
    assert (Unload(bundle=channel.bundle().name, reason=BY_OPERATOR),) == next_of_deletion(
        channel.view, NAMESPACE
    )
    channel.accept(propose.unload(channel.admin(), channel.bundle()))
    assert next_of_deletion(channel.view, NAMESPACE) is None
    channel.accept(propose.opened(channel.author("a"), channel.bundle(MIDDLE)))
    assert (Unload(bundle=channel.bundle(MIDDLE).name, reason=BY_OPERATOR),) == next_of_deletion(
        channel.view, NAMESPACE
    )
    channel.die("a")
    assert (DeleteNamespace(name=NAMESPACE),) == next_of_deletion(channel.view, NAMESPACE)
    channel.accept(propose.delete_namespace(channel.admin(), channel.view, name=NAMESPACE))
    # Another writer was faster: the channel refuses the deletion, because the namespace does not
    # exist.
    assert (DeleteNamespace(name=NAMESPACE),) == next_of_deletion(channel.view, NAMESPACE)


def test_a_destination_must_serve_the_namespace() -> None:
    """Force does not change that."""
    channel = channel_with("a")
    channel.join("other", serves=["shop/*"])
    bundle = channel.bundle()
    refused = (
        f"cannot move {bundle.name}: the program of other does not serve {NAMESPACE}; name one that"
        " does: a"
    )
    with pytest.raises(Rejected, match=refused) as error:
        check_destination(channel.view, bundle, "other")
    assert Reason.NOT_SERVED == error.value.reason
    forced = Transfer(bundle=bundle.name, destination="other", reason=BY_OPERATOR)
    with pytest.raises(Rejected, match=refused):
        check_request(channel.view, forced)
    channel.die("a")
    with pytest.raises(Rejected, match=f"; start a program that serves {NAMESPACE}"):
        check_request(channel.view, forced)


# --- the first owner ---


def test_an_operation_waits_for_the_first_owners() -> None:
    """Of both bundles, for a merge. Meanwhile one of them is free again."""
    channel = channel_with("a", bundles=2)
    left, right = channel.view.bundles_of(NAMESPACE)

    def assign(low: int) -> None:
        channel.accept(
            propose.assign(channel.admin(), channel.bundle(low), owner=channel.incarnation("a"))
        )

    def end(low: int, make: Proposal) -> None:
        channel.accept(make(channel.author("a"), channel.bundle(low)))

    port = FoldingPort(
        channel,
        partial(assign, left.low),
        partial(end, left.low, partial(propose.refuse, reason="no room")),
        partial(assign, left.low),
        partial(end, left.low, propose.opened),
        partial(assign, right.low),
        partial(end, right.low, propose.opened),
    )
    run(moves.merge(port, left.name))
    assert 1 == len(channel.view.bundles_of(NAMESPACE))


def _quarantined(channel: Channel) -> None:
    set_policy(channel, quarantine_key(channel.bundle().name), {"reason": "bad"})


def _deleting(channel: Channel) -> None:
    channel.accept(propose.start_deleting_namespace(channel.admin(), channel.view, name=NAMESPACE))


@pytest.mark.parametrize(
    "happened",
    [_quarantined, _deleting, lambda channel: channel.die("a")],
    ids=["quarantined", "deleting", "no-broker"],
)
def test_an_operation_does_not_wait_for_an_owner_that_will_not_come(
    happened: Callable[[Channel], object],
) -> None:
    channel = channel_with("a")
    happened(channel)
    with pytest.raises(Rejected, match="it is free, not owned"):
        run(moves.split(FoldingPort(channel), channel.bundle().name))


def test_an_operation_without_a_wait_is_refused_at_once() -> None:
    channel = channel_with("a")
    with pytest.raises(Rejected, match="it is free, not owned"):
        run(moves.split(FoldingPort(channel), channel.bundle().name, wait=False))
