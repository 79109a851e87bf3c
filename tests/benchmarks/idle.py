"""What a hundred idle agents cost: `make bench BENCH=idle` prints one JSON line, in about two
minutes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path

from equipoise.brokers.agent.intents import CreateNamespace
from equipoise.brokers.runtime.broker import Broker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline
from tests.benchmarks.figures import Figures, machine, print_line, summary

PROCESSES, WORKERS = 4, 25
BUNDLES = 400
WINDOWS, WINDOW_S = 6, 5.0
TIMEOUT_MS = 120_000
SETTLE_S = 5.0
NAMESPACE = "bench/idle"

_spawn = multiprocessing.get_context("spawn")


class Idle(Service):
    """A service that nobody calls."""

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Nothing to open."""

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Nothing to close."""


class Step(Enum):
    """What a process is told to do."""

    JOIN = "join"
    SHARE = "share"
    MEASURE = "measure"
    REJOIN = "rejoin"
    END = "end"


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


async def run_workers(folder: Path, number: int, connection: Connection) -> None:
    """One process: do what the parent says, step by step, and say when it is done."""
    workers: list[Member] = []
    while (step := await asyncio.to_thread(connection.recv)) != Step.END:
        if step in (Step.JOIN, Step.REJOIN):
            workers = [await joined(folder, number, worker, workers) for worker in range(WORKERS)]
            connection.send(None)
        elif step is Step.SHARE:
            boundaries = even_boundaries(BUNDLES)
            first = workers[0].worker
            await first.request(
                CreateNamespace(name=NAMESPACE, boundaries=boundaries), timeout_ms=TIMEOUT_MS
            )
            await first.until(all_owned, timeout_ms=TIMEOUT_MS, what="all bundles being owned")
            connection.send(None)
        else:
            connection.send(await measure([member.worker for member in workers]))
    for member in workers:
        await member.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A broker without HTTP, and the worker that it started."""

    broker: Broker
    worker: Worker

    async def abort(self) -> None:
        """End it without a word, as if its process had died."""
        await self.worker.abort()
        await self.broker.__aexit__(None, None, None)


async def joined(folder: Path, number: int, worker: int, former: Sequence[Member]) -> Member:
    """A worker that has joined, in place of the one that was there before."""
    if former:
        await former[worker].abort()
    broker = Broker(config_of(folder, number, worker), {"*": Idle()}, advertised_addresses={})
    again = Member(broker=broker, worker=await broker.__aenter__())
    await again.worker.ready(timeout_ms=TIMEOUT_MS)
    return again


async def measure(workers: Sequence[Worker]) -> Cost:
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
    return WorkerConfig(
        log_url=f"sqlite:{folder}/channel.db",
        data_dir=folder / broker,
        broker_id=broker,
        http_port=0,
    )


def process(folder: Path, number: int, connection: Connection) -> None:
    """The entry of one process."""
    asyncio.run(run_workers(folder, number, connection))


def tell(pipe: Connection, step: Step) -> Cost:
    """Have one process do a step; what it says at its end."""
    (cost,) = tell_all([pipe], step)
    return cost


def tell_all(pipes: Sequence[Connection], step: Step) -> list[Cost]:
    """Have all processes do a step at the same time."""
    for pipe in pipes:
        pipe.send(step)
    return [pipe.recv() for pipe in pipes]


def measured(pipes: Sequence[Connection]) -> dict[str, dict[str, Figures]]:
    """Let all join, one after the other; measure; let all join anew, and measure again."""
    results = {}
    for step, name in ((Step.JOIN, "joined_one_by_one"), (Step.REJOIN, "joined_among_a_hundred")):
        for pipe in pipes:
            tell(pipe, step)
            print(f"idle: {name}, one process of {PROCESSES}", file=sys.stderr)
        if step is Step.JOIN:
            tell(pipes[0], Step.SHARE)
        time.sleep(SETTLE_S)
        results[name] = figures_of(tell_all(pipes, Step.MEASURE))
    return results


def figures_of(costs: Sequence[Cost]) -> dict[str, Figures]:
    """What all processes told, as figures."""
    return {
        "cpu_per_process": summary(
            [percent for cost in costs for percent in cost.percents], "% of one core"
        ),
        "rss_per_process": summary([cost.rss_mib for cost in costs], "MiB"),
        "offsets": summary([cost.records / (WINDOWS * WINDOW_S) for cost in costs], "offsets/s"),
    }


def main() -> None:
    """Measure and print."""
    before = machine()
    with tempfile.TemporaryDirectory() as folder:
        pairs = [_spawn.Pipe() for _ in range(PROCESSES)]
        children = [
            _spawn.Process(target=process, args=(Path(folder), number, pair[1]), daemon=True)
            for number, pair in enumerate(pairs)
        ]
        for child in children:
            child.start()
        results = measured([ours for ours, _ in pairs])
        for ours, _ in pairs:
            ours.send(Step.END)
        for child in children:
            child.join(timeout=TIMEOUT_MS / 1_000)
    print_line(
        "idle",
        results,
        f"{before}, {PROCESSES} processes of {WORKERS} workers, {BUNDLES} bundles, {WINDOWS}"
        f" windows of {WINDOW_S} s",
    )


if __name__ == "__main__":
    main()
