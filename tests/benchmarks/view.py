"""What a view costs: `make bench BENCH=view` prints one JSON line, in less than a minute."""

from __future__ import annotations

import multiprocessing
import random
import resource
import time
from pathlib import Path

from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.view import View
from tests.benchmarks.frame import report, single, summary
from tests.channels.busy_channel import BusyChannel

SIZES = (100, 10_000, 100_000)
BUNDLES_PER_NAMESPACE = 10_000
BROKERS = 100
LOOKUPS, REPEATS = 20_000, 15
MEGABYTE = 1e6

_spawn = multiprocessing.get_context("spawn")


class Forgetful(BusyChannel):
    """A channel that keeps none of its records."""

    def put_bytes(self, data: bytes, *, offset: int | None = None) -> Verdict:
        """Fold a record over bytes: what it shares with its writer is no memory of the view."""
        verdict = super().put_bytes(data, offset=offset)
        self.entries.clear()
        return verdict


def view_of(bundles: int, *, brokers: int = BROKERS) -> View:
    """A view of so many bundles in as many namespaces as it takes, owned in turn by all brokers."""
    namespaces = max(1, bundles // BUNDLES_PER_NAMESPACE)
    return Forgetful(brokers=brokers, bundles=bundles, namespaces=namespaces).view


def namespace_of(bundle: int) -> str:
    """The namespace in which the bundle with this number lies."""
    return f"tenant/namespace-{bundle // BUNDLES_PER_NAMESPACE}"


def resident_max() -> int:
    """The most bytes of this process that ever lay in memory; Linux counts them in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


def memory(bundles: int) -> float:
    """Megabytes by which a process grows that folds such a view; run in a process of its own."""
    view_of(10)
    before = resident_max()
    view = view_of(bundles)
    assert bundles == len(view.bundles)
    for first in range(0, bundles, BUNDLES_PER_NAMESPACE):
        view.bundle_at(namespace_of(first), 0)  # The first lookup completes the index.
    return (resident_max() - before) / MEGABYTE


def lookup(bundles: int) -> list[float]:
    """Nanoseconds of a lookup by hash point; run in a process of its own."""
    view = view_of(bundles)
    rng = random.Random(1)
    asked = [
        (namespace_of(rng.randrange(bundles)), rng.randrange(HASH_MAX + 1)) for _ in range(LOOKUPS)
    ]
    nanoseconds = []
    for _ in range(REPEATS):
        began = time.perf_counter_ns()
        for namespace, point in asked:
            view.bundle_at(namespace, point)
        nanoseconds.append((time.perf_counter_ns() - began) / LOOKUPS)
    return nanoseconds


def measure(_: Path) -> dict[str, object]:
    """Measure each size in a process of its own."""
    with _spawn.Pool(1, maxtasksperchild=1) as pool:
        return {
            "memory": single(pool.apply(memory, (SIZES[-1],)), f"MB of {SIZES[-1]} bundles"),
            **{f"lookup_{size}": summary(pool.apply(lookup, (size,)), "ns") for size in SIZES},
        }


if __name__ == "__main__":
    report(
        "view",
        measure,
        f"{BROKERS} brokers, namespaces of {BUNDLES_PER_NAMESPACE} bundles, all owned; points at"
        " random; one core",
    )
