"""Simulate one broker's machine: its clock, data directory, connection to the log, and the process
that runs the agent and a service.

The agent is the product's own and makes all decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from equipoise.brokers.agent.effects import (
    Abandon,
    Alarm,
    Answered,
    Append,
    AskAssurance,
    Effect,
    Prepare,
    Refold,
    Stop,
)
from equipoise.brokers.agent.events import Event, Instant, ProcessEnded, Requested, Tick
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.testing.agent_host import AgentHost, Directory, Failed
from equipoise.channel.core import snapshot
from equipoise.channel.core.errors import EquipoiseError, OutcomeUnknown
from equipoise.channel.core.view import View
from tests.channels.model import is_named
from tests.simulation.clock import MICROSECONDS_PER_MS, Clock
from tests.simulation.courier import Courier, Link
from tests.simulation.faulty_log import FaultyLog
from tests.simulation.parts import Parts
from tests.simulation.post import Post
from tests.simulation.stand_in_service import VERBS, StandInService, Work, bundle_of

# A resumed process finds its timers and sockets ready, and handles them in any order.
_AFTER_RESUME_MS: Final = (0, 5)

# A hanging service answers before its deadline, at about that time, or long after it.
_HANG_MS: Final = (500, 6_000)

# From the end of a process to a look of a neighbour, and from the reading of instance ids to the
# query of the lock.
_LOOK_MS: Final = (0, 20)

# How often abandoned code of a service cannot be stopped.
_UNSTOPPABLE_PERMILLE: Final = 100


class SimulatedService(StandInService):
    """The service of one process, whose faults are drawn. `die` ends the process."""

    def __init__(
        self,
        parts: Parts,
        *,
        broker: str,
        answer: Callable[[Event], None],
        die: Callable[[str], None],
    ) -> None:
        super().__init__(answer=answer)
        self._parts = parts
        self._broker = broker
        self._die = die

    def takes(self, namespace: str) -> bool:
        """Return whether it accepts the bundles of a namespace, if nothing goes wrong."""
        return self._parts.scenario.takes(self._broker, namespace)

    def abandoned(self, effect: Abandon) -> None:
        """Stop the code. Where that is impossible, end the process."""
        if self._parts.chance.happens(_UNSTOPPABLE_PERMILLE):
            self._die(f"its service cannot be stopped {effect.doing} {effect.bundle}")

    def perform(self, work: Work, result: Callable[[str | None], Event]) -> None:
        """Draw how the work ends, and when."""
        chance, faults, schedule = self._parts.chance, self._parts.faults, self._parts.schedule
        if chance.happens(faults.dies_permille):
            why = f"its service dies as it {VERBS[type(work)]}s {bundle_of(work)}"
            schedule.after(chance.microseconds(faults.service_ms), lambda: self._die(why))
            return
        took_us = chance.microseconds(faults.service_ms)
        if chance.happens(faults.hangs_permille):
            took_us = chance.within(_HANG_MS) * MICROSECONDS_PER_MS
        problem = (
            "the service does not want it" if chance.happens(faults.refuses_permille) else None
        )
        if problem is None and isinstance(work, Prepare) and not self.takes(work.bundle.namespace):
            problem = "there is no service for it here"
        schedule.after(took_us, lambda: self.answer(result(problem)))


class Process(AgentHost):
    """One process of a simulated broker.

    * `held`: the handles that its service was given, and whether each was open when the checkers
      last looked.
    * `namespaces`: the patterns of those that its program serves; None: all.
    * `served`: the incarnation and number of the attempt that serves each unanswered request, if
      any.
    """

    service: SimulatedService

    def __init__(self, host: Host, *, read: int, view: View | None) -> None:
        self.host = host
        self.held: dict[Handle, bool] = {}
        self.served: dict[int, tuple[int, int]] = {}
        self._tick_at_us: int | None = None
        self._ticks = 0
        scenario, chance = host.parts.scenario, host.parts.chance
        programs, others = scenario.programs, scenario.other_timings
        self.namespaces = chance.one_of(programs) if programs else None
        self.service = SimulatedService(
            host.parts,
            broker=host.broker,
            answer=self.deliver,
            die=lambda why: self.end(f"CRASHES: {why}"),
        )
        super().__init__(
            broker=host.broker,
            address=f"{host.name}:8080",
            directory=host.directory,
            log=host.log,
            make_instance_id=lambda: host.make_instance_id(self),
            timing=chance.one_of((scenario.timing, *others)) if others else scenario.timing,
            batches=scenario.batches,
            namespaces=self.namespaces,
            read=read,
            view=view,
        )

    @property
    def is_paused(self) -> bool:
        """See `AgentHost`."""
        return self.host.paused

    def now(self) -> Instant:
        """See `AgentHost`."""
        return self.host.now()

    def append(self, data: bytes, failed: Failed) -> None:
        """See `AgentHost`."""
        self.host.courier.send(data, self.host.link, failed)

    def ask(self, question: AskAssurance) -> None:
        """See `AgentHost`."""
        self.host.post.ask(question, self)

    def after_sync(self, action: Callable[[], None]) -> None:
        """See `AgentHost`."""
        parts = self.host.parts
        parts.schedule.after(parts.chance.microseconds(parts.faults.fsync_ms), action)

    def serves(self, namespace: str) -> bool:
        """Return whether its program serves a namespace, and its service accepts the bundles."""
        return self.service.takes(namespace) and is_named(self.namespaces, namespace)

    def accepts(self, event: Event) -> bool:
        """See `AgentHost`."""
        return self.service.ends(event)

    def observe(self, effect: Effect) -> None:
        """See `AgentHost`."""
        match effect:
            case Alarm():
                self.host.parts.story.say(
                    self.host.name, "ALARM {}: {}", effect.name, effect.message
                )
            case Answered():
                served = self.served.pop(effect.ticket, None)
                if (
                    served is not None
                    and effect.error is not None
                    and not isinstance(effect.error, OutcomeUnknown)
                ):
                    self.host.watcher.disowned(*served)
            case Stop():
                self.host.watcher.stopped(self, effect.error)
            case _:
                pass

    def stepped(self, event: Event, effects: Sequence[Effect], now: Instant) -> None:
        """See `AgentHost`."""
        if type(event) is Requested and event.ticket in self.asked:
            self._note_attempt(event.ticket, effects)
        self.host.watcher.stepped(self, effects, now)
        self._wake()

    def replayed(self, check: Refold, *, agrees: bool) -> None:
        """See `AgentHost`."""
        result = "the same" if agrees else "ANOTHER VIEW"
        self.host.parts.story.say(
            self.host.name, "folds again, as {} says another digest: {}", check.other, result
        )

    def ended(self, why: str, *, killed: bool) -> None:
        """See `AgentHost`."""
        self.host.parts.story.say(self.host.name, "{}", why)
        self.host.process = None
        self.host.watcher.ended(self)
        self.host.proven_soon()
        if not killed:
            self.host.supervisor(self.host)

    def _note_attempt(self, ticket: int, effects: Sequence[Effect]) -> None:
        """Note the first attempt that a step made for a request."""
        attempt = next((effect.attempt for effect in effects if isinstance(effect, Append)), None)
        if self.agent.incarnation is not None and attempt is not None:
            self.served[ticket] = (self.agent.incarnation, attempt)

    def _wake(self) -> None:
        """Schedule the tick that the agent wants, unless an earlier one is due."""
        parts, true_us = self.host.parts, self.host.clock.true_us_of(self.agent.wake_at_ms)
        if self._tick_at_us is None or true_us < self._tick_at_us:
            self._tick_at_us = true_us
            self._ticks += 1
            late_us = parts.chance.microseconds(parts.faults.timer_late_ms)
            parts.schedule.at(
                max(true_us, parts.schedule.now_us) + late_us, partial(self._tick, self._ticks)
            )

    def _tick(self, number: int) -> None:
        if number == self._ticks:
            self._tick_at_us = None
            self.deliver(Tick())


class Watcher(Protocol):
    """Observes what processes do."""

    def stepped(self, process: Process, effects: Sequence[Effect], now: Instant) -> None:
        """Take a step of a process, after its effects were carried out. `now` is the reading of its
        clocks.
        """
        ...

    def ended(self, process: Process) -> None:
        """Note that a process has ended."""
        ...

    def disowned(self, incarnation: int, attempt: int) -> None:
        """Note that the request served by this attempt was answered with an error."""
        ...

    def stopped(self, process: Process, error: EquipoiseError | None) -> None:
        """Note that a process ends at its agent's request, with this error or because it has
        left.
        """
        ...


class Host:
    """One machine, or one broker's part of it. `process` is None while no broker runs on it.
    `supervisor` is called when a process ends unexpectedly. `neighbours` are of the same machine.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        name: str,
        broker: str,
        clock: Clock,
        log: FaultyLog,
        courier: Courier,
        post: Post,
        watcher: Watcher,
        made_instance_ids: dict[str, Process],
    ) -> None:
        """Take the shared parts and the others. All hosts record in `made_instance_ids` which
        process made which instance id.
        """
        self.parts = parts
        self.name = name
        self.broker = broker
        self.clock = clock
        self.log = log
        self.courier = courier
        self.post = post
        self.watcher = watcher
        self.link = Link()
        self.process: Process | None = None
        self.directory = Directory()
        self.supervisor: Callable[[Host], None] = lambda _host: None
        self.neighbours: Sequence[Host] = ()
        self._made_instance_ids = made_instance_ids
        self._paused_until_us = 0
        self._fetching: Process | None = None
        self._instance_ids_made = 0
        self._retired = False
        log.on_append(self._fetch_soon)

    # --- the life of a process ---

    @property
    def paused(self) -> bool:
        """Whether the process is paused now."""
        return self.parts.schedule.now_us < self._paused_until_us

    def now(self) -> Instant:
        """Return what the clocks of this machine show."""
        return self.clock.read(self.parts.schedule.now_us)

    def make_instance_id(self, process: Process) -> str:
        """Return an instance id that no process has used before."""
        self._instance_ids_made += 1
        instance_id = f"{self.name}:{self._instance_ids_made}"
        self._made_instance_ids[instance_id] = process
        return instance_id

    def start(self) -> None:
        """Start a process from the directory's snapshot, else from the log's snapshot or its
        beginning.
        """
        if self.process is not None or self._retired:
            return
        saved = self.directory.snapshot
        if saved is not None and self._is_usable(saved[0]):
            start: tuple[int, View | None] = saved[0], snapshot.from_bytes(saved[1])
        else:
            start = self.log.restored()
        read, view = start
        self.process = Process(self, read=read, view=view)
        self.parts.story.say(
            self.name,
            "starts, {} of {} entries in what it begins with",
            read,
            len(self.log.entries),
        )
        self._fetch_soon()

    def _is_usable(self, read: int) -> bool:
        """Return whether a snapshot of the first `read` entries can be used, and the log still
        continues from it.
        """
        return read >= self.log.first and not self.parts.chance.happens(
            self.parts.faults.useless_snapshot_permille
        )

    def crash(self, why: str) -> None:
        """Kill the process, if any."""
        if self.process is not None:
            self.process.end(f"CRASHES: {why}", killed=True)

    def retire(self, why: str) -> None:
        """Kill the process, if any, and never start another one."""
        self._retired = True
        self.crash(why)

    def proven_soon(self) -> None:
        """Let each neighbour look soon whether a process holds the lock of the directory. It has
        read the instance ids before.
        """
        for neighbour in self.neighbours:
            look = partial(self._look_from, neighbour, self.directory)
            self.parts.schedule.after(self.parts.chance.microseconds(_LOOK_MS), look)

    def _look_from(self, neighbour: Host, directory: Directory) -> None:
        instance_ids = frozenset(directory.instance_ids)
        watcher = neighbour.process

        def look() -> None:
            if watcher is not None and directory is self.directory and self.process is None:
                # It takes the event later, if it is paused now.
                watcher.deliver(ProcessEnded(instance_ids=instance_ids))

        self.parts.schedule.after(self.parts.chance.microseconds(_LOOK_MS), look)

    def lose_directory(self) -> None:
        """Forget instance ids and snapshot, as if the disk was replaced."""
        self.parts.story.say(self.name, "loses its data directory")
        self.directory = Directory()

    def take_snapshot(self) -> None:
        """Save a snapshot of what the process has read, if it is ready."""
        if self.process is not None and self.process.agent.is_ready and not self.paused:
            self.process.save_snapshot()

    def pause(self, for_us: int, *, hidden: bool) -> None:
        """Pause the process. With `hidden`, its boot clock stops too."""
        schedule = self.parts.schedule
        until_us = schedule.now_us + for_us
        if until_us <= self._paused_until_us:
            return
        self.parts.story.say(
            self.name,
            "pauses for {} ms{}",
            for_us // MICROSECONDS_PER_MS,
            ", hidden from its boot clock" if hidden else "",
        )
        self._paused_until_us = until_us
        if hidden:
            self.clock.freeze(schedule.now_us)
        schedule.at(until_us, self._resume_if_due)

    def resume(self) -> None:
        """End a pause now."""
        self._paused_until_us = min(self._paused_until_us, self.parts.schedule.now_us)
        self._resume_if_due()

    def _resume_if_due(self) -> None:
        process = self.process
        if self.paused:
            return
        self.clock.thaw(self.parts.schedule.now_us)
        if process is None:
            return
        self.parts.story.say(self.name, "goes on")
        process.take_events()
        self.parts.schedule.after(
            self.parts.chance.microseconds(_AFTER_RESUME_MS), partial(process.deliver, Tick())
        )
        self._fetch_soon()

    # --- reading ---

    def reconnect(self) -> None:
        """End a cut now."""
        self.link.up_at_us = min(self.link.up_at_us, self.parts.schedule.now_us)
        # A delivery that waits for the end of the cut is replaced by one that does not.
        self._fetching = None
        self._fetch_soon()

    def _fetch_soon(self) -> None:
        """Schedule the next delivery to the process."""
        process = self.process
        if process is None or self._fetching is process or not process.lags:
            return
        parts = self.parts
        self._fetching = process
        wait_us = parts.chance.microseconds(parts.faults.read_ms)
        if parts.chance.happens(parts.faults.lag_permille):
            wait_us += parts.chance.long_within(parts.faults.lag_ms) * MICROSECONDS_PER_MS
        parts.schedule.at(
            max(parts.schedule.now_us, self.link.up_at_us) + wait_us, partial(self._fetch, process)
        )

    def _fetch(self, process: Process) -> None:
        if self._fetching is not process:
            return
        self._fetching = None
        if not process.alive or self.paused:
            return  # A resumed process fetches again.
        if self.parts.schedule.now_us < self.link.up_at_us:
            self._fetch_soon()
            return
        if process.read < self.log.first:
            read, view = self.log.restored()
            self.parts.story.say(self.name, "RESYNCS over {} entries", read - process.read)
            process.resync(read, view)
        else:
            process.read_on()
        if process.alive:
            self._fetch_soon()
