"""Plan many runs: a grid of policies, settings, traces and seeds. Find the settings that no others
beat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from statistics import fmean
from typing import Final

from equipoise.brokers.balancing.settings.balancing_settings import POLICIES, SHEDDERS
from equipoise.brokers.balancing.settings.setting_values import (
    format_value,
    value_of,
)
from equipoise.channel.core.errors import CallerError
from equipoise.lab.results import Metrics, pareto_front


def run_options(policy: str, settings: Iterable[str]) -> str:
    """Return the options of `equipoise lab run` for a policy and texts `NAME=VALUE`."""
    return " ".join([f"--policy {policy}", *(f"--set {text}" for text in settings)])


RUNS_MAX: Final = 20_000
"""The most runs of one grid. Each is a task of Spark, and the results of all tasks are collected in
one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run to do. `settings` are texts NAME=VALUE, as `--set` takes them."""

    trace: str
    policy: str
    settings: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run that was done, and its figures; or why it failed."""

    run: PlannedRun
    metrics: Metrics | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A policy with settings, and what it reached on a trace: means over the seeds, as in
    `Metrics`.
    """

    trace: str
    policy: str
    settings: tuple[str, ...]
    unevenness: float
    load_moved: float


def grid_values(given: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the values of each setting from pairs of a name and values with commas between them.

    Values of a repeated name are joined, and equal values are one. Raises `NotFound`, and
    `InvalidSetting`.
    """
    found = defaultdict[str, list[str]](list)
    for name, text in given:
        found[name] += [format_value(value_of(name, value.strip())) for value in text.split(",")]
    return {name: tuple(dict.fromkeys(values)) for name, values in found.items()}


def planned_runs(
    traces: Sequence[str],
    policies: Sequence[str],
    values: Mapping[str, Sequence[str]],
    *,
    seeds: int,
) -> list[PlannedRun]:
    """Return a run for each trace, policy, combination of values, and seed from 1 to `seeds`.

    A policy gets no settings of another policy's group. Raises `CallerError` for more than
    `RUNS_MAX` runs.
    """
    values_of = {
        policy: {name: each for name, each in values.items() if _concerns(name, policy)}
        for policy in policies
    }
    number = (
        len(set(traces)) * seeds * sum(prod(map(len, own.values())) for own in values_of.values())
    )
    if number > RUNS_MAX:
        raise CallerError(
            f"this grid has {number:,} runs; at most {RUNS_MAX:,} are possible: name fewer values,"
            " traces, policies or seeds"
        )
    return [
        PlannedRun(trace=trace, policy=policy, settings=settings, seed=seed)
        for trace in dict.fromkeys(traces)
        for policy, own in values_of.items()
        for settings in product(
            *([f"{name}={value}" for value in each] for name, each in own.items())
        )
        for seed in range(1, seeds + 1)
    ]


def fronts(runs: Iterable[FinishedRun]) -> list[FrontPoint]:
    """Return for each trace the settings that no others beat in both figures, the evenest first.

    They are chosen on every other seed, from the first. The figures are from the other seeds, if
    there are any. Settings with a failed run are left out: a mean over fewer seeds cannot be
    compared.
    """
    runs_of: dict[str, dict[tuple[str, tuple[str, ...]], list[FinishedRun]]] = {}
    for each in runs:
        of_trace = runs_of.setdefault(each.run.trace, {})
        of_trace.setdefault((each.run.policy, each.run.settings), []).append(each)
    found = []
    for of_trace in runs_of.values():
        whole = [each for each in of_trace.values() if all(run.metrics for run in each)]
        chosen = {_point(each[::2]): each for each in whole}
        reported = [_point(chosen[point][1::2] or chosen[point]) for point in pareto_front(chosen)]
        found += sorted(reported, key=lambda point: point.unevenness)
    return found


def _point(runs: Sequence[FinishedRun]) -> FrontPoint:
    metrics = [each.metrics for each in runs if each.metrics is not None]
    return FrontPoint(
        trace=runs[0].run.trace,
        policy=runs[0].run.policy,
        settings=runs[0].run.settings,
        unevenness=fmean(each.unevenness for each in metrics),
        load_moved=fmean(each.load_moved for each in metrics),
    )


def _concerns(setting: str, policy: str) -> bool:
    """Return whether a setting may change what a policy does."""
    group = setting.partition(".")[0]
    return group == SHEDDERS[policy] or group not in POLICIES
