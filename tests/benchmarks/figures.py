"""Turn measured values into the figures that a benchmark prints."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence

Figures = dict[str, float | int | str]


def summary(values: Sequence[float], unit: str) -> Figures:
    """Median and 99th percentile of measured values. Of a rate the slow end counts, so there the
    lowest value stands for it.
    """
    ordered = sorted(values)
    worst = ordered[0] if unit.endswith("/s") else percentile(ordered, 99)
    return {
        "unit": unit,
        "median": round(statistics.median(ordered), 3),
        "p99": round(worst, 3),
        "repeats": len(ordered),
    }


def single(value: float, unit: str) -> Figures:
    """A value that is measured once."""
    return {"unit": unit, "median": round(value, 2), "repeats": 1}


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The value that so many percent of `ordered`, which rises, do not exceed."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def machine() -> str:
    """What was measured on: how many CPUs, how busy they are with other things, and the version of
    Python.
    """
    return (
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {platform.python_implementation()}"
        f" {platform.python_version()}"
    )


def print_line(name: str, results: Mapping[str, object], conditions: str) -> None:
    """Print the one JSON line of a benchmark."""
    print(json.dumps({"name": name, "results": results, "conditions": conditions}), flush=True)
