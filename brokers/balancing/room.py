"""Know what brokers have room for: no move of the balancer brings a broker above a limit, whatever
it costs. Placement prefers brokers with room, because a bundle without an owner is worse off.

A broker's use is what it reported, and what the bundles add that have come since. What a bundle
takes along is known only if its service tells it; otherwise the broker's own level decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Self

from equipoise.channel.core.view import View
from equipoise.shedder.loads import Load
from equipoise.shedder.reported import format_percent

_MIB: Final = 1 << 20

Refused = Mapping[str, str]
"""Why each of some brokers has no room, by id."""


class Room:
    """The memory that brokers have left, by their plausible `loads`. `percent_max`: how much of its
    limit a broker may use. A broker without a report or a limit has room.
    """

    def __init__(self, view: View, loads: Mapping[str, Load], *, percent_max: float) -> None:
        self._share_max = percent_max / 100
        limited = {name: load for name, load in loads.items() if load.resources.memory.limit > 0}
        self._limits = {name: load.resources.memory.limit * _MIB for name, load in limited.items()}
        self._used = {name: load.resources.memory.used * _MIB for name, load in limited.items()}
        self._bytes: dict[str, int] = {}
        reporters: dict[str, str] = {}
        # Oldest first, so that the newest report of a bundle remains.
        for name, load in sorted(loads.items(), key=lambda each: (each[1].at_ms, each[0])):
            for each in load.bundles:
                if each.cache_bytes > 0:
                    self._bytes[each.bundle] = each.cache_bytes
                    reporters[each.bundle] = name
        for bundle, reporter in reporters.items():
            entry = view.bundles.get(bundle)
            owner = None if entry is None or entry.owner is None else view.live.get(entry.owner)
            if owner is not None and owner.broker != reporter:
                self.take(bundle, owner.broker)
        self._full: Refused | None = None

    def copy(self) -> Self:
        """Return the same room, to plan with."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), _used=dict(self._used))
        return other

    def take(self, bundle: str, broker: str) -> None:
        """Count a bundle at a broker from now on."""
        added = self._bytes.get(bundle, 0)
        if added and broker in self._used:
            self._used[broker] += added
            self._full = None

    def refusals(self, bundle: str) -> Refused:
        """Return the brokers that have no room for a bundle."""
        added = self._bytes.get(bundle, 0)
        if added:
            return dict(self._over(added))
        if self._full is None:
            self._full = dict(self._over(0))
        return self._full

    def _over(self, added: int) -> Iterable[tuple[str, str]]:
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
