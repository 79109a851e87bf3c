"""Brokers of one loop, with HTTP on loopback, over one log in memory."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.http.admin.absent import unmatched
from equipoise.brokers.http.app import make_app, served
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.runtime.worker import Lookups, Worker
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.view import View
from equipoise.channel.system.clocks import Deadline
from equipoise.shedder.loads import BundleLoad

NAMESPACE = "acme/shop"
PATIENCE_MS = 20_000
DEADLINE_S = 60.0

Test = Callable[..., Awaitable[None]]


@dataclass(eq=False)
class Gate(Service):
    """A service that prepares, opens, closes and hands over bundles while its gates are open, and
    refuses or fails chosen ones.
    """

    taking: asyncio.Event = field(default_factory=asyncio.Event)
    opening: asyncio.Event = field(default_factory=asyncio.Event)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    giving: asyncio.Event = field(default_factory=asyncio.Event)
    refuses: set[str] = field(default_factory=set)
    fails: set[str] = field(default_factory=set)
    parted: dict[str, bytes] = field(default_factory=dict)
    loads: dict[str, BundleLoad] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taking.set()
        self.opening.set()
        self.closing.set()
        self.giving.set()

    async def prepare(self, bundle: Bundle, source: Peer | None) -> None:
        if bundle.name in self.refuses:
            raise RuntimeError("no room here")
        await self.taking.wait()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        if ownership.bundle.name in self.fails:
            raise RuntimeError("no disk")
        await self.opening.wait()

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        await self.closing.wait()
        return None

    async def fetch(self, bundle: Bundle, token: int) -> bytes | None:
        await self.giving.wait()
        return self.parted.get(bundle.name)

    def load(self) -> Mapping[str, BundleLoad]:
        return self.loads


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer over HTTP, read to its end. The names of its headers are found in any case."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> object:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        told = json.loads(self.body)["reason"]
        assert isinstance(told, str)
        return told


@dataclass(kw_only=True)
class Broker:
    """One broker: its worker, its service, and where it listens. `shut` ends its HTTP alone."""

    worker: Worker
    service: Gate
    url: str
    session: aiohttp.ClientSession
    app: web.Application
    lookups: Lookups
    shut: Callable[[], Awaitable[None]]

    @property
    def id(self) -> str:
        return self.worker.broker_id

    def sample(self, name: str, **labels: str) -> float:
        """The value of one series of its metrics, without what a scrape computes."""
        value = self.worker.metrics._registry.get_sample_value(  # noqa: SLF001
            f"equipoise_{name}", {"broker": self.id, **labels}
        )
        assert value is not None
        return value

    async def ask(
        self,
        method: str,
        path: str,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request. The path is sent as it stands."""
        url = URL(self.url + path, encoded=True)
        headers = {
            **({} if data is None else {"Content-Type": "application/json"}),
            **(headers or {}),
        }
        async with self.session.request(
            method,
            url,
            data=None if data is None else io.BytesIO(data),
            headers=headers,
            allow_redirects=False,
        ) as response:
            return Answer(
                status=response.status, body=await response.read(), headers=response.headers
            )

    async def get(self, path: str) -> Answer:
        return await self.ask("GET", path)

    async def put(self, path: str, body: object = None) -> Answer:
        """One PUT, with a JSON body unless it is None."""
        return await self.ask("PUT", path, data=None if body is None else json.dumps(body).encode())


async def post(broker: Broker, path: str, body: object) -> Answer:
    """One POST with a JSON body."""
    return await broker.ask("POST", path, data=json.dumps(body).encode())


def told(answer: Answer) -> tuple[int, str]:
    """Status and kind of an error."""
    document = answer.json()
    assert isinstance(document, dict)
    return answer.status, document["error"]


@dataclass(kw_only=True)
class Cluster:
    """Brokers with one namespace of four bundles, all of them owned."""

    brokers: Sequence[Broker]

    @property
    def view(self) -> View:
        """The newest view of a broker: it has every change that a broker has answered for."""
        return max((broker.worker.view for broker in self.brokers), key=lambda view: view.offset)

    def owner_of(self, bundle: str) -> Broker:
        """The broker that owns a bundle."""
        owner = self.view.bundles[bundle].owner
        return next(broker for broker in self.brokers if broker.worker.agent.incarnation == owner)

    def other_than(self, broker: Broker) -> Broker:
        return next(other for other in self.brokers if other is not broker)

    def first(self) -> tuple[str, Broker, Broker]:
        """The first bundle, its owner, and another broker."""
        bundle = self.bundles()[0]
        owner = self.owner_of(bundle)
        return bundle, owner, self.other_than(owner)

    async def give(self, bundle: str, target: Broker) -> None:
        """Have a broker own a bundle."""
        if self.owner_of(bundle) is not target:
            assert (
                204
                == (
                    await target.put(f"{path_of(bundle)}/unload?destinationBroker={target.id}")
                ).status
            )

    async def settled(self) -> None:
        """Wait until all bundles are owned, and all views stand at one offset."""
        offset = max(broker.worker.view.offset for broker in self.brokers)
        for broker in self.brokers:
            await broker.worker.reached(offset, timeout_ms=PATIENCE_MS)
            await broker.worker.until(
                partial(_all_open, broker.worker),
                timeout_ms=PATIENCE_MS,
                what="all bundles being open",
            )

    def bundles(self, namespace: str = NAMESPACE) -> list[str]:
        """The bundles of a namespace by name, in order of the hash space."""
        return [bundle.name for bundle in self.view.bundles_of(namespace)]


