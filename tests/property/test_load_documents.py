"""Load documents are read as they were written, light samples are small, and any bytes are read or
refused.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.load.documents import (
    LOAD_BYTES_MAX,
    REPORT_BYTES_MAX,
    decode_load,
    encode_load,
    light,
)
from equipoise.brokers.load.load_sampler import PROBLEM_CHARACTERS_MAX
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.shedder.fit import SUMS
from equipoise.shedder.loads import (
    COSTS_MAX,
    DECLARED_MAX,
    ENTRY_BYTES,
    UNIT_CHARACTERS_MAX,
    BundleTraffic,
    Declared,
    Load,
    Resources,
    Traffic,
    Use,
    averaged,
)

COUNTS = st.integers(0, INTEGER_MAX)
FIGURES = st.floats(-8e307, 8e307)  # Sums of two are finite.
PARTS = st.text("azAZ09-_=:.", min_size=1, max_size=255)
NAMES = st.builds("{}/{}/0x00000000_0x80000000".format, PARTS, PARTS)
TRAFFIC = st.builds(
    Traffic,
    bytes_in_per_second=FIGURES,
    bytes_out_per_second=FIGURES,
    messages_in_per_second=FIGURES,
    messages_out_per_second=FIGURES,
)
BUNDLES = st.builds(
    BundleTraffic,
    bundle=NAMES,
    traffic=TRAFFIC,
    topics=COUNTS,
    consumers=COUNTS,
    producers=COUNTS,
    cache_bytes=COUNTS,
    cost=FIGURES,
)
USES = st.builds(Use, used=FIGURES, limit=FIGURES)
UNITS = st.text(min_size=1, max_size=UNIT_CHARACTERS_MAX)
SAMPLES = st.builds(
    Load,
    broker=st.text(
        "".join(map(chr, range(ord("!"), ord("~") + 1))).replace("/", ""), min_size=1, max_size=255
    ).filter(lambda name: not name.startswith("admin:")),
    at_ms=COUNTS,
    resources=st.builds(
        Resources, cpu=USES, memory=USES, direct_memory=USES, bandwidth_in=USES, bandwidth_out=USES
    ),
    average_use=FIGURES,
    average_bytes_per_second=FIGURES,
    traffic=TRAFFIC,
    bundle_count=COUNTS,
    topics=COUNTS,
    cost=FIGURES,
    noise=FIGURES,
    declared=st.dictionaries(
        st.builds("{}/{}".format, PARTS, PARTS),
        st.builds(Declared, unit=UNITS, amount=FIGURES, estimate=FIGURES, rate=FIGURES),
        max_size=DECLARED_MAX,
    ),
    capacities=st.dictionaries(UNITS, FIGURES, max_size=DECLARED_MAX),
    problem=st.none() | st.text(min_size=1, max_size=PROBLEM_CHARACTERS_MAX),
    other_work=st.none() | FIGURES,
    cpu_problem=st.none() | st.text(min_size=1, max_size=PROBLEM_CHARACTERS_MAX),
    cpu_sums=st.just(()) | st.tuples(*[FIGURES] * SUMS),
    column=st.binary(max_size=COSTS_MAX * ENTRY_BYTES),
    bundles=st.lists(BUNDLES, max_size=20, unique_by=lambda bundle: bundle.bundle).map(tuple),
    history=st.floats(0, 1),
)
UNSET = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
FIELDS = tuple(json.loads(encode_load(Load(broker="a", at_ms=0))))


@given(SAMPLES)
def test_a_load_is_decoded_as_it_was_encoded(sample: Load) -> None:
    assert sample == decode_load(encode_load(sample))


@given(SAMPLES)
def test_a_light_sample_is_small_and_close(sample: Load) -> None:
    """It names as many of the busiest bundles as fit, and its figures are nearly the same."""
    small = light(sample)
    assert len(encode_load(small)) <= REPORT_BYTES_MAX
    named = len(small.bundles)
    assert [b.bundle for b in sample.bundles[len(sample.bundles) - named :]] == [
        b.bundle for b in small.bundles
    ]
    if named < len(sample.bundles):
        one_more = light(replace(sample, bundles=sample.bundles[-named - 1 : -named or None]))
        assert (
            len(encode_load(replace(small, bundles=(*one_more.bundles, *small.bundles))))
            > REPORT_BYTES_MAX
        )
    assert math.isclose(sample.cost, small.cost, rel_tol=1e-5)
    assert small == light(small)


def test_the_longest_names_leave_room_for_a_report() -> None:
    """What is declared of their namespaces goes first."""
    names = [f"{'t' * 255}/{'n' * 254}{number}" for number in range(DECLARED_MAX)]
    declared = {name: Declared(unit="u" * UNIT_CHARACTERS_MAX) for name in names}
    load = Load(
        broker="a",
        at_ms=0,
        column=bytes(COSTS_MAX * ENTRY_BYTES),
        declared=declared,
        problem="é" * PROBLEM_CHARACTERS_MAX,
    )
    assert len(encode_load(load)) > REPORT_BYTES_MAX >= len(encode_load(light(load)))


@given(SAMPLES, SAMPLES)
def test_summaries_of_light_samples_are_bounded(earlier: Load, sample: Load) -> None:
    load = averaged(averaged(None, light(earlier)), light(sample))
    assert len(encode_load(load)) <= LOAD_BYTES_MAX


@given(st.binary(max_size=200) | UNSET.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(PeerError):
        decode_load(data)


@given(SAMPLES, st.sampled_from(FIELDS), UNSET)
def test_any_damage_is_read_or_refused(sample: Load, field: str, value: object) -> None:
    damaged = json.loads(encode_load(sample)) | {field: value}
    with suppress(PeerError):
        decode_load(json.dumps(damaged).encode())


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_is_read_as_nan(figure: float) -> None:
    """JSON has no such figure. NaN lets the reader name it."""
    sample = Load(broker="a", at_ms=0, resources=Resources(cpu=Use(used=figure, limit=1)))
    assert math.isnan(decode_load(encode_load(sample)).resources.cpu.used)
