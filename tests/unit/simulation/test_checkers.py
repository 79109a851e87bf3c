"""Each checker is silent on what is in order, and raises on the smallest thing that is not.

The mutants show that a checker catches a broken rule of the product; here the broken thing is made
by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import pytest

from equipoise.brokers.agent.effects import Append, Discard, Effect, Open, Prepare, Reshaped
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.balancing.namespace_policies import ON_CHANNEL_LOSS
from equipoise.brokers.balancing.policies import quarantine_document, quarantine_key
from equipoise.brokers.errors import BrokerIdTaken
from equipoise.brokers.testing.agent_host import Directory
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import (
    BrokerEntry,
    BundleChanged,
    BundleEntry,
    NamespaceEntry,
    Verdict,
    bundle_entry,
)
from equipoise.channel.core.errors import SnapshotDamaged
from equipoise.channel.core.log import Entry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import AnyRecord, BundleTransition, Reason
from equipoise.channel.core.view import View
from tests.channels.folding import MIDDLE, NAMESPACE, joined
from tests.simulation.checkers.agreement import (
    Agreement,
    Answers,
    Beginnings,
    Settlement,
)
from tests.simulation.checkers.coverage import Coverage, Tokens
from tests.simulation.checkers.membership import Leadership, Membership
from tests.simulation.checkers.ownership import Ownership, Work, child_of
from tests.simulation.checkers.quarantine import Quarantines
from tests.simulation.checkers.recovery import not_recovered, recovery_bound_ms
from tests.simulation.checkers.transfers import (
    Handovers,
    Transfers,
    one_at_a_time,
)
from tests.simulation.checkers.violation import InvariantViolated
from tests.simulation.host import Process
from tests.simulation.stand_in_service import Running


class History:
    """A log of records, and what a reader made of each."""

    def __init__(self) -> None:
        self.reader = Reader(log="test")
        self.folded: list[Folded] = []
        self.add(propose.genesis(Author(publisher="admin:test"), cluster="test"))

    @property
    def view(self) -> View:
        return self.reader.view

    def add(self, record: AnyRecord) -> Folded:
        self.folded.append(self.reader.feed(Entry(self.reader.position, encode(record))))
        return self.folded[-1]

    def join(self, broker: str) -> int:
        return self.add(joined(broker, self.view, nonce=f"{broker}:1")).offset

    def create(self) -> BundleEntry:
        author = Author(publisher="admin:test", as_of=self.view.offset)
        self.add(
            propose.create_namespace(
                author, self.view, name=NAMESPACE, boundaries=(0, MIDDLE, HASH_MAX)
            )
        )
        return self.view.bundles_of(NAMESPACE)[0]

    def author(self, broker: str, sequence: int) -> Author:
        return Author(
            publisher=broker, incarnation=self.view.brokers[broker].incarnation, sequence=sequence
        )


class Fake:
    """What a checker looks at, and no more; compared by identity, as processes are."""

    alive: bool

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


NOW = Instant(1_000, 1_000)


@dataclass(slots=True, kw_only=True)
class Broker:
    """A process as the checkers see one; all clocks show `NOW`."""

    process: Process
    lease: Lease
    view: View

    def open(
        self, ownership: Ownership, *, low: int = 0, high: int = MIDDLE, token: int = 7
    ) -> Handle:
        handle = Handle(
            bundle=f"{low}_{high}",
            namespace=NAMESPACE,
            low=low,
            high=high,
            token=token,
            lease=self.lease,
        )
        ownership.stepped(
            self.process, [Open(handle=handle, source=None, handover=None, deadline_ms=0)], NOW
        )
        handle.is_open = True
        ownership.stepped(self.process, [], NOW)
        return handle


def broker(name: str, incarnation: int) -> Broker:
    view = View()
    view.live[incarnation] = cast("BrokerEntry", Fake())
    lease = Lease(incarnation=incarnation, skew_max_ms=250, deadline_ms=4_000)
    agent = Fake(lease=lease, view=view, incarnation=incarnation)
    host = Fake(name=name, now=lambda: NOW)
    service = Fake(left={})
    process = Fake(
        agent=agent, host=host, held={}, alive=True, service=service, directory=Directory(mark=7)
    )
    return Broker(process=cast("Process", process), lease=lease, view=view)


def folded(*changes: BundleChanged, offset: int = 50) -> Folded:
    record = BundleTransition(
        key="a bundle", based_on=0, publisher="b", incarnation=1, sequence=1, state="free"
    )
    return Folded(offset=offset, record=record, verdict=Verdict(changes=changes))


def owned(low: int, high: int, *, owner: int = 2, token: int = 10) -> BundleEntry:
    return bundle_entry(
        NAMESPACE, low, high, "owned", owner=owner, source=None, last=20, token=token
    )


# --- 1 one owner ---


def test_a_token_that_no_data_directory_notes() -> None:
    with pytest.raises(InvariantViolated, match=r"under token 8 of #1, but .* notes only offset 7"):
        broker("a", 1).open(Ownership(), token=8)


def test_two_brokers_pass_for_one_point() -> None:
    """Two handles over one point that pass at one instant are seen as the second opens."""
    ownership = Ownership()
    broker("a", 1).open(ownership)
    with pytest.raises(InvariantViolated, match="1 one owner: b and a both pass"):
        broker("b", 2).open(ownership, low=MIDDLE - 1, high=HASH_MAX)


def test_brokers_that_pass_for_different_points_are_in_order() -> None:
    """Neighbours do not meet, nor does a broker whose lease has run out meet its successor."""
    ownership = Ownership()
    late = broker("a", 1)
    late.lease.deadline_ms = NOW.boot_ms
    late.open(ownership)
    broker("b", 2).open(ownership)
    broker("c", 3).open(ownership, low=MIDDLE, high=HASH_MAX)
    ownership.look_at_all()


def test_a_lease_that_comes_back_is_looked_at() -> None:
    """A handle that passes again, because its lease was extended, is checked against those opened
    meanwhile.
    """
    ownership = Ownership()
    late = broker("a", 1)
    late.lease.deadline_ms = NOW.boot_ms
    late.open(ownership)
    broker("b", 2).open(ownership)
    late.lease.extend(decided=NOW, lease_ms=3_000)
    with pytest.raises(InvariantViolated, match="1 one owner"):
        ownership.stepped(late.process, [], NOW)


def test_what_no_step_shows_is_seen_by_the_look_at_all() -> None:
    """A clock that is set lets a lease pass again without any step."""
    ownership = Ownership()
    late = broker("a", 1)
    late.lease.skew_ms = -1_000
    late.open(ownership)
    broker("b", 2).open(ownership)
    late.lease.skew_ms = 0
    with pytest.raises(InvariantViolated, match="1 one owner"):
        ownership.look_at_all()


def test_a_process_that_has_ended_answers_nothing() -> None:
    ownership = Ownership()
    dead = broker("a", 1)
    dead.open(ownership)
    ownership.ended(dead.process)
    broker("b", 2).open(ownership)
    assert ownership.passing(dead.process) is None


def test_work_of_two_brokers_overlaps() -> None:
    """Work on one point by two brokers must not overlap, work by one may."""
    ownership = Ownership()
    one, other = broker("a", 1).process, broker("b", 2).process
    work = Work(process=one, namespace=NAMESPACE, point=5, token=7, began_us=100, ended_us=200)
    ownership.answered(work)
    ownership.answered(replace(work, began_us=150, ended_us=250))
    ownership.answered(replace(work, process=other, point=6, began_us=150, ended_us=260))
    ownership.answered(replace(work, process=other, began_us=250, ended_us=270))
    with pytest.raises(InvariantViolated, match="1 one owner: a worked on"):
        ownership.answered(replace(work, process=other, began_us=240, ended_us=280))


def let_serve_on(who: Broker, *, policy: str = "serve") -> None:
    """Have a broker read that its namespace says so, and its handles follow it; its lease has run
    out, and it is awake.
    """
    policies = {ON_CHANNEL_LOSS: policy}
    who.view.put_namespace(
        NAMESPACE,
        NamespaceEntry(name=NAMESPACE, status="created", last=1, created=1, policies=policies),
    )
    who.lease.deadline_ms = NOW.boot_ms
    who.lease.attend(NOW)


def test_what_is_served_on_is_left_out_past_the_lease_alone() -> None:
    """Beside the next owner it passes, and no checker minds; while its lease is good it must be
    alone, like any other.
    """
    ownership = Ownership()
    late = broker("a", 1)
    late.open(ownership).serves_on = True
    let_serve_on(late)
    assert ownership.passing(late.process) is None
    broker("b", 2).open(ownership)
    ownership.look_at_all()
    ownership.stepped(late.process, [], NOW)
    late.lease.deadline_ms = NOW.boot_ms + 1
    with pytest.raises(InvariantViolated, match="1 one owner"):
        ownership.look_at_all()


def test_serving_on_without_leave_is_seen() -> None:
    """A handle that passes past its lease, in a namespace that does not say so, is found at the
    next step, without any rival.
    """
    ownership = Ownership()
    leaking = broker("a", 1)
    leaking.open(ownership).serves_on = True
    let_serve_on(leaking, policy="fence")
    with pytest.raises(
        InvariantViolated,
        match="past its lease a broker serves on only where it may: the lease of a has run out",
    ):
        ownership.stepped(leaking.process, [], NOW)


def test_work_that_only_a_token_guards() -> None:
    """It may overlap that of the next owner, whose token is another; under one token no store could
    tell the two apart.
    """
    ownership = Ownership()
    one, other = broker("a", 1).process, broker("b", 2).process
    work = Work(
        process=one,
        namespace=NAMESPACE,
        point=5,
        token=7,
        began_us=100,
        ended_us=200,
        by_token=True,
    )
    ownership.answered(work)
    ownership.answered(replace(work, process=other, token=8, by_token=False))
    with pytest.raises(InvariantViolated, match="1 one owner: a worked on"):
        ownership.answered(replace(work, process=broker("c", 3).process, by_token=False))


def test_a_handle_of_an_incarnation_that_is_over() -> None:
    ownership = Ownership()
    dead = broker("a", 1)
    dead.open(ownership)
    dead.view.live.clear()
    with pytest.raises(
        InvariantViolated, match="a handle ends with its incarnation: a has read the end of #1"
    ):
        ownership.stepped(dead.process, [], NOW)


def test_children_are_watched_and_found() -> None:
    """After a split work goes on under the child that holds its point, and the children are watched
    like any handle.
    """
    ownership = Ownership()
    owner = broker("a", 1)
    parent = owner.open(ownership)
    children = tuple(
        replace(parent, low=low, high=high, is_open=True) for low, high in ((0, 10), (10, MIDDLE))
    )
    parent.is_open, parent.children = False, children
    ownership.stepped(owner.process, [Reshaped(gone=(parent,), children=children)], NOW)
    assert children[1] is child_of(parent, 10)
    assert ownership.passing(owner.process) is children[0]
    children[0].is_open = False
    assert children[0] is child_of(parent, 3)


# --- 2 coverage, 4 tokens ---


def test_a_split_that_leaves_a_hole() -> None:
    history, coverage = History(), Coverage()
    left = history.create()
    for record in history.folded:
        coverage.folded(record, history.view)
    gone = BundleChanged(name=left.name, before=left, after=None)
    with pytest.raises(InvariantViolated, match="2 coverage: at offset 50 the view's bundles"):
        coverage.folded(folded(gone), history.view)
    history.view.remove_bundle(left)
    with pytest.raises(
        InvariantViolated, match="2 coverage: at offset 51 the bundles of tenant/ns do not reach"
    ):
        coverage.folded(folded(gone, offset=51), history.view)
    for low, high in ((0, 10), (20, MIDDLE)):
        history.view.insert_bundle(owned(low, high))
    children = [
        BundleChanged(name=str(low), before=None, after=owned(low, high))
        for low, high in ((0, 10), (20, MIDDLE))
    ]
    with pytest.raises(
        InvariantViolated, match="do not meet: 0x0000000a is followed by 0x00000014"
    ):
        coverage.folded(folded(*children, offset=52), history.view)


def test_a_token_falls() -> None:
    """A token must not fall, not in a merge either, nor when a namespace is made anew."""
    before, left, right = owned(0, MIDDLE), owned(0, 10, token=8), owned(10, MIDDLE, token=9)
    gone = [BundleChanged(name=bundle.name, before=bundle, after=None) for bundle in (left, right)]
    falls = BundleChanged(name=before.name, before=before, after=owned(0, MIDDLE, token=9))
    with pytest.raises(
        InvariantViolated,
        match=r"4 tokens only rise: at offset 50 the token of .* falls from 10 to 9",
    ):
        Tokens().folded(folded(falls))
    tokens = Tokens()
    union = owned(0, MIDDLE, token=9)
    tokens.folded(folded(*gone, BundleChanged(name=union.name, before=None, after=union)))
    tokens.folded(folded(BundleChanged(name=union.name, before=union, after=None)))
    with pytest.raises(InvariantViolated, match="falls from 9 to 8"):
        tokens.folded(folded(BundleChanged(name=left.name, before=None, after=left)))


def test_two_owners_serve_under_one_token() -> None:
    tokens, first = Tokens(), owned(0, MIDDLE)
    tokens.folded(
        folded(BundleChanged(name=first.name, before=replace(first, owner=3), after=first))
    )
    with pytest.raises(InvariantViolated, match="passes from #2 to #3 under the same token 10"):
        tokens.folded(
            folded(BundleChanged(name=first.name, before=first, after=owned(0, MIDDLE, owner=3)))
        )


# --- 3 digests, 6 rejections, section 1 ---


def test_a_reader_with_another_digest() -> None:
    history, agreement = History(), Agreement()
    agreement.folded(history.folded[-1], history.view)
    agreement.read("a", history.view)
    history.view.level = 7
    history.view.scalars_changed()
    with pytest.raises(
        InvariantViolated, match="3 same offset, same digest: at offset 1 a has digest"
    ):
        agreement.read("a", history.view)


def test_a_log_begins_twice() -> None:
    """A second genesis may be accepted where the first stands below the base, in the log that was
    copied, and nowhere else.
    """
    history, beginnings = History(), Beginnings()
    beginnings.folded(history.folded[0], history.view)
    late = history.add(propose.genesis(Author(publisher="admin:test"), cluster="test"))
    beginnings.folded(late, history.view)
    accepted = Folded(offset=late.offset, record=late.record, verdict=Verdict())
    with pytest.raises(
        InvariantViolated, match="the genesis at offset 2 is accepted, and the log had begun at 1"
    ):
        beginnings.folded(accepted, history.view)
    history.view.base = 1
    beginnings.folded(accepted, history.view)


def settled(history: History) -> Settlement:
    """A settlement that has seen a broker join; its next records are the test's."""
    settlement = Settlement()
    settlement.folded(history.folded[0], history.view)
    history.join("a")
    settlement.folded(history.folded[1], history.view)
    return settlement


