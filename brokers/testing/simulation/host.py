"""One broker's machine: its clock, its data directory, its way to the log, and the process that runs the agent.

May live here: what `brokers.runtime.worker` does for a real agent, in simulated time, and what can befall it. The agent is the
product's own; nothing here decides anything for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.core import Profile
from equipoise.brokers.agent.effects import (
    Abandon,
    Alarm,
    Answered,
    Append,
    Close,
    Discard,
    Effect,
    FindCuts,
    ForgetNonces,
    Open,
    Prepare,
    Refold,
    Reshaped,
    Stop,
    WriteNonce,
)
from equipoise.brokers.agent.events import AppendFailed, Event, Instant, NonceWritten, Read, Requested, Resynced, Tick
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.testing.simulation.clock import MICROSECONDS_PER_MS, Clock
from equipoise.brokers.testing.simulation.courier import Courier, Failure, Link
from equipoise.brokers.testing.simulation.faulty_log import FaultyLog
from equipoise.brokers.testing.simulation.service import SimulatedService
from equipoise.brokers.testing.simulation.stage import Stage
from equipoise.channel.core import snapshot
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.errors import EquipoiseError, LogUnavailable, OutcomeUnknown
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.view import View

CLUSTER: Final = "simulated"

# Entries in one `Read`: a replay comes in several, with other events between them.
_READ_ENTRIES_MAX: Final = 500

# A process that resumes finds its timers and its sockets ready at once, and takes them in any order.
_AFTER_RESUME_MS: Final = (0, 5)


class Process:
    """One run of a broker's program, from its start to its end.

    `read` is how many entries of the log it has folded or resynced over, `end_at_start` how many there were when it first reached
    the log, or reached it again after a resync.
    `held` are the handles that its service was given, and whether each was open when the checkers looked last. `asked` are
    the tickets of the requests that it has not answered yet, each with the incarnation and the number of the attempt that
    serves it, if there is one.
    """

    __slots__ = ("agent", "asked", "backlog", "end_at_start", "held", "host", "read", "service", "tick_at_us", "ticks")

    def __init__(self, host: Host, agent: Agent, *, read: int) -> None:
        self.host = host
        self.agent = agent
        self.read = read
        self.end_at_start: int | None = None
        self.backlog: list[Event] = []
        self.held: dict[Handle, bool] = {}
        self.tick_at_us: int | None = None
        self.ticks = 0
        self.asked: dict[int, tuple[int, int] | None] = {}
        self.service = SimulatedService(host.stage, broker=host.broker, answer=partial(host.deliver, self), die=partial(host.die, self))

    @property
    def alive(self) -> bool:
        """Whether this process still runs (or is paused)."""
        return self.host.process is self


class Watcher(Protocol):
    """Who is told of what processes do."""

    def stepped(self, process: Process, effects: list[Effect], now: Instant) -> None:
        """A process has taken a step at this reading of its clocks, and its effects are carried out."""
        ...

    def ended(self, process: Process) -> None:
        """A process has ended."""
        ...

    def disowned(self, incarnation: int, attempt: int) -> None:
        """A request that this attempt served was answered with an error."""
        ...

    def stopped(self, process: Process, error: EquipoiseError | None) -> None:
        """A process ends because its agent wants it to: with this error, or because it has left."""
        ...


class Host:
    """One machine. `process` is None while no broker runs on it. `supervisor` is called when one has ended by itself."""

    def __init__(
        self,
        stage: Stage,
        *,
        name: str,
        broker: str,
        clock: Clock,
        log: FaultyLog,
        courier: Courier,
        watcher: Watcher,
        made_nonces: dict[str, Process],
    ) -> None:
        """`made_nonces` is where all hosts note which process made which nonce."""
        self.stage = stage
        self.name = name
        self.broker = broker
        self.clock = clock
        self.link = Link()
        self.process: Process | None = None
        self.nonces: dict[str, None] = {}
        self.supervisor: Callable[[Host], None] = lambda _host: None
        self._made_nonces = made_nonces
        self._watcher = watcher
        self._log = log
        self._courier = courier
        self._snapshot: tuple[int, bytes] | None = None
        self._paused_until_us = 0
        self._fetching: Process | None = None
        self._nonces_made = 0
        self._retired = False
        log.on_append(self._fetch_soon)

    # --- the life of a process ---

    @property
    def paused(self) -> bool:
        """Whether the process takes no step at present."""
        return self.stage.schedule.now_us < self._paused_until_us

    def now(self) -> Instant:
        """What the clocks of this machine show."""
        return self.clock.read(self.stage.schedule.now_us)

    def start(self) -> None:
        """Start a process, from the snapshot if the directory has one, else from the snapshot, or the beginning of the log."""
        if self.process is not None or self._retired:
            return
        if self._has_snapshot():
            assert self._snapshot is not None, "there is one"
            read, data = self._snapshot
            view: View | None = snapshot.from_bytes(data)
        else:
            read, view = self._log.restored()
        agent = Agent(
            broker=self.broker,
            cluster=CLUSTER,
            reader=Reader(log="simulated", cluster=CLUSTER, view=view),
            timing=self.stage.scenario.timing,
            batches=self.stage.scenario.batches,
            profile=Profile(addresses={"http": f"{self.name}:8080"}),
            make_nonce=self._make_nonce,
            predecessor_nonces=frozenset(self.nonces),
        )
        self.process = Process(self, agent, read=read)
        self.stage.story.say(self.name, "starts, {} of {} entries in what it begins with", read, len(self._log.entries))
        self._fetch_soon()

    def _has_snapshot(self) -> bool:
        """Whether the directory has a snapshot from which the log still leads on."""
        if self._snapshot is None or self._snapshot[0] < self._log.first:
            return False
        return not self.stage.chance.happens(self.stage.faults.useless_snapshot_permille)

    def crash(self, why: str) -> None:
        """End the process without any farewell."""
        process = self.process
        if process is not None:
            self.stage.story.say(self.name, "CRASHES: {}", why)
            self._end(process)

    def retire(self, why: str) -> None:
        """End the process if there is one, and never start another."""
        self._retired = True
        self.crash(why)

    def die(self, process: Process, why: str) -> None:
        """End this very process, if it still runs."""
        if process.alive:
            self.crash(why)
            self.supervisor(self)

    def lose_directory(self) -> None:
        """Forget nonces and snapshot: the disk was replaced."""
        self.stage.story.say(self.name, "loses its data directory")
        self.nonces.clear()
        self._snapshot = None

    def take_snapshot(self) -> None:
        """Keep what a process that has caught up has read so far."""
        process = self.process
        if process is not None and process.agent.is_ready and not self.paused:
            self._snapshot = (process.read, snapshot.to_bytes(process.agent.view))

    def pause(self, for_us: int, *, hidden: bool) -> None:
        """Let the process take no step for a while; `hidden` from its boot clock if so."""
        schedule = self.stage.schedule
        until_us = schedule.now_us + for_us
        if until_us <= self._paused_until_us:
            return
        self.stage.story.say(
            self.name, "pauses for {} ms{}", for_us // MICROSECONDS_PER_MS, ", hidden from its boot clock" if hidden else ""
        )
        self._paused_until_us = until_us
        if hidden:
            self.clock.freeze(schedule.now_us)
        schedule.at(until_us, self._resume_if_due)

    def resume(self) -> None:
        """End a pause now."""
        self._paused_until_us = min(self._paused_until_us, self.stage.schedule.now_us)
        self._resume_if_due()

    def _resume_if_due(self) -> None:
        process = self.process
        if self.paused:
            return
        self.clock.thaw(self.stage.schedule.now_us)
        if process is None:
            return
        self.stage.story.say(self.name, "goes on")
        backlog, process.backlog = process.backlog, []
        for event in backlog:
            self.deliver(process, event)
        self.stage.schedule.after(self.stage.chance.microseconds(_AFTER_RESUME_MS), partial(self.deliver, process, Tick()))
        self._fetch_soon()

    # --- events and effects ---

    def deliver(self, process: Process, event: Event) -> None:
        """Let an event reach a process: lost if it has ended, kept while it is paused."""
        if not process.alive:
            return
        if self.paused:
            process.backlog.append(event)
            return
        if not process.service.answers(event):
            return
        now = self.now()
        effects = process.agent.step(event, now)
        if type(event) is Requested:
            process.asked[event.ticket] = _serving(process, event.ticket, effects)
        for effect in effects:
            if type(effect) is not Folded and process.alive:
                self._carry_out(process, effect)
        if process.alive:
            self._watcher.stepped(process, effects, now)
            self._wake_at(process)

    def _carry_out(self, process: Process, effect: Effect) -> None:
        match effect:
            case Append():
                self._courier.send(effect.data, self.link, partial(self._append_failed, process, effect.attempt))
            case WriteNonce():
                self._write_nonce(process, effect.nonce)
            case ForgetNonces():
                self.nonces = {effect.keep: None}
            case Prepare() | Open() | Close() | FindCuts() | Abandon() | Discard():
                process.service.carry_out(effect)
            case Alarm():
                self.stage.story.say(self.name, "ALARM {}: {}", effect.name, effect.message)
            case Answered():
                served = process.asked.pop(effect.ticket, None)
                if served is not None and effect.error is not None and not isinstance(effect.error, OutcomeUnknown):
                    self._watcher.disowned(*served)
            case Refold():
                self._refold(process, effect)
            case Stop():
                self.stage.story.say(self.name, "stops: {}", effect.error or "it has left")
                self._watcher.stopped(process, effect.error)
                self._end(process)
                self.supervisor(self)
            case Reshaped() | Folded() | Resync():
                pass  # The service finds the children in the handles themselves; what was folded is told by the log.

    def _append_failed(self, process: Process, attempt: int, error: Failure) -> None:
        in_doubt = isinstance(error, LogUnavailable) and error.in_doubt
        self.deliver(process, AppendFailed(attempt=attempt, error=error, in_doubt=in_doubt))

    def _wake_at(self, process: Process) -> None:
        """Schedule the tick that the agent wants, unless one is due before it."""
        true_us = self.clock.true_us_of(process.agent.wake_at_ms)
        if process.tick_at_us is None or true_us < process.tick_at_us:
            process.tick_at_us = true_us
            process.ticks += 1
            late_us = self.stage.chance.microseconds(self.stage.faults.timer_late_ms)
            self.stage.schedule.at(max(true_us, self.stage.schedule.now_us) + late_us, partial(self._tick, process, process.ticks))

    def _tick(self, process: Process, number: int) -> None:
        if number == process.ticks:
            process.tick_at_us = None
            self.deliver(process, Tick())

    def _write_nonce(self, process: Process, nonce: str) -> None:
        def written() -> None:
            if process.alive:
                self.nonces[nonce] = None
                schedule.after(chance.microseconds(fsync_ms), partial(self.deliver, process, NonceWritten(nonce=nonce)))

        chance, schedule, fsync_ms = self.stage.chance, self.stage.schedule, self.stage.faults.fsync_ms
        schedule.after(chance.microseconds(fsync_ms), written)

    def _refold(self, process: Process, effect: Refold) -> None:
        """Fold the log from zero beside the live view, and end the process if that shows the live view to be wrong."""
        view = process.agent.view
        reader = Reader(log="simulated", cluster=CLUSTER)
        for entry in self._log.entries[: process.read]:
            reader.feed(entry)
        agrees = reader.view.offset == view.offset and reader.view.digest() == view.digest()
        self.stage.story.say(
            self.name, "folds again, as {} says another digest: {}", effect.other, "the same" if agrees else "ANOTHER VIEW"
        )
        if not agrees:
            self.die(process, "its view is not what the log says")

    def _end(self, process: Process) -> None:
        self.process = None
        self._watcher.ended(process)

    # --- reading ---

    def cut_until(self, up_at_us: int) -> None:
        """Cut this machine off from the log."""
        self.link.cut_until(up_at_us)

    def reconnect(self) -> None:
        """End a cut now."""
        self.link.up_at_us = min(self.link.up_at_us, self.stage.schedule.now_us)
        self._fetching = None  # A delivery that waits for the end of the cut is overtaken by one that need not.
        self._fetch_soon()

    def _fetch_soon(self) -> None:
        """Let the process read on, once the next delivery reaches it."""
        process = self.process
        if process is None or self._fetching is process:
            return
        if process.end_at_start is not None and process.read == len(self._log.entries):
            return
        stage = self.stage
        self._fetching = process
        wait_us = stage.chance.microseconds(stage.faults.read_ms)
        if stage.chance.happens(stage.faults.lag_permille):
            wait_us += stage.chance.long_within(stage.faults.lag_ms) * MICROSECONDS_PER_MS
        stage.schedule.at(max(stage.schedule.now_us, self.link.up_at_us) + wait_us, partial(self._fetch, process))

    def _fetch(self, process: Process) -> None:
        if self._fetching is not process:
            return
        self._fetching = None
        if not process.alive or self.paused:
            return  # A process that resumes fetches for itself.
        if self.stage.schedule.now_us < self.link.up_at_us:
            self._fetch_soon()
            return
        if process.read < self._log.first:
            self._resync(process)
            return
        if process.end_at_start is None:
            process.end_at_start = len(self._log.entries)
        entries = self._log.entries[process.read : process.read + _READ_ENTRIES_MAX]
        process.read += len(entries)
        self.deliver(process, Read(entries=entries, caught_up=process.read >= process.end_at_start))
        if process.alive:
            self._fetch_soon()

    def _resync(self, process: Process) -> None:
        """Truncation took what this process wants next: it goes on from the snapshot, and reads the rest in another delivery."""
        left = process.read
        process.read, view = self._log.restored()
        self.stage.story.say(self.name, "JUMPS over {} entries", process.read - left)
        process.end_at_start = None  # So that there is another delivery, even if nothing comes after the snapshot.
        self.deliver(process, Resynced(reader=Reader(log="simulated", cluster=CLUSTER, view=view)))
        if process.alive:
            self._fetch_soon()

    def _make_nonce(self) -> str:
        assert self.process is not None
        self._nonces_made += 1
        nonce = f"{self.name}:{self._nonces_made}"
        self._made_nonces[nonce] = self.process
        return nonce


def _serving(process: Process, ticket: int, effects: list[Effect]) -> tuple[int, int] | None:
    """The attempt that a step has made for a request, which is its first; None if it has answered at once."""
    if process.agent.incarnation is None or any(isinstance(effect, Answered) and effect.ticket == ticket for effect in effects):
        return None
    attempt = next((effect.attempt for effect in effects if isinstance(effect, Append)), None)
    return None if attempt is None else (process.agent.incarnation, attempt)
