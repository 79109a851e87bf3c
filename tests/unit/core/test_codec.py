"""The spelling of records: what round trips, what is refused and why, and what is kept of a record
that is refused.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, replace

import orjson
import pytest

from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.records import (
    BOUNDARIES_MAX,
    CUTS_MAX,
    DOCUMENT_ENTRIES_MAX,
    HANDOVER_BYTES_MAX,
    INTEGER_MAX,
    KEY_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    AnyRecord,
    BrokerRecord,
    Joined,
    Unreadable,
)
from tests.channels.every_kind import BUNDLE, RECORDS

# Deeper than Python may nest calls, and as deep as the parser of JSON allows.
NESTED = b"[" * 1_000 + b"]" * 1_000


def transition(**changes: object) -> bytes:
    """A broker's transition with fields set or, by None, taken away."""
    fields = {
        "kind": "bundle",
        "key": BUNDLE,
        "expected_offset": 1,
        "publisher": "a:1",
        "incarnation": 2,
        "sequence": 3,
        "timestamp_ms": 4,
        "state": "owned",
        "owner": 2,
    } | changes
    return orjson.dumps({name: value for name, value in fields.items() if value is not None})


def join(**changes: object) -> bytes:
    """A `joined` with fields set."""
    fields = {
        "kind": "broker",
        "status": "joined",
        "key": "a:1",
        "expected_offset": 1,
        "publisher": "a:1",
        "instance_id": "n",
    }
    return orjson.dumps(fields | {"lease_ms": 3, "grace_ms": 2, "renew_ms": 1} | changes)


def policy(document: object) -> bytes:
    """A policy with any document."""
    fields = {
        "kind": "policy",
        "status": "set",
        "key": "p",
        "expected_offset": 1,
        "publisher": "admin:ops",
        "as_of": 3,
    }
    return orjson.dumps(fields | {"document": document})


@dataclass(frozen=True, kw_only=True)
class Refusal:
    id: str
    data: bytes
    says: str


