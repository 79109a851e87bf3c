"""The fold's rules about genesis, level, namespaces and policies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from equipoise.brokers.balancing.named import namespace_named
from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.entries import BundleChanged, LevelChanged, NamespaceChanged, NamespaceEntry, PolicyChanged, PolicyEntry
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX, even_boundaries
from equipoise.channel.core.records import NamespaceRecord, PolicyRecord, Reason
from equipoise.channel.core.view import View, apply
from tests.channels.folding import CLUSTER, MIDDLE, NAMESPACE, Channel, channel_in, channel_with, joined, raise_level

FOUNDER = Author(publisher="admin:ops")

# --- genesis and level ---


def test_before_the_genesis_nothing_is_accepted() -> None:
    """Every other record, readable or not, waits for a genesis, and leaves an empty view."""
    channel = Channel()
    empty = channel.view.digest()
    for data in b"", b"{}", encode(joined("a", channel.view, nonce="n")), encode(raise_level(channel.admin(), View(), level=2)):
        assert Reason.NO_GENESIS == channel.put_bytes(data).reason
    assert empty == channel.view.digest()
    channel.genesis()
    channel.check()


def test_a_genesis_gives_the_view_its_cluster_base_and_level() -> None:
    """The first genesis is accepted; its offset is what absent keys and the level are based on."""
    channel = Channel()
    verdict = channel.put(propose.genesis(FOUNDER, cluster=CLUSTER, base=1_000), offset=1_001)
    view = channel.view
    assert (LevelChanged(before=0, after=1),) == verdict.changes
    assert (CLUSTER, 1_000, 1_001, 1, 1_001, 1_001) == (view.cluster, view.base, view.genesis, view.level, view.level_last, view.removed_at)
    channel.check()


def test_a_second_genesis_is_stale_or_foreign() -> None:
    """Two processes that both found the log empty do no harm; another cluster's genesis is told apart."""
    channel = channel_with("a")
    digest = channel.view.digest()
    assert Reason.STALE == channel.put(propose.genesis(FOUNDER, cluster=CLUSTER)).reason
    assert Reason.FOREIGN_GENESIS == channel.put(propose.genesis(FOUNDER, cluster="other")).reason
    assert digest == channel.view.digest()


def test_the_level_rises_once_every_live_broker_supports_it() -> None:
    """One live broker without support refuses it; one that is dead does not count."""
    channel = channel_with("old")
    channel.accept(joined("new", channel.view, nonce="n", supports=2))
    verdict = channel.put(raise_level(channel.author("new"), channel.view, level=2))
    assert (Reason.LEVEL, "not supported by old") == (verdict.reason, verdict.problem)
    channel.die("old")
    assert (LevelChanged(before=1, after=2),) == channel.put(raise_level(channel.admin(), channel.view, level=2)).changes
    assert (2, channel.view.offset) == (channel.view.level, channel.view.level_last)
    channel.check()


def test_a_broker_that_supports_less_than_the_level_does_not_join() -> None:
    """`joined` is refused for the level; so is a record of a level that is not active."""
    channel = Channel()
    channel.genesis()
    assert Reason.LEVEL == channel.put(replace(joined("a", channel.view, nonce="n", supports=2), level=2)).reason
    channel.accept(raise_level(channel.admin(), channel.view, level=2))
    assert Reason.LEVEL == channel.put(joined("a", channel.view, nonce="n", supports=1)).reason
    channel.accept(replace(joined("a", channel.view, nonce="n", supports=2), level=2))
    channel.check()


def test_the_level_only_rises() -> None:
    """The active level, a lower one, and a proposal made before the last rise are refused."""
    channel = Channel()
    channel.genesis()
    before = raise_level(channel.admin(), channel.view, level=3)
    channel.accept(raise_level(channel.admin(), channel.view, level=2))
    assert Reason.STALE == channel.put(before).reason
    for level in (0, 1, 2):
        assert Reason.ILLEGAL_TRANSITION == channel.put(raise_level(channel.admin(), channel.view, level=level)).reason


# --- namespaces ---


def test_a_namespace_is_created_with_its_free_bundles() -> None:
    """The bundles cover the hash space, start free with the offset of the creation, and are told after the namespace."""
    channel = channel_with("a")
    policies = {"on_channel_loss": "serve"}
    record = propose.create_namespace(channel.admin(), channel.view, name="t/n", boundaries=(0, 1, MIDDLE, HASH_MAX), policies=policies)
    verdict = channel.put(record)
    offset = channel.view.offset
    entry = NamespaceEntry(name="t/n", status="created", last=offset, created=offset, policies=policies)
    bundles = channel.view.bundles_of("t/n")
    expected = [NamespaceChanged(name="t/n", before=None, after=entry)]
    assert (*expected, *(BundleChanged(name=bundle.name, before=None, after=bundle) for bundle in bundles)) == verdict.changes
    assert [(0, 1), (1, MIDDLE), (MIDDLE, HASH_MAX)] == [(bundle.low, bundle.high) for bundle in bundles]
    assert {("free", None, None, offset, offset)} == {(b.phase, b.owner, b.source, b.last, b.token) for b in bundles}
    channel.check()


