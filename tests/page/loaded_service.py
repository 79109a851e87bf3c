"""A service whose bundles have a load that follows from their names: a few are hot."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from zlib import crc32

from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.channel.system.clocks import Deadline
from equipoise.shedder.loads import BundleLoad

SLOW = "acme/slow/"
"""Bundles that take a minute to prepare for a move."""


class Loaded(Service):
    """A service that does nothing, and reports much."""

    def __init__(self) -> None:
        self._open = set[str]()

    async def prepare(self, bundle: Bundle, source: Peer | None) -> None:
        if source is not None and bundle.name.startswith(SLOW):
            await asyncio.sleep(60)

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        await asyncio.sleep(0)
        self._open.add(ownership.bundle.name)

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        self._open.discard(bundle.name)
        return None

    def load(self) -> Mapping[str, BundleLoad]:
        return {name: BundleLoad(cpu_seconds_per_second=cost_of(name)) for name in self._open}


def cost_of(name: str) -> float:
    """The CPU time that a bundle uses: between 0.0005 and 0.002 s/s, one in 300 has 0.03."""
    draw = crc32(name.encode()) % 3_000
    return 0.03 if draw < 10 else 0.0005 + draw / 2_000_000
