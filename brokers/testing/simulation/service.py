"""Simulate a broker's service: it answers after a while, refuses, hangs, or dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from equipoise.brokers.agent.effects import Abandon, Prepare
from equipoise.brokers.agent.events import Event
from equipoise.brokers.testing.simulation.clock import MICROSECONDS_PER_MS
from equipoise.brokers.testing.simulation.parts import Parts
from equipoise.brokers.testing.stand_in_service import VERBS, StandInService, Work, bundle_of

# A hanging service answers before its deadline, at about that time, or long after it.
_HANG_MS: Final = (500, 6_000)

# How often abandoned code of a service cannot be stopped.
_UNSTOPPABLE_PERMILLE: Final = 100


class SimulatedService(StandInService):
    """The service of one process, whose faults are drawn. `die` ends the process."""

    def __init__(self, parts: Parts, *, broker: str, answer: Callable[[Event], None], die: Callable[[str], None]) -> None:
        super().__init__(answer=answer)
        self._parts = parts
        self._broker = broker
        self._die = die

    def takes(self, namespace: str) -> bool:
        """Return whether it accepts the bundles of a namespace, if nothing goes wrong."""
        return self._parts.scenario.takes(self._broker, namespace)

    def abandoned(self, effect: Abandon) -> None:
        """Stop the code. Where that is impossible, end the process."""
        if self._parts.chance.happens(_UNSTOPPABLE_PERMILLE):
            self._die(f"its service cannot be stopped {effect.doing} {effect.bundle}")

    def perform(self, work: Work, result: Callable[[str | None], Event]) -> None:
        """Draw how the work ends, and when."""
        chance, faults, schedule = self._parts.chance, self._parts.faults, self._parts.schedule
        if chance.happens(faults.dies_permille):
            why = f"its service dies as it {VERBS[type(work)]}s {bundle_of(work)}"
            schedule.after(chance.microseconds(faults.service_ms), lambda: self._die(why))
            return
        took_us = chance.microseconds(faults.service_ms)
        if chance.happens(faults.hangs_permille):
            took_us = chance.within(_HANG_MS) * MICROSECONDS_PER_MS
        problem = "the service does not want it" if chance.happens(faults.refuses_permille) else None
        if problem is None and isinstance(work, Prepare) and not self.takes(work.bundle.namespace):
            problem = "there is no service for it here"
        schedule.after(took_us, lambda: self.answer(result(problem)))
