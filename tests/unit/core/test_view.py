"""The fold's rules that its model does not know or a small cluster does not meet:
tests/property/test_fold.py has all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson
import pytest

from equipoise.brokers.balancing.named import namespace_named
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BundleChanged, LevelChanged
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX, even_boundaries
from equipoise.channel.core.records import ADMIN_WINDOW_OFFSETS, Reason
from equipoise.channel.core.view import View
from tests.channels.folding import (
    CLUSTER,
    MIDDLE,
    NAMESPACE,
    Channel,
    channel_in,
    channel_with,
    joined,
    raise_level,
)

# --- genesis and level ---


def test_before_the_genesis_nothing_is_accepted() -> None:
    """Every other record, readable or not, waits for a genesis, and leaves an empty view."""
    channel = Channel()
    empty = channel.view.digest()
    for data in (
        b"",
        b"{}",
        encode(joined("a", channel.view, instance_id="n")),
        encode(raise_level(channel.admin(), View(), level=2)),
    ):
        assert Reason.NO_GENESIS == channel.put_bytes(data).reason
    assert empty == channel.view.digest()
    channel.genesis()
    channel.check()


def test_a_genesis_gives_the_view_its_cluster_base_and_level() -> None:
    """The first genesis is accepted; its offset is what absent keys and the level are based on."""
    channel = Channel()
    verdict = channel.put(
        propose.genesis(Author(publisher="admin:ops"), cluster=CLUSTER, base=1_000), offset=1_001
    )
    view = channel.view
    assert (LevelChanged(before=0, after=1),) == verdict.changes
    assert (CLUSTER, 1_000, 1_001, 1, 1_001, 1_001) == (
        view.cluster,
        view.base,
        view.genesis,
        view.level,
        view.level_last,
        view.removed_at,
    )
    channel.check()


def test_a_broker_that_supports_less_than_the_level_does_not_join() -> None:
    """Once the level has risen, who does not support it is refused, and records may need it."""
    channel = Channel()
    channel.genesis()
    channel.accept(raise_level(channel.admin(), channel.view, level=2))
    assert (
        Reason.LEVEL == channel.put(joined("a", channel.view, instance_id="n", supports=1)).reason
    )
    channel.accept(replace(joined("a", channel.view, instance_id="n", supports=2), level=2))
    channel.check()


# --- namespaces and bundles ---


@pytest.mark.parametrize("name", ["t/..", "./n", "../."])
def test_a_record_of_an_older_version_may_name_a_namespace_that_nobody_may_ask_for(
    name: str,
) -> None:
    """The fold takes `.` and `..` as it always did, so that a namespace of such a name can be found
    and deleted; no other one is.
    """
    channel = channel_with("a")
    channel.accept(
        propose.create_namespace(channel.admin(), channel.view, name=name, boundaries=(0, HASH_MAX))
    )
    assert name == namespace_named(channel.view, name).name
    with pytest.raises(InvalidName, match="neither of them"):
        namespace_named(channel.view, "other/..")


def test_the_largest_namespace_comes_and_goes() -> None:
    """65,536 bundles are made by one record and removed by one."""
    channel = channel_with("a")
    channel.create(even_boundaries(65_536), namespace="t/large")
    assert 65_536 + 1 == len(channel.view.bundles)
    channel.accept(propose.start_deleting_namespace(channel.admin(), channel.view, name="t/large"))
    channel.accept(propose.delete_namespace(channel.admin(), channel.view, name="t/large"))
    assert [NAMESPACE] == [bundle.namespace for bundle in channel.view.bundles.values()]


def test_the_way_to_a_split_is_kept_with_the_bundle_while_it_splits() -> None:
    """Algorithm and positions stand in the entry from `splitting` on, and are gone when it is
    cancelled.
    """
    channel = channel_in("splitting")
    assert ("specified_positions_divide", (MIDDLE,)) == (
        channel.bundle().algorithm,
        channel.bundle().positions,
    )
    channel.accept(propose.cancel(channel.admin(), channel.bundle(), reason="too long"))
    assert (None, None) == (channel.bundle().algorithm, channel.bundle().positions)


def test_one_death_changes_all_its_bundles_in_order_of_their_names() -> None:
    """A broker that holds many bundles loses them all in one record."""
    channel = channel_with("owner", "other", bundles=16)
    for bundle in reversed(channel.view.bundles_of(NAMESPACE)):
        channel.own("owner", bundle.low)
    names = [bundle.name for bundle in channel.view.bundles_of(NAMESPACE)]
    verdict = channel.put(propose.down(channel.author("other"), channel.broker("owner")))
    assert names == [change.name for change in verdict.changes if isinstance(change, BundleChanged)]
    assert names == [bundle.name for bundle in channel.view.unsettled()]
    channel.check()


# --- renewals ---


def test_a_renewal_moves_last_and_digest_and_nothing_else() -> None:
    """The next renewal is based on this one, and says the digest that the view had just after
    it.
    """
    channel = channel_with("a", "b")
    before = channel.broker("a")
    verdict = channel.put(propose.renewed(channel.author("a"), before))
    after = channel.view.brokers["a"]
    assert (True, False, ()) == (verdict.accepted, verdict.diverged, verdict.changes)
    assert (
        replace(before, last=channel.view.offset, sequence=1, digest_after=channel.view.digest())
        == after
    )
    channel.accept(propose.assign(channel.admin(), channel.bundle(), owner=after.incarnation))
    assert not channel.put(propose.renewed(channel.author("a"), channel.broker("a"))).diverged
    channel.check()


def test_a_renewal_with_another_digest_is_accepted_and_shown_as_divergence() -> None:
    """Two views that have parted are told apart, and the lease goes on."""
    channel = channel_with("a")
    verdict = channel.put(
        replace(propose.renewed(channel.author("a"), channel.broker("a")), digest=5)
    )
    assert (True, True) == (verdict.accepted, verdict.diverged)
    channel.check()


# --- the envelope ---


def policy(author: Author, channel: Channel) -> bytes:
    """A record that anybody may write."""
    return encode(propose.set_policy(author, channel.view, name="p", document={"limit": 3}))


def test_a_sequence_that_does_not_rise_is_late() -> None:
    """An attempt at or below the last one that was read is settled: it is never accepted. The first
    one is number 1.
    """
    channel = channel_with("a")
    author = channel.author("a")
    for sequence, reason in (
        (0, Reason.LATE),
        (1, None),
        (5, None),
        (0, Reason.LATE),
        (4, Reason.LATE),
        (5, Reason.LATE),
        (6, None),
    ):
        assert (
            reason == channel.put_bytes(policy(replace(author, sequence=sequence), channel)).reason
        )
    channel.check()


@dataclass(frozen=True, kw_only=True)
class Rejected:
    reason: Reason
    fields: dict[str, object]


REJECTED = (
    Rejected(reason=Reason.STALE, fields={"expected_offset": 0}),
    Rejected(reason=Reason.MALFORMED, fields={"document": 5}),
    Rejected(reason=Reason.MALFORMED, fields={"kind": "sorcery"}),
    Rejected(reason=Reason.MALFORMED, fields={"level": 0}),
    Rejected(reason=Reason.MALFORMED, fields={"as_of": "x"}),
    Rejected(reason=Reason.LEVEL, fields={"level": 2}),
    Rejected(reason=Reason.LEVEL, fields={"level": 2, "kind": "sorcery"}),
    Rejected(reason=Reason.LEVEL, fields={"level": 2, "key": None}),
    Rejected(reason=Reason.UNKNOWN_POLICY, fields={"status": "removed"}),
)


@pytest.mark.parametrize("case", REJECTED, ids=str)
def test_a_rejected_record_settles_its_attempt_and_changes_nothing_else(case: Rejected) -> None:
    """Whatever the verdict, the publisher's sequence rises, and with it the digest; nothing else
    moves.
    """
    channel = channel_with("a")
    before = replace(channel.view.brokers["a"], sequence=7)
    record = orjson.loads(policy(replace(channel.author("a"), sequence=7), channel)) | case.fields
    digest = channel.view.digest()
    assert case.reason == channel.put_bytes(orjson.dumps(record)).reason
    assert before == channel.view.brokers["a"]
    assert digest != channel.view.digest()
    assert {} == channel.view.policies
    channel.check()


AGES = {
    1: None,
    ADMIN_WINDOW_OFFSETS: None,
    ADMIN_WINDOW_OFFSETS + 1: Reason.LATE,
    0: Reason.MALFORMED,
    -1: Reason.MALFORMED,
}


@pytest.mark.parametrize("behind", AGES)
def test_an_admins_record_dies_of_old_age(behind: int) -> None:
    """More than the window behind is late; a view of the future is none, or it would never grow
    old.
    """
    channel = channel_with("a")
    offset = channel.view.offset + 2 * ADMIN_WINDOW_OFFSETS
    record = propose.set_policy(
        Author(publisher="admin:ops", as_of=offset - behind), channel.view, name="p", document={}
    )
    assert AGES[behind] == channel.put(record, offset=offset).reason
    channel.check()


def test_a_merely_late_admin_is_late_before_it_is_anything_else() -> None:
    """An old record of an admin gets no finer answer than that it is old."""
    channel = channel_in("assigning")
    record = propose.opened(Author(publisher="admin:ops", as_of=0), channel.bundle())
    assert Reason.LATE == channel.put(record, offset=ADMIN_WINDOW_OFFSETS + 1).reason
