"""How long it takes from a proposal to its verdict: `make bench BENCH=verdict [LOG=kafka]` prints
one JSON line, in a minute.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Sequence
from contextlib import closing
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Final

from equipoise.brokers.agent.requests import CreateNamespace, SetPolicy
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.inspect.verify import verify
from equipoise.channel.log.open_log import open_log
from tests.benchmarks.frame import report_on_log, single, summary
from tests.load.log_places import LogKind
from tests.unit.runtime.service_bench import Plain

BROKERS: Final = 3
PROPOSALS_PER_SECOND: Final = 500
# Each is proposed to again after a third of a second: by then its last proposal is decided, or the
# median says so.
NAMESPACES_EACH: Final = 50
WARM_UP_S, MEASURED_S = 5.0, 30.0
TIMEOUT_MS: Final = 30_000
READY_MS: Final = 60_000

_spawn = multiprocessing.get_context("spawn")
_Latencies = list[float]


async def proposed(
    worker: Worker, namespaces: Sequence[str], *, seconds: float, value: str
) -> _Latencies:
    """Propose at this broker's share of the pace for a while; the milliseconds of each proposal."""
    now = asyncio.get_running_loop().time
    began_s, pace = now(), PROPOSALS_PER_SECOND / BROKERS

    async def propose(number: int) -> float:
        due_s = began_s + number / pace
        intent = SetPolicy(
            name=namespaces[number % len(namespaces)], policy="benchmark", value=f"{value}-{number}"
        )
        await worker.request(intent, timeout_ms=TIMEOUT_MS)
        return (now() - due_s) * 1_000

    proposals: list[asyncio.Task[float]] = []
    for number in range(int(seconds * pace)):
        await asyncio.sleep(began_s + number / pace - now())
        proposals.append(asyncio.create_task(propose(number)))
    return list(await asyncio.gather(*proposals))


async def propose_on(log_url: str, folder: Path, number: int, ready: Barrier) -> _Latencies:
    """One broker, from its joining to its leaving."""
    config = WorkerConfig(
        log_url=log_url, data_dir=folder / f"{number}", broker_id=f"b{number}", balance=False
    )
    worker = Worker(config, {"*": Plain()}, addresses={})
    await worker.start()
    try:
        await worker.ready(timeout_ms=READY_MS)
        namespaces = [f"bench-{number}/ns-{n}" for n in range(NAMESPACES_EACH)]
        for name in namespaces:
            await worker.request(
                CreateNamespace(name=name, boundaries=even_boundaries(1)), timeout_ms=TIMEOUT_MS
            )
        await asyncio.to_thread(ready.wait)
        await proposed(worker, namespaces, seconds=WARM_UP_S, value="warm-up")
        measured = await proposed(worker, namespaces, seconds=MEASURED_S, value="measured")
        await asyncio.to_thread(ready.wait)  # Nobody leaves while another one measures.
        return measured
    finally:
        await worker.abort()  # A graceful one would only move its bundles to those who end as well.


def run_broker(
    log_url: str, folder: Path, number: int, ready: Barrier, results: Queue[_Latencies]
) -> None:
    """A process of its own."""
    results.put(asyncio.run(propose_on(log_url, folder, number, ready)))


def measure(folder: Path, log_url: str, _: LogKind) -> dict[str, object]:
    """All brokers at once; and the channel must be in order afterwards."""
    ready, results = _spawn.Barrier(BROKERS), _spawn.Queue()
    brokers: list[SpawnProcess] = [
        _spawn.Process(
            target=run_broker, args=(log_url, folder, number, ready, results), daemon=True
        )
        for number in range(BROKERS)
    ]
    for broker in brokers:
        broker.start()
    latencies = [latency for _ in brokers for latency in results.get()]
    for broker in brokers:
        broker.join()
    with closing(open_log(log_url, create=False)) as log:
        findings = verify(log)
    assert findings.in_order, findings
    return {"verdict": summary(latencies, "ms"), "records": single(findings.records, "records")}


if __name__ == "__main__":
    report_on_log(
        "verdict",
        measure,
        f"{BROKERS} brokers in processes of their own on the same CPUs, {PROPOSALS_PER_SECOND}"
        f" proposals/s in all for {MEASURED_S:.0f} s, each from when it was due to its verdict",
    )
