"""Requests: each intent becomes its record, or the rejection that the log would give."""

from __future__ import annotations

import pytest

from equipoise.brokers.agent.requests import (
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
    record_of,
    subject_of,
)
from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.ranges import HASH_MAX, bundle_name, even_boundaries
from equipoise.channel.core.records import DOCUMENT_ENTRIES_MAX, Document, Reason
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_with

LEFT, RIGHT = bundle_name(NAMESPACE, 0, MIDDLE), bundle_name(NAMESPACE, MIDDLE, HASH_MAX)
NOWHERE = bundle_name(NAMESPACE, 0, 1)


def owned_pair() -> Channel:
    channel = channel_with("a", "b", "c", bundles=2)
    channel.own("a", 0)
    channel.own("a", MIDDLE)
    return channel


def accept(channel: Channel, *intents: Intent) -> None:
    """Put the records of intents on the log, which accepts them."""
    for intent in intents:
        make = record_of(channel.view, intent)
        assert not isinstance(make, Verdict), make
        channel.accept(make(channel.author("a")))


def refusal(channel: Channel, intent: Intent) -> tuple[Reason | None, str]:
    """Return the reason and the problem of a refused intent."""
    verdict = record_of(channel.view, intent)
    assert isinstance(verdict, Verdict)
    return verdict.reason, verdict.problem or ""


TRANSFER = Transfer(bundle=LEFT, destination="b", reason="load")
# Intents, and the phases of the two halves after each was accepted.
PHASES: tuple[tuple[Intent, list[str | None]], ...] = (
    (TRANSFER, ["transferring", "owned"]),
    (Unload(bundle=LEFT, reason="load"), ["unloading", "owned"]),
    (
        SplitBundle(bundle=RIGHT, algorithm="range_equally_divide", reason="load"),
        ["owned", "splitting"],
    ),
    (MergeBundles(left=LEFT, reason="load"), [None, None]),
    (MergeBundles(left=LEFT, right=RIGHT, reason="cold"), [None, None]),
    (CreateNamespace(name="tenant/other", boundaries=even_boundaries(4)), ["owned", "owned"]),
    (StartDeletingNamespace(name=NAMESPACE), ["owned", "owned"]),
)


@pytest.mark.parametrize(("intent", "phases"), PHASES)
def test_an_intent_becomes_its_record(intent: Intent, phases: list[str | None]) -> None:
    channel = owned_pair()
    accept(channel, intent)
    assert phases == [
        bundle.phase if (bundle := channel.view.bundles.get(name)) else None
        for name in (LEFT, RIGHT)
    ]


def test_the_record_has_the_details_of_the_intent() -> None:
    channel = owned_pair()
    accept(
        channel,
        SplitBundle(
            bundle=LEFT, algorithm="specified_positions_divide", positions=(5, 9), reason="hot"
        ),
        CreateNamespace(name="tenant/new", boundaries=(0, 7, HASH_MAX), policies={"limit": 3}),
    )
    assert ("specified_positions_divide", (5, 9)) == (
        channel.view.bundles[LEFT].algorithm,
        channel.view.bundles[LEFT].positions,
    )
    assert {"limit": 3} == channel.view.namespaces["tenant/new"].policies
    assert [0, 7] == [bundle.low for bundle in channel.view.bundles_of("tenant/new")]


def test_a_policy_is_set_and_removed_alone() -> None:
    """The others stay. Removing an unset one is allowed."""
    channel = owned_pair()
    for policy, value in (("x", 1), ("y", 2), ("x", 3), ("z", None), ("y", None)):
        accept(channel, SetPolicy(name=NAMESPACE, policy=policy, value=value))
    assert {"x": 3} == channel.view.namespaces[NAMESPACE].policies


def test_a_namespace_has_a_bounded_number_of_policies() -> None:
    """At the maximum, set ones can still be changed."""
    channel = owned_pair()
    accept(
        channel,
        *(
            SetPolicy(name=NAMESPACE, policy=f"p{number}", value=number)
            for number in range(DOCUMENT_ENTRIES_MAX)
        ),
    )
    reason, problem = refusal(channel, SetPolicy(name=NAMESPACE, policy="one more", value=1))
    assert (Reason.ILLEGAL_TRANSITION, True) == (reason, str(DOCUMENT_ENTRIES_MAX) in problem)
    accept(channel, SetPolicy(name=NAMESPACE, policy="p0", value=7))
    assert 7 == channel.view.namespaces[NAMESPACE].policies["p0"]


def pin(*brokers: str) -> SetClusterPolicy:
    """Return a pin of the namespace to these brokers; its removal without any."""
    return SetClusterPolicy(policy="pin/p", document=pin_document(*brokers) if brokers else None)


def pin_document(*brokers: str) -> Document:
    return {
        "namespace": NAMESPACE,
        **{f"brokers.{number}": broker for number, broker in enumerate(brokers)},
    }


def test_a_cluster_policy_is_set_and_removed() -> None:
    channel = owned_pair()
    for broker in ("a", "b"):
        accept(channel, pin(broker))
        assert pin_document(broker) == channel.view.policies["pin/p"].document
    assert "pin/p" == subject_of(pin())
    accept(channel, pin())
    assert {} == channel.view.policies