def test_a_rejection_leaves_a_trace() -> None:
    """A rejected record may use up a sequence, and change nothing else."""
    history = History()
    settlement = settled(history)
    entry = history.view.brokers["a"]
    stale = replace(propose.renewed(history.author("a", 5), entry), based_on=0)
    settlement.folded(history.add(stale), history.view)
    late = history.add(replace(stale, sequence=4))
    assert late.verdict.reason is Reason.LATE
    history.view.raise_last(entry, 99)
    with pytest.raises(
        InvariantViolated,
        match=r"6 rejections change nothing: the rejected record at offset 4 \(late\)",
    ):
        settlement.folded(late, history.view)


def test_a_settled_attempt_is_accepted() -> None:
    """After attempt 5 was read, attempt 5 or 4 must not be accepted, nor anything of the dead, nor
    an admin's old record.
    """
    history = History()
    settlement = settled(history)
    entry = history.view.brokers["a"]
    renewed = history.add(propose.renewed(history.author("a", 5), entry))
    settlement.folded(renewed, history.view)
    with pytest.raises(
        InvariantViolated, match="attempt 5 of a is accepted at offset 3, attempt 5 was read before"
    ):
        settlement.folded(renewed, history.view)
    of_the_dead = replace(
        renewed, record=propose.renewed(Author(publisher="a", incarnation=77, sequence=1), entry)
    )
    with pytest.raises(InvariantViolated, match="of #77, which is not alive, is accepted"):
        settlement.folded(of_the_dead, history.view)
    by_admin = replace(
        renewed, offset=20_000, record=propose.draining(Author(publisher="admin:x", as_of=3), entry)
    )
    with pytest.raises(InvariantViolated, match="made at offset 3 is accepted at offset 20000"):
        settlement.folded(by_admin, history.view)


