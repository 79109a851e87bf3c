"""Draw the hash space of a namespace as a strip of cells, each with its server, its state and a
shade of its load, so that a browser need not know each bundle.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable
from typing import Final, NamedTuple

from equipoise.channel.core.ranges import HASH_MAX

STATES: Final = ("owned", "moving", "free", "quarantine")
"""The states of cells. A cell with several bundles shows the last of theirs in this order, so that
trouble is always seen."""

SHADE_MAX: Final = 15
_SHADE_OF_MEAN: Final = 5
_SHADES_PER_OCTAVE: Final = 2

SERVERS_MAX: Final = 0xFFFF


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
