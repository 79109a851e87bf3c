"""The service of a broker, reduced to what a broker sees of it: it answers after a while, refuses, hangs, or dies.

May live here: the stand-in for `brokers.service.Service`, and its faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from brokers.agent.effects import Abandon, Close, Discard, FindCuts, Open, Prepare
from brokers.agent.events import Closed, CutsFound, Event, Opened, Prepared
from brokers.agent.handle import Handle
from brokers.simulation.clock import MICROSECONDS_PER_MS
from brokers.simulation.stage import Stage
from brokers.split_points import SplitQuestion, split_points
from channel.entries import BundleEntry
from channel.errors import CallerError

# A hanging service answers after this long, or never: before its deadline, about then, and long after.
_HANG_MS: Final = (500, 6_000)

# So often the code of a service that is told to abandon what it does cannot be stopped.
_UNSTOPPABLE_PERMILLE: Final = 100


ServiceEffect = Prepare | Open | Close | FindCuts | Abandon | Discard


class SimulatedService:
    """The service of one process; it dies with it. `answer` takes its events, `die` ends the process.

    `left` is what it has left behind on closing, by bundle and token.
    """

    def __init__(self, stage: Stage, *, broker: str, answer: Callable[[Event], None], die: Callable[[str], None]) -> None:
        self._stage = stage
        self._broker = broker
        self.left: dict[tuple[str, int], bytes] = {}
        self._answer = answer
        self._die = die

    def takes(self, namespace: str) -> bool:
        """Whether it takes the bundles of a namespace, if nothing goes wrong."""
        return self._stage.scenario.takes(self._broker, namespace)

    def carry_out(self, effect: ServiceEffect) -> None:
        """Begin what the agent wants of the service."""
        match effect:
            case Prepare(bundle=bundle):
                unwilling = None if self.takes(bundle.namespace) else "there is no service for it here"
                self._do("prepares", bundle.name, lambda problem: Prepared(bundle=bundle.name, problem=problem or unwilling))
            case Open(handle=handle):
                self._do("opens", handle.bundle, lambda problem: Opened(bundle=handle.bundle, problem=problem))
            case Close(handle=handle):
                self._close(handle)
            case FindCuts(bundle=bundle):
                self._find_cuts(bundle)
            case Abandon(bundle=name, doing=doing):
                # Most code can be stopped. Where it cannot, the process ends.
                if self._stage.chance.happens(_UNSTOPPABLE_PERMILLE):
                    self._die(f"its service cannot be stopped {doing} {name}")
            case Discard():
                pass  # What was warm grows cold by itself.

    def _close(self, handle: Handle) -> None:
        """Close a bundle; an error in closing leaves no handover."""
        handover = f"state of {handle.bundle} under {handle.token}".encode()
        self.left[handle.bundle, handle.token] = handover
        self._do("closes", handle.bundle, lambda problem: Closed(bundle=handle.bundle, handover=None if problem else handover))

    def _find_cuts(self, bundle: BundleEntry) -> None:
        try:
            question = SplitQuestion(low=bundle.low, high=bundle.high, positions=bundle.positions, force=True)
            cuts = split_points(bundle.algorithm or "", question)
            found = CutsFound(bundle=bundle.name, asked_at=bundle.last, cuts=cuts)
        except CallerError as error:
            found = CutsFound(bundle=bundle.name, asked_at=bundle.last, problem=str(error))
        self._do("cuts", bundle.name, lambda refusal: replace(found, problem=refusal or found.problem))

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
