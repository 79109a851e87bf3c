"""The worker: an asyncio host of one agent. It owns the clocks, the log's thread, the timer, the disk and the services.

May live here: the loop of events and effects, and what callers of this process may ask of the broker. Decisions are the
agent's; what a caller waits for is a condition on the view, looked at again whenever something has changed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from brokers.agent.agent import Agent
from brokers.agent.core import Profile
from brokers.agent.effects import (
    Alarm,
    Answered,
    Append,
    Effect,
    ForgetNonces,
    Refold,
    Stop,
    WriteNonce,
)
from brokers.agent.events import AppendFailed, DrainRequested, Event, NonceWritten, Read, Requested, Tick, Wanted
from brokers.agent.handle import Handle
from brokers.agent.intents import Intent, subject_of
from brokers.clock import Clock, SystemClock
from brokers.config import WorkerConfig
from brokers.data_directory import DataDirectory
from brokers.evidence import EvidenceFile
from brokers.handover import fetch_from
from brokers.metrics import Metrics
from brokers.routing import server_of
from brokers.service import Ownership, Peer, Service
from brokers.service_runner import ServiceEffect, ServiceRunner, peer_of
from brokers.snapshots import Snapshots
from channel.deadline import Deadline
from channel.entries import BrokerEntry, BundleEntry
from channel.errors import Bug, DataDirectoryUnusable, EquipoiseError, LogUnavailable, OutcomeUnknown, Rejected, UnknownNamespace
from channel.log import Entry
from channel.log_thread import Appended, AppendOutcome, LogThread
from channel.open_log import open_log
from channel.ranges import key_hash
from channel.reader import Folded
from channel.records import Reason
from channel.view import View

_logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

# What waits for the view looks again this often even if nothing changed: a suspect broker becomes one by time alone.
_LOOK_AGAIN_MS: Final = 100

# A proposal that loses a race is made again against the new state, this often: each time somebody else made progress.
_RACES_MAX: Final = 5

# A worker that stops gives up on draining after `drain_ms`, closes within `close_ms`, and has this long for its last words.
_LAST_WORDS_MS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The answer to a lookup: the bundle, and the broker that serves it."""

    bundle: BundleEntry
    broker: BrokerEntry


