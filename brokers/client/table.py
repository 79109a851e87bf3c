"""What a client knows of one namespace: who serves which part of the hash space.

May live here: that table as a value, and lookups in it. Where it comes from is the sources' business.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from equipoise.brokers.runtime.service import Peer
from equipoise.channel.core.ranges import bundle_contains


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """One bundle, and the broker that serves it under `token`; None while nobody does, or while it is being handed over."""

    bundle: str
    low: int
    high: int
    token: int
    peer: Peer | None


class Source(Protocol):
    """Where a client's knowledge comes from. It is started and stopped as an async context, and used on the loop only."""

    async def start(self, *, timeout_ms: int) -> None:
        """Begin to follow. Raises what makes that impossible, and `DeadlineExceeded`."""
        ...

    async def stop(self) -> None:
        """End it."""
        ...

    def find(self, namespace: str, point: int) -> Assigned | None:
        """What is known now of the bundle that holds a point; None while nothing is. Raises `UnknownNamespace`."""
        ...

    def refresh(self, namespace: str) -> None:
        """What is known of a namespace seems to be wrong: learn it anew, from somebody else if there is anybody."""
        ...


class Table:
    """The bundles of one namespace, which cover the hash space, or will once the change under way has been taken in."""

    def __init__(self, rows: Iterable[Assigned]) -> None:
        self._by_name = {row.bundle: row for row in rows}
        self._index()

    def __len__(self) -> int:
        """How many bundles there are."""
        return len(self._by_name)

    def change(self, rows: Iterable[Assigned], gone: Iterable[str]) -> None:
        """Take in what has changed: new rows, and the names of bundles that are no more."""
        for name in gone:
            self._by_name.pop(name, None)
        renamed = False
        for row in rows:
            renamed = renamed or row.bundle not in self._by_name
            self._by_name[row.bundle] = row
        if renamed or len(self._by_name) != len(self._names):
            self._index()

    def at(self, point: int) -> Assigned | None:
        """The bundle that holds a point; None if none does."""
        place = bisect_right(self._lows, point) - 1
        if place < 0:
            return None
        row = self._by_name[self._names[place]]
        return row if bundle_contains(row.low, row.high, point) else None

    def _index(self) -> None:
        in_order = sorted(self._by_name.values(), key=lambda row: row.low)
        self._lows = [row.low for row in in_order]
        self._names = [row.bundle for row in in_order]
