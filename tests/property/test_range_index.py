"""The index from points to bundles: whatever is cut, joined and changed, it finds what a search
through all would find.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.channel.core import table
from equipoise.channel.core.entries import BundleEntry, bundle_entry, next_entry
from equipoise.channel.core.ranges import HASH_MAX, even_boundaries
from equipoise.channel.core.table import RangeIndex

POINTS = st.integers(0, HASH_MAX)
# Cuts at random, and cuts that crowd where slots meet, or within one slot.
CUTS = st.one_of(
    st.integers(1, HASH_MAX - 1),
    st.integers(1, 40),
    st.integers(1, 31).map(lambda sixteenth: sixteenth << 27),
)
SOME = st.lists(CUTS, max_size=20)


class Bundles:
    """The bundles of one namespace as a view holds them, and the index that follows each change."""

    def __init__(self) -> None:
        self.by_name: dict[str, BundleEntry] = {}
        self.index = RangeIndex()
        self.version = 1

    def insert(self, low: int, high: int) -> None:
        """A range that is new."""
        entry = bundle_entry(
            "t/n", low, high, "free", owner=None, source=None, last=self.version, token=1
        )
        self.by_name[entry.name] = entry
        self.index.insert(entry)

    def remove(self, entry: BundleEntry) -> None:
        """A range that goes."""
        self.index.remove(entry)
        del self.by_name[entry.name]

    def change(self, before: BundleEntry) -> None:
        """A bundle in its next phase."""
        self.version += 1
        after = next_entry(before, "free", owner=None, source=None, last=self.version, token=1)
        self.by_name[after.name] = after
        self.index.fill(after.low, after.high, after)

    def cut(self, point: int) -> None:
        """Cut the bundle that holds a point there, unless it begins there."""
        whole = self.searched(point)
        if whole.low < point < whole.high:
            self.remove(whole)
            self.insert(whole.low, point)
            self.insert(point, whole.high)

    def join(self, point: int) -> None:
        """Join the bundle that holds a point with its right neighbour, if it has one."""
        left = self.searched(point)
        if left.high != HASH_MAX:
            right = self.searched(left.high)
            self.remove(left)
            self.remove(right)
            self.insert(left.low, right.high)

    def searched(self, point: int) -> BundleEntry:
        """The slow model: ask one bundle after the other."""
        (found,) = [entry for entry in self.by_name.values() if entry.contains(point)]
        return found

    def found(self, point: int) -> BundleEntry:
        """A lookup, as the view makes it."""
        entry = self.index.slots[point >> self.index.shift]
        return self.index.bisected(point, self.by_name) if entry is None else entry

    def check(self, points: Sequence[int]) -> None:
        """Both find the same, at these points and at both ends of every bundle."""
        ends = [
            point
            for entry in self.by_name.values()
            for point in (entry.low, max(entry.high - 1, entry.low))
        ]
        for point in (*points, *ends, 0, HASH_MAX):
            assert self.searched(point) is self.found(point)


def divided(boundaries: Sequence[int]) -> Bundles:
    """A namespace with these boundaries, which has been looked at."""
    bundles = Bundles()
    for low, high in pairwise(boundaries):
        bundles.insert(low, high)
    bundles.check(())
    return bundles


@given(data=st.data())
def test_the_index_finds_what_a_search_finds(data: st.DataObject) -> None:
    """Through any splits, merges and changes of phase, with lookups between them."""
    bundles = divided(even_boundaries(data.draw(st.sampled_from([1, 2, 3, 16, 100]))))
    for _ in range(data.draw(st.integers(1, 4))):
        for point in data.draw(SOME):
            bundles.cut(point)
        for point in data.draw(st.lists(POINTS, max_size=5)):
            bundles.change(bundles.searched(point))
        for point in data.draw(SOME):
            bundles.join(point)
        bundles.check(data.draw(st.lists(POINTS, max_size=10)))


@pytest.mark.parametrize("slots_max", [2, 16, 64])
def test_too_many_bundles_for_the_slots_are_found(
    slots_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the bound of slots more lookups bisect, and none finds another bundle."""
    monkeypatch.setattr(table, "_SLOTS_MAX", slots_max)
    bundles = divided(even_boundaries(100))
    assert slots_max == len(bundles.index.slots)
    for entry in list(bundles.by_name.values())[::3]:
        bundles.change(entry)
        bundles.cut((entry.low + entry.high) // 2)
    bundles.check(range(0, HASH_MAX, HASH_MAX // 97))


def test_slots_are_given_back() -> None:
    """When nearly all bundles have been merged away, the slots that they needed are gone."""
    bundles = divided(even_boundaries(256))
    before = len(bundles.index.slots)
    for _ in range(255):
        bundles.join(0)
    bundles.check(())
    assert len(bundles.index.slots) < before / 10