def test_an_invalid_cluster_policy_is_refused() -> None:
    """The old one stays."""
    channel = owned_pair()
    old = pin_document("a")
    accept(channel, pin("a"))
    pattern = {"namespaces.0": NAMESPACE, "primary.0": "("}
    for key, document, reason, problem in (
        ("isolation/x", pattern, Reason.MALFORMED, "no regular expression"),
        ("pins/p", old, Reason.MALFORMED, "no such kind"),
        (
            "pin/p",
            pin_document("nobody"),
            Reason.ILLEGAL_TRANSITION,
            "none of the brokers that it names is up",
        ),
        ("pin/q", None, Reason.UNKNOWN_POLICY, ""),
    ):
        refused = refusal(channel, SetClusterPolicy(policy=key, document=document))
        assert (reason, True) == (refused[0], problem in refused[1])
    assert {"pin/p": old} == {name: entry.document for name, entry in channel.view.policies.items()}


def test_a_bundle_moves_away_to_an_allowed_broker() -> None:
    """Without one it is unloaded."""
    channel = owned_pair()
    accept(channel, pin("a", "c"), MoveAway(bundle=LEFT, reason="drill"))
    left = channel.view.bundles[LEFT]
    assert ("transferring", channel.incarnation("c")) == (left.phase, left.owner)
    accept(
        channel,
        Cancel(bundle=LEFT, reason="again"),
        pin("a"),
        MoveAway(bundle=LEFT, reason="drill"),
    )
    assert "unloading" == channel.view.bundles[LEFT].phase


def test_or_stay_keeps_a_bundle_that_no_other_broker_may_own() -> None:
    """The problem names the pin, or that there is no other broker."""
    channel = owned_pair()
    accept(channel, pin("a"))
    wish = MoveAway(bundle=LEFT, reason="shed", or_stay=True)
    stays = "it stays at a: no other broker may own it: "
    assert (Reason.ILLEGAL_TRANSITION, f"{stays}pin/p keeps this bundle at a") == refusal(
        channel, wish
    )
    accept(channel, pin())
    assert not isinstance(record_of(channel.view, wish), Verdict)
    channel.die("b")
    channel.die("c")
    assert (Reason.ILLEGAL_TRANSITION, f"{stays}no other broker accepts bundles") == refusal(
        channel, wish
    )


def test_a_deleting_namespace_can_be_deleted() -> None:
    channel = channel_with("a")
    accept(channel, StartDeletingNamespace(name=NAMESPACE), DeleteNamespace(name=NAMESPACE))
    assert {} == channel.view.namespaces


# What no record can mean, and why.
REFUSED: tuple[tuple[Intent, Reason, str], ...] = (
    (Unload(bundle=NOWHERE, reason="x"), Reason.UNKNOWN_BUNDLE, ""),
    (MergeBundles(left=NOWHERE, reason="x"), Reason.UNKNOWN_BUNDLE, ""),
    (MergeBundles(left=RIGHT, reason="x"), Reason.NOT_ADJACENT, ""),
    (Transfer(bundle=LEFT, destination="nobody", reason="x"), Reason.UNKNOWN_BROKER, ""),
    (StartDeletingNamespace(name="tenant/none"), Reason.UNKNOWN_NAMESPACE, ""),
    (DeleteNamespace(name="tenant/none"), Reason.UNKNOWN_NAMESPACE, ""),
    (SetPolicy(name="tenant/none", policy="p", value=1), Reason.UNKNOWN_NAMESPACE, ""),
    (SetPolicy(name=NAMESPACE, policy="on_channel_loss", value="sometimes"), Reason.MALFORMED, ""),
    (
        CreateNamespace(
            name="tenant/new", boundaries=(0, HASH_MAX), policies={"on_channel_loss": 1}
        ),
        Reason.MALFORMED,
        "",
    ),
    (
        Transfer(bundle=LEFT, destination="a", reason="x"),
        Reason.ILLEGAL_TRANSITION,
        "a already owns it, so there is nothing to move",
    ),
    (Cancel(bundle=LEFT, reason="enough"), Reason.ILLEGAL_TRANSITION, "owned and does not move"),
    (MergeBundles(left=LEFT, right=NOWHERE, reason="cold"), Reason.NOT_ADJACENT, RIGHT),
)


@pytest.mark.parametrize(("intent", "reason", "problem"), REFUSED)
def test_an_intent_without_a_record_is_refused(
    intent: Intent, reason: Reason, problem: str
) -> None:
    """With the reason that the log would give."""
    refused = refusal(owned_pair(), intent)
    assert (reason, True) == (refused[0], problem in refused[1])


def test_a_free_bundle_cannot_be_moved() -> None:
    channel = channel_with("a", "b")
    verdict = record_of(
        channel.view, Transfer(bundle=channel.bundle().name, destination="b", reason="x")
    )
    assert Verdict(reason=Reason.ILLEGAL_TRANSITION, problem="it is free, not owned") == verdict


def test_a_transfer_to_a_dead_broker_is_rejected_by_the_log() -> None:
    """So that the rejection is a record."""
    channel = owned_pair()
    channel.die("b")
    make = record_of(channel.view, Transfer(bundle=LEFT, destination="b", reason="x"))
    assert not isinstance(make, Verdict)
    assert Reason.DEAD_TARGET == channel.put(make(channel.author("c"))).reason


def test_a_transfer_can_be_cancelled_until_its_source_releases() -> None:
    channel = owned_pair()
    accept(
        channel,
        Transfer(bundle=LEFT, destination="b", reason="load"),
        Cancel(bundle=LEFT, reason="enough"),
    )
    left = channel.view.bundles[LEFT]
    assert ("owned", "a") == (left.phase, channel.view.live[left.owner or 0].broker)
    accept(channel, Unload(bundle=LEFT, reason="load"))
    assert "it is releasing already" in refusal(channel, Cancel(bundle=LEFT, reason="enough"))[1]
