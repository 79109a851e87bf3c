"""How soon a broker that joins a loaded cluster takes its part: `make bench BENCH=joining
[LOG=kafka]`, in four minutes.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.entries import BrokerChanged, BundleChanged
from equipoise.channel.core.ranges import bundle_contains, key_hash
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.clocks import Deadline, boot_ns
from equipoise.shedder.loads import Load
from equipoise.shedder.transfer import Spread
from tests.benchmarks.frame import report_on_log, summary
from tests.load.admin_requests import CORES, QUICK, tune
from tests.load.callers import CallerProcess, Plan, Stream
from tests.load.cluster import BY_USE, counters, running
from tests.load.log_places import LogKind, new_log
from tests.load.verdicts import check_calls

NAMESPACE: Final = "bench/joining"
BROKERS, BUNDLES, REPEATS = 3, 48, 3
CALLS_PER_SECOND: Final = 6.0
# The averages of reports have forgotten the start by then, and three brokers have come to rest.
WARM_UP_S: Final = 8.0
# What is even for so long counts as balanced, from its beginning on.
HELD_S: Final = 4.0
PATIENCE_MS: Final = 90_000
_LOOK_S: Final = 0.1
_NS_PER_S: Final = 1_000_000_000

IsBalanced = Callable[[View, Sequence[Load], BalancingSettings], bool]


def even_by_use(view: View, summaries: Sequence[Load], settings: BalancingSettings) -> bool:
    """Whether all live brokers report, and the deviation of what they use on average is within the
    target of `TransferShedder`.
    """
    used = [known.average_use for known in summaries if known.broker in _live(view)]
    return (
        len(used) == len(view.live)
        and Spread(used, pulsar_exact=False).deviation
        <= settings.groups()["transfer"].target_deviation
    )


def even_by_cost(view: View, _summaries: Sequence[Load], settings: BalancingSettings) -> bool:
    """Whether no live broker is further from the mean than the `BalancedShedder` leaves it, or than
    a bundle, by true costs.

    All are called equally often, so that is how many of them a broker serves; what is reported of
    it is an average, and comes later.
    """
    served = Counter(bundle.server for bundle in view.bundles_of(NAMESPACE))
    mean = BUNDLES / len(view.live)
    return all(
        abs(served[incarnation] - mean) <= max(settings.groups()["balanced"].settle_ratio * mean, 1)
        for incarnation in view.live
    )


def _live(view: View) -> set[str]:
    return {broker.broker for broker in view.live_brokers()}


STRATEGIES: Final[Mapping[str, tuple[Mapping[str, str | int | bool | None], IsBalanced]]] = {
    "balanced": ({"balancing.shedder": "BalancedShedder"}, even_by_cost),
    "transfer_shedder": (BY_USE, even_by_use),
}


@dataclass(slots=True, kw_only=True)
class Observer:
    """When `joiner` joined, and when the first bundle was on its way to it, in nanoseconds of boot
    time.
    """

    joiner: str
    incarnation: int | None = None
    joined_ns: int = 0
    first_move_ns: int | None = None

    def folded(self, folded: Folded) -> None:
        """Take in one record."""
        for change in folded.verdict.changes:
            if (
                isinstance(change, BrokerChanged)
                and change.name == self.joiner
                and change.after is not None
                and self.incarnation is None
            ):
                self.incarnation, self.joined_ns = change.after.incarnation, boot_ns()
            elif (
                isinstance(change, BundleChanged)
                and change.after is not None
                and change.after.phase == "transferring"
                and change.after.owner == self.incarnation
                and self.first_move_ns is None
            ):
                self.first_move_ns = boot_ns()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: the figures of a fourth broker, in seconds."""

    first_move_s: float
    balanced_s: float


@dataclass(slots=True, kw_only=True)
class Watch:
    """Looks whether the load is even, by what is on the channel and on the load bus."""

    table: TableView
    bus: LoadBus
    is_balanced: IsBalanced
    even_since_ns: int | None = None

    async def balanced_ns(self, deadline: Deadline) -> int:
        """Since when it is even, once it has been so for `HELD_S`. Raises `DeadlineExceeded`."""
        self.even_since_ns = None
        while True:
            deadline.check("an even load")
            now_ns = boot_ns()
            summaries = await asyncio.to_thread(self.bus.latest)
            settings = settings_in(self.table.view, BalancingSettings())
            if not self.is_balanced(self.table.view, summaries, settings):
                self.even_since_ns = None
            elif self.even_since_ns is None:
                self.even_since_ns = now_ns
            elif now_ns - self.even_since_ns >= HELD_S * _NS_PER_S:
                return self.even_since_ns
            await asyncio.sleep(_LOOK_S)