# --- 7 and section 4 ---


def membership_of(nonces: Mapping[str, Process]) -> Membership:
    return Membership(nonces, passing=lambda _process: None, nobody_dies=False)


def all_but_last(history: History, membership: Membership) -> Folded:
    """Let the membership checker read the whole history but its last record, which is returned."""
    *earlier, last = history.folded
    for record in earlier:
        membership.folded(record, history.view)
    return last


def declared_dead(
    *, lives: bool, lease_good: bool, nobody_dies: bool = False, passing: Handle | None = None
) -> None:
    """Broker a is declared down by b; raises what the checker raises."""
    history = History()
    dead = history.join("a")
    history.join("b")
    victim = broker("a", dead)
    victim.lease.deadline_ms = 4_000 if lease_good else 0
    cast("Fake", victim.process).alive = lives
    membership = Membership(
        {"a:1": victim.process}, passing=lambda _process: passing, nobody_dies=nobody_dies
    )
    history.add(propose.down(history.author("b", 1), history.view.brokers["a"]))
    membership.folded(all_but_last(history, membership), history.view)


def test_a_death_that_is_in_order() -> None:
    """A process that has ended may be declared down, and one whose lease is over."""
    declared_dead(lives=False, lease_good=True, nobody_dies=True)
    declared_dead(lives=True, lease_good=False)


