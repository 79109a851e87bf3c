"""Shards by a lock each in Redis, shared out by the number of members."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import LockError

from tests.benchmarks.peers.program import SHARDS, Program

LOOK_S = 0.1


class Adapter:
    """Takes free locks up to its share, and renews them after a third of the lease."""

    def __init__(self, program: Program, settings: Mapping[str, Any]) -> None:
        self._program, self._lease_s = program, settings["lease_s"]
        self._redis = Redis.from_url(settings["url"])
        self._until: dict[int, float] = {}
        self._locks = [self._redis.lock(str(n), timeout=self._lease_s) for n in range(SHARDS)]

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await self._redis.zrem("members", self._program.name)
        await asyncio.gather(*map(self._release, list(self._until)))

    async def _run(self) -> None:
        while True:
            await self._redis.zadd("members", {self._program.name: time.time() + self._lease_s})
            share = -(-SHARDS // await self._redis.zcount("members", time.time(), "inf"))
            for place, (shard, until) in enumerate(list(self._until.items())):
                if place >= share:
                    await self._release(shard)
                elif until < time.monotonic() + self._lease_s * 2 / 3:
                    await self._keep(shard, self._locks[shard].reacquire())
            taken = await self._redis.mget([lock.name for lock in self._locks])
            for shard in range(SHARDS):
                if taken[shard] is None and len(self._until) < share:
                    await self._keep(shard, self._locks[shard].acquire(blocking=False))
            await asyncio.sleep(LOOK_S)

    async def _keep(self, shard: int, asking: Any) -> None:  # noqa: ANN401 - either answers a bool
        """Serve for as long as the lease, counted from the question, if Redis agrees."""
        until = time.monotonic() + self._lease_s
        with suppress(LockError):
            if await asking:
                if self._until.setdefault(shard, until) is until:
                    self._program.open(shard, good=lambda: time.monotonic() < self._until[shard])
                self._until[shard] = until
                return
        if self._until.pop(shard, None):
            await self._program.close([shard])

    async def _release(self, shard: int) -> None:
        await self._program.close([shard])
        del self._until[shard]
        with suppress(LockError):
            await self._locks[shard].release()
