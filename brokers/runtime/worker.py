"""Host one agent on asyncio: its clocks, log subscription, timer, disk and services.

The agent decides. `brokers.runtime.callers` and `brokers.runtime.router` answer callers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.events import (
    DrainRequested,
    Event,
    PlacementChosen,
    ProcessEnded,
    Reachable,
    UndrainRequested,
)
from equipoise.brokers.balancing.placement import Placement
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.load.load_sampler import LoadSampler
from equipoise.brokers.runtime.access import Access, profile_of
from equipoise.brokers.runtime.agent_loop import AgentLoop, Parts
from equipoise.brokers.runtime.callers import Requests, Waiting
from equipoise.brokers.runtime.clock import SystemClock
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.metrics import LookupOutcome, Metrics
from equipoise.brokers.runtime.observations.recorder import Recorders
from equipoise.brokers.runtime.router import (
    ChannelLoss,
    Located,
    OpenedBundles,
    Router,
    channel_loss,
    may_deny,
)
from equipoise.brokers.runtime.service import Ownership, Peer, Service, WorkerEnded, own_http
from equipoise.brokers.runtime.service_runner import (
    OwnershipsOverHttp,
    ServiceRunner,
    end_process,
)
from equipoise.brokers.runtime.snapshots import LocalState, ReplayProgress
from equipoise.channel.core.errors import DeadlineExceeded, EquipoiseError
from equipoise.channel.core.view import View
from equipoise.channel.log.listeners import Listeners
from equipoise.channel.system.clocks import Deadline

_logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

PROCESS: Final = "X-Equipoise-Process"
"""The header in which `/health` names the process that answers, so that it knows itself."""

# Time for last records of a stop, after `drain_ms` and `close_ms`.
_LAST_RECORDS_MS: Final = 2_000

# Time to close what is open when the broker ends. No handover is needed, and the next owner does
# not wait.
_LAST_CLOSE_MS: Final = 2_000

# How long a load sample is shared: less than any interval of load reports.
_SAMPLE_FRESH_MS: Final = 250


class Worker:
    """One broker in this process, on the running loop. Call `start`, await `ready(...)`, and
    finally `stop`.
    """

    _drain_by: Deadline | None = None  # From the beginning of `stop`.
    _finished: asyncio.Future[None] | None = None
    _releasing: asyncio.Task[None] | None = None
    ended: WorkerEnded | None = None
    # Namespaces that this program creates. No answer says that they do not exist.
    promised: frozenset[str] = frozenset()
    calls = 0  # For keys, so far.
    log_id = ""  # The identity of the log, once it is open.

    def __init__(
        self,
        config: WorkerConfig,
        services: Mapping[str, Service],
        *,
        addresses: Mapping[str, str],
        serves_peers: bool = True,
        is_reachable: bool = True,
    ) -> None:
        """`services`: by namespace pattern. `addresses`: for clients, by protocol. `serves_peers`:
        other brokers can fetch state there. `is_reachable`: clients arrive there. Otherwise it
        joins after a call of `reachable`. Raise `InvalidConfig` for addresses that no record can
        carry and for unusable certificates and keys, and `CallerError`.
        """
        self.config = config
        self.clock = SystemClock()
        self.broker_id = config.id
        self.process = secrets.token_hex(16)
        self.is_reachable = is_reachable
        self.metrics = Metrics(broker=self.broker_id)
        self.access = Access(
            config,
            addresses=addresses,
            clock=self.clock,
            metrics=self.metrics,
            view=lambda: self.agent.view,
        )
        self._ownerships = self._over_http()
        self._runner = ServiceRunner(
            services,
            clock=self.clock,
            make_ownership=self._ownerships.make,
            step=self._step,
            end_process=end_process,
            serves_peers=serves_peers,
            fetch_spilled=self._ownerships.fetch_spilled,
            sent=lambda size: self.metrics.count("state_bytes_total", "sent", by=size),
        )
        self.profile = profile_of(config, addresses, self._runner.namespaces)
        self.services = self._runner.services
        self.service_of = self._runner.service_of
        self.fetch_released = self._runner.fetch_released
        for service in self.services:
            service.host = self
        self._waiting = Waiting(lambda: self.agent.view, broker=self.broker_id)
        self.until = self._waiting.until
        self.has_line = self._waiting.has_line
        self._requests = Requests(
            self._step, lambda: self.agent.view, broker=self.broker_id, log=config.log_url
        )
        self.request = self._requests.request
        self._requests.trace(self.clock, self._runner.ownerships)
        self.traces, self.span = self._requests.traces, self._requests.span
        self.loads = LoadSampler(
            self.services,
            accounts=lambda: {name: each.account for name, each in self._runner.ownerships.items()},
            broker=self.broker_id,
            now_ms=lambda: self.clock.now().boot_ms,
            fresh_ms=min(_SAMPLE_FRESH_MS, config.balance_interval_ms // 2),
        )
        self._listeners = Listeners(f"broker {self.broker_id}", {"broker": self.broker_id})
        self.listen = self._listeners.listen
        self.replay_progress = ReplayProgress(broker=self.broker_id)
        # Why no further client can connect, by the part that found it.
        self.client_problems: dict[str, str] = {}

    def _over_http(self) -> OwnershipsOverHttp:
        return OwnershipsOverHttp(
            clock=self.clock,
            own_token=self.access.own_token,
            tls=lambda: self.access.certificates.client,
            received=lambda size: self.metrics.count("state_bytes_total", "received", by=size),
            step=self._step,
            record=lambda: self._recorders.record_work,
            admitted=lambda: self._runner.admitted,
            measures_cpu=self.config.measure_cpu,
        )

    # --- life ---

    async def start(self) -> None:
        """Lock the data directory, open the log and start to read it. The broker joins once caught
        up.

        Raise if it cannot start: a locked directory, unsafe timing, an unusable or another
        cluster's log, an evidence file that cannot be written.
        """
        self._ownerships.start()
        self._local_state = LocalState(self.config, fail=self._end)
        self.profile = replace(self.profile, lock=self._local_state.lock)
        try:
            log, reader = await self._local_state.open_log(self.replay_progress.restored)
            self.log_id = log.identity
            try:
                # One for all, so that each report is read once.
                self.load_bus = LoadBus(self.config.log_url)
                self.agent = Agent(
                    broker=self.broker_id,
                    cluster=self.config.cluster,
                    reader=reader,
                    timing=self.config.timing(),
                    profile=self.profile,
                    make_instance_id=lambda: secrets.token_hex(16),
                    predecessor_instance_ids=self._local_state.instance_ids,
                    settings=self.config.base_settings,
                    is_reachable=self.is_reachable,
                )
                self._recorders = Recorders(self.config, clock=self.clock, log=log.identity)
            except BaseException:
                log.close()
                raise
        except BaseException:
            self._local_state.close()
            raise
        self.router = Router(
            self.agent,
            ownerships=self._runner.ownerships,
            clock=self.clock,
            waiting=self,
            step=self._step,
            log_is_readable=lambda: self.log_is_available,
            promised=lambda: self.promised,
        )
        self._local_state.begin()
        parts = Parts(
            access=self.access,
            clock=self.clock,
            listeners=self._listeners,
            local_state=self._local_state,
            metrics=self.metrics,
            progress=self.replay_progress,
            serving=self._recorders.serving,
            requests=self._requests,
            runner=self._runner,
            waiting=self._waiting,
        )
        self._loop = AgentLoop(
            self.agent,
            log,
            parts,
            position=reader.position,
            cluster=self.config.cluster,
            address=own_http(self.profile.addresses),
            end=self._end,
        )
        self._finished = asyncio.get_running_loop().create_future()
        self._loop.subscription.start()

    async def ready(self, *, timeout_ms: int) -> None:
        """Wait until it has read to the log's end at its start, and its own `joined`. Raise the
        error that ends it earlier.
        """
        what = f"broker {self.broker_id} becoming ready"
        await self._begun(lambda: self.agent.is_ready, what, timeout_ms)

    async def caught_up(self, *, timeout_ms: int) -> None:
        """Wait until it has read to the log's end at its start. Raise the error that ends it
        earlier.
        """
        what = f"broker {self.broker_id} reading the log"
        await self._begun(lambda: self._loop.has_caught_up, what, timeout_ms)

    async def _begun(self, has_begun: Callable[[], bool], what: str, timeout_ms: int) -> None:
        try:
            await self.until(lambda _: has_begun() or None, timeout_ms=timeout_ms, what=what)
            self.check()
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
        await self._loop.assurances.stop()
        try:
            held = self.open_bundles
            if held and not abruptly:
                _logger.info(
                    "closing the open bundles", extra={"broker": self.broker_id, "bundles": held}
                )
            if not abruptly:
                await self._runner.close_all(timeout_ms=_LAST_CLOSE_MS)
            await self._runner.stop()
            if is_sound and not abruptly and self._loop.has_caught_up:
                self._local_state.save(self.agent.view)
            await self._ended_in_time("log stays open", self._loop.subscription.stop)
        finally:
            self._local_state.replay_check.cancel()
            await asyncio.to_thread(self._recorders.close)
            await self._ended_in_time("data directory stays locked", self._local_state.stop)

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

    def reachable(self) -> None:
        """Let it join."""
        self.is_reachable = True
        self._step(Reachable())

    def process_ended(self, instance_ids: frozenset[str]) -> None:
        """Note that the process that made these instance ids has ended."""
        self._step(ProcessEnded(instance_ids=instance_ids))

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

    def _step(self, event: Event) -> None:
        self._loop.step(event)

    def _end(self, error: EquipoiseError | None, *, abruptly: bool = False) -> None:
        """End the broker, once: its view no longer counts, and it releases everything.

        With an `error` it cannot read the log or misread it, so its view cannot be trusted.
        """
        if self._finished is None or self._finished.done():
            return
        self.agent.lease.lose()
        self._recorders.serving.stopped()
        self._loop.stop()
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

    @property
    def view(self) -> View:
        """The view up to the last record that was read. Read only."""
        return self.agent.view

    @property
    def append_problem(self) -> EquipoiseError | None:
        """The error of the last append to the log."""
        return self._loop.append_problem

    @property
    def disk_problem(self) -> EquipoiseError | None:
        """The error of the last write to the data directory."""
        return self._local_state.problem

    @property
    def log_name(self) -> str:
        """The URL of the log, for messages."""
        return self.config.log_url

    def ownership(self, namespace: str, key: str) -> Ownership | None:
        """Return this broker's ownership of `key`, or None if it does not own the key now."""
        self.calls += 1
        return self.router.ownership(namespace, key)

    @property
    def open_bundles(self) -> Sequence[str]:
        """The bundles that are open at this broker, by name."""
        return sorted(self._runner.ownerships)

    def owned(self, namespace: str, key: str) -> Ownership | None:
        """See `brokers.runtime.service.ServiceHost.owned`."""
        self.calls += 1
        return self.router.owned(namespace, key)

    async def route(self, namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        """Return this broker's ownership of `key`, or the broker that serves it. Wait while no
        broker does.

        Raise `UnknownNamespace`, `DeadlineExceeded` if no broker serves it within `timeout_ms`,
        `Overloaded`, and `WorkerEnded`.
        """
        self.calls += 1
        return await self.router.route(namespace, key, timeout_ms=timeout_ms)

    async def assures(self, *, cluster: str, asker: int, asked: int) -> bool:
        """Return whether this broker, as the incarnation `asked`, gives another an assurance."""
        return await self._loop.assurances.asked(cluster=cluster, asker=asker, asked=asked)

    async def opened(self, tokens: Mapping[str, int], *, timeout_ms: int) -> OpenedBundles:
        """Ask the owners of bundles as `opened_here`, all at once. An owner that does not answer
        has opened nothing.
        """
        return await self.router.opened(
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
                return (
                    self._may_deny()
                    and await self._loop.subscription.read_on()
                    and self._may_deny()
                )
        return False

    def _may_deny(self) -> bool:
        return may_deny(self.agent, self.clock.now(), log_is_readable=self.log_is_available)

    async def reached(self, offset: int, *, timeout_ms: int) -> None:
        """Wait until `offset` is folded, to read your own writes."""
        await self.until(
            lambda view: view.offset >= offset or None,
            timeout_ms=timeout_ms,
            what=f"offset {offset} being read",
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
        return channel_loss(self.agent, self._loop.subscription.outage, self.clock)

    @property
    def log_is_available(self) -> bool:
        """Whether the log can be read now."""
        return self._loop.subscription.outage is None

    @property
    def lag_records(self) -> int:
        """Records that were on the log at the last look and are not folded yet."""
        return self._loop.subscription.lag_entries


class Lookups:
    """The lookups of one worker, for every protocol. It holds those that cannot be answered yet.

    Pulsar's C++ and Python clients treat any HTTP error as final, and a refused client backs off
    for longer than a failover.
    """

    def __init__(self, worker: Worker) -> None:
        """`worker` answers the lookups and reports changes."""
        self._worker = worker
        self.held = 0  # The number of lookups that wait.

    async def locate(self, namespace: str, point: int, *, started_ns: int) -> Located:
        """Return the bundle at `point` and its broker. Wait up to `lookup_ms` for one. Count the
        outcome.

        After a loss of the channel, only lookups of namespaces that serve on are answered, and
        marked. `started_ns` is the request's monotonic time. Raise `UnknownNamespace`, `PeerError`
        for a bundle in quarantine, `DeadlineExceeded`, and `Overloaded` if too many wait.
        """
        outcome = LookupOutcome.REFUSED
        try:
            located = await self._at_once(namespace, point)
            if located is None:
                located = await self._hold(namespace, point)
                outcome = LookupOutcome.HELD
            else:
                outcome = LookupOutcome.ANSWERED
        except DeadlineExceeded:
            outcome = LookupOutcome.TIMED_OUT
            raise
        finally:
            self._worker.metrics.lookup(outcome, started_ns=started_ns)
        return located

    async def _at_once(self, namespace: str, point: int) -> Located | None:
        """Return the answer if it is known now, without a task or a timer."""
        try:
            return await self._worker.router.locate(namespace, point, timeout_ms=0)
        except DeadlineExceeded:
            return None

    async def _hold(self, namespace: str, point: int) -> Located:
        self.held += 1
        try:
            return await self._worker.router.locate(
                namespace, point, timeout_ms=self._worker.config.lookup_ms
            )
        finally:
            self.held -= 1
