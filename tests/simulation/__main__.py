"""Play simulated runs and print their stories: `python -m tests.simulation`.

Exit codes:

* 0: every invariant held.
* 1: an invariant was broken.
* 2: the arguments are wrong.
* 3: an agent crashed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from tests.simulation.run import Outcome, simulate
from tests.simulation.scenario import SCENARIOS, Scenario

_TAIL_LINES = 60
_SOAK_REPORT_SECONDS = 60


def main() -> int:
    """Run the command line. Return the exit code."""
    # A reader that closes the pipe early ends the program, as with any program in a pipe.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    arguments = _arguments()
    if arguments.soak_hours is not None:
        return _soak(arguments)
    scenario = _scenario(arguments, arguments.scenario)
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        code = _play(arguments, scenario, seed)
        if code:
            return code
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Simulate a cluster: many agents, one log, one seed.",
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument(
        "--seeds",
        type=_positive,
        default=1,
        help="play this many seeds, and stop at the first broken invariant",
    )
    parser.add_argument(
        "--scenario",
        choices=sorted(SCENARIOS),
        default="ordinary",
        help="the faults and operations of the run (default: ordinary)",
    )
    parser.add_argument(
        "--brokers", type=_positive, help="number of brokers (default: the scenario's)"
    )
    parser.add_argument(
        "--seconds", type=_positive, help="seconds with faults (default: the scenario's)"
    )
    parser.add_argument("--quiet", action="store_true", help="print only the result, not the story")
    parser.add_argument(
        "--soak-hours",
        type=float,
        help="play all scenarios, seed after seed, for this many hours of real time",
    )
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _scenario(arguments: argparse.Namespace, name: str) -> Scenario:
    scenario = SCENARIOS[name]
    brokers = arguments.brokers or scenario.brokers
    return replace(
        scenario,
        brokers=brokers,
        duplicates=min(scenario.duplicates, brokers),
        seconds=arguments.seconds or scenario.seconds,
    )


def _play(arguments: argparse.Namespace, scenario: Scenario, seed: int) -> int:
    """Play one run. Return its exit code."""
    try:
        outcome = simulate(scenario, seed, on_line=None if arguments.quiet else print)
    except Exception:  # noqa: BLE001 - any error of an agent is reported with its seed
        traceback.print_exc()
        print(f"CRASH of an agent; replay it with: {_replay(arguments, scenario, seed)}")
        return 3
    if outcome.violation is None:
        print(_summary(outcome))
        return 0
    if arguments.quiet:
        print(*outcome.tail[-_TAIL_LINES:], sep="\n")
    print(f"VIOLATION of {outcome.violation.invariant}: {outcome.violation.what}")
    print(
        f"scenario {scenario.name}, seed {seed}; replay it with:"
        f" {_replay(arguments, scenario, seed)}"
    )
    return 1


def _replay(arguments: argparse.Namespace, scenario: Scenario, seed: int) -> str:
    options = "".join(
        f" --{name} {value}"
        for name in ("brokers", "seconds")
        if (value := getattr(arguments, name)) is not None
    )
    return f"python -m tests.simulation --scenario {scenario.name} --seed {seed}{options}"


def _summary(outcome: Outcome) -> str:
    rejected = (
        ", ".join(f"{count} {reason}" for reason, count in sorted(outcome.rejected.items()))
        or "none"
    )
    return (
        f"{outcome.scenario.name}, seed {outcome.seed}: every invariant held."
        f" {outcome.broker_seconds:.0f} broker-seconds, {outcome.records} records (rejected:"
        f" {rejected}), {outcome.ownership_changes} ownership changes, {outcome.calls_answered}"
        f" calls answered and {outcome.calls_refused} refused; all served {outcome.recovered_ms} ms"
        " after the last fault"
    )


def _soak(arguments: argparse.Namespace) -> int:
    """Play all scenarios under one seed after another until the time is up. Return the exit
    code.
    """
    quiet = argparse.Namespace(**{**vars(arguments), "quiet": True})
    end_seconds = time.monotonic() + arguments.soak_hours * 3_600
    report_seconds, runs = time.monotonic(), 0
    for scenario, seed in _all_runs(arguments):
        if time.monotonic() > end_seconds:
            break
        if time.monotonic() >= report_seconds:
            print(f"{runs} runs so far, now {scenario.name} with seed {seed}", flush=True)
            report_seconds += _SOAK_REPORT_SECONDS
        code = _play(quiet, scenario, seed)
        if code:
            return code
        runs += 1
    print(f"{runs} runs: every invariant held")
    return 0


def _all_runs(arguments: argparse.Namespace) -> Iterator[tuple[Scenario, int]]:
    for seed in count(arguments.seed):
        for name in SCENARIOS:
            yield _scenario(arguments, name), seed


if __name__ == "__main__":
    sys.exit(main())
