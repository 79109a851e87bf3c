"""The composition root: one broker process, from its configuration to its end.

May live here: the joining of worker, HTTP and services, and what a process owes its operating system (sockets, signals).
Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from types import TracebackType
from typing import Final

from aiohttp import web

from brokers.balancing import Balancing
from brokers.config import WorkerConfig
from brokers.http.app import make_app
from brokers.http.errors import typed
from brokers.load_bus import open_load_bus
from brokers.service import Service
from brokers.worker import Worker
from channel.errors import AddressInUse, EquipoiseError, InvalidService

_logger: Final = logging.getLogger(__name__)

# Accepted connections that wait for the loop: a stampede of clients after a death of their broker.
_BACKLOG: Final = 1_024

_READY_MS: Final = 60_000

# Answers to callers that are under way when the broker stops get this long after it has left.
_SHUTDOWN_S: Final = 2.0


class Broker:
    """One broker on the running loop, as a context: its worker, its HTTP, its balancer. Leaving the context stops it gracefully.

    The port listens before the broker joins, so that what it advertises is true; HTTP answers 503 until it is ready.
    """

    def __init__(
        self, config: WorkerConfig, services: Mapping[str, Service], *, advertised_addresses: Mapping[str, str] | None = None
    ) -> None:
        """`services` maps patterns of namespaces to services.

        With `advertised_addresses` given, which may be empty, nothing listens here: it is where the program itself serves.
        """
        self._config = config
        self._services = services
        self._advertised_addresses = advertised_addresses
        self._parts = AsyncExitStack()

    async def __aenter__(self) -> Worker:
        """Bind, serve and start; the worker is not `ready` yet. Raises what makes a start impossible."""
        async with AsyncExitStack() as parts:
            worker = await self._start(parts)
            self._parts = parts.pop_all()
        return worker

    async def _start(self, parts: AsyncExitStack) -> Worker:
        listening = None
        if self._advertised_addresses is not None:
            worker = Worker(self._config, self._services, addresses=self._advertised_addresses)
        else:
            listening = parts.enter_context(closing(bind(self._config.host, self._config.http_port)))
            config = self._config.model_copy(update={"http_port": listening.getsockname()[1]})
            worker = Worker(config, self._services, addresses={"http": config.http_url})
        await worker.start()
        if listening is not None:
            try:
                await parts.enter_async_context(_serving(worker, listening))
            except BaseException:
                await worker.abort()
                raise
        parts.push_async_callback(worker.stop)
        if self._config.balance:
            balancing = Balancing(worker, open_load_bus(self._config.log_url))
            parts.push_async_callback(_cancelled, asyncio.ensure_future(balancing.run()))
        return worker

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._parts.__aexit__(kind, error, trace)


async def run_broker(config: WorkerConfig, services: Mapping[str, Service]) -> None:
    """Run one broker until SIGTERM, SIGINT, or an error that it cannot go on with, which is raised."""
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    async with Broker(config, services) as worker:
        asked = asyncio.ensure_future(stopping.wait())
        ended = asyncio.ensure_future(worker.finished())
        announced = asyncio.ensure_future(_announce(worker))
        await asyncio.wait([asked, ended], return_when=asyncio.FIRST_COMPLETED)
        for task in (asked, announced):
            task.cancel()
        _logger.info("stopping", extra={"broker": worker.broker_id})
    await ended


async def _announce(worker: Worker) -> None:
    try:
        await worker.ready(timeout_ms=_READY_MS)
    except EquipoiseError as error:
        _logger.warning("not ready yet: %s", error, extra={"broker": worker.broker_id})
        return
    _logger.info(
        "ready",
        extra={"broker": worker.broker_id, "incarnation": worker.agent.incarnation, "address": worker.config.http_url},
    )


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


@asynccontextmanager
async def _serving(worker: Worker, listening: socket.socket) -> AsyncIterator[None]:
    """HTTP for one worker on a bound socket; what is under way at its end may still be answered."""
    app = make_app(worker)
    for service in worker.services:
        try:
            app.add_routes([typed(route) for route in service.routes()])
        except RuntimeError as error:  # aiohttp's word for a path and method that something else has already taken.
            problem = f"its routes clash with those of the broker or of another service ({error})"
            raise InvalidService(service=type(service).__name__, problem=problem) from error
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listening, backlog=_BACKLOG).start()
        yield
    finally:
        await runner.cleanup()


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket; raises `AddressInUse` if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise AddressInUse(address=f"{host}:{port}", problem=error.strerror or str(error)) from error
    listening.setblocking(False)  # noqa: FBT003 - the standard library takes it by position only
    return listening
