"""What a hundred idle agents cost: `make bench BENCH=idle` prints one JSON line, in about two
minutes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Final

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.runtime.broker import Broker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import even_boundaries
from tests.benchmarks.frame import report, summary
from tests.unit.runtime.service_bench import Plain
from tests.waiting import all_owned

PROCESSES, WORKERS = 4, 25
BUNDLES: Final = 400
WINDOWS, WINDOW_S = 6, 5.0
TIMEOUT_MS: Final = 120_000
SETTLE_S: Final = 5.0
NAMESPACE: Final = "bench/idle"

_spawn = multiprocessing.get_context("spawn")


async def run_workers(folder: Path, number: int, ready: Barrier, results: Queue[float]) -> None:
    """Join, share bundles out with all others, and tell the cost of this process in percent of a
    core, window by window.
    """
    workers = list[Worker]()
    for place in range(WORKERS):
        name = f"broker-{number}-{place}"
        config = WorkerConfig(
            log_url=f"sqlite:{folder}/channel.db",
            data_dir=folder / name,
            broker_id=name,
            http_port=0,
        )
        broker = Broker(config, {"*": Plain()}, advertised_addresses={})
        workers.append(await broker.__aenter__())
        await workers[-1].ready(timeout_ms=TIMEOUT_MS)
    await asyncio.to_thread(ready.wait)
    if not number:
        creation = CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(BUNDLES))
        await workers[0].request(creation, timeout_ms=TIMEOUT_MS)
    await workers[0].until(all_owned, timeout_ms=TIMEOUT_MS, what="all bundles being owned")
    await asyncio.sleep(SETTLE_S)
    for _ in range(WINDOWS):
        began, began_cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(WINDOW_S)
        results.put((time.process_time() - began_cpu) / (time.perf_counter() - began) * 100)
    await asyncio.to_thread(ready.wait)


def process(folder: Path, number: int, ready: Barrier, results: Queue[float]) -> None:
    """Run one process, which ends without a word, as if it had died."""
    asyncio.run(run_workers(folder, number, ready, results))
    os._exit(0)


def measure(folder: Path) -> dict[str, object]:
    """Measure all processes at the same time."""
    ready, results = _spawn.Barrier(PROCESSES), _spawn.Queue()
    children = [
        _spawn.Process(target=process, args=(folder, number, ready, results), daemon=True)
        for number in range(PROCESSES)
    ]
    for child in children:
        child.start()
    percents = [results.get() for _ in range(PROCESSES * WINDOWS)]
    for child in children:
        child.join(timeout=TIMEOUT_MS / 1_000)
    return {"cpu_per_process": summary(percents, "% of one core")}


if __name__ == "__main__":
    report(
        "idle",
        measure,
        f"{PROCESSES} processes of {WORKERS} workers, {BUNDLES} bundles, {WINDOWS} windows of"
        f" {WINDOW_S} s",
    )
