"""The worker: an asyncio host of one agent. It owns the clocks, a seat at the log's thread, the timer, the disk and the services.

May live here: the broker's life, and its loop of events and effects. Decisions are the agent's. What callers of this process
ask of it is told here, and answered in `brokers.runtime.waiting`, `brokers.runtime.requests` and `brokers.runtime.router`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.core import Profile
from equipoise.brokers.agent.effects import Alarm, Answered, Append, Effect, ForgetNonces, Refold, Stop, WriteNonce
from equipoise.brokers.agent.events import AppendFailed, DrainRequested, Event, NonceWritten, PlacementChosen, Read, Resynced, Tick, Wanted
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.agent.intents import Intent
from equipoise.brokers.balancing.placement import Placement
from equipoise.brokers.runtime.bundle_lines import BundleLines
from equipoise.brokers.runtime.channel_loss import ChannelLoss, channel_loss
from equipoise.brokers.runtime.clock import Clock, SystemClock
from equipoise.brokers.runtime.config import WorkerConfig, installed_version
from equipoise.brokers.runtime.directory.data_directory import DataDirectory
from equipoise.brokers.runtime.directory.directory_thread import DirectoryThread
from equipoise.brokers.runtime.directory.snapshots import Snapshots
from equipoise.brokers.runtime.failures.failed_appends import FailedAppends
from equipoise.brokers.runtime.handover import fetch_from
from equipoise.brokers.runtime.listeners import Listeners
from equipoise.brokers.runtime.load_sampler import LoadSampler
from equipoise.brokers.runtime.metrics.metrics import Metrics
from equipoise.brokers.runtime.observations.witnesses import Witnesses
from equipoise.brokers.runtime.replay_check import ReplayCheck
from equipoise.brokers.runtime.replay_progress import ReplayProgress
from equipoise.brokers.runtime.requests import Requests
from equipoise.brokers.runtime.router import Located, Router
from equipoise.brokers.runtime.service import Ownership, Peer, Service, WorkerEnded
from equipoise.brokers.runtime.service_runner import ServiceEffect, ServiceRunner, end_process, peer_of
from equipoise.brokers.runtime.waiting import Waiting
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.errors import BegunAbove, Bug, DeadlineExceeded, EquipoiseError
from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.view import View
from equipoise.channel.log.append_queue import Appended, AppendOutcome, InDoubt
from equipoise.channel.log.open_log import open_log, opened_in_thread
from equipoise.channel.log.seat import FROM_NOTHING, LogSeat
from equipoise.channel.log.sharing import sit_down
from equipoise.channel.system.deadline import Deadline

_logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

# A worker that stops gives up on draining after `drain_ms`, closes within `close_ms`, and has this long for its last words.
_LAST_WORDS_MS: Final = 2_000

# What is still open when the broker ends, of whatever it ends, is closed in this time: nobody waits for a handover any more,
# and the next owner does not wait at all.
_LAST_CLOSE_MS: Final = 2_000

# A sample of the services' loads is good for all who ask so soon after it: less than any interval at which load is reported.
_SAMPLE_FRESH_MS: Final = 250


class Worker:
    """One broker in this process, on the running loop. `start` it, `await ready(...)`, and `stop` it."""

    def __init__(
        self,
        config: WorkerConfig,
        services: Mapping[str, Service],
        *,
        addresses: Mapping[str, str],
        clock: Clock | None = None,
        serves_peers: bool = True,
    ) -> None:
        """`services` maps patterns of namespaces to services; `addresses`, protocols to where clients find this broker.

        `serves_peers`: whether other brokers can ask for state there.

        Raises `InvalidConfig` for addresses that no record can carry, and `InvalidService`.
        """
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.broker_id = config.id
        self.metrics = Metrics(broker=self.broker_id)
        self.profile = Profile(
            addresses=dict(addresses),
            capacity=config.capacity,
            failure_domain=config.failure_domain,
            labels=dict(config.labels),
            version=installed_version(),
        )
        self._runner = ServiceRunner(
            services,
            clock=self.clock,
            make_ownership=self._own,
            step=self._step,
            end_process=end_process,
            serves_peers=serves_peers,
        )
        self.services = self._runner.services
        self.service_of = self._runner.service_of
        self.fetch_parted = self._runner.fetch_parted
        self.all_fetched = self._runner.all_fetched
        for service in self.services:
            service.host = self
        # One event at a time, and mostly none waits: the loop calls `_step` for each, and nothing that an effect begins (a service,
        # an append, a write) answers before the step is over. Only who is called within one, a listener or a service that is told
        # of a split, may put one here, by asking for a drain or a lookup.
        self._events: deque[Event] = deque()
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = Waiting(lambda: self.agent.view, broker=self.broker_id)
        self._requests = Requests(self._step, broker=self.broker_id, log=config.log_url)
        self.failed_appends = FailedAppends(broker=self.broker_id)
        self._lines = BundleLines(self.metrics.moves, broker=self.broker_id)
        self.loads = LoadSampler(
            self.services,
            broker=self.broker_id,
            clock=self.clock,
            fresh_ms=min(_SAMPLE_FRESH_MS, config.balance_interval_ms // 2),
        )
        self._listeners = Listeners(broker=self.broker_id)
        self.listen = self._listeners.listen
        self.replay_progress = ReplayProgress(broker=self.broker_id)
        self._finished: asyncio.Future[None] | None = None
        self.ended: WorkerEnded | None = None
        self._letting_go: asyncio.Task[None] | None = None
        self._caught_up = False
        self._witnesses = Witnesses(config, clock=self.clock)
        self.client_problems: dict[str, str] = {}  # Why no further client can connect, by whoever found it.
        self.disk_problem: EquipoiseError | None = None  # Of the last write to the data directory.

    # --- life ---

    async def start(self) -> None:
        """Lock the data directory, open the log, and begin to read it; joining follows by itself.

        Raises what makes a start impossible: a locked directory, an unsafe timing, a log that cannot be used or is another
        cluster's, a file of evidence that cannot be written.
        """
        directory = DataDirectory(self.config.data_dir)
        handle = None
        try:
            handle = await opened_in_thread(partial(open_log, self.config.log_url))
            self._snapshots = Snapshots(directory, log=handle.identity, cluster=self.config.cluster)
            restored = await asyncio.to_thread(self._snapshots.reader, handle, progress=self.replay_progress.restored)
            reader = restored or Reader(log=handle.name, cluster=self.config.cluster)
            self.agent = Agent(
                broker=self.broker_id,
                cluster=self.config.cluster,
                reader=reader,
                timing=self.config.timing(),
                profile=self.profile,
                make_nonce=lambda: secrets.token_hex(16),
                predecessor_nonces=directory.nonces,
            )
            self._witnesses.begin(handle.identity)
        except BaseException:
            if handle is not None:
                handle.close()
            directory.close()
            raise
        self._router = Router(
            self.agent,
            ownerships=self._runner.ownerships,
            clock=self.clock,
            waiting=self._waiting,
            step=self._step,
            log_is_readable=lambda: self.log_is_available,
        )
        self._replay_check = ReplayCheck(self._snapshots, log_url=self.config.log_url, broker=self.broker_id, fail=self._fail)
        self._directory = DirectoryThread(directory)
        self._seat = LogSeat(
            name=handle.name,
            position=FROM_NOTHING if restored is None else reader.position,
            deliver=self._deliver,
            caught_up=self._caught_up_at,
            resynced=self._resynced,
            failed=self._fail,
            cluster=self.config.cluster,
        )
        self._finished = asyncio.get_running_loop().create_future()
        sit_down(self._seat, handle)

    async def ready(self, *, timeout_ms: int) -> None:
        """Wait until it has read to the end that it saw at its start, and its own `joined`. Raises the error that ends it before."""
        try:
            await self.until(lambda _: self.agent.is_ready or None, timeout_ms=timeout_ms, what=f"broker {self.broker_id} becoming ready")
        except WorkerEnded:
            await self.finished()
            raise

    async def stop(self) -> None:
        """Stop gracefully: drain, move everything away, leave, and let go of log and directory; bounded by `drain_ms`."""
        if self._finished is None:
            return
        try:
            if not self._finished.done():
                now = self.clock.now()
                self._step(DrainRequested(leave=True, deadline_ms=now.boot_ms + self.config.drain_ms))
                waited_s = (self.config.drain_ms + self.config.close_ms + _LAST_WORDS_MS) / 1_000
                await asyncio.wait([self._finished], timeout=waited_s)
            if not self._finished.done():
                _logger.warning("it could not leave in time, and is taken for dead by the others", extra={"broker": self.broker_id})
        finally:
            self._end(None)
            await self._has_let_go()

    async def abort(self) -> None:
        """Let go of everything at once, without a word to the others: what a process that dies does, for one that lives on.

        Nor are the services told: what they are doing is cancelled, and what is open is not closed.
        """
        self._end(None, abruptly=True)
        await self._has_let_go()

    async def finished(self) -> None:
        """Wait until the agent has ended by itself; raises the error that ended it."""
        assert self._finished is not None, "a worker is started before it is waited for"
        await asyncio.shield(self._finished)

    def check(self) -> None:
        """Raise `WorkerEnded` if the broker has ended."""
        if self.ended is not None:
            raise self.ended.with_traceback(None)  # All who ask share it.

    async def _has_let_go(self) -> None:
        if self._letting_go is not None:
            await asyncio.shield(self._letting_go)

    async def _let_go(self, *, abruptly: bool, is_sound: bool) -> None:
        """What is owed to whom, in this order: services their end, the disk what is on its way, others the directory's lock.

        Only a view that is sound is kept: one that the broker has failed by must not be what its next start begins with.
        """
        try:
            held = self.open_bundles
            if held and not abruptly:
                _logger.info("closing what is open", extra={"broker": self.broker_id, "bundles": held})
            if not abruptly:
                await self._runner.close_all(timeout_ms=_LAST_CLOSE_MS)
            await self._runner.stop()
            if is_sound and not abruptly and self._caught_up:
                self._snapshots.save(self.agent.view, self._directory)
            await self._seat.stop(Deadline.after(timeout_ms=_LAST_WORDS_MS))
        finally:
            self._replay_check.cancel()
            await asyncio.to_thread(self._witnesses.close)
            try:
                await self._directory.stop(Deadline.after(timeout_ms=_LAST_WORDS_MS))
            except DeadlineExceeded as error:
                _logger.warning("the data directory stays locked: %s", error, extra={"broker": self.broker_id})

    def drain(self) -> None:
        """Take nothing new and move everything away, without leaving."""
        self._step(DrainRequested(leave=False, deadline_ms=self.clock.now().boot_ms + self.config.drain_ms))

    # --- the loop of events and effects ---

    def _deliver(self, entries: Sequence[Entry]) -> None:
        self._step(Read(entries=entries, caught_up=self._caught_up))
        if not self._caught_up:
            self.replay_progress.read(len(entries), max(self.lag_records - len(entries), 0))

    def _resynced(self, reader: Reader) -> None:
        """Truncation cut this broker off, and its log's thread has restored a reader."""
        self._step(Resynced(reader=reader))

    def _caught_up_at(self, _end: int) -> None:
        self._caught_up = True
        self.replay_progress.ended()
        self._step(Read(entries=(), caught_up=True))

    def _step(self, event: Event) -> None:
        """Give the agent one event, and carry out what it wants. What that brings at once is taken in the order it came.

        Whatever is raised on the way ends the broker: effects may be lost that the agent takes for done.
        """
        if self._finished is not None and self._finished.done():
            return
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                taken = self._events.popleft()
                self._lines.ended(taken)
                effects = self.agent.step(taken, self.clock.now())
                for effect in effects:
                    self._carry_out(effect)
                self._witnesses.stepped(taken, self.agent)
                # What only a look brought about must not make everybody look again.
                if effects or not isinstance(taken, Tick | Wanted):
                    self._waiting.changed()
        except EquipoiseError as error:
            if isinstance(error, BegunAbove):  # The log's thread mends it; before a genesis there is no effect that could be lost.
                raise
            self._fail(error)
        except Exception as error:
            _logger.exception("a step failed", extra={"broker": self.broker_id})
            self._fail(Bug(f"broker {self.broker_id} failed in a step: {type(error).__name__}: {error}"))
        finally:
            self._stepping = False
        self._arm_timer()

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._finished is None or self._finished.done():
            return
        delay_ms = self.agent.wake_at_ms - self.clock.now().boot_ms
        self._timer = asyncio.get_running_loop().call_later(max(delay_ms, 1) / 1_000, self._step, Tick())

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Folded):
            self._observe(effect)
        elif isinstance(effect, Resync):
            self._observe_resync(effect)
        elif isinstance(effect, Append):
            self._seat.append(effect.data, partial(self._appended, effect))
        elif isinstance(effect, ServiceEffect):
            self._lines.begun(effect, self.agent.view)
            self._witnesses.begun(effect)
            self._runner.carry_out(effect)
        elif isinstance(effect, Answered):
            self._requests.answer(effect)
        elif isinstance(effect, WriteNonce | ForgetNonces):
            self._keep_nonces(effect)
        elif isinstance(effect, Alarm):
            self._raise_alarm(effect)
        elif isinstance(effect, Refold):
            self._refold(effect)
        elif isinstance(effect, Stop):
            self._end(effect.error)

    def _raise_alarm(self, alarm: Alarm) -> None:
        self.metrics.alarm(alarm.name)
        about = {"key": alarm.key, "offset": alarm.offset, "reason": alarm.reason}
        fields = {name: value for name, value in about.items() if value is not None}
        _logger.warning(alarm.message, extra={"alarm": alarm.name, "broker": self.broker_id, **fields})

    def _keep_nonces(self, effect: WriteNonce | ForgetNonces) -> None:
        """In the directory's thread, one after the other: a `joined` is sent when its nonce is on the disk, and not before.

        A disk that takes nothing keeps a broker from joining until it does, and costs a member nothing but an alarm.
        """
        if isinstance(effect, ForgetNonces):
            keep = effect.keep
            self._directory.write(lambda directory: directory.forget_nonces(keep), self._disk_answered)
        else:
            nonce, written = effect.nonce, partial(self._disk_answered, then=NonceWritten(nonce=effect.nonce))
            self._directory.write(lambda directory: directory.write_nonce(nonce), written)

    def _disk_answered(self, error: EquipoiseError | None, *, then: Event | None = None) -> None:
        self.disk_problem = error
        if error is not None:
            self._raise_alarm(Alarm(name="data_directory", message=str(error)))
        elif then is not None:
            self._step(then)

    def _observe(self, folded: Folded) -> None:
        for move in self.metrics.observe(folded, live=self._caught_up):
            self._lines.moved(move, self.agent.view)
        if self._caught_up:
            self._snapshots.folded(self.agent.view, self._directory)
        self._listeners.folded(folded)

    def _observe_resync(self, resync: Resync) -> None:
        if resync.before < 0:
            return  # So a broker begins whose log was away when it started: nobody has missed anything.
        fields = {"broker": self.broker_id, "before": resync.before, "offset": resync.offset, "changes": len(resync.changes)}
        _logger.warning("records were truncated before they were read, and are left out", extra=fields)
        self.metrics.resynced(resync)
        self._snapshots.save(self.agent.view, self._directory)  # The one before it leads nowhere any more.
        self._listeners.resynced(resync)

    def _appended(self, append: Append, outcome: AppendOutcome) -> None:
        if isinstance(outcome, Appended):
            self.failed_appends.appended()
        else:
            self.failed_appends.failed(append.data, outcome.error, self.clock.now().boot_ms)
            self._step(AppendFailed(attempt=append.attempt, error=outcome.error, in_doubt=isinstance(outcome, InDoubt)))

    def _fail(self, error: EquipoiseError) -> None:
        """The log cannot be read on, or was misread: nothing that this broker believes may be trusted any longer."""
        self._end(error)

    def _end(self, error: EquipoiseError | None, *, abruptly: bool = False) -> None:
        """The broker is over, if it was not already: nothing it believes counts any more, and it lets go of all it has."""
        if self._finished is None or self._finished.done():
            return
        self.agent.lease.lose()
        self._witnesses.ended()
        if self._timer is not None:
            self._timer.cancel()
        if error is None:
            self._finished.set_result(None)
        else:
            _logger.error("the broker ends: %s", error, extra={"broker": self.broker_id})
            self._finished.set_exception(error)
            self._finished.exception()  # Whoever waits for it gets it; nobody has to.
        self.ended = WorkerEnded(broker=self.broker_id, problem="it has left the cluster" if error is None else str(error))
        self.ended.__cause__ = error
        self._waiting.end(self.ended)
        self._requests.end(self.ended)
        self._letting_go = asyncio.get_running_loop().create_task(
            self._let_go(abruptly=abruptly, is_sound=error is None), name=f"the end of broker {self.broker_id}"
        )
        self._letting_go.add_done_callback(lambda task: task.cancelled() or task.exception())  # As above.

    def _refold(self, effect: Refold) -> None:
        """Two views have parted: stop if it shows that ours is the wrong one."""
        if self._caught_up and self._replay_check.begin(self.agent.view):
            self.metrics.alarm("views_diverge")
            _logger.error("views diverge", extra={"broker": self.broker_id, "other": effect.other, "offset": effect.offset})

    # --- ownership ---

    def _own(self, handle: Handle, source: BrokerEntry | None) -> Ownership:
        fetch = None if source is None else partial(fetch_from, peer_of(source), handle.bundle)
        return Ownership(handle, clock=self.clock, witness=self._witnesses.of_work, fetch=fetch)

    @property
    def view(self) -> View:
        """The view up to what was read; read only."""
        return self.agent.view

    def ownership(self, namespace: str, key: str) -> Ownership | None:
        """The right to work on `key` of `namespace`, if this broker has it at this moment."""
        return self._router.ownership(namespace, key)

    @property
    def open_bundles(self) -> Sequence[str]:
        """The bundles that are open at this broker, by name."""
        return sorted(self._runner.ownerships)

    async def route(self, namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        """Who serves `key`: this broker's ownership, or another broker. Waits while nobody does.

        Raises `UnknownNamespace`, `DeadlineExceeded` if nobody serves it within `timeout_ms`, `Overloaded`, and `WorkerEnded`.
        """
        return await self._router.route(namespace, key, timeout_ms=timeout_ms)

    async def locate(self, namespace: str, point: int, *, timeout_ms: int) -> Located:
        """The bundle of a hash point and the broker that serves it; held while that is being decided.

        Raises `UnknownNamespace`, `DeadlineExceeded` if it is not decided within `timeout_ms`, and `Overloaded`.
        """
        return await self._router.locate(namespace, point, timeout_ms=timeout_ms)

    # --- what callers ask ---

    async def until(self, condition: Callable[[View], T | None], *, timeout_ms: int, what: str) -> T:
        """What `condition` returns, once that is not None; it is asked again whenever something has changed.

        Raises `DeadlineExceeded` naming `what`, `Overloaded` if too many wait, and `WorkerEnded`.
        """
        return await self._waiting.until(condition, timeout_ms=timeout_ms, what=what)

    async def reached(self, offset: int, *, timeout_ms: int) -> None:
        """Wait until this broker's view has folded `offset`: read your writes."""
        await self.until(lambda view: view.offset >= offset or None, timeout_ms=timeout_ms, what=f"offset {offset} being read")

    async def request(self, intent: Intent, *, timeout_ms: int) -> int:
        """Have something done, and return the offset of the accepted record.

        A proposal that loses a race is made again against the new state. Raises `Rejected` with the reason,
        `OutcomeUnknown` if nobody can tell, `NotProposed` or `Overloaded` if this broker cannot propose now, as soon as it is
        certain that the record was not appended, what `Log.append` says of that, such as `LogStorageFull`, and `WorkerEnded`
        if the broker has ended before anything was proposed.
        """
        return await self._requests.request(intent, timeout_ms=timeout_ms)

    def place_by(self, placement: Placement) -> None:
        """From now on have bundles placed by this plug."""
        self._step(PlacementChosen(placement=placement))

    @property
    def channel_loss(self) -> ChannelLoss | None:
        """Set while the channel is lost to this broker."""
        return channel_loss(self.agent, self._seat.outage, self.clock)

    @property
    def log_is_available(self) -> bool:
        """Whether the log can be read at this moment."""
        return self._seat.outage is None

    @property
    def lag_records(self) -> int:
        """Records that were on the log when it was last looked at, and are not folded yet."""
        return self._seat.lag_entries
