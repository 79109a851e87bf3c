"""Turn the loads that services report into a broker's sample, and decide when the broker reports
it.

Figures are columns, one per kind: place i of every column is of the same bundle. One object per
bundle would make a sample of thousands of bundles ten times slower, so an object is built only for
bundles that are asked for.

A report has the busiest bundles (Pulsar's `TopKBundles` and `NamespaceBundleStats`), and what each
costs and how certain that is, from its loads in the last minutes.

Theory of operation of costs:

* The cost of a bundle is what it is expected to cost in the next minutes (`_HORIZON`). A move for
  less time is not worth its pause.
* Each bundle has a short and a long average of its loads. The short less the long one is its
  deviation: noise, a burst, or the beginning of a lasting change. A single look cannot tell which.
  What became of the deviations before can. So a broker compares the deviations of all its bundles
  with what these cost on average over the horizon after them. The least-squares slope is the share
  of a deviation that lasts: 0 if loads are noise, about half if bursts last as long as the horizon,
  1 if loads drift. A cost is the long average and this share of the deviation.
* A deviation unlike any before is believed: it counts as one more observation that lasted, beside
  `_OBSERVATIONS` of the usual size. So a load that changes by far more than loads did before counts
  with its first samples, and a bundle that varies as others do is not believed each time.
* The noise of a broker is the error that these predictions had, so it is large where loads change
  faster than bundles can be moved, and falls when predictions hold. An error far beyond the usual
  ones (`_ERRORS_MAX`) counts as that much: a load that has changed for good is no noise, and loads
  that change all the time soon make such errors usual.
* A cost that is known for a few seconds has a larger error: the variance of a mean falls with the
  time that it covers. So the errors of such costs count as what they would be once the short
  average is full, and the noise is as much larger while costs are known for less.
* Until it shows whether a deviation lasts, its share is the chance of it. So `share * (1 - share)`
  of its square is noise, too: an unlikely burst of a heavy bundle moves no others away at once.
* A load `_OTHER` times as high or as low as before, which chance does not explain, is another load:
  the history of the bundle begins again. Chance is judged by a sum of deviations (CUSUM, Page 1954)
  in standard deviations of the bundle's own loads. No single sample is enough, two can be. A load
  equal to the last one may be the same figure, so it counts by its time (`_REPEATED`). If that is
  most of the load, as where calls begin, what was learned of the former loads is forgotten, too.
* Nothing is known at first. So the first horizons are short, and each is twice as long as the last.
  What is assumed of errors before (`_ERROR`) counts little beside the first of them.
* All of it is relative: if all loads grow by one factor, so do costs and noise. If it is a
  coefficient that grows (see `shedder.fit`), what is known is converted, so no load has changed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest, nsmallest
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, ReportRules
from equipoise.channel.core.ranges import namespace_in
from equipoise.shedder.costs import (
    ASSUMED,
    BYTES_PER_CALL,
    CALLS_PER_CPU_SECOND,
    Coefficients,
    costs_of,
    with_declared,
)
from equipoise.shedder.loads import (
    FIGURE_MAX,
    BundleLoad,
    BundleTraffic,
    Declared,
    Load,
    Resources,
    Traffic,
    blend,
    pack,
)

# Shares of the window, which is that of the long average.
_SHORT: Final = 1 / 30
_HORIZON: Final = 2 / 15
_FIRST: Final = 1 / 180  # The first horizon.
_MEMORY: Final = 4  # What was learned loses weight so slowly.

_OBSERVATIONS: Final = 20
_ERRORS_MAX: Final = 36  # Of the mean squared error.
# The mean squares of deviations and of errors before the first ones are known, relative to the
# square of the cost, and the weight of such an error.
_DEVIATION: Final = 0.01
_ERROR, _ERROR_WEIGHT = 0.1, 0.005

_OTHER: Final = 8
_REPEATED: Final = 1 / 90  # Of the window: a load that is equal for so long counts as a new one.
# Of the sum of deviations: what each adds at most, what each loses, and what chance does not reach.
_STEP_MAX, _SLACK, _SURE = 6.0, 1.0, 9.0
_MOST: Final = 0.5  # Of the load.
_SPREAD_MIN: Final = 0.3  # The least standard deviation of loads, relative to their long average.


@dataclass(slots=True)
class _History:
    """The loads of one bundle that was first seen as a whole `age_ms` ago.

    * `total`: its loads in the present horizon, each times its milliseconds.
    * `expected`: the short and the long average, and the cost, at the start of the horizon; None
      if it was not there.
    * `variance`: of its loads around the long average. `above`, `below`: the sums of deviations.
      `before`: the long average when both were last 0. `last`: the last load.
    """

    short: float = 0.0
    long: float = 0.0
    age_ms: float = 0.0
    total: float = 0.0
    expected: tuple[float, float, float] | None = None
    variance: float = 0.0
    above: float = 0.0
    below: float = 0.0
    before: float = 0.0
    last: float = 0.0

    def becomes_other(self, load: float, *, weight: float, repeats: float) -> bool:
        """Return whether the loads up to this one are other than before. `weight`: that of one load
        in the long average; `repeats`: of one that repeats the last one.
        """
        counts = repeats if load == self.last else 1.0
        self.last = load
        if not self.above and not self.below:
            self.before = self.long
        scale = max(math.sqrt(self.variance), _SPREAD_MIN * self.long)
        step = min(max((load - self.long) / scale, -_STEP_MAX), _STEP_MAX) if scale else 0.0
        self.variance += ((step * scale) ** 2 - self.variance) * weight
        self.above = max(self.above + counts * (step - _SLACK), 0.0)
        self.below = max(self.below - counts * (step + _SLACK), 0.0)
        is_far = load > _OTHER * self.before or load * _OTHER < self.before
        return is_far and max(self.above, self.below) > _SURE


class CostForecasts:
    """The costs of the bundles of one broker, from their loads (see `brokers.load.sampling`), in
    shares of a core.

    Sums over the bundles in each past horizon, the latest ones with most weight: squares of their
    deviations, these times what became of them, squares of errors, and squares of long averages.
    """

    def __init__(self) -> None:
        self._known: dict[str, _History] = {}
        self._now_ms = 0.0
        self._forget()

    def _forget(self) -> None:
        self._began_ms = self._now_ms  # The present horizon.
        self._horizons = 0
        self._deviated = self._lasted = self._missed = self._squares = 0.0
        for known in self._known.values():
            known.expected, known.total = (known.short, known.long, known.short), 0.0

    def update(
        self,
        names: Sequence[str],
        loads: Sequence[float],
        *,
        newcomers: Collection[str],
        elapsed_ms: int,
        window_ms: int,
    ) -> tuple[Sequence[float], float | None]:
        """Return the cost of each bundle of `names`, and the standard error of their sum; None if
        it is not known yet.

        `loads` are their costs in the last `elapsed_ms` milliseconds. Those of `newcomers` do not
        cover this time: they only count until the next update. A bundle that is not in `names` is
        forgotten. A load above `FIGURE_MAX` counts as what the bundle had before.
        """
        before, self._known = self._known, {}
        short_ms, others = _SHORT * window_ms, 0.0
        repeats = min(elapsed_ms / (_REPEATED * window_ms), 1.0)
        for name, load in zip(names, loads, strict=True):
            if name in newcomers:  # One that has left and come back starts anew.
                continue
            known = self._known[name] = before.get(name) or _History()
            counted = load if load <= FIGURE_MAX else known.short
            age_ms = known.age_ms + elapsed_ms
            long_weight = elapsed_ms / min(age_ms, max(window_ms, elapsed_ms))
            if known.becomes_other(counted, weight=long_weight, repeats=repeats):
                known = self._known[name] = _History()
                age_ms, long_weight = elapsed_ms, 1.0
                others += counted
            known.age_ms = age_ms
            known.total += counted * elapsed_ms
            short_weight = elapsed_ms / min(age_ms, max(short_ms, elapsed_ms))
            known.short += (counted - known.short) * short_weight
            known.long += (counted - known.long) * long_weight
        self._now_ms += elapsed_ms
        if others > _MOST * math.fsum(known.short for known in self._known.values()):
            self._forget()
        length_ms = self._now_ms - self._began_ms
        is_over = length_ms >= min(_FIRST * 2**self._horizons, _HORIZON) * window_ms
        if is_over:
            self._learn(length_ms, window_ms)
        costs, noise = self._costs(window_ms)
        if is_over:
            for known, cost in zip(self._known.values(), costs, strict=True):
                known.expected, known.total = (known.short, known.long, cost), 0.0
            self._began_ms, self._horizons = self._now_ms, min(self._horizons + 1, 10)
        found = dict(zip(self._known, costs, strict=True))
        return [found.get(name, load) for name, load in zip(names, loads, strict=True)], noise

    def convert(self, times: float) -> None:
        """Count what is known in another unit: each load is `times` as large."""
        for known in self._known.values():
            known.short *= times
            known.long *= times
            known.total *= times
            known.before *= times
            known.last *= times
            known.variance *= times * times
            if known.expected is not None:
                short, long, cost = known.expected
                known.expected = short * times, long * times, cost * times
        self._deviated *= times * times
        self._lasted *= times * times
        self._missed *= times * times
        self._squares *= times * times

    def _costs(self, window_ms: int) -> tuple[list[float], float | None]:
        """Return the costs of the known bundles, in their order, and the noise of their sum."""
        histories = self._known.values()
        now = math.fsum(known.long * known.long for known in histories)
        if not now:
            return [0.0] * len(self._known), 0.0 if self._known else None
        weight = self._squares + now
        usual = _OBSERVATIONS * (self._deviated + _DEVIATION * now) / weight
        lasts = _OBSERVATIONS * (self._lasted + _DEVIATION * now) / weight
        costs, doubt = list[float](), 0.0
        for known in histories:
            deviation, long = known.short - known.long, known.long
            new, old = deviation * deviation, long * long
            share = (lasts * old + new) / (usual * old + new) if old else 0.0
            share = min(max(share, 0.0), 1.0)
            doubt += share * (1 - share) * new
            costs.append(max(long + share * deviation, 0.0))  # Rounding may leave less.
        squares = math.fsum(
            cost * cost * _times_usual(known.age_ms, _HORIZON * window_ms, window_ms)
            for known, cost in zip(histories, costs, strict=True)
        )
        return costs, math.sqrt(self._error(now) * squares + doubt)

    def _error(self, now: float) -> float:
        """Return the mean squared error of a cost, relative to its square."""
        return (self._missed + _ERROR_WEIGHT * _ERROR * now) / (self._squares + _ERROR_WEIGHT * now)

    def _learn(self, length_ms: float, window_ms: int) -> None:
        """Compare what was expected of the horizon that ends with what has come."""
        kept = math.exp(-length_ms / (_MEMORY * window_ms))
        pairs = [
            (
                *known.expected,
                known.total / length_ms,
                _times_usual(known.age_ms - length_ms, length_ms, window_ms),
            )
            for known in self._known.values()
            if known.expected is not None
        ]
        squares = math.fsum(long * long for _, long, _, _, _ in pairs)
        missed = math.fsum((came - cost) ** 2 / times for _, _, cost, came, times in pairs)
        if squares:
            usual = self._error(squares) * math.fsum(cost * cost for _, _, cost, _, _ in pairs)
            missed = min(missed, _ERRORS_MAX * usual)
        self._missed = self._missed * kept + missed
        self._squares = self._squares * kept + squares
        self._deviated = self._deviated * kept + math.fsum(
            (short - long) ** 2 for short, long, _, _, _ in pairs
        )
        self._lasted = self._lasted * kept + math.fsum(
            (short - long) * (came - long) for short, long, _, came, _ in pairs
        )


def _times_usual(age_ms: float, length_ms: float, window_ms: int) -> float:
    """Return how many times the usual a squared error is, if loads are noise: of a cost that is
    known for `age_ms`, over a horizon of `length_ms`.
    """
    short_ms = _SHORT * window_ms
    # A horizon may begin with the first sample of a history.
    known_ms = min(max(age_ms, 1.0), short_ms)
    return (1 / known_ms + 1 / length_ms) / (1 / short_ms + 1 / (_HORIZON * window_ms))


# The namespace whose bundles Pulsar never sheds.
_SYSTEM_PREFIX: Final = "pulsar/system/"

# Smaller differences do not reorder bundles, so that noise has no effect: Pulsar's steps.
_BYTES_STEP: Final = 100_000
_MESSAGES_STEP: Final = 100
_OPEN_STEP: Final = 500
_CACHE_STEP: Final = 100_000


def busiest_places(carried: Carried, *, at_most: int) -> Sequence[int]:
    """Return the places of the `at_most` busiest bundles, lightest first, because a shedder tries
    them in this order.

    Bundles without load, of Pulsar's system namespace, or with impossible figures (NaN, negative,
    absurd) are left out. Among equal bundles, the first by name is the heavier.
    """
    names, bytes_in = carried.names, carried.bytes_in
    messages = [
        in_ + out for in_, out in zip(carried.messages_in, carried.messages_out, strict=True)
    ]
    opened = [
        topics + consumers + producers
        for topics, consumers, producers in zip(
            carried.topics, carried.consumers, carried.producers, strict=True
        )
    ]
    places: Sequence[int] = range(len(names))
    least = nlargest(at_most, bytes_in)[-1] if 0 < at_most < len(places) else -math.inf
    undecided = _valid(
        carried, messages, [place for place in places if bytes_in[place] >= least - _BYTES_STEP]
    )
    # Drop bundles more than a step below the last of the top, unless too few of the top are valid.
    if sum(bytes_in[place] >= least for place in undecided) < at_most:
        undecided = _valid(carried, messages, places)
    # Rank by bytes in, then bytes out, messages, open objects, and cache. Each figure ranks only
    # the ties of the one before: ranking thousands of bundles by all of them takes milliseconds.
    ranking = (
        (bytes_in, _BYTES_STEP, 0.5),
        (carried.bytes_out, _BYTES_STEP, 0.5),
        (messages, _MESSAGES_STEP, 0.5),
        (opened, _OPEN_STEP, 0.0),
        (carried.memory_bytes, _CACHE_STEP, 0.0),
    )
    chosen: list[int] = []
    for column, step, up in ranking:
        wanted = at_most - len(chosen)
        if not 0 < wanted < len(undecided):
            break
        heavier, undecided = _split_at_last(undecided, column, step, up, wanted)
        chosen += heavier
    chosen += nsmallest(at_most - len(chosen), undecided, key=names.__getitem__)
    by_name = sorted(chosen, key=names.__getitem__, reverse=True)
    return sorted(
        by_name, key=lambda place: [_steps(column[place], step, up) for column, step, up in ranking]
    )


def _valid(carried: Carried, messages: Sequence[float], places: Sequence[int]) -> list[int]:
    """Return the places that a report may name. NaN fails each comparison, too."""
    names, bytes_in, bytes_out = carried.names, carried.bytes_in, carried.bytes_out
    return [
        place
        for place in places
        if 0 < bytes_in[place] + bytes_out[place] <= FIGURE_MAX
        and 0 <= messages[place] <= FIGURE_MAX
        and not names[place].startswith(_SYSTEM_PREFIX)
    ]


def _split_at_last(
    places: Sequence[int], column: Sequence[float], step: int, up: float, wanted: int
) -> tuple[list[int], list[int]]:
    """Return the places that are certainly among the `wanted` heaviest by one figure, and those
    that tie with the last of them.
    """
    values = column if len(places) == len(column) else [column[place] for place in places]
    if _steps(max(values), step, up) == _steps(min(values), step, up):
        return [], list(places)
    last = _steps(nlargest(wanted, values)[-1], step, up)
    ranks = [math.floor(value / step + up) for value in values]  # The same as `_steps`, inlined.
    heavier = [place for place, rank in zip(places, ranks, strict=True) if rank > last]
    return heavier, [place for place, rank in zip(places, ranks, strict=True) if rank == last]


def _steps(value: float, step: int, up: float) -> int:
    """Return the number of whole steps in a value. With `up` of 0.5 it rounds as Java does."""
    return math.floor(value / step + up)


# Values younger than this make up half of an average of traffic. A lasting change shows within half
# a minute.
HALF_LIFE_MS: Final = 10_000

_RATES: Final = 4  # Of `Traffic`, which come first among the figures of messaging.
_FIGURES: Final = 7
_figures_of: Final = attrgetter(
    "bytes_in_per_second",
    "bytes_out_per_second",
    "messages_in_per_second",
    "messages_out_per_second",
    "topics",
    "consumers",
    "producers",
)
_DECLARED_HALF_LIFE_MS: Final = 60_000  # An exchange that jumps would move load.
_IN_USE: Final = 0.1  # Of what is usual. Less of a unit says less of what one takes.


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The load of a broker's bundles. Place i of each column is of the bundle `names[i]`. Rates are
    averages, per second.

    * `costs` and `noise`: see `brokers.load.sampling`.
    * `declared`: see `shedder.loads.Load`.
    * `newcomers` arrived during the period that their figures cover, so their figures are too low.
      What a service declares covers no period.
    """

    names: tuple[str, ...] = ()
    newcomers: frozenset[str] = frozenset()
    bytes_in: Sequence[float] = ()
    bytes_out: Sequence[float] = ()
    messages_in: Sequence[float] = ()
    messages_out: Sequence[float] = ()
    costs: Sequence[float] = ()
    noise: float | None = None
    topics: Sequence[int] = ()
    consumers: Sequence[int] = ()
    producers: Sequence[int] = ()
    memory_bytes: Sequence[int] = ()
    declared: Mapping[str, Declared] = field(default_factory=dict)

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
        """Return the busiest bundles that have load, lightest first (see `brokers.load.sampling`).
        None: no limit.

        Newcomers are left out: a reader that averages their figures would start too low.
        """
        bound = len(self.names) if at_most is None else at_most
        found = busiest_places(self, at_most=bound + len(self.newcomers))
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
            cache_bytes=self.memory_bytes[place],
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
        self._declared: Mapping[str, Declared] = {}
        self._forecasts = CostForecasts()
        self._coefficients = ASSUMED

    def update(
        self,
        names: Sequence[str],
        loads: Mapping[str, BundleLoad],
        *,
        coefficients: Coefficients = ASSUMED,
        rates: Mapping[str, float] = MappingProxyType({}),
        elapsed_ms: int,
        cost_window_ms: int,
    ) -> Carried:
        """Return the averages of the bundles `names` after `loads`, taken `elapsed_ms` after the
        previous loads.

        * `coefficients` turn loads into costs, and `rates`, by unit, what is declared.
        * A bundle without a load is idle. A bundle that is not in `names` is forgotten.
        * The first load of a bundle is its average, so a bundle that has just moved is known at
          once. The second load replaces it: the first covers only part of a period.
        * Counts (topics, consumers, producers) and memory are not averaged.
        """
        names, before, idle = tuple(names), self._names, BundleLoad()
        present = [loads.get(name, idle) for name in names]
        estimates = costs_of(present, coefficients)
        self._declare(names, present, estimates, rates=rates, elapsed_ms=elapsed_ms)
        present_costs = with_declared(present, estimates, rates)
        columns = _columns(present, present_costs)
        if coefficients != self._coefficients:
            former = with_declared(present, costs_of(present, self._coefficients), rates)
            self._forecasts.convert(_times(former, present_costs))
            self._coefficients = coefficients
        kept = 0.5 ** (max(elapsed_ms, 0) / HALF_LIFE_MS)
        updated: Sequence[Sequence[float]] = [
            [now + (old - now) * kept for old, now in zip(column_before, column, strict=True)]
            for column_before, column in zip(
                self._before(names, columns[:_RATES]), columns[:_RATES], strict=True
            )
        ]
        counted = (name for name, load in zip(names, present, strict=True) if not load.unit)
        self._newcomers = frozenset() if names == before else frozenset(counted).difference(before)
        self._names, self._columns = names, updated
        costs, noise = self._forecasts.update(
            names,
            present_costs,
            newcomers=self._newcomers,
            elapsed_ms=max(elapsed_ms, 1),
            window_ms=cost_window_ms,
        )
        bytes_in, bytes_out, messages_in, messages_out = updated
        topics, consumers, producers = columns[_RATES:]
        return Carried(
            names=self._names,
            newcomers=self._newcomers,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            messages_in=messages_in,
            messages_out=messages_out,
            costs=costs,
            noise=noise,
            topics=topics,
            consumers=consumers,
            producers=producers,
            memory_bytes=[load.memory_bytes for load in present],
            declared=self._declared,
        )

    def _declare(
        self,
        names: Iterable[str],
        loads: Iterable[BundleLoad],
        estimates: Iterable[float],
        *,
        rates: Mapping[str, float],
        elapsed_ms: int,
    ) -> None:
        """Average what the services declare, by namespace."""
        found: dict[str, Declared] = {}
        for name, load, estimate in zip(names, loads, estimates, strict=True):
            if load.unit:
                namespace = namespace_in(name)
                new = Declared(unit=load.unit, rate=rates.get(load.unit, 0.0))
                known = found.get(namespace, new)
                found[namespace] = replace(
                    known, amount=known.amount + load.cost, estimate=known.estimate + estimate
                )
        kept, before = 0.5 ** (max(elapsed_ms, 0) / _DECLARED_HALF_LIFE_MS), self._declared
        self._declared = {
            namespace: _blended(before.get(namespace), each, kept)
            for namespace, each in found.items()
        }

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


