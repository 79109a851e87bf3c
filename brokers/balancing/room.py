"""Know what brokers have room for: no move of the balancer brings a broker above a limit, even
if the load stays uneven. Placement prefers brokers with room, because a bundle without an owner is
worse off.

* Memory. A broker's use is what it reported, and what the bundles keep that have come since. What a
  bundle keeps is known only if its service reports it; otherwise the broker's own level decides.
* Units in which services declare costs. A broker's use is the cost of its bundles, in the unit:
  what they cost divided by what a unit counts as at the broker that reported them. A namespace with
  other units at two brokers cannot be compared, so its bundles do not move between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final, Self

from equipoise.channel.core.ranges import namespace_in
from equipoise.channel.core.view import View
from equipoise.shedder.loads import Load, oldest_first
from equipoise.shedder.reported import format_percent
from equipoise.shedder.snapshot import WeighedBroker, capacities_in, rates_of

_MIB: Final = 1 << 20
_WHOLE_MIN: Final = 100

Refused = Mapping[str, str]
"""Why each of some brokers has no room, by id."""


class Room:
    """What brokers have left, by their plausible `loads`.

    `percent_max`: how much of its memory a broker may use. A broker without a report or a limit has
    room. `weighed`: the brokers with the costs of their bundles; none: only memory counts.
    """

    def __init__(
        self,
        view: View,
        loads: Mapping[str, Load],
        *,
        percent_max: float,
        weighed: Iterable[WeighedBroker] = (),
    ) -> None:
        self._memory = _Memory(view, loads, percent_max / 100)
        has_units = any(load.declared for load in loads.values())
        self._units = _Units(loads, weighed, capacities_in(view)) if has_units else None

    def copy(self) -> Self:
        """Return the same room, to plan with."""
        other = object.__new__(type(self))
        other._memory = self._memory.copy()
        other._units = None if self._units is None else self._units.copy()
        return other

    def take(self, bundle: str, broker: str) -> None:
        """Count a bundle at a broker from now on."""
        self._memory.take(bundle, broker)
        if self._units is not None:
            self._units.take(bundle, broker)

    def refusals(self, bundle: str) -> Refused:
        """Return the brokers that have no room for a bundle."""
        full = self._memory.refusals(bundle)
        return full if self._units is None else {**self._units.refusals(bundle), **full}


class _Memory:
    def __init__(self, view: View, loads: Mapping[str, Load], share_max: float) -> None:
        self._share_max = share_max
        limited = {name: load for name, load in loads.items() if load.resources.memory.limit > 0}
        self._limits = {name: load.resources.memory.limit * _MIB for name, load in limited.items()}
        self._used = {name: load.resources.memory.used * _MIB for name, load in limited.items()}
        self._bytes: dict[str, int] = {}
        reporters: dict[str, str] = {}
        for load in oldest_first(loads.values()):
            for each in load.bundles:
                if each.cache_bytes > 0:
                    self._bytes[each.bundle] = each.cache_bytes
                    reporters[each.bundle] = load.broker
        for bundle, reporter in reporters.items():
            entry = view.bundles.get(bundle)
            owner = None if entry is None or entry.owner is None else view.live.get(entry.owner)
            if owner is not None and owner.broker != reporter:
                self.take(bundle, owner.broker)
        self._full: Refused | None = None

    def copy(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self), _used=dict(self._used))
        return other

    def take(self, bundle: str, broker: str) -> None:
        added = self._bytes.get(bundle, 0)
        if added and broker in self._used:
            self._used[broker] += added
            self._full = None

    def refusals(self, bundle: str) -> Refused:
        added = self._bytes.get(bundle, 0)
        if added:
            return dict(self._over(added))
        if self._full is None:
            self._full = dict(self._over(0))
        return self._full

    def _over(self, added: int) -> Iterator[tuple[str, str]]:
        for broker, limit in self._limits.items():
            used = self._used[broker]
            if used + added > self._share_max * limit:
                more = f", and {format_percent((used + added) / limit)} with it" if added else ""
                yield (
                    broker,
                    (
                        f"its memory is {format_percent(used / limit)} full{more}; moves may bring"
                        f" it to {format_percent(self._share_max)} (placement.memory_percent_max)"
                    ),
                )


class _Units:
    """Units are read at the first question, because weighing all bundles takes long."""

    def __init__(
        self,
        loads: Mapping[str, Load],
        weighed: Iterable[WeighedBroker],
        percents: Mapping[str, float],
    ) -> None:
        self._weighed = weighed
        self._limits = {name: load.capacities for name, load in loads.items() if load.capacities}
        self._rates = rates_of(loads, percents)

    def copy(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self), _used=dict(self._used))
        return other

    @cached_property
    def _amounts(self) -> Mapping[str, tuple[str, str, float]]:
        """The owner of each bundle with a declared cost, and this cost with its unit."""
        found = {}
        for broker in self._weighed:
            for bundle in broker.bundles:
                rates = self._rates.get(namespace_in(bundle.name))
                if rates is not None:
                    unit, rate = rates.get(broker.broker, rates[""])
                    found[bundle.name] = broker.broker, unit, bundle.cost / rate if rate else 0.0
        return found

    @cached_property
    def _used(self) -> dict[tuple[str, str], float]:
        """By broker and unit."""
        used: dict[tuple[str, str], float] = {}
        for broker, unit, amount in self._amounts.values():
            used[broker, unit] = used.get((broker, unit), 0.0) + amount
        return used

    def take(self, bundle: str, broker: str) -> None:
        if bundle in self._amounts:
            _, unit, amount = self._amounts[bundle]
            self._used[broker, unit] = self._used.get((broker, unit), 0.0) + amount

    def refusals(self, bundle: str) -> Refused:
        if bundle not in self._amounts:
            return {}
        owner, unit, amount = self._amounts[bundle]
        found = dict[str, str]()
        for broker, limits in self._limits.items():
            used = self._used.get((broker, unit), 0.0)
            if unit in limits and used + amount > limits[unit] and broker != owner:
                found[broker] = (
                    f"it has {_figure(used)} of {_figure(limits[unit])} {unit}, and"
                    f" {_figure(used + amount)} with it (capacities)"
                )
        namespace = namespace_in(bundle)
        for broker, (other, _) in self._rates[namespace].items():
            if broker and other != unit:
                found[broker] = (
                    f"its program declares costs of {namespace} in {other}, that of {owner} in"
                    f" {unit}: use one unit"
                )
        return found


def _figure(amount: float) -> str:
    """Three digits, and whole numbers from there on."""
    return f"{amount:,.0f}" if amount >= _WHOLE_MIN else f"{amount:.3g}"