def streams(ranges: Iterable[tuple[int, int]]) -> tuple[Stream, ...]:
    """One key in each range, each called as often as the others: so that what is even can be told
    by counting, too.
    """
    keys = [
        next(
            key
            for number in count()
            if bundle_contains(low, high, key_hash(key := f"key-{number}"))
        )
        for low, high in ranges
    ]
    return tuple(
        Stream(key=f"{NAMESPACE}/{key}", calls_per_second=CALLS_PER_SECOND) for key in keys
    )


async def measured(directory: Path, log_url: str, strategy: str) -> Run:
    """Start three brokers under load, let a fourth join, and watch. The checker checks all
    calls.
    """
    changes, is_balanced = STRATEGIES[strategy]
    settings = counters(directory, brokers=BROKERS, log_url=log_url, evidence=True, cpu_cores=CORES)
    cluster = LocalCluster(settings)
    joining = LocalCluster(replace(settings, directory=directory / "joining", brokers=1))
    history = directory / "history.jsonl"
    observer = Observer(joiner=joining.broker_ids[0])
    async with AsyncExitStack() as parts:
        table, _ = await parts.enter_async_context(running(cluster, NAMESPACE, bundles=BUNDLES))
        await asyncio.to_thread(tune, log_url, {**QUICK, **changes})
        ranges = [(bundle.low, bundle.high) for bundle in table.view.bundles_of(NAMESPACE)]
        callers = CallerProcess(
            Plan(brokers=cluster.addresses, streams=streams(ranges), history=history)
        )
        await parts.enter_async_context(callers)
        watch = Watch(table=table, bus=LoadBus(log_url), is_balanced=is_balanced)
        await asyncio.sleep(WARM_UP_S)
        await watch.balanced_ns(Deadline.after(timeout_ms=PATIENCE_MS))
        parts.callback(table.listen(observer.folded))
        parts.push_async_callback(asyncio.to_thread, joining.stop_all)
        await asyncio.to_thread(joining.start)
        deadline = Deadline.after(timeout_ms=PATIENCE_MS)
        while observer.first_move_ns is None:
            deadline.check("the first move to the broker that joined")
            await asyncio.sleep(_LOOK_S)
        balanced_ns = await watch.balanced_ns(deadline)
        await callers.stop()
    evidence = [*cluster.evidence(), *joining.evidence()]
    verdict = check_calls([history], store=directory / "counter.db", evidence=evidence)
    assert verdict.is_clean, verdict
    run = Run(
        first_move_s=(observer.first_move_ns - observer.joined_ns) / _NS_PER_S,
        balanced_s=(balanced_ns - observer.joined_ns) / _NS_PER_S,
    )
    print(f"joining by {strategy}: {run}, {verdict.text}", file=sys.stderr)
    return run


def measure(folder: Path, _: str, kind: LogKind) -> dict[str, object]:
    """Each strategy on new logs, several times."""
    results: dict[str, object] = {}
    for strategy in STRATEGIES:
        runs = []
        for number in range(REPEATS):
            directory = folder / f"{strategy}-{number}"
            directory.mkdir()
            with new_log(kind, directory) as log_url:
                runs.append(asyncio.run(measured(directory, log_url, strategy)))
        results[strategy] = {
            "first_move": summary([run.first_move_s for run in runs], "s"),
            "balanced": summary([run.balanced_s for run in runs], "s"),
        }
    return results


if __name__ == "__main__":
    report_on_log(
        "joining",
        measure,
        f"{BROKERS} brokers of {CORES} cores each and their callers on the same CPUs, {BUNDLES}"
        f" bundles with {CALLS_PER_SECOND:.0f} calls/s each, every call a write to SQLite, rounds"
        " and reports each second; a fourth broker joins",
    )
