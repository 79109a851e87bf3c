"""Choose the broker for a bundle that has no owner, or must move. The choice is policy, not safety:
the fold accepts or rejects it.

All strategies choose among the brokers that `brokers.balancing.destinations` allows. They place a
batch as a whole, heaviest bundle first, and count each placed bundle for the next. Bundles that
leave an owner do not count there, and of equal bundles those of each owner take turns. Bundles
without weight go by number. The score (`Scale`) is the shedder's, so the shedder does not move what
was just placed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from equipoise.brokers.balancing.destinations import Destinations, PlacementRules
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.view import View
from equipoise.shedder.balanced import evens_by_number
from equipoise.shedder.loads import BundleTraffic, Load, fault_of, oldest_first

_NOBODY: Final[frozenset[int]] = frozenset()


class Placement(Protocol):
    """A placement strategy."""

    def place(
        self,
        view: View,
        bundles: Sequence[BundleEntry],
        *,
        avoid: Mapping[str, frozenset[int]],
        at_most: int,
    ) -> dict[str, int]:
        """Return an incarnation for each of the first `at_most` of `bundles` that can be placed, by
        bundle name.

        * A bundle without a candidate is left out and does not count towards `at_most`.
        * Only brokers that `brokers.balancing.destinations` allows are chosen.
        * `avoid` names, per bundle, the incarnations that must not have it.
        * Ties break by broker id.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What brokers are compared by: each broker's load per room, and the weight that each bundle
    adds.

    `carried` and `weights` share one unit. A bundle of unknown weight weighs `usual`. A live broker
    that is missing in `carried` counts as the mean of the others. Room defaults to 1.
    """

    carried: Mapping[str, float]
    weights: Mapping[str, float] = field(default_factory=dict)
    usual: float = 1.0
    room: Mapping[str, float] = field(default_factory=dict)

    def weight(self, bundle: str) -> float:
        """Return the weight that a bundle adds."""
        return self.weights.get(bundle, self.usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Plausible reports, combined once per placement, because every lookup of a free bundle needs
    them.

    * `carried`, `weights`: the loads of brokers by id and of bundles by name, in one unit.
    * `usual`: the weight of an unreported bundle. It is the mean of the bundles that reports count
      but do not name; without any, the mean of the named bundles.
    * `named`: by broker, the bundles that its report names and no newer report does.
    * `total`: the load of all brokers. `spread`: the standard deviation of the bundles' weights,
      relative to their mean.
    """

    loads: Mapping[str, Load]
    carried: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    usual: float = 0.0
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)
    total: float = 0.0
    spread: float = 0.0

    def scale(self, view: View) -> Scale:
        """Return a scale that includes moves after the reports. Otherwise many lookups at once
        would all choose one idle broker.
        """
        now, arrived = dict(self.carried), dict.fromkeys(self.carried, 0)
        for reporter, names in self.named.items():
            entry = view.brokers.get(reporter)
            # Most bundles have not moved; `not_settled_at` skips them fast.
            moved = names if entry is None else view.not_settled_at(entry.incarnation, names)
            for name in sorted(moved):
                bundle = view.bundles.get(name)
                owner = (
                    None if bundle is None or bundle.owner is None else view.live.get(bundle.owner)
                )
                if owner is not None and owner.broker != reporter:
                    now[reporter] -= self.weights[name]
                    if owner.broker in now:
                        now[owner.broker] += self.weights[name]
                        arrived[owner.broker] += 1
        for broker in view.live.values():
            if broker.broker in now:
                unheard = (
                    view.held_count(broker.incarnation)
                    - self.loads[broker.broker].bundle_count
                    - arrived[broker.broker]
                )
                now[broker.broker] += max(0, unheard) * self.usual
        return Scale(
            carried={name: max(0.0, amount) for name, amount in now.items()},
            weights=self.weights,
            usual=self.usual,
        )


# --- scales ---


def by_cost(loads: Mapping[str, Load]) -> Reports:
    """Return reports of the cost of bundles, as `BalancedShedder` weighs them."""
    carried = {name: load.cost for name, load in loads.items()}
    return _reports_of(loads, carried, lambda _, bundle: bundle.cost)


def by_messages(loads: Mapping[str, Load]) -> Reports:
    """Return reports of messages per second, both ways."""
    carried = {name: load.traffic.messages_per_second for name, load in loads.items()}
    return _reports_of(loads, carried, lambda _, bundle: bundle.traffic.messages_per_second)


