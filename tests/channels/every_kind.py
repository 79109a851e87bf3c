"""Well-formed records, at least one of every kind and of every shape that a kind has, for tests of what is done with all of them."""

from __future__ import annotations

from equipoise.channel.core.records import (
    INTEGER_MAX,
    AnyRecord,
    BrokerRecord,
    BundleTransition,
    Genesis,
    Joined,
    LevelRecord,
    Merge,
    NamespaceRecord,
    PolicyRecord,
    Renewed,
    Split,
)

BUNDLE = "tenant/ns/0x00000000_0xffffffff"

RECORDS: tuple[AnyRecord, ...] = (
    Genesis(key="genesis", based_on=0, publisher="admin:ops", cluster="test", base=1_000, timestamp_ms=7),
    BundleTransition(key=BUNDLE, based_on=1, publisher="a:1", incarnation=2, sequence=3, state="free", reason="refused"),
    BundleTransition(key=BUNDLE, based_on=1, publisher="a:1", incarnation=2, sequence=3, state="owned", owner=4, handover=b""),
    BundleTransition(
        key=BUNDLE, based_on=1, publisher="a:1", incarnation=2, sequence=3, as_of=9, timestamp_ms=7, state="releasing", source=4
    ),
    BundleTransition(key=BUNDLE, based_on=1, publisher="admin:ops", as_of=5, state="assigning", owner=4, source=0, timestamp_ms=7),
    BundleTransition(
        key=BUNDLE, based_on=1, publisher="a:1", incarnation=2, sequence=3, state="splitting", owner=4, algorithm="x", positions=(1, 2)
    ),
    BundleTransition(
        key=BUNDLE, based_on=1, publisher="a:1", incarnation=2, sequence=3, state="owned", owner=4, handover=bytes(range(256)), level=2
    ),
    BundleTransition(
        key=BUNDLE, based_on=1, publisher="a:1", incarnation=2, sequence=3, state="releasing", source=4, requested_by="admin:alice"
    ),
    Split(key=BUNDLE, based_on=1, publisher="a:1", incarnation=2, sequence=3, positions=(1, 2), reason="hot"),
    Merge(key=BUNDLE, based_on=1, publisher="a:1", incarnation=2, sequence=3, right=BUNDLE, based_on_right=INTEGER_MAX),
    NamespaceRecord(key="tenant/ns", based_on=1, publisher="admin:ops", as_of=0, status="created", boundaries=(0, 1), policies={"a": True}),
    NamespaceRecord(key="tenant/ns", based_on=1, publisher="admin:ops", as_of=0, status="policies", policies={"": "", "n": 0, "b": False}),
    NamespaceRecord(key="tenant/ns", based_on=1, publisher="admin:ops", as_of=0, status="deleting"),
    Joined(key="a:1", based_on=1, publisher="a:1", nonce="n", lease_ms=3, margin_ms=2, renew_ms=1, addresses={}, labels={}),
    Joined(
        key="a:1",
        based_on=1,
        publisher="a:1",
        nonce="n",
        lease_ms=3,
        margin_ms=2,
        renew_ms=1,
        addresses={"http": "http://a:1"},
        capacity=7,
        failure_domain="rack 1",
        labels={"zone": ""},
        version="1.2",
        supported_level=2,
        replaces="m",
        after_silence=True,
    ),
    Renewed(key="a:1", based_on=1, publisher="a:1", incarnation=2, sequence=3, digest=INTEGER_MAX),
    BrokerRecord(key="a:1", based_on=1, publisher="a:1", incarnation=2, sequence=3, as_of=9, status="draining", requested_by="admin:é"),
    BrokerRecord(key="a:1", based_on=1, publisher="admin:ops", as_of=3, status="down", nonce="n", reason="buried"),
    PolicyRecord(key="isolation", based_on=1, publisher="admin:ops", as_of=3, status="set", document={"n": INTEGER_MAX}),
    PolicyRecord(key="isolation", based_on=1, publisher="admin:ops", as_of=3, status="removed"),
    LevelRecord(key="level", based_on=1, publisher="admin:ops", as_of=3, raises_to=2),
    LevelRecord(
        key="level", based_on=1, publisher="admin:ops", as_of=3, raises_to=INTEGER_MAX, copied_to="sqlite:x", copied_to_identity="i"
    ),
)
