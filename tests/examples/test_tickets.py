"""A service that awaits something in the middle of its work, and a test that moves its bundle at
each await point.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from equipoise import Bundle, Cluster, Deadline, Ownership, Peer, Service
from equipoise.errors import OwnershipLost
from equipoise.pytest import MovesAtEveryAwait

NAMESPACE = "web/pages"


class Tickets(Service):
    """Sells numbered tickets, and writes each sale to a journal."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Take over the former owner's counts."""
        self.counts.update(json.loads(handover or b"{}"))

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Hand over the counts of this bundle."""
        shows = [show for show in self.counts if bundle.contains(NAMESPACE, show)]
        return json.dumps({show: self.counts.pop(show) for show in shows}).encode()

    async def sell(self, ownership: Ownership, show: str) -> int:
        """Return the number of the ticket. Raises `OwnershipLost` if the show has moved."""
        with ownership.begin(show):
            number = self.counts[show] + 1
            await write_to_journal(show, number)
            self.counts[show] = number
            return number


async def write_to_journal(show: str, number: int) -> None:
    """Stand in for a write over the network: it suspends its caller, as that does."""
    await asyncio.sleep(0)


async def buy(cluster: Cluster[Tickets], show: str) -> int:
    """Buy a ticket as a client does: follow redirects, and ask again if the show has moved."""
    broker = "broker-1"
    while True:
        served = await cluster.host(broker).route(NAMESPACE, show, timeout_ms=5_000)
        if isinstance(served, Peer):
            broker = served.broker
            continue
        try:
            return await cluster.service(broker).sell(served, show)
        except OwnershipLost:
            continue


def test_each_number_is_sold_once(equipoise_moves: MovesAtEveryAwait) -> None:
    for cluster in equipoise_moves(Tickets, NAMESPACE, "hamlet"):
        cluster.create(NAMESPACE, bundles=1)
        assert [1, 2, 3] == [cluster.call(buy(cluster, "hamlet")) for _ in range(3)]