def test_the_living_are_declared_dead() -> None:
    """Nobody is declared dead while its lease is good, or while it serves, or where nothing can
    excuse it.
    """
    with pytest.raises(InvariantViolated, match="the lease of a is good"):
        declared_dead(lives=True, lease_good=True)
    handle = Handle(
        bundle="x", namespace=NAMESPACE, low=0, high=1, token=1, lease=broker("a", 1).lease
    )
    with pytest.raises(InvariantViolated, match="a still serves x in it"):
        declared_dead(lives=True, lease_good=False, passing=handle)
    with pytest.raises(
        InvariantViolated,
        match="7 an outage costs nobody a bundle: b ends #2 at offset 4, and a lives",
    ):
        declared_dead(lives=True, lease_good=False, nobody_dies=True)


def test_an_incarnation_of_another_process() -> None:
    history = History()
    incarnation = history.join("a")
    owner, thief = broker("a", incarnation), broker("a-duplicate", incarnation)
    membership = membership_of({"a:1": owner.process})
    membership.folded(history.folded[-1], history.view)
    membership.stepped(owner.process, [], NOW)
    with pytest.raises(
        InvariantViolated, match="a-duplicate lives in #2, which another process began"
    ):
        membership.stepped(thief.process, [], NOW)


def test_a_broker_that_gives_up() -> None:
    """A broker may leave, and may give up where another process has its id; nothing else makes it
    stop.
    """
    process, rival, stranger = (
        Fake(host=Fake(name=name, broker=name.removesuffix("-duplicate")))
        for name in ("a", "a-duplicate", "b")
    )
    taken = BrokerIdTaken(broker="a", incarnation=2)
    alone, contested = (
        membership_of(cast("dict[str, Process]", nonces))
        for nonces in ({"1": process, "2": stranger}, {"1": process, "2": rival})
    )
    alone.stopped(cast("Process", process), None)
    contested.stopped(cast("Process", process), taken)
    with pytest.raises(
        InvariantViolated,
        match="nobody gives up without need: a stops: the broker id 'a' is in use",
    ):
        alone.stopped(cast("Process", process), taken)
    with pytest.raises(InvariantViolated, match="nobody gives up without need"):
        contested.stopped(cast("Process", process), SnapshotDamaged(problem="it is torn"))


