"""Host one agent on asyncio: its clocks, log subscription, timer, disk and services.

The agent decides. `brokers.runtime.callers` and `brokers.runtime.router` answer callers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import orjson

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.core import Profile
from equipoise.brokers.agent.effects import (
    Alarm,
    AlarmName,
    Answered,
    Append,
    Effect,
    ForgetInstanceIds,
    Refold,
    Stop,
    WriteInstanceId,
    WriteMark,
)
from equipoise.brokers.agent.events import (
    AppendFailed,
    DrainRequested,
    Event,
    InstanceIdWritten,
    MarkWritten,
    OpenContinues,
    PlacementChosen,
    Read,
    Resynced,
    Tick,
    UndrainRequested,
    Wanted,
)
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.agent.intents import Intent
from equipoise.brokers.balancing.placement import Placement
from equipoise.brokers.runtime.access import Access
from equipoise.brokers.runtime.bundle_lines import BundleLines
from equipoise.brokers.runtime.callers import Line, Listeners, Requests, Waiting
from equipoise.brokers.runtime.channel_loss import ChannelLoss, channel_loss
from equipoise.brokers.runtime.clock import SystemClock
from equipoise.brokers.runtime.config import WorkerConfig, installed_version
from equipoise.brokers.runtime.data_directory import DataDirectory, DirectoryThread
from equipoise.brokers.runtime.failures import LoggedFailures
from equipoise.brokers.runtime.load_sampler import LoadSampler
from equipoise.brokers.runtime.metrics import Metrics
from equipoise.brokers.runtime.observations.recorder import Recorders
from equipoise.brokers.runtime.router import Located, Opened, Router, may_deny
from equipoise.brokers.runtime.service import Ownership, Peer, Service, WorkerEnded, own_http
from equipoise.brokers.runtime.service_runner import (
    ServiceEffect,
    ServiceRunner,
    end_process,
    peer_of,
)
from equipoise.brokers.runtime.snapshots import ReplayCheck, ReplayProgress, Snapshots, open_marked
from equipoise.brokers.runtime.state_stream import Arrival, Progress, over_http
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.errors import BegunAbove, Bug, DeadlineExceeded, EquipoiseError
from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View
from equipoise.channel.log.append_queue import Appended, AppendOutcome, InDoubt
from equipoise.channel.log.open_log import log_path, opened_in_thread
from equipoise.channel.log.subscription import Subscription
from equipoise.channel.system.deadline import Deadline
from equipoise.channel.system.private_files import writable_by_all
from equipoise.shedder.loads import Resources

_logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

# Time for last records of a stop, after `drain_ms` and `close_ms`.
_LAST_RECORDS_MS: Final = 2_000

# Time to close what is open when the broker ends. No handover is needed, and the next owner does
# not wait.
_LAST_CLOSE_MS: Final = 2_000

# The interval of log lines about failed appends: it shows an outage of the log, and its rate.
_APPEND_LINES_MS: Final = 10_000

# How long a load sample is shared: less than any interval of load reports.
_SAMPLE_FRESH_MS: Final = 250


class Worker:
    """One broker in this process, on the running loop. Call `start`, await `ready(...)`, and
    finally `stop`.
    """

    _drain_by: Deadline | None = None  # From the beginning of `stop`.
    calls = 0  # For keys, so far.

    def __init__(
        self,
        config: WorkerConfig,
        services: Mapping[str, Service],
        *,
        addresses: Mapping[str, str],
        serves_peers: bool = True,
    ) -> None:
        """`services` maps namespace patterns to services; `addresses` maps protocols to addresses
        for clients.

        `serves_peers`: other brokers can fetch state there. Raise `InvalidConfig` for addresses
        that no record can carry and for unusable certificates and keys, and `CallerError`.
        """
        self.config = config
        self.clock = SystemClock()
        self.broker_id = config.id
        self.metrics = Metrics(broker=self.broker_id)
        self.access = Access(
            config,
            addresses=addresses,
            clock=self.clock,
            metrics=self.metrics,
            view=lambda: self.agent.view,
        )
        self.profile = _profile(config, addresses)
        self._runner = ServiceRunner(
            services,
            clock=self.clock,
            make_ownership=self._own,
            step=self._step,
            end_process=end_process,
            serves_peers=serves_peers,
            fetch_spilled=lambda source, bundle, digest: self._arrival(
                source, bundle, digest=digest
            ).whole(),
            sent=self.metrics.state_sent,
        )
        self.services = self._runner.services
        self.service_of = self._runner.service_of
        self.fetch_released = self._runner.fetch_released
        for service in self.services:
            service.host = self
        # Usually one event. The loop calls `_step` for each, and no effect answers within a step.
        # Only code called within one (a listener, a service that learns of a split) can add one, by
        # a drain or a lookup.
        self._events: deque[Event] = deque()
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = Waiting(lambda: self.agent.view, broker=self.broker_id)
        self._requests = Requests(
            self._step, lambda: self.agent.view, broker=self.broker_id, log=config.log_url
        )
        about = {
            "broker": self.broker_id,
            "failed": "append failed",
            "over": "appends succeed again",
        }
        self._append_failures = LoggedFailures(_logger, **about, interval_ms=_APPEND_LINES_MS)
        self._lines = BundleLines(self.metrics.moves, broker=self.broker_id)
        self.loads = LoadSampler(
            self.services,
            broker=self.broker_id,
            clock=self.clock,
            fresh_ms=min(_SAMPLE_FRESH_MS, config.balance_interval_ms // 2),
        )
        self.resources = Resources()  # As last measured; zeros before.
        self._listeners = Listeners(broker=self.broker_id)
        self.listen = self._listeners.listen
        self.replay_progress = ReplayProgress(broker=self.broker_id)
        self._finished: asyncio.Future[None] | None = None
        self.ended: WorkerEnded | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._caught_up = False
        self._ready_as: int | None = None  # The incarnation whose join was logged.
        # Why no further client can connect, by the part that found it.
        self.client_problems: dict[str, str] = {}
        self.append_problem: EquipoiseError | None = None  # Of the last append to the log.
        self.disk_problem: EquipoiseError | None = None  # Of the last write to the data directory.

    # --- life ---

    async def start(self) -> None:
        """Lock the data directory, open the log and start to read it. The broker joins once caught
        up.

        Raise if it cannot start: a locked directory, unsafe timing, an unusable or another
        cluster's log, an evidence file that cannot be written.
        """
        directory = DataDirectory(self.config.data_dir)
        handle = None
        try:
            handle = await opened_in_thread(partial(open_marked, self.config.log_url, directory))
            await asyncio.to_thread(self._warn_of_modes)
            self._snapshots = Snapshots(directory, log=handle.identity, cluster=self.config.cluster)
            reader = await asyncio.to_thread(
                self._snapshots.reader, handle, progress=self.replay_progress.restored
            )
            self.agent = Agent(
                broker=self.broker_id,
                cluster=self.config.cluster,
                reader=reader,
                timing=self.config.timing(),
                profile=self.profile,
                make_instance_id=lambda: secrets.token_hex(16),
                predecessor_instance_ids=directory.instance_ids,
                settings=self.config.base_settings,
            )
            self._recorders = Recorders(self.config, clock=self.clock, log=handle.identity)
        except BaseException:
            if handle is not None:
                handle.close()
            directory.close()
            raise
        self._router = Router(
            self.agent,
            ownerships=self._runner.ownerships,
            clock=self.clock,
            waiting=self,
            step=self._step,
            log_is_readable=lambda: self.log_is_available,
        )
        self._replay_check = ReplayCheck(
            self._snapshots, log_url=self.config.log_url, broker=self.broker_id, fail=self._end
        )
        self._directory = DirectoryThread(directory)
        self._subscription = Subscription(
            lambda: handle,
            name=handle.name,
            position=reader.position,
            deliver=self._deliver,
            caught_up=self._caught_up_at,
            # Restored after a truncation.
            resynced=lambda reader: self._step(Resynced(reader=reader)),
            failed=self._end,
            cluster=self.config.cluster,
        )
        self._finished = asyncio.get_running_loop().create_future()
        self._subscription.start()

    def _warn_of_modes(self) -> None:
        path = log_path(self.config.log_url)
        for exposed, mode in writable_by_all(
            None if path is None else Path(path), self.config.data_dir
        ):
            fields = {"broker": self.broker_id, "path": str(exposed), "mode": f"{mode:04o}"}
            _logger.warning(
                "every user of this machine may write to this path; run chmod o-w on it",
                extra=fields,
            )

    async def ready(self, *, timeout_ms: int) -> None:
        """Wait until it has read to the log's end at its start, and its own `joined`. Raise the
        error that ends it earlier.
        """
        try:
            await self.until(
                lambda _: self.agent.is_ready or None,
                timeout_ms=timeout_ms,
                what=f"broker {self.broker_id} becoming ready",
            )
        except WorkerEnded:
            await self.finished()
            raise

    async def stop(self) -> None:
        """Stop gracefully, bounded by `drain_ms`: drain, move all bundles, leave, and release log
        and directory.
        """
        if self._finished is None:
            return
        try:
            if not self._finished.done():
                _logger.info("stopping", extra={"broker": self.broker_id})
                self._drain_by = Deadline.after(timeout_ms=self.config.drain_ms)
                now = self.clock.now()
                self._step(
                    DrainRequested(leave=True, deadline_ms=now.boot_ms + self.config.drain_ms)
                )
                waited_s = (self.config.drain_ms + self.config.close_ms + _LAST_RECORDS_MS) / 1_000
                await asyncio.wait([self._finished], timeout=waited_s)
            if not self._finished.done():
                _logger.warning(
                    "broker could not leave in time; other brokers will declare it dead",
                    extra={"broker": self.broker_id},
                )
        finally:
            self._end(None)
            await self._released()

    async def all_fetched(self, *, by: Deadline | None = None) -> None:
        """Wait for next owners that fetch state from here. Those that stream have until `by`; by
        default what `stop` left of `drain_ms`.
        """
        by = by or self._drain_by
        await self._runner.all_fetched(stream_ms=0 if by is None else by.remaining_ms())

    async def abort(self) -> None:
        """Release everything without a record for other brokers, as if the process had died.

        Services are not notified: operations are cancelled, open bundles are not closed.
        """
        self._end(None, abruptly=True)
        await self._released()

    async def finished(self) -> None:
        """Wait until the agent has ended. Raise the error that ended it."""
        assert self._finished is not None, "a worker is started before it is waited for"
        await asyncio.shield(self._finished)

    def check(self) -> None:
        """Raise `WorkerEnded` if the broker has ended."""
        if self.ended is not None:
            raise self.ended.with_traceback(None)  # All callers share it.

    async def _released(self) -> None:
        if self._releasing is not None:
            await asyncio.shield(self._releasing)

    async def _release(self, *, abruptly: bool, is_sound: bool) -> None:
        """In this order: close services, finish writes, release the directory's lock.

        Save only a sound view: after a failure, the next start must not begin with it.
        """
        try:
            held = self.open_bundles
            if held and not abruptly:
                _logger.info(
                    "closing the open bundles", extra={"broker": self.broker_id, "bundles": held}
                )
            if not abruptly:
                await self._runner.close_all(timeout_ms=_LAST_CLOSE_MS)
            await self._runner.stop()
            if is_sound and not abruptly and self._caught_up:
                self._snapshots.save(self.agent.view, self._directory)
            await self._ended_in_time("log stays open", self._subscription.stop)
        finally:
            self._replay_check.cancel()
            await asyncio.to_thread(self._recorders.close)
            await self._ended_in_time("data directory stays locked", self._directory.stop)

    async def _ended_in_time(
        self, otherwise: str, stop: Callable[[Deadline], Awaitable[None]]
    ) -> None:
        """Stop a thread. If its log or disk does not answer, log `otherwise`; the thread ends when
        the answer arrives.
        """
        try:
            await stop(Deadline.after(timeout_ms=_LAST_RECORDS_MS))
        except DeadlineExceeded as error:
            _logger.warning("%s: %s", otherwise, error, extra={"broker": self.broker_id})

    def drain(self, *, requested_by: str | None = None) -> None:
        """Take no new bundles and move all away, without leaving. `requested_by` is as in
        `request`.
        """
        deadline_ms = self.clock.now().boot_ms + self.config.drain_ms
        self._step(DrainRequested(leave=False, deadline_ms=deadline_ms, requested_by=requested_by))

    def undrain(self) -> None:
        """End a drain: join again in a new incarnation, which takes bundles, once all bundles are
        away.
        """
        self._step(UndrainRequested())

    # --- the loop of events and effects ---

    def _deliver(self, entries: Sequence[Entry]) -> None:
        self._step(Read(entries=entries, caught_up=self._caught_up))
        if not self._caught_up:
            self.replay_progress.read(len(entries), max(self.lag_records - len(entries), 0))

    def _caught_up_at(self, _end: int) -> None:
        self._caught_up = True
        self.replay_progress.ended()
        self._step(Read(entries=(), caught_up=True))

    def _step(self, event: Event) -> None:
        """Give the agent one event and carry out its effects. Further events follow in order.

        Any exception ends the broker: effects may be lost that the agent considers done.
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
                self._recorders.stepped(taken, self.agent)
                if self.agent.incarnation != self._ready_as:
                    self._note_membership()
                # A mere check must not make all waiting callers check again.
                if effects or not isinstance(taken, Tick | Wanted):
                    self._waiting.changed()
        except EquipoiseError as error:
            # The log's thread handles it. Before a genesis no effect can be lost.
            if isinstance(error, BegunAbove):
                raise
            self._end(error)
        except Exception as error:
            _logger.exception("step failed", extra={"broker": self.broker_id})
            self._end(
                Bug(f"broker {self.broker_id} failed in a step: {type(error).__name__}: {error}")
            )
        finally:
            self._stepping = False
        self._arm_timer()

    def _note_membership(self) -> None:
        """Log each join, also the one after this broker was declared dead."""
        if not self.agent.is_ready:
            return
        self._ready_as = self.agent.incarnation
        fields = {
            "broker": self.broker_id,
            "incarnation": self._ready_as,
            "address": own_http(self.profile.addresses),
        }
        _logger.info("ready", extra=fields)

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._finished is None or self._finished.done():
            return
        delay_ms = self.agent.wake_at_ms - self.clock.now().boot_ms
        self._timer = asyncio.get_running_loop().call_later(
            max(delay_ms, 1) / 1_000, self._step, Tick()
        )

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Folded):
            self._observe(effect)
        elif isinstance(effect, Resync):
            self._observe_resync(effect)
        elif isinstance(effect, Append):
            self._subscription.append(effect.data, partial(self._appended, effect))
        elif isinstance(effect, ServiceEffect):
            self._lines.carried_out(effect, self.agent.view)
            self._recorders.carried_out(effect)
            self._runner.carry_out(effect)
        elif isinstance(effect, Answered):
            self._requests.answer(effect)
        elif isinstance(effect, WriteMark):
            mark = self._snapshots.mark(effect.offset, base=effect.base)
            self._directory.write(
                lambda directory: directory.write_mark(mark),
                partial(self._disk_answered, then=MarkWritten(offset=effect.offset)),
            )
        elif isinstance(effect, WriteInstanceId | ForgetInstanceIds):
            self._keep_instance_ids(effect)
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
        _logger.warning(
            alarm.message, extra={"alarm": alarm.name, "broker": self.broker_id, **fields}
        )

    def _keep_instance_ids(self, effect: WriteInstanceId | ForgetInstanceIds) -> None:
        """Write in order, in the directory's thread: a `joined` is sent after its instance id is on
        disk.

        A failing disk delays joining; a member only raises an alarm.
        """
        if isinstance(effect, ForgetInstanceIds):
            keep = effect.keep
            self._directory.write(
                lambda directory: directory.forget_instance_ids(keep), self._disk_answered
            )
        else:
            instance_id, written = (
                effect.instance_id,
                partial(
                    self._disk_answered, then=InstanceIdWritten(instance_id=effect.instance_id)
                ),
            )
            self._directory.write(
                lambda directory: directory.write_instance_id(instance_id), written
            )

    def _disk_answered(self, error: EquipoiseError | None, *, then: Event | None = None) -> None:
        self.disk_problem = error
        if error is not None:
            self._raise_alarm(Alarm(name=AlarmName.DATA_DIRECTORY, message=str(error)))
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
            return  # A channel was copied to a log that was empty; nothing was missed.
        fields = {
            "broker": self.broker_id,
            "before": resync.before,
            "offset": resync.offset,
            "changes": len(resync.changes),
        }
        _logger.warning("resynced: records were truncated before they were read", extra=fields)
        self.metrics.resynced(resync)
        # The previous snapshot is useless now.
        self._snapshots.save(self.agent.view, self._directory)
        self._listeners.resynced(resync)

    def _appended(self, append: Append, outcome: AppendOutcome) -> None:
        if isinstance(outcome, Appended):
            self.append_problem = None
            self._append_failures.succeeded()
        else:
            self.append_problem = outcome.error
            self._append_failures.failed(
                outcome.error, self.clock.now().boot_ms, partial(_named, append.data)
            )
            self._step(
                AppendFailed(
                    attempt=append.attempt,
                    error=outcome.error,
                    in_doubt=isinstance(outcome, InDoubt),
                )
            )

    def _end(self, error: EquipoiseError | None, *, abruptly: bool = False) -> None:
        """End the broker, once: its view no longer counts, and it releases everything.

        With an `error` it cannot read the log or misread it, so its view cannot be trusted.
        """
        if self._finished is None or self._finished.done():
            return
        self.agent.lease.lose()
        self._recorders.ended()
        if self._timer is not None:
            self._timer.cancel()
        if error is None:
            self._finished.set_result(None)
        else:
            _logger.error("broker ends: %s", error, extra={"broker": self.broker_id})
            self._finished.set_exception(error)
            self._finished.exception()  # Marked as retrieved: there may be no caller of `finished`.
        self.ended = WorkerEnded(
            broker=self.broker_id,
            problem="it has left the cluster" if error is None else str(error),
        )
        self.ended.__cause__ = error
        self._waiting.end(self.ended)
        self._requests.end(self.ended)
        self._releasing = asyncio.get_running_loop().create_task(
            self._release(abruptly=abruptly, is_sound=error is None),
            name=f"the end of broker {self.broker_id}",
        )
        # As above.
        self._releasing.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _refold(self, effect: Refold) -> None:
        """Check this broker's view against the log after views diverged. Stop if ours is wrong."""
        if self._caught_up and self._replay_check.begin(self.agent.view):
            name = AlarmName.VIEWS_DIVERGE
            self.metrics.alarm(name)
            _logger.error(
                "views diverge",
                extra={
                    "alarm": name,
                    "broker": self.broker_id,
                    "other": effect.other,
                    "offset": effect.offset,
                },
            )

    # --- ownership ---

    def _own(self, handle: Handle, source: BrokerEntry | None) -> Ownership:
        if source is None:
            return Ownership(
                handle,
                clock=self.clock,
                record=self._recorders.record_work,
                admitted=self._runner.admitted,
            )
        goes_on = partial(self._step, OpenContinues(bundle=handle.bundle))

        def arrival() -> Arrival:
            progress = Progress(
                handle.bundle, source.broker, received=self.metrics.state_received, goes_on=goes_on
            )
            return self._arrival(peer_of(source), handle.bundle, progress=progress)

        return Ownership(
            handle,
            clock=self.clock,
            record=self._recorders.record_work,
            fetch=lambda: arrival().whole(),
            stream=lambda: arrival().stream(),
            admitted=self._runner.admitted,
        )

    def _arrival(
        self,
        source: Peer,
        bundle: str,
        *,
        digest: str | None = None,
        progress: Progress | None = None,
    ) -> Arrival:
        """Return state of another broker. Each connection uses the token and the certificates of
        its time.
        """
        request = over_http(
            source,
            bundle,
            digest,
            token=self.access.own_token,
            tls=lambda: self.access.certificates.client,
        )
        return Arrival(source, bundle, request, progress=progress)

    @property
    def view(self) -> View:
        """The view up to the last record that was read. Read only."""
        return self.agent.view

    @property
    def log_name(self) -> str:
        """The URL of the log, for messages."""
        return self.config.log_url

    def ownership(self, namespace: str, key: str) -> Ownership | None:
        """Return this broker's ownership of `key`, or None if it does not own the key now."""
        self.calls += 1
        return self._router.ownership(namespace, key)

    @property
    def open_bundles(self) -> Sequence[str]:
        """The bundles that are open at this broker, by name."""
        return sorted(self._runner.ownerships)

    async def route(self, namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        """Return this broker's ownership of `key`, or the broker that serves it. Wait while no
        broker does.

        Raise `UnknownNamespace`, `DeadlineExceeded` if no broker serves it within `timeout_ms`,
        `Overloaded`, and `WorkerEnded`.
        """
        self.calls += 1
        return await self._router.route(namespace, key, timeout_ms=timeout_ms)

    async def locate(self, namespace: str, point: int, *, timeout_ms: int) -> Located:
        """Return the bundle of a hash point and its broker. Wait while no broker serves it.

        Raise `UnknownNamespace`, `DeadlineExceeded` after `timeout_ms`, and `Overloaded`.
        """
        return await self._router.locate(namespace, point, timeout_ms=timeout_ms)

    async def known(
        self, namespace: str, look: Callable[[View], T | None], *, timeout_ms: int, what: str
    ) -> T:
        """Return the first result of `look` in a namespace. Raise `UnknownNamespace` once that is
        certain, and as `until` does.
        """
        return await self._router.known(namespace, look, timeout_ms=timeout_ms, what=what)

    async def opened_here(self, tokens: Mapping[str, int], *, timeout_ms: int) -> Opened:
        """Wait until this broker has opened bundles under these `tokens`, or does not own them so.
        Return those that are open then.

        Raise `Overloaded` and `WorkerEnded`.
        """
        return await self._router.opened_here(tokens, timeout_ms=timeout_ms)

    async def opened(self, tokens: Mapping[str, int], *, timeout_ms: int) -> Opened:
        """Ask the owners of bundles as `opened_here`, all at once. An owner that does not answer
        has opened nothing.
        """
        return await self._router.opened(
            tokens,
            timeout_ms=timeout_ms,
            own_token=self.access.own_token,
            tls=self.access.certificates.client,
        )

    # --- what callers ask ---

    async def up_to_date(self, *, timeout_ms: int) -> bool:
        """Read to the end that the log has now. Return whether the view then shows what exists, so
        that other things may be denied.

        False without a lease or the channel, or if the log does not answer in time. All callers of
        a moment share one question to the log. Raise `WorkerEnded`.
        """
        self.check()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1_000):
                return self._may_deny() and await self._subscription.read_on() and self._may_deny()
        return False

    def _may_deny(self) -> bool:
        return may_deny(self.agent, self.clock.now(), log_is_readable=self.log_is_available)

    def has_line(self, line: Line) -> bool:
        """Return whether callers wait in a line. Who comes now goes behind them."""
        return self._waiting.has_line(line)

    async def until(
        self,
        condition: Callable[[View], T | None],
        *,
        timeout_ms: int,
        what: str,
        line: Line | None = None,
    ) -> T:
        """Return the first value of `condition` other than None. It is called after each change. In
        a `line` others may be first.

        Raise `DeadlineExceeded` naming `what`, `Overloaded` if too many wait, and `WorkerEnded`.
        """
        return await self._waiting.until(condition, timeout_ms=timeout_ms, what=what, line=line)

    async def reached(self, offset: int, *, timeout_ms: int) -> None:
        """Wait until `offset` is folded, to read your own writes."""
        await self.until(
            lambda view: view.offset >= offset or None,
            timeout_ms=timeout_ms,
            what=f"offset {offset} being read",
        )

    async def request(
        self, intent: Intent, *, timeout_ms: int, requested_by: str | None = None
    ) -> Folded:
        """Propose `intent`, retry lost races, and return the accepted record.

        `requested_by` (`admin:NAME`) is the operator to name in the record; None if the broker acts
        on its own.

        * `Rejected`: with the reason.
        * `OutcomeUnknown`: the result cannot be known.
        * `NotProposed`, `Overloaded`: this broker cannot propose now, and the record was certainly
          not appended.
        * The errors of `Log.append`, such as `LogStorageFull`.
        * `WorkerEnded`: the broker ended before it proposed.
        """
        return await self._requests.request(
            intent, timeout_ms=timeout_ms, requested_by=requested_by
        )

    @property
    def placement(self) -> Placement:
        """The current placement policy."""
        return self.agent.placement

    def place_by(self, placement: Placement) -> None:
        """Use this placement policy from now on."""
        self._step(PlacementChosen(placement=placement))

    @property
    def channel_loss(self) -> ChannelLoss | None:
        """The loss of the channel; None while the broker has it."""
        return channel_loss(self.agent, self._subscription.outage, self.clock)

    @property
    def log_is_available(self) -> bool:
        """Whether the log can be read now."""
        return self._subscription.outage is None

    @property
    def lag_records(self) -> int:
        """Records that were on the log at the last look and are not folded yet."""
        return self._subscription.lag_entries


def _named(data: bytes) -> dict[str, object]:
    """Return the kind and the key of a record, for a log line."""
    record = orjson.loads(data)
    return {"kind": record["kind"], "key": record["key"]}


def _profile(config: WorkerConfig, addresses: Mapping[str, str]) -> Profile:
    """Return what the broker publishes on joining."""
    return Profile(
        addresses=dict(addresses),
        capacity=config.capacity,
        failure_domain=config.failure_domain,
        labels=dict(config.labels),
        version=installed_version(),
    )
