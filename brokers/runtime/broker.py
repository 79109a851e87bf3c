"""Compose and run one broker process: worker, HTTP, services, sockets and signals. No decisions are
made here.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from aiohttp import web

from equipoise.brokers.errors import InvalidConfig, invalid_service
from equipoise.brokers.http.admin.absent import unmatched
from equipoise.brokers.http.answers import typed
from equipoise.brokers.http.app import make_app, served
from equipoise.brokers.http.health import Health, WaitingRoom
from equipoise.brokers.http.readiness import reading
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.listening import bind_locally, bound, own_addresses, with_room
from equipoise.brokers.runtime.loops.addresses import call_own_address
from equipoise.brokers.runtime.loops.background import loops_of
from equipoise.brokers.runtime.router import ChannelLoss
from equipoise.brokers.runtime.service import Service
from equipoise.brokers.runtime.worker import Lookups, Worker
from equipoise.channel.core.errors import (
    DeadlineExceeded,
    EquipoiseError,
    LogUnavailable,
)
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.failures import RepeatedFailures
from equipoise.channel.system.stop_signals import stop_event

if TYPE_CHECKING:
    from equipoise.brokers.pulsar.admin.pulsar_admin import PulsarAdmin

_logger: Final = logging.getLogger(__name__)

# How often a broker logs that it is not ready yet.
_READY_MS: Final = 60_000


class Broker:
    """One broker on the running loop, as a context: its worker, HTTP and balancer. Leaving the
    context stops it gracefully.

    The port listens before the broker joins, so that the advertised address is true. HTTP answers
    503 until the broker is ready, and while it waits for the log. A Unix socket listens once the
    log is open.
    """

    def __init__(
        self,
        config: WorkerConfig,
        services: Mapping[str, Service],
        *,
        listens: bool = True,
        socket_path: Path | None = None,
        advertised_addresses: Mapping[str, str] | None = None,
        stopping: asyncio.Event | None = None,
        joins_later: bool = False,
    ) -> None:
        """`services` maps patterns of namespaces to services.

        The caller ends the process once `stopping` is set: a start no longer waits for the log, and
        a request to shut down sets it. Without it, the process belongs to another program, and the
        request is refused.

        `listens`: whether to serve its ports. `socket_path`: a Unix socket at which to serve HTTP
        instead, for a program that forwards to it. `advertised_addresses`: where the program itself
        serves clients. Nobody is called there before the context is entered; with `joins_later` the
        broker is then no member yet.
        """
        self._config = config
        self._services = services
        self._listens = listens
        self._socket_path = socket_path
        self._advertised_addresses = dict(advertised_addresses or {})
        self._stopping = stopping or asyncio.Event()
        self._end = None if stopping is None else stopping.set
        self._joins_later = joins_later
        self._parts = AsyncExitStack()
        self._app: web.Application | None = None

    async def __aenter__(self) -> Worker:
        """Bind, serve and start. The worker is not `ready` yet. Raises the error that makes a start
        impossible.
        """
        async with AsyncExitStack() as parts:
            worker = await self._start(parts)
            self._parts = parts.pop_all()
        return worker

    async def _start(self, parts: AsyncExitStack) -> Worker:
        listening: dict[str, socket.socket] = {}
        config, addresses = self._config, self._advertised_addresses
        is_served = self._listens or self._socket_path is not None
        if is_served:
            config = with_room(config)
        if self._listens:
            config, listening = bound(config, parts)
            addresses = (
                own_addresses(config, addresses, speaks_pulsar="pulsar_port" in listening)
                | addresses
            )
        checks_address = is_served and config.check_address
        worker = Worker(
            config,
            self._services,
            addresses=addresses,
            serves_peers=is_served,
            is_reachable=not checks_address or not (self._listens or self._joins_later),
        )
        lookups = Lookups(worker)
        try:
            await start_on_log(
                worker, listening=listening.get("http_port"), stopping=self._stopping
            )
            # Not before: Python unlinks the path when the first server of the socket ends.
            if self._socket_path is not None:
                listening["http_port"] = parts.enter_context(
                    closing(bind_locally(self._socket_path))
                )
            topics: PulsarAdmin | None = None
            if "pulsar_port" in listening:
                topics = await parts.enter_async_context(
                    _serving_pulsar(worker, lookups, listening["pulsar_port"])
                )
            if "http_port" in listening:
                self._app = await parts.enter_async_context(
                    _serving(worker, lookups, topics, listening["http_port"], self._end)
                )
                parts.push_async_callback(worker.all_fetched)
                if topics is not None:
                    parts.push_async_callback(topics.all_fetched)
        except BaseException:
            await worker.abort()
            raise
        parts.push_async_callback(worker.stop)
        loops = [*loops_of(worker, listens=bool(listening)), Health(worker).export_metrics()]
        if checks_address:
            loops.append(call_own_address(worker))
        for loop in loops:
            parts.push_async_callback(_cancelled, asyncio.ensure_future(loop))
        return worker

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._parts.__aexit__(kind, error, trace)

    async def end_waits(self) -> None:
        """End long polls and streams, and later ones at once. A server may wait for their answers
        before it stops the program.
        """
        if self._app is not None:
            await self._app.shutdown()


async def run_broker(config: WorkerConfig, services: Mapping[str, Service]) -> None:
    """Run one broker until SIGTERM, SIGINT, or a fatal error, which is raised."""
    stopping = stop_event()
    async with AsyncExitStack() as parts:
        try:
            worker = await parts.enter_async_context(Broker(config, services, stopping=stopping))
        except LogUnavailable:
            if not stopping.is_set():
                raise
            _logger.info("stopping", extra={"broker": config.id})
            return
        # What the start has made stays. With 100,000 bundles, each full collection would visit it
        # for 70 ms.
        gc.freeze()
        asked = asyncio.ensure_future(stopping.wait())
        ended = asyncio.ensure_future(worker.finished())
        reporting = asyncio.ensure_future(_report_unready(worker))
        await asyncio.wait([asked, ended], return_when=asyncio.FIRST_COMPLETED)
        for task in (asked, reporting):
            task.cancel()
    await ended


async def _report_unready(worker: Worker) -> None:
    """Log that the worker is not ready, until it is, and then tell systemd. That it is ready or has
    ended, it logs itself.
    """
    while True:
        try:
            await worker.ready(timeout_ms=_READY_MS)
        except DeadlineExceeded as error:
            _logger.warning("not ready yet: %s", error, extra={"broker": worker.broker_id})
        except EquipoiseError:
            return
        else:
            _notify_systemd()
            return


def _notify_systemd() -> None:
    """Report to systemd, if it runs this process, that the start is over. Source: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
            notifying.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
            notifying.send(b"READY=1")
    except OSError as error:
        _logger.warning(
            "systemd not notified: NOTIFY_SOCKET=%s: %s", address, error.strerror or error
        )


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


