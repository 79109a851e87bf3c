"""How fast records become a view: `make bench BENCH=fold` prints one JSON line, in less than a minute.

Rates are per second of this process' own CPU time, which is what one core gives that has nothing else to do; `fold_wall`
is the fold by the clock on the wall, as it was with the neighbours of that moment.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import orjson

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import Document
from equipoise.channel.core.view import View, apply
from tests.channels.folding import Channel

RECORDS, REPEATS, SEED = 200_000, 7, 1
BROKERS, BUNDLES = 16, 1_024
NAMESPACE = "tenant/namespace"
RENEWALS, TRANSITIONS = 0.6, 0.3
TIMESTAMP_MS = 1_763_740_000_000

Entries = list[tuple[int, bytes]]


class Stream(Channel):
    """A channel of a busy cluster, whose records are as a running broker writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(SEED)
        self.names: list[str] = []
        self.moving: str | None = None

    def found(self) -> None:
        """Let brokers join and own all bundles."""
        self.genesis()
        self.join(*(f"127.0.0.1:{8080 + number}" for number in range(BROKERS)))
        self.create(even_boundaries(BUNDLES), namespace=NAMESPACE)
        self.names = [bundle.name for bundle in self.view.bundles_of(NAMESPACE)]
        for place, name in enumerate(self.names):
            broker = f"127.0.0.1:{8080 + place % BROKERS}"
            self.accept(propose.assign(self.author(broker), self.view.bundles[name], owner=self.incarnation(broker)))
            self.accept(propose.opened(self.author(broker), self.view.bundles[name]))

    def author(self, broker: str) -> propose.Author:
        """As in any channel, with a time."""
        return replace(super().author(broker), timestamp_ms=TIMESTAMP_MS)

    def any_broker(self) -> str:
        """A broker at random."""
        return self.random.choice(list(self.view.brokers))

    def renew(self) -> None:
        """A renewal, with the digest that it must say."""
        broker = self.any_broker()
        verdict = self.put(propose.renewed(self.author(broker), self.view.brokers[broker]))
        assert verdict.accepted
        assert not verdict.diverged

    def move(self) -> None:
        """The next of the three records of a transfer; when one is over, the next bundle is moved."""
        name = self.moving or self.random.choice(self.names)
        bundle = self.view.bundles[name]
        writer = bundle.source if bundle.phase == "handing_over" else bundle.owner
        assert writer is not None
        author = self.author(self.view.live[writer].broker)
        if bundle.phase == "owned":
            others = [incarnation for incarnation in self.view.live if incarnation != bundle.owner]
            reason = "shed: 127.0.0.1:8080 is at 93 % of its capacity"
            self.accept(propose.transfer(author, bundle, destination=self.random.choice(others), reason=reason))
        elif bundle.phase == "transferring":
            self.accept(propose.prepared(author, bundle))
        else:
            self.accept(propose.hand_over(author, bundle, handover=b'{"cursor": 1763740000000}'))
        after: Phase = self.view.bundles[name].phase
        self.moving = None if after == "owned" else name

    def intervene(self) -> None:
        """What else there is: an admin who comes too late, a broker's stale proposal, an admin's policy."""
        bundle = self.view.bundles[self.random.choice(self.names)]
        chance = self.random.random()
        if chance < 1 / 3:
            self.put(propose.unload(self.admin(), replace(bundle, last=bundle.last - 1), reason="unloaded by an operator"))
        elif chance < 2 / 3:
            self.put(propose.unload(self.author(self.any_broker()), replace(bundle, last=bundle.last - 1)))
        else:
            document: Document = {"namespaces": NAMESPACE, "limit": self.random.randrange(9)}
            self.accept(propose.set_policy(self.admin(), self.view, name="isolation", document=document))


def stream() -> tuple[Entries, Entries, int]:
    """The records by which a cluster is founded, those that are measured, and the digest after them."""
    channel = Stream()
    channel.found()
    founded = len(channel.entries)
    while len(channel.entries) < founded + RECORDS:
        chance = channel.random.random()
        step = channel.renew if chance < RENEWALS else channel.move if chance < RENEWALS + TRANSITIONS else channel.intervene
        step()
    return channel.entries[:founded], channel.entries[founded:], channel.view.digest()


def fold(founding: Entries, entries: Entries, digest: int) -> tuple[float, float]:
    """Records folded a second of CPU time, and a second on the wall."""
    view = View()
    for offset, data in founding:
        apply(view, offset, decode(data))
    began, began_wall = time.process_time(), time.perf_counter()
    diverged = False
    for offset, data in entries:
        diverged |= apply(view, offset, decode(data)).diverged
    took, took_wall = time.process_time() - began, time.perf_counter() - began_wall
    assert not diverged
    assert digest == view.digest()
    return len(entries) / took, len(entries) / took_wall


def every(entries: Entries, work: Callable[[bytes], object]) -> float:
    """Records a second of CPU time of which `work` is done with the bytes alone."""
    began = time.process_time()
    for _, data in entries:
        work(data)
    return len(entries) / (time.process_time() - began)


def summary(rates: list[float]) -> dict[str, float | int | str]:
    """Median, best and slowest rate; the best is what is left when no neighbour takes the core."""
    return {
        "unit": "records/s",
        "median": round(statistics.median(rates)),
        "best": round(max(rates)),
        "p99": round(min(rates)),
        "repeats": len(rates),
    }


def main() -> None:
    """Measure in turns and print."""
    founding, entries, digest = stream()
    rates: dict[str, list[float]] = {"fold": [], "fold_wall": [], "decode": [], "parse_json": []}
    for _ in range(REPEATS):
        rate, rate_wall = fold(founding, entries, digest)
        rates["fold"].append(rate)
        rates["fold_wall"].append(rate_wall)
        rates["decode"].append(every(entries, decode))
        rates["parse_json"].append(every(entries, orjson.loads))
    conditions = (
        f"{RECORDS} records of {sum(len(data) for _, data in entries) // RECORDS} bytes on average, {RENEWALS:.0%} renewals, "
        f"{TRANSITIONS:.0%} transitions, {BROKERS} brokers, {BUNDLES} bundles; one core of {os.cpu_count()}, "
        f"load {os.getloadavg()[0]:.1f}, {platform.python_implementation()} {platform.python_version()}, orjson {orjson.__version__}"
    )
    print(json.dumps({"name": "fold", "results": {name: summary(each) for name, each in rates.items()}, "conditions": conditions}))


if __name__ == "__main__":
    main()