def test_an_accuser_whose_lease_has_run_out() -> None:
    history = History()
    accuser = broker("a", history.join("a"))
    history.join("b")
    membership = membership_of({"a:1": accuser.process})
    for record in history.folded:
        membership.folded(record, history.view)
    data = encode(propose.down(history.author("a", 1), history.view.brokers["b"]))
    membership.stepped(accuser.process, [Append(attempt=1, data=data)], NOW)
    accuser.lease.deadline_ms = NOW.boot_ms
    with pytest.raises(InvariantViolated, match="an accuser has a lease: a declares another dead"):
        membership.stepped(accuser.process, [Append(attempt=1, data=data)], NOW)


def test_the_dead_and_the_draining_are_given_nothing() -> None:
    history = History()
    target = history.join("a")
    bundle = history.create()
    membership = membership_of({})
    history.add(propose.assign(history.author("a", 1), bundle, owner=target))
    given = all_but_last(history, membership)
    membership.folded(given, history.view)
    history.view.live[target].status = "draining"
    with pytest.raises(InvariantViolated, match="is given to #2, which drains"):
        membership.folded(given, history.view)
    del history.view.live[target]
    with pytest.raises(InvariantViolated, match="is given to #2, which is dead"):
        membership.folded(given, history.view)


def test_a_death_that_forgets_a_bundle() -> None:
    history = History()
    dead = history.join("a")
    history.join("b")
    bundle = history.create()
    history.add(propose.assign(history.author("a", 1), bundle, owner=dead))
    forgotten = history.view.bundles[bundle.name]
    death = history.add(propose.down(history.author("b", 1), history.view.brokers["a"]))
    history.view.bundles[bundle.name] = forgotten
    membership = membership_of({})
    with pytest.raises(
        InvariantViolated,
        match=r"a death is one record: #2 ends at offset 6, and .* is still assigning with it",
    ):
        membership.folded(death, history.view)


# --- section 9, 5 ---


