"""What the audit says of a million honest records, and how fast: `make bench BENCH=audit_honest`
prints one JSON line.

It plays runs of the simulator, in as many processes as there are cores, each followed by the audit
without Spark. There must be no finding; the first ones are told, with what replays them, and make
the benchmark fail.

`python -m tests.benchmarks.audit_honest --records N` asks for another number of records, and
`--seconds S` for longer runs: rules whose bound is minutes have nothing to say of a run of one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import count
from typing import Final

from tests.benchmarks.figures import machine, print_line
from tests.injected.honest import honest, play
from tests.simulation.scenario import SCENARIOS
from tests.spark.spark_pipeline import Pipeline

RECORDS: Final = 1_000_000
SECONDS: Final = 60
BATCH: Final = 1_000
TOLD_MAX: Final = 10
PROGRESS_RECORDS: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of the simulator. Every other one has evidence of what was served, too."""

    scenario: str
    seed: int
    seconds: int
    evidence: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What came of one run; seconds are CPU time of the audit alone."""

    case: Case
    records: int
    served: int
    facts: int
    seconds: float
    findings: tuple[str, ...]


def audit(case: Case) -> Audited:
    """Play one run, and audit it."""
    run = play(honest(case.scenario, seconds=case.seconds), case.seed, evidence=case.evidence)
    arrivals, pipeline = run.arrivals, Pipeline()
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
        facts=pipeline.facts,
        seconds=seconds,
        findings=tuple(findings),
    )


def cases(seconds: int) -> Iterator[Case]:
    """All scenarios, each so many simulated seconds long, under one seed after another."""
    for seed in count(1):
        for name in sorted(SCENARIOS):
            yield Case(scenario=name, seed=seed, seconds=seconds, evidence=seed % 2 == 1)


def all_audited(records: int, seconds: int) -> Iterator[Audited]:
    """Runs of so many simulated seconds until so many records are audited."""
    coming, cores, audited = cases(seconds), os.cpu_count() or 1, 0
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: set[Future[Audited]] = {pool.submit(audit, next(coming)) for _ in range(cores)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                audited += future.result().records
                yield future.result()
                if audited < records:
                    running.add(pool.submit(audit, next(coming)))


def main() -> int:
    """Audit, and print; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.audit_honest")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument(
        "--seconds",
        type=int,
        default=SECONDS,
        help="how long each run of the simulator is, in its own time",
    )
    asked = parser.parse_args()
    done: list[Audited] = []
    told = 0
    for audited in all_audited(asked.records, asked.seconds):
        done.append(audited)
        so_far = sum(each.records for each in done)
        if so_far >= told + PROGRESS_RECORDS:
            told = so_far
            print(
                f"{so_far} records, {sum(len(each.findings) for each in done)} findings",
                file=sys.stderr,
                flush=True,
            )
        for finding in audited.findings[:TOLD_MAX]:
            print(f"{audited.case}: {finding}", file=sys.stderr)
    records, facts, seconds = (
        sum(getattr(each, name) for each in done) for name in ("records", "facts", "seconds")
    )
    findings = sum(len(each.findings) for each in done)
    results = {
        "records": records,
        "served": sum(each.served for each in done),
        "facts": facts,
        "findings": findings,
        "records_per_cpu_s": round(records / seconds),
        "microseconds_per_fact": round(seconds / facts * 1_000_000, 1),
    }
    conditions = (
        f"{len(done)} runs of {len(SCENARIOS)} scenarios, {asked.seconds} simulated seconds each"
        f" and the calm after it, in batches of {BATCH}; {machine()}"
    )
    print_line("audit_honest", results, conditions)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
