"""Run the operations of services for an agent: one effect in, one event out, none past its
deadline.

* A bundle has one operation at a time. The next begins when the code of the previous one, even
  abandoned, has ended.
* When the broker ends, open bundles are closed and operations ended. Code that does not end is
  logged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from equipoise.brokers.agent.effects import (
    Abandon,
    Close,
    Discard,
    FindCuts,
    Open,
    Prepare,
    Reshaped,
)
from equipoise.brokers.agent.events import (
    Closed,
    CutsFound,
    Discarded,
    Event,
    OpenContinues,
    Opened,
    Prepared,
)
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.errors import invalid_service
from equipoise.brokers.load.metering import Account, driven_for, follow_tasks_and_threads
from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.service import Admitted, Bundle, Evidence, Ownership, Peer, Service
from equipoise.brokers.runtime.state_stream import (
    KEPT_BYTES_MAX,
    Arrival,
    Departures,
    Note,
    Pieces,
    Progress,
    Spilled,
    digest_of,
    is_like_a_note,
    note_in,
    over_http,
)
from equipoise.brokers.security.own_token import OwnToken
from equipoise.brokers.security.tls import ClientTls
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.ranges import is_matched, parse_bundle
from equipoise.channel.core.records import HANDOVER_BYTES_MAX
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.failures import error_text

_logger: Final = logging.getLogger(__name__)

# Time for a cancelled operation before the process ends itself: its code could still serve a bundle
# with a dead handle.
_ABANDON_MS: Final = 2_000

# Time limit of calls without the agent's deadline: where to cut, handing over state.
_QUESTION_MS: Final = 10_000

# Released bundles whose state a next owner may fetch within seconds. A drain releases all: a
# largest namespace, at 200 bytes each.
_RELEASED_MAX: Final = 65_536

ALL_NAMESPACES: Final = "*"

_ASYNC_METHODS: Final = ("prepare", "open", "close", "discard", "fetch", "split_points")
_PLAIN_METHODS: Final = ("split", "merge", "routes", "load")

# Letters of a namespace, and the wildcard.
_match_pattern: Final = re.compile(r"[-=:.\w/*]+", re.ASCII).fullmatch

# Why a service with `fetch` does not start.
_NO_PEERS: Final = (
    "it hands over state by fetch(), and its broker has no address where the next owner could ask"
    " for it; give the worker a port (http_port=0 for any) or mount its asgi(), or in a test give"
    " the Cluster serves_peers=True, or keep that state in a store"
)

LAST_FETCHES_MS: Final = 2_000
"""How long a broker that ends or drains waits for next owners to fetch kept state."""

FetchSpilled = Callable[[Peer, str, str], Awaitable[bytes | None]]
OwnershipMaker = Callable[[Handle, BrokerEntry | None], Ownership]
ServiceEffect = Prepare | Open | Close | Discard | Abandon | FindCuts | Reshaped


class ServiceRunner:
    """The services of one worker, by namespace pattern, and their operations.

    `ownerships` maps the name of each open bundle to its ownership. Requests are routed by it. A
    bundle that moves is closed when its work in `admitted` has ended.
    """

    def __init__(
        self,
        services: Mapping[str, Service],
        *,
        clock: Clock,
        make_ownership: OwnershipMaker,
        step: Callable[[Event], None],
        end_process: Callable[[str], None],
        serves_peers: bool = True,
        fetch_spilled: FetchSpilled,
        sent: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`services` maps a namespace pattern (`*`, `acme/*`) to a service; the first match wins.

        * `end_process`: the last resort against code that cannot be stopped.
        * `serves_peers`: whether other brokers can fetch state here.
        * `fetch_spilled`: fetches a handover, by bundle and digest.
        * `sent`: counts the bytes of state that next owners stream from here.

        Raise `CallerError`, also for a service with `fetch` that other brokers cannot reach.
        """
        for pattern, service in services.items():
            check_pattern(pattern)
            _check(service)
            if not serves_peers and self._has_fetch(service):
                raise invalid_service(service=type(service).__name__, problem=_NO_PEERS)
        self._services = dict(services)
        self._clock = clock
        self._make_ownership = make_ownership
        self._step = step
        self._end_process = end_process
        self._running: dict[str, asyncio.Task[None]] = {}
        # One per bundle with an operation, abandoned ones included, kept alive by its task.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._closings: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._released: dict[str, int] = {}
        self._serves_peers = serves_peers
        self._fetch_spilled = fetch_spilled
        self._spilled = Spilled()
        self._departures = Departures(sent)
        self._last_deadline: Deadline | None = None
        self.ownerships: dict[str, Ownership] = {}
        self.admitted = Admitted()

    def service_of(self, namespace: str) -> Service | None:
        """Return the service of a namespace; None if no pattern matches."""
        return next(
            (
                service
                for pattern, service in self._services.items()
                if is_matched(pattern, namespace)
            ),
            None,
        )

    @property
    def namespaces(self) -> tuple[str, ...] | None:
        """The patterns of the namespaces that the services serve; None: all."""
        return None if ALL_NAMESPACES in self._services else tuple(self._services)

    @property
    def serves(self) -> Mapping[str, str]:
        """The names of the services, by the pattern of their namespaces."""
        return {pattern: type(service).__name__ for pattern, service in self._services.items()}

    @staticmethod
    def _has_fetch(service: Service) -> bool:
        return type(service).fetch is not Service.fetch

    @property
    def services(self) -> Sequence[Service]:
        """Every service once."""
        return list({id(service): service for service in self._services.values()}.values())

    def carry_out(self, effect: ServiceEffect) -> None:
        """Start an effect of the agent."""
        if isinstance(effect, Prepare):
            self._begin(effect.bundle.name, partial(self._prepare, effect))
        elif isinstance(effect, Open):
            self._begin(effect.handle.bundle, partial(self._open, effect))
        elif isinstance(effect, Close):
            self.ownerships.pop(effect.handle.bundle, None)
            left_ms = effect.deadline_ms - self._clock.now().boot_ms
            deadline = Deadline.after(timeout_ms=max(left_ms, 0))
            self._begin_closing(
                _bundle_named(effect.handle.bundle),
                effect.handle.token,
                _peer(effect.moved_to),
                deadline,
                effect.handle,
            )
        elif isinstance(effect, FindCuts):
            self._in_background(
                self._find_cuts(effect.bundle), f"finding where to cut {effect.bundle.name}"
            )
        elif isinstance(effect, Reshaped):
            self._reshape(effect)
        elif isinstance(effect, Abandon):
            self._abandon(effect)
        else:
            self._begin(effect.bundle, partial(self._discard, _bundle_named(effect.bundle)))

    async def fetch_released(
        self, bundle: str, digest: str | None = None, *, offset: int | None = 0
    ) -> Pieces | None:
        """Return the state that the service holds of a bundle closed here, from `offset` on, and
        its checksum; None if it holds none.

        With `digest`, return the handover kept under it. Without `offset`, leave the checksum out.
        Raise `DeadlineExceeded`, and the service's errors; so does the iteration.
        """
        if digest is not None:
            kept = self._spilled.get(digest)
            return None if kept is None else self._departures.sending(bundle, kept, offset)
        token = self._released.get(bundle)
        if token is None:
            return None
        released = _bundle_named(bundle)
        service = self._service(released.namespace)
        fetching = service.fetch(released, token)
        state: object = await Deadline.after(timeout_ms=_QUESTION_MS).wait(
            fetching, what=f"the service giving the state of {bundle}"
        )
        if state is None:
            return None
        if not isinstance(state, bytes | AsyncIterator):
            problem = (
                f"its fetch returned {type(state).__name__}, not bytes or an asynchronous iterator"
                " of bytes"
            )
            raise invalid_service(service=type(service).__name__, problem=problem)
        return self._departures.sending(bundle, state, offset)

    async def all_fetched(self, *, stream_ms: int) -> None:
        """Wait, for a bounded time, until next owners have fetched what is kept here, and for
        `stream_ms` for what they stream.
        """
        await self._spilled.all_fetched(timeout_ms=LAST_FETCHES_MS)
        await self._departures.all_ended(timeout_ms=stream_ms)

    async def close_all(self, *, timeout_ms: int) -> None:
        """Close all open bundles concurrently and let closings finish, within `timeout_ms`.

        Other operations are cancelled; a bundle that still opens is closed. Call `stop` afterwards.
        """
        deadline = self._last_deadline = Deadline.after(timeout_ms=timeout_ms)
        self._cancel([task for task in self._running.values() if task not in self._closings])
        for ownership in list(self.ownerships.values()):
            self._begin_closing(ownership.bundle, ownership.token, None, deadline)
        self.ownerships.clear()
        await self._ended(lambda: (*self._running.values(), *self._closings), deadline)

    async def stop(self) -> None:
        """Cancel what still runs. Log what does not end; if it works on a bundle, end the
        process.
        """
        self._cancel([*self._running.values(), *self._background])
        await self._ended(
            lambda: (*self._running.values(), *self._background),
            Deadline.after(timeout_ms=_ABANDON_MS),
        )
        for task in (*self._running.values(), *self._background):
            if not task.done():
                _logger.error("service not stopped", extra={"doing": task.get_name()})
        unstoppable = [task.get_name() for task in self._running.values() if not task.done()]
        if unstoppable:
            self._end_process(f"the service could not be stopped: {', '.join(unstoppable)}")

    @staticmethod
    async def _ended(
        under_way: Callable[[], Sequence[asyncio.Task[None]]], deadline: Deadline
    ) -> None:
        """Wait until nothing is in progress, newly started tasks included, or for the deadline.

        Even then a new task gets one turn of the loop, so that `close` is at least called.
        """
        is_over = False
        while (tasks := under_way()) and not is_over:
            left_ms = deadline.remaining_ms()
            await asyncio.wait(tasks, timeout=left_ms / 1_000)
            is_over = not left_ms

    @staticmethod
    def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()

    # --- operations ---

    async def _prepare(self, effect: Prepare) -> None:
        bundle = bundle_of(effect.bundle)
        problem = None
        try:
            await self._service(bundle.namespace).prepare(bundle, _peer(effect.source))
        except Exception as error:  # noqa: BLE001 - any exception of a service is its refusal
            _log_failure("service refused a bundle", error, {"bundle": bundle.name})
            problem = error_text(error)
        if self._is_current(bundle.name):
            self._step(Prepared(bundle=bundle.name, problem=problem))

    async def _open(self, effect: Open) -> None:
        handle = effect.handle
        ownership = self._make_ownership(handle, effect.source)
        problem = None
        try:
            opening = self._service(handle.namespace).open(
                ownership, await self._arrived(effect, ownership)
            )
            await driven_for(ownership.account, opening)
            ownership.account.cpu_ns = 0  # The price of the move, not of what the bundle will do.
        except Exception as error:  # noqa: BLE001 - as above
            _log_failure(
                "service failed to open a bundle",
                error,
                {"bundle": handle.bundle, "token": handle.token},
            )
            problem = error_text(error)
        if not self._is_current(handle.bundle):
            return
        if problem is None and self._last_deadline is not None:
            self._begin_closing(ownership.bundle, ownership.token, None, self._last_deadline)
            return
        if problem is None:
            self._released.pop(handle.bundle, None)
            self.ownerships[handle.bundle] = ownership
        self._step(Opened(bundle=handle.bundle, problem=problem))

    async def _arrived(self, effect: Open, ownership: Ownership) -> bytes | None:
        """Return the handover for an opening, fetched if the record has a note, or set the reason
        of its loss.
        """
        note = note_in(effect.handover)
        if note is None:
            return effect.handover
        problem = note.problem or "its former owner is gone, or keeps it no more"
        if note.digest is not None:
            try:
                handover = await self._fetched(effect, note.digest)
                if handover is not None and digest_of(handover) == note.digest:
                    return handover
            except (EquipoiseError, TimeoutError) as error:
                problem = error_text(error)
        _logger.warning(
            "handover of %s not received: %s",
            effect.handle.bundle,
            problem,
            extra={"bundle": effect.handle.bundle},
        )
        ownership.handover_problem = problem
        return None

    async def _fetched(self, effect: Open, digest: str) -> bytes | None:
        kept = self._spilled.get(digest)  # The bundle comes back, because its destination died.
        if kept is not None or effect.source is None:
            return kept
        left_ms = max(effect.deadline_ms - self._clock.now().boot_ms, 0)
        async with asyncio.timeout(left_ms / 2 / 1_000):  # The service has the rest.
            return await self._fetch_spilled(peer_of(effect.source), effect.handle.bundle, digest)

    async def _close(
        self,
        bundle: Bundle,
        token: int,
        moved_to: Peer | None,
        deadline: Deadline,
        settling: Handle | None,
    ) -> None:
        if settling is not None and settling.is_settling:
            await self.admitted.all_ended(bundle, timeout_ms=deadline.remaining_ms() // 2)
            # What is answered from now on would be missing in the state that `close` returns.
            settling.is_settling = False
        try:
            handover = await self._service(bundle.namespace).close(bundle, moved_to, deadline)
        except Exception as error:
            _logger.exception("close failed", extra={"bundle": bundle.name})
            recorded: bytes | None = Note(problem=f"its close failed: {error_text(error)}").encode()
        else:
            recorded = self._for_record(bundle.name, handover, is_moving=moved_to is not None)
        if not self._is_current(bundle.name):
            return
        self._released.pop(bundle.name, None)
        if len(self._released) >= _RELEASED_MAX:
            del self._released[next(iter(self._released))]
        self._released[bundle.name] = token
        if moved_to is not None and self._has_fetch(self._service(bundle.namespace)):
            self._departures.wait_for(bundle.name)
        self._step(Closed(bundle=bundle.name, handover=recorded))

    def _for_record(self, bundle: str, handover: object, *, is_moving: bool) -> bytes | None:
        """Return the handover if it fits the record, else a note with how to fetch it or why it is
        lost.
        """
        if handover is None:
            return None
        if not isinstance(handover, bytes):
            problem = f"close returned {type(handover).__name__}, not bytes"
        elif len(handover) <= HANDOVER_BYTES_MAX and not is_like_a_note(handover):
            return handover
        elif not is_moving:
            return None  # No broker waits for it.
        elif not self._serves_peers:
            too_large = f"it has {len(handover)} bytes, a record takes {HANDOVER_BYTES_MAX}"
            problem = (
                f"{too_large}, and its broker has no address to fetch it from; give the worker"
                " http_port, or mount its asgi()"
            )
        elif (digest := self._spilled.keep(handover)) is None:
            problem = (
                f"it has {len(handover)} bytes, and a broker keeps at most {KEPT_BYTES_MAX} for all"
                " next owners together"
            )
        else:
            _logger.info(
                "handover of %s kept for its next owner: %d bytes",
                bundle,
                len(handover),
                extra={"bundle": bundle},
            )
            return Note(digest=digest).encode()
        _logger.error("handover of %s lost: %s", bundle, problem, extra={"bundle": bundle})
        return Note(problem=problem).encode()

    async def _discard(self, bundle: Bundle) -> None:
        try:
            await self._service(bundle.namespace).discard(bundle)
        except Exception:
            _logger.exception("discard failed", extra={"bundle": bundle.name})
        if self._is_current(bundle.name):
            self._step(Discarded(bundle=bundle.name))

    async def _find_cuts(self, entry: BundleEntry) -> None:
        cuts: tuple[int, ...] = ()
        problem = None
        try:
            async with asyncio.timeout(_QUESTION_MS / 1_000):
                service = self._service(entry.namespace)
                cuts = tuple(
                    int(cut)
                    for cut in await service.split_points(
                        bundle_of(entry), entry.algorithm or "", entry.positions
                    )
                )
        except Exception as error:  # noqa: BLE001 - as above
            _log_failure("service gave no split points", error, {"bundle": entry.name})
            problem = error_text(error)
        self._step(CutsFound(bundle=entry.name, asked_at=entry.last, cuts=cuts, problem=problem))

    def _reshape(self, effect: Reshaped) -> None:
        gone = [_bundle_named(handle.bundle) for handle in effect.gone]
        children = [self._make_ownership(handle, None) for handle in effect.children]
        for bundle in gone:
            former = self.ownerships.pop(bundle.name, None)
            if former is not None:
                former.account.give_to([child.account for child in children])
        for child in children:
            self.ownerships[child.bundle.name] = child
        try:
            service = self._service(gone[0].namespace)
            if len(gone) == 1:
                service.split(gone[0], children)
            else:
                service.merge(gone[0], gone[1], children[0])
        except Exception:
            _logger.exception("split or merge failed in a service", extra={"bundle": gone[0].name})

    def _service(self, namespace: str) -> Service:
        service = self.service_of(namespace)
        assert service is not None, "the log gives a broker no bundle that it does not serve"
        return service

    # --- tasks ---

    def _is_current(self, bundle: str) -> bool:
        """Return whether the current task is still the bundle's, not an abandoned one."""
        return self._running.get(bundle) is asyncio.current_task()

    def _begin_closing(
        self,
        bundle: Bundle,
        token: int,
        moved_to: Peer | None,
        deadline: Deadline,
        settling: Handle | None = None,
    ) -> None:
        task = self._begin(
            bundle.name, partial(self._close, bundle, token, moved_to, deadline, settling)
        )
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    def _begin(
        self, bundle: str, operation: Callable[[], Coroutine[None, None, None]]
    ) -> asyncio.Task[None]:
        turn = self._turns.setdefault(bundle, asyncio.Lock())

        async def in_turn() -> None:
            async with turn:
                await operation()

        task = asyncio.get_running_loop().create_task(in_turn(), name=f"service of {bundle}")
        self._running[bundle] = task
        task.add_done_callback(
            lambda done: self._running.pop(bundle) if self._running.get(bundle) is done else None
        )
        return task

    def _in_background(self, operation: Coroutine[None, None, None], doing: str) -> None:
        task = asyncio.get_running_loop().create_task(operation, name=doing)
        self._background.add(task)
        task.add_done_callback(lambda done: self._finished_in_background(done, doing))

    def _finished_in_background(self, task: asyncio.Task[None], doing: str) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _logger.error("%s failed", doing, exc_info=task.exception())

    def _abandon(self, effect: Abandon) -> None:
        """Stop an operation that overran its deadline. The agent has already continued without
        it.
        """
        self.ownerships.pop(effect.bundle, None)
        task = self._running.pop(effect.bundle, None)
        if task is None or task.done():
            return
        task.cancel()
        _logger.error(
            "service overran its deadline", extra={"bundle": effect.bundle, "doing": effect.doing}
        )

        def end_if_still_running() -> None:
            if not task.done():
                self._end_process(
                    f"the service could not be stopped while {effect.doing} {effect.bundle}"
                )

        asyncio.get_running_loop().call_later(_ABANDON_MS / 1_000, end_if_still_running)


class OwnershipsOverHttp:
    """Makes the ownerships of one broker, whose state arrives from other brokers over HTTP."""

    def __init__(
        self,
        *,
        clock: Clock,
        own_token: OwnToken,
        tls: Callable[[], ClientTls],
        received: Callable[[int], None],
        step: Callable[[Event], None],
        record: Callable[[], Callable[[Evidence], None] | None],
        admitted: Callable[[], Admitted],
        measures_cpu: bool,
    ) -> None:
        """Each connection uses `own_token` and `tls` of its time. `received` counts bytes of
        state. `record` returns what takes evidence.
        """
        self._measures_cpu = measures_cpu
        self._clock = clock
        self._own_token = own_token
        self._tls = tls
        self._received = received
        self._step = step
        self._record = record
        self._admitted = admitted

    def start(self) -> None:
        """Charge what runs on the running loop from now on to bundles, if CPU time is measured."""
        if self._measures_cpu:
            follow_tasks_and_threads()

    def make(self, handle: Handle, source: BrokerEntry | None) -> Ownership:
        """Return the ownership of a bundle that comes from `source`."""
        bundle = handle.bundle
        make = partial(
            Ownership,
            handle,
            clock=self._clock,
            record=self._record(),
            admitted=self._admitted(),
            account=Account(measures=self._measures_cpu),
        )
        if source is None:
            return make()
        goes_on = partial(self._step, OpenContinues(bundle=bundle))

        def arrival() -> Arrival:
            progress = Progress(bundle, source.broker, received=self._received, goes_on=goes_on)
            return self._arrival(peer_of(source), bundle, progress=progress)

        return make(fetch=lambda: arrival().whole(), stream=lambda: arrival().stream())

    async def fetch_spilled(self, source: Peer, bundle: str, digest: str) -> bytes | None:
        """Return the handover that `source` keeps under `digest`."""
        return await self._arrival(source, bundle, digest=digest).whole()

    def _arrival(
        self,
        source: Peer,
        bundle: str,
        *,
        digest: str | None = None,
        progress: Progress | None = None,
    ) -> Arrival:
        request = over_http(source, bundle, digest, token=self._own_token, tls=self._tls)
        return Arrival(source, bundle, request, progress=progress)


def end_process(problem: str) -> None:
    """End this process at once."""
    _logger.critical("process ends: %s", problem)
    os._exit(70)  # EX_SOFTWARE. Skips exit handlers, too.


def bundle_of(entry: BundleEntry) -> Bundle:
    """Return a bundle as services see it."""
    return Bundle(name=entry.name, namespace=entry.namespace, low=entry.low, high=entry.high)


def _bundle_named(name: str) -> Bundle:
    namespace, low, high = parse_bundle(name)
    return Bundle(name=name, namespace=namespace, low=low, high=high)


def _peer(broker: BrokerEntry | None) -> Peer | None:
    return None if broker is None else peer_of(broker)


def peer_of(broker: BrokerEntry) -> Peer:
    """Return a broker as services and clients see it."""
    return Peer(broker=broker.broker, addresses=broker.joined.addresses)


def _log_failure(what: str, error: Exception, fields: Mapping[str, object]) -> None:
    """Log what a service raised. Only unexpected errors need a traceback."""
    if isinstance(error, EquipoiseError):
        _logger.warning("%s: %s", what, error, extra=fields)
    else:
        _logger.error(what, exc_info=error, extra=fields)


def check_pattern(pattern: str) -> None:
    """Raise `CallerError` for a pattern that no namespace can match; it is a mistake."""
    if not _match_pattern(pattern):
        problem = (
            f"no namespace matches {pattern!r}; a pattern is TENANT/NAMESPACE, in which * stands"
            " for any characters, or * alone"
        )
        raise invalid_service(service=pattern, problem=problem)


def _check(service: object) -> None:
    """Raise `CallerError` for a service that would fail at its first bundle.

    Examples: a class, an `open` that is not async, a `close` with wrong parameters.
    """
    if not isinstance(service, Service):
        raise invalid_service(
            service=repr(service), problem="it is no instance of a subclass of equipoise.Service"
        )
    for name in (*_ASYNC_METHODS, *_PLAIN_METHODS):
        method = getattr(service, name)
        if inspect.iscoroutinefunction(method) != (name in _ASYNC_METHODS):
            wanted = "`async def`" if name in _ASYNC_METHODS else "a plain `def`"
            raise invalid_service(
                service=type(service).__name__, problem=f"its method {name} must be {wanted}"
            )
        parameters = list(inspect.signature(getattr(Service, name)).parameters)[1:]
        try:
            inspect.signature(method).bind(*parameters)
        except TypeError as error:
            problem = f"its method {name} cannot be called with ({', '.join(parameters)}): {error}"
            raise invalid_service(service=type(service).__name__, problem=problem) from error