@asynccontextmanager
async def _serving(
    worker: Worker,
    lookups: Lookups,
    topics: PulsarAdmin | None,
    listening: socket.socket,
    end: Callable[[], None] | None,
) -> AsyncIterator[web.Application]:
    """Serve HTTP for one worker on a bound socket, with Pulsar's topics if given. Requests in
    progress at the end may still be answered.

    Yield the application.
    """
    if topics is None:
        app = make_app(worker, lookups, end=end)
    else:
        app = make_app(
            worker, lookups, is_pulsars=topics.is_pulsars, end=end, topics=topics.namespaces
        )
        app.add_routes([typed(reading(worker, route)) for route in topics.routes()])
    for service in worker.services:
        _add_routes(app, service, measures=worker.config.measure_cpu)
    app.add_routes([unmatched(has_topics=topics is not None)])
    async with served(app, listening, worker):
        yield app


@asynccontextmanager
async def _serving_pulsar(
    worker: Worker, lookups: Lookups, listening: socket.socket
) -> AsyncIterator[PulsarAdmin]:
    """Serve Pulsar's protocol for the one service that speaks it. Yield its topics, for serving
    over HTTP.
    """
    # Imported here, because Pulsar's protocol is an optional extra of the package.
    from equipoise.brokers.pulsar.admin.pulsar_admin import PulsarAdmin  # noqa: PLC0415
    from equipoise.brokers.pulsar.server import Server  # noqa: PLC0415
    from equipoise.brokers.pulsar.service import PulsarService  # noqa: PLC0415

    speaking = [service for service in worker.services if isinstance(service, PulsarService)]
    if not speaking:
        raise InvalidConfig(
            problems=(
                (
                    "pulsar_port: no service of this broker speaks Pulsar's protocol; name `pulsar`"
                    " as one of them"
                ),
            )
        )
    if len(speaking) > 1:
        problem = (
            f"pulsar_port: {len(speaking)} services of this broker speak Pulsar's protocol, and"
            " clients would reach only one of them"
        )
        raise InvalidConfig(
            problems=(f"{problem}; give the same one to all patterns of namespaces",)
        )
    (service,) = speaking
    server = Server(service, worker, lookups)
    async with server.serving(listening):
        yield PulsarAdmin(worker, server, lookups)


