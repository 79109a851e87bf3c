"""Look up the broker that serves a part of a namespace's hash space."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from equipoise.brokers.runtime.service import Peer
from equipoise.channel.core.ranges import bundle_contains


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """One bundle, and the broker that serves it under `token`. `peer` is None while no broker
    serves it or during a handover.
    """

    bundle: str
    low: int
    high: int
    token: int
    peer: Peer | None


def advised(unserved: str) -> str:
    """Return why no broker serves a namespace, with what to do."""
    return f"{unserved}; start a program that serves it"


class Source(Protocol):
    """Where a client's table comes from. Start it, stop it and use it on the loop."""

    async def start(self, *, timeout_ms: int) -> None:
        """Start to follow. Raises the cause if that fails, and `DeadlineExceeded`."""
        ...

    async def stop(self) -> None:
        """Stop to follow."""
        ...

    def find(self, namespace: str, point: int) -> Assigned | None:
        """Return the bundle that holds `point`, or None while it is not known. Raises
        `UnknownNamespace`.
        """
        ...

    def unserved(self, namespace: str) -> str | None:
        """Return why no broker serves a namespace, and what to do, if that is known."""
        ...

    def refresh(self, namespace: str) -> None:
        """Refresh a namespace whose entries seem to be wrong, from another broker if there is
        one.
        """
        ...


class Table:
    """The bundles of one namespace. They cover the hash space, except during a change."""

    def __init__(self, rows: Iterable[Assigned]) -> None:
        self._by_name = {row.bundle: row for row in rows}
        self._index()

    def __len__(self) -> int:
        """Return how many bundles there are."""
        return len(self._by_name)

    def change(self, rows: Iterable[Assigned], gone: Iterable[str]) -> None:
        """Apply new or changed rows, and remove the bundles named in `gone`."""
        for name in gone:
            self._by_name.pop(name, None)
        renamed = False
        for row in rows:
            renamed = renamed or row.bundle not in self._by_name
            self._by_name[row.bundle] = row
        if renamed or len(self._by_name) != len(self._names):
            self._index()

    def at(self, point: int) -> Assigned | None:
        """Return the bundle that holds `point`, or None."""
        place = bisect_right(self._lows, point) - 1
        if place < 0:
            return None
        row = self._by_name[self._names[place]]
        return row if bundle_contains(row.low, row.high, point) else None

    def _index(self) -> None:
        in_order = sorted(self._by_name.values(), key=lambda row: row.low)
        self._lows = [row.low for row in in_order]
        self._names = [row.bundle for row in in_order]
