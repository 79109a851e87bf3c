"""What the load of a bundle costs."""

from __future__ import annotations

import pytest

from equipoise.shedder.costs import IDLE_COST, Coefficients, costs_of
from equipoise.shedder.loads import BundleLoad

LOAD = BundleLoad(
    calls_per_second=4,
    bytes_per_second=3 * 16_384,
    cpu_seconds_per_second=0.5,
    wall_seconds_per_second=100,
    sessions=200,
)


def test_a_cost_is_a_share_of_a_core() -> None:
    """A call, 16 KiB, and a hundred sessions or calls in progress each take 0.1 ms until something
    else is known, in addition to the CPU time that was measured and what an idle bundle takes.
    """
    idle, loaded = costs_of([BundleLoad(), LOAD])
    assert idle == IDLE_COST
    assert pytest.approx(IDLE_COST + 0.5 + (4 + 3 + 1 + 2) / 10_000) == loaded


def test_coefficients_are_seconds_of_cpu_time() -> None:
    known = Coefficients(per_call=0.01, per_byte=1e-6, per_session=1e-3)
    assert [pytest.approx(IDLE_COST + 0.5 + 0.04 + 0.049_152 + 0.3)] == costs_of([LOAD], known)
