"""Carry questions and answers from broker to broker: late, out of order, twice, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from equipoise.brokers.agent.effects import AskAssurance
from equipoise.brokers.agent.events import Assured
from tests.simulation.clock import MICROSECONDS_PER_MS
from tests.simulation.parts import Parts

if TYPE_CHECKING:
    from tests.simulation.host import Process


class Post:
    """The network between brokers, which does not need the log. `process_at` returns the process
    that answers at an address now.
    """

    def __init__(self, parts: Parts, process_at: Callable[[str], Process | None]) -> None:
        self._parts = parts
        self._process_at = process_at

    def ask(self, question: AskAssurance, asker: Process) -> None:
        """Send a question, and its answer back to the same process."""
        address = question.broker.joined.addresses["http"]
        self._send(partial(self._arrive, question, asker, address))

    def _arrive(self, question: AskAssurance, asker: Process, address: str) -> None:
        process = self._process_at(address)
        if process is not None:
            process.question(
                cluster=process.log.cluster,
                asker=question.asker,
                asked=question.broker.incarnation,
                answer=partial(self._answer, question, asker),
            )

    def _answer(self, question: AskAssurance, asker: Process, assured: bool) -> None:
        if assured:
            event = Assured(
                cluster=asker.log.cluster,
                asker=question.asker,
                by=question.broker.incarnation,
                number=question.number,
            )
            self._send(partial(asker.deliver, event))

    def _send(self, arrive: Callable[[], None]) -> None:
        parts, faults = self._parts, self._parts.faults
        chance = parts.chance
        if chance.happens(faults.direct_lost_permille):
            return
        if not chance.happens(faults.direct_late_permille):
            parts.schedule.after(chance.microseconds(faults.direct_ms), arrive)
            if not chance.happens(faults.direct_twice_permille):
                return
        late_ms = chance.long_within(faults.direct_late_ms)
        parts.schedule.after(late_ms * MICROSECONDS_PER_MS, arrive)
