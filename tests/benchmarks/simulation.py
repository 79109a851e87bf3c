"""How fast the simulation is, with all checkers, on one core: `make bench BENCH=simulation` prints
one JSON line, in about a minute.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.frame import report, summary
from tests.simulation.run import simulate
from tests.simulation.scenario import SCENARIOS, Operations, Scenario

REPEATS = 7
OPERATIONS_EVERY_MS = 1_000
BUNDLES_PER_BROKER = 8
SIZES = ((8, 60), (24, 20))


def scenario(brokers: int, seconds: int) -> Scenario:
    """The ordinary faults, eight bundles per broker, and something wanted of the cluster once a
    second.
    """
    return replace(
        SCENARIOS["ordinary"],
        brokers=brokers,
        seconds=seconds,
        bundles=(brokers * BUNDLES_PER_BROKER,),
        operations=Operations(every_ms=OPERATIONS_EVERY_MS),
    )


def rates(brokers: int, seconds: int) -> list[float]:
    """Simulated broker-seconds per second of one core, one seed after another."""
    measured: list[float] = []
    for seed in range(1, REPEATS + 1):
        began = time.process_time()
        outcome = simulate(scenario(brokers, seconds), seed)
        measured.append(outcome.broker_seconds / (time.process_time() - began))
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"
    return measured


def measure(_: Path) -> dict[str, object]:
    """Simulate clusters of both sizes."""
    return {
        f"brokers_{brokers}": summary(rates(brokers, seconds), "simulated broker-seconds/s")
        for brokers, seconds in SIZES
    }


if __name__ == "__main__":
    report(
        "simulation",
        measure,
        f"one core; ordinary faults, all checkers, {BUNDLES_PER_BROKER} bundles per broker, one"
        " operation a second, 40 calls a second; CPU time",
    )
