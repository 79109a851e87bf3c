"""Encode records as flat JSON objects; decode and check them without a view.

* The checks (types, ranges, bounds) are handwritten, because a library's version must not change a
  verdict. A property test compares them with the schema that docs/reference publishes.
* `decode` never raises: bytes that are not a record give an `Unreadable` with the problem.
* Unknown fields are ignored, and `null` means absent. Integers lie from 0 to 2**63 - 1; `true` is
  not one.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import itemgetter
from typing import Final, TypedDict, cast

import orjson

from equipoise.channel.core.fields import (
    MalformedError,
    Raw,
    boolean,
    choice,
    document,
    fail,
    handover,
    integer,
    integers,
    optional_integer,
    optional_patterns,
    optional_text,
    shown,
    text,
    texts,
)
from equipoise.channel.core.lifecycle import PHASE_OF_SHAPE
from equipoise.channel.core.ranges import ADMIN_PREFIX
from equipoise.channel.core.records import (
    BOUNDARIES_MAX,
    CUTS_MAX,
    INTEGER_MAX,
    KEY_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    AnyRecord,
    BrokerChange,
    BrokerRecord,
    BundleTransition,
    Genesis,
    Joined,
    LevelRecord,
    Merge,
    NamespaceRecord,
    NamespaceStatus,
    PolicyChange,
    PolicyRecord,
    Record,
    Renewed,
    Split,
    State,
    Unreadable,
    blank,
)

_INTEGER_BITS: Final = INTEGER_MAX.bit_length()
# `hot_frozen` says why.
_init_transition: Final = BundleTransition.__init__
_init_renewed: Final = Renewed.__init__
_hot_fields: Final = itemgetter(
    "key", "expected_offset", "publisher", "incarnation", "sequence", "timestamp_ms"
)
_ADMIN_PREFIX_LENGTH: Final = len(ADMIN_PREFIX)

_KEY_OF: Final = {"genesis": "genesis", "level": "level"}
_BROKER_CHANGES: Final = frozenset({"draining", "left", "down", "removed"})
_NAMESPACE_STATUSES: Final = frozenset({"created", "policies", "deleting", "deleted"})
_POLICY_CHANGES: Final = frozenset({"set", "removed"})


def decode(data: bytes) -> AnyRecord | Unreadable:
    """Return the record in these bytes, or an `Unreadable` with the first problem found. Never
    raises.
    """
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return Unreadable(problem=f"not JSON: {error}")
    if type(raw) is not dict:
        return Unreadable(problem=f"a record is a JSON object, not {type(raw).__name__}")
    kind = raw.get("kind")
    decoder = _DECODERS.get(kind) if type(kind) is str else None
    try:
        if decoder is None:
            fail(f"there is no kind {shown(kind)}")
        return decoder(raw)
    except MalformedError as problem:
        return _unreadable(raw, str(problem))


def encode(record: AnyRecord) -> bytes:
    """Return the bytes of a record; `decode` returns an equal record."""
    raw = _own_fields(record)
    raw["key"] = record.key
    raw["expected_offset"] = record.expected_offset
    raw["publisher"] = record.publisher
    raw["incarnation"] = record.incarnation
    raw["sequence"] = record.sequence
    raw["as_of"] = record.as_of
    raw["level"] = record.level if record.level != 1 else None
    raw["timestamp_ms"] = record.timestamp_ms or None
    raw["requested_by"] = record.requested_by
    raw["traceparent"] = record.traceparent
    return orjson.dumps({name: value for name, value in raw.items() if value is not None})


# --- the envelope ---

Envelope = tuple[
    str, int, str, int | None, int | None, int | None, int, int, str | None, str | None
]


class _EnvelopeFields(TypedDict):
    """The fields that every record has, by name."""

    key: str
    expected_offset: int
    publisher: str
    incarnation: int | None
    sequence: int | None
    as_of: int | None
    level: int
    timestamp_ms: int
    requested_by: str | None
    traceparent: str | None


def _hot_envelope(raw: Raw) -> Envelope:
    """Return the envelope of a transition or renewal as a tuple, in the order of `_EnvelopeFields`.

    These are nine tenths of a channel. One test accepts what brokers write; the rest is read field
    by field.
    """
    try:
        key, expected_offset, publisher, incarnation, sequence, timestamp_ms = _hot_fields(raw)
    except KeyError:
        return cast("Envelope", tuple(_envelope(raw).values()))
    if (
        type(key) is str
        and type(publisher) is str
        and type(expected_offset) is int
        and type(incarnation) is int
        and type(sequence) is int
        and type(timestamp_ms) is int
        # One test for four ranges: a negative or 64-bit number sets a bit above bit 62 of the
        # union.
        and not (expected_offset | incarnation | sequence | timestamp_ms) >> _INTEGER_BITS
        and 0 < len(key) <= KEY_CHARACTERS_MAX
        and 0 < len(publisher) <= KEY_CHARACTERS_MAX
        and publisher[:_ADMIN_PREFIX_LENGTH] != ADMIN_PREFIX
        and "as_of" not in raw
        and "level" not in raw
        and "requested_by" not in raw
        and "traceparent" not in raw
    ):
        return (
            key,
            expected_offset,
            publisher,
            incarnation,
            sequence,
            None,
            1,
            timestamp_ms,
            None,
            None,
        )
    return cast("Envelope", tuple(_envelope(raw).values()))


def _envelope(raw: Raw) -> _EnvelopeFields:
    """Return the envelope of a broker's or an admin's record."""
    key, expected_offset = _key(raw), integer(raw, "expected_offset")
    publisher, incarnation, sequence, as_of = _publisher(raw)
    return {
        "key": key,
        "expected_offset": expected_offset,
        "publisher": publisher,
        "incarnation": incarnation,
        "sequence": sequence,
        "as_of": as_of,
        "level": _level(raw),
        "timestamp_ms": _timestamp_ms(raw),
        "requested_by": _remark(raw, "requested_by"),
        "traceparent": _remark(raw, "traceparent"),
    }


def _publisher(raw: Raw) -> tuple[str, int | None, int | None, int | None]:
    publisher = text(raw, "publisher", KEY_CHARACTERS_MAX)
    if not publisher.startswith(ADMIN_PREFIX):
        return (
            publisher,
            integer(raw, "incarnation"),
            integer(raw, "sequence"),
            optional_integer(raw, "as_of"),
        )
    if raw.get("incarnation") is not None or raw.get("sequence") is not None:
        fail("an admin's record has neither incarnation nor sequence")
    return publisher, None, None, integer(raw, "as_of")


def _first_of_its_kind(raw: Raw) -> _EnvelopeFields:
    """Return the envelope of `genesis` or `joined`, which precede an incarnation."""
    for name in ("incarnation", "sequence", "as_of"):
        if raw.get(name) is not None:
            fail(f"a genesis or joined record has no {name}: it precedes the incarnation")
    return {
        "key": _key(raw),
        "expected_offset": integer(raw, "expected_offset"),
        "publisher": text(raw, "publisher", KEY_CHARACTERS_MAX),
        "incarnation": None,
        "sequence": None,
        "as_of": None,
        "level": _level(raw),
        "timestamp_ms": _timestamp_ms(raw),
        # A view keeps `joined`, so it must be the same for readers that do not know the field.
        "requested_by": None,
        "traceparent": None,
    }


def _key(raw: Raw) -> str:
    key = text(raw, "key", KEY_CHARACTERS_MAX)
    expected = _KEY_OF.get(cast("str", raw["kind"]), key)
    if key != expected:
        fail(f"the key of a {raw['kind']} record is {expected!r}")
    return key


def _level(raw: Raw, name: str = "level") -> int:
    level = optional_integer(raw, name, 1)
    if not level:
        fail(f"{name} starts at 1")
    return level


def _timestamp_ms(raw: Raw) -> int:
    return optional_integer(raw, "timestamp_ms", 0) or 0


def _unreadable(raw: Raw, problem: str) -> Unreadable:
    """Return the problem, with the part of a broken record that settles its publisher's attempt, if
    readable.
    """
    try:
        level = _level(raw)
    except MalformedError:
        level = 1
    try:
        publisher = text(raw, "publisher", KEY_CHARACTERS_MAX)
        incarnation, sequence = integer(raw, "incarnation"), integer(raw, "sequence")
    except MalformedError:
        return Unreadable(problem=problem, level=level)
    if publisher.startswith(ADMIN_PREFIX):
        return Unreadable(problem=problem, level=level)
    return Unreadable(
        problem=problem,
        publisher=publisher,
        incarnation=incarnation,
        sequence=sequence,
        level=level,
    )


def _remark(raw: Raw, name: str) -> str | None:
    """Return a text for display and audits, or None. No value of it makes a record malformed."""
    value = raw.get(name)
    return value if type(value) is str and 0 < len(value) <= TEXT_CHARACTERS_MAX else None


# --- kinds ---


def _decode_bundle(raw: Raw) -> BundleTransition:
    (
        key,
        expected_offset,
        publisher,
        incarnation,
        sequence,
        as_of,
        level,
        timestamp_ms,
        requested_by,
        traceparent,
    ) = _hot_envelope(raw)
    get = raw.get
    state, owner, source = get("state"), get("owner"), get("source")
    # As in `_hot_envelope`: one look accepts valid values; only invalid ones are read again, for
    # the problem.
    if owner is not None and (type(owner) is not int or owner >> _INTEGER_BITS):
        owner = integer(raw, "owner")
    if source is not None and (type(source) is not int or source >> _INTEGER_BITS):
        source = integer(raw, "source")
    if type(state) is not str:
        fail("state must be a text")
    if (state, owner is not None, source is not None) not in PHASE_OF_SHAPE:
        fail(f"state {shown(state)} does not go with owner {owner} and source {source}")
    record = blank(BundleTransition)
    _init_transition(
        record,
        key=key,
        expected_offset=expected_offset,
        publisher=publisher,
        incarnation=incarnation,
        sequence=sequence,
        timestamp_ms=timestamp_ms,
        state=cast("State", state),
        owner=owner,
        source=source,
        # Most transitions have none of these: a test is cheaper than a call.
        reason=None if get("reason") is None else text(raw, "reason"),
        algorithm=None if get("algorithm") is None else text(raw, "algorithm"),
        positions=None if get("positions") is None else integers(raw, "positions", CUTS_MAX),
        handover=None if get("handover") is None else handover(raw),
    )
    if as_of is not None or level != 1 or requested_by is not None or traceparent is not None:
        # Set afterwards: CPython 3.11 takes four times as long over sixteen keywords as over
        # fifteen.
        object.__setattr__(record, "as_of", as_of)
        object.__setattr__(record, "level", level)
        object.__setattr__(record, "requested_by", requested_by)
        object.__setattr__(record, "traceparent", traceparent)
    return record


def _decode_split(raw: Raw) -> Split:
    return Split(
        **_envelope(raw),
        positions=integers(raw, "positions", CUTS_MAX),
        reason=optional_text(raw, "reason"),
    )


def _decode_merge(raw: Raw) -> Merge:
    return Merge(
        **_envelope(raw),
        right=text(raw, "right", KEY_CHARACTERS_MAX),
        expected_offset_right=integer(raw, "expected_offset_right"),
        reason=optional_text(raw, "reason"),
    )


def _decode_namespace(raw: Raw) -> NamespaceRecord:
    return NamespaceRecord(
        **_envelope(raw),
        status=cast("NamespaceStatus", choice(raw, "status", _NAMESPACE_STATUSES)),
        boundaries=(
            None if raw.get("boundaries") is None else integers(raw, "boundaries", BOUNDARIES_MAX)
        ),
        policies=None if raw.get("policies") is None else document(raw, "policies"),
    )


def _decode_broker(raw: Raw) -> Joined | Renewed | BrokerRecord:
    status = raw.get("status")
    if status == "renewed":
        (
            key,
            expected_offset,
            publisher,
            incarnation,
            sequence,
            as_of,
            level,
            timestamp_ms,
            requested_by,
            traceparent,
        ) = _hot_envelope(raw)
        record = blank(Renewed)
        _init_renewed(
            record,
            key=key,
            expected_offset=expected_offset,
            publisher=publisher,
            incarnation=incarnation,
            sequence=sequence,
            as_of=as_of,
            level=level,
            timestamp_ms=timestamp_ms,
            requested_by=requested_by,
            traceparent=traceparent,
            digest=integer(raw, "digest"),
        )
        return record
    if status == "joined":
        return _decode_joined(raw)
    return BrokerRecord(
        **_envelope(raw),
        status=cast("BrokerChange", choice(raw, "status", _BROKER_CHANGES)),
        instance_id=optional_text(raw, "instance_id"),
        reason=optional_text(raw, "reason"),
    )


def _decode_joined(raw: Raw) -> Joined:
    envelope = _first_of_its_kind(raw)
    if envelope["publisher"] != envelope["key"] or envelope["key"].startswith(ADMIN_PREFIX):
        fail("a broker publishes its own joined record: publisher must equal key")
    lease_ms, grace_ms, renew_ms = (
        integer(raw, "lease_ms"),
        integer(raw, "grace_ms"),
        integer(raw, "renew_ms"),
    )
    if not lease_ms or not grace_ms or not renew_ms:
        fail("lease_ms, grace_ms and renew_ms must be above 0")
    capacity = optional_integer(raw, "capacity", 100)
    if not capacity:
        fail("capacity must be above 0")
    return Joined(
        **envelope,
        instance_id=text(raw, "instance_id"),
        lease_ms=lease_ms,
        grace_ms=grace_ms,
        renew_ms=renew_ms,
        extend_ms=optional_integer(raw, "extend_ms", 0) or 0,
        addresses=texts(raw, "addresses"),
        capacity=capacity,
        failure_domain=optional_text(raw, "failure_domain"),
        labels=texts(raw, "labels"),
        namespaces=optional_patterns(raw, "namespaces"),
        version=optional_text(raw, "version") or "",
        supported_level=_level(raw, "supported_level"),
        replaces=optional_text(raw, "replaces"),
        after_silence=boolean(raw, "after_silence"),
        lock=optional_text(raw, "lock"),
    )


def _decode_genesis(raw: Raw) -> Genesis:
    envelope = _first_of_its_kind(raw)
    # Checked here, because a reader counts offsets from the first genesis' base and must know that
    # it is accepted.
    if envelope["expected_offset"]:
        fail("genesis is based on 0")
    return Genesis(
        **envelope,
        cluster=text(raw, "cluster"),
        base=optional_integer(raw, "base", 0) or 0,
    )


def _decode_policy(raw: Raw) -> PolicyRecord:
    return PolicyRecord(
        **_envelope(raw),
        status=cast("PolicyChange", choice(raw, "status", _POLICY_CHANGES)),
        document=None if raw.get("document") is None else document(raw, "document"),
    )


def _decode_level(raw: Raw) -> LevelRecord:
    return LevelRecord(
        **_envelope(raw),
        raises_to=integer(raw, "raises_to"),
        copied_to=_remark(raw, "copied_to"),
        copied_to_identity=_remark(raw, "copied_to_identity"),
    )


_DECODERS: Final[Mapping[str, Callable[[Raw], AnyRecord]]] = {
    "genesis": _decode_genesis,
    "bundle": _decode_bundle,
    "split": _decode_split,
    "merge": _decode_merge,
    "namespace": _decode_namespace,
    "broker": _decode_broker,
    "policy": _decode_policy,
    "level": _decode_level,
}


# --- writing ---

# type -> (kind, status if the type fixes it)
_KINDS: Final[Mapping[type[AnyRecord], tuple[str, str | None]]] = {
    Genesis: ("genesis", None),
    BundleTransition: ("bundle", None),
    Split: ("split", None),
    Merge: ("merge", None),
    NamespaceRecord: ("namespace", None),
    Joined: ("broker", "joined"),
    Renewed: ("broker", "renewed"),
    BrokerRecord: ("broker", None),
    PolicyRecord: ("policy", None),
    LevelRecord: ("level", None),
}

_ENVELOPE_NAMES: Final = frozenset(field.name for field in fields(Record))

# The own fields of a type, in the order of its class: they are written in this order.
_OWN_NAMES: Final = {
    kind: [field.name for field in fields(kind) if field.name not in _ENVELOPE_NAMES]
    for kind in _KINDS
}


def _own_fields(record: AnyRecord) -> Raw:
    kind, status = _KINDS[type(record)]
    raw: Raw = {"kind": kind}
    if status is not None:
        raw["status"] = status
    for name in _OWN_NAMES[type(record)]:
        value: object = getattr(record, name)
        raw[name] = (
            b64encode(value).decode()
            if isinstance(value, bytes)
            else value
            if value != ""
            else None
        )
    return raw
