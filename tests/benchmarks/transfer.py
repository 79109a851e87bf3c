"""How long a transfer, a split and a merge hold callers up.

`make bench BENCH=transfer [LOG=kafka]` prints a JSON line, in four minutes.

"""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import orjson

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import key_hash
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.clocks import boot_ns
from tests.benchmarks.frame import report_on_log, summary
from tests.load import admin_requests
from tests.load.admin_requests import Move
from tests.load.callers import CallerProcess, Plan, Stream
from tests.load.cluster import counters, running, settle
from tests.load.log_places import LogKind
from tests.load.verdicts import check_calls

NAMESPACE: Final = "bench/transfer"
BROKERS, BUNDLES = 2, 8
HOT_CALLS_PER_SECOND, HOT_CALLERS = 500.0, 8
COLD_KEYS, COLD_CALLS_PER_SECOND = 32, 20.0
TRANSFERS, CUTS = 100, 40
# A move takes some 20 ms; what it does to callers is seen in the calls that begin in this time, and
# then things settle.
WINDOW_S: Final = 0.1
SETTLE_S: Final = 0.15
WARM_UP_S: Final = 5.0
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time, in nanoseconds of boot time, and what was done at its beginning."""

    kind: str
    began_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the measurement works on. All moves are of the bundle that holds the hot key."""

    cluster: LocalCluster
    table: TableView
    http: aiohttp.ClientSession

    def hot(self) -> BundleEntry:
        """The bundle of the hot key."""
        bundle = self.table.view.bundle_at(NAMESPACE, key_hash("hot"))
        assert bundle is not None, "the namespace is there"
        return bundle

    async def window(self, kind: str, move: Move | None) -> Window:
        """Make a move, or none, and let some time pass."""
        began_ns = boot_ns()
        if move is not None:
            problem = await admin_requests.make(self.http, self.cluster.addresses[0], move)
            assert problem is None, problem
        await asyncio.sleep(WINDOW_S + SETTLE_S - (boot_ns() - began_ns) / 1e9)
        return Window(kind=kind, began_ns=began_ns, ended_ns=began_ns + int(WINDOW_S * 1e9))

    def transfer(self) -> Move:
        """The hot bundle to the broker that has it not."""
        bundle = self.hot()
        others = [
            broker.broker
            for broker in self.table.view.live_brokers()
            if broker.incarnation != bundle.owner
        ]
        return Move(kind=MoveKind.TRANSFER, bundle=bundle.name, to=others[0])

    async def windows(self) -> list[Window]:
        """Every window, those of the control among the others."""
        done: list[Window] = []
        for _ in range(TRANSFERS):
            done.append(await self.window("control", None))
            done.append(await self.window("transfer", self.transfer()))
        for _ in range(CUTS):
            whole = self.hot()
            done.append(await self.window("split", Move(kind=MoveKind.SPLIT, bundle=whole.name)))
            done.append(await self.window("control", None))
            left = self.table.view.bundle_at(NAMESPACE, whole.low)
            assert left is not None, "a split leaves no hole"
            done.append(await self.window("merge", Move(kind=MoveKind.MERGE, bundle=left.name)))
            await settle(self.cluster, self.table, NAMESPACE)
        return done


def hot_calls(history: Path) -> list[tuple[int, int]]:
    """Of the hot key, the first attempt and the acknowledgement of every call, by the time of the
    first attempt.
    """
    first: dict[str, int] = {}
    done: list[tuple[int, int]] = []
    for line in history.read_bytes().splitlines():
        attempt = orjson.loads(line)
        began_ns = first.setdefault(attempt["request"], attempt["call_ns"])
        if attempt["status"] == 200 and attempt["key"] == f"{NAMESPACE}/hot":
            done.append((began_ns, attempt["return_ns"]))
    return sorted(done)


def pauses_ms(windows: Iterable[Window], calls: Sequence[tuple[int, int]]) -> list[float]:
    """Of each window, how long the call took, of all that began in it, that took longest.

    A window in which none began lies within a pause, which is counted where it began.
    """
    longest: list[float] = []
    for window in windows:
        first, end = (bisect_left(calls, (ns, 0)) for ns in (window.began_ns, window.ended_ns))
        if first < end:
            durations = (done_ns - began_ns for began_ns, done_ns in calls[first:end])
            longest.append(max(durations) / _NS_PER_MS)
    return longest


async def measure(directory: Path, log_url: str, _: LogKind) -> dict[str, object]:
    """Set everything up, measure, and run the checker."""
    # The balancer is switched off: it would move bundles in windows of the control.
    cluster = LocalCluster(
        counters(directory, brokers=BROKERS, log_url=log_url, evidence=True, balance="false")
    )
    history = directory / "history.jsonl"
    cold = [
        Stream(key=f"{NAMESPACE}/cold-{number}", calls_per_second=COLD_CALLS_PER_SECOND)
        for number in range(COLD_KEYS)
    ]
    hot = Stream(key=f"{NAMESPACE}/hot", calls_per_second=HOT_CALLS_PER_SECOND, callers=HOT_CALLERS)
    plan = Plan(brokers=cluster.addresses, streams=(hot, *cold), history=history)
    async with (
        running(cluster, NAMESPACE, bundles=BUNDLES) as (table, http),
        CallerProcess(plan) as callers,
    ):
        await asyncio.sleep(WARM_UP_S)
        windows = await Bench(cluster=cluster, table=table, http=http).windows()
        await callers.stop()
    verdict = check_calls([history], store=directory / "counter.db", evidence=cluster.evidence())
    print(f"transfer: {verdict.text}, {callers.tally}", file=sys.stderr)
    assert verdict.is_clean, verdict
    return figures(windows, hot_calls(history))


def figures(windows: Sequence[Window], calls: Sequence[tuple[int, int]]) -> dict[str, object]:
    """The pauses of the hot key's callers, by what was done."""
    return {
        f"{kind}_pause": summary(
            pauses_ms((each for each in windows if each.kind == kind), calls), "ms"
        )
        for kind in ("control", "transfer", "split", "merge")
    }


if __name__ == "__main__":
    report_on_log(
        "transfer",
        measure,
        f"{BROKERS} brokers and their callers on the same CPUs, {HOT_CALLS_PER_SECOND:.0f} calls/s"
        f" on one key and {COLD_CALLS_PER_SECOND:.0f} on each of {COLD_KEYS} others, every call a"
        f" write to SQLite, windows of {WINDOW_S} s",
    )
