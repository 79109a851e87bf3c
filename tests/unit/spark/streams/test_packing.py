"""Test that arrivals are unpacked in the order in which a sequence takes them, however they were
packed.
"""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from equipoise.spark_jobs.sequence.rows import Arrival, Source
from equipoise.spark_jobs.sources.sqlite_source import record_batch
from equipoise.spark_jobs.streams import sequential_operator
from equipoise.spark_jobs.streams.sequential_operator import pack, unpacked

CHANNEL = [
    Arrival(Source.CHANNEL.value, offset, 1_000 + offset, b"record %d" % offset)
    for offset in range(1, 60)
]
BESIDE = [
    Arrival(source.value, offset, 2_000, b"note %d" % offset)
    for source in (Source.DECISIONS, Source.LOADS, Source.SERVING)
    for offset in range(20)
]


def packs(batches: list[list[Arrival]]) -> list[bytes]:
    """The packs of some batches."""
    return [
        bytes(each)
        for part in pack(map(record_batch, batches))
        for each in part["pack"].to_pylist()
    ]


@pytest.mark.parametrize(
    "arrivals",
    [CHANNEL, BESIDE, CHANNEL + BESIDE, CHANNEL[:1]],
    ids=["channel", "beside", "both", "one"],
)
def test_any_batches_are_unpacked_in_order(arrivals: list[Arrival]) -> None:
    """The channel comes first, then each source by offset."""
    random = Random(7)
    for _ in range(20):
        shuffled = random.sample(arrivals, len(arrivals))
        cut = random.randrange(len(arrivals))
        assert arrivals == list(
            unpacked(packs([part for part in (shuffled[cut:], shuffled[:cut]) if part]))
        )


def test_an_absent_value_is_not_an_empty_one() -> None:
    arrivals = [CHANNEL[0]._replace(value=None), CHANNEL[1]._replace(value=b"")]
    assert arrivals == list(unpacked(packs([arrivals])))


def test_large_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential_operator, "PACK_BYTES_MAX", 1_000)
    large = [
        arrival._replace(value=b"x" * (5_000 if arrival.offset == 7 else 100))
        for arrival in CHANNEL
    ]
    made = packs([large, []])
    assert len(large) > len(made) > 1
    tables = [pa.ipc.open_stream(each).read_all() for each in made]
    assert all(table.num_rows == 1 or table.nbytes <= 1_000 for table in tables)
    assert large == list(unpacked(made))
