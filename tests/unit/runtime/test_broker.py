"""The composition root: which services it refuses, what it logs, and that a failed start releases
everything.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.operations.access import opened
from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.runtime import broker as module
from equipoise.brokers.runtime import listening, snapshots
from equipoise.brokers.runtime.broker import Broker, run_broker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import CallerError, LogDamaged, LogUnavailable
from equipoise.channel.log.subscription import Subscription
from equipoise.channel.system.clocks import Deadline
from tests.channels.troubled_log import TroubledLog

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0


class Routed(Service):
    """A service with the routes that `make` returns."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Nothing."""

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Nothing."""

    def routes(self) -> Sequence[web.RouteDef]:
        return self.make()  # type: ignore[return-value]  # what a user's code may do all the same


async def handler(_request: web.Request) -> web.Response:
    """A good handler."""
    return web.Response()


def fail() -> object:
    """Raise an error instead of returning routes."""
    raise KeyError("no such setting")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (fail, r"its routes\(\) fails with KeyError: 'no such setting'"),
        (lambda: None, r"its routes\(\) fails with TypeError"),
        (lambda: [web.static("/files", ".")], "StaticDef"),
        (lambda: ["/path"], "'/path', which is not an aiohttp route"),
        (lambda: [web.get("path", handler)], "its route GET path cannot be served: ValueError"),
        (lambda: [web.get("/{", handler)], "its route GET /{ cannot be served: ValueError"),
        (lambda: [web.get("/health", handler)], "its route GET /health clashes"),
    ],
    ids=["raises", "none", "static", "text", "relative", "pattern", "clash"],
)
async def test_routes_that_cannot_be_served_are_refused(
    make: Callable[[], object], problem: str, tmp_path: Path
) -> None:
    """The error names the route and the problem, and the failed start releases everything."""
    config = WorkerConfig(log_url=f"memory:{uuid.uuid4()}", data_dir=tmp_path, http_port=0)
    with pytest.raises(CallerError, match=problem):
        async with Broker(config, {"*": Routed(make)}):
            pass
    async with Broker(config, {"*": Routed(lambda: [web.get("/mine", handler)])}):
        pass


async def test_a_start_that_fails_late_releases_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose thread cannot be started is aborted, so its directory is free for the next
    start.
    """

    def fail_to_start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Subscription, "start", fail_to_start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        async with Broker(
            WorkerConfig(log_url=f"memory:{uuid.uuid4()}", data_dir=tmp_path, http_port=0), {}
        ):
            pass
    DataDirectory(tmp_path).close()


async def test_two_services_for_pulsar_clients_are_refused(tmp_path: Path) -> None:
    """Clients would reach only one of them. One service under two patterns is fine."""
    config = WorkerConfig(
        log_url=f"memory:{uuid.uuid4()}",
        data_dir=tmp_path,
        http_port=0,
        pulsar_port=0,
        balance=False,
    )
    with pytest.raises(InvalidConfig, match="2 services of this broker speak Pulsar's protocol"):
        async with Broker(config, {"acme/*": PulsarService(), "*": PulsarService()}):
            pass
    both = PulsarService()
    async with Broker(config, {"acme/*": both, "*": both}) as worker:
        await worker.ready(timeout_ms=20_000)


