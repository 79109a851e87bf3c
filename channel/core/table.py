"""Hold the state of a cluster after a prefix of its log, with indexes for cheap queries.

Two views are compared for a reader that missed the records in between. `channel.snapshots.restore`
provides the newer one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from equipoise.channel.core import entries as digests
from equipoise.channel.core.entries import (
    BrokerChanged,
    BrokerEntry,
    BundleChanged,
    BundleEntry,
    Change,
    LevelChanged,
    NamespaceChanged,
    NamespaceEntry,
    PolicyChanged,
    PolicyEntry,
)
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
    """The bundles of one namespace in hash order: `lows` and `names`, side by side. It maps a point
    of the hash space to its bundle.

    Theory of operation:

    * Bisection over the sorted lows answers every lookup. Its time grows with the number of
      bundles, because each probe touches another piece of memory.
    * So the hash space is also cut into slots, 16 or more per bundle. A slot that lies wholly
      within one bundle holds its entry. Nine lookups in ten take one step; only those near a
      boundary bisect.
    * The first lookup that has to bisect makes the slots. A replay, which looks nothing up, does
      not pay for them.
    * From then on each change updates the slots with one slice assignment.
    * A lookup rebuilds the slots once the number of bundles has doubled.

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


class View:
    """The state of a cluster after a prefix of its log.

    Anyone may read it. Only `apply`, snapshot loaders and the copying of a channel write it; the
    writers keep indexes and digest in step.

    * `offset` is the last folded logical offset (-1 before the first).
    * `live` maps each live incarnation to its broker.
    * `removed_at` is the `last` of every absent key.
    """

    __slots__ = (
        "_digest",
        "_held",
        "_ranges",
        "_scalars_part",
        "_unsettled",
        "base",
        "brokers",
        "bundles",
        "cluster",
        "genesis",
        "level",
        "level_last",
        "live",
        "namespaces",
        "offset",
        "policies",
        "removed_at",
    )

    def __init__(self) -> None:
        self.offset = -1
        self.cluster: str | None = None
        self.base = 0
        self.genesis: int | None = None
        self.level = 0
        self.level_last = 0
        self.removed_at = 0
        self.bundles: dict[str, BundleEntry] = {}
        self.brokers: dict[str, BrokerEntry] = {}
        self.namespaces: dict[str, NamespaceEntry] = {}
        self.policies: dict[str, PolicyEntry] = {}
        self.live: dict[int, BrokerEntry] = {}
        self._ranges: dict[str, RangeIndex] = {}  # By namespace.
        # `_held` has the bundles that name an incarnation, `_unsettled` those not simply owned. So
        # a death or a leader's round does not scan the view. Dicts without values keep the order
        # stable.
        self._held: dict[int, dict[str, None]] = {}
        self._unsettled: dict[str, None] = {}
        self._digest = 0  # Reduced only when it is read, which is cheaper.
        self._scalars_part = 0

    # --- questions ---

    def bundle_at(self, namespace: str, point: int) -> BundleEntry | None:
        """Return the bundle that holds hash point `point`; None if there is no such namespace.

        It may build an index: only the folding thread may call it.
        """
        index = self._ranges.get(namespace)
        if index is None:
            return None
        entry = index.slots[point >> index.shift]
        return index.bisected(point, self.bundles) if entry is None else entry

    def bundles_of(self, namespace: str) -> list[BundleEntry]:
        """Return the bundles of `namespace` in hash order; empty if it does not exist."""
        index = self._ranges.get(namespace)
        return [] if index is None else [self.bundles[name] for name in index.names]

    def bundle_count(self, namespace: str) -> int:
        """Return the number of bundles of `namespace`; 0 if it does not exist."""
        index = self._ranges.get(namespace)
        return 0 if index is None else len(index.names)

    def right_neighbour(self, bundle: BundleEntry) -> BundleEntry | None:
        """Return the next bundle in hash order; None for the last of its namespace."""
        return None if bundle.high == HASH_MAX else self.bundle_at(bundle.namespace, bundle.high)

    def held_by(self, incarnation: int) -> list[BundleEntry]:
        """Return the bundles that name `incarnation` as owner or source, by name."""
        return [self.bundles[name] for name in sorted(self._held.get(incarnation, ()))]

    def held_count(self, incarnation: int) -> int:
        """Return how many bundles name `incarnation` as owner or source."""
        return len(self._held.get(incarnation, ()))

    def not_settled_at(self, incarnation: int, asked: frozenset[str]) -> frozenset[str]:
        """Return the bundles of `asked` that `incarnation` does not hold or that are not `owned`.
        20 take a microsecond.
        """
        return asked.difference(self._held.get(incarnation, ())) | (self._unsettled.keys() & asked)

    def unsettled(self) -> list[BundleEntry]:
        """Return the bundles in any phase but `owned`, by name."""
        return [self.bundles[name] for name in sorted(self._unsettled)]

    def first_unsettled(self, at_most: int) -> list[BundleEntry]:
        """Return some of the bundles in any phase but `owned`: all, or those that left it first."""
        return [self.bundles[name] for name in islice(self._unsettled, at_most)]

    def can_give(self, incarnation: int) -> bool:
        """Return whether another broker may be given a bundle that names this incarnation."""
        seen = set[str]()
        for name in self._held.get(incarnation, ()):
            namespace = self.bundles[name].namespace
            if namespace not in seen:
                seen.add(namespace)
                if any(taker.incarnation != incarnation for taker in self.takers(namespace)):
                    return True
        return False

    def takers(self, namespace: str) -> list[BrokerEntry]:
        """Return the brokers that may be given bundles of a namespace, oldest first: they are up,
        and their programs serve it.
        """
        return [
            broker
            for broker in self.live_brokers()
            if broker.status == "up" and broker.joined.serves(namespace)
        ]

    def live_brokers(self) -> list[BrokerEntry]:
        """Return the live brokers, oldest incarnation first."""
        return [self.live[incarnation] for incarnation in sorted(self.live)]

    def live_after(self, incarnation: int) -> list[BrokerEntry]:
        """Return the other live brokers in a ring: those that joined after `incarnation`, by age,
        then the older ones. So each broker is the first for one other.
        """
        others = [each for each in self.live_brokers() if each.incarnation != incarnation]
        return sorted(others, key=lambda each: each.incarnation < incarnation)

    def leader(self) -> BrokerEntry | None:
        """Return the oldest live broker that does not drain, else the oldest live one, else
        None.
        """
        brokers = self.live_brokers()
        return next(
            (broker for broker in brokers if broker.status == "up"), brokers[0] if brokers else None
        )

    def last_of_broker(self, broker: str) -> int:
        """Return the expected offset for a record of this broker's key."""
        entry = self.brokers.get(broker)
        return self.removed_at if entry is None else entry.last

    def digest(self) -> int:
        """Return the digest of the view's content, from 0 to 2**61 - 2 (`channel.core.entries`)."""
        self._digest %= digests.DIGEST_MODULUS
        return self._digest

    def copy(self) -> View:
        """Return a copy that stays as this view is now, so that another thread may read it while
        the fold goes on.

        100,000 bundles take 5 ms. Broker entries are shared: their `sequence` and `last` keep
        changing, so nothing may be folded into it.
        """
        other = View()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.bundles, other.brokers, other.live = (
            self.bundles.copy(),
            self.brokers.copy(),
            self.live.copy(),
        )
        other.namespaces, other.policies = self.namespaces.copy(), self.policies.copy()
        other._ranges = {namespace: index.copy() for namespace, index in self._ranges.items()}
        other._held = {incarnation: held.copy() for incarnation, held in self._held.items()}
        other._unsettled = self._unsettled.copy()
        return other

    # --- the writers, for `apply`, the loaders of snapshots and snapshots, and the copy of a
    # channel ---

    def put_bundle(self, after: BundleEntry, before: BundleEntry | None) -> None:
        """Set one bundle whose range is already in the index."""
        name = after.name
        self.bundles[name] = after
        if before is None:
            self._digest += after.part
            self._remember_holders(after)
        else:
            self._ranges[after.namespace].fill(after.low, after.high, after)
            self._digest += after.part - before.part
            if after.owner != before.owner or after.source != before.source:
                self._forget_holders(before)
                self._remember_holders(after)
        if after.phase == "owned":
            self._unsettled.pop(name, None)
        else:
            self._unsettled[name] = None

    def insert_bundle(self, after: BundleEntry) -> None:
        """Add a bundle with a new range. The caller removes the bundles that it replaces."""
        index = self._ranges.get(after.namespace)
        if index is None:
            index = self._ranges[after.namespace] = RangeIndex()
        index.insert(after)
        self.put_bundle(after, None)

    def remove_bundle(self, before: BundleEntry) -> None:
        """Remove a bundle and its range."""
        index = self._ranges[before.namespace]
        index.remove(before)
        if not index.lows:
            del self._ranges[before.namespace]
        del self.bundles[before.name]
        self._digest -= before.part
        self._unsettled.pop(before.name, None)
        self._forget_holders(before)

    def _remember_holders(self, after: BundleEntry) -> None:
        held = self._held
        for holder in (after.owner, after.source):
            if holder is not None:
                if holder in held:
                    held[holder][after.name] = None
                else:
                    held[holder] = {after.name: None}

    def _forget_holders(self, before: BundleEntry) -> None:
        for holder in (before.owner, before.source):
            if holder is not None:
                held = self._held[holder]
                held.pop(before.name, None)
                if not held:
                    del self._held[holder]

    def raise_sequence(self, broker: BrokerEntry, sequence: int) -> None:
        """Settle all attempts of a live broker up to `sequence`."""
        self._digest += (sequence - broker.sequence) * broker.sequence_weight
        broker.sequence = sequence

    def raise_last(self, broker: BrokerEntry, offset: int) -> None:
        """Note that an accepted record changed this broker's key at `offset`."""
        self._digest += (offset - broker.last) * broker.last_weight
        broker.last = offset

    def put_broker(self, after: BrokerEntry) -> None:
        """Set a new broker or incarnation. The caller has removed the previous one."""
        self.brokers[after.broker] = after
        if after.live:
            self.live[after.incarnation] = after
        self._digest += (
            after.part + after.last * after.last_weight + after.sequence * after.sequence_weight
        )

    def remove_broker(self, before: BrokerEntry) -> None:
        """Forget a broker id with its newest incarnation."""
        del self.brokers[before.broker]
        self.live.pop(before.incarnation, None)
        self._digest -= (
            before.part
            + before.last * before.last_weight
            + before.sequence * before.sequence_weight
        )

    def put_namespace(self, name: str, after: NamespaceEntry | None) -> None:
        """Set or remove a namespace. The caller inserts or removes its bundles."""
        before = self.namespaces.pop(name, None)
        if before is not None:
            self._digest -= digests.status_part(
                digests.weight("namespace", name), before.status, before.last
            )
        if after is not None:
            self.namespaces[name] = after
            self._digest += digests.status_part(
                digests.weight("namespace", name), after.status, after.last
            )

    def put_policy(self, name: str, after: PolicyEntry | None) -> None:
        """Set or remove a policy."""
        before = self.policies.pop(name, None)
        if before is not None:
            self._digest -= digests.status_part(
                digests.weight("policy", name), "policy", before.last
            )
        if after is not None:
            self.policies[name] = after
            self._digest += digests.status_part(
                digests.weight("policy", name), "policy", after.last
            )

    def go_on_above(self, base: int, *, level: int, level_last: int) -> None:
        """Become the first view of a copy: the same content, with offsets above `base`.

        `level` and `level_last` are the values before the record that closed the old log, if one
        did.
        """
        self.offset = self.base = base
        self.level, self.level_last = level, level_last
        self.scalars_changed()

    def scalars_changed(self) -> None:
        """Update the digest after a change of the view's scalars."""
        part = digests.scalars_part(
            cluster=self.cluster or "",
            base=self.base,
            genesis=self.genesis or 0,
            level=self.level,
            level_last=self.level_last,
            removed_at=self.removed_at,
        )
        self._digest += part - self._scalars_part
        self._scalars_part = part


