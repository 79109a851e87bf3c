"""The digest of a view: what moves it and what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry, bundle_entry, weight
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.view import View
from tests.channels.folding import CLUSTER, NAMESPACE, Channel, channel_with, joined

ENTRY = bundle_entry(NAMESPACE, 0, HASH_MAX, "transferring", owner=5, source=4, last=6, token=3)


def digest_with(entry: BundleEntry) -> int:
    """The digest of a view that holds one bundle."""
    view = View()
    view.insert_bundle(
        bundle_entry(
            entry.namespace,
            entry.low,
            entry.high,
            entry.phase,
            owner=entry.owner,
            source=entry.source,
            last=entry.last,
            token=entry.token,
            algorithm=entry.algorithm,
            positions=entry.positions,
        )
    )
    return view.digest()


MOVED = (
    replace(ENTRY, namespace="tenant/other"),
    replace(ENTRY, low=1),
    replace(ENTRY, high=HASH_MAX - 1),
    replace(ENTRY, phase="handing_over"),
    replace(ENTRY, owner=4, source=5),
    replace(ENTRY, owner=None),
    replace(ENTRY, owner=0),
    replace(ENTRY, source=None),
    replace(ENTRY, source=0),
    replace(ENTRY, last=7),
    replace(ENTRY, token=4),
    replace(ENTRY, last=3, token=6),
)


def test_whatever_can_change_a_later_verdict_on_a_bundle_moves_the_digest() -> None:
    """Range, phase, holders, last and token: each change gives a digest of its own."""
    digests = [digest_with(entry) for entry in (ENTRY, *MOVED)]
    assert len(digests) == len(set(digests))


def test_how_a_bundle_is_to_be_cut_is_not_in_the_digest() -> None:
    """Algorithm and positions are the owner's business: no verdict depends on them."""
    assert digest_with(ENTRY) == digest_with(replace(ENTRY, algorithm="x", positions=(1,)))


@pytest.fixture
def channel() -> Channel:
    """A channel with two brokers and a namespace."""
    return channel_with("a", "b")


def founded(
    *,
    cluster: str = CLUSTER,
    base: int = 0,
    offset: int = 1,
    instance_id: str = "n",
    supports: int = 1,
) -> int:
    """The digest of a channel with one broker."""
    channel = Channel()
    channel.put(
        propose.genesis(Author(publisher="admin:ops"), cluster=cluster, base=base), offset=offset
    )
    channel.put(joined("a", channel.view, instance_id=instance_id, supports=supports), offset=9)
    return channel.view.digest()


def test_genesis_instance_id_and_supported_level_move_the_digest() -> None:
    """Cluster, base, the genesis' offset, and what a broker said of itself as far as a verdict asks
    for it.
    """
    digests = [
        founded(),
        founded(cluster="x"),
        founded(base=1),
        founded(offset=2),
        founded(instance_id="m"),
        founded(supports=2),
    ]
    assert len(digests) == len(set(digests))


def test_what_no_verdict_asks_for_is_not_in_the_digest(channel: Channel) -> None:
    """Neither documents, nor reasons, nor promises on joining, nor rejected records move it
    apart.
    """
    other = channel_with("a", "b")
    assert channel.view.digest() == other.view.digest()
    for each, limit, reason, lease_ms in ((channel, 1, "x", 3_000), (other, 2, None, 4_000)):
        each.accept(
            propose.set_namespace_policies(
                each.admin(), each.view, name=NAMESPACE, policies={"limit": limit}
            )
        )
        each.accept(
            propose.set_policy(each.admin(), each.view, name="p", document={"limit": limit})
        )
        each.accept(
            propose.assign(each.admin(), each.bundle(), owner=each.incarnation("a"), reason=reason)
        )
        each.accept(
            replace(
                joined("c", each.view, instance_id="n"),
                lease_ms=lease_ms,
                capacity=lease_ms,
                labels={"zone": str(limit)},
            )
        )
        each.put_bytes(str(reason).encode())
    assert channel.view.digest() == other.view.digest()


def test_the_sequence_of_a_dead_incarnation_is_not_in_the_digest(channel: Channel) -> None:
    """Once an incarnation is dead it is the same how many attempts it had made."""
    other = channel_with("a", "b")
    other.put_bytes(b'{"publisher":"b","incarnation":3,"sequence":900}')
    channel.put_bytes(b"")
    assert 900 == other.view.brokers["b"].sequence
    assert channel.view.digest() != other.view.digest()
    for each in channel, other:
        each.die("b")
    assert channel.view.digest() == other.view.digest()


def test_weights_are_fixed() -> None:
    """Weights are part of the protocol: brokers of two versions, and the golden logs, compare
    digests.
    """
    assert 1_785_166_608_231_958_933 == weight("bundle", "tenant/ns/0x00000000_0xffffffff")
    assert 1_548_786_519_723_990_482 == weight("coefficient", "owner")


def test_texts_of_a_weight_do_not_run_together() -> None:
    """Where one text ends and the next begins makes a difference, and so does the kind."""
    weights = [
        weight("a", "b", "c"),
        weight("a", "bc"),
        weight("a", "b\n1:c"),
        weight("ab", "c"),
        weight("a", "c", "b"),
        weight("a", "", "bc"),
    ]
    assert len(weights) == len(set(weights))
