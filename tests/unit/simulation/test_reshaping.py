"""The checker of tokens raises when a split or a merge begins a new token."""

from __future__ import annotations

import pytest

from equipoise.brokers.testing.simulation.checkers.coverage import Tokens
from equipoise.brokers.testing.simulation.checkers.violation import InvariantViolated
from equipoise.channel.core.entries import BundleChanged, BundleEntry, Verdict, bundle_entry
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BundleTransition
from tests.unit.simulation.history import MIDDLE, NAMESPACE


def owned(low: int, high: int, *, token: int) -> BundleEntry:
    """An owned bundle."""
    return bundle_entry(NAMESPACE, low, high, "owned", owner=2, source=None, last=20, token=token)


def reshaped(gone: tuple[BundleEntry, ...], made: tuple[BundleEntry, ...]) -> Folded:
    """A record that makes other bundles of those that are gone."""
    record = BundleTransition(key="a bundle", based_on=0, publisher="b", incarnation=1, sequence=1, state="free")
    removed = [BundleChanged(name=bundle.name, before=bundle, after=None) for bundle in gone]
    added = [BundleChanged(name=bundle.name, before=None, after=bundle) for bundle in made]
    return Folded(offset=50, record=record, verdict=Verdict(changes=(*removed, *added)))


def test_children_keep_the_token() -> None:
    """The children of a split keep the token of their parent, and a new one is found."""
    parent = owned(0, HASH_MAX, token=10)
    Tokens().folded(reshaped((parent,), (owned(0, MIDDLE, token=10), owned(MIDDLE, HASH_MAX, token=10))))
    with pytest.raises(InvariantViolated, match=r"section 3: the children .* begins under token 50, and what it is made of had 10"):
        Tokens().folded(reshaped((parent,), (owned(0, MIDDLE, token=10), owned(MIDDLE, HASH_MAX, token=50))))


def test_a_union_takes_the_greater_token() -> None:
    """A merge takes the greater of two tokens, and a new one is found."""
    halves = owned(0, MIDDLE, token=8), owned(MIDDLE, HASH_MAX, token=9)
    Tokens().folded(reshaped(halves, (owned(0, HASH_MAX, token=9),)))
    with pytest.raises(InvariantViolated, match="begins under token 50, and what it is made of had 9"):
        Tokens().folded(reshaped(halves, (owned(0, HASH_MAX, token=50),)))
