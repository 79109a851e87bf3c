"""What a hundred idle agents cost: `make bench BENCH=idle` prints one JSON line, in about two
minutes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.runtime.broker import Broker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.view import View
from tests.benchmarks.frame import Figures, report, summary
from tests.unit.runtime.service_bench import Plain

PROCESSES, WORKERS = 4, 25
BUNDLES = 400
WINDOWS, WINDOW_S = 6, 5.0
TIMEOUT_MS = 120_000
SETTLE_S = 5.0
NAMESPACE = "bench/idle"

_spawn = multiprocessing.get_context("spawn")


class Step(Enum):
    """What a process is told to do."""

    JOIN = "join"
    SHARE = "share"
    MEASURE = "measure"
    END = "end"


def all_owned(view: View) -> bool | None:
    """Whether every bundle has an owner."""
    bundles = view.bundles_of(NAMESPACE)
    return (bool(bundles) and all(bundle.phase == "owned" for bundle in bundles)) or None


async def run_workers(folder: Path, number: int, connection: Connection) -> None:
    """One process: do what the parent says, step by step, and say when it is done."""
    workers: list[Member] = []
    while (step := await asyncio.to_thread(connection.recv)) != Step.END:
        if step is Step.JOIN:
            workers = [await joined(folder, number, worker) for worker in range(WORKERS)]
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
            connection.send(await measure())
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


async def joined(folder: Path, number: int, worker: int) -> Member:
    """A worker that has joined."""
    broker = Broker(config_of(folder, number, worker), {"*": Plain()}, advertised_addresses={})
    again = Member(broker=broker, worker=await broker.__aenter__())
    await again.worker.ready(timeout_ms=TIMEOUT_MS)
    return again


async def measure() -> list[float]:
    """The cost of this process, in percent of a core, window by window."""
    percents: list[float] = []
    for _ in range(WINDOWS):
        began, began_cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(WINDOW_S)
        percents.append((time.process_time() - began_cpu) / (time.perf_counter() - began) * 100)
    return percents


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


def tell(pipe: Connection, step: Step) -> None:
    """Have one process do a step."""
    pipe.send(step)
    pipe.recv()


def measured(pipes: Sequence[Connection]) -> dict[str, Figures]:
    """Let all join, one after the other, and measure all at the same time."""
    for pipe in pipes:
        tell(pipe, Step.JOIN)
        print(f"idle: joined, one process of {PROCESSES}", file=sys.stderr)
    tell(pipes[0], Step.SHARE)
    time.sleep(SETTLE_S)
    for pipe in pipes:
        pipe.send(Step.MEASURE)
    percents = [percent for pipe in pipes for percent in pipe.recv()]
    return {"cpu_per_process": summary(percents, "% of one core")}


def measure_all(folder: Path) -> dict[str, Figures]:
    """Start the processes, measure, and end them."""
    pairs = [_spawn.Pipe() for _ in range(PROCESSES)]
    children = [
        _spawn.Process(target=process, args=(folder, number, pair[1]), daemon=True)
        for number, pair in enumerate(pairs)
    ]
    for child in children:
        child.start()
    results = measured([ours for ours, _ in pairs])
    for ours, _ in pairs:
        ours.send(Step.END)
    for child in children:
        child.join(timeout=TIMEOUT_MS / 1_000)
    return results


if __name__ == "__main__":
    report(
        "idle",
        measure_all,
        f"{PROCESSES} processes of {WORKERS} workers, {BUNDLES} bundles, {WINDOWS} windows of"
        f" {WINDOW_S} s",
    )
