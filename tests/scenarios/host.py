"""A machine of a story, and the process of a broker that runs on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from equipoise.brokers.agent.effects import (
    Abandon,
    Alarm,
    Answered,
    Close,
    Discard,
    Effect,
    Open,
    Prepare,
    Refold,
    Reshaped,
)
from equipoise.brokers.agent.events import Event, Instant
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.testing.agent_host import AgentHost, Directory, Failed
from equipoise.brokers.testing.shared_log import SharedLog
from equipoise.brokers.testing.stand_in_service import VERBS, StandInService, Work, bundle_of
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.view import View

# The difference between the wall clocks of all machines and the beginning of a story.
_WALL_MS = 1_700_000_000_000


@dataclass(slots=True, kw_only=True)
class Link:
    """The way of one author's records to the log. While it is held they stay in flight, each with who hears of its failure."""

    is_held: bool = False
    in_flight: deque[tuple[Failed | None, bytes]] = field(default_factory=deque)


@dataclass(slots=True, kw_only=True, eq=False)
class Host:
    """One machine. Its boot clock started `booted_ms` before the story, its wall clock is `skew_ms` ahead of the others."""

    name: str
    broker: str
    booted_ms: int
    true_time_ms: Callable[[], int]
    skew_ms: int = 0
    directory: Directory = field(default_factory=Directory)
    link: Link = field(default_factory=Link)
    is_deaf: bool = False
    process: Process | None = None
    nonces_made: int = 0

    def now(self) -> Instant:
        """What the clocks of this machine show."""
        true_ms = self.true_time_ms()
        return Instant(true_ms + self.booted_ms, true_ms + _WALL_MS + self.skew_ms)

    def make_nonce(self) -> str:
        """A text that no process has used before."""
        self.nonces_made += 1
        return f"{self.name}-{self.nonces_made}"


class Surroundings(Protocol):
    """What a process needs of its stage."""

    log: SharedLog
    timing: Timing

    def say(self, line: str) -> None:
        """Add a line to the story."""
        ...

    def send(self, link: Link, data: bytes, failed: Failed) -> None:
        """Send a record to the log."""
        ...

    def check_step(self, process: Process, _event: Event) -> None:
        """Check what must hold after a step."""
        ...


class Process(AgentHost):
    """One run of a broker's program. `given` are all handles that its service ever had, also those that the agent has forgotten."""

    service: Service

    def __init__(self, host: Host, stage: Surroundings, *, read: int, view: View | None) -> None:
        super().__init__(
            broker=host.broker,
            address=f"http://{host.name}",
            directory=host.directory,
            log=stage.log,
            make_nonce=host.make_nonce,
            timing=stage.timing,
            read=read,
            view=view,
        )
        self.host = host
        self.service = Service(answer=self.deliver, die=self.end)
        self.given: list[Handle] = []
        self.paused = False
        self.is_corrupt = False
        self._stage = stage

    @property
    def is_paused(self) -> bool:
        """See `AgentHost`."""
        return self.paused

    def now(self) -> Instant:
        """See `AgentHost`."""
        return self.host.now()

    def append(self, data: bytes, failed: Failed) -> None:
        """See `AgentHost`."""
        self._stage.send(self.host.link, data, failed)

    def accepts(self, event: Event) -> bool:
        """See `AgentHost`. A test may also give the agent an answer that nobody waits for."""
        self.service.ends(event)
        return True

    def observe(self, effect: Effect) -> None:
        """Tell what the agent wants."""
        if isinstance(effect, Open):
            self.given.append(effect.handle)
        elif isinstance(effect, Reshaped):
            self.given.extend(effect.children)
        line = _line(effect)
        if line is not None:
            self._say(line)

    def stepped(self, event: Event, _effects: Sequence[Effect], _now: Instant) -> None:
        """See `AgentHost`."""
        self._stage.check_step(self, event)

    def replayed(self, check: Refold, *, agrees: bool) -> None:
        """See `AgentHost`."""
        result = "its own view is right, and it serves on" if agrees else "its own view is wrong"
        self._say(f"folds the log again, since {check.other} says another digest at {check.offset}: {result}")

    def ended(self, why: str, *, killed: bool) -> None:
        """See `AgentHost`."""
        self._say(why)
        self.host.process = None

    def _say(self, what: str) -> None:
        self._stage.say(f"{self.host.name} {what}")


class Service(StandInService):
    """The service of one process. It does at once and well what it is asked to do, unless `moods` says otherwise for an operation.

    What it takes its time for is in `waiting`, by bundle.
    """

    def __init__(self, *, answer: Callable[[Event], None], die: Callable[[str], None]) -> None:
        super().__init__(answer=answer)
        self.moods: dict[str, str] = {}
        self.waiting: list[tuple[str, Callable[[], None]]] = []
        self._die = die

    def perform(self, work: Work, result: Callable[[str | None], Event]) -> None:
        """Do the work as the mood is."""
        verb = VERBS[type(work)]
        mood = self.moods.get(verb)
        if mood == "dies":
            self._die(f"dies as its service is to {verb} a bundle")
        elif mood == "waits":
            self.waiting.append((bundle_of(work), lambda: self.answer(result(None))))
        elif mood != "hangs":
            self.answer(result("no room here" if mood == "refuses" else None))

    def abandoned(self, effect: Abandon) -> None:
        """Stop the work."""
        self.waiting = [(bundle, done) for bundle, done in self.waiting if bundle != effect.bundle]

    def go_on(self) -> None:
        """End what it took its time for."""
        waiting, self.waiting = self.waiting, []
        for _, done in waiting:
            done()


def _line(effect: Effect) -> str | None:
    """What a story tells of an effect; None if nothing."""
    match effect:
        case Prepare():
            return f"prepares {effect.bundle.name}{_from(effect.source)}"
        case Open(handle=handle):
            left = "" if effect.handover is None else f" with {effect.handover.decode()!r}"
            return f"opens {handle.bundle} under token {handle.token}{left}{_from(effect.source)}"
        case Close():
            to = "" if effect.moved_to is None else f" and sends its clients to {effect.moved_to.broker}"
            return f"closes {effect.handle.bundle}{to}"
        case Discard():
            return f"throws away what it prepared for {effect.bundle}"
        case Abandon():
            return f"is not done with {effect.doing} {effect.bundle} in time, and abandons it"
        case Reshaped():
            return f"goes on with {' and '.join(f'{child.bundle} under token {child.token}' for child in effect.children)}"
        case Resync():
            return f"resyncs from {effect.before} to {effect.offset}; keys that changed: {len(effect.changes)}"
        case Alarm():
            return f"raises {effect.name}: {effect.message}"
        case Answered(error=error, verdict=verdict):
            if error is not None:
                return f"answers: {error}"
            if verdict is None or verdict.accepted:
                return None
            return f"answers: {verdict.reason}{f', {verdict.problem}' if verdict.problem else ''}"
        case _:
            return None


def _from(source: BrokerEntry | None) -> str:
    return "" if source is None else f", from {source.broker}"