def by_use(loads: Mapping[str, Load]) -> Reports:
    """Return reports of the decaying average of weighted use, as `TransferShedder` uses it.

    A bundle's share of its broker's use is its share of the broker's throughput, as in that
    shedder.
    """
    carried = {name: load.average_use for name, load in loads.items()}
    throughput = sum(load.average_bytes_per_second for load in loads.values())
    mean = sum(carried.values()) / throughput if throughput >= 1 else 0.0
    per_byte = {
        # Below a byte per second the use per byte is unknown.
        name: carried[name] / load.average_bytes_per_second
        if load.average_bytes_per_second >= 1
        else mean
        for name, load in loads.items()
    }
    return _reports_of(
        loads, carried, lambda name, bundle: bundle.traffic.bytes_per_second * per_byte[name]
    )


def _by_count(destinations: Destinations) -> Scale:
    return Scale(
        carried={
            broker.broker: destinations.view.held_count(broker.incarnation)
            for broker in destinations.live
        },
        room=_capacities(destinations),
    )


def _capacities(destinations: Destinations) -> Mapping[str, int]:
    return {broker.broker: broker.joined.capacity for broker in destinations.live}


def _reports_of(
    loads: Mapping[str, Load],
    carried: Mapping[str, float],
    weight: Callable[[str, BundleTraffic], float],
) -> Reports:
    """Combine the reports. `weight` returns what a bundle weighs at the broker that reported it."""
    weights: dict[str, float] = {}
    reporters: dict[str, str] = {}
    rest, uncounted = 0.0, 0
    for load in oldest_first(loads.values()):
        name = load.broker
        reported = {bundle.bundle: weight(name, bundle) for bundle in load.bundles}
        weights.update(reported)
        reporters.update(dict.fromkeys(reported, name))
        if load.bundle_count > len(reported):
            rest += max(0.0, carried[name] - sum(reported.values()))
            uncounted += load.bundle_count - len(reported)
    usual = (
        rest / uncounted
        if uncounted
        else (sum(weights.values()) / len(weights) if weights else 0.0)
    )
    named: dict[str, list[str]] = {}
    for bundle, reporter in reporters.items():
        named.setdefault(reporter, []).append(bundle)
    by_reporter = {reporter: frozenset(bundles) for reporter, bundles in named.items()}
    number = len(weights) + uncounted
    mean = (sum(weights.values()) + uncounted * usual) / number if number else 0.0
    squares = sum((each / mean - 1) ** 2 for each in weights.values()) if mean else math.inf
    squares += uncounted * (usual / mean - 1) ** 2 if mean else 0.0
    return Reports(
        loads=loads,
        carried=carried,
        weights=weights,
        usual=usual,
        named=by_reporter,
        total=sum(carried.values()),
        spread=math.sqrt(squares / number) if number else math.inf,
    )


