"""Turn the loads that services report into a broker's sample, and decide when the broker reports
it.

Figures are columns, one per kind: place i of every column is of the same bundle. One object per
bundle would make a sample of thousands of bundles ten times slower, so an object is built only for
bundles that are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, ReportRules
from equipoise.shedder.cost_windows import CostWindows
from equipoise.shedder.loads import BundleLoad, BundleTraffic, Load, Resources, Traffic, pack
from equipoise.shedder.snapshot import BYTES_PER_CALL, CALLS_PER_CPU_SECOND, costs_of
from equipoise.shedder.top_bundles import BundleFigures, busiest_places

# Values younger than this make up half of an average of traffic. A lasting change shows within half
# a minute.
HALF_LIFE_MS: Final = 10_000

_RATES: Final = 4  # Of `Traffic`.
_CPU_KNOWN: Final = 0.5  # Of a window. A broker that has just started works hard at first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The load of a broker's bundles. Place i of each column is of the bundle `names[i]`. Rates are
    averages, per second.

    * `costs` and `noise`: see `shedder.cost_windows`.
    * `cpu_use`: the CPU use of the broker over the same time, a fraction of its limit; None: not
      known yet. `cpu_cost`: the cost of the bundles that it had in this time.
    * `newcomers` arrived during the period that their figures cover, so their figures are too low.
    """

    names: tuple[str, ...] = ()
    newcomers: frozenset[str] = frozenset()
    bytes_in: Sequence[float] = ()
    bytes_out: Sequence[float] = ()
    messages_in: Sequence[float] = ()
    messages_out: Sequence[float] = ()
    costs: Sequence[float] = ()
    noise: float | None = None
    cpu_use: float | None = None
    cpu_cost: float = 0.0
    topics: Sequence[int] = ()
    consumers: Sequence[int] = ()
    producers: Sequence[int] = ()

    @property
    def settled(self) -> Mapping[str, float]:
        """The costs of the bundles whose figures cover a whole period, by name."""
        return {
            name: cost
            for name, cost in zip(self.names, self.costs, strict=True)
            if name not in self.newcomers
        }

    @property
    def cost(self) -> float:
        """The total cost. Each newcomer counts as the mean of the other bundles, if there are
        any.
        """
        settled = self.settled
        if not settled:
            return math.fsum(self.costs)
        return math.fsum(settled.values()) * len(self.names) / len(settled)

    @property
    def traffic(self) -> Traffic:
        """The total traffic of all bundles."""
        return Traffic(
            bytes_in_per_second=sum(self.bytes_in),
            bytes_out_per_second=sum(self.bytes_out),
            messages_in_per_second=sum(self.messages_in),
            messages_out_per_second=sum(self.messages_out),
        )

    def bundles(self) -> Sequence[BundleTraffic]:
        """Return one value per bundle, in the order of `names`."""
        return [self._bundle(place) for place in range(len(self.names))]

    def busiest(self, at_most: int | None) -> tuple[BundleTraffic, ...]:
        """Return the busiest bundles that have load, lightest first (see `shedder.top_bundles`).
        None: no limit.

        Newcomers are left out: a reader that averages their figures would start too low.
        """
        figures = BundleFigures(
            names=self.names,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            messages=[
                in_ + out for in_, out in zip(self.messages_in, self.messages_out, strict=True)
            ],
            opened=[
                topics + consumers + producers
                for topics, consumers, producers in zip(
                    self.topics, self.consumers, self.producers, strict=True
                )
            ],
            cache_bytes=[0] * len(self.names),
        )
        bound = len(self.names) if at_most is None else at_most
        found = busiest_places(figures, at_most=bound + len(self.newcomers))
        places = [place for place in found if self.names[place] not in self.newcomers][-bound:]
        return tuple(self._bundle(place) for place in places)

    def _bundle(self, place: int) -> BundleTraffic:
        traffic = Traffic(
            bytes_in_per_second=self.bytes_in[place],
            bytes_out_per_second=self.bytes_out[place],
            messages_in_per_second=self.messages_in[place],
            messages_out_per_second=self.messages_out[place],
        )
        return BundleTraffic(
            bundle=self.names[place],
            traffic=traffic,
            topics=self.topics[place],
            consumers=self.consumers[place],
            producers=self.producers[place],
            cost=self.costs[place],
        )


