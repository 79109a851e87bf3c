"""Stand in for a broker's service: answer what the agent requests, and serve nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.agent.effects import (
    Abandon,
    Close,
    Discard,
    FindCuts,
    Open,
    Prepare,
    Reshaped,
)
from equipoise.brokers.agent.events import Closed, CutsFound, Discarded, Event, Opened, Prepared
from equipoise.brokers.balancing.splitting.split_points import SplitQuestion, split_points
from equipoise.brokers.testing.agent_host import ServiceEffect
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import CallerError

Operation = Prepare | Open | Close | Discard
Work = Operation | FindCuts

# What a service does to a bundle.
VERBS: Final = {
    Prepare: "prepare",
    Open: "open",
    Close: "close",
    Discard: "discard",
    FindCuts: "cut",
}

_ANSWERS: Final = (Prepared, Opened, Closed, Discarded)


@dataclass(slots=True, kw_only=True, eq=False)
class Running:
    """An operation on one bundle, and its answer once it has ended."""

    operation: Operation
    answer: Event | None = None

    @property
    def verb(self) -> str:
        """What the operation does to its bundle."""
        return VERBS[type(self.operation)]


class StandInService(ABC):
    """The service of one run of a broker. A subclass decides in `perform` when and how each piece
    of work ends.

    * `under_way`: the current operations of each bundle, until the agent has the answer or abandons
      them.
    * `left`: the state that the service left on closing, by bundle and token, until it opens the
      bundle again.
    """

    def __init__(self, *, answer: Callable[[Event], None]) -> None:
        """`answer` delivers an event to the agent."""
        self.under_way: dict[str, list[Running]] = {}
        self.left: dict[tuple[str, int], bytes] = {}
        self.answer = answer

    @abstractmethod
    def perform(self, work: Work, result: Callable[[str | None], Event]) -> None:
        """Do a piece of work, then or later: `answer` with `result(problem)`, where None is
        success.
        """

    def abandoned(self, effect: Abandon) -> None:  # noqa: B027 - a hook
        """Look at an operation that the agent has abandoned."""

    def carry_out(self, effect: ServiceEffect) -> None:
        """Start what the agent requests, even while another operation of the bundle runs: a checker
        finds that.
        """
        match effect:
            case Prepare() | Open() | Close() | Discard():
                running = Running(operation=effect)
                self.under_way.setdefault(bundle_of(effect), []).append(running)
                self.perform(effect, lambda problem: _end(running, problem))
            case FindCuts(bundle=bundle):
                self.perform(effect, lambda problem: _cuts_found(bundle, problem))
            case Abandon(bundle=name):
                self.under_way.pop(name, None)
                self.abandoned(effect)
            case Reshaped():
                pass  # It finds the children in the handles.

    def ends(self, event: Event) -> bool:
        """Return whether an event may reach the agent, and end its operation. The answer of an
        abandoned operation may not.
        """
        if not isinstance(event, _ANSWERS):
            return True
        under_way = self.under_way.get(event.bundle, [])
        ended = next((running for running in under_way if running.answer is event), None)
        if ended is None:
            return False
        under_way.remove(ended)
        if isinstance(ended.operation, Open | Close):
            # The state that it left is the newest until the bundle is open again.
            ownership = event.bundle, ended.operation.handle.token
            if isinstance(event, Closed) and event.handover is not None:
                self.left[ownership] = event.handover
            else:
                self.left.pop(ownership, None)
        return True


def bundle_of(work: Work) -> str:
    """Return the name of the bundle of a piece of work."""
    match work:
        case Prepare(bundle=bundle) | FindCuts(bundle=bundle):
            return bundle.name
        case Open(handle=handle) | Close(handle=handle):
            return handle.bundle
        case Discard(bundle=name):
            return name


def _end(running: Running, problem: str | None) -> Event:
    running.answer = _answer(running.operation, problem)
    return running.answer


def _answer(operation: Operation, problem: str | None) -> Event:
    match operation:
        case Prepare():
            return Prepared(bundle=operation.bundle.name, problem=problem)
        case Open():
            return Opened(bundle=operation.handle.bundle, problem=problem)
        case Close():
            handle = operation.handle
            # A failed close leaves none.
            handover = (
                None if problem else f"state of {handle.bundle} under {handle.token}".encode()
            )
            return Closed(bundle=handle.bundle, handover=handover)
        case Discard():
            return Discarded(bundle=operation.bundle)


def _cuts_found(bundle: BundleEntry, problem: str | None) -> CutsFound:
    if problem is not None:
        return CutsFound(bundle=bundle.name, asked_at=bundle.last, problem=problem)
    try:
        question = SplitQuestion(
            low=bundle.low, high=bundle.high, positions=bundle.positions, force=True
        )
        return CutsFound(
            bundle=bundle.name,
            asked_at=bundle.last,
            cuts=split_points(bundle.algorithm or "", question),
        )
    except CallerError as error:
        return CutsFound(bundle=bundle.name, asked_at=bundle.last, problem=str(error))
