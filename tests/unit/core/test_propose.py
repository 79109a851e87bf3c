"""Intentions to records: each is spelled against the entry that it is about, and the fold takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.propose import Author
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.view import View
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_in, channel_with


@dataclass(frozen=True, kw_only=True)
class Intention:
    """What one wants of a bundle in phase `before`, and the phase that it then is in; None where it is no more."""

    id: str
    before: Phase
    by: str
    record: Callable[[Channel, Author], AnyRecord]
    after: Phase | None


INTENTIONS = (
    Intention(
        id="assign",
        before="free",
        by="source",
        record=lambda c, a: propose.assign(a, c.bundle(), owner=c.incarnation("owner"), reason="r"),
        after="assigning",
    ),
    Intention(
        id="assign to another",
        before="assigning",
        by="source",
        record=lambda c, a: propose.assign(a, c.bundle(), owner=c.incarnation("source")),
        after="assigning",
    ),
    Intention(id="opened", before="assigning", by="owner", record=lambda c, a: propose.opened(a, c.bundle()), after="owned"),
    Intention(id="refuse", before="assigning", by="owner", record=lambda c, a: propose.refuse(a, c.bundle(), reason="r"), after="free"),
    Intention(
        id="transfer",
        before="owned",
        by="owner",
        record=lambda c, a: propose.transfer(a, c.bundle(), destination=c.incarnation("source"), reason="r"),
        after="transferring",
    ),
    Intention(id="prepared", before="transferring", by="owner", record=lambda c, a: propose.prepared(a, c.bundle()), after="handing_over"),
    Intention(
        id="hand over",
        before="handing_over",
        by="source",
        record=lambda c, a: propose.hand_over(a, c.bundle(), handover=b"state"),
        after="owned",
    ),
    Intention(
        id="cancel a transfer",
        before="transferring",
        by="source",
        record=lambda c, a: propose.cancel(a, c.bundle(), reason="r"),
        after="owned",
    ),
    Intention(
        id="cancel a split",
        before="splitting",
        by="source",
        record=lambda c, a: propose.cancel(a, c.bundle(), reason="r"),
        after="owned",
    ),
    Intention(id="unload", before="owned", by="owner", record=lambda c, a: propose.unload(a, c.bundle(), reason="r"), after="unloading"),
    Intention(id="released", before="unloading", by="source", record=lambda c, a: propose.released(a, c.bundle()), after="free"),
    Intention(
        id="start a split",
        before="owned",
        by="source",
        record=lambda c, a: propose.start_split(a, c.bundle(), algorithm="x", positions=[MIDDLE], reason="r"),
        after="splitting",
    ),
    Intention(
        id="split",
        before="splitting",
        by="owner",
        record=lambda c, a: propose.split(a, c.bundle(), cuts=[MIDDLE], reason="r"),
        after=None,
    ),
)


@pytest.mark.parametrize("intention", INTENTIONS, ids=lambda intention: intention.id)
def test_an_intention_becomes_the_record_that_does_it(intention: Intention) -> None:
    """Each is based on its bundle's last, signed by its author, accepted, and leads to its phase."""
    channel = channel_in(intention.before)
    author, bundle = channel.author(intention.by), channel.bundle()
    record = intention.record(channel, author)
    assert (bundle.name, bundle.last) == (record.key, record.based_on)
    assert (author.publisher, author.incarnation, author.sequence, None) == (
        record.publisher, record.incarnation, record.sequence, record.as_of,
    )  # fmt: skip
    assert channel.put(record).accepted
    after = channel.view.bundles.get(bundle.name)
    assert intention.after == (None if after is None else after.phase)


def test_an_author_signs_with_all_that_it_is() -> None:
    """A signature is the part of the envelope that tells who speaks and when."""
    broker = Author(publisher="a", incarnation=1, sequence=2, timestamp_ms=3)
    assert {"publisher": "a", "incarnation": 1, "sequence": 2, "as_of": None, "timestamp_ms": 3} == broker.signature
    admin = Author(publisher="admin:ops", as_of=4)
    assert {"publisher": "admin:ops", "incarnation": None, "sequence": None, "as_of": 4, "timestamp_ms": 0} == admin.signature


def test_what_is_absent_is_based_on_the_last_removal() -> None:
    """A namespace or policy that the view does not have, or no longer has, is made against `removed_at`."""
    channel = channel_with("a")
    channel.accept(propose.set_policy(channel.admin(), channel.view, name="p", document={}))
    channel.accept(propose.remove_policy(channel.admin(), channel.view, name="p"))
    removed_at = channel.view.offset
    assert removed_at == propose.set_policy(channel.admin(), channel.view, name="p", document={}).based_on
    assert removed_at == propose.create_namespace(channel.admin(), channel.view, name="t/n", boundaries=()).based_on


def test_what_is_there_is_based_on_its_last() -> None:
    """A namespace or policy that the view has is based on the record that changed it last."""
    channel = channel_with("a")
    created = channel.view.namespaces[NAMESPACE].last
    channel.accept(propose.set_policy(channel.admin(), channel.view, name="p", document={}))
    set_at = channel.view.offset
    assert set_at == propose.remove_policy(channel.admin(), channel.view, name="p").based_on
    assert created == propose.create_namespace(channel.admin(), channel.view, name=NAMESPACE, boundaries=()).based_on


@pytest.mark.parametrize(
    "ask",
    [
        lambda author: propose.set_namespace_policies(author, View(), name=NAMESPACE, policies={}),
        lambda author: propose.start_deleting_namespace(author, View(), name=NAMESPACE),
        lambda author: propose.delete_namespace(author, View(), name=NAMESPACE),
    ],
    ids=["policies", "deleting", "deleted"],
)
def test_nothing_is_proposed_of_a_namespace_that_is_not_there(ask: Callable[[Author], AnyRecord]) -> None:
    """A namespace that the view does not have is a KeyError, for the caller to ask first."""
    with pytest.raises(KeyError):
        ask(Author(publisher="admin:ops", as_of=0))
