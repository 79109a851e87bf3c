"""Requests: each intent becomes the record that it means, or the refusal that the fold would give.

May live here: `brokers.agent.requests.record_of` over small channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from equipoise.brokers.agent.intents import (
    Cancel,
    CreateNamespace,
    DeleteNamespace,
    Intent,
    MergeBundles,
    MoveAway,
    SetClusterPolicy,
    SetPolicy,
    SplitBundle,
    StartDeletingNamespace,
    Transfer,
    Unload,
    subject_of,
)
from equipoise.brokers.agent.requests import record_of
from equipoise.channel.core import propose
from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.ranges import HASH_MAX, bundle_name, even_boundaries
from equipoise.channel.core.records import DOCUMENT_ENTRIES_MAX, Document, Reason
from tests.folding import MIDDLE, NAMESPACE, Channel, channel_with

LEFT, RIGHT = bundle_name(NAMESPACE, 0, MIDDLE), bundle_name(NAMESPACE, MIDDLE, HASH_MAX)
NOWHERE = bundle_name(NAMESPACE, 0, 1)


def owned_pair() -> Channel:
    """Two bundles, both owned by a; b and c are there, too."""
    channel = channel_with("a", "b", "c", bundles=2)
    channel.own("a", 0)
    channel.own("a", MIDDLE)
    return channel


@dataclass(frozen=True, kw_only=True)
class Case:
    """An intent that can be spelled, and the phases of the two halves after it was accepted."""

    intent: Intent
    left: str | None = "owned"
    right: str | None = "owned"


CASES = (
    Case(intent=Transfer(bundle=LEFT, destination="b", reason="load"), left="transferring"),
    Case(intent=Unload(bundle=LEFT, reason="load"), left="unloading"),
    Case(intent=SplitBundle(bundle=RIGHT, algorithm="range_equally_divide", reason="load"), right="splitting"),
    Case(intent=MergeBundles(left=LEFT, reason="load"), left=None, right=None),
    Case(intent=CreateNamespace(name="tenant/other", boundaries=even_boundaries(4))),
    Case(intent=StartDeletingNamespace(name=NAMESPACE)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.intent).__name__)
def test_an_intent_becomes_its_record(case: Case) -> None:
    """The record is accepted, and brings the bundles to where the intent wants them."""
    channel = owned_pair()
    make = record_of(channel.view, case.intent)
    assert not isinstance(make, Verdict)
    channel.accept(make(channel.author("c")))
    phases = [bundle.phase if (bundle := channel.view.bundles.get(name)) else None for name in (LEFT, RIGHT)]
    assert [case.left, case.right] == phases


def test_the_wishes_of_the_intent_are_in_the_record() -> None:
    """Positions, algorithm, boundaries and reasons are handed on."""
    channel = owned_pair()
    split = record_of(channel.view, SplitBundle(bundle=LEFT, algorithm="specified_positions_divide", positions=(5, 9), reason="hot"))
    create = record_of(channel.view, CreateNamespace(name="tenant/new", boundaries=(0, 7, HASH_MAX), policies={"limit": 3}))
    assert not isinstance(split, Verdict)
    assert not isinstance(create, Verdict)
    channel.accept(split(channel.author("a")))
    channel.accept(create(channel.author("a")))
    assert ("specified_positions_divide", (5, 9)) == (channel.view.bundles[LEFT].algorithm, channel.view.bundles[LEFT].positions)
    assert {"limit": 3} == channel.view.namespaces["tenant/new"].policies
    assert [0, 7] == [bundle.low for bundle in channel.view.bundles_of("tenant/new")]


def set_policy(channel: Channel, policy: str, value: int | None) -> None:
    """Set one policy, against the view as it is."""
    make = record_of(channel.view, SetPolicy(name=NAMESPACE, policy=policy, value=value))
    assert not isinstance(make, Verdict)
    channel.accept(make(channel.author("a")))


def test_a_policy_is_set_and_taken_away_alone() -> None:
    """The other policies of the namespace stay as they are; one that is not there can be taken away all the same."""
    channel = owned_pair()
    for policy, value in (("x", 1), ("y", 2), ("x", 3), ("z", None), ("y", None)):
        set_policy(channel, policy, value)
    assert {"x": 3} == channel.view.namespaces[NAMESPACE].policies


def test_a_namespace_has_a_bounded_number_of_policies() -> None:
    """One too many is refused by a sentence that says how many there may be; what is there can still be changed."""
    channel = owned_pair()
    for number in range(DOCUMENT_ENTRIES_MAX):
        set_policy(channel, f"p{number}", number)
    verdict = record_of(channel.view, SetPolicy(name=NAMESPACE, policy="one more", value=1))
    assert isinstance(verdict, Verdict)
    assert (Reason.ILLEGAL_TRANSITION, True) == (verdict.reason, str(DOCUMENT_ENTRIES_MAX) in (verdict.problem or ""))
    set_policy(channel, "p0", 7)
    assert 7 == channel.view.namespaces[NAMESPACE].policies["p0"]


def set_cluster_policy(channel: Channel, key: str, document: Document | None) -> Verdict | None:
    """Set a cluster policy, against the view as it is; None if it was accepted."""
    make = record_of(channel.view, SetClusterPolicy(policy=key, document=document))
    if isinstance(make, Verdict):
        return make
    channel.accept(make(channel.author("a")))
    return None


def test_a_cluster_policy_is_set_and_taken_away() -> None:
    """The record holds the document, and a later one takes its place."""
    channel = owned_pair()
    for document in ({"namespace": NAMESPACE, "brokers.0": "a"}, {"namespace": NAMESPACE, "brokers.0": "b"}):
        assert None is set_cluster_policy(channel, "pin/p", document)
        assert document == channel.view.policies["pin/p"].document
    assert "pin/p" == subject_of(SetClusterPolicy(policy="pin/p", document=None))
    assert None is set_cluster_policy(channel, "pin/p", None)
    assert {} == channel.view.policies


def test_a_cluster_policy_that_cannot_be_is_refused_and_the_old_one_stays() -> None:
    """One that says nothing sensible, one that leaves nobody, and one that is not there; each with its sentence."""
    channel = owned_pair()
    old = {"namespace": NAMESPACE, "brokers.0": "a"}
    assert None is set_cluster_policy(channel, "pin/p", old)
    pattern = {"namespaces.0": NAMESPACE, "primary.0": "("}
    for key, document, reason, problem in (
        ("isolation/x", pattern, Reason.MALFORMED, "no regular expression"),
        ("pins/p", old, Reason.MALFORMED, "no such kind"),
        ("pin/p", {"namespace": NAMESPACE, "brokers.0": "nobody"}, Reason.ILLEGAL_TRANSITION, "would leave no broker"),
        ("pin/q", None, Reason.UNKNOWN_POLICY, ""),
    ):
        verdict = set_cluster_policy(channel, key, document)
        assert verdict is not None
        assert reason == verdict.reason
        assert problem in (verdict.problem or "")
    assert {"pin/p": old} == {name: entry.document for name, entry in channel.view.policies.items()}


def test_a_bundle_moves_away_to_whom_the_rules_allow() -> None:
    """And is unloaded where they allow nobody else, to be placed anew."""
    channel = owned_pair()
    assert None is set_cluster_policy(channel, "pin/p", {"namespace": NAMESPACE, "brokers.0": "a", "brokers.1": "c"})
    for phase, document in (("transferring", None), ("unloading", {"namespace": NAMESPACE, "brokers.0": "a"})):
        if document is not None:
            channel.accept(propose.cancel(channel.admin(), channel.view.bundles[LEFT], reason="again"))
            assert None is set_cluster_policy(channel, "pin/p", document)
        make = record_of(channel.view, MoveAway(bundle=LEFT, reason="drill"))
        assert not isinstance(make, Verdict)
        channel.accept(make(channel.author("a")))
        assert phase == channel.view.bundles[LEFT].phase
        if phase == "transferring":
            assert channel.incarnation("c") == channel.view.bundles[LEFT].owner


def test_a_bundle_that_nobody_else_may_have_stays_where_that_is_wanted() -> None:
    """Who moves bundles for the sake of load lets go of none for nothing, and is told why: a pin, or nobody else is there."""
    channel = owned_pair()
    assert None is set_cluster_policy(channel, "pin/p", {"namespace": NAMESPACE, "brokers.0": "a"})
    wish = MoveAway(bundle=LEFT, reason="shed", or_stay=True)
    verdict = record_of(channel.view, wish)
    problem = f"{LEFT} stays at a: no other broker may own it: pin/p keeps this bundle at a"
    assert Verdict(reason=Reason.ILLEGAL_TRANSITION, problem=problem) == verdict
    assert None is set_cluster_policy(channel, "pin/p", None)
    assert not isinstance(record_of(channel.view, wish), Verdict)
    for broker in set(channel.view.brokers) - {"a"}:
        channel.die(broker)
    alone = record_of(channel.view, wish)
    assert isinstance(alone, Verdict)
    assert f"{LEFT} stays at a: no other broker may own it: no other broker accepts bundles" == alone.problem


def test_a_deleting_namespace_can_be_deleted() -> None:
    """The second step of a deletion is spelled against the first."""
    channel = channel_with("a")
    for intent in (StartDeletingNamespace(name=NAMESPACE), DeleteNamespace(name=NAMESPACE)):
        make = record_of(channel.view, intent)
        assert not isinstance(make, Verdict)
        channel.accept(make(channel.author("a")))
    assert {} == channel.view.namespaces


@dataclass(frozen=True, kw_only=True)
class Refused:
    """An intent that no record can spell, and why."""

    intent: Intent
    reason: Reason


REFUSED = (
    Refused(intent=Unload(bundle=NOWHERE, reason="x"), reason=Reason.UNKNOWN_BUNDLE),
    Refused(intent=MergeBundles(left=NOWHERE, reason="x"), reason=Reason.UNKNOWN_BUNDLE),
    Refused(intent=MergeBundles(left=RIGHT, reason="x"), reason=Reason.NOT_ADJACENT),
    Refused(intent=Transfer(bundle=LEFT, destination="nobody", reason="x"), reason=Reason.UNKNOWN_BROKER),
    Refused(intent=StartDeletingNamespace(name="tenant/none"), reason=Reason.UNKNOWN_NAMESPACE),
    Refused(intent=DeleteNamespace(name="tenant/none"), reason=Reason.UNKNOWN_NAMESPACE),
    Refused(intent=SetPolicy(name="tenant/none", policy="p", value=1), reason=Reason.UNKNOWN_NAMESPACE),
    Refused(intent=SetPolicy(name=NAMESPACE, policy="on_channel_loss", value="sometimes"), reason=Reason.MALFORMED),
    Refused(intent=CreateNamespace(name="tenant/new", boundaries=(0, HASH_MAX), policies={"on_channel_loss": 1}), reason=Reason.MALFORMED),
)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{type(case.intent).__name__}-{case.reason}")
def test_what_cannot_be_spelled_is_refused_with_its_reason(case: Refused) -> None:
    """Nothing is put to the log that names what is not there; the answer is the one that the log would give."""
    verdict = record_of(owned_pair().view, case.intent)
    assert isinstance(verdict, Verdict)
    assert case.reason == verdict.reason


def test_a_bundle_that_nobody_owns_cannot_be_moved() -> None:
    """A move of a bundle in flight is refused, and the answer says in which state it is."""
    channel = channel_with("a", "b")
    verdict = record_of(channel.view, Transfer(bundle=channel.bundle().name, destination="b", reason="x"))
    assert Verdict(reason=Reason.ILLEGAL_TRANSITION, problem=f"{channel.bundle().name} is free, not owned") == verdict


def test_a_move_to_the_dead_is_left_to_the_log() -> None:
    """So that the refusal is on record: the log says `dead_target`."""
    channel = owned_pair()
    channel.die("b")
    make = record_of(channel.view, Transfer(bundle=LEFT, destination="b", reason="x"))
    assert not isinstance(make, Verdict)
    assert Reason.DEAD_TARGET == channel.put(make(channel.author("c"))).reason


def test_a_move_to_where_it_is_moves_nothing() -> None:
    """A transfer to the owner itself is refused with words that say so, and puts nothing on the log."""
    verdict = record_of(owned_pair().view, Transfer(bundle=LEFT, destination="a", reason="x"))
    assert Verdict(reason=Reason.ILLEGAL_TRANSITION, problem="a already owns it, so there is nothing to move") == verdict


def test_a_transfer_can_be_cancelled_until_its_source_has_been_told_to_let_go() -> None:
    """A transfer that waits for its destination ends where it began; what is owned, or let go of, is refused with how it is."""
    channel = owned_pair()
    refused = record_of(channel.view, Cancel(bundle=LEFT, reason="enough"))
    assert isinstance(refused, Verdict)
    assert "owned and does not move" in (refused.problem or "")
    for intent in (Transfer(bundle=LEFT, destination="b", reason="load"), Cancel(bundle=LEFT, reason="enough")):
        make = record_of(channel.view, intent)
        assert not isinstance(make, Verdict)
        channel.accept(make(channel.author("a")))
    left = channel.view.bundles[LEFT]
    assert ("owned", "a") == (left.phase, channel.view.live[left.owner or 0].broker)
    make = record_of(channel.view, Unload(bundle=LEFT, reason="load"))
    assert not isinstance(make, Verdict)
    channel.accept(make(channel.author("a")))
    too_late = record_of(channel.view, Cancel(bundle=LEFT, reason="enough"))
    assert isinstance(too_late, Verdict)
    assert "it is releasing already" in (too_late.problem or "")


def test_a_merge_with_another_neighbour_than_was_meant_is_refused() -> None:
    """Whoever saw two cold neighbours must not join a third that has come between them; the neighbour that is there is named."""
    channel = owned_pair()
    refused = record_of(channel.view, MergeBundles(left=LEFT, right=NOWHERE, reason="cold"))
    assert isinstance(refused, Verdict)
    assert (Reason.NOT_ADJACENT, True) == (refused.reason, RIGHT in (refused.problem or ""))
    assert not isinstance(record_of(channel.view, MergeBundles(left=LEFT, right=RIGHT, reason="cold")), Verdict)