def _blended(before: Declared | None, now: Declared, kept: float) -> Declared:
    if before is None or before.unit != now.unit or not before.amount:
        return now
    # A unit that is hardly in use for a night counts as before, not as the whole cluster.
    kept **= min(1.0, now.amount / before.amount / _IN_USE)
    return replace(
        now,
        amount=blend(before.amount, now.amount, kept=kept),
        estimate=blend(before.estimate, now.estimate, kept=kept),
    )


def _times(before: Iterable[float], now: Iterable[float]) -> float:
    """Return how many times as large the sum is now; 1 if there is nothing to compare."""
    # NaN fails the comparison.
    old, new = (math.fsum(min(FIGURE_MAX, each) for each in costs) for costs in (before, now))
    return new / old if old else 1.0


def _columns(loads: Sequence[BundleLoad], costs: Sequence[float]) -> Sequence[Sequence[Any]]:
    """Return the columns of the figures of these loads, in their order: see `_figures_of`."""
    rows = [
        _figures_of(load.messaging) if load.messaging else _as_messaging(load, cost)
        for load, cost in zip(loads, costs, strict=True)
    ]
    return list(zip(*rows, strict=True)) or ((),) * _FIGURES


def _as_messaging(load: BundleLoad, cost: float) -> tuple[float, ...]:
    """Return the same figures of a load that has none of messaging.

    A call counts as an incoming message, a session as a consumer. Pulsar's strategies weigh bundles
    by bytes only. So CPU time counts as bytes, too, and each call as `BYTES_PER_CALL` if a service
    counts no bytes. A declared cost counts as bytes alone.
    """
    if load.unit:
        bytes_in = cost * CALLS_PER_CPU_SECOND * BYTES_PER_CALL
    else:
        bytes_in = load.bytes_per_second or load.calls_per_second * BYTES_PER_CALL
        bytes_in += load.cpu_seconds_per_second * CALLS_PER_CPU_SECOND * BYTES_PER_CALL
    return bytes_in, 0.0, load.calls_per_second, 0.0, 0, load.sessions, 0


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
    carried: Carried,
    *,
    broker: str,
    at_ms: int,
    resources: Resources,
    settings: BalancingSettings,
    capacities: Mapping[str, float] | None = None,
    problem: str | None = None,
) -> Load:
    """Return the sample of a broker at `at_ms` (Unix time). `capacities`, `problem`: see `Load`."""
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
        declared=carried.declared,
        capacities=capacities or {},
        problem=problem,
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