# --- strategies ---


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByReports:
    """A strategy that uses the plausible reports of brokers, combined once per placement."""

    loads: Mapping[str, Load] = field(default_factory=dict)
    rules: PlacementRules = field(default_factory=PlacementRules)
    _reports: Reports = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_reports", self._combined(believed(self.loads)))

    def place(
        self,
        view: View,
        bundles: Sequence[BundleEntry],
        *,
        avoid: Mapping[str, frozenset[int]],
        at_most: int,
    ) -> dict[str, int]:
        """See `Placement.place`."""
        destinations = Destinations(view, loads=self._reports.loads, rules=self.rules)
        batch = _Batch(view, destinations, self._scale(destinations), narrow=self._narrow)
        return batch.place(bundles, avoid, at_most)

    # What differs between the strategies.
    @staticmethod
    def _combined(loads: Mapping[str, Load]) -> Reports:
        return Reports(loads=loads)

    def _scale(self, destinations: Destinations) -> Scale:
        return self._reports.scale(destinations.view)

    def _narrow(self, fit: Sequence[str], batch: _Batch) -> Sequence[str]:  # noqa: ARG002
        return fit


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestBundles(_ByReports):
    """Places each bundle at the broker that will have the fewest bundles per capacity, counting all
    that the view has given it.

    Capacity is the weight that a broker declares on joining: a broker of 200 gets two bundles for
    each one of a broker of 100. It is not a limit, because a bundle without a broker is worse off
    than one at a full broker. `loads` only exclude brokers.
    """

    def _scale(self, destinations: Destinations) -> Scale:
        return _by_count(destinations)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastCost(_ByReports):
    """Places each bundle at the broker whose bundles will cost least per capacity, or that will
    have the fewest where `shedder.balanced` evens them out by number.
    """

    _combined = staticmethod(by_cost)

    def _scale(self, destinations: Destinations) -> Scale:
        reports, room = self._reports, _capacities(destinations)
        if evens_by_number(reports.total, reports.spread, sum(room.values())):
            return _by_count(destinations)
        scale, view = reports.scale(destinations.view), destinations.view
        # A broker without a report costs what it holds, so that one that has just been restarted
        # gets the bundles of the next, rather than brokers that are still to be restarted.
        carried = {
            broker.broker: view.held_count(broker.incarnation) * scale.usual
            for broker in destinations.live
        }
        return replace(scale, carried={**carried, **scale.carried}, room=room)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLongTermMessageRate(_ByReports):
    """Places each bundle at the broker that will have the fewest messages per second, as Pulsar's
    strategy of this name does.

    A broker above `overloaded_percent` (`loadBalancerBrokerOverloadedThresholdPercentage`) comes
    after all others. If all are above it, this takes the one with the fewest messages; Pulsar takes
    any.
    """

    overloaded_percent: float = 85.0

    _combined = staticmethod(by_messages)

    def _narrow(self, fit: Sequence[str], batch: _Batch) -> Sequence[str]:  # noqa: ARG002
        calm = [name for name in fit if self._used_percent(name) <= self.overloaded_percent]
        return calm or fit

    def _used_percent(self, broker: str) -> float:
        load = self._reports.loads.get(broker)
        return 0.0 if load is None else load.average_use * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastResourceUsageWithWeight(_ByReports):
    """Places each bundle at a broker whose use is below the mean by a margin, as Pulsar's strategy
    of this name does.

    The margin is `difference_percent`
    (`loadBalancerAverageResourceUsageDifferenceThresholdPercentage`). Of these brokers, or of all
    if there are none, it takes the one that will be used least. Pulsar takes any of them, and uses
    its last reports only.
    """

    difference_percent: float = 10.0

    _combined = staticmethod(by_use)

    def _narrow(self, fit: Sequence[str], batch: _Batch) -> Sequence[str]:
        reported = self._reports.carried
        used = {name: batch.carried[name] for name in fit if name in reported}
        return choose_among(fit, used, self.difference_percent)


class RoundRobin:
    """Places bundles at the brokers in turn, by id. It remembers the next turn."""

    def __init__(self, *, rules: PlacementRules | None = None) -> None:
        self.rules = rules or PlacementRules()
        self._turn = 0

    def place(
        self,
        view: View,
        bundles: Sequence[BundleEntry],
        *,
        avoid: Mapping[str, frozenset[int]],
        at_most: int,
    ) -> dict[str, int]:
        """See `Placement.place`."""

        def next_in_turn(fit: Sequence[str], _: _Batch) -> Sequence[str]:
            self._turn += 1
            return [fit[(self._turn - 1) % len(fit)]]

        destinations = Destinations(view, rules=self.rules)
        return _Batch(view, destinations, _by_count(destinations), narrow=next_in_turn).place(
            bundles, avoid, at_most
        )


def choose_among(
    candidates: Sequence[str], used: Mapping[str, float], difference_percent: float
) -> Sequence[str]:
    """Return the candidates from which Pulsar's LeastResourceUsageWithWeight draws: those below the
    mean by a margin, or all.

    `used` are fractions of 1. A missing candidate does not count for the mean.
    """
    known = {name: used[name] for name in candidates if name in used}
    if not known:
        return candidates
    mean = sum(known.values()) / len(known)
    return [
        name for name, use in known.items() if use + difference_percent / 100 <= mean
    ] or candidates


def believed(loads: Mapping[str, Load]) -> Mapping[str, Load]:
    """Return the reports without those that hold an impossible figure, or do not know the load."""
    return {
        name: loads[name]
        for name in sorted(loads)
        if loads[name].problem is None and fault_of(loads[name]) is None
    }


def places_elsewhere(
    view: View, bundles: Sequence[BundleEntry], placement: Placement
) -> dict[str, int]:
    """Return where `placement` puts these bundles, away from their owners, all together: an
    incarnation by bundle name.
    """
    avoid = {
        bundle.name: frozenset({bundle.owner}) for bundle in bundles if bundle.owner is not None
    }
    return placement.place(view, bundles, avoid=avoid, at_most=len(bundles)) if bundles else {}


