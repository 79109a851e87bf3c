"""Assemble everything that a run simulates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View
from tests.simulation.callers import Callers
from tests.simulation.chance import Chance
from tests.simulation.checkers.all_checkers import Checkers
from tests.simulation.clock import (
    MICROSECONDS_PER_MS,
    MICROSECONDS_PER_SECOND,
    Clock,
    Schedule,
)
from tests.simulation.compaction import Compactor
from tests.simulation.courier import Courier
from tests.simulation.faults import Faults
from tests.simulation.faulty_log import FaultyLog
from tests.simulation.host import Host, Process
from tests.simulation.operators import Operators
from tests.simulation.parts import Parts
from tests.simulation.post import Post
from tests.simulation.scenario import Scenario
from tests.simulation.story import Story
from tests.simulation.troubles import Troubles

CLUSTER: Final = "simulated"

# Machines have been up for an hour to a week. Their wall clocks are wrong by up to a minute.
_BOOT_START_US: Final = (3_600 * MICROSECONDS_PER_SECOND, 604_800 * MICROSECONDS_PER_SECOND)
_WALL_START_US: Final = 1_700_000_000 * MICROSECONDS_PER_SECOND
_WALL_ERROR_US: Final = (-60 * MICROSECONDS_PER_SECOND, 60 * MICROSECONDS_PER_SECOND)

# Brokers start one after the other within this time.
_START_US: Final = (0, MICROSECONDS_PER_SECOND)

# Gaps between the log's offsets. The leap is what SQLite skips on the first open after a restart of
# its machine.
_GAP: Final = (1, 20)
_LEAP: Final = 1_000_000

# The share of stopped brokers that never restart after faults stop. The others must notice.
_GONE_PERMILLE: Final = 300


class World:
    """One cluster and all that happens to it, as `scenario` and `seed` decide. `on_line` receives
    each line of the story.
    """

    def __init__(
        self, scenario: Scenario, seed: int, *, on_line: Callable[[str], None] | None
    ) -> None:
        schedule = Schedule()
        story = Story(schedule, on_line)
        parts = Parts(
            scenario=scenario,
            schedule=schedule,
            chance=Chance(seed),
            story=story,
            faults=scenario.faults,
        )
        made_instance_ids: dict[str, Process] = {}
        self.parts = parts
        self.checkers = Checkers(
            made_instance_ids,
            nobody_dies=scenario.nobody_dies,
            nobody_fences=scenario.nobody_fences,
        )
        self.log = FaultyLog(
            name="simulated", cluster=CLUSTER, folded=self._folded, gap=partial(_gap, parts)
        )
        courier = Courier(parts, self.log)
        post = Post(parts, self._process_at)
        names = [(f"broker-{index}", f"broker-{index}") for index in range(scenario.brokers)]
        names += [
            (f"broker-{index}-duplicate", f"broker-{index}") for index in range(scenario.duplicates)
        ]
        self.hosts = [
            Host(
                parts,
                name=name,
                broker=broker,
                clock=_some_clock(parts),
                log=self.log,
                courier=courier,
                post=post,
                watcher=self.checkers,
                made_instance_ids=made_instance_ids,
            )
            for name, broker in names
        ]
        if scenario.is_one_machine:
            for host in self.hosts:
                host.neighbours = [other for other in self.hosts if other is not host]
        self.callers = Callers(parts, self.log, self.hosts, self.checkers)
        self.operators = Operators(parts, self.log, self.hosts, courier)
        self.compactor = Compactor(parts, self.log)
        self.troubles = Troubles(parts, self.hosts, [self.operators.link])

    def begin(self) -> None:
        """Start everything."""
        parts = self.parts
        for host in self.hosts:
            parts.schedule.after(parts.chance.within(_START_US), host.start)
            self._snapshot_now_and_then(host)
        self.troubles.begin()
        self.operators.begin()
        self.callers.begin()
        self.compactor.begin()
        self._look_every_second()

    def calm_down(self) -> None:
        """Stop all faults. Restart most stopped brokers; duplicates and some others never
        return.
        """
        parts = self.parts
        parts.story.say("world", "the calm begins: from here on nothing goes wrong")
        parts.faults = Faults(clock_rate_error_ppm=parts.faults.clock_rate_error_ppm)
        self.operators.stop()
        self.compactor.stop()
        self.troubles.stop()
        first, *others = self.hosts[: parts.scenario.brokers]
        for duplicate in self.hosts[parts.scenario.brokers :]:
            duplicate.retire("the calm needs no duplicates")
        for host in others:
            if host.process is None and parts.chance.happens(_GONE_PERMILLE):
                host.retire("never seen again")
            host.start()
        first.start()

    def _process_at(self, address: str) -> Process | None:
        return next((host.process for host in self.hosts if f"{host.name}:8080" == address), None)

    def _folded(self, folded: Folded, view: View) -> None:
        """Take a record that was just appended."""
        self.parts.story.folded(folded, view)
        self.checkers.folded(folded, view)

    def _snapshot_now_and_then(self, host: Host) -> None:
        def again() -> None:
            host.take_snapshot()
            self._snapshot_now_and_then(host)

        parts = self.parts
        parts.schedule.after(
            parts.chance.about(parts.scenario.snapshot_every_ms) * MICROSECONDS_PER_MS, again
        )

    def _look_every_second(self) -> None:
        self.checkers.ownership.look_at_all()
        self.parts.schedule.after(MICROSECONDS_PER_SECOND, self._look_every_second)


def _gap(parts: Parts) -> int:
    """Return how many offsets the log skips before its next record."""
    chance, faults = parts.chance, parts.faults
    gap = chance.within(_GAP) if chance.happens(faults.gap_permille) else 0
    return gap + (_LEAP if chance.happens(faults.leap_permille) else 0)


def _some_clock(parts: Parts) -> Clock:
    error_ppm = parts.faults.clock_rate_error_ppm
    return Clock(
        boot_start_us=parts.chance.within(_BOOT_START_US),
        wall_start_us=_WALL_START_US + parts.chance.within(_WALL_ERROR_US),
        rate_error_ppm=parts.chance.within((-error_ppm, error_ppm)),
    )
