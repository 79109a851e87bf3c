"""Changes of cluster policies: `check_policy_change` asks about few bundles, and finds what asking
about all finds.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.brokers.balancing.destinations import Destinations
from equipoise.brokers.balancing.policies import policies_in, read_policies
from equipoise.brokers.balancing.policy_changes import check_policy_change
from equipoise.brokers.errors import Rejected
from equipoise.channel.core.ranges import HASH_MAX, even_boundaries
from equipoise.channel.core.records import Document
from equipoise.channel.core.view import View
from tests.channels.ruled import ruled_channel, set_policy

BROKERS = ("a", "b")
NAMESPACES = ("t/x", "t/y")
BUNDLES = (1, 2, 5, 8)

# Where pins may begin and end: at the ends of bundles, and just beside them.
POINTS = sorted(
    {
        min(max(point + beside, 0), HASH_MAX)
        for bundles in BUNDLES
        for point in even_boundaries(bundles)
        for beside in (-1, 0, 1)
    }
)
KEYS = ("isolation/one", "isolation/two", "pin/one", "pin/three", "pin/two")
CHANGED = ("isolation/one", "pin/four", "pin/one")


@st.composite
def documents(draw: st.DrawFn, key: str) -> Document:
    if key.startswith("isolation/"):
        return {
            "namespaces.0": draw(st.sampled_from(("t/x", "t/y", ".*", "nobody/.*"))),
            "primary.0": draw(st.sampled_from((*BROKERS, ".*"))),
            **({"secondary.0": draw(st.sampled_from(BROKERS))} if draw(st.booleans()) else {}),
        }
    low, high = sorted(draw(st.lists(st.sampled_from(POINTS), min_size=2, max_size=2, unique=True)))
    # Mostly of one namespace, and of one broker each, so that two that meet leave nobody.
    namespace, broker = draw(st.sampled_from(("t/x", *NAMESPACES))), draw(st.sampled_from(BROKERS))
    return {"namespace": namespace, "range": f"0x{low:08x}_0x{high:08x}", "brokers.0": broker}


def left_to_nobody(view: View, key: str, document: Document | None) -> str | None:
    """The first bundle that some broker may have now and none then, or its namespace if no pins
    distinguish its bundles.
    """
    after = {name: entry.document for name, entry in view.policies.items() if name != key} | (
        {} if document is None else {key: document}
    )
    policies = (read_policies(view), policies_in(after))
    now, then = (Destinations(view, policies=each) for each in policies)
    for namespace in sorted(view.namespaces):
        are_told_apart = any(pin.namespace == namespace for each in policies for pin in each.pins)
        for bundle in view.bundles_of(namespace):
            if now.of(bundle).allowed and not then.of(bundle).allowed:
                return bundle.name if are_told_apart else namespace
    return None


@settings(max_examples=300)
@given(data=st.data())
def test_the_check_agrees_with_asking_about_each_bundle(data: st.DataObject) -> None:
    channel = ruled_channel(
        BROKERS, dict.fromkeys(NAMESPACES), bundles=data.draw(st.sampled_from(BUNDLES))
    )
    for key in data.draw(st.lists(st.sampled_from(KEYS), unique=True)):
        set_policy(channel, key, data.draw(documents(key)))
    key = data.draw(st.sampled_from(CHANGED))
    document = data.draw(st.none() | documents(key))
    told: str | None = ""
    try:
        check_policy_change(channel.view, key, document)
    except Rejected as error:
        told = subject_of(error)
    # Otherwise no broker that it names is up, which is asked before all bundles are.
    if told is not None:
        assert left_to_nobody(channel.view, key, document) == (told or None)


def subject_of(error: Rejected) -> str | None:
    """Return the bundle or the namespace that a refusal names; None if it is about brokers."""
    found = re.search(r"(?:could own|none for) ([^,;]+)", str(error.problem))
    return None if found is None else found[1]


def test_a_bundle_without_an_allowed_broker_hides_no_other() -> None:
    channel = ruled_channel(BROKERS, {"t/x": None}, bundles=4)
    set_policy(
        channel, "pin/one", {"namespace": "t/x", "range": "0x00000000_0x80000000", "brokers.0": "a"}
    )
    set_policy(
        channel, "pin/two", {"namespace": "t/x", "range": "0x00000000_0x20000000", "brokers.0": "b"}
    )
    with pytest.raises(Rejected) as caught:
        check_policy_change(
            channel.view,
            "pin/four",
            {"namespace": "t/x", "range": "0x10000000_0x80000000", "brokers.0": "b"},
        )
    assert "t/x/0x40000000_0x80000000" == subject_of(caught.value)
