"""The callers of the benchmark of peers: a steady rate of calls, whatever the programs do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final

import aiohttp

from equipoise.channel.system.clocks import boot_ns
from tests.benchmarks.peers.program import SHARDS

RATE: Final = 200.0
PATIENCE_S: Final = 5.0
"""Then a call has failed."""

_ATTEMPT_S: Final = 1.0
_PAUSE_S, _PAUSE_S_MAX = 0.01, 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call: when it was due, how long it took with all retries, and by whom it was served."""

    due_ns: int
    length_ms: float
    served: str | None


class Callers:
    """Each shard is called where it was served last, and then at each other program in turn."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.addresses: dict[str, str] = {}
        self.calls: list[Call] = []
        self.hot = False
        self.us = 0
        self._session = session
        self._at: dict[int, str] = {}
        self._random = Random(1)

    async def run(self) -> None:
        """Call until cancelled."""
        block = list[int]()
        async with asyncio.TaskGroup() as calls:
            due_s = time.monotonic()
            for number in count():
                due_s += 1 / RATE
                await asyncio.sleep(due_s - time.monotonic())
                if not block:
                    block = [*range(SHARDS), *((0,) * (SHARDS - 2) if self.hot else ())]
                    self._random.shuffle(block)
                calls.create_task(self._call(block.pop(), f"r{number}"))

    async def _call(self, shard: int, request: str) -> None:
        due_ns, began_s, pause_s = boot_ns(), time.monotonic(), _PAUSE_S
        served = None
        while served is None and time.monotonic() - began_s < PATIENCE_S:
            served = await self._turn(shard, request)
            if served is None:
                await asyncio.sleep(pause_s * self._random.uniform(0.5, 1))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        length_ms = 1e3 * (time.monotonic() - began_s)
        self.calls.append(Call(due_ns=due_ns, length_ms=length_ms, served=served))

    async def _turn(self, shard: int, request: str) -> str | None:
        """Ask each program once. Return the name of the one that served."""
        for name in self._order(shard):
            if (address := self.addresses.get(name)) is None:  # It has left meanwhile.
                continue
            url = f"{address}/shards/{shard}?id={request}&us={self.us}"
            try:
                async with self._session.post(url) as answer:
                    if answer.status == 200:
                        self._at[shard] = name
                        return name
            except (aiohttp.ClientError, TimeoutError):
                continue
        return None

    def _order(self, shard: int) -> Sequence[str]:
        last = self._at.get(shard)
        others = [name for name in self.addresses if name != last]
        self._random.shuffle(others)
        return [last, *others] if last in self.addresses else others


def session() -> aiohttp.ClientSession:
    """Return a session for callers."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=_ATTEMPT_S),
        connector=aiohttp.TCPConnector(limit=0),
    )
