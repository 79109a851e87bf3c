"""Runs of the simulation in other processes, so that they use all cores."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.run import simulate
from tests.simulation.scenario import SCENARIOS


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One scenario of the catalogue under one seed."""

    scenario: str
    seed: int

    @property
    def command(self) -> str:
        return f"python -m tests.simulation --scenario {self.scenario} --seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How a case ended: `problem` is None if every invariant held, else it tells which did not, and
    the end of the story.
    """

    problem: str | None
    ownership_changes: int
    calls_answered: int


# `make soak` plays one seed after another, and `make mutants` up to 200 for each broken rule.
SEEDS = {
    "ordinary": 2,
    "heavy": 3,
    "calm": 1,
    "moves": 2,
    "outages": 2,
    "long-outages": 1,
    "extensions": 2,
    "assurances": 2,
    "assurances-of-all": 2,
    "mixed-leases": 2,
    "serving-on": 2,
    "hostile": 3,
    "compaction": 3,
    "three-brokers": 3,
    "two-brokers": 2,
    "many-brokers": 1,
    "lost-directories": 2,
    "one-machine": 2,
    "service-trouble": 2,
    "cancels": 2,
    "resyncs": 2,
    "narrow": 2,
    "programs": 2,
    "drains": 1,
    "reshaping": 2,
    "wild-clocks": 3,
}
CASES = tuple(
    Case(scenario=name, seed=seed) for name, seeds in SEEDS.items() for seed in range(1, seeds + 1)
)


def play(case: Case) -> Played:
    outcome = simulate(SCENARIOS[case.scenario], case.seed)
    problem = None
    if outcome.violation is not None:
        problem = "\n".join(
            (*outcome.tail[-40:], str(outcome.violation), f"replay it with: {case.command}")
        )
    return Played(
        problem=problem,
        ownership_changes=outcome.ownership_changes,
        calls_answered=outcome.calls_answered,
    )
