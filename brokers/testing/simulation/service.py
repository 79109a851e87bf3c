"""Simulate a broker's service: it answers after a while, refuses, hangs, or dies.

It replaces `brokers.runtime.service.Service`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from equipoise.brokers.agent.effects import Abandon, Close, Discard, FindCuts, Open, Prepare
from equipoise.brokers.agent.events import Closed, CutsFound, Discarded, Event, Opened, Prepared
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.balancing.splitting.split_points import SplitQuestion, split_points
from equipoise.brokers.testing.simulation.clock import MICROSECONDS_PER_MS
from equipoise.brokers.testing.simulation.stage import Stage
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import CallerError

# A hanging service answers before its deadline, at about that time, or long after it.
_HANG_MS: Final = (500, 6_000)

# How often abandoned code of a service cannot be stopped.
_UNSTOPPABLE_PERMILLE: Final = 100

ServiceEffect = Prepare | Open | Close | FindCuts | Abandon | Discard

_ANSWERS: Final = (Prepared, Opened, Closed, Discarded)


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """An operation on one bundle, its token, and its answer once it has ended."""

    doing: str
    token: int | None
    answer: Event | None = None


class SimulatedService:
    """The service of one process. `answer` receives its events; `die` ends the process.

    * `under_way`: the current operations of each bundle, until the agent has the answer or abandons them.
    * `left`: the state that the service left on closing, by bundle and token, until it opens the bundle again.
    """

    def __init__(self, stage: Stage, *, broker: str, answer: Callable[[Event], None], die: Callable[[str], None]) -> None:
        self._stage = stage
        self._broker = broker
        self.under_way: dict[str, list[Operation]] = {}
        self.left: dict[tuple[str, int], bytes] = {}
        self._answer = answer
        self._die = die

    def takes(self, namespace: str) -> bool:
        """Return whether it accepts the bundles of a namespace, if nothing goes wrong."""
        return self._stage.scenario.takes(self._broker, namespace)

    def carry_out(self, effect: ServiceEffect) -> None:
        """Start what the agent requests."""
        match effect:
            case Prepare(bundle=bundle):
                unwilling = None if self.takes(bundle.namespace) else "there is no service for it here"
                self._operate("prepares", bundle.name, lambda problem: Prepared(bundle=bundle.name, problem=problem or unwilling))
            case Open(handle=handle):
                self._operate("opens", handle.bundle, lambda problem: Opened(bundle=handle.bundle, problem=problem), handle.token)
            case Close(handle=handle):
                self._close(handle)
            case Discard(bundle=name):
                self._operate("discards", name, lambda _problem: Discarded(bundle=name))
            case FindCuts(bundle=bundle):
                self._find_cuts(bundle)
            case Abandon(bundle=name, doing=doing):
                # Most code can be stopped. Where it cannot, the process ends.
                self.under_way.pop(name, None)
                if self._stage.chance.happens(_UNSTOPPABLE_PERMILLE):
                    self._die(f"its service cannot be stopped {doing} {name}")

    def answers(self, event: Event) -> bool:
        """Return whether an event may reach the agent, and end its operation. The answer of an abandoned operation may not."""
        if not isinstance(event, _ANSWERS):
            return True
        operations = self.under_way.get(event.bundle, [])
        ended = next((operation for operation in operations if operation.answer is event), None)
        if ended is None:
            return False
        operations.remove(ended)
        if ended.token is not None:
            # The state that it left is the newest until the bundle is open again.
            if isinstance(event, Closed) and event.handover is not None:
                self.left[event.bundle, ended.token] = event.handover
            else:
                self.left.pop((event.bundle, ended.token), None)
        return True

    def _close(self, handle: Handle) -> None:
        """Close a bundle. A failed close leaves no handover."""
        handover = f"state of {handle.bundle} under {handle.token}".encode()
        closed = lambda problem: Closed(bundle=handle.bundle, handover=None if problem else handover)  # noqa: E731
        self._operate("closes", handle.bundle, closed, handle.token)

    def _find_cuts(self, bundle: BundleEntry) -> None:
        try:
            question = SplitQuestion(low=bundle.low, high=bundle.high, positions=bundle.positions, force=True)
            cuts = split_points(bundle.algorithm or "", question)
            found = CutsFound(bundle=bundle.name, asked_at=bundle.last, cuts=cuts)
        except CallerError as error:
            found = CutsFound(bundle=bundle.name, asked_at=bundle.last, problem=str(error))
        self._do("cuts", bundle.name, lambda refusal: replace(found, problem=refusal or found.problem))

    def _operate(self, doing: str, bundle: str, answer: Callable[[str | None], Event], token: int | None = None) -> None:
        """Start an operation, even while another of its bundle runs: a checker finds that."""
        operation = Operation(doing=doing, token=token)
        self.under_way.setdefault(bundle, []).append(operation)

        def ended(problem: str | None) -> Event:
            operation.answer = answer(problem)
            return operation.answer

        self._do(doing, bundle, ended)

    def _do(self, doing: str, bundle: str, answer: Callable[[str | None], Event]) -> None:
        chance, faults, schedule = self._stage.chance, self._stage.faults, self._stage.schedule
        if chance.happens(faults.dies_permille):
            schedule.after(chance.microseconds(faults.service_ms), lambda: self._die(f"its service dies as it {doing} {bundle}"))
            return
        took_us = chance.microseconds(faults.service_ms)
        if chance.happens(faults.hangs_permille):
            took_us = chance.within(_HANG_MS) * MICROSECONDS_PER_MS
        problem = "the service does not want it" if chance.happens(faults.refuses_permille) else None
        schedule.after(took_us, lambda: self._answer(answer(problem)))