class Worker:
    """One broker in this process, on the running loop. `start` it, `await ready(...)`, and `stop` it."""

    def __init__(
        self, config: WorkerConfig, services: Mapping[str, Service], *, addresses: Mapping[str, str], clock: Clock | None = None
    ) -> None:
        """`services` maps patterns of namespaces to services; `addresses`, protocols to where clients find this broker."""
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.broker_id = config.id
        self.metrics = Metrics(broker=self.broker_id)
        self._profile = Profile(
            addresses=dict(addresses), capacity=config.capacity, failure_domain=config.failure_domain, labels=dict(config.labels)
        )
        self._runner = ServiceRunner(services, make_ownership=self._own, step=self._step, end_process=_end_process)
        for service in self._runner.services:
            service.host = self
        self._events: deque[Event] = deque()
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._listeners: dict[int, Callable[[Folded], None]] = {}
        self._tickets: dict[int, asyncio.Future[Answered]] = {}
        self._numbers = itertools.count(1)
        self._finished: asyncio.Future[None] | None = None
        self._caught_up = False
        self._gone = False
        self._refolding: asyncio.Task[None] | None = None
        self._evidence = None if config.evidence is None else EvidenceFile(config.evidence, broker=self.broker_id)

    # --- life ---

    async def start(self) -> None:
        """Lock the data directory, open the log, and begin to read it; joining follows by itself.

        Raises what makes a start impossible: a locked directory, an unsafe timing, a log that cannot be used or is another
        cluster's.
        """
        self._directory = DataDirectory(self.config.data_dir)
        handle = None
        try:
            handle = await asyncio.to_thread(open_log, self.config.log_url)
            self._snapshots = Snapshots(self._directory, log=handle.identity, cluster=self.config.cluster)
            reader = await asyncio.to_thread(self._snapshots.reader, handle)
            self.agent = Agent(
                broker=self.broker_id,
                cluster=self.config.cluster,
                reader=reader,
                timing=self.config.timing(),
                profile=self._profile,
                make_nonce=lambda: secrets.token_hex(16),
                predecessor_nonces=self._directory.nonces,
            )
        except BaseException:
            if handle is not None:
                handle.close()
            self._directory.close()
            raise
        self._thread = LogThread(
            lambda: handle,
            name=handle.name,
            position=reader.position,
            deliver=self._deliver,
            caught_up=self._caught_up_at,
            failed=self._fail,
        )
        self._finished = asyncio.get_running_loop().create_future()
        self._thread.start()

    async def ready(self, *, timeout_ms: int) -> None:
        """Wait until it has read to the end that it saw at its start, and its own `joined`."""
        await self.until(lambda _: self.agent.is_ready or None, timeout_ms=timeout_ms, what=f"broker {self.broker_id} becoming ready")

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
        finally:
            await self._let_go()

    async def abort(self) -> None:
        """Let go of everything at once, without a word to the others: what a process that dies does, for one that lives on."""
        self._end(None)
        await self._let_go()

    async def finished(self) -> None:
        """Wait until the agent has ended by itself; raises the error that ended it."""
        assert self._finished is not None, "a worker is started before it is waited for"
        await asyncio.shield(self._finished)

    async def _let_go(self) -> None:
        if self._gone:
            return
        self._gone = True
        if self._timer is not None:
            self._timer.cancel()
        self.agent.lease.lose()
        try:
            await self._runner.stop()
            if self._thread.failure is None and self._caught_up:
                self._snapshots.save(self.agent.view)
            await self._thread.stop(Deadline.after(timeout_ms=_LAST_WORDS_MS))
        finally:
            if self._refolding is not None:
                self._refolding.cancel()
            self._directory.close()
            if self._evidence is not None:
                self._evidence.close()

    def drain(self) -> None:
        """Take nothing new and move everything away, without leaving."""
        self._step(DrainRequested(leave=False, deadline_ms=self.clock.now().boot_ms + self.config.drain_ms))

    # --- the loop of events and effects ---

    def _deliver(self, entries: Sequence[Entry]) -> None:
        self._step(Read(entries=entries, caught_up=self._caught_up))

    def _caught_up_at(self, _end: int) -> None:
        self._caught_up = True
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
                effects = self.agent.step(taken, self.clock.now())
                for effect in effects:
                    self._carry_out(effect)
                # What only a look brought about must not make everybody look again.
                if effects or not isinstance(taken, Tick | Wanted):
                    self._changed.set()
        except EquipoiseError as error:
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
        elif isinstance(effect, Append):
            self._thread.append(effect.data, partial(self._appended, effect.attempt))
        elif isinstance(effect, ServiceEffect):
            self._runner.carry_out(effect)
        elif isinstance(effect, Answered):
            self._answer(effect)
        elif isinstance(effect, WriteNonce | ForgetNonces):
            self._keep_nonces(effect)
        elif isinstance(effect, Alarm):
            self.metrics.alarm(effect.name)
            _logger.warning(effect.message, extra={"alarm": effect.name, "broker": self.broker_id})
        elif isinstance(effect, Refold):
            self._refold(effect)
        elif isinstance(effect, Stop):
            self._end(effect.error)

    def _keep_nonces(self, effect: WriteNonce | ForgetNonces) -> None:
        """A disk that takes nothing keeps a broker from joining until it does, and costs a member nothing but an alarm."""
        try:
            if isinstance(effect, ForgetNonces):
                self._directory.forget_nonces(effect.keep)
            else:
                self._directory.write_nonce(effect.nonce)
                self._events.append(NonceWritten(nonce=effect.nonce))
        except (DataDirectoryUnusable, OSError) as error:
            self._carry_out(Alarm(name="data_directory", message=str(error)))

    def _observe(self, folded: Folded) -> None:
        self.metrics.observe(folded, live=self._caught_up)
        if self._caught_up:
            self._snapshots.folded(self.agent.view)
        for listener in tuple(self._listeners.values()):
            try:
                listener(folded)
            except Exception:
                _logger.exception("a listener failed", extra={"broker": self.broker_id, "offset": folded.offset})

    def _appended(self, attempt: int, outcome: AppendOutcome) -> None:
        if not isinstance(outcome, Appended):
            _logger.warning("append failed: %s", outcome.error, extra={"broker": self.broker_id})
            self._step(AppendFailed(attempt=attempt))

    def _answer(self, answered: Answered) -> None:
        future = self._tickets.pop(answered.ticket, None)
        if future is not None and not future.done():
            future.set_result(answered)

    def _fail(self, error: EquipoiseError) -> None:
        """The log cannot be read on: nothing that this broker believes may be trusted any longer."""
        self.agent.lease.lose()
        self._end(error)

    def _end(self, error: EquipoiseError | None) -> None:
        if self._finished is None or self._finished.done():
            return
        if error is None:
            self._finished.set_result(None)
        else:
            _logger.error("the broker ends: %s", error, extra={"broker": self.broker_id})
            self._finished.set_exception(error)
            self._finished.exception()  # Whoever waits for it gets it; nobody has to.
        self._changed.set()

    def _refold(self, effect: Refold) -> None:
        """Two views have parted: fold the log anew beside ours, and stop if that shows ours to be the wrong one."""
        if not self._caught_up or self._refolding is not None:
            return
        view = self.agent.view
        offset, digest = view.offset, view.digest()
        self.metrics.alarm("views_diverge")
        _logger.error("views diverge", extra={"broker": self.broker_id, "other": effect.other, "offset": effect.offset})

        async def compare() -> None:
            try:
                other = await asyncio.to_thread(self._snapshots.refold, self.config.log_url, offset)
            except EquipoiseError as error:
                _logger.warning("the log could not be folded again: %s", error, extra={"broker": self.broker_id})
                other = None
            self._refolding = None
            if other is not None and other != digest:
                problem = f"the view of broker {self.broker_id} at offset {offset} is not what the log folds to"
                self._fail(Bug(f"{problem}; it stops serving, start it again, and report this with the log"))

        self._refolding = asyncio.get_running_loop().create_task(compare())

    # --- ownership ---

    def _own(self, handle: Handle, source: BrokerEntry | None) -> Ownership:
        witness = None if self._evidence is None else self._evidence.write
        fetch = None if source is None else partial(fetch_from, peer_of(source), handle.bundle)
        return Ownership(handle, clock=self.clock, witness=witness, fetch=fetch)

    @property
    def view(self) -> View:
        """The view up to what was read; read only."""
        return self.agent.view

    def ownership(self, namespace: str, key: str) -> Ownership | None:
        """The right to work on `key` of `namespace`, if this broker has it at this moment."""
        bundle = self.agent.view.bundle_at(namespace, key_hash(key))
        ownership = None if bundle is None else self._runner.ownerships.get(bundle.name)
        return ownership if ownership is not None and ownership.is_good else None

    def ownership_of(self, bundle: str) -> Ownership | None:
        """The right to work on one bundle, if this broker has it at this moment."""
        ownership = self._runner.ownerships.get(bundle)
        return ownership if ownership is not None and ownership.is_good else None

    @property
    def open_bundles(self) -> Sequence[str]:
        """The bundles that are open at this broker, by name."""
        return sorted(self._runner.ownerships)

    async def route(self, namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        """Who serves `key`: this broker's ownership, or another broker. Waits while nobody does.

        Raises `UnknownNamespace`, and `DeadlineExceeded` if nobody serves it within `timeout_ms`.
        """
        ownership = self.ownership(namespace, key)
        if ownership is not None:
            return ownership
        point = key_hash(key)

        def look(_: View) -> Ownership | Peer | None:
            ours = self.ownership(namespace, key)
            if ours is not None:
                return ours
            located = self._locate(namespace, point)
            return None if located is None or located.broker.broker == self.broker_id else peer_of(located.broker)

        return await self.until(look, timeout_ms=timeout_ms, what=f"an owner for {namespace}/{key}")

    async def locate(self, namespace: str, point: int, *, timeout_ms: int) -> Located:
        """The bundle of a hash point and the broker that serves it; held while that is being decided.

        Raises `UnknownNamespace`, and `DeadlineExceeded` if it is not decided within `timeout_ms`.
        """
        located = self._locate(namespace, point)
        if located is not None:
            return located
        what = f"an owner for point 0x{point:08x} of {namespace}"
        return await self.until(lambda _: self._locate(namespace, point), timeout_ms=timeout_ms, what=what)

    def _locate(self, namespace: str, point: int) -> Located | None:
        view = self.agent.view
        bundle = view.bundle_at(namespace, point)
        if bundle is None and not self.agent.is_ready:
            return None  # It may stand in what has not been read yet.
        if bundle is None:
            raise UnknownNamespace(namespace=namespace)
        if bundle.phase == "free":
            self._step(Wanted(bundle=bundle.name))
        if not self.agent.lease.good(self.clock.now()):
            return None  # A broker without a lease may be cut off: its view is not to be trusted.
        server = server_of(view, bundle)
        if server is None or self.agent.is_suspect(server):
            return None
        return Located(bundle=bundle, broker=server)

    # --- what callers ask ---

    async def until(self, condition: Callable[[View], T | None], *, timeout_ms: int, what: str) -> T:
        """What `condition` returns, once that is not None; it is asked again whenever something has changed.

        Raises `DeadlineExceeded` naming `what`, and the error that ended the broker, if that comes first.
        """
        deadline = Deadline.after(timeout_ms=timeout_ms)
        while True:
            result = condition(self.agent.view)
            if result is not None:
                return result
            if self._finished is not None and self._finished.done():
                raise self._finished.exception() or LogUnavailable(
                    log=self.config.log_url, problem=f"broker {self.broker_id} has left", in_doubt=False
                )
            deadline.check(what)
            changed = self._changed = asyncio.Event() if self._changed.is_set() else self._changed
            try:
                async with asyncio.timeout(min(deadline.remaining_ms(), _LOOK_AGAIN_MS) / 1_000):
                    await changed.wait()
            except TimeoutError:
                pass

    async def reached(self, offset: int, *, timeout_ms: int) -> None:
        """Wait until this broker's view has folded `offset`: read your writes."""
        await self.until(lambda view: view.offset >= offset or None, timeout_ms=timeout_ms, what=f"offset {offset} being read")

    async def request(self, intent: Intent, *, timeout_ms: int) -> int:
        """Have something done, and return the offset of the accepted record.

        A proposal that loses a race is made again against the new state. Raises `Rejected` with the reason,
        `OutcomeUnknown` if nobody can tell, and `LogUnavailable` if this broker cannot propose now.
        """
        deadline = Deadline.after(timeout_ms=timeout_ms)
        for race in range(1, _RACES_MAX + 1):
            answered = await self._ask(intent, deadline)
            verdict = answered.verdict
            if verdict is None:
                raise LogUnavailable(log=self.config.log_url, problem=answered.problem or "it was not appended", in_doubt=False)
            if verdict.reason is None:
                assert answered.offset is not None, "what was accepted stands on the log"
                return answered.offset
            if verdict.reason is not Reason.STALE or race == _RACES_MAX:
                raise Rejected(key=subject_of(intent), reason=verdict.reason, problem=verdict.problem, offset=answered.offset)
        raise AssertionError("the loop returns or raises")

    async def _ask(self, intent: Intent, deadline: Deadline) -> Answered:
        ticket = next(self._numbers)
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._tickets[ticket] = future
        try:
            self._step(Requested(ticket=ticket, intent=intent))
            async with asyncio.timeout(deadline.remaining_ms() / 1_000):
                return await future
        except TimeoutError:
            problem = f"it was not read back within {deadline.timeout_ms} ms"
            raise OutcomeUnknown(log=self.config.log_url, subject=subject_of(intent), problem=problem) from None
        finally:
            self._tickets.pop(ticket, None)

    async def fetch_parted(self, bundle: str) -> bytes | None:
        """For the next owner: what the service here still holds of a bundle that it has closed."""
        return await self._runner.fetch_parted(bundle)

    def listen(self, listener: Callable[[Folded], None]) -> Callable[[], None]:
        """Call `listener` with every record that is folded from now on; the result, called, ends that."""
        number = next(self._numbers)
        self._listeners[number] = listener
        return lambda: self._listeners.pop(number, None) and None

    @property
    def log_is_available(self) -> bool:
        """Whether the log can be read at this moment."""
        return self._thread.outage is None

    @property
    def lag_records(self) -> int:
        """Records that were on the log when it was last looked at, and are not folded yet."""
        return self._thread.lag_entries

    @property
    def services(self) -> Sequence[Service]:
        """The services of this worker."""
        return self._runner.services


def _end_process(problem: str) -> None:
    _logger.critical("the process ends: %s", problem)
    os._exit(70)  # EX_SOFTWARE; nothing may run on, not even what would run at exit.
