"""The frame of all benchmarks: figures, the one JSON line, what a process uses, and brokers."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.brokers.local.local_cluster import ClusterSettings
from tests.load.log_places import LogKind, add_log_option, new_log

Figures = dict[str, float | int | str]
Results = Mapping[str, object]


def report(
    name: str, measure: Callable[[Path], Results | Awaitable[Results]], conditions: str
) -> None:
    """Measure in a new folder, and print the line."""
    before = machine()
    # A job of Spark that was interrupted may still write its state away.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        results = _done(measure(Path(folder)))
    print_line(name, results, f"{conditions}; {before}")


def report_on_log(
    name: str,
    measure: Callable[[Path, str, LogKind], Results | Awaitable[Results]],
    conditions: str,
) -> None:
    """As `report`, on a new log of the kind that the command line names."""
    parser = argparse.ArgumentParser(prog=f"tests.benchmarks.{name}")
    add_log_option(parser)
    kind = parser.parse_args().log

    def on_log(folder: Path) -> Results:
        with new_log(kind, folder) as url:
            return _done(measure(folder, url, kind))

    report(name, on_log, f"the log on {kind}, {conditions}")


def _done(results: Results | Awaitable[Results]) -> Results:
    async def waited() -> Results:
        assert not isinstance(results, Mapping)
        return await results

    return results if isinstance(results, Mapping) else asyncio.run(waited())


def print_line(name: str, results: Results, conditions: str) -> None:
    print(json.dumps({"name": name, "results": results, "conditions": conditions}), flush=True)


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


def spread(values: Sequence[float]) -> Figures:
    """Median, 95th percentile and maximum of values in ms."""
    ordered = sorted(values)
    figures = {f"p{percent}": round(percentile(ordered, percent), 2) for percent in (50, 95, 99)}
    return {"unit": "ms", **figures, "max": round(ordered[-1], 2), "repeats": len(ordered)}


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


def cpu_s(pid: int) -> float:
    """The CPU time of a process so far, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Memory of a process that is its own or shared."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def pulsar_brokers(
    directory: Path,
    *,
    brokers: int,
    prove_deaths: bool = True,
    **more: Any,  # noqa: ANN401 - settings of a cluster
) -> ClusterSettings:
    """Brokers for Pulsar's clients that move nothing on their own."""
    return ClusterSettings(
        directory=directory,
        brokers=brokers,
        services=("pulsar",),
        pulsar_port=0,
        settings={"balance": "false", "prove_deaths": str(prove_deaths).lower()},
        **more,
    )
