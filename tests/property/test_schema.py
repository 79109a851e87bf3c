"""The published schema and the codec: two spellings of one set of rules."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import fields

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.records import (
    CUTS_MAX,
    DOCUMENT_ENTRIES_MAX,
    HANDOVER_BYTES_MAX,
    INTEGER_MAX,
    KEY_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    AnyRecord,
    Unreadable,
)
from tests.channels.every_kind import RECORDS
from tests.docs.record_schema import RECORD, json_schema

VALID = [orjson.loads(encode(record)) for record in RECORDS]
NAMES = sorted(
    {name for raw in VALID for name in raw} | {"as_of", "level", "replaces", "right", "unheard_of"}
)

INTEGERS = (
    0,
    1,
    2,
    -1,
    -0.0,
    1.0,
    1e300,
    2**53,
    INTEGER_MAX,
    INTEGER_MAX + 1,
    2**64 - 1,
    2**64,
    10**40,
    -(10**40),
    True,
    False,
)
TEXTS = (
    "",
    "x",
    "a:1",
    "admin:",
    "admin:ops",
    "admin:\u00e4",
    "genesis",
    "level",
    "\n",
    "\x00",
    "\U0001f600",
    "1",
    "true",
)
EDGES = tuple(
    character * (length + more)
    for character in "x\u00e4"
    for length in (KEY_CHARACTERS_MAX, TEXT_CHARACTERS_MAX)
    for more in (0, 1)
)
CHOICES = sorted(
    {raw[name] for raw in VALID for name in ("kind", "status", "state") if name in raw}
    | {"left", "removed", "releasing", "lost"}
)
BASE64 = (
    *(
        b64encode(bytes(length)).decode()
        for length in (
            0,
            1,
            2,
            3,
            HANDOVER_BYTES_MAX - 1,
            HANDOVER_BYTES_MAX,
            HANDOVER_BYTES_MAX + 1,
        )
    ),
    *(
        "YQ",
        "YQ=",
        "YQ==",
        "YR==",
        "YQ===",
        "YQ==\n",
        " YQ==",
        "YWI=",
        "YWJ=",
        "Y===",
        "====",
        "-_-_",
        "+/+/",
        "YQ==YQ==",
        "\u00e4\u00e4==",
    ),
)
LISTS: tuple[list[object], ...] = (
    [],
    [0],
    [1, 2],
    [True],
    [1.0],
    [-1],
    [None],
    ["1"],
    [[1]],
    [2**63],
    [0] * CUTS_MAX,
    [0] * (CUTS_MAX + 1),
)
DOCUMENTS = (
    *(
        {},
        {"": ""},
        {"a": 1},
        {"a": True},
        {"a": "x"},
        {"a": None},
        {"a": 1.5},
        {"a": -1},
        {"a": 2**63},
        {"a": {}},
        {"a": []},
    ),
    *({"a": text} for text in EDGES),
    *({text: 1} for text in EDGES),
    *(
        {str(number): value for number in range(DOCUMENT_ENTRIES_MAX + more)}
        for more in (0, 1)
        for value in (1, "x")
    ),
)

VALUES = st.one_of(
    st.none(),
    *(
        st.sampled_from(values)
        for values in (INTEGERS, TEXTS, EDGES, CHOICES, BASE64, LISTS, DOCUMENTS)
    ),
    st.integers(0, 5),
)


@st.composite
def nearly_records(draw: st.DrawFn) -> dict[str, object]:
    """A valid record with up to three fields set to something, taken from another record, or taken
    away.
    """
    raw = dict(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(draw(st.sampled_from((sorted(raw), NAMES)))))
        other = draw(st.sampled_from(VALID))
        if draw(st.booleans()) and name in other:
            raw[name] = other[name]
        elif draw(st.integers(0, 3)):
            raw[name] = draw(VALUES)
        else:
            raw.pop(name, None)
    return raw


def values_of_record(record: AnyRecord) -> dict[str, object]:
    """The fields of a decoded record, lists as lists."""
    held = {field.name: getattr(record, field.name) for field in fields(record)}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in held.items()
    }


def values_of_model(model: object, names: object) -> dict[str, object]:
    """The same fields of a model, with the handover as bytes."""
    assert isinstance(names, dict)
    held = {name: getattr(model, name) for name in names}
    if isinstance(held.get("handover"), str):
        held["handover"] = b64decode(held["handover"])
    return held


def model_of(data: bytes, *, from_json: bool) -> object:
    """What the published schema makes of bytes; None if it refuses them."""
    try:
        return (
            RECORD.validate_json(data) if from_json else RECORD.validate_python(orjson.loads(data))
        )
    except ValidationError:
        return None


@settings(max_examples=500, deadline=None)
@given(raw=nearly_records())
def test_codec_and_schema_accept_the_same_and_give_the_same_values(raw: dict[str, object]) -> None:
    """Whatever is done to a valid record, both take it or neither, from bytes and from objects,
    with equal fields.
    """
    data = json.dumps(raw).encode()
    record = decode(data)
    for model in model_of(data, from_json=True), model_of(data, from_json=False):
        assert (model is None) == isinstance(record, Unreadable), record
        if model is not None and not isinstance(record, Unreadable):
            values = values_of_record(record)
            assert values == values_of_model(model, values)
            assert [type(value) for value in values.values()] == [
                type(value) for value in values_of_model(model, values).values()
            ]


@settings(deadline=None)
@given(
    data=st.binary(max_size=50)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_neither_takes_what_is_no_object(data: bytes) -> None:
    """Bytes that are no JSON object are no record to either."""
    assert isinstance(decode(data), Unreadable)
    assert model_of(data, from_json=True) is None


def test_every_record_is_in_the_schema() -> None:
    """What the codec writes of each kind of record, the schema takes."""
    assert all(model_of(encode(record), from_json=True) is not None for record in RECORDS)


def test_the_json_schema_names_what_must_be_there() -> None:
    """The schema that is dumped tells a renewal's fields that must be there from those that may be
    absent.
    """
    definitions = json_schema()["$defs"]
    assert isinstance(definitions, dict)
    assert {"kind", "status", "key", "expected_offset", "publisher", "digest"} == set(
        definitions["RenewedModel"]["required"]
    )
    assert {
        "incarnation",
        "sequence",
        "as_of",
        "level",
        "timestamp_ms",
        "requested_by",
        "traceparent",
    } == (
        set(definitions["RenewedModel"]["properties"])
        - set(definitions["RenewedModel"]["required"])
    )
