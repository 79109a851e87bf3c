"""Starting while the log is unavailable: how long the broker waits, and what it answers
meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from pathlib import Path

import aiohttp
import pytest

from equipoise.brokers.runtime import broker, snapshots
from equipoise.brokers.runtime.broker import Broker, run_broker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.channel.core.errors import (
    EquipoiseError,
    LogUnavailable,
    OperatorError,
    log_access_denied,
)
from tests.channels.troubled_log import TroubledLog
from tests.unit.http.cluster import PATIENCE_MS, until

pytestmark = pytest.mark.integration

AWAY = LogUnavailable(log="memory:away", problem="nobody answers", in_doubt=False)


class Opening:
    """A replacement of `open_log` that raises `error` while it is set, and counts its calls."""

    def __init__(self, error: EquipoiseError | None) -> None:
        self.error = error
        self.asked = 0

    def __call__(self, url: str, _directory: DataDirectory) -> TroubledLog:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return TroubledLog(name=url)


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    """Return a log that is unavailable, and is tried every millisecond."""
    opening = Opening(AWAY)
    monkeypatch.setattr(snapshots, "open_marked", opening)
    monkeypatch.setattr(broker, "_TRY_AGAIN_MS", 1)
    return opening


def config(folder: Path, **settings: object) -> WorkerConfig:
    """Return the settings of a broker on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    return WorkerConfig.model_validate(
        {
            "log_url": "memory:away",
            "data_dir": folder,
            "http_port": port,
            "balance": False,
            **settings,
        }
    )


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the log lines about the wait."""
    return [
        record for record in caplog.records if record.name == "equipoise.brokers.runtime.broker"
    ]


async def test_a_broker_waits_for_its_log(
    tmp_path: Path, opening: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    """Meanwhile `/health` answers 200, and `/ready` gives the reason. Once the log is there, the
    same port is ready.
    """
    made = config(tmp_path)

    async def answer_of(session: aiohttp.ClientSession, path: str) -> tuple[int, dict[str, object]]:
        async with session.get(f"{made.http_url}{path}") as answer:
            return answer.status, await answer.json()

    broker = Broker(made, {})
    entering = asyncio.ensure_future(broker.__aenter__())
    async with aiohttp.ClientSession() as session:
        await until(lambda: opening.asked > 3)
        status, health = await answer_of(session, "/health")
        loss = health["channel_loss"]
        assert isinstance(loss, dict)
        assert (200, "ok", str(AWAY), []) == (
            status,
            health["status"],
            loss["problem"],
            loss["serving_on"],
        )
        status, ready = await answer_of(session, "/ready")
        assert (503, "not ready", [f"it waits for the log: {AWAY}"]) == (
            status,
            ready["status"],
            ready["problems"],
        )
        status, refused = await answer_of(session, "/admin/v2/brokers")
        assert (503, "NotReady") == (status, refused["error"])
        opening.error = None
        worker = await entering
        await worker.ready(timeout_ms=PATIENCE_MS)
        status, ready = await answer_of(session, "/ready")
        assert (200, "ready") == (status, ready["status"])
    await broker.__aexit__(None, None, None)
    (line,) = lines(caplog)
    assert (f"waiting for the log: {AWAY}", made.id) == (line.message, line.__dict__["broker"])


@pytest.mark.parametrize(("wait_ms", "asked_min"), [(0, 1), (50, 2)])
async def test_the_wait_is_bounded(
    tmp_path: Path, opening: Opening, wait_ms: int, asked_min: int
) -> None:
    """After `log_wait_ms` the start fails with the error of the log, and releases everything."""
    with pytest.raises(LogUnavailable, match="nobody answers"):
        async with Broker(config(tmp_path, log_wait_ms=wait_ms), {}):
            pass
    assert opening.asked >= asked_min
    DataDirectory(tmp_path).close()


async def test_other_problems_of_the_log_end_the_start_at_once(
    tmp_path: Path, opening: Opening
) -> None:
    opening.error = log_access_denied(log="memory:away", problem="no such user")
    with pytest.raises(OperatorError):
        async with Broker(config(tmp_path), {}):
            pass
    assert 1 == opening.asked


async def test_a_stop_during_a_try_starts_no_other_try(
    tmp_path: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try may take as long as Kafka takes to answer."""
    monkeypatch.setattr(broker, "_TRY_AGAIN_MS", PATIENCE_MS)
    stopping = asyncio.Event()
    entering = asyncio.ensure_future(Broker(config(tmp_path), {}, stopping=stopping).__aenter__())
    await until(lambda: opening.asked == 1)
    stopping.set()
    with pytest.raises(LogUnavailable):
        await entering
    assert 1 == opening.asked


async def test_a_signal_ends_the_wait_without_an_error(
    tmp_path: Path, opening: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="equipoise.brokers.runtime.broker")
    running = asyncio.ensure_future(run_broker(config(tmp_path), {}))
    await until(lambda: opening.asked > 1)
    signal.raise_signal(signal.SIGTERM)
    await running
    assert "stopping" in [record.message for record in caplog.records]
    DataDirectory(tmp_path).close()