class BundleAverages:
    """Decaying averages of bundle loads: a value loses half of its weight in every `HALF_LIFE_MS`.
    Costs have a window instead.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._newcomers: frozenset[str] = frozenset()
        self._columns: Sequence[Sequence[float]] = ((),) * _RATES
        self._windows = CostWindows()
        self._cpu = CostWindows(known=_CPU_KNOWN)

    def update(
        self,
        names: Sequence[str],
        loads: Mapping[str, BundleLoad],
        *,
        cpu_use: float = 0.0,
        elapsed_ms: int,
        cost_window_ms: int,
    ) -> Carried:
        """Return the averages of the bundles `names` after `loads`, taken `elapsed_ms` after the
        previous loads.

        * `cpu_use` is the broker's in this time, a fraction of its limit.
        * A bundle without a load is idle. A bundle that is not in `names` is forgotten.
        * The first load of a bundle is its average, so a bundle that has just moved is known at
          once. The second load replaces it: the first covers only part of a period.
        * Counts (topics, consumers, producers) are not averaged.
        """
        names, idle = tuple(names), BundleLoad()
        columns = _columns([loads.get(name, idle) for name in names])
        kept = 0.5 ** (max(elapsed_ms, 0) / HALF_LIFE_MS)
        updated: Sequence[Sequence[float]] = [
            [now + (old - now) * kept for old, now in zip(column_before, column, strict=True)]
            for column_before, column in zip(
                self._before(names, columns.rates), columns.rates, strict=True
            )
        ]
        if not all(math.isfinite(sum(column)) for column in updated):
            # Otherwise one infinite value would stay in the average for ever.
            updated = columns.rates
        self._newcomers = (
            frozenset() if self._names == names else frozenset(names).difference(self._names)
        )
        self._names, self._columns = names, updated
        costs, noise = self._windows.update(
            names,
            columns.costs,
            newcomers=self._newcomers,
            elapsed_ms=max(elapsed_ms, 1),
            window_ms=cost_window_ms,
        )
        (cpu, cpu_cost), cpu_noise = self._cpu.update(
            ("use", "cost"),
            (cpu_use, sum(columns.costs)),
            newcomers=(),
            elapsed_ms=max(elapsed_ms, 1),
            window_ms=cost_window_ms,
        )
        bytes_in, bytes_out, messages_in, messages_out = updated
        topics, consumers, producers = columns.counts
        return Carried(
            names=self._names,
            newcomers=self._newcomers,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            messages_in=messages_in,
            messages_out=messages_out,
            costs=costs,
            noise=noise,
            cpu_use=cpu if cpu_noise is not None and cpu > 0 else None,
            cpu_cost=cpu_cost,
            topics=topics,
            consumers=consumers,
            producers=producers,
        )

    def _before(
        self, names: tuple[str, ...], new: Sequence[Sequence[float]]
    ) -> Sequence[Sequence[float]]:
        """Return the previous columns in the order of `names`. For a bundle that is new, or was at
        the last update, return `new`.
        """
        if self._names == names and not self._newcomers:
            return self._columns
        place_of = {
            name: place for place, name in enumerate(self._names) if name not in self._newcomers
        }
        places = [place_of.get(name) for name in names]
        return [
            [
                now if place is None else old[place]
                for place, now in zip(places, column, strict=True)
            ]
            for old, column in zip(self._columns, new, strict=True)
        ]


class _Columns(NamedTuple):
    """Columns of the current loads. `rates`: bytes in and out, messages in and out. `counts`:
    topics, consumers, producers.
    """

    rates: Sequence[Sequence[float]]
    costs: Sequence[float]
    counts: Sequence[Sequence[int]]


def _columns(loads: Sequence[BundleLoad]) -> _Columns:
    """Return the columns of these loads, in their order.

    A load without messaging figures is converted: a call counts as an incoming message, a session
    as a consumer. Pulsar's strategies weigh bundles by bytes only. So CPU time counts as bytes,
    too, and each call as `BYTES_PER_CALL` if a service counts no bytes.
    """
    figures = [load.messaging or _as_messaging(load) for load in loads]
    return _Columns(
        rates=(
            [each.bytes_in_per_second for each in figures],
            [each.bytes_out_per_second for each in figures],
            [each.messages_in_per_second for each in figures],
            [each.messages_out_per_second for each in figures],
        ),
        costs=costs_of(loads),
        counts=(
            [each.topics for each in figures],
            [each.consumers for each in figures],
            [each.producers for each in figures],
        ),
    )


class _UncheckedMessaging(NamedTuple):
    """Like `Messaging` without its check: bytes computed from calls may be infinite."""

    bytes_in_per_second: float
    messages_in_per_second: float
    consumers: int
    bytes_out_per_second: float = 0.0
    messages_out_per_second: float = 0.0
    producers: int = 0
    topics: int = 0


def _as_messaging(load: BundleLoad) -> _UncheckedMessaging:
    bytes_in = load.bytes_per_second or load.calls_per_second * BYTES_PER_CALL
    bytes_in += load.cpu_seconds_per_second * CALLS_PER_CPU_SECOND * BYTES_PER_CALL
    return _UncheckedMessaging(
        bytes_in_per_second=bytes_in,
        messages_in_per_second=load.calls_per_second,
        consumers=load.sessions,
    )


def carried_bytes(loads: Mapping[str, BundleLoad]) -> tuple[float, float]:
    """Return bytes per second in and out. A service that counts both together counts as bytes
    in.
    """
    reported = list(loads.values())
    bytes_in = sum(
        load.bytes_per_second if load.messaging is None else load.messaging.bytes_in_per_second
        for load in reported
    )
    return bytes_in, sum(
        load.messaging.bytes_out_per_second for load in reported if load.messaging is not None
    )


def sampled(
    carried: Carried, *, broker: str, at_ms: int, resources: Resources, settings: BalancingSettings
) -> Load:
    """Return the sample of a broker at `at_ms` (Unix time)."""
    rules, cost = settings.reports, carried.cost
    return Load(
        broker=broker,
        at_ms=at_ms,
        resources=resources,
        average_use=settings.weights.weighted_max(resources),
        traffic=carried.traffic,
        bundle_count=len(carried.names),
        topics=sum(carried.topics),
        cost=cost,
        bundles=carried.busiest(rules.bundles_max),
        column=pack(carried.settled, total=cost),
        noise=carried.noise,
        cpu_use=carried.cpu_use,
        cpu_cost=carried.cpu_cost,
        history=rules.history,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report that was made: the sample, its time (`at_ms`, boot time), and the names of the open
    bundles.
    """

    sample: Load
    at_ms: int
    open_bundles: tuple[str, ...] = ()