REFUSALS = (
    Refusal(id="nothing", data=b"", says="not JSON"),
    Refusal(id="no text", data=b"\xff\x00", says="not JSON"),
    Refusal(id="a lone surrogate", data=b'{"kind": "\\ud800"}', says="not JSON"),
    Refusal(id="no number", data=b'{"kind": NaN}', says="not JSON"),
    Refusal(id="no object", data=b"[]", says="a record is a JSON object, not list"),
    Refusal(id="no kind", data=b"{}", says="there is no kind None"),
    Refusal(id="unknown kind", data=b'{"kind": "bundles"}', says="there is no kind 'bundles'"),
    Refusal(
        id="a nested kind", data=b'{"kind": ' + NESTED + b"}", says="there is no kind of type list"
    ),
    Refusal(
        id="a nested state",
        data=transition()[:-1] + b', "state": ' + NESTED + b"}",
        says="state must be a text",
    ),
    Refusal(id="no key", data=transition(key=None), says="key must be a text"),
    Refusal(id="an empty key", data=transition(key=""), says="key must be a text"),
    Refusal(
        id="a long key",
        data=transition(key="k" * (KEY_CHARACTERS_MAX + 1)),
        says="key must be a text",
    ),
    Refusal(id="a number for a key", data=transition(key=1), says="key must be a text"),
    Refusal(
        id="true for an integer",
        data=transition(expected_offset=True),
        says="expected_offset must be an integer",
    ),
    Refusal(
        id="a float for an integer",
        data=transition(expected_offset=1.0),
        says="expected_offset must be an integer",
    ),
    Refusal(
        id="a text for an integer",
        data=transition(expected_offset="1"),
        says="expected_offset must be an integer",
    ),
    Refusal(
        id="a negative integer", data=transition(sequence=-1), says="sequence must be an integer"
    ),
    Refusal(
        id="an integer of 64 bits",
        data=transition(incarnation=INTEGER_MAX + 1),
        says="incarnation must be an integer",
    ),
    Refusal(
        id="an integer of 65 bits",
        data=transition()[:-1] + b', "owner": 36893488147419103232}',
        says="owner must be an integer",
    ),
    Refusal(
        id="a negative timestamp",
        data=transition(timestamp_ms=-1),
        says="timestamp_ms must be an integer",
    ),
    Refusal(
        id="a broker without incarnation",
        data=transition(incarnation=None),
        says="incarnation must be an integer",
    ),
    Refusal(
        id="a broker without sequence",
        data=transition(sequence=None),
        says="sequence must be an integer",
    ),
    Refusal(
        id="an admin with sequence",
        data=transition(publisher="admin:x", incarnation=None, as_of=1),
        says="neither incarnation nor",
    ),
    Refusal(
        id="an admin with incarnation",
        data=transition(publisher="admin:x", sequence=None, as_of=1),
        says="neither incarnation nor",
    ),
    Refusal(
        id="an admin with both",
        data=transition(publisher="admin:x"),
        says="neither incarnation nor",
    ),
    Refusal(id="a text for as_of", data=transition(as_of="x"), says="as_of must be an integer"),
    Refusal(
        id="an admin without view",
        data=transition(publisher="admin:x", incarnation=None, sequence=None),
        says="as_of must be",
    ),
    Refusal(id="level 0", data=transition(level=0), says="level starts at 1"),
    Refusal(id="a text for a level", data=transition(level="1"), says="level must be an integer"),
    Refusal(
        id="unknown state",
        data=transition(state="lost"),
        says="state 'lost' does not go with owner 2 and source None",
    ),
    Refusal(
        id="owned by nobody",
        data=transition(owner=None),
        says="state 'owned' does not go with owner None and source None",
    ),
    Refusal(
        id="owned with source",
        data=transition(source=1),
        says="state 'owned' does not go with owner 2 and source 1",
    ),
    Refusal(
        id="free with owner", data=transition(state="free"), says="state 'free' does not go with"
    ),
    Refusal(
        id="too many positions",
        data=transition(positions=[1] * (CUTS_MAX + 1)),
        says=f"positions must be a list of at most {CUTS_MAX}",
    ),
    Refusal(
        id="true for a position",
        data=transition(positions=[True]),
        says="positions must hold integers",
    ),
    Refusal(
        id="a long reason",
        data=transition(reason="r" * (TEXT_CHARACTERS_MAX + 1)),
        says="reason must be a text",
    ),
    Refusal(
        id="handover not base64", data=transition(handover="a"), says="handover must be base64"
    ),
    Refusal(
        id="handover with blanks",
        data=transition(handover="YWJj\n"),
        says="handover must be base64",
    ),
    Refusal(
        id="handover with stray bits",
        data=transition(handover="YR=="),
        says="handover must be base64",
    ),
    Refusal(
        id="handover of other letters",
        data=transition(handover="\u00e4\u00e4=="),
        says="handover must be base64",
    ),
    Refusal(
        id="a long handover",
        data=transition(handover=b64encode(bytes(HANDOVER_BYTES_MAX + 1)).decode()),
        says="at most 16384 bytes",
    ),
    Refusal(
        id="a longer handover",
        data=transition(handover="A" * 4 * HANDOVER_BYTES_MAX),
        says="at most 16384 bytes",
    ),
    Refusal(id="a number for a handover", data=transition(handover=1), says="at most 16384 bytes"),
    Refusal(
        id="too many boundaries",
        data=orjson.dumps(
            {
                "kind": "namespace",
                "status": "created",
                "key": "t/n",
                "expected_offset": 0,
                "publisher": "admin:x",
                "as_of": 0,
            }
            | {"boundaries": list(range(BOUNDARIES_MAX + 1))}
        ),
        says="boundaries must be a list of at most",
    ),
    Refusal(id="joining for another", data=join(publisher="b:1"), says="publisher must equal key"),
    Refusal(
        id="an admin that joins",
        data=join(key="admin:x", publisher="admin:x"),
        says="publisher must equal key",
    ),
    Refusal(
        id="joining with sequence",
        data=join(sequence=1),
        says="a genesis or joined record has no sequence",
    ),
    Refusal(id="no lease", data=join(lease_ms=0), says="must be above 0"),
    Refusal(id="no capacity", data=join(capacity=0), says="capacity must be above 0"),
    Refusal(
        id="no level supported", data=join(supported_level=0), says="supported_level starts at 1"
    ),
    Refusal(
        id="numbers for addresses",
        data=join(addresses={"http": 1}),
        says="addresses must map names to texts",
    ),
    Refusal(
        id="a number for a flag",
        data=join(after_silence=1),
        says="after_silence must be true or false",
    ),
    Refusal(
        id="unknown status",
        data=join(status="lost", sequence=1, incarnation=1),
        says="status must be one of",
    ),
    Refusal(
        id="genesis based on something",
        data=encode(replace(RECORDS[0], expected_offset=1)),
        says="genesis is based on 0",
    ),
    Refusal(
        id="genesis of another key",
        data=encode(replace(RECORDS[0], key="g")),
        says="the key of a genesis record is 'genesis'",
    ),
    Refusal(
        id="level of another key",
        data=encode(replace(RECORDS[-1], key="l")),
        says="the key of a level record is 'level'",
    ),
    Refusal(id="a nested document", data=policy({"a": {}}), says="document['a'] must be a text"),
    Refusal(
        id="a float in a document", data=policy({"a": 0.5}), says="document['a'] must be a text"
    ),
    Refusal(id="null in a document", data=policy({"a": None}), says="document['a'] must be a text"),
    Refusal(id="a list for a document", data=policy([]), says="document must be an object"),
    Refusal(
        id="a wide document",
        data=policy({str(n): 1 for n in range(DOCUMENT_ENTRIES_MAX + 1)}),
        says="document must be an object",
    ),
    Refusal(
        id="a long name in a document",
        data=policy({"n" * (TEXT_CHARACTERS_MAX + 1): 1}),
        says="document has a field name",
    ),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_survives_the_way_through_bytes(record: AnyRecord) -> None:
    """What was encoded is decoded to an equal record, and that to equal bytes."""
    data = encode(record)
    assert record == decode(data)
    assert data == encode(record)


def test_every_kind_is_tried() -> None:
    """No type of record is left out above."""
    assert set(AnyRecord.__args__) == {type(record) for record in RECORDS}


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.id)
def test_what_is_no_record_is_unreadable_with_its_problem(refusal: Refusal) -> None:
    """Each wrong form is refused, and the problem names what is wrong."""
    record = decode(refusal.data)
    assert isinstance(record, Unreadable)
    assert refusal.says in record.problem
    assert len(record.problem) <= TEXT_CHARACTERS_MAX


