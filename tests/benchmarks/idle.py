"""What a hundred idle agents cost: `make bench BENCH=idle` prints one JSON line, in about two minutes.

May live here: the measurement that docs/benchmarks.md quotes of idle brokers. Four processes with 25 workers each share one
log; nobody calls and nothing moves, so that what is left is renewals, and reading those of all others.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from brokers.agent.intents import CreateNamespace
from brokers.config import WorkerConfig
from brokers.main import Broker
from brokers.service import Bundle, Ownership, Peer, Service
from brokers.worker import Worker
from channel.ranges import even_boundaries
from channel.view import View
from tests.benchmarks.figures import machine, print_line, summary

PROCESSES, WORKERS = 4, 25
BUNDLES = 400
WINDOWS, WINDOW_S = 6, 5.0
TIMEOUT_MS = 40_000
NAMESPACE = "bench/idle"

_spawn = multiprocessing.get_context("spawn")


class Idle(Service):
    """A service that nobody calls."""

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Nothing to open."""

    async def close(self, bundle: Bundle, moved_to: Peer | None) -> bytes | None:
        """Nothing to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one process took: percent of a core, window by window, and its memory at the end."""

    percents: tuple[float, ...]
    rss_mib: float
    records: int


def all_owned(view: View) -> bool | None:
    """Whether every bundle has an owner."""
    bundles = view.bundles_of(NAMESPACE)
    return (bool(bundles) and all(bundle.phase == "owned" for bundle in bundles)) or None


def all_joined(view: View) -> bool | None:
    """Whether everybody is there."""
    return len(view.live) == PROCESSES * WORKERS or None


async def run_workers(folder: Path, number: int, connection: Connection) -> None:
    """One process: join with all workers, say so, and measure when told."""
    brokers = [Broker(config_of(folder, number, worker), {"*": Idle()}, advertised_addresses={}) for worker in range(WORKERS)]
    workers = [await broker.__aenter__() for broker in brokers]
    for worker in workers:
        await worker.until(all_joined, timeout_ms=TIMEOUT_MS, what="everybody joining")
    if number == 0:
        await workers[0].request(CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(BUNDLES)), timeout_ms=TIMEOUT_MS)
    await workers[0].until(all_owned, timeout_ms=TIMEOUT_MS, what="all bundles being owned")
    # Brokers that joined while there were few renew at a pace for few; by their next incarnation they would not.
    connection.send("ready")
    await asyncio.to_thread(connection.recv)
    cost = await measure(workers)
    connection.send(cost)
    await asyncio.to_thread(connection.recv)
    for worker in workers:
        await worker.abort()


async def measure(workers: list[Worker]) -> Cost:
    """The cost of this process, window by window."""
    percents: list[float] = []
    before = workers[0].view.offset
    for _ in range(WINDOWS):
        began, began_cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(WINDOW_S)
        percents.append((time.process_time() - began_cpu) / (time.perf_counter() - began) * 100)
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    return Cost(percents=tuple(percents), rss_mib=rss_mib, records=workers[0].view.offset - before)


def config_of(folder: Path, number: int, worker: int) -> WorkerConfig:
    """One of the hundred."""
    broker = f"broker-{number}-{worker}"
    return WorkerConfig(log_url=f"sqlite:{folder}/channel.db", data_dir=folder / broker, broker_id=broker)


def process(folder: Path, number: int, connection: Connection) -> None:
    """The entry of one process."""
    asyncio.run(run_workers(folder, number, connection))


def hear_all(pipes: list[tuple[Connection, Connection]], step: str) -> list[Cost]:
    """What all processes say at the end of a step; then they go on."""
    said = [ours.recv() for ours, _ in pipes]
    print(f"idle: all are {step}", file=sys.stderr)
    for ours, _ in pipes:
        ours.send(step)
    return said


def main() -> None:
    """Measure and print."""
    before = machine()
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_spawn.Pipe() for _ in range(PROCESSES)]
        children = [_spawn.Process(target=process, args=(Path(folder), number, pipe[1])) for number, pipe in enumerate(pipes)]
        for child in children:
            child.start()
        hear_all(pipes, "ready")
        costs = hear_all(pipes, "measured")
        for child in children:
            child.join(timeout=TIMEOUT_MS / 1_000)
    percents = [percent for cost in costs for percent in cost.percents]
    results = {
        "cpu_per_process": summary(percents, "% of one core"),
        "rss_per_process": summary([cost.rss_mib for cost in costs], "MiB"),
        "records": summary([cost.records / (WINDOWS * WINDOW_S) for cost in costs], "records/s"),
    }
    print_line(
        "idle", results, f"{before}, {PROCESSES} processes of {WORKERS} workers, {BUNDLES} bundles, {WINDOWS} windows of {WINDOW_S} s"
    )


if __name__ == "__main__":
    main()
