"""A channel of a busy cluster, as long as one likes, at little cost: renewals that agree, transfers, races lost, and garbage."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from equipoise.channel.core import propose
from equipoise.channel.core.ranges import even_boundaries
from tests.channels.folding import NAMESPACE, Channel

TIMESTAMP_MS = 1_763_740_000_000
GARBAGE = b"no record"


class BusyChannel(Channel):
    """Brokers that own bundles, renew, and move bundles to one another. `steps` are further entries, for ever."""

    def __init__(self, *, seed: int, brokers: int = 3, bundles: int = 8, renewals: float = 0.6) -> None:
        """`renewals` is the part of all records that are renewals."""
        super().__init__()
        self._random = random.Random(seed)
        self._renewals = renewals
        self._moving: str | None = None
        self.genesis()
        self._brokers = [f"broker-{number}" for number in range(brokers)]
        self.join(*self._brokers)
        self.create(even_boundaries(bundles))
        self._names = [bundle.name for bundle in self.view.bundles_of(NAMESPACE)]
        for place, name in enumerate(self._names):
            broker = self._brokers[place % brokers]
            self.accept(propose.assign(self.author(broker), self.view.bundles[name], owner=self.incarnation(broker)))
            self.accept(propose.opened(self.author(broker), self.view.bundles[name]))

    def author(self, broker: str) -> propose.Author:
        """As in any channel, with a time."""
        return replace(super().author(broker), timestamp_ms=TIMESTAMP_MS)

    def steps(self) -> Iterator[tuple[int, bytes]]:
        """All entries, those by which the cluster was founded first. Each is forgotten once it was taken."""
        while True:
            yield from self.entries
            self.entries.clear()
            chance = self._random.random()
            if chance < self._renewals:
                self._renew(self._random.choice(self._brokers))
            elif chance < self._renewals + (1 - self._renewals) * 0.8:
                self._move()
            else:
                self._intervene()

    def _renew(self, broker: str) -> None:
        entry, author = self.view.brokers[broker], self.author(broker)
        # What `encode` spells of `propose.renewed`, which would take longer than the fold.
        data = (
            f'{{"kind":"broker","status":"renewed","digest":{entry.digest_after},"key":"{broker}","based_on":{entry.last},'
            f'"publisher":"{broker}","incarnation":{author.incarnation},"sequence":{author.sequence},"timestamp_ms":{TIMESTAMP_MS}}}'
        )
        verdict = self.put_bytes(data.encode())
        assert verdict.accepted
        assert not verdict.diverged

    def _move(self) -> None:
        """The next of the three records of a transfer; when one is over, the next bundle is moved."""
        name = self._moving or self._random.choice(self._names)
        bundle = self.view.bundles[name]
        writer = bundle.source if bundle.phase == "handing_over" else bundle.owner
        assert writer is not None
        author = self.author(self.view.live[writer].broker)
        if bundle.phase == "owned":
            others = [incarnation for incarnation in self.view.live if incarnation != bundle.owner]
            self.accept(propose.transfer(author, bundle, destination=self._random.choice(others), reason="shed"))
        elif bundle.phase == "transferring":
            self.accept(propose.prepared(author, bundle))
        else:
            self.accept(propose.hand_over(author, bundle))
        self._moving = None if self.view.bundles[name].phase == "owned" else name

    def _intervene(self) -> None:
        """What else there is: a stale proposal, a policy of an admin, and bytes that are no record."""
        chance = self._random.random()
        if chance < 0.6:
            bundle = self.view.bundles[self._random.choice(self._names)]
            self.put(propose.unload(self.author(self._random.choice(self._brokers)), replace(bundle, last=bundle.last - 1)))
        elif chance < 0.9:
            document: dict[str, str | int | bool] = {"namespaces": NAMESPACE, "limit": self._random.randrange(9)}
            self.accept(propose.set_policy(self.admin(), self.view, name="isolation", document=document))
        else:
            self.put_bytes(GARBAGE)
