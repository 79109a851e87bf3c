"""Views as bytes: what comes back, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import orjson
import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.errors import SnapshotDamaged
from equipoise.channel.core.propose import Author
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from tests.channels.compacting import all_of
from tests.channels.folding import NAMESPACE, Channel, channel_in, joined, raise_level


def crowded() -> Channel:
    """A channel with something of everything."""
    channel = channel_in("splitting", "left", "dead")
    channel.accept(propose.left(channel.author("left"), channel.broker("left")))
    channel.die("dead")
    channel.accept(
        propose.set_policy(
            channel.author("owner"),
            channel.view,
            name="p",
            document={"limit": 1, "strict": True, "name": "x"},
        )
    )
    channel.accept(propose.set_policy(channel.admin(), channel.view, name="gone", document={}))
    channel.accept(propose.remove_policy(channel.admin(), channel.view, name="gone"))
    channel.accept(
        propose.set_namespace_policies(
            channel.admin(), channel.view, name=NAMESPACE, policies={"on_channel_loss": "serve"}
        )
    )
    channel.create((0, 7, 0xFFFFFFFF), namespace="tenant/other")
    channel.accept(
        propose.start_deleting_namespace(channel.admin(), channel.view, name="tenant/other")
    )
    channel.accept(propose.draining(channel.author("source"), channel.broker("source")))
    channel.put_bytes(b"garbage")
    return channel


def test_a_view_comes_back_as_it_was() -> None:
    """Every field, every entry, each index and the digest."""
    view = crowded().view
    again = from_bytes(to_bytes(view))
    assert all_of(view) == all_of(again)
    assert to_bytes(view) == to_bytes(again)
    for name in ("bundles", "brokers", "namespaces", "policies", "live"):
        assert list(getattr(view, name)) == list(getattr(again, name)), "in the same order"


def sealed(body: bytes) -> bytes:
    """A body with the checksum that it should have."""
    return blake2b(body, digest_size=16).hexdigest().encode() + b"\n" + body


@dataclass(frozen=True, kw_only=True)
class Damage:
    id: str
    data: bytes


GOOD = to_bytes(crowded().view)
BODY = GOOD.partition(b"\n")[2]


def forged(**changes: object) -> bytes:
    """A snapshot with fields changed by somebody who knows how to seal it."""
    return sealed(orjson.dumps(orjson.loads(BODY) | changes))


DAMAGES = (
    Damage(id="nothing", data=b""),
    Damage(id="a checksum alone", data=GOOD.partition(b"\n")[0]),
    Damage(id="no checksum", data=BODY),
    Damage(id="sealed garbage", data=sealed(b"garbage")),
    Damage(id="sealed list", data=sealed(b"[]")),
    Damage(id="sealed nesting", data=sealed(b'{"format":' + b"[" * 1_000 + b"]" * 1_000 + b"}")),
    Damage(id="another format", data=forged(format=2)),
    Damage(id="another digest", data=forged(digest=1)),
    Damage(id="no digest", data=forged(digest=None)),
    Damage(id="another level", data=forged(level=2)),
    Damage(id="no bundles", data=forged(bundles=[])),
    Damage(id="bundles that are numbers", data=forged(bundles=[1])),
    Damage(
        id="a bundle in no phase",
        data=forged(bundles=[["t/n", 0, 1, "lost", None, None, 1, 1, None, None]]),
    ),
    Damage(id="a broker that did not join", data=forged(brokers=[[1, "up", 1, 0, 0, "{}"]])),
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.id)
def test_what_is_no_snapshot_is_damaged(damage: Damage) -> None:
    """Whatever the bytes, the answer is a view that proves itself or this one error."""
    with pytest.raises(SnapshotDamaged):
        from_bytes(damage.data)


def test_no_bit_can_be_flipped_unseen() -> None:
    """One flipped bit anywhere, also in what no digest covers, is damage."""
    for place in range(len(GOOD)):
        altered = bytearray(GOOD)
        altered[place] ^= 1 << place % 8
        with pytest.raises(SnapshotDamaged):
            from_bytes(bytes(altered))


def test_no_end_can_be_cut_off_unseen() -> None:
    """A snapshot that was written in part is damage."""
    for length in range(len(GOOD)):
        with pytest.raises(SnapshotDamaged):
            from_bytes(GOOD[:length])


def test_a_view_before_its_genesis_comes_back() -> None:
    """A log may begin with rejected records: the position is kept."""
    channel = Channel()
    channel.put_bytes(b"garbage", offset=7)
    channel.put(joined("a", channel.view, instance_id="n"))
    channel.put(raise_level(Author(publisher="admin:x", as_of=0), channel.view, level=2))
    assert 9 == from_bytes(to_bytes(channel.view)).offset
