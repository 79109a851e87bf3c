"""The arithmetic of loads: averages that run with time, and figures that no broker can have."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from equipoise.shedder.loads import (
    FIGURE_MAX,
    USE_MAX,
    Averages,
    BrokerLoad,
    Resources,
    Traffic,
    Use,
    Weights,
    averaged,
    fault_of,
    kept_share,
)
from tests.shedding import broker, bundle


def test_the_worked_example_of_pulsar_s_test() -> None:
    """Two samples of Pulsar's own test give its maxima and averages."""
    weights = Weights(cpu=0.5, memory=0.5, direct_memory=0.5, bandwidth_in=0.5, bandwidth_out=0.5)
    shares = {"direct_memory": Use(used=2, limit=100), "bandwidth_in": Use(used=3, limit=100), "bandwidth_out": Use(used=4, limit=100)}
    first = Resources(cpu=Use(used=1, limit=100), memory=Use(used=800, limit=200), **shares)
    second = replace(first, cpu=Use(used=300, limit=100), memory=Use(used=200, limit=200))
    one = averaged(None, first, Traffic(bytes_in_per_second=1, bytes_out_per_second=2), weights=weights, kept=0.75)
    assert first.max_use == pytest.approx(0.04)
    assert (2.0, 3.0) == (one.weighted_max, one.bytes_per_second)
    two = averaged(one, second, Traffic(bytes_in_per_second=5, bytes_out_per_second=6), weights=weights, kept=0.75)
    assert (3.0, 1.875, 5.0) == (second.max_use, two.weighted_max, two.bytes_per_second)


def test_averages_decay_by_time_and_not_by_calls() -> None:
    """Twelve looks in a minute keep as much of the past as sixty do; Pulsar's sixty keep next to nothing."""
    assert kept_share(0.9, elapsed_ms=5_000) == pytest.approx(0.9)
    assert kept_share(0.9, elapsed_ms=5_000) ** 12 == pytest.approx(kept_share(0.9, elapsed_ms=1_000) ** 60)
    assert (0.9, 0.9) == (kept_share(0.9, elapsed_ms=1, pulsar_exact=True), kept_share(0.9, elapsed_ms=10**6, pulsar_exact=True))
    assert (1.0, 1.0) == (kept_share(0.9, elapsed_ms=0), kept_share(0.9, elapsed_ms=-7))


def test_a_resource_without_a_limit_is_not_used() -> None:
    """Where a machine tells no limit, as of a virtual network card, the use is none."""
    assert 0.0 == Use(used=7, limit=0).percent
    assert Use(used=1e300, limit=1).percent == math.inf


SOUND = broker(50, A=1, B=2)


@pytest.mark.parametrize(
    ("load", "fault"),
    [
        (SOUND, None),
        (replace(SOUND, bundles=None), None),
        (replace(SOUND, averages=Averages(weighted_max=math.nan, bytes_per_second=0)), "its average use is nan"),
        (replace(SOUND, averages=Averages(weighted_max=USE_MAX, bytes_per_second=0)), None),
        (replace(SOUND, averages=Averages(weighted_max=1e18, bytes_per_second=0)), "its average use is 1e+18"),
        (replace(SOUND, averages=Averages(weighted_max=0, bytes_per_second=-1)), "its average throughput is -1"),
        (replace(SOUND, resources=Resources(cpu=Use(used=1e6, limit=1_000))), None),
        (replace(SOUND, resources=Resources(cpu=Use(used=1e18, limit=100))), "its cpu is 1e+18 of 100"),
        (replace(SOUND, resources=Resources(cpu=Use(used=-1, limit=100))), "its cpu is -1 of 100"),
        (replace(SOUND, resources=Resources(memory=Use(used=1, limit=math.inf))), "its memory is 1 of inf"),
        (replace(SOUND, traffic=Traffic(bytes_in_per_second=2 * FIGURE_MAX)), "its bytes_in_per_second=2e+18"),
        (replace(SOUND, bundles=(bundle("tenant/space/A", math.nan),)), "tenant/space/A has bytes_out_per_second=nan"),
    ],
)
def test_an_impossible_figure_is_named(load: BrokerLoad, fault: str | None) -> None:
    """What is not a number, negative or absurdly great is told with its name; a sound report has no fault."""
    assert fault == fault_of(load)