def report_due(last: Report | None, now: Report, rules: ReportRules) -> bool:
    """Return whether a report of `now` is due, by the rule of Pulsar's `BrokerLoadDataReporter`.

    No report is due before `interval_min_ms` has passed. After that, a report is due if one of
    these holds:

    * The set of named bundles has changed. The leader plans moves with the reported bundles.
    * A figure has changed by more than `change_percent`.
    * The last report is `interval_max_ms` old.
    """
    if last is None:
        return True
    elapsed_ms = now.at_ms - last.at_ms
    if elapsed_ms < rules.interval_min_ms:
        return False
    return (
        elapsed_ms >= rules.interval_max_ms
        or now.open_bundles != last.open_bundles
        or change_percent(last.sample, now.sample) > rules.change_percent
    )


def change_percent(last: Load, now: Load) -> float:
    """Return the change of the figure that changed most: use in percentage points, all others in
    percent of the old value.
    """
    return max(
        100 * abs(now.resources.max_use - last.resources.max_use),
        _percent(last.traffic.messages_per_second, now.traffic.messages_per_second),
        _percent(last.traffic.bytes_per_second, now.traffic.bytes_per_second),
        _percent(last.bundle_count, now.bundle_count),
    )


def _percent(old: float, new: float) -> float:
    if old == 0:
        return 0.0 if new == 0 else math.inf
    return 100 * abs(old - new) / old
