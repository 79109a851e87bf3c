"""A client that reads the log itself: what it finds after the log was cut off under it."""

from __future__ import annotations

import asyncio
import itertools

from equipoise.brokers.client.client import LogSource
from equipoise.channel.core import propose
from equipoise.channel.log.memory_log import MemoryLog
from tests.channels.compacted import compact
from tests.channels.folding import NAMESPACE, channel_with

numbers = itertools.count()


async def test_a_client_of_a_truncated_log_starts_from_the_snapshot() -> None:
    channel = channel_with("a", bundles=1)
    channel.own("a")
    writer = MemoryLog(name=f"memory:log-source-{next(numbers)}")
    writer.append([data for _, data in channel.entries], timeout_ms=0)
    compact(writer)
    changed = asyncio.Event()
    source = LogSource(writer.name, changed=changed.set)
    await source.start(timeout_ms=30_000)
    found = source.find(NAMESPACE, 0)
    assert found is not None
    assert channel.bundle().token == found.token
    assert found.peer is not None
    channel.accept(propose.unload(channel.admin(), channel.bundle()))
    writer.append([channel.entries[-1][1]], timeout_ms=0)
    async with asyncio.timeout(30):
        await changed.wait()
    unloaded = source.find(NAMESPACE, 0)
    assert unloaded is not None
    assert channel.bundle().phase == "unloading"
    await source.stop()