@pytest.mark.parametrize("accepted_first", [False, True])
def test_an_error_for_what_is_accepted(accepted_first: bool) -> None:
    """A request that was answered with an error is on the log, accepted before or after the
    answer.
    """
    history, answers = History(), Answers()
    incarnation = history.join("a")
    renewed = [
        history.add(propose.renewed(history.author("a", sequence), history.view.brokers["a"]))
        for sequence in (1, 2)
    ]
    late = history.add(propose.renewed(history.author("a", 2), history.view.brokers["a"]))
    answers.folded(renewed[0])
    answers.disowned(incarnation, 2)
    answers.folded(late)
    lie = (
        partial(answers.disowned, incarnation, 1)
        if accepted_first
        else partial(answers.folded, renewed[1])
    )
    with pytest.raises(InvariantViolated, match="nothing was done"):
        lie()


def test_a_handover_of_another_ownership() -> None:
    """A service opens with what the record of its own token handed over, or what it left in the
    same ownership itself.
    """
    handovers, owner = Handovers(), broker("a", 1)
    handle = Handle(
        bundle="a bundle", namespace=NAMESPACE, low=0, high=1, token=50, lease=owner.lease
    )
    record = folded()
    assert isinstance(record.record, BundleTransition)
    handovers.folded(replace(record, record=replace(record.record, handover=b"the state")))
    effect = Open(handle=handle, source=None, handover=b"the state", deadline_ms=0)
    handovers.stepped(owner.process, [effect, replace(effect, handover=None)])
    owner.process.service.left["a bundle", 50] = b"my own"
    handovers.stepped(owner.process, [replace(effect, handover=b"my own")])
    with pytest.raises(
        InvariantViolated,
        match=r"section 9: .* goes on with a bundle under token 50 with None, and left b'my own'",
    ):
        handovers.stepped(owner.process, [replace(effect, handover=None)])
    owner.process.service.left.clear()
    with pytest.raises(
        InvariantViolated, match=r"section 9: .* opens a bundle under token 50 with b'older'"
    ):
        handovers.stepped(owner.process, [replace(effect, handover=b"older")])


@pytest.mark.parametrize("incarnation", [None, 9])
def test_a_request_outlives_its_incarnation(incarnation: int | None) -> None:
    """A request may wait while the incarnation of its attempt goes on, and no longer."""
    answers = Answers()
    agent = Fake(incarnation=2)
    process = cast("Process", Fake(host=Fake(name="a"), agent=agent, served={2: (2, 7)}))
    answers.stepped(process)
    agent.__dict__["incarnation"] = incarnation
    with pytest.raises(
        InvariantViolated, match="a has read the end of #2, and has not answered request 2 of it"
    ):
        answers.stepped(process)


def two_brokers() -> tuple[History, Leadership, int, int]:
    """A history in which a and b joined, a checker that has seen it, and their incarnations."""
    history, leadership = History(), Leadership()
    leadership.folded(history.folded[0], history.view)
    incarnations = []
    for name in ("a", "b"):
        incarnations.append(history.join(name))
        leadership.folded(history.folded[-1], history.view)
    return history, leadership, incarnations[0], incarnations[1]


def leading(view: View, incarnation: int | None, *, leads: bool) -> Process:
    return cast(
        "Process",
        Fake(host=Fake(name="a"), agent=Fake(view=view, incarnation=incarnation, leads=leads)),
    )


def test_the_oldest_that_does_not_drain_leads() -> None:
    """Leadership passes on when the leader drains or dies, and only the leader acts as one."""
    history, leadership, first, second = two_brokers()
    leadership.stepped(leading(history.view, first, leads=True))
    leadership.stepped(leading(history.view, second, leads=False))
    leadership.stepped(leading(View(), None, leads=False))
    for number, make in enumerate((propose.draining, propose.left), start=1):
        leadership.folded(
            history.add(make(history.author("a", number), history.view.brokers["a"])), history.view
        )
        leadership.stepped(leading(history.view, second, leads=True))


def test_a_broker_that_drains_leads() -> None:
    """A view, or a broker, that takes a draining broker for the leader is found, and so is a leader
    that does nothing.
    """
    history, leadership, first, second = two_brokers()
    drains = history.add(propose.draining(history.author("a", 1), history.view.brokers["a"]))
    leadership.folded(drains, history.view)
    with pytest.raises(
        InvariantViolated,
        match=(
            rf"section 5: .* a \(#{first}\) acts as the leader at offset 4, where #{second} leads"
        ),
    ):
        leadership.stepped(leading(history.view, first, leads=True))
    with pytest.raises(InvariantViolated, match=rf"a \(#{second}\) does not act as the leader"):
        leadership.stepped(leading(history.view, second, leads=False))
    del history.view.live[second]
    with pytest.raises(
        InvariantViolated,
        match=f"at offset 4 the view names {first} as the leader, which is #{second}",
    ):
        leadership.folded(drains, history.view)


