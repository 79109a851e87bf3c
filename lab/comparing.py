"""Compare policies on traces, relative to the policies of Pulsar.

The reference of a trace is the more even one of `TransferShedder` and `AvgShedder`, with their
defaults and a round per minute.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from statistics import fmean
from threading import Thread
from typing import Final, TypeVar

from equipoise.brokers.balancing.settings.balancing_settings import SHEDDERS, BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import Value, with_values
from equipoise.channel.core.errors import CallerError, OperatorError
from equipoise.lab.bound import Cut, bound_at, cuts_of
from equipoise.lab.results import Metrics, Result
from equipoise.lab.running import run
from equipoise.lab.traces import Trace, Traces

REFERENCES: Final = ("TransferShedder", "AvgShedder")
"""The policies of Pulsar that others are compared with."""

OURS: Final = "BalancedShedder"

TUNED: Final = (3, 4)
"""The seeds of `lab.traces.COMPARED` on which the defaults of `OURS` were chosen. Others show what
they are worth."""

_PULSAR_INTERVAL_MS: Final = 60_000
"""Pulsar's default of `loadBalancerSheddingIntervalMinutes`."""

Job = TypeVar("Job")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """One trace: what each policy reaches, in their order, what the references do, and what nobody
    can.

    * `outcomes`, by policy: a result per seed, in the order of the seeds.
    * `references`, by seed: the metrics of the more even reference. `reference` is its name for the
      first seed.
    * `cuts`, by seed: the lines that no policy is below.
    """

    trace: str
    outcomes: Mapping[str, tuple[Result, ...]]
    reference: str
    references: tuple[Metrics, ...]
    cuts: tuple[tuple[Cut, ...], ...]

    def rows(self) -> list[dict[str, object]]:
        """Return a row per policy: the means of its figures over the seeds, and their ratios to the
        reference.

        `bound` is the least unevenness of any policy that moves as much load as this one, and `gap`
        how much more this one has.
        """
        rows: list[dict[str, object]] = []
        for policy, results in self.outcomes.items():
            metrics = [result.metrics() for result in results]
            pairs = list(zip(metrics, self.references, strict=True))
            bounds = [
                bound_at(cuts, each.load_moved)
                for cuts, each in zip(self.cuts, metrics, strict=True)
            ]
            rows.append(
                {
                    "trace": self.trace,
                    "policy": policy,
                    "unevenness_ratio": _mean(
                        _ratio(each.unevenness, best.unevenness) for each, best in pairs
                    ),
                    "moved_ratio": _mean(
                        _ratio(each.load_moved, best.load_moved) for each, best in pairs
                    ),
                    "unevenness": _mean(each.unevenness for each in metrics),
                    "bound": _mean(bounds),
                    "gap": _mean(
                        each.unevenness - bound for each, bound in zip(metrics, bounds, strict=True)
                    ),
                    "load_moved": _mean(each.load_moved for each in metrics),
                    "excess_p50": _mean(each.excess_p50 for each in metrics),
                    "excess_p90": _mean(each.excess_p90 for each in metrics),
                    "excess_p99": _mean(each.excess_p99 for each in metrics),
                    "balanced_s": _mean(each.balanced_s for each in metrics),
                    "moves": _mean(each.moves for each in metrics),
                    "undone": sum(each.undone for each in metrics),
                    "reference": self.reference,
                }
            )
        return rows


def settings_of(
    shedder: str, *, given: Mapping[str, Value] | None = None, every_s: float | None = None
) -> BalancingSettings:
    """Return the settings of a policy at its own cadence, or with a round `every_s` seconds, and
    with the `given` settings.

    A policy of Pulsar has a round per minute, and ours has the default of
    `balancing.shed_interval_ms`. Raises `CallerError` for an unknown shedder, and as `with_values`
    does.
    """
    if shedder not in SHEDDERS:
        raise CallerError(f"there is no policy {shedder!r}; the policies are {', '.join(SHEDDERS)}")
    settings = BalancingSettings()
    interval_ms = settings.balancing.shed_interval_ms if shedder == OURS else _PULSAR_INTERVAL_MS
    if every_s is not None:
        interval_ms = round(every_s * 1_000)
    settings = replace(
        settings,
        balancing=replace(settings.balancing, shedder=shedder, shed_interval_ms=interval_ms),
    )
    return with_values(settings, given or {})