def path_of(bundle: str) -> str:
    return f"/admin/v2/namespaces/{bundle}"


def _all_open(worker: Worker, view: View) -> bool | None:
    return (
        _all_owned(view)
        and len(worker.open_bundles) == view.held_count(worker.agent.incarnation or 0)
    ) or None


def _all_owned(view: View) -> bool | None:
    return all(bundle.phase == "owned" for bundle in view.bundles.values()) or None


@asynccontextmanager
async def started(
    folder: Path, log_url: str, settings: Mapping[str, object]
) -> AsyncIterator[Broker]:
    """One broker that serves HTTP; it may not be ready yet."""
    service = Gate()
    async with AsyncExitStack() as parts:
        session = await parts.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        listening = parts.enter_context(socket.create_server(("127.0.0.1", 0)))
        listening.setblocking(False)  # noqa: FBT003 - a method of sockets
        port = listening.getsockname()[1]
        config = WorkerConfig.model_validate(
            {
                "log_url": log_url,
                "data_dir": folder / str(port),
                "http_port": port,
                "drain_ms": 1_000,
                **settings,
            }
        )
        worker = Worker(config, {"*": service}, addresses={"http": config.http_url})
        await worker.start()
        lookups = Lookups(worker)
        app = make_app(worker, lookups)
        app.add_routes([unmatched()])
        serving = await parts.enter_async_context(AsyncExitStack())
        await serving.enter_async_context(served(app, listening, worker))
        # The last to be entered is the first to be left: HTTP answers while the broker drains.
        parts.push_async_callback(worker.stop)
        yield Broker(
            worker=worker,
            service=service,
            url=config.http_url,
            session=session,
            app=app,
            lookups=lookups,
            shut=serving.aclose,
        )


@asynccontextmanager
async def cluster(
    folder: Path, *, brokers: int = 1, bundles: int = 4, **settings: object
) -> AsyncIterator[Cluster]:
    """Brokers, and a namespace whose bundles are all owned."""
    log_url = f"memory:{uuid.uuid4()}"
    async with AsyncExitStack() as parts:
        all_brokers = []
        for _ in range(brokers):
            broker = await parts.enter_async_context(started(folder, log_url, settings))
            await broker.worker.ready(timeout_ms=PATIENCE_MS)
            all_brokers.append(broker)
        made = Cluster(brokers=all_brokers)
        intent = CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(bundles))
        await all_brokers[0].worker.request(intent, timeout_ms=PATIENCE_MS)
        await made.settled()
        yield made
        for broker in all_brokers:
            broker.service.taking.set()  # Otherwise the end would wait for what is being prepared.


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Run one test on a loop of its own, with a bound on the whole of it."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story()

    asyncio.run(bounded())


def story(opened: Callable[[Path], AbstractAsyncContextManager[object]]) -> Callable[[Test], Test]:
    """Return a decorator that makes a test of an async function, whose first parameter is what
    `opened` opens in `tmp_path`.
    """

    def decorate(test: Test) -> Test:
        parameters = list(inspect.signature(test).parameters.values())[1:]
        folder = inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY)
        others = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in parameters
            if each.name != "tmp_path"
        ]

        @wraps(test)
        async def played(*, tmp_path: Path, **fixtures: object) -> None:
            if len(others) < len(parameters):
                fixtures["tmp_path"] = tmp_path
            async with asyncio.timeout(DEADLINE_S), opened(tmp_path) as running:
                await test(running, **fixtures)

        played.__signature__ = inspect.Signature([folder, *others])  # type: ignore[attr-defined]
        return played

    return decorate


def with_cluster(**options: Any) -> Callable[[Test], Test]:  # noqa: ANN401 - those of `cluster`
    """Return a decorator for a test whose first parameter is a cluster."""
    return story(lambda folder: cluster(folder, **options))


def with_broker(**options: Any) -> Callable[[Test], Test]:  # noqa: ANN401 - as above
    """Return a decorator for a test whose first parameter is the only broker of a cluster."""

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Broker]:
        async with cluster(folder, **options) as made:
            yield made.brokers[0]

    return story(opened)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that has no event. The deadline of the test bounds it."""
    while not condition():  # noqa: ASYNC110 - what is watched has no event
        await asyncio.sleep(0.002)
