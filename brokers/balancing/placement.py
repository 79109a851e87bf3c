"""Placement: which broker takes a bundle that nobody owns, or that must move away.

May live here: the port, the strategies behind it, and what they weigh a batch by. All are pure choices over a view, made
among those that `brokers.balancing.destinations` allows. The choice is policy, never safety: the fold accepts or rejects it.

A batch is weighed whole, the heaviest bundle first: what is placed first counts when the next is placed, by the score that
the shedder goes by, so that the shedder finds nothing to mend in what was placed. That score is a `Scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from zlib import crc32

from equipoise.brokers.balancing.destinations import Destinations, PlacementRules
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.view import View
from equipoise.shedder.load_reports import Summary, fault_of_summary
from equipoise.shedder.loads import BrokerLoad, BundleTraffic, fault_of

_NOBODY: Final[frozenset[int]] = frozenset()


class Placement(Protocol):
    """A plug that places bundles."""

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """An incarnation for each of the first `at_most` of `bundles` for which there is one, by name.

        A bundle for which there is none is left out, and takes nobody's place: any number of them may stand before one that
        can be placed. Nobody is chosen whom `brokers.balancing.destinations` does not allow, and the batch is weighed whole. `avoid`
        names, per bundle, the incarnations that are not to have it. Ties break by broker id.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What brokers are compared by: what each carries for the room that it has, and what each bundle would add to it.

    `carried` and `weights` are in one unit, whichever; a bundle whose weight is not known weighs `usual`. A live broker
    that is not in `carried` carries as much as the mean of those that are. Room is 1 where none is told.
    """

    carried: Mapping[str, float]
    weights: Mapping[str, float] = field(default_factory=dict)
    usual: float = 1.0
    room: Mapping[str, float] = field(default_factory=dict)

    def weight(self, bundle: str) -> float:
        """What a bundle would add."""
        return self.weights.get(bundle, self.usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What possible reports say, put together once for a placement: it is asked for each free bundle that somebody looks up.

    * `carried`, `weights`: what brokers carry and bundles weigh by them, in one unit; by id and by name.
    * `usual`: what a bundle weighs that is in no report: what is left of the reports for each bundle that they count and do not
      name; if there is no such bundle, the mean of those that are named.
    * `named`: by broker, the bundles on which its word is the newest.
    """

    loads: Mapping[str, BrokerLoad]
    carried: Mapping[str, float]
    weights: Mapping[str, float]
    usual: float
    named: Mapping[str, frozenset[str]]

    def scale(self, view: View) -> Scale:
        """A scale with what the view has moved since the reports: a herd of lookups must not pick one idle broker."""
        now, arrived = dict(self.carried), dict.fromkeys(self.carried, 0)
        for reporter, names in self.named.items():
            entry = view.brokers.get(reporter)
            # Nearly all are where they were, and are passed over at one glance.
            moved = names if entry is None else view.not_settled_at(entry.incarnation, names)
            for name in sorted(moved):
                bundle = view.bundles.get(name)
                owner = None if bundle is None or bundle.owner is None else view.live.get(bundle.owner)
                if owner is not None and owner.broker != reporter:
                    now[reporter] -= self.weights[name]
                    if owner.broker in now:
                        now[owner.broker] += self.weights[name]
                        arrived[owner.broker] += 1
        for broker in view.live.values():
            if broker.broker in now:
                unheard = view.held_count(broker.incarnation) - self.loads[broker.broker].bundle_count - arrived[broker.broker]
                now[broker.broker] += max(0, unheard) * self.usual
        return Scale(carried={name: max(0.0, amount) for name, amount in now.items()}, weights=self.weights, usual=self.usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestBundles:
    """Gives each bundle to the broker that will have the fewest for its capacity, counting all that the view has given it.

    Capacity is the weight that a broker declared on joining: one of 200 gets two bundles for each that one of 100 gets. It
    is no ceiling, because a bundle that nobody has is worse off than one at a broker that has many. `loads` only tell who must
    not have it.
    """

    loads: Mapping[str, BrokerLoad] = field(default_factory=dict)
    rules: PlacementRules = field(default_factory=PlacementRules)
    _believed: Mapping[str, BrokerLoad] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_believed", believed(self.loads))

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""
        destinations = Destinations(view, loads=self._believed, rules=self.rules)
        return _Batch(view, destinations, _by_count(destinations)).place(bundles, avoid, at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastCost:
    """Gives each bundle to the broker whose bundles will cost the least for its capacity: the score of `shedder.balanced`."""

    summaries: Mapping[str, Summary] = field(default_factory=dict)
    rules: PlacementRules = field(default_factory=PlacementRules)
    _reports: Reports = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        possible = {name: summary for name, summary in sorted(self.summaries.items()) if fault_of_summary(summary) is None}
        object.__setattr__(self, "_reports", by_cost(possible))

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""
        destinations = Destinations(view, loads=self._reports.loads, rules=self.rules)
        scale = replace(self._reports.scale(view), room=_capacities(destinations))
        return _Batch(view, destinations, scale).place(bundles, avoid, at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLongTermMessageRate:
    """Gives each bundle to the broker that will have the fewest messages per second, after Pulsar's strategy of the name.

    One whose use is above `overloaded_percent` (`loadBalancerBrokerOverloadedThresholdPercentage`) comes after all that are
    not. Where all are, Pulsar gives the bundle to any of them, and this to the one with the fewest messages.
    """

    loads: Mapping[str, BrokerLoad] = field(default_factory=dict)
    overloaded_percent: float = 85.0
    rules: PlacementRules = field(default_factory=PlacementRules)
    _reports: Reports = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_reports", by_messages(believed(self.loads)))

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""
        loads = self._reports.loads
        used = {name: load.averages.weighted_max * 100 for name, load in loads.items()}

        def fewest(bundle: BundleEntry, fit: Sequence[str], batch: _Batch) -> Sequence[str]:
            calm = [name for name in fit if used.get(name, 0.0) <= self.overloaded_percent]
            if not self.rules.pulsar_exact:
                return calm or fit
            least = min((batch.score(name, bundle) for name in calm), default=None)
            return [_any_of([name for name in calm if batch.score(name, bundle) == least] or fit, bundle)]

        destinations = Destinations(view, loads=loads, rules=self.rules)
        return _Batch(view, destinations, self._reports.scale(view), narrow=fewest).place(bundles, avoid, at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastResourceUsageWithWeight:
    """Gives each bundle to one of those that are used less than the mean by a margin, after Pulsar's strategy of the name.

    The margin is `difference_percent` (`loadBalancerAverageResourceUsageDifferenceThresholdPercentage`). Of these, and of
    all if there is none, it takes the one that will be used the least; Pulsar takes any, and goes by its last reports alone.
    """

    loads: Mapping[str, BrokerLoad] = field(default_factory=dict)
    difference_percent: float = 10.0
    rules: PlacementRules = field(default_factory=PlacementRules)
    _reports: Reports = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_reports", by_use(believed(self.loads)))

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""
        loads = self._reports.loads
        reported = {name: load.averages.weighted_max for name, load in loads.items()}

        def least_used(bundle: BundleEntry, fit: Sequence[str], batch: _Batch) -> Sequence[str]:
            if self.rules.pulsar_exact:
                return [_any_of(choose_among(fit, reported, self.difference_percent), bundle)]
            used = {name: batch.carried[name] for name in fit if name in reported}
            return choose_among(fit, used, self.difference_percent)

        destinations = Destinations(view, loads=loads, rules=self.rules)
        return _Batch(view, destinations, self._reports.scale(view), narrow=least_used).place(bundles, avoid, at_most)


class RoundRobin:
    """Gives each bundle to the broker after the one that got the last, by id; it remembers whose turn it is."""

    def __init__(self, *, rules: PlacementRules | None = None) -> None:
        self.rules = rules or PlacementRules()
        self._turn = 0

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""

        def next_in_turn(_: BundleEntry, fit: Sequence[str], __: _Batch) -> Sequence[str]:
            self._turn += 1
            return [fit[(self._turn - 1) % len(fit)]]

        destinations = Destinations(view, rules=self.rules)
        return _Batch(view, destinations, _by_count(destinations), narrow=next_in_turn).place(bundles, avoid, at_most)


def choose_among(candidates: Sequence[str], used: Mapping[str, float], difference_percent: float) -> Sequence[str]:
    """Whom Pulsar's LeastResourceUsageWithWeight draws one from: the candidates used less than their mean by a margin, or all.

    `used` are fractions of 1; a candidate that is not in it counts for nothing, and is among all.
    """
    known = {name: used[name] for name in candidates if name in used}
    if not known:
        return candidates
    mean = sum(known.values()) / len(known)
    return [name for name, use in known.items() if use + difference_percent / 100 <= mean] or candidates


def believed(loads: Mapping[str, BrokerLoad]) -> Mapping[str, BrokerLoad]:
    """The reports without those that hold a figure that no broker can have: better not known than believed."""
    return {name: loads[name] for name in sorted(loads) if fault_of(loads[name]) is None}


# --- scales ---


def by_cost(summaries: Mapping[str, Summary]) -> Reports:
    """What the levelling shedder goes by: the cost of the bundles, which it compares for the capacity."""
    loads = {name: summary.load for name, summary in summaries.items()}
    carried = {name: summary.cost for name, summary in summaries.items()}
    return _reports_of(loads, carried, lambda name, bundle: summaries[name].costs.get(bundle.bundle, 0.0))


def by_messages(loads: Mapping[str, BrokerLoad]) -> Reports:
    """Messages per second, both ways."""
    carried = {name: load.traffic.messages_per_second for name, load in loads.items()}
    return _reports_of(loads, carried, lambda _, bundle: bundle.traffic.messages_per_second)


def by_use(loads: Mapping[str, BrokerLoad]) -> Reports:
    """The decaying average of the weighted use, which TransferShedder goes by.

    A bundle's share of its broker's use is its share of the broker's throughput, as that shedder takes it.
    """
    carried = {name: load.averages.weighted_max for name, load in loads.items()}
    throughput = sum(load.averages.bytes_per_second for load in loads.values())
    mean = sum(carried.values()) / throughput if throughput >= 1 else 0.0
    per_byte = {
        # Below a byte per second nothing can be said of what a byte costs.
        name: carried[name] / load.averages.bytes_per_second if load.averages.bytes_per_second >= 1 else mean
        for name, load in loads.items()
    }
    return _reports_of(loads, carried, lambda name, bundle: bundle.traffic.bytes_per_second * per_byte[name])


def _by_count(destinations: Destinations) -> Scale:
    return Scale(
        carried={broker.broker: destinations.view.held_count(broker.incarnation) for broker in destinations.live},
        room=_capacities(destinations),
    )


def _capacities(destinations: Destinations) -> Mapping[str, int]:
    return {broker.broker: broker.joined.capacity for broker in destinations.live}


def _reports_of(loads: Mapping[str, BrokerLoad], carried: Mapping[str, float], weight: Callable[[str, BundleTraffic], float]) -> Reports:
    """What the reports come to. `weight` is what a bundle weighs at the broker that reported it."""
    weights: dict[str, float] = {}
    reporters: dict[str, str] = {}
    rest, uncounted = 0.0, 0
    # The oldest report first, so that the newest word on a bundle stays.
    for name, load in sorted(loads.items(), key=lambda each: (each[1].taken_ms, each[0])):
        told = {bundle.bundle: weight(name, bundle) for bundle in load.bundles or ()}
        weights.update(told)
        reporters.update(dict.fromkeys(told, name))
        if load.bundle_count > len(told):
            rest += max(0.0, carried[name] - sum(told.values()))
            uncounted += load.bundle_count - len(told)
    usual = rest / uncounted if uncounted else (sum(weights.values()) / len(weights) if weights else 0.0)
    named: dict[str, list[str]] = {}
    for bundle, reporter in reporters.items():
        named.setdefault(reporter, []).append(bundle)
    by_reporter = {reporter: frozenset(bundles) for reporter, bundles in named.items()}
    return Reports(loads=loads, carried=carried, weights=weights, usual=usual, named=by_reporter)


# --- batches ---


class _Batch:
    """One batch while it is placed. `narrow` leaves of the fit those among whom the least loaded is taken, at least one."""

    def __init__(
        self,
        view: View,
        destinations: Destinations,
        scale: Scale,
        *,
        narrow: Callable[[BundleEntry, Sequence[str], _Batch], Sequence[str]] = lambda _, fit, __: fit,
    ) -> None:
        self._view = view
        self._destinations = destinations
        self._scale = scale
        self._narrow = narrow
        known = [scale.carried[broker.broker] for broker in destinations.live if broker.broker in scale.carried]
        mean = sum(known) / len(known) if known else 0.0
        # What each carries, for which room, and how many bundles it has, which for its capacity decides between equals.
        self.carried = {broker.broker: scale.carried.get(broker.broker, mean) for broker in destinations.live}
        self._room = {broker.broker: scale.room.get(broker.broker, 1) for broker in destinations.live}
        self._counts = {broker.broker: view.held_count(broker.incarnation) for broker in destinations.live}

    def place(self, bundles: Sequence[BundleEntry], avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""
        everybody = frozenset(broker.incarnation for broker in self._destinations.live if broker.status == "up")
        fit: dict[str, BundleEntry] = {}
        for bundle in bundles:
            if len(fit) >= at_most:
                break
            # Seen at one glance where all have refused it, because there may be thousands that nobody takes.
            if not everybody <= avoid.get(bundle.name, _NOBODY) and self._allowed(bundle, avoid):
                fit[bundle.name] = bundle
        placed: dict[str, int] = {}
        for bundle in sorted(fit.values(), key=lambda bundle: -self._scale.weight(bundle.name)):
            chosen = self._choose(bundle, self._narrow(bundle, self._allowed(bundle, avoid), self))
            self.carried[chosen] += self._scale.weight(bundle.name)
            self._counts[chosen] += 1
            self._destinations.placed(bundle, chosen)
            placed[bundle.name] = self._view.brokers[chosen].incarnation
        return placed

    def score(self, broker: str, bundle: BundleEntry) -> float:
        """What `broker` will carry for its room with `bundle`."""
        return (self.carried[broker] + self._scale.weight(bundle.name)) / self._room[broker]

    def _allowed(self, bundle: BundleEntry, avoid: Mapping[str, frozenset[int]]) -> Sequence[str]:
        return self._destinations.of(bundle, avoid=avoid.get(bundle.name, _NOBODY)).allowed

    def _choose(self, bundle: BundleEntry, fit: Sequence[str]) -> str:
        # Once for each bundle and broker of a batch: so it is `score`, spelled out.
        carried, room, weight = self.carried, self._room, self._scale.weight(bundle.name)
        scores = [(carried[name] + weight) / room[name] for name in fit]
        least = min(scores)
        brokers, counts = self._view.brokers, self._counts
        equals = [name for name, score in zip(fit, scores, strict=True) if score == least]
        return min(equals, key=lambda name: ((counts[name] + 1) / brokers[name].joined.capacity, name))


def _any_of(names: Sequence[str], bundle: BundleEntry) -> str:
    """One of them, as good as drawn: Pulsar draws at random, and this gives equal answers to equal questions."""
    return names[crc32(bundle.name.encode()) % len(names)]
