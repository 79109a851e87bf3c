"""How long a plan takes: `make bench BENCH=shedders` prints one JSON line, in less than a minute.

Milliseconds are of this process' own CPU time.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from equipoise.shedder.average import Hits
from equipoise.shedder.loads import BundleTraffic, Load, Resources, Traffic, Use
from equipoise.shedder.snapshot import Candidates, Snapshot
from equipoise.shedder.transfer import TransferShedder
from tests.benchmarks.frame import report, summary
from tests.shedding import plan_of

BROKERS, BUNDLES = 1_000, 100_000
REPEATS, SEED, NOW_MS = 7, 1, 1_700_000_000_000
HITS = {f"broker-{number}:8080": 9 for number in range(BROKERS)}


def cluster_of() -> Snapshot:
    """A cluster in which each broker has as many bundles, a tenth of them nearly idle ones."""
    chance = random.Random(SEED)
    loads = {
        f"broker-{number}:8080": load_of(number, BUNDLES // BROKERS, chance)
        for number in range(BROKERS)
    }
    live = tuple(sorted(loads))
    everybody = Candidates(allowed=live)
    owners = {each.bundle: name for name, load in loads.items() for each in load.bundles or ()}
    return Snapshot(
        now_ms=NOW_MS,
        live=live,
        loads=loads,
        owners=owners,
        rules=lambda _: everybody,
    )


def load_of(number: int, bundles: int, chance: random.Random) -> Load:
    """What one broker says."""
    busy = 0.1 if number % 10 == 0 else chance.uniform(0.5, 1.5)
    carried = sorted(chance.paretovariate(1.5) * 100_000 * busy for _ in range(bundles))
    traffic = Traffic(
        bytes_out_per_second=sum(carried), messages_out_per_second=sum(carried) / 1_000
    )
    return Load(
        broker=f"b{number}",
        at_ms=NOW_MS,
        resources=Resources(cpu=Use(used=60 * busy, limit=100)),
        traffic=traffic,
        average_use=0.6 * busy,
        average_bytes_per_second=traffic.bytes_per_second,
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


def measure(_: Path) -> dict[str, object]:
    """Plan again and again."""
    snapshot, took_ms = cluster_of(), list[float]()
    for _turn in range(REPEATS):
        began = time.process_time()
        plan = plan_of(TransferShedder(hit_count_threshold=0), snapshot, Hits(low=HITS, high=HITS))
        took_ms.append((time.process_time() - began) * 1_000)
        assert plan.moves
    return {"transfer": summary(took_ms, "ms")}


if __name__ == "__main__":
    report("shedders", measure, f"{BROKERS} brokers, {BUNDLES} bundles, all reported; one core")
