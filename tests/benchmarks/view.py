"""What a view costs: `make bench BENCH=view` prints one JSON line, in less than a minute."""

from __future__ import annotations

import multiprocessing
import random
import resource
import time

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX, even_boundaries
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.view import View, apply
from tests.benchmarks.figures import machine, print_line, single, summary
from tests.channels.folding import joined

SIZES = (100, 10_000, 100_000)
BUNDLES_PER_NAMESPACE = 10_000
BROKERS = 100
LOOKUPS, REPEATS = 20_000, 15
MEGABYTE = 1e6

_spawn = multiprocessing.get_context("spawn")


class Writer:
    """Folds records into a view and keeps none of them."""

    def __init__(self) -> None:
        self.view = View()

    def put(self, record: AnyRecord) -> None:
        """Fold a record that must be accepted."""
        # Over bytes, because what a record shares with its writer is no memory of the view.
        verdict = apply(self.view, self.view.offset + 1, decode(encode(record)))
        assert verdict.accepted, verdict

    def admin(self) -> Author:
        """An admin who has read everything."""
        return Author(publisher="admin:bench", as_of=self.view.offset)


def view_of(bundles: int, *, brokers: int = BROKERS) -> View:
    """A view of so many bundles in as many namespaces as it takes, owned in turn by all brokers."""
    writer = Writer()
    view = writer.view
    view.offset = 0
    writer.put(propose.genesis(Author(publisher="admin:bench"), cluster="bench"))
    for number in range(brokers):
        writer.put(joined(f"broker-{number}:8080", view, instance_id=f"{number:032x}"))
    incarnations = list(view.live)
    for first in range(0, bundles, BUNDLES_PER_NAMESPACE):
        boundaries = even_boundaries(min(BUNDLES_PER_NAMESPACE, bundles - first))
        writer.put(
            propose.create_namespace(
                writer.admin(), view, name=namespace_of(first), boundaries=boundaries
            )
        )
    sequences = dict.fromkeys(incarnations, 0)
    for place, name in enumerate(list(view.bundles)):
        owner = incarnations[place % brokers]
        writer.put(propose.assign(writer.admin(), view.bundles[name], owner=owner))
        sequences[owner] += 1
        author = Author(
            publisher=view.live[owner].broker, incarnation=owner, sequence=sequences[owner]
        )
        writer.put(propose.opened(author, view.bundles[name]))
    return view


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


def main() -> None:
    """Measure and print."""
    results: dict[str, object] = {}
    with _spawn.Pool(1, maxtasksperchild=1) as pool:
        results["memory"] = single(pool.apply(memory, (SIZES[-1],)), f"MB of {SIZES[-1]} bundles")
        for size in SIZES:
            results[f"lookup_{size}"] = summary(pool.apply(lookup, (size,)), "ns")
    conditions = (
        f"{BROKERS} brokers, namespaces of {BUNDLES_PER_NAMESPACE} bundles, all owned; points at"
        f" random; one core of {machine()}"
    )
    print_line("view", results, conditions)


if __name__ == "__main__":
    main()
