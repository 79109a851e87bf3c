"""Define `equipoise lab`: measure balancing policies on load traces.

The work is in `lab`, whose packages are an extra. So each command imports it when it runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from equipoise.brokers.balancing.planning import cluster_snapshot_of
from equipoise.brokers.balancing.settings.balancing_settings import SHEDDERS, BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import value_of
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.cli.channel_options import Channel
from equipoise.brokers.cli.moments import duration
from equipoise.brokers.cli.options import directory, file, pairs
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import Output, print_line, progress
from equipoise.brokers.load.bus import LoadBus
from equipoise.channel.core.errors import missing_extra
from equipoise.channel.core.ranges import BUNDLES_MAX

if TYPE_CHECKING:
    from equipoise.lab.traces import Recording, Shape
    from equipoise.lab.tuning import Search

app = group("Measure balancing policies on load traces.")

_BROKERS_MAX: Final = 10_000
_STEP_S: Final = 10.0
_EVERY_S_MAX: Final = 86_400
_TRIALS_MAX: Final = 10_000
_EXTRA_MODULES: Final = ("matplotlib", "numpy", "optuna", "pyarrow")
OURS: Final = "BalancedShedder"

TraceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A kind of generated trace, or a file: .csv or .parquet.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change a setting of balancing. Repeatable.",
        show_default=False,
    ),
]
PolicyOption = Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(SHEDDERS)}.")]
EveryOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=1,
        max=_EVERY_S_MAX,
        help="Time between two rounds.  [default: the policy's own: 60 for Pulsar's policies]",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """The options about generated traces."""

    brokers: Annotated[
        int,
        typer.Option(
            metavar="NUMBER", min=2, max=_BROKERS_MAX, help="Brokers of a trace that names none."
        ),
    ] = 20
    bundles: Annotated[
        int,
        typer.Option(
            metavar="NUMBER", min=1, max=BUNDLES_MAX, help="Bundles of a generated trace."
        ),
    ] = 1_000
    length: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="Length of a generated trace: 30m, 2h (s, m, h, d).",
            show_default=True,
        ),
    ] = "2h"

    def shape(self) -> Shape:
        """Return the size of generated traces."""
        from equipoise.lab.traces import Shape

        return Shape(
            brokers=self.brokers, bundles=self.bundles, duration_s=duration(self.length) / 1_000
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The options of a search for settings."""

    policy: PolicyOption = OURS
    trials: Annotated[
        int, typer.Option(metavar="NUMBER", min=1, max=_TRIALS_MAX, help="Settings to try.")
    ] = 100
    load_moved_max: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0,
            help="Limit of the load that moves: a share of all load per hour.",
            show_default=False,
        ),
    ] = None
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Fix a setting of balancing. Repeatable.",
            show_default=False,
        ),
    ] = None
    every: EveryOption = None
    seed: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            min=0,
            help="Seed of the traces, of the owners at their start and of the search.",
        ),
    ] = 1

    def search(self) -> Search:
        """Return the search. Raises `typer.BadParameter`, `NotFound`, `InvalidSetting`."""
        from equipoise.lab.tuning import Search

        given = pairs("--set", self.changes or ())
        return Search(
            policy=self.policy,
            given={name: value_of(name, text) for name, text in given.items()},
            every_s=self.every,
            trials=self.trials,
            seed=self.seed,
            load_moved_max=self.load_moved_max,
        )


@app.command("run")
def run_one(
    trace: TraceArgument,
    *,
    policy: PolicyOption = OURS,
    changes: SetOption = None,
    every: EveryOption = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="NUMBER", min=0, help="Seed of the trace, and of the owners at its start."
        ),
    ] = 1,
    generated: TraceOptions,
    results: Output,
) -> None:
    """Replay a load trace under one policy, and print how even the load was and what moved.

    The bound is proven: no policy that moves as much load has a lower unevenness.
    """
    _check_extra()
    from equipoise.lab.bound import bound_at, cuts_of
    from equipoise.lab.comparing import settings_of
    from equipoise.lab.running import run
    from equipoise.lab.trace_files import traces_named

    settings = settings_of(policy, given=pairs("--set", changes or ()), every_s=every)
    replayed = traces_named([trace], generated.shape())[trace](seed)
    metrics = run(replayed, settings, seed=seed).metrics()
    bound = round(bound_at(cuts_of(replayed, seed=seed), metrics.load_moved), 4)
    results.print_document(
        {"trace": trace, "policy": policy, "seed": seed, **metrics.document(), "bound": bound}
    )


