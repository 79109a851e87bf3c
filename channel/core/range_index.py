"""From a point of the hash space to its bundle: the index that a view keeps for each namespace.

May live here: the class `RangeIndex`, its bounds and their arithmetic. What a bundle is, and when one changes, is the view's.

Theory of operation. The lows in order answer every question by bisection, in a time that grows with the number of bundles,
because each probe touches another piece of memory. So the hash space is also cut into slots, 16 or more for each bundle, and
a slot that lies wholly within one bundle holds its entry: nine lookups in ten take one step, and only those near a boundary
bisect. Slots are made by the first lookup that has to bisect, so that a replay, which looks nothing up, does not pay for
them. From then on they follow every change, at the price of one assignment to a slice. When bundles have become too many for
them, they are made anew, by a lookup, and no sooner than there are twice as many bundles.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Final

from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import HASH_MAX

# Of 16 to 32 slots for each bundle one contains its lower end: more than nine lookups in ten find an entry. A slot takes 8
# bytes, so that the slots of 100,000 bundles take 26 MB at most.
_SLOTS_PER_BUNDLE: Final = 16

# When bundles have become twice as many, slots are made anew; when they have become so few, they are given back.
_SLOTS_PER_BUNDLE_MIN: Final = 8
_SLOTS_PER_BUNDLE_MAX: Final = 256

# A bundle of nearly the whole hash space, beside many small ones, has all these slots rewritten when it changes: 2 MB, in less
# than a millisecond. Beyond 16,384 bundles in one namespace there are fewer slots for each, and more lookups bisect.
_SLOTS_MAX: Final = 1 << 18

_HASH_BITS: Final = HASH_MAX.bit_length()


class RangeIndex:
    """The bundles of one namespace, in order of the hash space: `lows` and `names`, side by side.

    A point's slot is `slots[point >> shift]`; it holds the entry of the bundle that covers all of that slot, or None. The
    attributes are read by the view, for a call costs as much as a lookup; they are written here alone.
    """

    __slots__ = ("lows", "names", "shift", "slots")

    def __init__(self) -> None:
        self.lows: list[int] = []
        self.names: list[str] = []
        self.shift = _HASH_BITS
        self.slots: list[BundleEntry | None] = [None]

    def insert(self, entry: BundleEntry) -> None:
        """Add a bundle whose range is new."""
        place = bisect_left(self.lows, entry.low)
        self.lows.insert(place, entry.low)
        self.names.insert(place, entry.name)
        self.fill(entry.low, entry.high, entry)

    def remove(self, entry: BundleEntry) -> None:
        """Take a bundle and its range away."""
        place = bisect_left(self.lows, entry.low)
        del self.lows[place], self.names[place]
        if len(self.slots) > _SLOTS_PER_BUNDLE_MAX * (len(self.lows) + 1):
            self.shift, self.slots = _HASH_BITS, [None]
        else:
            self.fill(entry.low, entry.high, None)

    def bisected(self, point: int, bundles: Mapping[str, BundleEntry]) -> BundleEntry:
        """The bundle that holds a point whose slot does not tell; `bundles` are the view's, by name."""
        if len(self.slots) < min(_SLOTS_PER_BUNDLE_MIN * len(self.lows), _SLOTS_MAX):
            self._make_slots(bundles)
        return bundles[self.names[bisect_right(self.lows, point) - 1]]

    def _make_slots(self, bundles: Mapping[str, BundleEntry]) -> None:
        bits = min((_SLOTS_PER_BUNDLE * len(self.lows) - 1).bit_length(), _SLOTS_MAX.bit_length() - 1)
        self.shift = _HASH_BITS - bits
        self.slots = [None] * (1 << bits)
        for name in self.names:
            entry = bundles[name]
            self.fill(entry.low, entry.high, entry)

    def fill(self, low: int, high: int, entry: BundleEntry | None) -> None:
        """Let the slots that lie wholly within a range hold this: a bundle that is there has changed."""
        shift = self.shift
        if shift == _HASH_BITS:
            return  # No slots have been made yet: the one that there is says nothing.
        first = -(-low >> shift)
        end = (high + (high == HASH_MAX)) >> shift  # The last point of the hash space is part of the bundle that ends there.
        if first < end:
            self.slots[first:end] = [entry] * (end - first)
