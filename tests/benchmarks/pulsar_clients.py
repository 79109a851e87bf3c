"""What Pulsar's clients lose in transfers, with falsified lookups and in deaths: `make bench
BENCH=pulsar_clients`, in 25 minutes.

Each row goes to standard error as soon as it is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Final

from tests.benchmarks.frame import machine, print_line
from tests.benchmarks.pulsar_load import longest_gap, receipts
from tests.load.log_places import LogKind, new_log
from tests.load.verdicts import Verdict
from tests.pulsar.clients import Producing
from tests.pulsar.fleet import Fleet
from tests.pulsar.moving import (
    BATCH,
    NAMESPACE,
    Running,
    every_subscription,
    flowing,
    misled,
    running_brokers,
)
from tests.pulsar.programs import EVERYDAY, Language, lacking

TOPICS: Final = tuple(f"non-persistent://{NAMESPACE}/topic-{number}" for number in range(8))
RATE: Final = 20.0
STALE_RATE: Final = 100.0
COUNTS: Final = ("sent", "receipted", "failed", "deliveries_owed", "lost", "doubled")
_NS_PER_MS: Final = 1e6

# The times, in ns, from which and until which each move may have paused producers.
Windows = list[tuple[int, int]]


def pauses_ms(fleet: Fleet, windows: Windows) -> list[float]:
    """The longest time between two receipts on one topic, above the producer's period, in each
    window.
    """
    found: list[list[float]] = [[] for _ in windows]
    for client in fleet.producers:
        assert isinstance(client.task, Producing), "as sorted"
        for came in receipts(client.history).values():
            for of_window, (began_ns, ended_ns) in zip(found, windows, strict=True):
                gap = longest_gap(came, began_ns=began_ns, ended_ns=ended_ns)
                of_window.append(gap.length_ns / _NS_PER_MS - 1_000 / client.task.rate)
    return [max(of_window) for of_window in found]


def row(verdict: Verdict, pauses: Sequence[float], **more: int) -> dict[str, object]:
    """The figures of one client and kind of move. Losses and copies include those that a death
    excuses. Others are printed.
    """
    for rule, found in verdict.violations.items():
        print(f"{rule}: {'; '.join(found)}", file=sys.stderr)
    return {
        "moves": len(pauses),
        **more,
        **{name: verdict.totals[name] for name in COUNTS},
        "out_of_order": verdict.counts.get("messages_keep_their_order", 0),
        "broken_rules": sum(verdict.counts.values()),
        "pause_p50_ms": round(statistics.median(pauses), 1),
        "pause_max_ms": round(max(pauses), 1),
    }


async def windows_of(count: int, move: Callable[[int], Awaitable[None]]) -> Windows:
    """Make this many moves. Each waits until all clients make progress again."""
    windows: Windows = []
    for turn in range(count):
        began_ns = time.monotonic_ns()
        await move(turn)
        windows.append((began_ns, time.monotonic_ns()))
    return windows


async def transfers(on: Running, folder: Path, language: Language, count: int) -> dict[str, object]:
    """Transfer the bundles in turn."""

    async def move(turn: int) -> None:
        bundles = on.bundles()
        await on.transfer(bundles[turn % len(bundles)], turn // len(bundles))
        await asyncio.to_thread(fleet.wait_flowing, time.monotonic_ns())

    async with flowing(folder, every_subscription(language, on, TOPICS, rate=RATE)) as fleet:
        windows = await windows_of(count, move)
        verdict = await on.finish(fleet, is_batched=True)
    return row(verdict, pauses_ms(fleet, windows))


async def falsified(on: Running, folder: Path, language: Language, count: int) -> dict[str, object]:
    """Transfer the bundle of a topic whose producer and consumer then find its former owner
    first.
    """
    async with misled(on, folder, language, TOPICS[0], STALE_RATE) as clients:
        windows = await windows_of(count, clients.transfer)
        verdict = await on.finish(clients.fleet)
    return row(verdict, pauses_ms(clients.fleet, windows), falsified_lookups=sum(clients.falsified))


async def deaths(on: Running, folder: Path, language: Language, count: int) -> dict[str, object]:
    """Kill the owner of the first topic, and start it again."""
    async with flowing(folder, every_subscription(language, on, TOPICS, rate=RATE)) as fleet:
        windows = await windows_of(count, lambda _: on.die(fleet, TOPICS[0]))
        verdict = await on.finish(fleet, is_batched=True)
    return row(verdict, pauses_ms(fleet, windows))


@asynccontextmanager
async def brokers(*, is_secured: bool) -> AsyncIterator[tuple[Running, Path]]:
    """Run a new cluster in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, new_log(LogKind.SQLITE, Path(folder)) as log_url:
        async with running_brokers(
            Path(folder), log_url, is_secured=is_secured, settle_ms=None
        ) as on:
            yield on, Path(folder)


async def measure(
    languages: Sequence[Language], counts: dict[str, int], *, is_secured: bool
) -> dict[str, dict[str, dict[str, object]]]:
    """All kinds of moves for each client, each on a new cluster."""
    results: dict[str, dict[str, dict[str, object]]] = {language: {} for language in languages}
    for language in languages:
        for measured in (transfers, falsified, deaths):
            if counts[measured.__name__]:
                async with brokers(is_secured=is_secured) as (on, folder):
                    figures = await measured(on, folder, language, counts[measured.__name__])
                results[language][measured.__name__] = figures
                cells = map(
                    str, (language, measured.__name__, *chain.from_iterable(figures.items()))
                )
                print(
                    f"{time.strftime('%H:%M:%S')}, {machine()}: {' '.join(cells)}", file=sys.stderr
                )
    return results


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.pulsar_clients")
    parser.add_argument("--transfers", type=int, default=200)
    parser.add_argument("--falsified", type=int, default=50)
    parser.add_argument("--deaths", type=int, default=10)
    parser.add_argument("--clients", nargs="+", type=Language, choices=list(Language))
    parser.add_argument(
        "--secured",
        action="store_true",
        help="use TLS and tokens, without falsified lookups, in Python, Java and Go",
    )
    options = parser.parse_args(arguments)
    languages = options.clients or (EVERYDAY if options.secured else list(Language))
    if options.secured:
        options.falsified = 0  # The proxies do not speak TLS.
    for problem in filter(None, map(lacking, languages)):
        parser.error(problem)
    counts = {name: getattr(options, name) for name in ("transfers", "falsified", "deaths")}
    before = machine()
    results = asyncio.run(measure(languages, counts, is_secured=options.secured))
    conditions = (
        f"{before}, {'TLS and tokens, ' if options.secured else ''}the log in SQLite, 3 brokers, 4"
        f" bundles and all clients on the same CPUs, {len(TOPICS)} topics at {RATE:.0f} messages/s,"
        f" one of them at {10 * RATE:.0f}/s more in batches of up to {BATCH}, and one subscription"
        f" of each type; with falsified lookups one topic at {STALE_RATE:.0f}/s, one Exclusive"
        " subscription; pauses between receipts above the period"
    )
    print_line("pulsar_clients", results, conditions)


if __name__ == "__main__":
    main(sys.argv[1:])