@app.command("compare")
def compare_all(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE", help="Kinds of generated traces, or files.", show_default=False
        ),
    ] = None,
    *,
    every_kind: Annotated[
        bool,
        typer.Option("--all", help="Compare on all generated traces, at both scales."),
    ] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A policy to compare. Repeatable.  [default: all]",
            show_default=False,
        ),
    ] = None,
    changes: SetOption = None,
    every: EveryOption = None,
    seeds: Annotated[
        str, typer.Option(metavar="NUMBER,...", help="Seeds, whose figures are averaged.")
    ] = "1",
    generated: TraceOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=directory,
            help="Write plots (PNG) and a page (HTML) to this folder.",
            show_default=False,
        ),
    ] = None,
    results: Output,
) -> None:
    """Compare policies on load traces, relative to the more even one of TransferShedder and
    AvgShedder.

    --set and --every change the policies that are compared, not the two of the reference. It uses
    all cores.
    """
    _check_extra()
    from equipoise.lab.comparing import compare
    from equipoise.lab.page import COLUMNS, write_page
    from equipoise.lab.trace_files import traces_named
    from equipoise.lab.traces import COMPARED, KINDS

    names = [*(COMPARED if every_kind else ()), *(traces or ())]
    if not names:
        raise typer.BadParameter(f"name traces, or write --all; the kinds are {', '.join(KINDS)}")
    numbers = _numbers(seeds)
    policies = _policies(policy or list(SHEDDERS), pairs("--set", changes or ()), every)
    with progress("running", unit="runs") as note:
        comparisons = compare(
            traces_named(names, generated.shape()), policies, seeds=numbers, note=note
        )
    results.print_rows(
        [row for each in comparisons for row in each.rows()], columns=COLUMNS, nothing="no traces"
    )
    if output is not None:
        page = write_page(comparisons, output, seeds=numbers)
        if not results.as_json:
            print_line(f"wrote {page}")


@app.command("tune")
def tune_policy(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE", help="Kinds of generated traces, or files.", show_default=False
        ),
    ],
    *,
    options: SearchOptions,
    generated: TraceOptions,
    results: Output,
) -> None:
    """Search settings of a policy that keep the load even and move little.

    It prints the settings that no others beat in both figures on every other trace, with what they
    reach on the rest, and changes nothing. Each trial is a run per trace, on all cores. Ctrl-C ends
    the search early, and prints what was found.
    """
    _check_extra()
    from equipoise.lab.search import lines
    from equipoise.lab.trace_files import traces_named
    from equipoise.lab.tuning import tune

    search = options.search()
    with progress("tuning", unit="trials") as note:
        found = tune(traces_named(traces, generated.shape()), search, note=note)
    without = (
        f"without changes: unevenness {found.defaults.unevenness:.4f}, load moved"
        f" {found.defaults.load_moved:.4f}"
    )
    results.print_lines(
        {"defaults": found.defaults.row(), "front": [each.row() for each in found.front]},
        (*lines(found.front), without),
    )


@app.command()
def record(
    *,
    channel: Channel,
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE", parser=file, help="Write the trace to this file: .csv or .parquet."
        ),
    ],
    length: Annotated[
        str,
        typer.Option("--for", metavar="DURATION", help="How long to record: 30m, 2h (s, m, h, d)."),
    ] = "10m",
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=_EVERY_S_MAX, help="Length of a step.")
    ] = _STEP_S,
) -> None:
    """Record a load trace from the load reports of a running cluster.

    It reads the channel and the reports, and changes nothing. Costs are averages, so a recorded
    load varies less than the real one. Ctrl-C ends the recording early, and writes what there is.
    """
    _check_extra()
    from equipoise.lab.trace_files import check_suffix, description_of, write_trace

    check_suffix(output)
    steps = max(1, round(duration(length) / 1_000 / every))
    trace = _recorded(channel, steps=steps, step_s=every).trace(output.stem)
    write_trace(trace, output)
    channel.print_fact(*description_of(trace, output))


def _recorded(channel: Channel, *, steps: int, step_s: float) -> Recording:
    """Record so many steps, or until Ctrl-C after the first."""
    from equipoise.lab.traces import Recording

    recording = Recording(step_s=step_s)
    began_s = time.monotonic()
    with channel.reading() as access, progress("recording", unit="steps") as note:
        bus = LoadBus(channel.log)
        try:
            for step in range(steps):
                time.sleep(max(0.0, began_s + step * step_s - time.monotonic()))
                channel.read_on(access)
                loads = bus.latest()
                settings = settings_in(access.view, BalancingSettings())
                now_ms = time.time_ns() // 1_000_000
                used = {load.broker: load.average_use for load in loads}
                recording.note(
                    cluster_snapshot_of(access.view, loads, settings, now_ms=now_ms).snapshot,
                    used,
                )
                note(step + 1, steps)
        except KeyboardInterrupt:
            if not recording.steps:
                raise
    return recording


def _check_extra() -> None:
    """Raise `CallerError` unless everything in the extra `lab` is installed."""
    if any(find_spec(module) is None for module in _EXTRA_MODULES):
        raise missing_extra(what="the laboratory", extra="lab")


def _policies(
    names: Sequence[str], given: Mapping[str, str], every_s: float | None
) -> dict[str, BalancingSettings]:
    from equipoise.lab.comparing import settings_of

    return {name: settings_of(name, given=given, every_s=every_s) for name in names}


def _numbers(text: str) -> list[int]:
    """Parse seeds: numbers with commas between them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and part.isascii() for part in parts):
        raise typer.BadParameter(f"{text!r} are no seeds: write numbers, such as 1,2,3")
    return list(dict.fromkeys(map(int, parts)))
