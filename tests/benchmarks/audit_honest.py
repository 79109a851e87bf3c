"""What the audit says of a million honest records, and how fast: `make bench BENCH=audit_honest`
prints one JSON line.

It plays runs of the simulator, in as many processes as there are cores, each followed by the audit
without Spark. There must be no finding; the first ones are told, with what replays them, and make
the benchmark fail.

"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import count
from typing import Final

from equipoise.spark_jobs.audit.auditor import Auditor
from tests.benchmarks.frame import machine, print_line
from tests.injected.honest import honest, play
from tests.simulation.scenario import SCENARIOS

RECORDS: Final = 1_000_000
SECONDS: Final = 60
BATCH: Final = 1_000
TOLD_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of the simulator. Every other one has evidence of what was served, too."""

    scenario: str
    seed: int
    evidence: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What came of one run; seconds are CPU time of the audit alone."""

    case: Case
    records: int
    served: int
    seconds: float
    findings: tuple[str, ...]


def audit(case: Case) -> Audited:
    """Play one run, and audit it."""
    run = play(honest(case.scenario, seconds=SECONDS), case.seed, evidence=case.evidence)
    arrivals, pipeline = run.arrivals, Auditor()
    began = time.process_time()
    findings = [
        str(finding)
        for first in range(0, len(arrivals), BATCH)
        for finding in pipeline.feed(arrivals[first : first + BATCH])
    ]
    seconds = time.process_time() - began
    return Audited(
        case=case,
        records=len(run.channel),
        served=len(run.serving),
        seconds=seconds,
        findings=tuple(findings),
    )


def cases() -> Iterator[Case]:
    """All scenarios, each so many simulated seconds long, under one seed after another."""
    for seed in count(1):
        for name in sorted(SCENARIOS):
            yield Case(scenario=name, seed=seed, evidence=seed % 2 == 1)


def all_audited() -> Iterator[Audited]:
    """Runs of so many simulated seconds until so many records are audited."""
    coming, cores, audited = cases(), os.cpu_count() or 1, 0
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: set[Future[Audited]] = {pool.submit(audit, next(coming)) for _ in range(cores)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                audited += future.result().records
                yield future.result()
                if audited < RECORDS:
                    running.add(pool.submit(audit, next(coming)))


def main() -> int:
    """Audit, and print; 1 if anything was found."""
    done = list(all_audited())
    findings = [f"{each.case}: {finding}" for each in done for finding in each.findings]
    print(*findings[:TOLD_MAX], sep="\n", file=sys.stderr)
    records, served, seconds = (
        sum(getattr(each, name) for each in done) for name in ("records", "served", "seconds")
    )
    results = {
        "records": records,
        "served": served,
        "findings": len(findings),
        "records_per_cpu_s": round(records / seconds),
    }
    conditions = (
        f"{len(done)} runs of {len(SCENARIOS)} scenarios, {SECONDS} simulated seconds each and the"
        f" calm after it, in batches of {BATCH}; {machine()}"
    )
    print_line("audit_honest", results, conditions)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
