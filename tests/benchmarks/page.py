"""What open pages cost a broker: `make bench BENCH=page` prints one JSON line, in a minute.

The cluster has 100 brokers and 100,000 bundles. Each broker reports every 2.5 s, and each report
differs. One page looks at a namespace of 10,000 bundles, or many pages at the cluster. Figures are
CPU time of the process, without what making and reading the reports takes, which a broker does
without pages, too, and bytes of the stream, both per second and page, after the first overview.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.http.page.live import Focus, LiveOverview, _sections
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.shedder.loads import Load
from tests.benchmarks.frame import report
from tests.benchmarks.planning import samples_of
from tests.benchmarks.view import BROKERS, namespace_of, view_of

BUNDLES: Final = 100_000
LOG: Final = "memory:page"
WARM_S, WINDOW_S = 5.0, 20.0
PAGES: Final = {"namespace": 1, "cluster": 8}
REPORT_S: Final = 2.5


def stand_in() -> Worker:
    """A worker that stands in for a broker. Its view does not change."""
    view = view_of(BUNDLES)
    clock = SimpleNamespace(now=lambda: SimpleNamespace(wall_ms=time.time_ns() // 1_000_000))
    worker = SimpleNamespace(
        view=view,
        broker_id=view.live_brokers()[0].broker,
        log_name=LOG,
        log_id=LOG,
        config=SimpleNamespace(log_url=LOG, base_settings=BalancingSettings()),
        clock=clock,
        agent=SimpleNamespace(is_suspect=lambda *_, **__: False),
        log_is_available=True,
        channel_loss=None,
        lag_records=0,
        client_problems={},
        access=SimpleNamespace(certificates=SimpleNamespace(expires_s=None)),
        ended=False,
        load_bus=LoadBus(LOG),
        listen=lambda *_, **__: lambda: None,
    )
    return cast("Worker", worker)


async def reported(loads: Sequence[Load], read: LoadBus, spent: list[float]) -> None:
    """Send the reports of all brokers again and again, and read them."""
    bus = LoadBus(LOG)
    for number in range(10**6):
        began = time.thread_time()
        for place, load in enumerate(loads):
            now_ms, factor = time.time_ns() // 1_000_000, 1 + (place + number) % 7 / 100
            bus.publish(replace(load, at_ms=now_ms, cost=load.cost * factor))
        read.latest()
        spent[0] += time.thread_time() - began
        await asyncio.sleep(REPORT_S)


async def page(live: LiveOverview, focus: Focus | None, sent: list[int]) -> None:
    """Follow the overview as an open page does."""

    async def write(data: bytes) -> None:
        await asyncio.sleep(0)
        sent[0] += len(data)

    await live._send(  # noqa: SLF001 - without a socket.
        write,
        lambda: _sections(live._overview, focus, {}),  # noqa: SLF001 - as above.
    )


async def measured(worker: Worker, loads: Sequence[Load], kind: str) -> dict[str, float]:
    """Return the cost of one of so many pages."""
    spent, sent = [0.0], [0]
    live = LiveOverview(worker)
    tasks = [asyncio.create_task(reported(loads, worker.load_bus, spent))]
    for _ in range(PAGES[kind]):
        part = Focus(namespace=namespace_of(0), low=0, high=HASH_MAX)
        tasks.append(asyncio.create_task(page(live, part if kind == "namespace" else None, sent)))
    # The first overview weighs all bundles.
    while not sent[0]:  # noqa: ASYNC110 - what counts bytes has no event.
        await asyncio.sleep(0.1)
    await asyncio.sleep(WARM_S)
    began, before, spent[0], sent[0] = time.monotonic(), time.process_time(), 0.0, 0
    await asyncio.sleep(WINDOW_S)
    cpu_s, took_s = time.process_time() - before - spent[0], time.monotonic() - began
    for task in tasks:
        task.cancel()
    count = PAGES[kind]
    return {
        "pages": count,
        "core_percent": round(100 * cpu_s / took_s / count, 3),
        "kilobytes_per_second": round(sent[0] / took_s / count / 1_000, 2),
    }


def measure(_: Path) -> dict[str, object]:
    """Open pages of a large cluster."""
    worker = stand_in()
    loads = list(samples_of(worker.view))
    gc.freeze()  # As `equipoise broker` does after its start.
    return {kind: asyncio.run(measured(worker, loads, kind)) for kind in PAGES}


if __name__ == "__main__":
    report("page", measure, f"{BROKERS} brokers, {BUNDLES} bundles, {WINDOW_S} s")