def _add_routes(app: web.Application, service: Service, *, measures: bool) -> None:
    """Add the routes of a service. Raises `CallerError` if one is invalid."""
    name = type(service).__name__
    try:
        routes: Sequence[object] = list(service.routes())
    except Exception as error:  # User code may raise anything.
        raise invalid_service(
            service=name, problem=f"its routes() fails with {type(error).__name__}: {error}"
        ) from error
    for route in routes:
        if not isinstance(route, web.RouteDef):
            raise invalid_service(
                name,
                f"its routes() has {route!r}, which is not an aiohttp route; use web.get, web.post"
                " or the like",
            )
        if _is_taken(app, route):
            problem = (
                f"its route {route.method} {route.path} clashes with one of the broker or of"
                " another service, which would hide it"
            )
            raise invalid_service(service=name, problem=problem)
        try:
            app.add_routes([typed(route, drives=measures)])
        except Exception as error:  # aiohttp rejects the path or the handler.
            problem = (
                f"its route {route.method} {route.path} cannot be served: {type(error).__name__}:"
                f" {error}"
            )
            raise invalid_service(service=name, problem=problem) from error


def _is_taken(app: web.Application, route: web.RouteDef) -> bool:
    """Return whether the application already has this method and path. aiohttp would silently match
    that route first.
    """
    routes = app.router.routes()
    return any(
        known.resource is not None
        and (known.method, known.resource.canonical) == (route.method, route.path)
        for known in routes
    )


# The pause after a failed attempt to open the log: cheap, and short compared with a start.
_TRY_AGAIN_MS: Final = 1_000

# How often the wait is logged, as for failed appends.
_LOG_INTERVAL_MS: Final = 10_000


async def start_on_log(
    worker: Worker, *, listening: socket.socket | None, stopping: asyncio.Event
) -> None:
    """Start the worker, and retry while its log is unavailable, for up to `log_wait_ms`, or until
    `stopping` is set. On `listening`, if given, requests get the answer that it is not ready.

    Raises the errors of `Worker.start`: other problems at once, and `LogUnavailable` at the end of
    the wait.
    """
    deadline = Deadline.after(timeout_ms=worker.config.log_wait_ms)
    failures = RepeatedFailures(interval_ms=_LOG_INTERVAL_MS)
    began_ms, problem = worker.clock.now().boot_ms, ""

    def loss() -> ChannelLoss:
        now = worker.clock.now()
        lost_ms = now.boot_ms - began_ms
        return ChannelLoss(
            since_ms=now.wall_ms - lost_ms, lost_ms=lost_ms, problem=problem, serving_on={}
        )

    async with AsyncExitStack() as room:
        is_open = False
        while True:
            try:
                await worker.start()
            except LogUnavailable as error:
                if stopping.is_set() or not deadline.remaining_ms():
                    raise
                times = failures.failed(worker.clock.now().boot_ms)
                if times is not None:
                    fields = {
                        "broker": worker.broker_id,
                        "failures": times,
                        "seconds_left": deadline.remaining_ms() // 1_000,
                    }
                    _logger.warning("waiting for the log: %s", error, extra=fields)
                away, problem = error, str(error)
            else:
                return
            if not is_open and listening is not None:
                # A copy of the socket: it ends with this server, and the port keeps listening.
                answering = WaitingRoom(broker=worker.broker_id, loss=loss).app()
                await room.enter_async_context(served(answering, listening.dup(), worker))
                is_open = True
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_TRY_AGAIN_MS, deadline.remaining_ms()) / 1_000):
                    await stopping.wait()
                    raise away
