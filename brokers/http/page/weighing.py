"""Draw the hash space of a namespace as a strip of cells, each with its server, its state and a
shade of its load, so that a browser need not know each bundle. Weigh the bundles for it within a
share of a core.
"""

from __future__ import annotations

import asyncio
import math
import time
from base64 import b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter
from typing import Final, NamedTuple

from equipoise.brokers.balancing.quarantine import quarantined_in
from equipoise.brokers.http.page.sections import Rows, rounded
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.view import View
from equipoise.shedder.loads import Load
from equipoise.shedder.snapshot import Scales, capacities_in

STATES: Final = ("owned", "moving", "free", "quarantine")
"""The states of cells. A cell with several bundles shows the last of theirs in this order, so that
trouble is always seen."""

SHADE_MAX: Final = 15
_SHADE_OF_MEAN: Final = 5
_SHADES_PER_OCTAVE: Final = 2

SERVERS_MAX: Final = 0xFFFF


CELLS: Final = 256
"""Cells of the strip of each namespace: 1 KB. Bundles are halves of halves, too."""

FOCUS_CELLS: Final = 1_024
"""Cells of the part that a page looks at: 4 KB."""

FOCUS_BUNDLES_MAX: Final = 256
"""How many bundles of that part are listed, if it has no more: 25 KB."""

HOT_MAX: Final = 12

SHARE: Final = 0.003
"""The share of a core that one budget gets. A page has its own, for the part that it looks at, and
all pages of a broker have one in common. With what they send, a page takes at most 1 %."""

# How many bundles are weighed before the event loop may do other work: about 2 ms.
_CHUNK: Final = 1_000

_OWNED, _MOVING, _FREE, _QUARANTINE = range(len(STATES))


class Weighed(NamedTuple):
    """A bundle of a strip: its range, the number of its server (0: none), its index in `STATES`,
    and its cost.
    """

    low: int
    high: int
    server: int
    state: int
    cost: float