def compare(
    traces: Mapping[str, Traces],
    policies: Mapping[str, BalancingSettings],
    *,
    seeds: Sequence[int],
    note: Callable[[int, int], None] = lambda _done, _total: None,
    processes: int | None = None,
) -> list[Comparison]:
    """Run every policy, with its settings, and the references on every trace and seed, in as many
    processes as there are cores, and compare.

    `note` is called with the number of finished runs and bounds, and of all of them.
    """
    references = {name: settings_of(name) for name in REFERENCES}
    settings = list(dict.fromkeys((*policies.values(), *references.values())))
    jobs = [
        Run(trace=make(seed), settings=each, seed=seed)
        for make in traces.values()
        for seed in seeds
        for each in settings
    ]
    bounds = [(make(seed), seed) for make in traces.values() for seed in seeds]
    total = len(jobs) + len(bounds)
    results = iter(_all_of(result_of, jobs, processes, lambda done: note(done, total)))
    all_cuts = iter(
        _all_of(_cuts_of, bounds, processes, lambda done: note(len(jobs) + done, total))
    )
    comparisons = []
    for name in traces:
        by_seed = [{each: next(results) for each in settings} for _ in seeds]
        metrics = [
            [(by[each].metrics(), name) for name, each in references.items()] for by in by_seed
        ]
        best = [min(each, key=lambda pair: pair[0].unevenness) for each in metrics]
        comparisons.append(
            Comparison(
                trace=name,
                outcomes={
                    policy: tuple(by[each] for by in by_seed) for policy, each in policies.items()
                },
                reference=best[0][1],
                references=tuple(each for each, _ in best),
                cuts=tuple(next(all_cuts) for _ in seeds),
            )
        )
    return comparisons


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A run to do. `seed` draws the owners at its start."""

    trace: Trace
    settings: BalancingSettings
    seed: int


def _all_of(
    work: Callable[[Job], Done],
    jobs: Sequence[Job],
    processes: int | None,
    note: Callable[[int], None],
) -> list[Done]:
    """Return what was done, in the order of the jobs."""
    found: list[Done] = []
    with in_processes(work, most=len(jobs), processes=processes) as done:
        for each in done(jobs):
            found.append(each)
            note(len(found))
    return found


def _cuts_of(job: tuple[Trace, int]) -> tuple[Cut, ...]:
    trace, seed = job
    return cuts_of(trace, seed=seed)


@contextmanager
def in_processes(
    work: Callable[[Job], Done], *, most: int, processes: int | None = None
) -> Iterator[Callable[[Iterable[Job]], Iterator[Done]]]:
    """Yield a function that does the `work` of jobs, at most `most` at once, and yields what was
    done in the order of the jobs.

    It uses as many processes as there are cores, or `processes`. One process is this one. Raises
    `OperatorError` if a process is killed.
    """
    processes = min(processes or len(os.sched_getaffinity(0)), most)
    if processes == 1:
        yield lambda jobs: map(work, jobs)
        return
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_begin_process
    ) as executor:
        try:
            yield lambda jobs: executor.map(work, jobs)
        except BrokenProcessPool as error:
            raise OperatorError(
                "a process of the laboratory was killed; free memory, or take fewer traces at once"
            ) from error
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def result_of(job: Run) -> Result:
    """Return the result of a run."""
    return run(job.trace, job.settings, seed=job.seed)


def _begin_process() -> None:
    """End this process at Ctrl-C without a traceback, and when its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # The process waits for jobs in its main thread.


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; None if a value is missing."""
    known = list(values)
    return None if None in known else round(fmean(value for value in known if value is not None), 4)
