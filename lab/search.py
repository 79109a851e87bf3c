"""Plan many runs: a grid of policies, settings, traces and seeds, or a search that changes the
settings of a policy. Find the settings that no others beat, and describe what they reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from statistics import fmean
from typing import Final

from equipoise.brokers.balancing.settings.balancing_settings import POLICIES, SHEDDERS
from equipoise.brokers.balancing.settings.setting_values import (
    Value,
    format_value,
    setting_named,
    value_of,
)
from equipoise.channel.core.errors import CallerError
from equipoise.lab.results import Metrics, pareto_front
from equipoise.shedder.policy import SearchRange

Changes = Mapping[str, Value]
"""Values of settings that differ from the defaults, by the name of the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Settings of a policy, and what they reached: means over all traces. The figures are as in
    `Metrics`.
    """

    policy: str
    changes: Changes
    unevenness: float
    load_moved: float

    def row(self) -> dict[str, object]:
        """Return the candidate as JSON values, with the settings as texts that `--set` takes."""
        return {
            "policy": self.policy,
            "unevenness": round(self.unevenness, 4),
            "load_moved": round(self.load_moved, 4),
            "settings": assignments(self.changes),
        }


def assignments(changes: Changes) -> list[str]:
    """Return changes as texts `NAME=VALUE`."""
    return [f"{name}={format_value(value)}" for name, value in changes.items()]


def run_options(policy: str, settings: Iterable[str]) -> str:
    """Return the options of `equipoise lab run` for a policy and texts `NAME=VALUE`."""
    return " ".join([f"--policy {policy}", *(f"--set {text}" for text in settings)])


def lines(candidates: Iterable[Candidate]) -> Iterator[str]:
    """Yield a heading, and a line for each candidate that ends with its options for `equipoise lab
    run`.
    """
    yield "unevenness  load moved  settings"
    for each in candidates:
        yield (
            f"{each.unevenness:10.4f}  {each.load_moved:10.4f} "
            f" {run_options(each.policy, assignments(each.changes))}"
        )


def searched(policy: str, given: Changes) -> dict[str, SearchRange]:
    """Return the ranges of the policy's settings, except the `given` ones.

    Raises `CallerError` for an unknown policy, and if no setting is left.
    """
    if policy not in SHEDDERS:
        raise CallerError(f"there is no policy {policy!r}; the policies are {', '.join(SHEDDERS)}")
    all_ranges = POLICIES[SHEDDERS[policy]].searched
    if not all_ranges:
        raise CallerError(
            f"{policy} does not say which of its settings a search may change (`searched`)"
        )
    ranges = {name: each for name, each in all_ranges.items() if name not in given}
    if not ranges:
        raise CallerError(
            f"--set fixes all settings of {policy} that a search changes; leave one out"
        )
    return ranges


def legible(name: str, number: float) -> Value:
    """Return a number of three digits as a value of the setting `name`, so that the value that runs
    is the one that is printed.
    """
    short = float(f"{number:.3g}")
    return round(short) if setting_named(name).kind is int else short


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
