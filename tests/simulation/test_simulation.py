"""The invariants hold in every scenario, over 10,000 ownership changes; and a run is the same
wherever it is played.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace

import pytest

from tests.simulation.faults import (
    Crash,
    CutOff,
    Faults,
    Outage,
    Pause,
    Scheduled,
    WallJump,
)
from tests.simulation.playing import CASES, SEEDS, Case, Played, play
from tests.simulation.run import simulate
from tests.simulation.scenario import SCENARIOS, Operations, Scenario

pytestmark = pytest.mark.slow

OWNERSHIP_CHANGES_MIN = 10_000

# A line of a story: seconds with six places, who, what.
LINE = re.compile(r" {0,4}\d+\.\d{6} {2}\S+ +\S.*")

QUIET = Operations(every_ms=200, drain=0, declare_dead=0, rash=0, forged=0, junk=0, namespace=0)
SMALL = Scenario(name="small", brokers=3, seconds=12, bundles=(4,), operations=QUIET)

Plays = dict[Case, Future[Played]]


@pytest.fixture(scope="module")
def plays(request: pytest.FixtureRequest) -> Iterator[Plays]:
    """The cases of this session, on their way in other processes."""
    chosen = [
        case
        for case in CASES
        if any(
            item.name.endswith(f"[{case.scenario}-{case.seed}]") for item in request.session.items
        )
    ]
    # A thread of the test's process must not be forked along with it.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        yield {case: pool.submit(play, case) for case in chosen}
        pool.shutdown(wait=False, cancel_futures=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.scenario}-{case.seed}")
def test_every_invariant_holds(plays: Plays, case: Case) -> None:
    played = plays[case].result()
    assert played.problem is None, played.problem
    assert played.calls_answered > 0


def test_ownership_changes_often_enough(plays: Plays) -> None:
    if len(plays) < len(CASES):
        pytest.skip("only some of the runs were chosen")
    assert (
        sum(future.result().ownership_changes for future in plays.values()) >= OWNERSHIP_CHANGES_MIN
    )


def test_every_scenario_is_played() -> None:
    """A scenario that joins the catalogue joins these tests."""
    assert sorted(SCENARIOS) == sorted(SEEDS)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_story_is_told_again_word_for_word(name: str) -> None:
    scenario = replace(SCENARIOS[name], brokers=3, duplicates=1, seconds=5)
    stories: tuple[list[str], list[str]] = ([], [])
    for story in stories:
        assert simulate(scenario, 7, on_line=story.append).violation is None
    assert stories[0] == stories[1]
    assert len(stories[0]) > 20


def test_a_story_does_not_depend_on_the_hash_seed() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.simulation",
        "--scenario",
        "heavy",
        "--seed",
        "3",
        "--brokers",
        "3",
        "--seconds",
        "5",
    ]
    stories = [
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert stories[0] == stories[1]


def test_serving_on_is_put_to_the_test() -> None:
    """Where a namespace serves on, calls are answered past the end of leases; where none does,
    never.
    """
    serving_on = replace(SCENARIOS["serving-on"], seconds=20)
    assert simulate(serving_on, 1).calls_by_token > 100
    outcome = simulate(replace(serving_on, serving_on=0), 1)
    assert (None, 0) == (outcome.violation, outcome.calls_by_token)


def test_lines_of_a_story() -> None:
    """Each line has the true time, who, and what; a record has its offset, and a rejected one the
    reason.
    """
    story: list[str] = []
    simulate(replace(SCENARIOS["hostile"], seconds=10), 1, on_line=story.append)
    assert [] == [line for line in story if not LINE.fullmatch(line)]
    times = [float(line.split()[0]) for line in story]
    assert times == sorted(times)
    assert any(
        re.search(r"  \d+  open       \S+  token \d+  by broker-\d+$", line) for line in story
    )
    assert any(
        re.search(r" \d+  .*  rejected as not_the_actor: the bundle is ", line) for line in story
    )


def test_troubles_befall_at_the_time_that_is_set() -> None:
    troubles = (
        Scheduled(at_ms=3_000, trouble=CutOff(host="broker-0", for_ms=1_000, reconnect_ms=100)),
        Scheduled(at_ms=4_000, trouble=Pause(host="broker-1", for_ms=700)),
        Scheduled(
            at_ms=5_000, trouble=Crash(host="broker-2", back_after_ms=900, loses_directory=True)
        ),
        Scheduled(at_ms=7_000, trouble=Outage(for_ms=2_000)),
        Scheduled(at_ms=9_000, trouble=WallJump(host="broker-0", by_ms=5_000)),
    )
    story: list[str] = []
    outcome = simulate(replace(SMALL, faults=Faults(scheduled=troubles)), 1, on_line=story.append)
    assert outcome.violation is None
    for expected in (
        "3.000000  broker-0     is cut off from the log for 1000 ms",
        "4.000000  broker-1     pauses for 700 ms",
        "4.700000  broker-1     goes on",
        "5.000000  broker-2     CRASHES: killed",
        "5.000000  broker-2     loses its data directory",
        "5.900000  broker-2     starts, 0 of",
        "7.000000  log          OUTAGE for 2000 ms",
        "9.000000  broker-0     has its wall clock set by 5000 ms",
    ):
        assert any(line.strip().startswith(expected) for line in story), expected


def test_a_quiet_cluster_loses_nothing() -> None:
    """Without faults nothing is rejected but what operators do at the same time, and every call is
    answered.
    """
    outcome = simulate(SMALL, 1)
    assert outcome.violation is None
    assert outcome.recovered_ms is not None
    assert outcome.recovered_ms < outcome.recovery_bound_ms
    assert outcome.calls_answered > outcome.calls_refused * 5


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_tells_how_it_ended() -> None:
    run = run_command(
        "--scenario", "calm", "--brokers", "2", "--seconds", "3", "--seeds", "2", "--quiet"
    )
    assert run.returncode == 0
    assert ["calm, seed 1: every invariant held.", "calm, seed 2: every invariant held."] == [
        line[: line.index("held.") + 5] for line in run.stdout.splitlines()
    ]


def test_the_command_soaks_until_its_time_is_over() -> None:
    run = run_command("--soak-hours", "0.0003", "--brokers", "2", "--seconds", "2")
    assert run.returncode == 0
    assert re.search(r"\d+ runs: every invariant held$", run.stdout.strip())


@pytest.mark.parametrize(
    "arguments",
    [("--scenario", "none"), ("--seeds", "0"), ("--brokers", "many"), ("--soak-hours", "soon")],
)
def test_the_command_refuses_wrong_arguments(arguments: tuple[str, ...]) -> None:
    run = run_command(*arguments)
    assert run.returncode == 2
    assert arguments[0] in run.stderr
    assert "Traceback" not in run.stderr
