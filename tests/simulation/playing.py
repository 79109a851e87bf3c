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


# Several seeds of each, and of `moves`, which makes most ownership changes for its time, as many as
# bring all to 20,000.
SEEDS = {
    "ordinary": 4,
    "heavy": 6,
    "calm": 1,
    "moves": 4,
    "outages": 4,
    "long-outages": 1,
    "extensions": 2,
    "assurances": 4,
    "assurances-of-all": 4,
    "serving-on": 4,
    "hostile": 6,
    "compaction": 6,
    "three-brokers": 6,
    "two-brokers": 4,
    "many-brokers": 1,
    "lost-directories": 4,
    "one-machine": 4,
    "service-trouble": 2,
    "cancels": 3,
    "resyncs": 3,
    "narrow": 3,
    "programs": 4,
    "drains": 2,
    "reshaping": 2,
    "wild-clocks": 6,
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
