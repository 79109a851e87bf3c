"""Map a point of the hash space to its bundle, within one namespace.

Theory of operation:

* Bisection over the sorted lows answers every lookup. Its time grows with the number of bundles,
  because each probe touches another piece of memory.
* So the hash space is also cut into slots, 16 or more per bundle. A slot that lies wholly within
  one bundle holds its entry. Nine lookups in ten take one step; only those near a boundary bisect.
* The first lookup that has to bisect makes the slots. A replay, which looks nothing up, does not
  pay for them.
* From then on each change updates the slots with one slice assignment.
* A lookup rebuilds the slots once the number of bundles has doubled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Final

from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import HASH_MAX

# Of 16 to 32 slots per bundle one contains its lower end: more than nine lookups in ten find an
# entry. A slot takes 8 bytes, so the slots of 100,000 bundles take at most 26 MB.
_SLOTS_PER_BUNDLE: Final = 16

# Slots are rebuilt once the bundles have doubled, and freed once there are too few bundles for
# them.
_SLOTS_PER_BUNDLE_MIN: Final = 8
_SLOTS_PER_BUNDLE_MAX: Final = 256

# A bundle of nearly the whole hash space rewrites all these slots when it changes: 2 MB, in less
# than a millisecond. Beyond 16,384 bundles per namespace each has fewer slots, and more lookups
# bisect.
_SLOTS_MAX: Final = 1 << 18

_HASH_BITS: Final = HASH_MAX.bit_length()


class RangeIndex:
    """The bundles of one namespace in hash order: `lows` and `names`, side by side.

    A point's slot is `slots[point >> shift]`. It holds the entry of the bundle that covers the
    whole slot, or None. The view reads the attributes directly, because a call costs as much as a
    lookup. Only this class writes them.
    """

    __slots__ = ("lows", "names", "shift", "slots")

    def __init__(self) -> None:
        self.lows: list[int] = []
        self.names: list[str] = []
        self.shift = _HASH_BITS
        self.slots: list[BundleEntry | None] = [None]

    def copy(self) -> RangeIndex:
        """Return an index of the same bundles, without slots: the first lookup that needs them
        makes them.
        """
        other = RangeIndex()
        other.lows, other.names = self.lows.copy(), self.names.copy()
        return other

    def insert(self, entry: BundleEntry) -> None:
        """Add a bundle whose range is new."""
        place = bisect_left(self.lows, entry.low)
        self.lows.insert(place, entry.low)
        self.names.insert(place, entry.name)
        self.fill(entry.low, entry.high, entry)

    def remove(self, entry: BundleEntry) -> None:
        """Remove a bundle and its range."""
        place = bisect_left(self.lows, entry.low)
        del self.lows[place], self.names[place]
        if len(self.slots) > _SLOTS_PER_BUNDLE_MAX * (len(self.lows) + 1):
            self.shift, self.slots = _HASH_BITS, [None]
        else:
            self.fill(entry.low, entry.high, None)

    def bisected(self, point: int, bundles: Mapping[str, BundleEntry]) -> BundleEntry:
        """Find the bundle of a point whose slot is empty; `bundles` are the view's, by name."""
        if len(self.slots) < min(_SLOTS_PER_BUNDLE_MIN * len(self.lows), _SLOTS_MAX):
            self._make_slots(bundles)
        return bundles[self.names[bisect_right(self.lows, point) - 1]]

    def _make_slots(self, bundles: Mapping[str, BundleEntry]) -> None:
        bits = min(
            (_SLOTS_PER_BUNDLE * len(self.lows) - 1).bit_length(), _SLOTS_MAX.bit_length() - 1
        )
        self.shift = _HASH_BITS - bits
        self.slots = [None] * (1 << bits)
        for name in self.names:
            entry = bundles[name]
            self.fill(entry.low, entry.high, entry)

    def fill(self, low: int, high: int, entry: BundleEntry | None) -> None:
        """Set the slots that lie wholly within a changed bundle's range."""
        shift = self.shift
        if shift == _HASH_BITS:
            return  # No slots have been made yet.
        first = -(-low >> shift)
        # The last point of the hash space belongs to the last bundle.
        end = (high + (high == HASH_MAX)) >> shift
        if first < end:
            self.slots[first:end] = [entry] * (end - first)
