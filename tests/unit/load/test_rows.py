"""The encoding of table rows and messages of load workers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.load.worker.steps import (
    Row,
    Sighting,
    decode_row,
    decode_sighting,
    encode_row,
    encode_sighting,
)
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.shedder.loads import BundleTraffic, Traffic

OFFSETS = st.integers(0, 10**18 - 1)


@given(
    st.builds(
        Row,
        partition=st.integers(0, 10**9 - 1),
        offset=OFFSETS,
        at_ms=OFFSETS,
        handed=OFFSETS,
        body=st.binary(max_size=100),
    )
)
def test_rows_are_decoded_as_they_were_encoded(row: Row) -> None:
    assert row == decode_row(encode_row(row))


@given(
    broker=st.sampled_from(["a:1", "~" * 255]),
    at_ms=st.integers(0, INTEGER_MAX),
    partition=st.integers(0, 99),
    rate=st.floats(0),
)
def test_sightings_are_decoded_as_they_were_encoded(
    broker: str, at_ms: int, partition: int, rate: float
) -> None:
    """A rate that is not finite is read as NaN."""
    bundle = BundleTraffic(bundle="t/n/x", traffic=Traffic(messages_in_per_second=rate), cost=1.5)
    sighting = Sighting(broker=broker, at_ms=at_ms, partition=partition, history=0.9, bundle=bundle)
    found = decode_sighting(encode_sighting(sighting))
    if math.isfinite(rate):
        assert sighting == found
    else:
        assert math.isnan(found.bundle.traffic.messages_in_per_second)


@pytest.mark.parametrize(
    "head",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"broker":"a:1","at_ms":1,"partition":0,"history":1.5}',
        b'{"broker":"/","at_ms":1,"partition":0,"history":1}',
    ],
    ids=["no JSON", "no object", "nothing", "no share", "no broker"],
)
def test_an_invalid_sighting_is_refused(head: bytes) -> None:
    """The first line of a sighting is checked."""
    bundle = encode_sighting(
        Sighting(
            broker="a:1", at_ms=1, partition=0, history=0.9, bundle=BundleTraffic(bundle="t/n/x")
        )
    ).partition(b"\n")[2]
    with pytest.raises(PeerError, match="sighting"):
        decode_sighting(head + b"\n" + bundle)
