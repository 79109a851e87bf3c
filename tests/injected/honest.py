"""Honest channels: what the simulator's brokers write, with log times, and a hook for a forger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Final, Protocol
from unittest.mock import patch

import orjson

from equipoise.brokers.agent.effects import Effect, Open, Reshaped
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.runtime.observations.writer import Served
from equipoise.channel.core.log import Entry
from equipoise.channel.core.ranges import bundle_contains
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View
from equipoise.spark_jobs.sequence.rows import Arrival, Source
from tests.simulation.checkers.all_checkers import Checkers
from tests.simulation.checkers.membership import Membership
from tests.simulation.checkers.ownership import Ownership, Work
from tests.simulation.checkers.violation import InvariantViolated
from tests.simulation.clock import MICROSECONDS_PER_MS, MICROSECONDS_PER_SECOND
from tests.simulation.faults import NEVER
from tests.simulation.host import Process
from tests.simulation.scenario import SCENARIOS, Scenario
from tests.simulation.world import World

# The log's time at the beginning of a run. The wall clocks of its machines differ from it by up to
# a minute.
BEGAN_MS: Final = 1_700_000_000_000

# How long a run continues after the last fault: the slowest recovery takes less.
CALM_SECONDS: Final = 15

BUSY_SECONDS: Final = 15

# All brokers of a run are on one machine, so that their clocks can be compared.
BOOT: Final = "00000000-0000-4000-8000-000000000000"

_NANOSECONDS: Final = 1_000  # In a microsecond.

_TRY_AGAIN_US: Final = 20 * MICROSECONDS_PER_MS


@dataclass(slots=True, kw_only=True)
class Run:
    """What a run left behind.

    `forged_at` are the storage offsets of a forger's records. `broken` are the violations that the
    simulator's own checkers found, each with the offset of the last record before it.
    """

    channel: list[Arrival] = field(default_factory=list)
    serving: list[Arrival] = field(default_factory=list)
    forged_at: list[int] = field(default_factory=list)
    broken: list[tuple[int, InvariantViolated]] = field(default_factory=list)

    @property
    def arrivals(self) -> list[Arrival]:
        """All arrivals in order of time; records first within a millisecond."""
        return sorted(
            (*self.channel, *self.serving),
            key=lambda arrival: (arrival.at_ms, arrival.source != Source.CHANNEL),
        )


class Forger(Protocol):
    """A writer of forged records."""

    def write(
        self, view: View, entries: list[Entry], now_ms: int, append: Callable[[bytes], None]
    ) -> bool:
        """Append forged records if the channel allows it now. Return whether that is done; if not,
        it is called again soon.
        """
        ...


def honest(name: str, *, seconds: int | None = None, gaps: bool = False) -> Scenario:
    """Return a scenario without forgers. With `gaps`, offsets are left out, so that records can be
    inserted anywhere.
    """
    scenario = SCENARIOS[name]
    faults = replace(scenario.faults, gap_permille=1_000) if gaps else scenario.faults
    return replace(
        scenario,
        seconds=scenario.seconds if seconds is None else seconds,
        operations=replace(scenario.operations, rash=NEVER, forged=NEVER, junk=NEVER),
        faults=faults,
    )


def busy() -> Scenario:
    """Return a small cluster in which bundles always move: about a thousand records, with gaps
    between them.
    """
    moves = honest("moves", seconds=BUSY_SECONDS, gaps=True)
    operations = replace(moves.operations, every_ms=40, split=20, merge=10, unload=20)
    return replace(moves, bundles=(16,), operations=operations)


@cache
def busy_channel(seed: int) -> tuple[Arrival, ...]:
    """Return the channel of a `busy` cluster without a forger."""
    return tuple(play(busy(), seed).channel)


def play(
    scenario: Scenario,
    seed: int,
    *,
    forger: Forger | None = None,
    forge_after_ms: int = 0,
    evidence: bool = False,
    strict: bool = True,
) -> Run:
    """Play `scenario` under `seed`, and return what was written.

    If it is `strict` and there is no `forger`, raise AssertionError for a broken invariant.
    Otherwise the cluster continues.
    """
    run = Run()
    # One machine has one wall clock, and a sleep that hides from one broker's boot clock hides from
    # all.
    if evidence:
        scenario = replace(
            scenario,
            faults=replace(scenario.faults, hidden_pause_weight=NEVER, wall_jump_weight=NEVER),
        )
    right_clocks = (
        patch("tests.simulation.world._WALL_ERROR_US", (0, 0)) if evidence else nullcontext()
    )
    with (
        right_clocks,
        patch("tests.simulation.world.Checkers", partial(_Notebook, run=run)),
    ):
        world = World(scenario, seed, on_line=None)
    notebook = world.checkers
    assert isinstance(notebook, _Notebook)
    notebook.world, notebook.keeps_evidence = world, evidence
    if forger is not None:
        _let_write(world, run, forger, forge_after_ms)
    schedule = world.parts.schedule
    world.begin()
    schedule.run_until(scenario.seconds * MICROSECONDS_PER_SECOND)
    world.calm_down()
    schedule.run_until((scenario.seconds + CALM_SECONDS) * MICROSECONDS_PER_SECOND)
    assert forger is not None or not strict or not run.broken, run.broken
    return run


def _let_write(world: World, run: Run, forger: Forger, after_ms: int) -> None:
    log, schedule = world.log, world.parts.schedule

    def append(data: bytes) -> None:
        log.append(data)
        run.forged_at.append(log.entries[-1].offset)

    def attempt() -> None:
        if not forger.write(log.view, log.entries, _at_ms(world), append):
            schedule.after(_TRY_AGAIN_US, attempt)

    schedule.at(after_ms * MICROSECONDS_PER_MS, attempt)


def _at_ms(world: World) -> int:
    return BEGAN_MS + world.parts.schedule.now_us // MICROSECONDS_PER_MS


@dataclass(slots=True, kw_only=True)
class _Stretch:
    """Serving under one handle, in true time. `answered_us` is when work last passed its second
    check.
    """

    handle: Handle
    began_us: int | None = None
    answered_us: int = 0
    deadline_us: int = 0
    by_token: bool = False


class _ReportedOwnership(Ownership):
    """The simulator's checker of ownership, which reports each piece of work before it checks it,
    and each violation.
    """

    def __init__(
        self, report: Callable[[Work], None], broken: Callable[[InvariantViolated], None]
    ) -> None:
        super().__init__()
        self._report_work = report
        self._broken = broken

    def answered(self, work: Work) -> None:
        """See `Ownership`."""
        self._report_work(work)
        try:
            super().answered(work)
        except InvariantViolated as broken:
            self._broken(broken)

    def look_at_all(self) -> None:
        """See `Ownership`."""
        try:
            super().look_at_all()
        except InvariantViolated as broken:
            self._broken(broken)


class _Notebook(Checkers):
    """The simulator's checkers, which record violations instead of ending the run, and record what
    brokers write and serve.
    """

    def __init__(
        self, instance_ids: dict[str, Process], *, nobody_dies: bool, nobody_fences: bool, run: Run
    ) -> None:
        super().__init__(instance_ids, nobody_dies=nobody_dies, nobody_fences=nobody_fences)
        self.world: World | None = None
        self.keeps_evidence = False
        self._run = run
        self._stretches: dict[Process, dict[Handle, _Stretch]] = {}
        self.ownership = _ReportedOwnership(self._note_answer, self._note_broken)
        self.membership = Membership(
            instance_ids,
            passing=self.ownership.passing,
            nobody_dies=nobody_dies,
            nobody_fences=nobody_fences,
        )

    def folded(self, folded: Folded, view: View) -> None:
        """Record the newest record of the log, and run the checkers."""
        assert self.world is not None
        entry = self.world.log.entries[-1]
        self._run.channel.append(
            Arrival(Source.CHANNEL, entry.offset, _at_ms(self.world), entry.data)
        )
        try:
            super().folded(folded, view)
        except InvariantViolated as broken:
            self._note_broken(broken)

    def stepped(self, process: Process, effects: Sequence[Effect], now: Instant) -> None:
        """Record what a broker opened and closed in a step, and run the checkers."""
        assert self.world is not None
        if self.keeps_evidence:
            self._note_serving(process, effects)
        try:
            super().stepped(process, effects, now)
        except InvariantViolated as broken:
            self._note_broken(broken)

    def stopped(self, process: Process, error: Exception | None) -> None:
        """Record a violation at a broker's end, which a forger may cause."""
        assert self.world is not None
        try:
            super().stopped(process, error)  # type: ignore[arg-type]
        except InvariantViolated as broken:
            self._note_broken(broken)

    def _note_broken(self, broken: InvariantViolated) -> None:
        assert self.world is not None
        entries = self.world.log.entries
        self._run.broken.append((entries[-1].offset if entries else 0, broken))

    def _note_serving(self, process: Process, effects: Sequence[Effect]) -> None:
        """Record which handles of a process were opened or closed."""
        assert self.world is not None
        now_us = self.world.parts.schedule.now_us
        stretches = self._stretches.setdefault(process, {})
        for effect in effects:
            for handle in (
                (effect.handle,)
                if type(effect) is Open
                else effect.children
                if type(effect) is Reshaped
                else ()
            ):
                stretches[handle] = _Stretch(handle=handle)
        for stretch in list(stretches.values()):
            handle = stretch.handle
            stretch.deadline_us = process.host.clock.true_us_of(handle.lease.until_ms)
            if stretch.began_us is None and handle.passes(process.host.now()):
                stretch.began_us = now_us
                self._report(stretch, process, None)
            elif stretch.began_us is not None and not handle.is_open:
                ended_us = now_us if handle.serves_on else min(now_us, stretch.deadline_us)
                self._report(stretch, process, max(ended_us, stretch.answered_us))
                del stretches[handle]

    def _note_answer(self, work: Work) -> None:
        """Record when work under a handle last passed its second check."""
        for stretch in self._stretches.get(work.process, {}).values():
            if stretch.handle.token == work.token and bundle_contains(
                stretch.handle.low, stretch.handle.high, work.point
            ):
                stretch.answered_us = work.ended_us
                stretch.by_token |= work.by_token and stretch.handle.serves_on

    def _report(self, stretch: _Stretch, process: Process, ended_us: int | None) -> None:
        assert self.world is not None
        assert stretch.began_us is not None, "only a stretch that has begun is reported"
        handle, now_us = stretch.handle, self.world.parts.schedule.now_us
        served = Served(
            log="simulated",
            broker=process.host.broker,
            incarnation=handle.lease.incarnation,
            bundle=handle.bundle,
            token=handle.token,
            boot=BOOT,
            started_ns=stretch.began_us * _NANOSECONDS,
            answered_ns=None if ended_us is None else ended_us * _NANOSECONDS,
            lease_deadline_ns=stretch.deadline_us * _NANOSECONDS,
            ended=None if ended_us is None else "closed",
            by_token=stretch.by_token
            or (handle.serves_on and ended_us is not None and ended_us > stretch.deadline_us),
            at_ms=_at_ms(self.world),
            at_ns=now_us * _NANOSECONDS,
        )
        serving = self._run.serving
        serving.append(
            Arrival(Source.SERVING, len(serving) + 1, served.at_ms, orjson.dumps(served))
        )