def test_null_is_the_same_as_absent() -> None:
    """A field that is null gives the record that it gives when it is not there."""
    absent = orjson.loads(transition())
    nulls = dict.fromkeys(
        ("source", "as_of", "level", "reason", "algorithm", "positions", "handover")
    )
    assert decode(transition()) == decode(orjson.dumps(absent | nulls))


def test_unknown_fields_are_ignored() -> None:
    """A field of a later version changes nothing."""
    assert decode(transition()) == decode(transition(colour="red", more={"a": [1]}))


@pytest.mark.parametrize("value", [7, {}, [], "", "x" * (TEXT_CHARACTERS_MAX + 1), None, True])
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("name", ["requested_by", "traceparent"])
def test_no_remark_makes_a_record_malformed(record: AnyRecord, value: object, name: str) -> None:
    """Older code ignores the field, and must come to the same verdict."""
    raw = {**orjson.loads(encode(record)), name: value}
    without = replace(record, **{name: None})  # type: ignore[arg-type] # Both are texts.
    assert without == decode(orjson.dumps(raw))


def test_who_wanted_a_record_is_its_requester_or_its_publisher() -> None:
    drain = BrokerRecord(
        key="a",
        expected_offset=1,
        publisher="a",
        incarnation=2,
        sequence=3,
        status="draining",
        requested_by="admin:alice",
    )
    assert ("admin:alice", "a") == (drain.requester, replace(drain, requested_by=None).requester)


def test_what_is_left_out_has_its_default() -> None:
    """A `joined` with only what it must have gets the documented defaults."""
    record = decode(join())
    assert isinstance(record, Joined)
    assert (100, 1, "", {}, {}, False) == (
        record.capacity,
        record.supported_level,
        record.version,
        record.addresses,
        record.labels,
        record.after_silence,
    )


@pytest.mark.parametrize(
    "broken",
    [
        {"kind": "sorcery"},
        {"kind": None},
        {"key": None},
        {"expected_offset": True},
        {"state": "lost"},
        {"owner": -1},
        {"as_of": "x"},
        {"timestamp_ms": "x"},
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_an_unreadable_record_still_settles_its_attempt(broken: dict[str, object]) -> None:
    """Whatever else is wrong, publisher, incarnation, sequence and level are kept."""
    record = decode(transition(level=9) if not broken else transition(**broken, level=9))
    assert isinstance(record, Unreadable)
    assert ("a:1", 2, 3, 9) == (record.publisher, record.incarnation, record.sequence, record.level)


@pytest.mark.parametrize("level", [0, -1, "1", True, INTEGER_MAX + 1])
def test_an_unreadable_level_still_settles_the_attempt(level: object) -> None:
    """The envelope is publisher, incarnation and sequence; a level that cannot be read takes
    nothing from it.
    """
    record = decode(transition(level=level))
    assert isinstance(record, Unreadable)
    assert ("a:1", 2, 3, 1) == (record.publisher, record.incarnation, record.sequence, record.level)


@pytest.mark.parametrize(
    "broken",
    [
        {"publisher": None},
        {"publisher": 1},
        {"publisher": "admin:x"},
        {"incarnation": None},
        {"sequence": True},
        {"sequence": -1},
    ],
    ids=str,
)
def test_without_its_envelope_an_unreadable_record_settles_nothing(
    broken: dict[str, object],
) -> None:
    """If one field of the envelope cannot be read, none is kept."""
    record = decode(transition(**{"state": "lost"} | broken))
    assert isinstance(record, Unreadable)
    assert (None, None, None) == (record.publisher, record.incarnation, record.sequence)
