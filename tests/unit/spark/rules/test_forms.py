"""Compare the forms of records with the codec: each kind with each field broken in each way."""

from __future__ import annotations

import orjson
import pytest

from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.records import Unreadable
from equipoise.spark_jobs.rules.forms import is_well_formed
from tests.channels.every_kind import RECORDS
from tests.channels.walk import STRANGE

LONG = (
    "x" * 600,
    "x" * 601,
    "x" * 1_024,
    "x" * 1_025,
    [1] * 63,
    [1] * 64,
    {str(n): n for n in range(257)},
    "AAA=",
    "AAB=",
)


@pytest.mark.parametrize("place", range(len(RECORDS)))
def test_forms_and_codec_agree(place: int) -> None:
    whole = orjson.loads(encode(RECORDS[place]))
    names = {
        *whole,
        "incarnation",
        "sequence",
        "as_of",
        "level",
        "handover",
        "owner",
        "source",
        "positions",
        "reason",
        "state",
    }
    broken = [{**whole, name: value} for name in sorted(names) for value in (*STRANGE, *LONG)]
    broken += [
        {name: value for name, value in whole.items() if name != left_out} for left_out in whole
    ]
    assert is_well_formed(whole)
    for raw in broken:
        again = orjson.loads(orjson.dumps(raw))
        assert (not isinstance(decode(orjson.dumps(raw)), Unreadable)) == is_well_formed(again), raw