@pytest.mark.parametrize("actor", ["broker", "admin"])
def test_any_live_broker_and_any_admin_may_create(actor: str) -> None:
    """Who may publish at all may create a namespace."""
    channel = channel_with("a")
    author = channel.admin() if actor == "admin" else channel.author("a")
    assert channel.put(propose.create_namespace(author, channel.view, name="t/n", boundaries=(0, HASH_MAX))).accepted


@pytest.mark.parametrize(
    "boundaries", [(), (0,), (HASH_MAX,), (0, 5), (1, HASH_MAX), (0, 5, 5, HASH_MAX), (0, 6, 5, HASH_MAX), (0, HASH_MAX + 1)]
)
def test_boundaries_rise_from_one_end_to_the_other(boundaries: tuple[int, ...]) -> None:
    """Boundaries that leave a hole, overlap or pass the end are refused."""
    channel = channel_with("a")
    record = propose.create_namespace(channel.admin(), channel.view, name="t/n", boundaries=boundaries)
    assert Reason.BAD_BOUNDARY == channel.put(record).reason
    assert "t/n" not in channel.view.namespaces


@pytest.mark.parametrize("name", ["t", "t/", "/n", "t/n/x", "t/n ", "t/\u00e4"])
def test_a_namespace_has_the_form_of_one(name: str) -> None:
    """A name that is no `tenant/namespace` is malformed."""
    channel = channel_with("a")
    assert (
        Reason.MALFORMED == channel.put(propose.create_namespace(channel.admin(), channel.view, name=name, boundaries=(0, HASH_MAX))).reason
    )


@pytest.mark.parametrize("name", ["t/..", "./n", "../."])
def test_a_record_of_an_older_version_may_name_a_namespace_that_nobody_may_ask_for(name: str) -> None:
    """The fold takes `.` and `..` as it always did, so that a namespace of such a name can be found and deleted; no other one is."""
    channel = channel_with("a")
    channel.accept(propose.create_namespace(channel.admin(), channel.view, name=name, boundaries=(0, HASH_MAX)))
    assert name == namespace_named(channel.view, name).name
    with pytest.raises(InvalidName, match="neither of them"):
        namespace_named(channel.view, "other/..")


def test_a_namespace_is_created_once() -> None:
    """Of two creations one is stale; one made with the other in view is illegal."""
    channel = channel_with("a")
    second = propose.create_namespace(channel.author("a"), channel.view, name="t/n", boundaries=(0, HASH_MAX))
    channel.create(namespace="t/n")
    assert Reason.STALE == channel.put(second).reason
    again = propose.create_namespace(channel.author("a"), channel.view, name="t/n", boundaries=(0, HASH_MAX))
    assert Reason.ILLEGAL_TRANSITION == channel.put(again).reason


def test_the_policies_of_a_namespace_are_replaced() -> None:
    """New policies take the place of the old ones; bundles are not touched."""
    channel = channel_in("owned")
    bundle, created = channel.bundle(), channel.view.namespaces[NAMESPACE].created
    channel.accept(propose.set_namespace_policies(channel.admin(), channel.view, name=NAMESPACE, policies={"limit": 1}))
    entry = NamespaceEntry(name=NAMESPACE, status="created", last=channel.view.offset, created=created, policies={"limit": 1})
    assert (entry, bundle) == (channel.view.namespaces[NAMESPACE], channel.bundle())
    channel.check()


def test_a_namespace_goes_in_two_steps_once_its_bundles_are_free() -> None:
    """`deleting` first, then `deleted`, which takes all bundles away and moves `removed_at`."""
    channel = channel_in("owned")

    def delete() -> Reason | None:
        return channel.put(propose.delete_namespace(channel.admin(), channel.view, name=NAMESPACE)).reason

    assert Reason.ILLEGAL_TRANSITION == delete()
    channel.accept(propose.start_deleting_namespace(channel.admin(), channel.view, name=NAMESPACE))
    assert Reason.BUNDLES_IN_USE == delete()
    channel.accept(propose.unload(channel.admin(), channel.bundle()))
    assert Reason.BUNDLES_IN_USE == delete()
    channel.accept(propose.released(channel.author("owner"), channel.bundle()))
    assert delete() is None
    assert ({}, {}, channel.view.offset) == (channel.view.namespaces, channel.view.bundles, channel.view.removed_at)
    assert channel.view.bundle_at(NAMESPACE, 0) is None
    channel.check()