@dataclass(frozen=True, slots=True, kw_only=True)
class Resync:
    """A reader skipped the records above logical offset `before` and up to `offset`: truncation
    removed them.

    `changes` summarises the accepted records. The rejected ones are unknown.
    """

    before: int
    offset: int
    changes: tuple[Change, ...]


def resync_between(before: View, after: View) -> Resync:
    """Return the resync of a reader that had `before` and goes on from `after`."""
    return Resync(
        before=before.offset, offset=after.offset, changes=tuple(changes_between(before, after))
    )


def changes_between(before: View, after: View) -> Sequence[Change]:
    """Return one change for each key that differs between two views of one channel.

    * The order is that of verdicts: a namespace before its bundles, a broker's death before the
      bundles that it frees, removed bundles before their replacements; then by name.
    * A key that was removed and made anew has changed. A renewal is no change, as in a verdict.
    * If several incarnations of one broker ended in between, only the one in `before` is reported
      as dead.
    """
    kinds = (_level, _policies, _namespaces, _brokers, _bundles)
    return [change for changes in kinds for change in changes(before, after)]


def _level(before: View, after: View) -> Iterator[LevelChanged]:
    if before.level != after.level:
        yield LevelChanged(before=before.level, after=after.level)


def _policies(before: View, after: View) -> Iterator[PolicyChanged]:
    for name in sorted(before.policies.keys() | after.policies.keys()):
        was, now = before.policies.get(name), after.policies.get(name)
        if was is None or now is None or was.last != now.last:
            yield PolicyChanged(name=name, before=was, after=now)


