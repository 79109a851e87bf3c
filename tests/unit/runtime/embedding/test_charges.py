"""What a program of FastAPI behind `by_key` is charged for: all that a request uses, in whatever
task or thread the framework runs it, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.middleware.base import RequestResponseEndpoint

from equipoise.brokers.load.metering import follow_tasks_and_threads
from equipoise.brokers.runtime.embedding.by_key import AsgiApp, ByKey
from equipoise.brokers.runtime.embedding.forwarding import Message, Receive, Send
from equipoise.brokers.runtime.embedding.installed import Installed
from equipoise.brokers.runtime.service import Ownership, Peer
from tests.load.cpu_clocks import CpuClocks, cpu_clocks
from tests.unit.runtime.service_bench import good_ownership

NAMESPACE = "web/pages"
PATHS = ("awaits", "plain", "streams", "iterates", "background", "gathers", "raises")


class Host:
    """A broker that owns all keys."""

    broker_id = "here"

    def __init__(self) -> None:
        self.ownership = good_ownership(NAMESPACE)

    def owned(self, namespace: str, key: str) -> Ownership | None:
        return self.ownership

    async def route(self, namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        return self.ownership


@pytest.fixture
def clocks() -> Iterator[CpuClocks]:
    with cpu_clocks() as made:
        yield made


class Endpoints:
    """Each uses 100 ns of CPU time."""

    def __init__(self, clocks: CpuClocks) -> None:
        self.use = clocks.use

    def dependency(self) -> Iterator[None]:
        self.use(10)
        yield
        self.use(20)

    def plain(self, key: str) -> str:
        self.use(70)
        return key

    async def awaits(self, key: str) -> str:
        self.use(40)
        await asyncio.sleep(0)
        self.use(60)
        return key

    async def streams(self, key: str) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            for _ in range(4):
                self.use(25)
                yield key
                await asyncio.sleep(0)

        return StreamingResponse(parts())

    async def iterates(self, key: str) -> StreamingResponse:
        def parts() -> Iterator[str]:
            for _ in range(4):
                self.use(25)
                yield key

        return StreamingResponse(parts())

    async def background(self, key: str, tasks: BackgroundTasks) -> str:
        async def later() -> None:
            await asyncio.sleep(0)
            self.use(40)

        tasks.add_task(later)
        tasks.add_task(self.use, 50)
        self.use(10)
        return key

    async def gathers(self, key: str) -> str:
        async def part() -> None:
            await asyncio.sleep(0)
            with good_ownership(NAMESPACE).begin(key):  # Of another bundle, which pays.
                self.use(1_000)
            self.use(50)

        await asyncio.gather(part(), part())
        return key

    async def raises(self, key: str) -> str:
        self.use(100)
        raise ValueError(key)


def program(clocks: CpuClocks) -> FastAPI:
    """Return a program with these endpoints, each of which runs in a task of a middleware."""
    app, endpoints = FastAPI(), Endpoints(clocks)

    @app.middleware("http")
    async def middle(request: Request, answer: RequestResponseEndpoint) -> Response:
        return await answer(request)

    for name in PATHS:
        needed = [Depends(endpoints.dependency)] if name == "plain" else []
        app.get(f"/{{key}}/{name}", dependencies=needed)(getattr(endpoints, name))
    return app


@asynccontextmanager
async def running() -> AsyncIterator[None]:
    """Do nothing in place of a worker."""
    yield


def installed(app: AsgiApp) -> AsgiApp:
    """Return a program as `Equipoise.install` makes it."""
    return Installed(app, http=app, prefix="/equipoise", running=running, drains=lambda: False)


async def called(app: AsgiApp, path: str) -> httpx.Response:
    """Return the answer."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        return await client.get(path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("is_installed", [False, True], ids=["alone", "installed"])
async def test_a_request_is_charged_for_all_that_it_uses(
    path: str, is_installed: bool, clocks: CpuClocks
) -> None:
    """Once, also in a program that is installed, whose requests have a frame already."""
    host = Host()
    app: AsgiApp = ByKey(program(clocks), host, namespace=NAMESPACE, key="/{key}", timeout_ms=1_000)
    if is_installed:
        app = installed(app)
    follow_tasks_and_threads()
    for number in range(2):
        status = (await called(app, f"/lobby/{path}")).status_code
        assert status == (500 if path == "raises" else 200)
        assert host.ownership.account.cpu_ns == 100 * (number + 1)
    load = host.ownership.account.take()
    assert load is not None
    assert load.calls_per_second > 0


async def test_a_caller_that_goes_ends_its_charge(clocks: CpuClocks) -> None:
    """What the request has used until then is charged."""
    host, begun, gone = Host(), asyncio.Event(), asyncio.Event()

    async def waits(_scope: Message, _receive: Receive, _send: Send) -> None:
        clocks.use(30)
        begun.set()
        try:
            await gone.wait()
        finally:
            clocks.use(4)

    app = ByKey(waits, host, namespace=NAMESPACE, key="/{key}", timeout_ms=1_000)
    task = asyncio.ensure_future(called(app, "/lobby"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert host.ownership.account.cpu_ns == 34


async def test_a_websocket_is_charged_where_it_works_for_a_key(clocks: CpuClocks) -> None:
    """In an installed program: each message in its charge, for as long as the socket is open."""
    one, other = good_ownership(NAMESPACE), good_ownership(NAMESPACE)
    messages = iter("abab")

    async def socket(_scope: Message, receive: Receive, send: Send) -> None:
        for _ in range(4):
            served = one if (await receive())["text"] == "a" else other
            clocks.use(1_000)
            with served.begin("key"):
                clocks.use(3)
                await send({"type": "websocket.send"})
                clocks.use(4)

    async def received() -> Message:
        await asyncio.sleep(0)
        return {"text": next(messages)}

    async def sent(_message: Message) -> None:
        await asyncio.sleep(0)
        clocks.use(0)

    app = installed(socket)
    await app({"type": "websocket", "path": "/room"}, received, sent)
    assert (14, 14) == (one.account.cpu_ns, other.account.cpu_ns)


async def test_work_that_is_begun_and_finished_is_charged_between(clocks: CpuClocks) -> None:
    """As an endpoint does that answers differently if the second check fails."""
    host = Host()

    async def endpoint(_scope: Message, _receive: Receive, send: Send) -> None:
        work = host.ownership.begin("lobby")
        clocks.use(5)
        await asyncio.sleep(0)
        clocks.use(6)
        work.finish()
        clocks.use(1_000)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    app = installed(endpoint)
    await called(app, "/lobby")
    assert host.ownership.account.cpu_ns == 11
