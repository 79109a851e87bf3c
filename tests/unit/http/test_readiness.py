"""`/ready` of a broker that cannot write."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from equipoise.brokers.errors import data_directory_unusable
from equipoise.brokers.runtime import snapshots
from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.channel.core.errors import LogStorageFull
from tests.channels.troubled_log import TroubledLog
from tests.unit.http.cluster import PATIENCE_MS, Broker, started

pytestmark = pytest.mark.integration


async def problems(broker: Broker) -> tuple[int, Sequence[str]]:
    """The status of `/ready`, and what it names."""
    answer = await broker.get("/ready")
    told = answer.json()
    assert isinstance(told, Mapping)
    return answer.status, told["problems"]


async def named(broker: Broker, text: str) -> int:
    """Wait until `/ready` names something; its status then."""
    while True:
        status, told = await problems(broker)
        if any(text in problem for problem in told):
            return status
        await asyncio.sleep(0.005)


async def test_ready_names_a_full_disk_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TroubledLog(name="memory:full")
    monkeypatch.setattr(snapshots, "open_log", lambda _url, create: log)

    async with AsyncExitStack() as parts:
        broker = await parts.enter_async_context(started(tmp_path, log.name, {}))
        await broker.worker.ready(timeout_ms=PATIENCE_MS)
        assert (200, []) == await problems(broker)
        log.append_error = LogStorageFull(log="sqlite:/data/channel.db")
        text = (
            "the log takes no records: the disk of the log sqlite:/data/channel.db is full and"
            " nothing was appended; free space on it"
        )
        assert 503 == await named(broker, text)
        log.append_error = None
        await broker.worker.until(
            lambda _: broker.worker.append_problem is None or None,
            timeout_ms=PATIENCE_MS,
            what="the log taking records",
        )
        assert (200, []) == await problems(broker)


async def test_ready_names_a_full_disk_of_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: DataDirectory, _instance_id: str) -> None:
        raise data_directory_unusable(
            path=str(directory.path), problem="[Errno 28] No space left on device"
        )

    with monkeypatch.context() as full:
        full.setattr(DataDirectory, "write_instance_id", refuse)
        async with started(tmp_path, "memory:joins-late", {}) as broker:
            assert 503 == await named(
                broker, "cannot be used: [Errno 28] No space left on device; mend that"
            )
            full.undo()
            await broker.worker.ready(timeout_ms=PATIENCE_MS)
            assert (200, []) == await problems(broker)