def _namespaces(before: View, after: View) -> Iterator[NamespaceChanged]:
    for name in sorted(before.namespaces.keys() | after.namespaces.keys()):
        was, now = before.namespaces.get(name), after.namespaces.get(name)
        if was is None or now is None or was.last != now.last:
            yield NamespaceChanged(name=name, before=was, after=now)


def _brokers(before: View, after: View) -> Iterator[BrokerChanged]:
    for name in sorted(before.brokers.keys() | after.brokers.keys()):
        was, now = before.brokers.get(name), after.brokers.get(name)
        # Not `last`, which every renewal raises.
        if (
            was is None
            or now is None
            or (was.incarnation, was.status) != (now.incarnation, now.status)
        ):
            dead = (
                was.incarnation
                if was is not None and was.live and was.incarnation not in after.live
                else None
            )
            yield BrokerChanged(
                name=name, before=None if was is None else was.status, after=now, dead=dead
            )


def _bundles(before: View, after: View) -> Iterator[BundleChanged]:
    # Compared first, then sorted: of 100,000 bundles a resync changes few, and it blocks its event
    # loop meanwhile.
    old, new = before.bundles, after.bundles
    for name in sorted([name for name in old if name not in new]):
        yield BundleChanged(name=name, before=old[name], after=None)
    for name in sorted(
        [
            name
            for name, now in new.items()
            if (was := old.get(name)) is None or was.last != now.last
        ]
    ):
        yield BundleChanged(name=name, before=old.get(name), after=new[name])
