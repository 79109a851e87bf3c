"""From what services say of their bundles to a broker's sample: the broker's own short averages, totals, and the busiest bundles.

May live here: arithmetic over loads. Asking the services is `brokers.runtime.load_sampler`'s business, publishing that of
`brokers.server.load_reporter`.

Figures stand in columns, one for each kind, in which place i is of the same bundle: a value of its own for each of thousands
of bundles would take a broker ten times as long, at every sample. Only bundles that are asked for become values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.shedder.bundle_load import BundleLoad
from equipoise.shedder.load_reports import Sample, SampledBundle
from equipoise.shedder.loads import BundleTraffic, Resources, Traffic
from equipoise.shedder.snapshot import BYTES_PER_CALL, costs_of
from equipoise.shedder.top_bundles import BundleFigures, busiest_places

# Half of what an average says is younger than this: so a burst of a few seconds moves nothing by itself, and a lasting change
# is believed within half a minute.
HALF_LIFE_MS: Final = 10_000

_RATES: Final = 5  # Those of `Traffic`, and the cost.


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What a broker's bundles carry. Place i of each column is of the bundle `names[i]`; rates are averages, per second.

    `newcomers` came in the midst of the time that their figures are of, which so say too little.
    """

    names: tuple[str, ...] = ()
    newcomers: frozenset[str] = frozenset()
    bytes_in: Sequence[float] = ()
    bytes_out: Sequence[float] = ()
    messages_in: Sequence[float] = ()
    messages_out: Sequence[float] = ()
    costs: Sequence[float] = ()
    topics: Sequence[int] = ()
    consumers: Sequence[int] = ()
    producers: Sequence[int] = ()

    @property
    def settled(self) -> tuple[str, ...]:
        """The bundles whose figures are of a whole time."""
        return tuple(name for name in self.names if name not in self.newcomers) if self.newcomers else self.names

    @property
    def traffic(self) -> Traffic:
        """What all of them carry together."""
        return Traffic(
            bytes_in_per_second=sum(self.bytes_in),
            bytes_out_per_second=sum(self.bytes_out),
            messages_in_per_second=sum(self.messages_in),
            messages_out_per_second=sum(self.messages_out),
        )

    def bundles(self) -> Sequence[BundleTraffic]:
        """Each bundle as a value of its own, in the order of `names`."""
        return [self._bundle(place) for place in range(len(self.names))]

    def busiest(self, at_most: int | None) -> tuple[SampledBundle, ...]:
        """The busiest of those that carry anything, the lightest of them first: see `shedder.top_bundles`. None: all of them.

        Newcomers are left out: whoever averages what is said of them would begin with too little.
        """
        figures = BundleFigures(
            names=self.names,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            messages=[in_ + out for in_, out in zip(self.messages_in, self.messages_out, strict=True)],
            opened=[
                topics + consumers + producers
                for topics, consumers, producers in zip(self.topics, self.consumers, self.producers, strict=True)
            ],
            cache_bytes=[0] * len(self.names),
        )
        bound = len(self.names) if at_most is None else at_most
        found = busiest_places(figures, at_most=bound + len(self.newcomers))
        places = [place for place in found if self.names[place] not in self.newcomers][-bound:]
        return tuple(SampledBundle(traffic=self._bundle(place), cost=self.costs[place]) for place in places)

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
        )


