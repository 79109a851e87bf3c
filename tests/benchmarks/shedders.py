"""How long a plan takes: `make bench BENCH=shedders` prints one JSON line, in less than a minute.

Milliseconds are of this process' own CPU time, which is what one core takes that has nothing else
to do; `by the clock` is the time on the wall, as it was with the neighbours of that moment.
`transfer_of_all` lets every broker give, which no round does by default.
"""

from __future__ import annotations

import random
import time

from equipoise.shedder.average import AvgShedder, Hits
from equipoise.shedder.balanced import BalancedShedder
from equipoise.shedder.loads import Averages, BrokerLoad, BundleTraffic, Resources, Traffic, Use
from equipoise.shedder.overload import OverloadShedder
from equipoise.shedder.plan import Plan
from equipoise.shedder.policy import Policy
from equipoise.shedder.snapshot import Candidates, Snapshot, WeighedBroker, WeighedBundle
from equipoise.shedder.threshold import ThresholdShedder
from equipoise.shedder.transfer import TransferShedder
from equipoise.shedder.uniform import UniformLoadShedder
from tests.benchmarks.figures import machine, print_line, summary
from tests.shedding import plan_of

SIZES = ((20, 1_000), (1_000, 100_000))
REPEATS, SEED, NOW_MS = 7, 1, 1_700_000_000_000
HITS = {f"broker-{number}:8080": 9 for number in range(1_000)}
MEMORY = Hits(low=HITS, high=HITS)
STRATEGIES: dict[str, Policy] = {
    "balanced": BalancedShedder(patience_ms=0),
    "transfer": TransferShedder(hit_count_threshold=0),
    "transfer_of_all": TransferShedder(
        hit_count_threshold=0, target_deviation=0.01, sources_max=1_000
    ),
    "threshold": ThresholdShedder(),
    "overload": OverloadShedder(overloaded_percent=60),
    "uniform": UniformLoadShedder(),
    "average": AvgShedder(),
}


def cluster_of(brokers: int, bundles: int) -> Snapshot:
    """A cluster in which each broker has as many bundles, a tenth of them nearly idle ones."""
    chance = random.Random(SEED)
    loads = {
        f"broker-{number}:8080": load_of(number, bundles // brokers, chance)
        for number in range(brokers)
    }
    live = tuple(sorted(loads))
    everybody = Candidates(allowed=live)
    owners = {each.bundle: name for name, load in loads.items() for each in load.bundles or ()}
    brokers_by_cost = tuple(
        WeighedBroker(
            broker=name,
            capacity=100,
            bundles=tuple(
                WeighedBundle(name=each.bundle, cost=each.traffic.messages_per_second)
                for each in load.bundles or ()
            ),
        )
        for name, load in loads.items()
    )
    return Snapshot(
        brokers=brokers_by_cost,
        now_ms=NOW_MS,
        live=live,
        loads=loads,
        owners=owners,
        rules=lambda _: everybody,
    )


def load_of(number: int, bundles: int, chance: random.Random) -> BrokerLoad:
    """What one broker says."""
    busy = 0.1 if number % 10 == 0 else chance.uniform(0.5, 1.5)
    carried = sorted(chance.paretovariate(1.5) * 100_000 * busy for _ in range(bundles))
    traffic = Traffic(
        bytes_out_per_second=sum(carried), messages_out_per_second=sum(carried) / 1_000
    )
    return BrokerLoad(
        taken_ms=NOW_MS,
        resources=Resources(cpu=Use(used=60 * busy, limit=100)),
        traffic=traffic,
        averages=Averages(weighted_max=0.6 * busy, bytes_per_second=traffic.bytes_per_second),
        bundle_count=bundles,
        bundles=tuple(
            BundleTraffic(
                bundle=f"tenant/namespace-{number}/0x{place:08x}_0x{place + 1:08x}",
                traffic=Traffic(
                    bytes_out_per_second=weight, messages_out_per_second=weight / 1_000
                ),
            )
            for place, weight in enumerate(carried)
        ),
    )


def measure(strategy: Policy, snapshot: Snapshot) -> tuple[list[float], list[float], Plan]:
    """Milliseconds of CPU time, and by the clock, of each plan; and the last."""
    cpu, clock = [], []
    found = plan_of(strategy, snapshot, MEMORY)
    for _ in range(REPEATS):
        began, began_clock = time.process_time(), time.perf_counter()
        found = plan_of(strategy, snapshot, MEMORY)
        cpu.append((time.process_time() - began) * 1_000)
        clock.append((time.perf_counter() - began_clock) * 1_000)
    return cpu, clock, found


def main() -> None:
    """Measure in turns and print."""
    results: dict[str, object] = {}
    moved = []
    for brokers, bundles in SIZES:
        snapshot = cluster_of(brokers, bundles)
        for name, strategy in STRATEGIES.items():
            cpu, clock, plan = measure(strategy, snapshot)
            results[f"{name} {brokers}/{bundles}"] = summary(cpu, "ms")
            results[f"{name} {brokers}/{bundles} by the clock"] = summary(clock, "ms")
            moved.append(f"{name} {brokers}/{bundles}: {len(plan.moves)} moves")
    print_line(
        "shedders",
        results,
        f"brokers/bundles, all reported; {', '.join(moved)}; one core of {machine()}",
    )


if __name__ == "__main__":
    main()