def in_turns(bundles: Iterable[BundleEntry]) -> list[BundleEntry]:
    """Return the bundles in an order in which owners take turns, so that a part of them leaves all
    owners evenly.
    """
    before = Counter[int | None]()
    turns: list[tuple[int, BundleEntry]] = []
    for bundle in bundles:
        turns.append((before[bundle.owner], bundle))
        before[bundle.owner] += 1
    return [bundle for _, bundle in sorted(turns, key=lambda each: each[0])]


# --- batches ---


class _Batch:
    """One batch during its placement. `narrow` reduces the allowed brokers to at least one; the
    least loaded of them is taken.
    """

    def __init__(
        self,
        view: View,
        destinations: Destinations,
        scale: Scale,
        *,
        narrow: Callable[[Sequence[str], _Batch], Sequence[str]],
    ) -> None:
        self._view = view
        self._destinations = destinations
        self._scale = scale
        self._narrow = narrow
        known = [
            scale.carried[broker.broker]
            for broker in destinations.live
            if broker.broker in scale.carried
        ]
        mean = sum(known) / len(known) if known else 0.0
        # The load and the room of each broker. The number of bundles per capacity breaks ties.
        self.carried = {
            broker.broker: scale.carried.get(broker.broker, mean) for broker in destinations.live
        }
        self._room = {
            broker.broker: scale.room.get(broker.broker, 1) for broker in destinations.live
        }
        self._counts = {
            broker.broker: view.held_count(broker.incarnation) for broker in destinations.live
        }

    def place(
        self, bundles: Sequence[BundleEntry], avoid: Mapping[str, frozenset[int]], at_most: int
    ) -> dict[str, int]:
        """See `Placement.place`."""
        everybody = frozenset(
            broker.incarnation for broker in self._destinations.live if broker.status == "up"
        )
        fit: dict[str, BundleEntry] = {}
        for bundle in bundles:
            if len(fit) >= at_most:
                break
            # Fast path for bundles that every broker refuses: there may be thousands.
            if not everybody <= avoid.get(bundle.name, _NOBODY) and self._allowed(bundle, avoid):
                fit[bundle.name] = bundle
        owners = {
            name: owner
            for name, bundle in fit.items()
            if (owner := self._view.live.get(bundle.owner or 0)) is not None
        }
        for name, owner in owners.items():
            self._count(name, owner.broker, -1)
        placed: dict[str, str] = {}
        in_order = sorted(
            in_turns(fit.values()), key=lambda bundle: -self._scale.weight(bundle.name)
        )
        # Where bundles leave brokers that take others, the first ones take places that later ones
        # need. A second pass evens that out.
        passes = 2 if any(owner.status == "up" for owner in owners.values()) else 1
        for bundle in in_order * passes:
            if bundle.name in placed:
                self._count(bundle.name, placed[bundle.name], -1)
            chosen = placed[bundle.name] = self._choose(
                bundle, self._narrow(self._allowed(bundle, avoid), self)
            )
            self._count(bundle.name, chosen, 1)
            self._destinations.placed(bundle, chosen)
        return {name: self._view.brokers[broker].incarnation for name, broker in placed.items()}

    def _count(self, bundle: str, broker: str, sign: int) -> None:
        """Count a bundle at a broker, or with `sign` -1 no longer."""
        self.carried[broker] += sign * self._scale.weight(bundle)
        self._counts[broker] += sign

    def _allowed(self, bundle: BundleEntry, avoid: Mapping[str, frozenset[int]]) -> Sequence[str]:
        return self._destinations.of(bundle, avoid=avoid.get(bundle.name, _NOBODY)).allowed

    def _choose(self, bundle: BundleEntry, fit: Sequence[str]) -> str:
        # Inlined: it runs once for each bundle and broker of a batch.
        carried, room, weight = self.carried, self._room, self._scale.weight(bundle.name)
        brokers, counts = self._view.brokers, self._counts
        scores = {name: (carried[name] + weight) / room[name] for name in fit}
        # A bundle without weight changes no score: by score first, one broker would get a whole
        # batch of them.
        least = min(scores.values()) if weight > 0 else math.inf
        equals = [name for name, score in scores.items() if score <= least]
        return min(
            equals,
            key=lambda name: (
                (counts[name] + 1) / brokers[name].joined.capacity,
                scores[name],
                name,
            ),
        )
