"""Placement: which broker takes a bundle that nobody owns, or that must move away.

May live here: the port, the strategies behind it, and what they weigh a batch by. All are pure choices over a view, made
among those that `brokers.destinations` allows. The choice is policy, never safety: the fold accepts or rejects it.

A batch is weighed whole, the heaviest bundle first: what is placed first counts when the next is placed, by the score that
the shedder goes by, so that the shedder finds nothing to mend in what was placed. That score is a `Scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from zlib import crc32

from brokers.destinations import Destinations, PlacementRules
from channel.entries import BundleEntry
from channel.view import View
from shedder.loads import BrokerLoad, BundleTraffic, fault_of
from shedder.snapshot import Snapshot

_NOBODY: Final[frozenset[int]] = frozenset()


class Placement(Protocol):
    """A plug that places bundles."""

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """An incarnation for each of the first `at_most` of `bundles` for which there is one, by name.

        A bundle for which there is none is left out, and takes nobody's place: any number of them may stand before one that
        can be placed. Nobody is chosen whom `brokers.destinations` does not allow, and the batch is weighed whole. `avoid`
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
class FewestBundles:
    """Gives each bundle to the broker that will have the fewest for its capacity, counting all that the view has given it.

    Capacity is the weight that a broker declared on joining: one of 200 gets two bundles for each that one of 100 gets. It
    is no ceiling, because a bundle that nobody has is worse off than one at a broker that has many.
    """

    rules: PlacementRules = field(default_factory=PlacementRules)

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""
        destinations = Destinations(view, rules=self.rules)
        return _Batch(view, destinations, _by_count(destinations)).place(bundles, avoid, at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastCost:
    """Gives each bundle to the broker whose bundles will cost the least for its capacity: the score of `shedder.level`."""

    snapshot: Snapshot
    rules: PlacementRules = field(default_factory=PlacementRules)

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""
        return _Batch(view, Destinations(view, rules=self.rules), by_cost(self.snapshot)).place(bundles, avoid, at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLongTermMessageRate:
    """Gives each bundle to the broker that will have the fewest messages per second, after Pulsar's strategy of the name.

    One whose use is above `overloaded_percent` (`loadBalancerBrokerOverloadedThresholdPercentage`) comes after all that are
    not. Where all are, Pulsar gives the bundle to any of them, and this to the one with the fewest messages.
    """

    loads: Mapping[str, BrokerLoad] = field(default_factory=dict)
    overloaded_percent: float = 85.0
    rules: PlacementRules = field(default_factory=PlacementRules)

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""
        loads = believed(self.loads)
        used = {name: load.averages.weighted_max * 100 for name, load in loads.items()}

        def fewest(bundle: BundleEntry, fit: Sequence[str], batch: _Batch) -> Sequence[str]:
            calm = [name for name in fit if used.get(name, 0.0) <= self.overloaded_percent]
            if not self.rules.pulsar_exact:
                return calm or fit
            least = min((batch.score(name, bundle) for name in calm), default=None)
            return [_any_of([name for name in calm if batch.score(name, bundle) == least] or fit, bundle)]

        destinations = Destinations(view, loads=loads, rules=self.rules)
        return _Batch(view, destinations, by_messages(view, loads), narrow=fewest).place(bundles, avoid, at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastResourceUsageWithWeight:
    """Gives each bundle to one of those that are used less than the mean by a margin, after Pulsar's strategy of the name.

    The margin is `difference_percent` (`loadBalancerAverageResourceUsageDifferenceThresholdPercentage`). Of these, and of
    all if there is none, it takes the one that will be used the least; Pulsar takes any, and goes by its last reports alone.
    """

    loads: Mapping[str, BrokerLoad] = field(default_factory=dict)
    difference_percent: float = 10.0
    rules: PlacementRules = field(default_factory=PlacementRules)

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""
        loads = believed(self.loads)
        reported = {name: load.averages.weighted_max for name, load in loads.items()}

        def least_used(bundle: BundleEntry, fit: Sequence[str], batch: _Batch) -> Sequence[str]:
            if self.rules.pulsar_exact:
                return [_any_of(choose_among(fit, reported, self.difference_percent), bundle)]
            used = {name: batch.carried[name] for name in fit if name in reported}
            return choose_among(fit, used, self.difference_percent)

        destinations = Destinations(view, loads=loads, rules=self.rules)
        return _Batch(view, destinations, by_use(view, loads), narrow=least_used).place(bundles, avoid, at_most)


class RoundRobin:
    """Gives each bundle to the broker after the one that got the last, by id; it remembers whose turn it is."""

    def __init__(self, *, rules: PlacementRules | None = None) -> None:
        self._rules = rules or PlacementRules()
        self._turn = 0

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""

        def next_in_turn(_: BundleEntry, fit: Sequence[str], __: _Batch) -> Sequence[str]:
            self._turn += 1
            return [fit[(self._turn - 1) % len(fit)]]

        destinations = Destinations(view, rules=self._rules)
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


def by_cost(snapshot: Snapshot) -> Scale:
    """What the levelling shedder goes by: the cost of the bundles for the capacity. What nobody has weighed costs the mean."""
    bundles = {bundle.name: bundle.cost for broker in snapshot.brokers for bundle in broker.bundles}
    return Scale(
        carried={broker.broker: sum(bundle.cost for bundle in broker.bundles) for broker in snapshot.brokers},
        weights=bundles,
        usual=sum(bundles.values()) / len(bundles) if bundles else 1.0,
        room={broker.broker: broker.capacity for broker in snapshot.brokers},
    )


def by_messages(view: View, loads: Mapping[str, BrokerLoad]) -> Scale:
    """Messages per second, both ways."""
    carried = {name: load.traffic.messages_per_second for name, load in loads.items()}
    return _since_reported(view, loads, carried, dict.fromkeys(loads, 1.0), lambda bundle: bundle.traffic.messages_per_second)


def by_use(view: View, loads: Mapping[str, BrokerLoad]) -> Scale:
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
    return _since_reported(view, loads, carried, per_byte, lambda bundle: bundle.traffic.bytes_per_second)


def _by_count(destinations: Destinations) -> Scale:
    return Scale(
        carried={broker.broker: destinations.view.held_count(broker.incarnation) for broker in destinations.live},
        room={broker.broker: broker.joined.capacity for broker in destinations.live},
    )


def _since_reported(
    view: View,
    loads: Mapping[str, BrokerLoad],
    carried: Mapping[str, float],
    per_unit: Mapping[str, float],
    units: Callable[[BundleTraffic], float],
) -> Scale:
    """A scale of reports, with what the view has moved since: a herd of lookups must not pick one idle broker.

    A bundle that is in no report weighs what is left of the reports for each bundle that they count and do not name; if there
    is no such bundle, the mean of those that are named.
    """
    weights: dict[str, float] = {}
    reporters: dict[str, str] = {}
    rest, uncounted = 0.0, 0
    # The oldest report first, so that the newest word on a bundle stays.
    for name, load in sorted(loads.items(), key=lambda each: (each[1].taken_ms, each[0])):
        told = {bundle.bundle: units(bundle) * per_unit[name] for bundle in load.bundles or ()}
        weights.update(told)
        reporters.update(dict.fromkeys(told, name))
        if load.bundle_count > len(told):
            rest += max(0.0, carried[name] - sum(told.values()))
            uncounted += load.bundle_count - len(told)
    usual = rest / uncounted if uncounted else (sum(weights.values()) / len(weights) if weights else 0.0)
    now, arrived = dict(carried), dict.fromkeys(carried, 0)
    for bundle, reporter in reporters.items():
        entry = view.bundles.get(bundle)
        owner = None if entry is None or entry.owner is None else view.live.get(entry.owner)
        if owner is not None and owner.broker != reporter:
            now[reporter] -= weights[bundle]
            if owner.broker in now:
                now[owner.broker] += weights[bundle]
                arrived[owner.broker] += 1
    for broker in view.live_brokers():
        if broker.broker in now:
            unheard = view.held_count(broker.incarnation) - loads[broker.broker].bundle_count - arrived[broker.broker]
            now[broker.broker] += max(0, unheard) * usual
    return Scale(carried={name: max(0.0, amount) for name, amount in now.items()}, weights=weights, usual=usual)


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
