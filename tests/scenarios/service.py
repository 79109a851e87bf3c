"""The service beside a broker of a story: it does at once, and well, what it is asked to do, unless it is in another mood.

May live here: the stand-in for `brokers.runtime.service.Service`, and its moods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from equipoise.brokers.agent.effects import Abandon, Close, Discard, FindCuts, Open, Prepare, Reshaped
from equipoise.brokers.agent.events import Closed, CutsFound, Discarded, Event, Opened, Prepared
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.balancing.splitting.split_points import SplitQuestion, split_points
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.errors import CallerError

Operation = Prepare | Open | Close | Discard | FindCuts
ServiceEffect = Operation | Abandon | Reshaped

_REFUSAL = "no room here"

_ANSWERS = (Prepared, Opened, Closed, Discarded)


class Service:
    """The service of one process. `moods` says how it takes each operation; what it does not do at once is in `waiting`.

    `under_way` is the operation that it is busy with, by bundle: it takes no second one before the agent has the answer to the
    first. To find cuts is a question, which it answers beside any operation. `given` are all handles that it ever had: also one
    that the agent has forgotten must not pass any more.
    """

    def __init__(self, name: str, *, say: Callable[[str], None], answer: Callable[[Event], None], die: Callable[[str], None]) -> None:
        self.moods: dict[str, str] = {}
        self.waiting: deque[Event] = deque()
        self.under_way: dict[str, Operation] = {}
        self.given: list[Handle] = []
        self._name = name
        self._say = say
        self._answer = answer
        self._die = die

    def carry_out(self, effect: ServiceEffect) -> None:
        """Do what the agent wants done."""
        match effect:
            case Prepare():
                self._say(f"{self._name} prepares {effect.bundle.name}{_from(effect.source)}")
                self._do("prepare", effect)
            case Open():
                self.given.append(effect.handle)
                left = "" if effect.handover is None else f" with {effect.handover.decode()!r}"
                self._say(f"{self._name} opens {effect.handle.bundle} under token {effect.handle.token}{left}{_from(effect.source)}")
                self._do("open", effect)
            case Close():
                to = "" if effect.moved_to is None else f" and sends its clients to {effect.moved_to.broker}"
                self._say(f"{self._name} closes {effect.handle.bundle}{to}")
                self._do("close", effect)
            case FindCuts():
                self._do("cut", effect)
            case Discard():
                self._say(f"{self._name} throws away what it prepared for {effect.bundle}")
                self._do("discard", effect)
            case Abandon():
                self._say(f"{self._name} is not done with {effect.doing} {effect.bundle} in time, and abandons it")
                self.waiting = deque(event for event in self.waiting if getattr(event, "bundle", None) != effect.bundle)
                self.under_way.pop(effect.bundle, None)
            case Reshaped():
                self.given.extend(effect.children)
                self._say(
                    f"{self._name} goes on with {' and '.join(f'{child.bundle} under token {child.token}' for child in effect.children)}"
                )

    def go_on(self) -> None:
        """What it took its time for is done."""
        waiting, self.waiting = self.waiting, deque()
        for event in waiting:
            self._answer(event)

    def answered(self, event: Event) -> None:
        """The agent takes an answer: the operation has ended."""
        if isinstance(event, _ANSWERS):
            self.under_way.pop(event.bundle, None)

    def _do(self, operation: str, effect: Operation) -> None:
        if not isinstance(effect, FindCuts):
            bundle = _bundle(effect)
            busy = self.under_way.setdefault(bundle, effect)
            assert busy is effect, f"{self._name} is to {operation} {bundle}, and is not done with {busy}"
        mood = self.moods.get(operation, "is well")
        if mood == "dies":
            self._die(f"dies as its service is to {operation} a bundle")
        elif mood == "waits":
            self.waiting.append(_done(effect, None))
        elif mood != "hangs":
            self._answer(_done(effect, _REFUSAL if mood == "refuses" else None))


def _bundle(effect: Prepare | Open | Close | Discard) -> str:
    match effect:
        case Prepare():
            return effect.bundle.name
        case Open() | Close():
            return effect.handle.bundle
        case Discard():
            return effect.bundle


def _done(effect: Operation, problem: str | None) -> Event:
    match effect:
        case Discard():
            return Discarded(bundle=effect.bundle)
        case Prepare():
            return Prepared(bundle=effect.bundle.name, problem=problem)
        case Open():
            return Opened(bundle=effect.handle.bundle, problem=problem)
        case Close():
            state = f"state of token {effect.handle.token}".encode()
            return Closed(bundle=effect.handle.bundle, handover=None if problem else state)
        case FindCuts():
            return _cuts_found(effect, problem)


def _cuts_found(effect: FindCuts, problem: str | None) -> Event:
    bundle = effect.bundle
    if problem is not None:
        return CutsFound(bundle=bundle.name, asked_at=bundle.last, problem=problem)
    try:
        question = SplitQuestion(low=bundle.low, high=bundle.high, positions=bundle.positions, force=True)
        cuts = split_points(bundle.algorithm or "", question)
    except CallerError as error:
        return CutsFound(bundle=bundle.name, asked_at=bundle.last, problem=str(error))
    return CutsFound(bundle=bundle.name, asked_at=bundle.last, cuts=cuts)


def _from(source: BrokerEntry | None) -> str:
    return "" if source is None else f", from {source.broker}"
