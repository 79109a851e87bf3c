"""Run one broker's agent under the control of a test: take events, carry out effects, read a log in
memory.

The simulation, the scenarios and the virtual cluster derive their brokers from `AgentHost`. It
replaces `brokers.runtime.worker`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.core import Profile
from equipoise.brokers.agent.effects import (
    Abandon,
    Alarm,
    Answered,
    Append,
    AskAssurance,
    AssuranceAnswered,
    Close,
    Discard,
    Effect,
    FindCuts,
    ForgetInstanceIds,
    Open,
    Prepare,
    Refold,
    Reshaped,
    Stop,
    WriteInstanceId,
    WriteMark,
)
from equipoise.brokers.agent.events import (
    AppendFailed,
    AssuranceAsked,
    Event,
    InstanceIdWritten,
    Instant,
    MarkWritten,
    Read,
    Requested,
    Resynced,
)
from equipoise.brokers.agent.leading import Batches
from equipoise.brokers.agent.requests import Intent
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.balancing.placement import Placement
from equipoise.channel.core import snapshot
from equipoise.channel.core.errors import LogStorageFull, LogUnavailable
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import Renewed
from equipoise.channel.core.table import Resync
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import Names, describe


class SharedLog:
    """The log of a simulated cluster in memory: one total order without a fault, and a reference
    reader that folds each record at once. `entries` are all its records in order.
    """

    def __init__(self, *, name: str, cluster: str, folded: Callable[[Folded, View], None]) -> None:
        """`folded` takes each record that the reference reader has folded."""
        self.name = name
        self.cluster = cluster
        self.entries: list[Entry] = []
        self.reference = self.reader()
        self._folded = folded
        self._next = FIRST_OFFSET

    def reader(self, view: View | None = None) -> Reader:
        """Return a new reader that starts from `view` (None: from the beginning)."""
        return Reader(log=self.name, cluster=self.cluster, view=view)

    @property
    def view(self) -> View:
        """The view of the reference reader, which has read everything."""
        return self.reference.view

    def story(self) -> list[str]:
        """Return the records as text, without renewals: the lines of `equipoise channel tail`."""
        reader = self.reader()
        names, lines = Names(reader.view), list[str]()
        for entry in self.entries:
            folded = reader.feed(entry)
            names.learn(folded)
            if not (isinstance(folded.record, Renewed) and folded.verdict.accepted):
                first, *more = describe(folded, reader.view, names)
                lines += [f"{folded.offset:>6}  {first}", *(f"{'':8}{line}" for line in more)]
        return lines

    def append(self, data: bytes) -> None:
        """Append a record."""
        entry = Entry(self._next, data)
        self._next += 1
        self.entries.append(entry)
        self._folded(self.reference.feed(entry), self.view)


# Entries in one `Read`. A long replay takes several reads, with other events between them.
_READ_ENTRIES_MAX: Final = 500

# Why the log refused a record, or why the result is unknown.
Failure = LogStorageFull | LogUnavailable
Failed = Callable[[Failure], None]

ServiceEffect = Prepare | Open | Close | Discard | Abandon | FindCuts | Reshaped


@dataclass(slots=True, kw_only=True)
class Directory:
    """A data directory: instance ids, how far the log was read, and perhaps a snapshot of its first
    entries, with their number.
    """

    instance_ids: dict[str, None] = field(default_factory=dict)
    mark: int = -1
    snapshot: tuple[int, bytes] | None = None


class HostedService(Protocol):
    """The service beside the agent. It answers each effect with an event, then or later."""

    def carry_out(self, effect: ServiceEffect) -> None:
        """Start what the agent requests."""
        ...


class AgentHost(ABC):
    """One run of a broker's program, from start to end. A subclass sets `service` before the first
    event.

    Events are taken in order and one at a time, also those that arrive during a step. While the
    host is paused they wait.

    * `read`: how many entries of the log it has folded or skipped by a resync.
    * `end_at_start`: how many entries there were when it first reached the log, or reached it again
      after a resync.
    * `asked`: the tickets of unanswered requests.
    """

    service: HostedService

    def __init__(
        self,
        *,
        broker: str,
        address: str,
        directory: Directory,
        log: SharedLog,
        make_instance_id: Callable[[], str],
        timing: Timing,
        batches: Batches | None = None,
        placement: Placement | None = None,
        namespaces: tuple[str, ...] | None = None,
        read: int = 0,
        view: View | None = None,
    ) -> None:
        """Start from `view`, the fold of the first `read` entries of the log (None: empty).
        `namespaces`: patterns of those that the program serves (None: all).
        """
        self.directory = directory
        self.log = log
        self.read = read
        self.end_at_start: int | None = None
        self.alive = True
        self.asked: set[int] = set()
        self._tickets = 0
        self._questions: dict[int, Callable[[bool], None]] = {}
        self._events: deque[Event] = deque()
        self._stepping = False
        self.agent = Agent(
            broker=broker,
            cluster=log.cluster,
            reader=log.reader(view),
            timing=timing,
            profile=Profile(addresses={"http": address}, namespaces=namespaces),
            make_instance_id=make_instance_id,
            predecessor_instance_ids=frozenset(directory.instance_ids),
            placement=placement,
            batches=batches,
        )

    # --- what differs between the tests ---

    @abstractmethod
    def now(self) -> Instant:
        """Return what the clocks of this broker's machine show."""

    @abstractmethod
    def append(self, data: bytes, failed: Failed) -> None:
        """Send a record to the log. Call `failed` if the broker learns of a failure, certain or in
        doubt.
        """

    def ask(self, question: AskAssurance) -> None:  # noqa: B027 - a hook
        """Send a question to another broker, whose host gets it by `question`. Deliver `Assured` if
        the answer is an assurance.
        """

    def after_sync(self, action: Callable[[], None]) -> None:
        """Call `action` when the next write to the data directory is done."""
        action()

    @property
    def is_paused(self) -> bool:
        """Whether events wait."""
        return False

    def accepts(self, event: Event) -> bool:  # noqa: ARG002 - a hook
        """Return whether an event may reach the agent."""
        return True

    def observe(self, effect: Effect) -> None:  # noqa: B027 - a hook
        """Look at an effect before it is carried out."""

    # A hook.
    def stepped(self, event: Event, effects: Sequence[Effect], now: Instant) -> None:  # noqa: B027
        """Look at a step after its effects were carried out. `now` is the reading of the clocks.
        Not called if the step ended this run.
        """

    def replayed(self, check: Refold, *, agrees: bool) -> None:  # noqa: B027 - a hook
        """Look at the result of a replay check. Without agreement this run ends next."""

    def ended(self, why: str, *, killed: bool) -> None:  # noqa: B027 - a hook
        """Release what belongs to this run. `killed`: the test ended it, not the broker itself."""

    # --- events and effects ---

    def deliver(self, event: Event) -> None:
        """Give the agent an event, after those that wait. Drop it if this run has ended."""
        if self.alive:
            self._events.append(event)
            self.take_events()

    def take_events(self) -> None:
        """Take the events that wait."""
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events and self.alive and not self.is_paused:
                event = self._events.popleft()
                if self.accepts(event):
                    self._step(event)
        finally:
            self._stepping = False

    def submit(self, intent: Intent, *, requested_by: str | None = None) -> int:
        """Request an operation. Return the ticket of its `Answered`."""
        self._tickets += 1
        self.asked.add(self._tickets)
        ticket = self._tickets
        self.deliver(Requested(ticket=ticket, intent=intent, requested_by=requested_by))
        return ticket

    def question(
        self, *, cluster: str, asker: int, asked: int, answer: Callable[[bool], None]
    ) -> None:
        """Take a question for an assurance. Give the result to `answer`."""
        self._tickets += 1
        self._questions[self._tickets] = answer
        self.deliver(
            AssuranceAsked(ticket=self._tickets, cluster=cluster, asker=asker, asked=asked)
        )

    def end(self, why: str, *, killed: bool = False) -> None:
        """End this run. Nothing of it goes on, except for records on their way to the log."""
        if self.alive:
            self.alive = False
            self.ended(why, killed=killed)

    def _step(self, event: Event) -> None:
        now = self.now()
        effects = self.agent.step(event, now)
        for effect in effects:
            # The log's reference reader reports what is folded, once for all brokers.
            if type(effect) is not Folded and self.alive:
                self.observe(effect)
                self._carry_out(effect)
        if self.alive:
            self.stepped(event, effects, now)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Append():
                self.append(effect.data, partial(self._append_failed, effect.attempt))
            case WriteInstanceId():
                self.after_sync(partial(self._instance_id_written, effect.instance_id))
            case ForgetInstanceIds():
                self.directory.instance_ids = {effect.keep: None}
            case WriteMark():
                self.after_sync(partial(self._mark_written, effect.offset))
            case Prepare() | Open() | Close() | Discard() | Abandon() | FindCuts() | Reshaped():
                self.service.carry_out(effect)
            case Answered():
                self.asked.discard(effect.ticket)
            case AskAssurance():
                self.ask(effect)
            case AssuranceAnswered():
                self._questions.pop(effect.ticket)(effect.assured)
            case Refold():
                self._replay(effect)
            case Stop():
                self.end(f"stops: {effect.error or 'it has left'}")
            case Alarm() | Folded() | Resync():
                pass

    def _append_failed(self, attempt: int, error: Failure) -> None:
        in_doubt = isinstance(error, LogUnavailable) and error.in_doubt
        self.deliver(AppendFailed(attempt=attempt, error=error, in_doubt=in_doubt))

    def _instance_id_written(self, instance_id: str) -> None:
        if self.alive:
            self.directory.instance_ids[instance_id] = None
            self.after_sync(partial(self.deliver, InstanceIdWritten(instance_id=instance_id)))

    def _mark_written(self, offset: int) -> None:
        if self.alive:
            self.directory.mark = max(self.directory.mark, offset)
            self.deliver(MarkWritten(offset=offset))

    def _replay(self, check: Refold) -> None:
        """Fold the log from zero, and end this run if the live view differs."""
        view, reader = self.agent.view, self.log.reader()
        for entry in self.log.entries[: self.read]:
            reader.feed(entry)
        agrees = reader.view.offset == view.offset and reader.view.digest() == view.digest()
        self.replayed(check, agrees=agrees)
        if not agrees:
            self.end("stops: its view is not what the log says")

    # --- the log and the data directory ---

    @property
    def lags(self) -> bool:
        """Whether there is something to read: new entries, or the news that there are none."""
        return self.end_at_start is None or self.read < len(self.log.entries)

    def read_on(self) -> None:
        """Read the next entries."""
        if self.end_at_start is None:
            self.end_at_start = len(self.log.entries)
        entries = self.log.entries[self.read : self.read + _READ_ENTRIES_MAX]
        self.read += len(entries)
        self.deliver(Read(entries=entries, caught_up=self.read >= self.end_at_start))

    def resync(self, read: int, view: View | None) -> None:
        """Continue from `view`, the fold of the first `read` entries. The rest of the log comes in
        another `Read`.
        """
        self.read = read
        # There must be another `Read`, even if nothing follows the snapshot.
        self.end_at_start = None
        self.deliver(Resynced(reader=self.log.reader(view)))

    def save_snapshot(self) -> None:
        """Save the view in the data directory."""
        self.directory.snapshot = (self.read, snapshot.to_bytes(self.agent.view))
