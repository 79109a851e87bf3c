"""A machine of a story: its clocks, its data directory, its way to the log, and the broker's process that runs on it.

May live here: what `brokers.runtime.worker` does for a real agent, one step at a time. Everything that happens is told to the stage in
words; nothing here decides anything for the agent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.effects import Alarm, Answered, Append, Effect, ForgetNonces, Refold, Stop, WriteNonce
from equipoise.brokers.agent.events import AppendFailed, Event, Instant, NonceWritten
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.reader import Folded
from tests.scenarios.service import Service

# How far the wall clocks of all machines stand from the beginning of a story.
_WALL_MS = 1_700_000_000_000


@dataclass(slots=True, kw_only=True)
class Link:
    """The way of one author's records to the log. While it is held they stay in flight, with the numbers of their attempts."""

    is_held: bool = False
    in_flight: deque[tuple[int | None, bytes]] = field(default_factory=deque)


@dataclass(slots=True, kw_only=True)
class Directory:
    """A data directory: nonces, and perhaps a snapshot with the number of entries that are folded into it."""

    nonces: dict[str, None] = field(default_factory=dict)
    snapshot: tuple[int, bytes] | None = None


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


class Process:
    """One run of a broker's program. `read` is how many entries it has folded, `inbox` what waits to be told to its agent."""

    def __init__(self, host: Host, agent: Agent, *, read: int, say: Callable[[str], None], append: Callable[[int, bytes], None]) -> None:
        self.host = host
        self.agent = agent
        self.read = read
        self.inbox: deque[Event] = deque()
        self.service = Service(host.name, say=say, answer=self.inbox.append, die=self.end)
        self.is_paused = False
        self.is_corrupt = False
        self.refold: Refold | None = None
        self._say = say
        self._append = append

    @property
    def runs(self) -> bool:
        """Whether this process has not ended."""
        return self.host.process is self

    def step(self, event: Event) -> None:
        """Let the agent take one event, and carry out what it wants."""
        self.service.answered(event)
        for effect in self.agent.step(event, self.host.now()):
            if self.runs:
                self._carry_out(effect)

    def end(self, why: str) -> None:
        """The process is gone, with all that its service did."""
        self._say(f"{self.host.name} {why}")
        self.host.process = None

    def append_failed(self, attempt: int, error: EquipoiseError, *, in_doubt: bool) -> None:
        """The log did not take a record; or, in doubt, it is not known whether it did."""
        self.inbox.append(AppendFailed(attempt=attempt, error=error, in_doubt=in_doubt))

    def _carry_out(self, effect: Effect) -> None:
        name = self.host.name
        match effect:
            case Folded():
                pass  # The stage has told of it when it came to the log.
            case Resync():
                self._say(f"{name} resyncs from {effect.before} to {effect.offset}; keys that changed: {len(effect.changes)}")
            case Append():
                self._append(effect.attempt, effect.data)
            case WriteNonce():
                self.host.directory.nonces[effect.nonce] = None
                self.inbox.append(NonceWritten(nonce=effect.nonce))
            case ForgetNonces():
                self.host.directory.nonces = {effect.keep: None}
            case Answered():
                self._say_answer(effect)
            case Alarm():
                self._say(f"{name} raises {effect.name}: {effect.message}")
            case Refold():
                self.refold = effect
            case Stop():
                self.end(f"stops: {effect.error or 'it has left'}")
            case _:
                self.service.carry_out(effect)

    def _say_answer(self, answered: Answered) -> None:
        if answered.error is not None:
            self._say(f"{self.host.name} answers: {answered.error}")
        elif answered.verdict is not None and not answered.verdict.accepted:
            problem = f", {answered.verdict.problem}" if answered.verdict.problem else ""
            self._say(f"{self.host.name} answers: {answered.verdict.reason}{problem}")
