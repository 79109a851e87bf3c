"""Proposals: what their records are based on, and what they carry. The scenarios and the walks show
that the fold takes each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.propose import Author
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.view import View
from tests.channels.folding import NAMESPACE, channel_with


def test_a_record_carries_what_it_is_given() -> None:
    """Reasons, the state for the next owner, and how to split: no verdict depends on them, so no
    fold would miss them.
    """
    channel = channel_with("a", bundles=2)
    left, right = channel.view.bundles_of(NAMESPACE)
    author = Author(publisher="a", incarnation=2, sequence=1, timestamp_ms=3)
    split = propose.start_split(author, left, algorithm="x", positions=[7], reason="r")
    with_reason = (
        *(
            propose.assign(author, left, owner=2, reason="r"),
            propose.refuse(author, left, reason="r"),
            split,
        ),
        *(
            propose.transfer(author, left, destination=2, reason="r"),
            propose.cancel(author, left, reason="r"),
        ),
        *(
            propose.unload(author, left, reason="r"),
            propose.split(author, left, cuts=[7], reason="r"),
        ),
        propose.merge(author, left, right, reason="r"),
    )
    assert {("r", 3)} == {(record.reason, record.timestamp_ms) for record in with_reason}
    assert b"state" == propose.hand_over(author, left, handover=b"state").handover
    assert ("x", (7,)) == (split.algorithm, split.positions)


def test_what_is_absent_is_based_on_the_last_removal() -> None:
    """A namespace or policy that the view does not have, or no longer has, is made against
    `removed_at`.
    """
    channel = channel_with("a")
    channel.accept(propose.set_policy(channel.admin(), channel.view, name="p", document={}))
    channel.accept(propose.remove_policy(channel.admin(), channel.view, name="p"))
    removed_at = channel.view.offset
    assert (
        removed_at
        == propose.set_policy(channel.admin(), channel.view, name="p", document={}).expected_offset
    )
    assert (
        removed_at
        == propose.create_namespace(
            channel.admin(), channel.view, name="t/n", boundaries=()
        ).expected_offset
    )


def test_what_is_there_is_based_on_its_last() -> None:
    """A namespace or policy that the view has is based on the record that changed it last."""
    channel = channel_with("a")
    created = channel.view.namespaces[NAMESPACE].last
    channel.accept(propose.set_policy(channel.admin(), channel.view, name="p", document={}))
    set_at = channel.view.offset
    assert set_at == propose.remove_policy(channel.admin(), channel.view, name="p").expected_offset
    assert (
        created
        == propose.create_namespace(
            channel.admin(), channel.view, name=NAMESPACE, boundaries=()
        ).expected_offset
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda author: propose.set_namespace_policies(author, View(), name=NAMESPACE, policies={}),
        lambda author: propose.start_deleting_namespace(author, View(), name=NAMESPACE),
        lambda author: propose.delete_namespace(author, View(), name=NAMESPACE),
    ],
    ids=["policies", "deleting", "deleted"],
)
def test_nothing_is_proposed_of_a_namespace_that_is_not_there(
    ask: Callable[[Author], AnyRecord],
) -> None:
    """A namespace that the view does not have is a KeyError, for the caller to ask first."""
    with pytest.raises(KeyError):
        ask(Author(publisher="admin:ops", as_of=0))
