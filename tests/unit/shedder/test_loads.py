"""The arithmetic of loads: averages that decay with time, and figures that no broker can have."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from equipoise.shedder.loads import (
    FIGURE_MAX,
    USE_MAX,
    Load,
    Resources,
    Traffic,
    Use,
    fault_of,
    kept_share,
)
from tests.shedding import broker, bundle


def test_averages_decay_by_time_and_not_by_calls() -> None:
    """Twelve samples in a minute keep as much of the past as sixty. A clock that goes back keeps
    all of it.
    """
    assert kept_share(0.9, elapsed_ms=5_000) == pytest.approx(0.9)
    assert kept_share(0.9, elapsed_ms=5_000) ** 12 == pytest.approx(
        kept_share(0.9, elapsed_ms=1_000) ** 60
    )
    assert (1.0, 1.0) == (kept_share(0.9, elapsed_ms=0), kept_share(0.9, elapsed_ms=-7))


def test_a_resource_without_a_limit_is_not_used() -> None:
    """A virtual network card has no limit, for example."""
    assert 0.0 == Use(used=7, limit=0).percent
    assert Use(used=1e300, limit=1).percent == math.inf


SOUND = broker(50, A=1, B=2)


@pytest.mark.parametrize(
    ("load", "fault"),
    [
        (SOUND, None),
        (
            replace(SOUND, average_use=math.nan, average_bytes_per_second=0),
            "its average use is nan",
        ),
        (replace(SOUND, average_use=USE_MAX, average_bytes_per_second=0), None),
        (
            replace(SOUND, average_use=1e18, average_bytes_per_second=0),
            "its average use is 1e+18",
        ),
        (
            replace(SOUND, average_use=0, average_bytes_per_second=-1),
            "its average throughput is -1",
        ),
        (replace(SOUND, resources=Resources(cpu=Use(used=1e6, limit=1_000))), None),
        (
            replace(SOUND, resources=Resources(cpu=Use(used=1e18, limit=100))),
            "its cpu is 1e+18 of 100",
        ),
        (replace(SOUND, resources=Resources(cpu=Use(used=-1, limit=100))), "its cpu is -1 of 100"),
        (
            replace(SOUND, resources=Resources(memory=Use(used=1, limit=math.inf))),
            "its memory is 1 of inf",
        ),
        (
            replace(SOUND, traffic=Traffic(bytes_in_per_second=2 * FIGURE_MAX)),
            "its bytes_in_per_second=2e+18",
        ),
        (
            replace(SOUND, bundles=(bundle("tenant/space/A", math.nan),)),
            "tenant/space/A has bytes_out_per_second=nan",
        ),
    ],
)
def test_an_impossible_figure_is_named(load: Load, fault: str | None) -> None:
    assert fault == fault_of(load)