def reshaped(gone: tuple[BundleEntry, ...], made: tuple[BundleEntry, ...]) -> Folded:
    """A record that makes other bundles of those that are gone."""
    record = BundleTransition(
        key="a bundle", based_on=0, publisher="b", incarnation=1, sequence=1, state="free"
    )
    removed = [BundleChanged(name=bundle.name, before=bundle, after=None) for bundle in gone]
    added = [BundleChanged(name=bundle.name, before=None, after=bundle) for bundle in made]
    return Folded(offset=50, record=record, verdict=Verdict(changes=(*removed, *added)))


def test_children_keep_the_token() -> None:
    parent = owned(0, HASH_MAX, token=10)
    Tokens().folded(
        reshaped((parent,), (owned(0, MIDDLE, token=10), owned(MIDDLE, HASH_MAX, token=10)))
    )
    with pytest.raises(
        InvariantViolated,
        match=r"section 3: the children .* begins under token 50, and what it is made of had 10",
    ):
        Tokens().folded(
            reshaped((parent,), (owned(0, MIDDLE, token=10), owned(MIDDLE, HASH_MAX, token=50)))
        )


def test_a_union_takes_the_greater_token() -> None:
    halves = owned(0, MIDDLE, token=8), owned(MIDDLE, HASH_MAX, token=9)
    Tokens().folded(reshaped(halves, (owned(0, HASH_MAX, token=9),)))
    with pytest.raises(
        InvariantViolated, match="begins under token 50, and what it is made of had 9"
    ):
        Tokens().folded(reshaped(halves, (owned(0, HASH_MAX, token=50),)))


class Moved:
    """A bundle that a owns and that was transferred to b; the checker has seen all, and both
    services were asked to prepare.
    """

    def __init__(self) -> None:
        self.history, self.transfers = History(), Transfers()
        self.ids = {name: self.history.join(name) for name in ("a", "b")}
        self.name = self.history.create().name
        self.add("a", partial(propose.assign, owner=self.ids["a"]))
        self.prepare("a")
        self.add("a", propose.opened)
        self.transfer()
        self.prepare("b")

    @property
    def bundle(self) -> BundleEntry:
        return self.history.view.bundles[self.name]

    def add(self, author: str, make: Callable[[Author, BundleEntry], AnyRecord]) -> Folded:
        folded = self.history.add(
            make(self.history.author(author, self.history.view.offset), self.bundle)
        )
        assert folded.verdict.accepted
        self.transfers.folded(folded)
        return folded

    def transfer(self) -> None:
        self.add("a", partial(propose.transfer, destination=self.ids["b"]))

    def step(self, name: str, effect: Effect) -> None:
        self.transfers.stepped(broker(name, self.ids[name]).process, [effect])

    def prepare(self, name: str) -> None:
        self.step(name, Prepare(bundle=self.bundle, source=None, deadline_ms=0))

    def open(self, name: str, *, source: str | None) -> None:
        lease = Lease(incarnation=self.ids[name], skew_max_ms=250)
        handle = Handle(
            bundle=self.name,
            namespace=NAMESPACE,
            low=0,
            high=MIDDLE,
            token=self.bundle.token,
            lease=lease,
        )
        entry = None if source is None else self.history.view.brokers[source]
        self.step(name, Open(handle=handle, source=entry, handover=None, deadline_ms=0))


def test_an_answer_for_a_transfer_that_the_service_was_not_asked_about() -> None:
    """A destination is ready for the transfer that its service prepared for, and not for the next
    one.
    """
    moved = Moved()
    moved.add("a", partial(propose.cancel, reason="operator"))
    moved.transfer()
    with pytest.raises(InvariantViolated, match="its service was never asked about that one"):
        moved.add("b", propose.prepared)


def test_a_destination_may_cancel_for_others_what_it_was_not_asked_about() -> None:
    """An operator's cancel by way of the destination is no answer; a refusal is one."""
    moved = Moved()
    moved.add("b", partial(propose.cancel, reason="operator"))
    moved.transfer()
    moved.add("b", partial(propose.cancel, reason="operator"))
    moved.transfer()
    with pytest.raises(InvariantViolated, match="its service was never asked about that one"):
        moved.add("b", partial(propose.refuse_transfer, problem="no room"))


