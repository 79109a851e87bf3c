"""Load documents that cannot be read, by example."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from dataclasses import replace

import pytest

from equipoise.brokers.load.documents import (
    decode_load,
    encode_load,
    light,
)
from equipoise.channel.core.errors import PeerError
from equipoise.shedder.fit import SUMS, SUMS_UNITS
from equipoise.shedder.loads import BundleTraffic, Load

BUNDLE = BundleTraffic(bundle="t/n/0x00000000_0x80000000", topics=1, cost=12.5)
SAMPLE = Load(broker="a:8080", at_ms=5, bundle_count=1, bundles=(BUNDLE,))
GOOD = b64encode(struct.pack(f">{SUMS}d", *(1.0,) * SUMS)).decode()
NO_SAMPLE = {
    "nothing": (b"", "report"),
    "no JSON": (b"{", "report"),
    "another type": (b"[]", "it must be an object"),
    "nothing at all of it": (b"{}", "averages"),
    "no UTF-8": (b'{"broker": "\xff"}', "report"),
    "a broker that cannot be": ({"broker": "admin:eve"}, "broker id"),
    "a moment before all": ({"at_ms": -1}, "at_ms"),
    "an average that grows": ({"history": 1.5}, "history"),
    "an average of nothing": ({"history": None}, "history"),
    "a missing resource": ({"resources": [0.0] * 9}, "resources"),
    "a word for a figure": ({"averages": ["much", 1]}, "averages"),
    "yes for a figure": ({"cost": True}, "cost"),
    "fewer bundles than none": ({"bundle_count": -1}, "bundle_count"),
    "a column that is no text": ({"column": [1]}, "column must be text"),
    "a column that is too long": ({"column": "A" * 4_000}, "column must be text of at most"),
    "a column that is not in base64": ({"column": "???"}, "column must be in base64"),
    "no list of bundles": ({"bundles": {}}, "bundles"),
    "a bundle without a name": ({"bundles": [["", 0, 0, 0, 0, 0, 0, 0, 0, 0]]}, "name of a bundle"),
    "a bundle without a cost": (
        {"bundles": [["t/n/r", 0, 0, 0, 0, 0, 0, 0, 0]]},
        "each of bundles",
    ),
    "a bundle twice": ({"bundles": [["t/n/r", 0, 0, 0, 0, 0, 0, 0, 0, 0]] * 2}, "once"),
}


@pytest.mark.parametrize(("damage", "named"), NO_SAMPLE.values(), ids=NO_SAMPLE.keys())
def test_an_invalid_sample_is_refused_with_the_problem(
    damage: bytes | dict[str, object], named: str
) -> None:
    """The error names the field."""
    data = (
        damage
        if isinstance(damage, bytes)
        else json.dumps(json.loads(encode_load(SAMPLE)) | damage).encode()
    )
    with pytest.raises(PeerError, match=named) as caught:
        decode_load(data)
    assert "UnreadableLoad" == caught.value.code


def test_additions_of_a_later_version_are_ignored() -> None:
    """Unknown fields, and additional figures at the end of a row, are ignored."""
    raw = json.loads(encode_load(SAMPLE))
    raw["bundles"][0].append("more")
    assert SAMPLE == decode_load(json.dumps(raw | {"mood": "good"}).encode())


def test_a_light_sample_has_rounded_figures() -> None:
    """Rates are not known to one part in a million, and digits take room."""
    precise = Load(broker="a", at_ms=0, bundles=(replace(BUNDLE, cost=12.345678),))
    assert b"12.3457" in encode_load(light(precise))
    assert 1e18 == light(Load(broker="a", at_ms=0, cost=1e18)).cost


@pytest.mark.parametrize(
    "sums",
    [
        None,
        "",
        [],
        [SUMS_UNITS + 1, GOOD],
        [SUMS_UNITS, GOOD[:-8]],
        [SUMS_UNITS, "?" * len(GOOD)],
        [SUMS_UNITS, 1],
    ],
    ids=["none", "text", "nothing", "other units", "other length", "not in base64", "a number"],
)
def test_sums_that_this_version_cannot_read_leave_the_rest(sums: object) -> None:
    """A cluster may run two versions, and nobody weighs a broker without a report."""
    sample = replace(SAMPLE, cpu_sums=(1.0,) * SUMS)
    document = json.loads(encode_load(sample))
    assert [SUMS_UNITS, GOOD] == document["cpu_sums"]
    assert SAMPLE == decode_load(json.dumps(document | {"cpu_sums": sums}).encode())
