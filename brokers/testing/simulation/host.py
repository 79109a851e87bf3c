"""Simulate one broker's machine: its clock, data directory, connection to the log, and the process that runs the agent.

It replaces `brokers.runtime.worker`. The agent is the product's own and makes all decisions.
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

# Entries in one `Read`. A long replay takes several reads, with other events between them.
_READ_ENTRIES_MAX: Final = 500

# A resumed process finds its timers and sockets ready, and handles them in any order.
_AFTER_RESUME_MS: Final = (0, 5)


class Process:
    """One process of a broker, from start to end.

    * `read`: how many entries of the log it has folded or skipped by a resync.
    * `end_at_start`: how many entries there were when it first reached the log, or reached it again after a resync.
    * `held`: the handles that its service was given, and whether each was open when the checkers last looked.
    * `asked`: the tickets of unanswered requests, each with the incarnation and number of the attempt that serves it, if any.
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
    """Observes what processes do."""

    def stepped(self, process: Process, effects: list[Effect], now: Instant) -> None:
        """Take a step of a process, after its effects were carried out. `now` is the reading of its clocks."""
        ...

    def ended(self, process: Process) -> None:
        """Note that a process has ended."""
        ...

    def disowned(self, incarnation: int, attempt: int) -> None:
        """Note that the request served by this attempt was answered with an error."""
        ...

    def stopped(self, process: Process, error: EquipoiseError | None) -> None:
        """Note that a process ends at its agent's request, with this error or because it has left."""
        ...


class Host:
    """One machine. `process` is None while no broker runs on it. `supervisor` is called when a process ends unexpectedly."""

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
        """Take the stage and the parts. All hosts record in `made_nonces` which process made which instance id."""
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
        """Whether the process is paused now."""
        return self.stage.schedule.now_us < self._paused_until_us

    def now(self) -> Instant:
        """Return what the clocks of this machine show."""
        return self.clock.read(self.stage.schedule.now_us)

    def start(self) -> None:
        """Start a process from the directory's snapshot, else from the log's snapshot or its beginning."""
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
        """Return whether the directory has a usable snapshot from which the log still continues."""
        if self._snapshot is None or self._snapshot[0] < self._log.first:
            return False
        return not self.stage.chance.happens(self.stage.faults.useless_snapshot_permille)

    def crash(self, why: str) -> None:
        """Kill the process."""
        process = self.process
        if process is not None:
            self.stage.story.say(self.name, "CRASHES: {}", why)
            self._end(process)

    def retire(self, why: str) -> None:
        """Kill the process, if any, and never start another one."""
        self._retired = True
        self.crash(why)

    def die(self, process: Process, why: str) -> None:
        """Kill this very process, if it still runs."""
        if process.alive:
            self.crash(why)
            self.supervisor(self)

    def lose_directory(self) -> None:
        """Forget instance ids and snapshot, as if the disk was replaced."""
        self.stage.story.say(self.name, "loses its data directory")
        self.nonces.clear()
        self._snapshot = None

    def take_snapshot(self) -> None:
        """Save a snapshot of what the process has read, if it is ready."""
        process = self.process
        if process is not None and process.agent.is_ready and not self.paused:
            self._snapshot = (process.read, snapshot.to_bytes(process.agent.view))

    def pause(self, for_us: int, *, hidden: bool) -> None:
        """Pause the process. With `hidden`, its boot clock stops too."""
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
        """Deliver an event to a process: drop it if the process has ended, keep it while the process is paused."""
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
                pass  # The service finds the children in the handles; the log records what was folded.

    def _append_failed(self, process: Process, attempt: int, error: Failure) -> None:
        in_doubt = isinstance(error, LogUnavailable) and error.in_doubt
        self.deliver(process, AppendFailed(attempt=attempt, error=error, in_doubt=in_doubt))

    def _wake_at(self, process: Process) -> None:
        """Schedule the tick that the agent wants, unless an earlier one is due."""
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
        """Run a replay check: fold the log from zero, and end the process if the live view differs."""
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
        self._fetching = None  # A delivery that waits for the end of the cut is replaced by one that does not.
        self._fetch_soon()

    def _fetch_soon(self) -> None:
        """Schedule the next delivery to the process."""
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
            return  # A resumed process fetches again.
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
        """Continue from the snapshot after a truncation. The rest of the log comes in another delivery."""
        left = process.read
        process.read, view = self._log.restored()
        self.stage.story.say(self.name, "RESYNCS over {} entries", process.read - left)
        process.end_at_start = None  # Forces another delivery, even if nothing follows the snapshot.
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
    """Return the first attempt that a step made for a request; None if the step answered it at once."""
    if process.agent.incarnation is None or any(isinstance(effect, Answered) and effect.ticket == ticket for effect in effects):
        return None
    attempt = next((effect.attempt for effect in effects if isinstance(effect, Append)), None)
    return None if attempt is None else (process.agent.incarnation, attempt)
