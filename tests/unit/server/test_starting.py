"""A start while the log is away: how long it waits, what it answers meanwhile, and what it does not wait for."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from pathlib import Path

import aiohttp
import pytest

from equipoise.brokers.runtime import worker as workers
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.brokers.server import starting
from equipoise.brokers.server.main import Broker, run_broker
from equipoise.channel.core.errors import EquipoiseError, LogAccessDenied, LogUnavailable
from tests.channels.troubled_log import TroubledLog
from tests.unit.http.cluster import PATIENCE_MS, run, until

pytestmark = pytest.mark.integration

AWAY = LogUnavailable(log="memory:away", problem="nobody answers", in_doubt=False)


class Opening:
    """In place of `open_log`: raises `error` for as long as it is set, and counts how often it was asked."""

    def __init__(self, error: EquipoiseError | None) -> None:
        self.error = error
        self.asked = 0

    def __call__(self, url: str) -> TroubledLog:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return TroubledLog(name=url)


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    """A log that is away, and is asked for every millisecond."""
    opening = Opening(AWAY)
    monkeypatch.setattr(workers, "open_log", opening)
    monkeypatch.setattr(starting, "_TRY_AGAIN_MS", 1)
    return opening


def config(folder: Path, **settings: object) -> WorkerConfig:
    """Settings of a broker that listens at some free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    return WorkerConfig.model_validate({"log_url": "memory:away", "data_dir": folder, "http_port": port, "balance": False, **settings})


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was told of the wait."""
    return [record for record in caplog.records if record.name == "equipoise.brokers.server.starting"]


async def test_a_broker_waits_for_its_log_and_says_so(tmp_path: Path, opening: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """It is alive and not ready, with the reason; and ready, at the same port, once the log is there."""
    made = config(tmp_path)

    async def said(session: aiohttp.ClientSession, path: str) -> tuple[int, dict[str, object]]:
        async with session.get(f"{made.http_url}{path}") as answer:
            return answer.status, await answer.json()

    broker = Broker(made, {})
    entering = asyncio.ensure_future(broker.__aenter__())
    async with aiohttp.ClientSession() as session:
        await until(lambda: opening.asked > 3)
        status, health = await said(session, "/health")
        loss = health["channel_loss"]
        assert isinstance(loss, dict)
        assert (200, "ok", str(AWAY), []) == (status, health["status"], loss["problem"], loss["serving_on"])
        status, ready = await said(session, "/ready")
        assert (503, "not ready", [f"it waits for the log: {AWAY}"]) == (status, ready["status"], ready["problems"])
        status, refused = await said(session, "/admin/v2/brokers")
        assert (503, "NotReady") == (status, refused["error"])
        opening.error = None
        worker = await entering
        await worker.ready(timeout_ms=PATIENCE_MS)
        assert (200, "ready") == ((await said(session, "/ready"))[0], (await said(session, "/ready"))[1]["status"])
    await broker.__aexit__(None, None, None)
    (line,) = lines(caplog)
    assert (f"waiting for the log: {AWAY}", made.id) == (line.message, line.__dict__["broker"])


@pytest.mark.parametrize(("wait_ms", "asked_min"), [(0, 1), (50, 2)])
async def test_the_wait_has_a_bound(tmp_path: Path, opening: Opening, wait_ms: int, asked_min: int) -> None:
    """After `log_wait_ms` the start fails with what the log said, and lets go of all it had."""
    with pytest.raises(LogUnavailable, match="nobody answers"):
        async with Broker(config(tmp_path, log_wait_ms=wait_ms), {}):
            pass
    assert opening.asked >= asked_min
    DataDirectory(tmp_path).close()


async def test_what_is_wrong_with_the_log_is_not_waited_for(tmp_path: Path, opening: Opening) -> None:
    """Somebody has to act, and had better know at once."""
    opening.error = LogAccessDenied(log="memory:away", problem="no such user")
    with pytest.raises(LogAccessDenied):
        async with Broker(config(tmp_path), {}):
            pass
    assert 1 == opening.asked


async def test_who_is_told_to_stop_does_not_try_again(tmp_path: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """A try may take as long as Kafka takes to answer: none is begun that nobody wants."""
    monkeypatch.setattr(starting, "_TRY_AGAIN_MS", PATIENCE_MS)
    stopping = asyncio.Event()
    entering = asyncio.ensure_future(Broker(config(tmp_path), {}, stopping=stopping).__aenter__())
    await until(lambda: opening.asked == 1)
    stopping.set()
    with pytest.raises(LogUnavailable):
        await entering
    assert 1 == opening.asked


def test_who_is_told_to_stop_waits_no_more(tmp_path: Path, opening: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """A signal ends a process that waits for its log, and that is no error."""

    async def story() -> None:
        running = asyncio.ensure_future(run_broker(config(tmp_path), {}))
        await until(lambda: opening.asked > 1)
        signal.raise_signal(signal.SIGTERM)
        await running

    with caplog.at_level("INFO", logger="equipoise.brokers.server.main"):
        run(story)
    assert "stopping" in [record.message for record in caplog.records]
    DataDirectory(tmp_path).close()
