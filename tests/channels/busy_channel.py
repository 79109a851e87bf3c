"""A channel of a busy cluster, as long as one likes, at little cost: renewals that agree,
transfers, races lost, and garbage.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from equipoise.channel.core import propose
from equipoise.channel.core.log import Log
from equipoise.channel.core.ranges import even_boundaries
from tests.channels.folding import Channel

TIMESTAMP_MS: Final = 1_763_740_000_000
GARBAGE: Final = b"no record"

# Records in one append to a log.
BATCH: Final = 2_000
TIMEOUT_MS: Final = 30_000


class BusyChannel(Channel):
    """Brokers that own bundles, renew, and move bundles to one another. Its records are as a
    running broker writes them.
    """

    def __init__(
        self,
        *,
        seed: int = 1,
        brokers: int = 3,
        bundles: int = 8,
        namespaces: int = 1,
        renewals: float = 0.6,
    ) -> None:
        """Let brokers join and own all bundles. `renewals` is the share of renewals in the records
        that follow.
        """
        super().__init__()
        self._random = random.Random(seed)
        self._renewals = renewals
        self._moving: str | None = None
        self.genesis()
        self._brokers = [f"127.0.0.1:{8080 + number}" for number in range(brokers)]
        self.join(*self._brokers)
        for number in range(namespaces):
            self.create(
                even_boundaries(bundles // namespaces), namespace=f"tenant/namespace-{number}"
            )
        self.names = list(self.view.bundles)
        for place, name in enumerate(self.names):
            broker = self._brokers[place % brokers]
            self.accept(
                propose.assign(
                    self.author(broker), self.view.bundles[name], owner=self.incarnation(broker)
                )
            )
            self.accept(propose.opened(self.author(broker), self.view.bundles[name]))

    def author(self, broker: str) -> propose.Author:
        """As in any channel, with a time."""
        return replace(super().author(broker), timestamp_ms=TIMESTAMP_MS)

    def steps(self) -> Iterator[tuple[int, bytes]]:
        """Yield all entries for ever, from the first. Each is forgotten once it was taken."""
        while True:
            yield from self.entries
            self.entries.clear()
            chance = self._random.random()
            if chance < self._renewals:
                self._renew()
            elif chance < self._renewals + (1 - self._renewals) * 0.8:
                self._move()
            else:
                self._intervene()

    def renew_or_move(self) -> None:
        """Make one record that the fold accepts."""
        if self._random.random() < self._renewals:
            self._renew()
        else:
            self._move()

    def _renew(self) -> None:
        broker = self._random.choice(self._brokers)
        entry, author = self.view.brokers[broker], self.author(broker)
        # What `encode` makes of `propose.renewed`, which would take longer than the fold.
        data = (
            f'{{"kind":"broker","status":"renewed","digest":{entry.digest_after},"key":"{broker}","expected_offset":{entry.last},'
            f'"publisher":"{broker}","incarnation":{author.incarnation},"sequence":{author.sequence},"timestamp_ms":{TIMESTAMP_MS}}}'
        )
        verdict = self.put_bytes(data.encode())
        assert verdict.accepted
        assert not verdict.diverged

    def _move(self) -> None:
        """Make the next of the three records of a transfer; when one is over, the next bundle is
        moved.
        """
        name = self._moving or self._random.choice(self.names)
        bundle = self.view.bundles[name]
        writer = bundle.source if bundle.phase == "handing_over" else bundle.owner
        assert writer is not None
        author = self.author(self.view.live[writer].broker)
        if bundle.phase == "owned":
            others = [incarnation for incarnation in self.view.live if incarnation != bundle.owner]
            reason = "shed: 127.0.0.1:8080 is at 93 % of its capacity"
            self.accept(
                propose.transfer(
                    author, bundle, destination=self._random.choice(others), reason=reason
                )
            )
        elif bundle.phase == "transferring":
            self.accept(propose.prepared(author, bundle))
        else:
            self.accept(propose.hand_over(author, bundle, handover=b'{"cursor": 1763740000000}'))
        self._moving = None if self.view.bundles[name].phase == "owned" else name

    def _intervene(self) -> None:
        """Make another record: a stale proposal of an admin or a broker, a policy of an admin, or
        bytes that are no record.
        """
        bundle = self.view.bundles[self._random.choice(self.names)]
        stale = replace(bundle, last=bundle.last - 1)
        chance = self._random.random()
        if chance < 0.3:
            self.put(propose.unload(self.admin(), stale, reason="unloaded by an operator"))
        elif chance < 0.6:
            self.put(propose.unload(self.author(self._random.choice(self._brokers)), stale))
        elif chance < 0.9:
            document: dict[str, str | int | bool] = {
                "namespaces": bundle.namespace,
                "limit": self._random.randrange(9),
            }
            self.accept(
                propose.set_policy(self.admin(), self.view, name="isolation", document=document)
            )
        else:
            self.put_bytes(GARBAGE)


class WrittenChannel(BusyChannel):
    """A busy channel whose records go to a log that nobody else writes to, in batches."""

    def __init__(
        self, log: Log, *, brokers: int, bundles: int, namespaces: int = 1, renewals: float = 0.6
    ) -> None:
        super().__init__(brokers=brokers, bundles=bundles, namespaces=namespaces, renewals=renewals)
        self._log = log
        self.flush()

    def go_on(self, records: int) -> None:
        """Renew and move for so many records more."""
        for _ in range(records):
            self.renew_or_move()
            if len(self.entries) >= BATCH:
                self.flush()
        self.flush()

    def flush(self) -> None:
        """Append what has been made since."""
        for first in range(0, len(self.entries), BATCH):
            batch = self.entries[first : first + BATCH]
            offsets = self._log.append([data for _, data in batch], timeout_ms=TIMEOUT_MS)
            assert [offset for offset, _ in batch] == list(offsets), (
                "the log is new, and nobody else writes to it"
            )
        self.entries.clear()