def test_a_source_that_did_not_release_the_bundle() -> None:
    """The source of an opening is the broker that handed the bundle over under this token."""
    moved = Moved()
    moved.add("b", propose.prepared)
    moved.add("a", propose.hand_over)
    moved.open("b", source="a")
    moved.open("b", source=None)
    with pytest.raises(InvariantViolated, match="an opening's source released the bundle"):
        moved.open("b", source="b")


def test_two_operations_of_one_bundle_at_once() -> None:
    """An operation that begins while another of its bundle is under way is seen, and one of another
    bundle is not.
    """
    process = broker("a", 1).process
    service = process.service
    discard, other = Discard(bundle="one", deadline_ms=0), Discard(bundle="two", deadline_ms=0)
    service.under_way = {"one": [Running(operation=discard)], "two": [Running(operation=other)]}
    one_at_a_time(process, [discard])
    service.under_way["one"].append(Running(operation=discard))
    with pytest.raises(
        InvariantViolated, match="the service of a at once discards and discards one"
    ):
        one_at_a_time(process, [discard])


def test_what_recovery_waits_for() -> None:
    """A bundle that is not served, and a request that is not answered, keep a cluster from having
    recovered.
    """
    history = History()
    history.create()
    problem = not_recovered(history.view, [], lambda _incarnation: None)
    assert problem is not None
    assert problem.endswith("(offset 2) is free")
    waiting = cast("Process", Fake(asked={3}, host=Fake(name="a"), agent=Fake(entry=None)))
    assert (
        not_recovered(View(), [waiting], lambda _incarnation: None)
        == "a has not answered 1 requests"
    )


def test_recovery_waits_for_a_drain_as_far_as_others_take_what_is_there() -> None:
    """A broker that drains is to own nothing in the end, unless all others refuse it; and where all
    drain nothing is owed.
    """
    history = History()
    history.create()
    me = history.join("a")
    for bundle in history.view.bundles_of(NAMESPACE):
        history.add(
            propose.assign(
                Author(publisher="admin:test", as_of=history.view.offset), bundle, owner=me
            )
        )
        history.add(
            propose.opened(
                history.author("a", history.view.offset), history.view.bundles[bundle.name]
            )
        )

    def process(name: str, status: str, *, takes: bool) -> Process:
        handles = {
            entry.name: Fake(token=entry.token, passes=lambda _now: True)
            for entry in history.view.bundles_of(NAMESPACE)
        }
        agent = Fake(drains=status == "draining", handle=handles.get)
        service = Fake(takes=lambda _namespace: takes)
        return cast(
            "Process",
            Fake(
                alive=True,
                asked=set(),
                host=Fake(name=name, now=lambda: NOW),
                agent=agent,
                service=service,
            ),
        )

    def problem(status: str, other: Process) -> str | None:
        mine = process("a", status, takes=True)
        return not_recovered(history.view, [mine, other], lambda _incarnation: mine)

    assert problem("up", process("b", "up", takes=True)) is None
    assert "which drains" in (problem("draining", process("b", "up", takes=True)) or "")
    assert problem("draining", process("b", "up", takes=False)) is None
    assert problem("draining", process("b", "draining", takes=True)) is None


@pytest.mark.parametrize("evidence", [(), (2,), (2, 3)])
def test_a_quarantine_without_evidence(evidence: tuple[int, ...]) -> None:
    """Only records of deaths soon after the bundle came, or of failed opens, speak against it."""
    history, checker = History(), Quarantines()
    bundle = history.create()
    author = Author(publisher="admin:test", as_of=history.view.offset)
    document = quarantine_document("a guess", hold_ms=1, until_ms=1, evidence=evidence)
    history.add(
        propose.set_policy(
            author, history.view, name=quarantine_key(bundle.name), document=document
        )
    )
    *before, last = history.folded
    for folded in before:
        checker.folded(folded, history.view)
    with pytest.raises(InvariantViolated, match="a quarantine has evidence"):
        checker.folded(last, history.view)


def test_the_bound_of_recovery_grows_with_what_must_be_waited_for() -> None:
    timing = Timing()
    bound_ms = recovery_bound_ms(timing, brokers=3, late_ms=0)
    assert bound_ms < recovery_bound_ms(timing, brokers=4, late_ms=0)
    assert bound_ms < recovery_bound_ms(
        replace(timing, clock_rate_error_ppm=30_000), brokers=3, late_ms=0
    )