class Strip:
    """The part of a hash space from `low` to `high`, in equal cells."""

    def __init__(self, low: int, high: int, *, cells: int) -> None:
        self._low = low
        # The last point belongs to the space, so that cells end where bundles do.
        self._span = high + (high == HASH_MAX) - low
        self._servers = [0] * cells
        self._states = [0] * cells
        self._costs = [-1.0] * cells

    def add(self, bundles: Iterable[Weighed]) -> None:
        """Add bundles. The heaviest one of a cell gives it its server and shade."""
        low, span, count = self._low, self._span, len(self._costs)
        servers, states, costs = self._servers, self._states, self._costs
        for bundle in bundles:
            first = max(0, (bundle.low - low) * count // span)
            end = bundle.high + (bundle.high == HASH_MAX)
            last = min(count - 1, max(first, ((end - low) * count - 1) // span))
            for cell in range(first, last + 1):
                states[cell] = max(states[cell], bundle.state)
                if bundle.cost > costs[cell]:
                    costs[cell] = bundle.cost
                    servers[cell] = bundle.server

    def encoded(self, mean: float) -> str:
        """Return three bytes for each cell, in base64: its server, and its state and shade, four
        bits each. `mean`: the mean cost of the bundles of the cluster.
        """
        data = bytearray()
        for server, state, cost in zip(self._servers, self._states, self._costs, strict=True):
            data += (server << 8 | state << 4 | shade_of(cost, mean)).to_bytes(3, "big")
        return b64encode(data).decode()


def shade_of(cost: float, mean: float) -> int:
    """Return the shade of a cost, from 0 to `SHADE_MAX`: two for each doubling, 5 for the mean."""
    if cost <= 0 or mean <= 0:
        return 0
    # Two logarithms, because the quotient of extreme figures overflows.
    octaves = math.log2(cost) - math.log2(mean)
    shade = round(_SHADE_OF_MEAN + _SHADES_PER_OCTAVE * octaves)
    return max(1, min(SHADE_MAX, shade))


Hot = tuple[float, str, int]
"""A heavy bundle: its cost, its name, and the number of its server."""


class Budget:
    """A budget of CPU time that fills with time."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """`now_ns` is a clock that only rises."""
        self._now_ns = now_ns
        self._left_ns = 0.0
        self._at_ns = now_ns()

    @property
    def is_used_up(self) -> bool:
        """Whether further work must wait."""
        self.spent(0)
        return self._left_ns < 0

    def spent(self, took_ns: int) -> None:
        """Note work that was done."""
        now_ns = self._now_ns()
        # It does not save for more than a second.
        filled_ns = min(1e9 * SHARE, self._left_ns + SHARE * (now_ns - self._at_ns))
        self._left_ns, self._at_ns = filled_ns - took_ns, now_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What the bundles of a view cost, by the loads of brokers. `numbers`: of brokers, by id."""

    view: View
    numbers: Mapping[str, int]
    scales: Scales
    mean: float
    quarantined: frozenset[str]

    def weighed(self, bundles: Iterable[BundleEntry]) -> list[tuple[BundleEntry, Weighed]]:
        """Return bundles with their cells."""
        by_server: dict[int | None, list[BundleEntry]] = {}
        for bundle in bundles:
            by_server.setdefault(bundle.server, []).append(bundle)
        found = []
        for server, served in by_server.items():
            broker = None if server is None else self.view.live.get(server)
            name = "" if broker is None else broker.broker
            number = self.numbers.get(name, 0)
            # What nobody serves costs nobody anything.
            costs = self.scales.costs(served, name) if number else [(0.0, False)] * len(served)
            for bundle, (cost, _) in zip(served, costs, strict=True):
                state = (
                    _OWNED
                    if bundle.phase == "owned"
                    else _QUARANTINE
                    if bundle.name in self.quarantined
                    else _FREE
                    if bundle.phase == "free"
                    else _MOVING
                )
                found.append((bundle, Weighed(bundle.low, bundle.high, number, state, cost)))
        return found


def weights_of(view: View, numbers: Mapping[str, int], loads: Mapping[str, Load]) -> Weights:
    """Return the weights of a view by fresh loads."""
    count = sum(load.bundle_count for load in loads.values())
    cost = sum(load.cost for load in loads.values())
    return Weights(
        view=view,
        numbers=numbers,
        scales=Scales(loads.values(), capacities_in(view)),
        mean=cost / count if count else 0.0,
        quarantined=frozenset(each.subject for each in quarantined_in(view)),
    )


@dataclass(slots=True, kw_only=True)
class Weighing:
    """One pass over bundles of a namespace, from `low` to `high`."""

    weights: Weights
    budget: Budget
    low: int = 0
    high: int = HASH_MAX
    cells: int = CELLS
    states: list[int] = field(default_factory=lambda: [0] * len(STATES))
    cost: float = 0.0
    hot: list[Hot] = field(default_factory=list)
    listed: list[tuple[BundleEntry, Weighed]] = field(default_factory=list)

    async def run(self, bundles: Sequence[BundleEntry], *, lists: int = 0) -> Strip:
        """Weigh the bundles, in pieces. List them if there are at most `lists`."""
        strip = Strip(self.low, self.high, cells=self.cells)
        for start in range(0, len(bundles), _CHUNK):
            began_ns = time.thread_time_ns()
            weighed = self.weights.weighed(bundles[start : start + _CHUNK])
            strip.add(each for _, each in weighed)
            for _, each in weighed:
                self.states[each.state] += 1
                self.cost += each.cost
            least = self.hot[-1][0] if len(self.hot) == HOT_MAX else 0.0
            heavy = [
                (each.cost, bundle.name, each.server)
                for bundle, each in weighed
                if each.cost >= least
            ]
            self.hot = nlargest(HOT_MAX, self.hot + heavy)
            if len(bundles) <= lists:
                self.listed += weighed
            self.budget.spent(time.thread_time_ns() - began_ns)
            await asyncio.sleep(0)
        return strip


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """What pages show of a namespace: its row, and its heaviest bundles. `free`: how many have no
    owner. `moving`: how many are on their way.
    """

    row: Rows
    free: int
    moving: int
    cost: float
    hot: Sequence[Hot]


async def namespace_of(weights: Weights, name: str, budget: Budget) -> Namespace:
    """Return a namespace as its bundles are now."""
    weighing = Weighing(weights=weights, budget=budget)
    bundles = weights.view.bundles_of(name)
    strip = await weighing.run(bundles)
    entry = weights.view.namespaces.get(name)
    return Namespace(
        row={
            "status": "deleting" if entry is None else entry.status,
            "bundles": len(bundles),
            **dict(zip(STATES, weighing.states, strict=True)),
            "cost": rounded(weighing.cost),
            "strip": strip.encoded(weights.mean),
        },
        free=weighing.states[_FREE],
        moving=weighing.states[_MOVING],
        cost=weighing.cost,
        hot=weighing.hot,
    )


async def focus_of(weights: Weights, name: str, low: int, high: int, budget: Budget) -> Rows:
    """Return the strip of a part of a namespace, and its bundles if they are few."""
    weighing = Weighing(weights=weights, budget=budget, low=low, high=high, cells=FOCUS_CELLS)
    bundles = weights.view.bundles_of(name)
    first = bisect_right(bundles, low, key=attrgetter("high"))
    bundles = bundles[first : bisect_left(bundles, high, key=attrgetter("low"))]
    strip = await weighing.run(bundles, lists=FOCUS_BUNDLES_MAX)
    rows: dict[str, object] = {
        "": {
            "namespace": name,
            "low": low,
            "high": high,
            "bundles": len(bundles),
            "strip": strip.encoded(weights.mean),
        }
    }
    for bundle, each in sorted(weighing.listed, key=lambda pair: pair[0].low):
        rows[bundle.name] = [
            bundle.low,
            bundle.high,
            each.server,
            bundle.phase,
            bundle.token,
            rounded(each.cost),
        ]
    return rows
