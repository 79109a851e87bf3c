"""Play one run and return its outcome: `simulate(scenario, seed) -> Outcome`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.balancing.quarantine import quarantined_in
from equipoise.channel.core.records import Reason
from tests.simulation.checkers.recovery import (
    QUARANTINE_MS_MAX,
    not_recovered,
    recovery_bound_ms,
)
from tests.simulation.checkers.violation import InvariantViolated
from tests.simulation.clock import MICROSECONDS_PER_MS, MICROSECONDS_PER_SECOND
from tests.simulation.scenario import Scenario
from tests.simulation.world import World

# How often the run checks whether the cluster has recovered.
_CHECK_INTERVAL_US: Final = 100 * MICROSECONDS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run. `violation` is None if every invariant held; `tail` holds the last lines
    of the story.

    * `recovered_ms`: the time from the last fault until every bundle was served; at most
      `recovery_bound_ms`.
    * `broker_seconds`: simulated seconds times brokers.
    * `ownership_changes`: ownerships that began.
    * `calls_by_token`: answered calls that began or were answered after their broker's lease had
      run out.
    * `calls_extended`: calls answered past the lease by assurances.
    """

    scenario: Scenario
    seed: int
    violation: InvariantViolated | None
    tail: tuple[str, ...]
    broker_seconds: float
    records: int
    rejected: Mapping[Reason, int]
    ownership_changes: int
    calls_answered: int
    calls_by_token: int
    calls_extended: int
    calls_refused: int
    recovered_ms: int | None
    recovery_bound_ms: int


def simulate(
    scenario: Scenario, seed: int, *, on_line: Callable[[str], None] | None = None
) -> Outcome:
    """Play `scenario` under `seed` until faults stop and the cluster has recovered, or until an
    invariant is broken.

    The same scenario and seed give the same story, line by line, in every process. `on_line` gets
    each line at once. Any error of an agent other than `InvariantViolated` is a bug and passes
    through.
    """
    world = World(scenario, seed, on_line=on_line)
    bound_ms = recovery_bound_ms(
        scenario.timing, brokers=len(world.hosts), late_ms=scenario.faults.late_ms[1]
    )
    violation, recovered_ms = None, None
    try:
        world.begin()
        world.parts.schedule.run_until(scenario.seconds * MICROSECONDS_PER_SECOND)
        world.calm_down()
        recovered_ms = _recover(world, bound_ms)
    except InvariantViolated as broken:
        violation = broken
        world.parts.story.say("checker", "VIOLATION of {}", broken)
    checkers, schedule = world.checkers, world.parts.schedule
    return Outcome(
        scenario=scenario,
        seed=seed,
        violation=violation,
        tail=world.parts.story.tail(),
        broker_seconds=schedule.now_us * len(world.hosts) / MICROSECONDS_PER_SECOND,
        records=len(world.log.entries),
        rejected=checkers.rejected,
        ownership_changes=checkers.ownership_changes,
        calls_answered=world.callers.answered,
        calls_by_token=world.callers.answered_by_token,
        calls_extended=world.callers.answered_extended,
        calls_refused=world.callers.refused,
        recovered_ms=recovered_ms,
        recovery_bound_ms=bound_ms,
    )


def _recover(world: World, bound_ms: int) -> int:
    """Wait until every bundle is served. Return the milliseconds that this took. Raises
    `InvariantViolated` past the bound.
    """
    schedule = world.parts.schedule
    calm_us = schedule.now_us
    held_ms = dict[str, int]()
    while True:
        schedule.run_until(schedule.now_us + _CHECK_INTERVAL_US)
        waited_ms = (schedule.now_us - calm_us) // MICROSECONDS_PER_MS
        processes = [host.process for host in world.hosts if host.process is not None]
        view, process_of = world.log.view, world.checkers.membership.process_of
        missing = not_recovered(view, processes, process_of)
        if missing is None:
            world.parts.story.say(
                "world", "every bundle is served {} ms after the last fault", waited_ms
            )
            return waited_ms
        held_ms |= {each.subject: waited_ms for each in quarantined_in(view)}
        if waited_ms > bound_ms:
            # The bound of a bundle in quarantine counts from its end.
            is_last = waited_ms > 2 * bound_ms + QUARANTINE_MS_MAX
            excused = {
                bundle
                for bundle, last_ms in held_ms.items()
                if waited_ms - last_ms <= bound_ms and not is_last
            }
            late = not_recovered(view, processes, process_of, excused=excused)
            if late is not None:
                what = f"{waited_ms} ms after the last fault {late}"
                raise InvariantViolated(invariant="5 everything is served again", what=what)
