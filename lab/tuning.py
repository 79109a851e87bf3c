"""Search settings of a policy on load traces with Optuna, for little unevenness and little load
moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.trial import Trial

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import setting_named, value_in
from equipoise.channel.core.errors import CallerError
from equipoise.lab.comparing import Run, in_processes, result_of, settings_of
from equipoise.lab.results import Metrics, pareto_front
from equipoise.lab.search import Candidate, Changes, legible, searched
from equipoise.lab.traces import Trace, Traces
from equipoise.shedder.policy import SearchRange

# Trials between two looks at results. The number of cores here would make results differ between
# machines.
_BATCH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to search: the settings of `policy`, with the `given` ones fixed.

    * `every_s`: the time between two rounds, in seconds. None: the policy's own.
    * `trials`: how many settings to try. The first trial has the defaults.
    * `seed`: draws the traces, the owners at their start and the settings. Equal arguments give
      equal results. The next seed draws what the figures are from.
    * `load_moved_max`: the most load that settings may move, as `Metrics.load_moved`. None: no
      limit.
    """

    policy: str
    given: Changes
    every_s: float | None = None
    trials: int = 100
    seed: int = 1
    load_moved_max: float | None = None

    def settings(self, changes: Changes) -> BalancingSettings:
        """Return all settings with these changes."""
        return settings_of(self.policy, given=changes, every_s=self.every_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What the defaults reached, and the settings that no others beat in both figures on the traces
    of the search, the evenest first. The figures are those on other traces.
    """

    defaults: Candidate
    front: tuple[Candidate, ...]


def tune(
    traces: Mapping[str, Traces],
    search: Search,
    *,
    note: Callable[[int, int], None] = lambda _done, _total: None,
    processes: int | None = None,
) -> Tuning:
    """Search in as many processes as there are cores, or in `processes`. After the first trial,
    Ctrl-C ends the search early.

    Settings are chosen on every other trace, from the first. Their figures are from the others, if
    there are any, and from another seed: settings that only fit the traces of the search look
    better there than they are.

    `note` is called with the number of finished trials and of all trials. Raises `CallerError`,
    also if no trial keeps to the limit.
    """
    ranges, initial = searched(search.policy, search.given), search.settings(search.given)
    makes = list(traces.values())
    made = [make(search.seed) for make in makes[::2]]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        directions=["minimize", "minimize"], sampler=TPESampler(seed=search.seed)
    )
    study.enqueue_trial({name: value_in(initial, name) for name in ranges})
    found: list[Candidate] = []
    with in_processes(
        _metrics_of, most=len(made) * min(_BATCH, search.trials), processes=processes
    ) as metrics_of:

        def reached(
            each: Sequence[Changes], traces: Sequence[Trace], seed: int
        ) -> Iterator[Candidate]:
            jobs = [
                Run(trace=trace, settings=search.settings(changes), seed=seed)
                for changes in each
                for trace in traces
            ]
            metrics = metrics_of(jobs)
            for changes in each:
                of_traces = [next(metrics) for _ in traces]
                yield Candidate(
                    policy=search.policy,
                    changes=changes,
                    unevenness=fmean(one.unevenness for one in of_traces),
                    load_moved=fmean(one.load_moved for one in of_traces),
                )

        try:
            for batch in _batches(study, ranges, search):
                results = reached([changes for _, changes in batch], made, search.seed)
                for (trial, _), result in zip(batch, results, strict=True):
                    found.append(result)
                    _tell(study, trial, result, search.load_moved_max)
                    note(len(found), search.trials)
        except KeyboardInterrupt:
            if not found:
                raise
        chosen = _front_within(found, search.load_moved_max)
        other_seed = search.seed + 1
        others = [make(other_seed) for make in makes[1::2] or makes]
        checked = [search.given, *(each.changes for each in chosen)]
        defaults, *front = reached(checked, others, other_seed)
    return Tuning(defaults=defaults, front=tuple(front))


def _metrics_of(job: Run) -> Metrics:
    return result_of(job).metrics()


def _batches(
    study: optuna.Study, ranges: Mapping[str, SearchRange], search: Search
) -> Iterator[list[tuple[Trial, Changes]]]:
    """Yield batches of trials with their settings. The first trial of all has the defaults."""
    distributions = {name: _distribution(name, each) for name, each in ranges.items()}
    for begin in range(0, search.trials, _BATCH):
        trials = [study.ask(distributions) for _ in range(min(_BATCH, search.trials - begin))]
        yield [
            (trial, {**search.given, **(_changes(trial) if trial.number else {})})
            for trial in trials
        ]


def _changes(trial: Trial) -> Changes:
    return {name: legible(name, number) for name, number in trial.params.items()}


def _distribution(name: str, found: SearchRange) -> BaseDistribution:
    if setting_named(name).kind is int:
        return IntDistribution(round(found.least), round(found.most), log=found.log)
    return FloatDistribution(found.least, found.most, log=found.log)


def _tell(study: optuna.Study, trial: Trial, reached: Candidate, limit: float | None) -> None:
    """Tell Optuna what a trial reached. It prefers trials whose constraints are at most 0."""
    if limit is not None:
        trial.set_constraint("load_moved", reached.load_moved - limit)
    study.tell(trial, [reached.unevenness, reached.load_moved])


def _front_within(found: Sequence[Candidate], limit: float | None) -> tuple[Candidate, ...]:
    within = [each for each in found if limit is None or each.load_moved <= limit]
    if not within:
        least = min(each.load_moved for each in found)
        raise CallerError(
            f"no trial moved at most {limit:g} of all load per hour; the least was {least:.3g}:"
            " raise --load-moved-max, or --trials"
        )
    return pareto_front(within)