@pytest.mark.parametrize(("room", "expected"), [(1_356, 0), (1_355, 1)])
async def test_a_low_limit_of_open_files_reduces_the_connections(
    room: int,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker warns in one line, and starts."""
    wanted = list[int]()

    def answer(files: int) -> int:
        wanted.append(files)
        return room

    monkeypatch.setattr(listening, "room_for_files", answer)
    path = {"log_url": f"memory:{uuid.uuid4()}", "data_dir": tmp_path}
    limits = {"http_connections_max": 100, "pulsar_connections_max": 1_000}
    config = WorkerConfig.model_validate(
        {**path, **limits, "http_port": 0, "pulsar_port": 0, "balance": False}
    )
    async with Broker(config, {"*": PulsarService()}) as worker:
        await worker.ready(timeout_ms=20_000)
        assert 1_000 - worker.config.pulsar_connections_max == expected
    assert [1_356] == wanted
    assert expected == caplog.text.count("this process may open only 1355 files")


async def announce(
    folder: Path, monkeypatch: pytest.MonkeyPatch, log: TroubledLog, after: Callable[[], bool]
) -> None:
    """Start a worker whose log takes no records until `after` holds, and wait until it is ready or
    has ended.
    """
    monkeypatch.setattr(module, "_READY_MS", 10)
    monkeypatch.setattr(snapshots, "open_marked", lambda _url, _directory: log)
    log.append_error = LogUnavailable(log=log.name, problem="it is locked", in_doubt=False)
    worker = Worker(
        WorkerConfig(log_url=log.name, data_dir=folder, broker_id="a"), {}, addresses={}
    )
    await worker.start()
    async with asyncio.timeout(60):
        # Without the rest of the process.
        reporting = asyncio.ensure_future(module._report_unready(worker))  # noqa: SLF001
        while not after():  # noqa: ASYNC110 - a log line is no event
            await asyncio.sleep(0.001)
        log.append_error = None
        await reporting
    await worker.abort()


async def test_a_slow_broker_is_announced_when_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then the log says that it is not ready."""
    caplog.set_level("INFO", logger="equipoise.brokers")
    await announce(
        tmp_path,
        monkeypatch,
        TroubledLog(name="memory:late"),
        lambda: caplog.text.count("not ready yet") > 2,
    )
    messages = [record.message for record in caplog.records]
    assert 1 == messages.count("ready")
    assert not any("not ready yet" in message for message in messages[messages.index("ready") :])


async def test_a_broker_that_ends_before_it_is_ready_is_not_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = TroubledLog(name="memory:never")

    def damage() -> bool:
        log.read_error = LogDamaged(log=log.name, problem="rust")
        log.wake()
        return True

    caplog.set_level("INFO", logger="equipoise.brokers")
    await announce(tmp_path, monkeypatch, log, damage)
    assert "ready" not in [record.message for record in caplog.records]


@pytest.mark.parametrize("is_abstract", [True, False])
async def test_systemd_learns_once_that_a_broker_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool
) -> None:
    """Then the start of its unit is over."""
    name = f"@{uuid.uuid4()}" if is_abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as systemd:
        systemd.bind(name.replace("@", "\0", 1))
        running = asyncio.ensure_future(
            run_broker(
                WorkerConfig(log_url=f"memory:{name}", data_dir=tmp_path, http_port=0),
                {"*": Routed(list)},
            )
        )
        async with asyncio.timeout(PATIENCE_S):
            assert b"READY=1" == await asyncio.get_running_loop().sock_recv(systemd, 100)
        running.cancel()
        await asyncio.wait([running])
        with pytest.raises(BlockingIOError):
            systemd.recv(100)


async def test_a_broker_is_shut_down_over_http(tmp_path: Path) -> None:
    """It answers first, then leaves the cluster and ends, as after SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = WorkerConfig(
        log_url=f"sqlite:{tmp_path}/channel.db",
        data_dir=tmp_path / "broker",
        http_port=port,
        drain_ms=1_000,
    )
    running = asyncio.ensure_future(run_broker(config, {"*": Routed(list)}))
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession(config.http_url) as session:
        while await status_of(session, "GET", "/ready") != HTTPStatus.OK:
            assert not running.done()
            await asyncio.sleep(0.01)
        assert HTTPStatus.NO_CONTENT == await status_of(
            session, "POST", "/admin/v2/brokers/shutdown?maxConcurrentUnloadPerSec=0"
        )
        await running
    with opened(config.log_url, timeout_ms=10_000) as access:
        assert "left" == access.view.brokers[config.id].status


async def status_of(session: aiohttp.ClientSession, method: str, path: str) -> int | None:
    """The status of an answer, or None if nobody listens yet."""
    try:
        async with session.request(method, path) as answer:
            return answer.status
    except aiohttp.ClientConnectionError:
        return None
