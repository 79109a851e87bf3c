"""How even our policy keeps the load, and what it moves: `make bench BENCH=balance` prints one JSON
line, after about an hour on two cores.

Each figure is relative to the more even one of `TransferShedder` and `AvgShedder` with their
defaults, as a mean over the seeds. The gap is the unevenness above the proven bound (`lab.bound`).
At equal cadence, our policy also has only one round per minute.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from equipoise.lab.comparing import OURS, Comparison, Contender, compare, settings_of
from equipoise.lab.trace_files import traces_named
from equipoise.lab.traces import COMPARED, Shape
from tests.benchmarks.frame import report
from tests.load.flights import flights

SEEDS: Final = (1, 2)
MINUTE_S: Final = 60.0
UNEVENNESS_MAX, MOVED_MAX = 0.65, 1.5


def policies() -> list[Contender]:
    """Return our policy in two forms."""
    return [
        Contender(name="ours", settings=settings_of(OURS)),
        Contender(name="equal cadence", settings=settings_of(OURS, every_s=MINUTE_S)),
    ]


def figures_of(comparison: Comparison) -> dict[str, list[object]]:
    """Return unevenness, load moved and gap of each form of our policy on one trace."""
    return {
        str(row["policy"]): [row["unevenness_ratio"], row["moved_ratio"], row["gap"]]
        for row in comparison.rows()
    }


def reached(
    found: dict[str, dict[str, list[object]]], form: str, unevenness_max: float, moved_max: float
) -> int:
    """Return on how many traces a form of our policy is within both bounds."""
    pairs = [figures[form][:2] for figures in found.values()]
    return sum(
        isinstance(unevenness, float)
        and isinstance(moved, float)
        and unevenness <= unevenness_max
        and moved <= moved_max
        for unevenness, moved in pairs
    )


def measure(_: Path) -> dict[str, object]:
    """Compare with Pulsar's policies at both scales, and on the flights."""
    traces = {**traces_named(COMPARED, Shape()), "flights": lambda _seed: flights()}
    found = {each.trace: figures_of(each) for each in compare(traces, policies(), seeds=SEEDS)}
    return {
        **found,
        "reached": {
            "ours": reached(found, "ours", UNEVENNESS_MAX, MOVED_MAX),
            "equal cadence": reached(found, "equal cadence", UNEVENNESS_MAX, MOVED_MAX),
        },
    }


if __name__ == "__main__":
    report(
        "balance",
        measure,
        f"[unevenness, load moved] relative to Pulsar's policies, and gap; 2 hours; seeds {SEEDS}",
    )
