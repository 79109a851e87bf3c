"""How long a round of the leader takes, and how long it holds the event loop: `make bench
BENCH=planning` prints one JSON line.

The cluster has 1,000 brokers and 100,000 bundles. Each report names the busiest 20 bundles and has
the costs of all. `round` is the CPU time of a round, from the reports to the decision. `hold` is
how much the longest pause exceeds a sleep of 1 ms while a round runs.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.settings.balancing_settings import (
    BalancingSettings,
    RoundSettings,
)
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.runtime.loops.balancing import Balancing
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.view import View
from equipoise.shedder.loads import BundleTraffic, Load, Resources, Traffic, Use, pack
from tests.benchmarks.frame import report, summary
from tests.benchmarks.view import view_of

BROKERS, BUNDLES, NAMED = 1_000, 100_000, 20
ROUNDS, SEED, NOW_MS = 7, 1, 1_700_000_000_000
SLEEP_S = 0.001
# No move begins, because nobody carries it out.
SETTINGS = BalancingSettings(balancing=RoundSettings(shed_interval_ms=1, moves_max=0))


def samples_of(view: View) -> Iterator[Load]:
    """Yield the report of each broker. A tenth of the brokers are nearly idle."""
    chance = random.Random(SEED)
    for number, broker in enumerate(view.live_brokers()):
        busy = 0.1 if number % 10 == 0 else chance.uniform(0.5, 1.5)
        costs = {
            bundle.name: chance.paretovariate(1.5) * 100 * busy
            for bundle in view.held_by(broker.incarnation)
        }
        busiest = sorted(costs, key=costs.__getitem__)[-NAMED:]
        yield Load(
            broker=broker.broker,
            at_ms=NOW_MS,
            resources=Resources(cpu=Use(used=60 * busy, limit=100)),
            average_use=0.6 * busy,
            traffic=Traffic(messages_in_per_second=sum(costs.values())),
            bundle_count=len(costs),
            cost=sum(costs.values()),
            bundles=tuple(
                BundleTraffic(
                    bundle=name,
                    traffic=Traffic(messages_in_per_second=costs[name]),
                    cost=costs[name],
                )
                for name in busiest
            ),
            column=pack(costs, total=sum(costs.values())),
        )


class Rounds:
    """Balancing on a worker that stands in for a broker, which leads. The view does not change."""

    def __init__(self, view: View, bus: LoadBus) -> None:
        self.decisions: list[Decision] = []
        now = SimpleNamespace(boot_ms=0, wall_ms=NOW_MS)
        worker = SimpleNamespace(
            view=view,
            broker_id=view.live_brokers()[0].broker,
            clock=SimpleNamespace(now=lambda: now),
            agent=SimpleNamespace(leads=True),
            metrics=SimpleNamespace(
                set=lambda *_: None,
                balancing=SimpleNamespace(load=lambda *_, **__: None, refused=lambda _: None),
            ),
            placement=None,  # Nothing is placed.
            place_by=lambda placement: None,
        )
        self._now = now
        self._balancing = Balancing(
            cast("Worker", worker), bus, settings=lambda: SETTINGS, decided=self.decisions.append
        )

    async def round(self) -> None:
        """Run one turn in which a round is due."""
        self._now.boot_ms += 1_000
        await self._balancing._turn()  # noqa: SLF001 - without the pauses of `run`.
        self._balancing._drop()  # noqa: SLF001 - otherwise the moves delay the next round.


async def longest_hold_ms(work: Coroutine[object, object, object]) -> float:
    """Return by how much the longest pause of the loop exceeds a sleep while it works."""
    task, longest, before = asyncio.create_task(work), 0.0, time.perf_counter()
    while not task.done():
        await asyncio.sleep(SLEEP_S)
        now = time.perf_counter()
        longest, before = max(longest, now - before - SLEEP_S), now
    await task
    return longest * 1_000


async def measured(rounds: Rounds) -> dict[str, list[float]]:
    """Return the CPU time of each round, and the longest holds of the loop, in milliseconds."""
    found: dict[str, list[float]] = {"round": [], "hold": []}
    await rounds.round()
    for _ in range(ROUNDS):
        began = time.process_time()
        found["hold"].append(await longest_hold_ms(rounds.round()))
        found["round"].append((time.process_time() - began) * 1_000)
    return found


def measure(_: Path) -> dict[str, object]:
    """Plan rounds of a large cluster."""
    view, bus = view_of(BUNDLES, brokers=BROKERS), LoadBus("memory:planning")
    for sample in samples_of(view):
        bus.publish(sample)
    rounds = Rounds(view, bus)
    gc.freeze()  # As `equipoise broker` does after its start.
    figures = asyncio.run(measured(rounds))
    assert rounds.decisions[-1].plan.moves
    return {name: summary(values, "ms") for name, values in figures.items()}


if __name__ == "__main__":
    report("planning", measure, f"{BROKERS} brokers, {BUNDLES} bundles, {ROUNDS} rounds")
