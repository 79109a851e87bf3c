"""Searches of settings on small traces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pytest

from equipoise.brokers.balancing.settings.balancing_settings import POLICIES
from equipoise.brokers.balancing.settings.setting_values import setting_named
from equipoise.channel.core.errors import CallerError
from equipoise.lab.comparing import OURS, settings_of
from equipoise.lab.results import pareto_front
from equipoise.lab.running import run
from equipoise.lab.search import legible, lines, searched
from equipoise.lab.traces import Shape, Trace, generated
from equipoise.lab.tuning import Search, tune

SHAPE = Shape(brokers=3, bundles=12, duration_s=120.0)
SEARCH = Search(policy=OURS, given={"balanced.moves_max": 3}, trials=10)


def trace_of(kind: str, seed: int) -> Trace:
    return generated(kind, SHAPE, seed=seed)


TRACES = {kind: partial(trace_of, kind) for kind in ("steady", "drifting")}


def test_each_policy_has_ranges_that_are_allowed_and_hold_the_defaults() -> None:
    for policy in POLICIES.values():
        assert policy.searched
        for name, found in policy.searched.items():
            setting = setting_named(name)
            assert setting.kind in (int, float), name
            assert isinstance(setting.default, int | float)
            assert found.least <= setting.default <= found.most, name
            assert all(
                setting.read(legible(name, bound)) is not None
                for bound in (found.least, found.most)
            )
            assert found.least > 0 or not found.log, name


def test_a_search_is_repeatable_and_starts_from_the_defaults() -> None:
    done: list[tuple[int, int]] = []
    first = tune(TRACES, SEARCH, note=lambda *numbers: done.append(numbers), processes=1)
    assert [(number, 10) for number in range(1, 11)] == done
    assert first == tune(TRACES, SEARCH, processes=1)
    assert SEARCH.given == first.defaults.changes
    assert all(3 == each.changes["balanced.moves_max"] for each in first.front), (
        "what is given is fixed"
    )


def test_the_figures_are_from_traces_and_a_seed_that_were_not_searched() -> None:
    made: list[tuple[str, int]] = []

    def noted(kind: str, seed: int) -> Trace:
        made.append((kind, seed))
        return trace_of(kind, seed)

    traces = {kind: partial(noted, kind) for kind in ("steady", "drifting", "noisy")}
    defaults = tune(traces, replace(SEARCH, trials=1), processes=1).defaults
    assert [("steady", 1), ("noisy", 1), ("drifting", 2)] == made
    settings = settings_of(OURS, given=SEARCH.given)
    metrics = run(trace_of("drifting", 2), settings, seed=2).metrics()
    assert metrics.unevenness == defaults.unevenness


def test_a_limit_bounds_the_load_that_moves_in_the_search() -> None:
    settings = settings_of(OURS, given=SEARCH.given)
    limit = run(trace_of("steady", 1), settings).metrics().load_moved
    found = tune(TRACES, replace(SEARCH, load_moved_max=limit), processes=1)
    for each in found.front:
        changed = settings_of(OURS, given=each.changes)
        assert run(trace_of("steady", 1), changed).metrics().load_moved <= limit


def test_a_limit_that_no_trial_keeps_names_the_least() -> None:
    with pytest.raises(
        CallerError,
        match=(
            r"no trial moved at most -1 of all load per hour; the least was .*: raise"
            r" --load-moved-max"
        ),
    ):
        tune(TRACES, replace(SEARCH, trials=1, load_moved_max=-1.0), processes=1)


def test_a_search_of_nothing_is_refused() -> None:
    with pytest.raises(
        CallerError, match="there is no policy 'Best'; the policies are BalancedShedder"
    ):
        searched("Best", {})
    with pytest.raises(CallerError, match="--set fixes all settings of OverloadShedder"):
        searched("OverloadShedder", {"overload.overloaded_percent": 80.0})


def test_each_line_has_the_options_of_a_run() -> None:
    heading, *rows = lines(tune(TRACES, replace(SEARCH, trials=1), processes=1).front)
    assert "unevenness  load moved  settings" == heading
    assert [True] == [
        row.endswith("  --policy BalancedShedder --set balanced.moves_max=3") for row in rows
    ]


@dataclass(frozen=True)
class Reached:
    unevenness: float
    load_moved: float


def test_the_front_leaves_out_what_another_point_beats() -> None:
    best = (Reached(0.1, 0.9), Reached(0.2, 0.5), Reached(0.4, 0.0))
    beaten = (Reached(0.1, 1.0), Reached(0.3, 0.5), Reached(0.5, 0.0), Reached(0.2, 0.5))
    assert best == pareto_front((*beaten, *best))