class BundleAverages:
    """Decaying averages of what bundles carry: what came `elapsed_ms` ago weighs half as much after each half life."""

    def __init__(self, *, half_life_ms: int = HALF_LIFE_MS) -> None:
        self._half_life_ms = half_life_ms
        self._names: tuple[str, ...] = ()
        self._newcomers: frozenset[str] = frozenset()
        self._rates: Sequence[Sequence[float]] = ((),) * _RATES

    def update(self, names: Sequence[str], loads: Mapping[str, BundleLoad], *, elapsed_ms: int) -> Carried:
        """The averages of the bundles `names` after `loads`, which were taken `elapsed_ms` after those before.

        A bundle of which nothing is said is idle. The first load of a bundle is its average, so that one that has just moved is
        known from the start, and so is the second: a bundle comes in the midst of the time that the first is of, and was counted
        for a part of it only. One that is not in `names` is forgotten. What is open is counted, not averaged.
        """
        names, idle = tuple(names), BundleLoad()
        told = _columns([loads.get(name, idle) for name in names])
        kept = 0.5 ** (max(elapsed_ms, 0) / self._half_life_ms)
        rates: Sequence[Sequence[float]] = [
            [now + (old - now) * kept for old, now in zip(before, column, strict=True)]
            for before, column in zip(self._before(names, told.rates), told.rates, strict=True)
        ]
        if not all(math.isfinite(sum(column)) for column in rates):
            rates = told.rates  # Or what was beyond all numbers once would be so for ever.
        self._newcomers = frozenset() if self._names == names else frozenset(names).difference(self._names)
        self._names, self._rates = names, rates
        bytes_in, bytes_out, messages_in, messages_out, costs = rates
        topics, consumers, producers = told.counts
        return Carried(
            names=self._names,
            newcomers=self._newcomers,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            messages_in=messages_in,
            messages_out=messages_out,
            costs=costs,
            topics=topics,
            consumers=consumers,
            producers=producers,
        )

    def _before(self, names: tuple[str, ...], new: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
        """The averages before, in the order of `names`; of a bundle that was not there, or only just, what it carries now."""
        if self._names == names and not self._newcomers:
            return self._rates
        place_of = {name: place for place, name in enumerate(self._names) if name not in self._newcomers}
        places = [place_of.get(name) for name in names]
        return [
            [now if place is None else old[place] for place, now in zip(places, column, strict=True)]
            for old, column in zip(self._rates, new, strict=True)
        ]


class _Told(NamedTuple):
    """Columns of what services say now: bytes in and out, messages in and out, costs; and topics, consumers, producers."""

    rates: Sequence[Sequence[float]]
    counts: Sequence[Sequence[int]]


def _columns(loads: Sequence[BundleLoad]) -> _Told:
    """The columns of these loads, in their order.

    What is no messaging is told in its words: a call is a message that comes in, a session a consumer. Where a service counts
    no bytes, a call counts as many as cost what a call costs, because Pulsar's strategies weigh bundles by nothing else.
    """
    told = [load.messaging or _in_its_words(load) for load in loads]
    return _Told(
        rates=(
            [each.bytes_in_per_second for each in told],
            [each.bytes_out_per_second for each in told],
            [each.messages_in_per_second for each in told],
            [each.messages_out_per_second for each in told],
            costs_of(loads),
        ),
        counts=([each.topics for each in told], [each.consumers for each in told], [each.producers for each in told]),
    )


class _Words(NamedTuple):
    """As `Messaging`, without its check: bytes that calls count as may be beyond all numbers."""

    bytes_in_per_second: float
    messages_in_per_second: float
    consumers: int
    bytes_out_per_second: float = 0.0
    messages_out_per_second: float = 0.0
    producers: int = 0
    topics: int = 0


def _in_its_words(load: BundleLoad) -> _Words:
    bytes_in = load.bytes_per_second or load.calls_per_second * BYTES_PER_CALL
    return _Words(bytes_in_per_second=bytes_in, messages_in_per_second=load.calls_per_second, consumers=load.sessions)


def carried_bytes(loads: Mapping[str, BundleLoad]) -> tuple[float, float]:
    """Bytes per second in and out that services say they carry; where one counts both together, they come in."""
    told = list(loads.values())
    bytes_in = sum(load.bytes_per_second if load.messaging is None else load.messaging.bytes_in_per_second for load in told)
    return bytes_in, sum(load.messaging.bytes_out_per_second for load in told if load.messaging is not None)


def sampled(carried: Carried, *, broker: str, at_ms: int, resources: Resources, settings: BalancingSettings) -> Sample:
    """The sample of a broker at `at_ms` (Unix time)."""
    rules = settings.reports
    return Sample(
        broker=broker,
        at_ms=at_ms,
        resources=resources,
        used=settings.weights.weighted_max(resources),
        traffic=carried.traffic,
        bundle_count=len(carried.names),
        topics=sum(carried.topics),
        cost=sum(carried.costs),
        bundles=carried.busiest(rules.bundles_max),
        history=rules.history,
    )