def test_a_deleting_namespace_takes_no_policies_and_is_not_set_to_deleting_twice() -> None:
    """From `deleting` the only way leads out."""
    channel = channel_with("a")
    channel.accept(propose.start_deleting_namespace(channel.admin(), channel.view, name=NAMESPACE))
    again = propose.start_deleting_namespace(channel.admin(), channel.view, name=NAMESPACE)
    policies = propose.set_namespace_policies(channel.admin(), channel.view, name=NAMESPACE, policies={})
    for record in again, policies:
        assert Reason.ILLEGAL_TRANSITION == channel.put(record).reason


def test_a_late_duplicate_of_a_creation_revives_nothing() -> None:
    """After the deletion the old creation, an admin's or a broker's, is not accepted again."""
    channel = channel_with("a")
    by_admin = propose.create_namespace(channel.admin(), channel.view, name="t/n", boundaries=(0, HASH_MAX))
    channel.accept(by_admin)
    channel.accept(propose.start_deleting_namespace(channel.admin(), channel.view, name="t/n"))
    channel.accept(propose.delete_namespace(channel.admin(), channel.view, name="t/n"))
    assert Reason.STALE == channel.put(by_admin).reason
    unsettled = replace(by_admin, publisher="a", incarnation=channel.incarnation("a"), sequence=99, as_of=None)
    assert Reason.STALE == channel.put(unsettled).reason
    channel.create(namespace="t/n")
    assert channel.bundle(namespace="t/n").token == channel.view.offset
    channel.check()


@pytest.mark.parametrize("status", ["policies", "deleting", "deleted"])
def test_a_namespace_that_is_not_there_is_unknown(status: str) -> None:
    """Whatever is to be done to it, there is no such namespace."""
    channel = channel_with("a")
    unnamed = propose.start_deleting_namespace(channel.admin(), channel.view, name=NAMESPACE)
    record = decode(encode(replace(unnamed, key="t/none", based_on=channel.view.removed_at)).replace(b'"deleting"', f'"{status}"'.encode()))
    assert isinstance(record, NamespaceRecord)
    assert status == record.status
    assert Reason.UNKNOWN_NAMESPACE == apply(channel.view, channel.view.offset + 1, record).reason


def test_the_largest_namespace_comes_and_goes() -> None:
    """65,536 bundles are made by one record and removed by one."""
    channel = channel_with("a")
    channel.create(even_boundaries(65_536), namespace="t/large")
    assert 65_536 + 1 == len(channel.view.bundles)
    channel.accept(propose.start_deleting_namespace(channel.admin(), channel.view, name="t/large"))
    channel.accept(propose.delete_namespace(channel.admin(), channel.view, name="t/large"))
    assert [NAMESPACE] == [bundle.namespace for bundle in channel.view.bundles.values()]


# --- policies ---


def test_a_policy_is_set_replaced_and_removed() -> None:
    """Each step tells before and after; the removal is what absent keys are based on from then on."""
    channel = channel_with("a")
    first, second = {"limit": 1}, {"limit": 2, "strict": True}
    before: PolicyEntry | None = None
    for document in first, second:
        verdict = channel.put(propose.set_policy(channel.admin(), channel.view, name="p", document=document))
        after = PolicyEntry(name="p", last=channel.view.offset, document=document)
        assert (PolicyChanged(name="p", before=before, after=after),) == verdict.changes
        before = after
    assert (PolicyChanged(name="p", before=before, after=None),) == channel.put(
        propose.remove_policy(channel.author("a"), channel.view, name="p")
    ).changes
    assert ({}, channel.view.offset) == (channel.view.policies, channel.view.removed_at)
    channel.check()


def test_a_policy_made_against_another_state_is_stale() -> None:
    """A proposal made before another change of the same policy is refused, and so is a late duplicate of a creation."""
    channel = channel_with("a")
    first = propose.set_policy(channel.admin(), channel.view, name="p", document={})
    channel.accept(first)
    assert Reason.STALE == channel.put(first).reason
    channel.accept(propose.remove_policy(channel.admin(), channel.view, name="p"))
    assert Reason.STALE == channel.put(first).reason


def test_a_policy_that_is_not_there_is_unknown() -> None:
    """There is nothing to remove."""
    channel = channel_with("a")
    assert Reason.UNKNOWN_POLICY == channel.put(propose.remove_policy(channel.admin(), channel.view, name="p")).reason


def test_a_policy_without_document_is_empty() -> None:
    """A `set` that names no document sets an empty one."""
    channel = channel_with("a")
    channel.accept(PolicyRecord(key="p", based_on=channel.view.removed_at, **channel.admin().signature, status="set"))
    assert {} == channel.view.policies["p"].document
