"""Run a broker inside a user's program, on its event loop or in a thread.

`Worker` and `WorkerInThread` wrap `brokers.runtime.broker.Broker`. Signals belong to the program.
`draining` drains a broker before the server of its program handles SIGTERM or SIGINT.

Web servers close their listener first, and tell the program afterwards. Callers that come meanwhile
are refused. So the broker takes the signal first, moves its bundles away while the program still
answers and redirects, and then passes the signal on.

uvicorn closes its listener and all connections without an open request in one step. A caller that
has just connected, and whose request is on its way, then gets a reset, and cannot know whether the
request was executed. So the listener is closed first, at a moment when nobody waits to be accepted,
and the signal is passed on when the last callers have their answers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import selectors
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from aiohttp import web

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.balancing.namespace_policies import ON_CHANNEL_LOSS, check_new_bundles
from equipoise.brokers.errors import InvalidConfig, Rejected, address_taken
from equipoise.brokers.runtime.broker import Broker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.embedding.by_key import AsgiApp, ByKey
from equipoise.brokers.runtime.embedding.mounted import MountedHttp
from equipoise.brokers.runtime.hosts import is_loopback
from equipoise.brokers.runtime.service import PEER, Ownership, Peer, Service
from equipoise.brokers.runtime.service_runner import LAST_FETCHES_MS
from equipoise.brokers.runtime.worker import Worker as Host
from equipoise.channel.core.errors import (
    CallerError,
    DeadlineExceeded,
    EquipoiseError,
    without_password,
)
from equipoise.channel.core.ranges import check_namespace, even_boundaries
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import log_path
from equipoise.channel.system import forked
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.loop_thread import CROSSING_MS, InThread, not_running

_logger: Final = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

# Where event loops keep the functions that stand for their own handlers. Those run at once, even if
# others handle the signal, too.
_LOOPS: Final = ("asyncio", "uvloop")

QUIET_MS: Final = 200
"""How long no call comes before a drained program ends. Callers that follow its redirects call
again within some round trips."""

ADDRESS_VARIABLE: Final = "EQUIPOISE_ADDRESS"

LAST_CALLS_MS: Final = 1_000
"""How long a program that was called since the signal waits, once its listener is closed, for the
calls of those that have connected before: until none has come for `QUIET_MS`."""

_QUIET_TURNS: Final = 3
_TURNS_MAX: Final = 1_000
"""Turns of the event loop without a new connection, before a listener is closed: asyncio drops what
it has accepted less than two turns before. And how many turns to wait for them: those with nothing
to do take some 50 microseconds, and 1,000 connections come per second at most."""

_LINGER_PARTS: Final = 20
_PART_MS_MAX: Final = 50


@contextmanager
def draining(
    drain: Callable[[], Awaitable[None]],
    last_calls: Callable[[], Awaitable[None]] | None = None,
) -> Iterator[None]:
    """Run `drain` at the first SIGTERM or SIGINT, and then pass the signal to the handler that was
    there before. Use it on an event loop.

    If that handler is of a server whose listeners are known, close them first, and run
    `last_calls`.

    A second signal goes to that handler at once. Outside the main thread, which alone gets signals,
    nothing is handled.

    Raises `CallerError` if the event loop handles a signal, since that cannot be delayed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    # A signal that is ignored, as SIGINT in the background of a shell, ends nothing.
    before = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number) or signal.SIG_DFL) != signal.SIG_IGN
    }
    for number, handler in before.items():
        if (getattr(handler, "__module__", None) or "").partition(".")[0] in _LOOPS:
            problem = (
                f"the server of this program handles {number.name} on its event loop, and closes"
                " its listener at once"
            )
            raise CallerError(
                f"cannot drain before the end: {problem}; run it under uvicorn, or drain it before"
                " you send the signal"
            )
    tasks: list[asyncio.Task[None]] = []

    async def drain_and_pass_on(number: int) -> None:
        await _tried(drain())
        await _tried(_end_listening(before[signal.Signals(number)], last_calls))
        signal.raise_signal(number)

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is take:
                signal.signal(number, handler)

    def take(number: int, _frame: FrameType | None) -> None:
        restore()
        loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(drain_and_pass_on(number))))

    for number in before:
        signal.signal(number, take)
    try:
        yield
    finally:
        restore()
        for task in tasks:
            task.cancel()


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Where nothing handles SIGTERM, let it cancel the task that has entered, and raise
    `SystemExit` at the end. Without this the process would end with its contexts open.
    """
    task, loop, has_come = asyncio.current_task(), asyncio.get_running_loop(), False
    is_main = threading.current_thread() is threading.main_thread()
    if task is None or not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True
        loop.call_soon_threadsafe(task.cancel)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if not has_come:
            raise
    finally:
        if signal.getsignal(signal.SIGTERM) == end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if has_come:
        raise SystemExit


async def _tried(step: Awaitable[None]) -> None:
    """Wait for a step before the end of the program, which it must not delay by an error."""
    try:
        await step
    except Exception as error:
        is_bug = not isinstance(error, EquipoiseError)
        _logger.warning("ends without draining: %s", error, exc_info=is_bug)


async def _end_listening(handler: object, last_calls: Callable[[], Awaitable[None]] | None) -> None:
    """Close the listeners of the server whose method handles a signal, and run `last_calls`.

    uvicorn names them `servers`. Those of other servers are not known.
    """
    listeners: Sequence[asyncio.Server] = getattr(getattr(handler, "__self__", None), "servers", ())
    for listener in listeners:
        await _close_unawaited(listener)
    if listeners and last_calls is not None:
        await last_calls()


async def _close_unawaited(listener: asyncio.Server) -> None:
    """Close a listener when nobody has connected whom the server has not accepted yet: those would
    get a reset.
    """
    quiet = 0
    with selectors.DefaultSelector() as waiting:
        for each in listener.sockets:
            waiting.register(each, selectors.EVENT_READ)
        for _ in range(_TURNS_MAX):
            # The server accepts later in the same turn.
            quiet = 0 if waiting.select(timeout=0) else quiet + 1
            if quiet == _QUIET_TURNS:
                break
            await asyncio.sleep(0)
        listener.close()


async def lingered(
    linger_ms: float, calls: Callable[[], int], *, has_peers: Callable[[], bool]
) -> None:
    """Wait until no call has come for `QUIET_MS`, at most `linger_ms`, and while there are peers
    that could serve the callers.

    `calls` returns how many have come so far.

    Wait in parts, with turns of the event loop between. A process that stalls answers nobody: it
    loses one part only.
    """
    part_ms = min(linger_ms / _LINGER_PARTS, _PART_MS_MAX)
    seen, waited_ms, quiet_ms = calls(), 0.0, 0.0
    while waited_ms < linger_ms and quiet_ms < QUIET_MS and has_peers():
        await asyncio.sleep(part_ms / 1_000)
        waited_ms += part_ms
        quiet_ms = quiet_ms + part_ms if calls() == seen else 0.0
        seen = calls()


OnLoss = Literal["fence", "serve"]

# Other characters would be encoded in a URL, and frameworks differ in whether they compare a prefix
# with the encoded path.
_match_prefix: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)*").fullmatch

READY_MS_MAX: Final = 60_000
ROUTE_MS: Final = 10_000
CREATE_MS: Final = 10_000

LINGER_MS: Final = 1_000
"""How long a drained program continues to answer callers by default. Those that were redirected to
it come within some round trips, and on a busy machine up to a second late."""


class Worker:
    """See `brokers.sharded.program.Equipoise`, which is what programs use."""

    def __init__(
        self,
        log_url: str,
        service: Service | Mapping[str, Service],
        *,
        broker_id: str | None = None,
        data_dir: Path | str | None = None,
        http_port: int | None = None,
        advertised_addresses: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        """`service` serves all namespaces. Or it is a mapping from patterns such as `shop/*` to
        services.

        * `broker_id`: the name of a broker that comes back as itself. Without it the broker is new
          at each start.
        * `data_dir`: by default beside the log, if the log is a file. A broker without a name has a
          temporary directory.
        * `http_port`: the port for lookups, administration, the routes of the services, and brokers
          that fetch state (0: any free port). Without it the broker does not listen, and refuses a
          service with `fetch`, unless you mount `asgi()`.
        * `advertised_addresses`: the addresses at which the program serves clients, such as
          `{"http": "http://host:8000"}`. No other process of this machine may have the same one on
          the same log. Other workers find a mount there, unless a `peer` address says where.
        * `settings`: any other setting of a broker, by name.

        Raises `InvalidConfig` for settings that are unknown, wrong or unsafe together.
        """
        self._services = service if isinstance(service, Mapping) else {"*": service}
        self._listens = http_port is not None
        self._advertised_addresses = dict(advertised_addresses or {})
        # A broker with a fixed port is named after its address.
        is_nameless = broker_id is None and not http_port
        if data_dir is None and not is_nameless:
            data_dir = _directory_beside(
                log_url, broker_id or f"{settings.get('host', '127.0.0.1')}:{http_port}"
            )
        self._data_dir = data_dir
        given: dict[str, object] = {
            "log_url": log_url,
            "data_dir": "." if data_dir is None else data_dir,
            "broker_id": broker_id,
            **settings,
        }
        if http_port is not None:
            given["http_port"] = http_port
        elif is_nameless:
            given["broker_id"] = f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"
        self._given = given
        self._config = WorkerConfig.model_validate(given)
        self._mounted: MountedHttp | None = None
        self._mounted_at: str | None = None
        self._forwards = False
        # Whether the server of the program listens only after the context is entered.
        self._joins_later = False
        self._parts = AsyncExitStack()
        self._host: Host | None = None
        self._broker: Broker | None = None

    def __repr__(self) -> str:
        host = self._host
        broker = self._config.broker_id if host is None else host.broker_id
        state = "not running" if host is None else "running" if host.ended is None else "ended"
        return (
            f"<{type(self).__name__} {broker or 'without an id yet'} on"
            f" {without_password(self._config.log_url)}, {state}>"
        )

    def asgi(self, prefix: str = "") -> MountedHttp:
        """Return an ASGI app with all paths of a broker. Mount it at `prefix`, such as
        `/equipoise`, before you enter the context.

        It serves what `http_port` would. Other brokers find it at the `address` of the program and
        `prefix`. It answers 503 while the worker does not run.

        Without the setting `authentication`, anyone who reaches the app can drain the broker. So a
        program with an address other than loopback then starts only with `insecure`.

        Raises `CallerError` for a worker with `http_port`, or after its start, for a second mount,
        and for a prefix that is no path.
        """
        return self._mount(prefix)

    def aiohttp_app(self, prefix: str) -> web.Application:
        """Return what `asgi` does as an aiohttp application: `app.add_subapp("/equipoise",
        worker.aiohttp_app("/equipoise"))`.
        """
        return self._mount(prefix).application()

    def _mount(self, prefix: str) -> MountedHttp:
        problem = None
        if self._listens:
            problem = "this worker serves the same paths at http_port; leave out one of the two"
        elif self._host is not None:
            problem = "the worker has started; mount it before you enter its context"
        elif self._mounted is not None:
            problem = "it is mounted already; use that app"
        elif _match_prefix(prefix) is None:
            problem = (
                f"the prefix {prefix!r} is no plain path; write it as in '/equipoise', with"
                " letters, digits, '-', '.', '_' and '~'"
            )
        if problem is not None:
            raise CallerError(f"the HTTP of a worker cannot be mounted: {problem}")
        self._mounted, self._mounted_at = MountedHttp(), prefix
        return self._mounted

    def _listen_anywhere(self) -> None:
        """Listen on any free port, unless a port is given."""
        if not self._listens:
            self._listens, self._config = True, self._config.model_copy(update={"http_port": 0})

    @property
    def _needs_address(self) -> bool:
        """Whether other programs call this one at an address that it cannot know."""
        return self._mounted is not None or self._forwards

    def _served_config(self) -> WorkerConfig:
        """Return the settings. Others cannot ask a worker without HTTP for assurances, so its lease
        itself must outlast a failover of the log.
        """
        if self._listens or self._mounted is not None:
            return self._config
        if self._given.get("extend_ms"):
            problem = "extend_ms: it needs http_port or a mount, so that other brokers can ask"
            raise InvalidConfig(problems=(problem,))
        return WorkerConfig.model_validate({**self._given, "extend_ms": 0})

    def _addresses(self) -> Mapping[str, str]:
        """Return the addresses to advertise. Raises `CallerError` if one is missing or unsafe."""
        addresses = self._advertised_addresses
        http = addresses.get("http")
        if self._needs_address and http is None:
            raise CallerError(
                "other programs and callers must know the address of this program, and it has"
                f" none; set {ADDRESS_VARIABLE}=http://HOST:PORT, or give Equipoise"
                " address='http://HOST:PORT'"
            )
        if self._mounted_at is None or http is None:
            return addresses
        is_safe = (
            self._config.authentication
            or self._config.insecure
            or is_loopback(urlsplit(http).hostname)
        )
        if not is_safe:
            raise CallerError(
                f"anyone who reaches {http}{self._mounted_at} could drain this broker; set"
                " `authentication`, or `insecure` if you keep outsiders away"
            )
        return {PEER: http.rstrip("/") + self._mounted_at} | addresses

    def by_key(
        self,
        app: AsgiApp,
        *,
        namespace: str,
        key: str | Callable[[MutableMapping[str, Any]], str | None],
        forward: bool = False,
        timeout_ms: int = ROUTE_MS,
    ) -> ByKey:
        """Return an ASGI app that has each HTTP request answered by the owner of its key.
        WebSockets go to `app` unchanged.

        `key` is a path with the key in it, such as `/users/{key}`, which also stands for all paths
        below it, or a function that returns the key by the ASGI scope. With None the request goes
        to `app` unchanged.

        * If this worker owns the key, `app` answers. `equipoise.current_work()` has the fencing
          token. A move of the bundle waits until the answer begins, for up to half of `close_ms`.
          If the ownership is lost before, the answer is replaced by 503.
        * If another worker owns it, the caller is redirected to its `http` address (307). With
          `forward` this worker forwards the request, and the answer, piece by piece. It sends the
          request again if the owner has moved meanwhile, unless the owner may have executed it, or
          took a part of a body over 1 MiB. The owner must use `by_key` too.
        * While no worker owns it, the request waits for 5 s at most, and not longer than its
          caller. At most 512 wait for one bundle. Others get 503, as after `timeout_ms` in all.

        Refusals have the form of the broker's own. `X-Equipoise-Outcome: not-started` marks those
        without any effect, so `Client.request` repeats the request; `unknown` those after which it
        may have been executed. 404: there is no such namespace. 421: the request was forwarded
        here, but this worker does not own the key.

        Install it with `app.add_middleware(worker.by_key, namespace=..., key=...)`. The program
        runs on the loop of the worker. Raises `InvalidName`, and `CallerError` for a path without
        `{key}`.
        """
        return self._by_key(
            app,
            namespace=namespace,
            key=key,
            forward=forward,
            timeout_ms=timeout_ms,
            mounted_at=lambda: self._mounted_at,
            drains=self._drains,
        )

    def _by_key(self, app: AsgiApp, *, forward: bool, **given: Any) -> ByKey:  # noqa: ANN401
        self._forwards = self._forwards or forward
        return ByKey(
            app,
            self,
            forward=forward,
            tls=lambda: self._started.access.certificates.nobody,
            measures=self._config.measure_cpu,
            **given,
        )

    def in_thread(self) -> WorkerInThread:
        """Return the same worker in a thread of its own, as a plain context, for a program without
        an event loop.
        """
        start_ms = self._config.log_wait_ms + READY_MS_MAX + CROSSING_MS
        stop_ms = self._config.stop_ms + CROSSING_MS
        return WorkerInThread(
            self, start_ms=start_ms, stop_ms=stop_ms, drain_ms=self._config.drain_ms
        )

    async def __aenter__(self) -> Self:
        """Start, and wait until the broker is a member, for 60 s at most. Raises the error that
        prevents this.

        * `CallerError`: the log URL, the address or a service cannot be used.
        * `OperatorError`: the log, the data directory or the port cannot be used.
        * `PeerError`: the log is away for longer than `log_wait_ms` (`LogUnavailable`), or the time
          is over (`DeadlineExceeded`).
        """
        async with AsyncExitStack() as parts:
            config = self._served_config()
            addresses = self._addresses()
            parts.callback(_claimed(config.log_url, addresses).close)
            if self._data_dir is None:
                folder = parts.enter_context(
                    TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True)
                )
                config = config.model_copy(update={"data_dir": Path(folder)})
            socket_path = (
                None if self._mounted is None else parts.enter_context(self._mounted.listening())
            )
            self._broker = Broker(
                config,
                self._services,
                listens=self._listens,
                socket_path=socket_path,
                advertised_addresses=addresses,
                joins_later=self._joins_later,
            )
            self._host = await parts.enter_async_context(self._broker)
            if self._joins_later and not self._host.is_reachable:
                await self._host.caught_up(timeout_ms=READY_MS_MAX)
            else:
                await self._host.ready(timeout_ms=READY_MS_MAX)
            self._parts = parts.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        host, self._host = self._host, None
        await self._parts.__aexit__(kind, error, trace)
        if host is not None and error is None:
            await host.finished()

    @property
    def broker_id(self) -> str:
        """Return the id of this broker."""
        return self._started.broker_id

    def check(self) -> None:
        """Raise `WorkerEnded` if the broker has ended, and `CallerError` outside the context."""
        self._started.check()

    def ownership(self, namespace: str, key: str) -> Ownership | None:
        """Return the right to work on `key`, or None if this broker does not have it now. Raises
        `WorkerEnded`.
        """
        return self._running.ownership(namespace, key)

    def owned(self, namespace: str, key: str) -> Ownership | None:
        """Return the right to work on `key` if this broker has it and no caller waits for it. Its
        work may still be refused. For others, ask `route`.
        """
        return None if self._host is None else self._host.owned(namespace, key)

    async def route(
        self, namespace: str, key: str, *, timeout_ms: int = ROUTE_MS
    ) -> Ownership | Peer:
        """Return this broker's ownership of `key`, or the other broker that serves it. Waits while
        no broker does.

        Raises `UnknownNamespace`; `DeadlineExceeded` if no broker serves the key within
        `timeout_ms`; `Overloaded` if too many callers wait; `WorkerEnded`.
        """
        return await self._running.route(namespace, key, timeout_ms=timeout_ms)

    async def create_namespace(
        self,
        namespace: str,
        *,
        bundles: int = 4,
        on_channel_loss: OnLoss = "fence",
        timeout_ms: int = CREATE_MS,
    ) -> None:
        """Create a namespace of 1 to 4,096 bundles, unless it exists. An existing one keeps its
        bundles and policies.

        Its bundles are free on return: the leader places them, or the first caller of a key has it
        placed. `on_channel_loss` is `fence` or `serve`. With `serve` the owners serve on while they
        have lost the channel, and only fencing tokens, checked by your store, keep two owners
        apart.

        Raises `InvalidName`, `CallerError`, `Rejected`, `OutcomeUnknown`, `PeerError`,
        `Overloaded`, `WorkerEnded`, and errors of a log that takes no records, such as
        `LogUnavailable`.
        """
        host = self._running
        check_namespace(namespace)
        boundaries = even_boundaries(check_new_bundles(namespace, bundles))
        await host.up_to_date(timeout_ms=timeout_ms)
        if namespace in host.view.namespaces:
            return
        try:
            policies = {ON_CHANNEL_LOSS: on_channel_loss}
            await host.request(
                CreateNamespace(name=namespace, boundaries=boundaries, policies=policies),
                timeout_ms=timeout_ms,
            )
        except Rejected:
            if namespace not in host.view.namespaces:  # Otherwise another process was first.
                raise

    async def drain(self, *, timeout_ms: int | None = None) -> bool:
        """Move all bundles to other brokers, and take no new ones. Return whether this broker has
        none left. You may repeat it.

        It waits at most `timeout_ms` (by default `drain_ms`), also for next owners that stream
        state from it, and not for bundles that no other broker takes. The broker stays a member:
        `route` returns the new owners. A drain cannot be undone: end the context, and start a new
        worker. Raises `WorkerEnded`.
        """
        host = self._running
        drain_by = Deadline.after(
            timeout_ms=host.config.drain_ms if timeout_ms is None else timeout_ms
        )
        host.drain()
        try:
            what = f"the draining of broker {host.broker_id}"
            is_drained = await host.until(
                self._has_drained, timeout_ms=drain_by.timeout_ms, what=what
            )
        except DeadlineExceeded:
            is_drained = False
        await host.all_fetched(by=drain_by)
        return is_drained

    def _drains(self) -> bool:
        host = self._host
        return host is not None and host.agent.drains

    def _has_drained(self, view: View) -> bool | None:
        """Return whether all bundles have moved; None while that may still change."""
        agent = self._started.agent
        if not self._started.is_reachable:
            return True  # It never joined.
        if agent.incarnation is None or not agent.drains:
            return None  # Also between two incarnations: the next one drains, too.
        if not view.held_count(agent.incarnation):
            return True
        return None if view.can_give(agent.incarnation) else False

    @contextmanager
    def _draining(self, linger_ms: int) -> Iterator[None]:
        """Drain at SIGTERM and SIGINT, and continue to answer for `linger_ms` at most."""
        calls = 0

        async def drain() -> None:
            nonlocal calls
            try:
                host = self._started
                calls = host.calls
                if await self.drain():
                    await lingered(
                        linger_ms, lambda: host.calls, has_peers=lambda: _takes_bundles(host.view)
                    )
            finally:
                if self._broker is not None:
                    await self._broker.end_waits()

        async def last_calls() -> None:
            host = self._host
            if host is not None and host.calls != calls:  # Else nobody calls at all.
                await lingered(LAST_CALLS_MS, lambda: host.calls, has_peers=lambda: True)

        with ending_at_sigterm(), draining(drain, last_calls):
            yield

    async def finished(self) -> None:
        """Wait until the broker has ended. Raises the error that ended it; returns if the context
        was left.
        """
        await self._started.finished()

    @property
    def _started(self) -> Host:
        if self._host is None:
            raise not_running(what="the worker", problem="it has not been started, or has ended")
        return self._host

    @property
    def _running(self) -> Host:
        self.check()
        return self._started


def _takes_bundles(view: View) -> bool:
    """Return whether any broker takes bundles."""
    return any(broker.status == "up" for broker in view.live_brokers())


def _directory_beside(log_url: str, broker: str) -> str | None:
    """Return the default data directory of a named broker; None for a log in memory, which ends
    with its process.

    Raises `InvalidConfig` for a log on other machines.
    """
    path = log_path(log_url)
    if log_url.startswith("kafka:"):
        problem = (
            f"data_dir: name a directory for the data of broker {broker}, which is needed because"
            " its log is on other machines"
        )
        raise InvalidConfig(problems=(problem,))
    return None if path is None else f"{path}.brokers/broker-{broker}"


def _claimed(log_url: str, advertised_addresses: Mapping[str, str]) -> socket.socket:
    """Return a socket that claims the program's address on this machine. The system frees the name
    when the socket or the process ends.

    Two processes behind one address, as of `uvicorn --workers 2`, would redirect callers to each
    other forever. Raises `OperatorError`.
    """
    claim = forked.new_socket(socket.AF_UNIX)
    address = advertised_addresses.get("http")
    # Only Linux has names that end with their process.
    if address is None or sys.platform != "linux":
        return claim
    name = blake2b(f"{log_path(log_url) or log_url} {address}".encode(), digest_size=16).hexdigest()
    try:
        claim.bind(f"\0equipoise:{name}")
    except OSError as error:
        claim.close()
        raise address_taken(address=address, log=without_password(log_url)) from error
    return claim


class WorkerInThread(InThread):
    """A worker in a thread with an event loop of its own, where its services run too: `with
    Equipoise(...).in_thread() as member`. Its calls are plain functions.

    Entering and the calls raise the errors of `Equipoise`, and `CallerError` outside the context.
    """

    def __init__(self, worker: Worker, *, start_ms: int, stop_ms: int, drain_ms: int) -> None:
        """For `Equipoise.in_thread` only."""
        super().__init__(worker, what="the worker", start_ms=start_ms, stop_ms=stop_ms)
        self._drain_ms = drain_ms
        self._worker = worker

    @property
    def broker_id(self) -> str:
        """See `Equipoise.broker_id`."""
        return self._worker.broker_id

    def check(self) -> None:
        """See `Equipoise.check`."""
        self._worker.check()

    def route(self, namespace: str, key: str, *, timeout_ms: int = ROUTE_MS) -> Ownership | Peer:
        """See `Equipoise.route`. You may use an ownership in any thread."""
        route = self._worker.route(namespace, key, timeout_ms=timeout_ms)
        return self.run(
            route, timeout_ms=timeout_ms + CROSSING_MS, what=f"an owner for {namespace}/{key}"
        )

    def create_namespace(
        self,
        namespace: str,
        *,
        bundles: int = 4,
        on_channel_loss: OnLoss = "fence",
        timeout_ms: int = CREATE_MS,
    ) -> None:
        """See `Equipoise.create_namespace`."""
        create = self._worker.create_namespace(
            namespace, bundles=bundles, on_channel_loss=on_channel_loss, timeout_ms=timeout_ms
        )
        self.run(create, timeout_ms=timeout_ms + CROSSING_MS, what=f"the creation of {namespace}")

    def drain(self, *, timeout_ms: int | None = None) -> bool:
        """See `Equipoise.drain`."""
        waited_ms = self._drain_ms if timeout_ms is None else timeout_ms
        return self.run(
            self._worker.drain(timeout_ms=waited_ms),
            timeout_ms=waited_ms + LAST_FETCHES_MS + CROSSING_MS,
            what="the draining",
        )
