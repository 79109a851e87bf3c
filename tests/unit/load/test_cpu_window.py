"""What a broker's CPU time goes into."""

from __future__ import annotations

from dataclasses import replace

import pytest

from equipoise.brokers.load.cpu_window import CpuWindow
from equipoise.shedder.costs import ASSUMED
from equipoise.shedder.fit import SUMS
from equipoise.shedder.loads import BundleLoad

WINDOW_MS = 120_000
CALLS = BundleLoad(calls_per_second=1_000)  # A tenth of a core.
MEASURED = replace(CALLS, cpu_seconds_per_second=0.3)


def used(window: CpuWindow, *cores: float, load: BundleLoad = CALLS, step_ms: int = 5_000) -> None:
    for each in cores:
        window.update([load], bundles=1, used_cores=each, elapsed_ms=step_ms, window_ms=WINDOW_MS)


def other_work(window: CpuWindow) -> float | None:
    return window.other_work(ASSUMED, window_ms=WINDOW_MS)


def test_other_work_is_what_nothing_explains() -> None:
    """Known after half a window, without the burst of a start. What was measured of bundles is
    none.
    """
    window = CpuWindow(cores=8)
    used(window, *(0.91,) * 11, load=MEASURED)
    assert other_work(window) is None
    used(window, 0.91, load=MEASURED)
    assert other_work(window) == pytest.approx(0.5, abs=1e-4)
    used(window, 7.0, 7.0, load=MEASURED)
    assert other_work(window) == pytest.approx(0.5, abs=1e-4)
    used(window, *(0.31,) * 40, load=MEASURED)
    assert other_work(window) == 0


@pytest.mark.parametrize(
    ("cores", "load", "problem"),
    [
        (9.0, CALLS, "used 9 cores of 8: its clock has jumped"),
        (float("nan"), CALLS, "used nan cores"),
        (0.2, replace(CALLS, cpu_seconds_per_second=0.5), "its bundles report 0.5 cores"),
        (0.2, BundleLoad(calls_per_second=1e17), "more calls"),
    ],
    ids=["more than the machine has", "no number", "less than was measured", "too many calls"],
)
def test_what_cannot_be_does_not_count(cores: float, load: BundleLoad, problem: str) -> None:
    """A clock has jumped, or a service miscounts. The report names it, until it is over. If it goes
    on, nothing is known.
    """
    window, expected = CpuWindow(cores=8), CpuWindow(cores=8)
    used(window, 0.5, 0.5)
    used(window, cores, cores, load=load)
    assert problem in (window.problem or "")
    used(window, 0.5, 0.5)
    assert window.problem is None
    used(expected, *(0.5,) * 4)
    assert (expected.sums, SUMS) == (window.sums, len(window.sums))
    used(window, *(0.5,) * 24)
    assert other_work(window) is not None
    used(window, *(cores,) * 24, load=load)
    assert other_work(window) is None


@pytest.mark.parametrize("window_ms", [1_000, 10_000])
def test_other_work_is_known_in_a_window_shorter_than_a_part(window_ms: int) -> None:
    window = CpuWindow(cores=8)
    for _ in range(4):
        window.update([], bundles=1, used_cores=0.5, elapsed_ms=5_100, window_ms=window_ms)
    found = window.other_work(ASSUMED, window_ms=window_ms)
    assert pytest.approx(0.5 - ASSUMED.process, abs=1e-4) == found
