"""Which incarnation is named by which bundles, and which of these nobody has for good: what a death concerns, and what is stuck.

May live here: the class `Holdings`, told by accepted records alone.

Two clocks run for a bundle, both until it is owned. One is that of its way: from when it was owned or free, through whatever is tried
then, to whomever. The other is that of being served by nobody: from when it became free, through all assignments that end in refusals.
A death begins both anew, since then those who are left have something new to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice, takewhile
from typing import Final, NamedTuple

from equipoise.spark_jobs.rules.ranges import bundle_name, parse_bundle, pieces

TOLD_AT_ONCE_MAX: Final = 16
"""Overdue bundles told with one record, because each of its facts carries all their names; the others come with the next."""


_NOTHING: Final[Mapping[str, int]] = {}

Since = tuple[int, int]
"""When a clock began to run: at which offset, and at which awake time."""


class Holding(NamedTuple):
    """Whom a bundle names, nobody if it is free; since when it is on its way, and since when nobody serves it; None for neither.

    `releasing` is true once the source was told to close it: if that one dies, the destination need not be asked again. `is_told`
    says that one of its clocks ran out, which is told once until it is owned.
    """

    owner: int | None
    source: int | None
    moving: Since | None = None
    unserved: Since | None = None
    releasing: bool = False
    is_told: bool = False

    @property
    def is_free(self) -> bool:
        """Whether it names nobody."""
        return self.owner is None and self.source is None


class Holdings:
    """The bundles, each with whom it names."""

    def __init__(self) -> None:
        self._held: dict[str, Holding] = {}
        # Dicts keep an order: by incarnation that of holding, and of the clocks that of their beginnings.
        self._of: dict[int, dict[str, None]] = {}
        self._moving: dict[str, Since] = {}
        self._unserved: dict[str, Since] = {}
        self._changed: dict[str, None] = {}
        self._told: list[str] = []

    def get(self, name: str) -> Holding | None:
        """Whom a bundle names; None if it is not there."""
        return self._held.get(name)

    def names(self) -> Iterable[str]:
        """All bundles."""
        return self._held

    def changed(self) -> list[str]:
        """The bundles that changed since this was last asked."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def hold(self, name: str, holding: Holding) -> None:
        """Let a bundle name these from now on."""
        self._let_go(name)
        self._held[name] = holding
        for incarnation in (holding.owner, holding.source):
            if incarnation is not None:
                self._of.setdefault(incarnation, {})[name] = None
        for clocks, since in ((self._moving, holding.moving), (self._unserved, holding.unserved)):
            if since is None or holding.is_told:
                clocks.pop(name, None)
            elif clocks.get(name) != since:  # A clock that goes on keeps its place among the others.
                clocks.pop(name, None)
                clocks[name] = since

    def follow(self, name: str, owner: int | None, source: int | None, state: str, now: Since) -> None:
        """An accepted record has put a bundle into this state, as records spell it, and names these."""
        before = self._held.get(name)
        if state == "owned":
            self.hold(name, Holding(owner, source))
            return
        moving, unserved, is_told = (None, None, False) if before is None else (before.moving, before.unserved, before.is_told)
        self.hold(
            name,
            Holding(
                owner,
                source,
                moving=None if state == "free" else moving or now,
                unserved=unserved or now if state == "free" else unserved,
                releasing=state == "releasing",
                is_told=is_told,
            ),
        )

    def restore(self, held: Mapping[str, Holding]) -> None:
        """Become what held these."""
        for name, holding in held.items():
            self.hold(name, holding)
        self._moving, self._unserved = _in_order(self._moving), _in_order(self._unserved)
        self._changed.clear()

    def create(self, namespace: str, ranges: Iterable[tuple[int, int]], now: Since) -> None:
        """A namespace was made, of these ranges, which are free."""
        for low, high in ranges:
            self.follow(bundle_name(namespace, low, high), None, None, "free", now)

    def delete(self, namespace: str) -> None:
        """A namespace is gone, with all its bundles."""
        for name in [name for name in self._held if name.rpartition("/")[0] == namespace]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._let_go(name)
        self._moving.pop(name, None)
        self._unserved.pop(name, None)

    def _let_go(self, name: str) -> None:
        self._changed[name] = None
        before = self._held.pop(name, None)
        for incarnation in () if before is None else {before.owner: None, before.source: None}:
            if incarnation is not None:
                named = self._of[incarnation]
                named.pop(name, None)
                if not named:
                    del self._of[incarnation]

    def declare_dead(self, dead: int, now: Since) -> Sequence[str]:
        """Strike out a dead incarnation; the bundles that named it, in order of their names.

        Who is left of two keeps the bundle: the source, which still serves, or a destination.
        """
        concerned = sorted(self._of.get(dead, ()))
        for name in concerned:
            before = self._held[name]
            is_owner = before.owner == dead
            left = before.source if is_owner else before.owner
            is_served = left is not None and (is_owner or before.releasing)
            is_moving = left is not None and not is_served
            self.hold(name, Holding(left, None, moving=now if is_moving else None, unserved=None if is_served else now))
        return concerned

    def split(self, parent: str, cuts: Sequence[int], owner: int | None) -> None:
        """Put the children in place of their parent, all with its owner."""
        self._drop(parent)
        at = parse_bundle(parent)
        if at is None:
            return
        for low, high in pieces(at.low, at.high, cuts) or ():
            self.hold(bundle_name(at.namespace, low, high), Holding(owner, None))

    def merge(self, left: str, right: str) -> None:
        """Put the union in place of two neighbours, with the owner of the left one."""
        holding, first, second = self._held.get(left), parse_bundle(left), parse_bundle(right)
        self._drop(left)
        self._drop(right)
        if holding is not None and first is not None and second is not None:
            self.hold(bundle_name(first.namespace, first.low, second.high), holding)

    def overdue(self, moving_max_ms: int, unserved_max_ms: int, *, may_lie: Callable[[str], bool]) -> Mapping[str, int]:
        """Some of the bundles of which a clock has run since before these awake times, with the offset at which it began.

        Each is told once. What is free in a namespace that `may_lie` says may have free bundles is passed over for good.
        """
        if not (_has_before(self._moving, moving_max_ms) or _has_before(self._unserved, unserved_max_ms)):
            return _NOTHING  # As nearly always, and asked of each record.
        # Both stand in order of their beginnings, and of the names of those that began with one record.
        late = merge(_before(self._moving, moving_max_ms), _before(self._unserved, unserved_max_ms))
        found: dict[str, int] = {}
        for (offset, _), name in list(islice(late, TOLD_AT_ONCE_MAX)):
            holding = self._held[name]
            if not (holding.is_told or (holding.is_free and may_lie(name.rpartition("/")[0]))):
                found[name] = offset
            self.hold(name, holding._replace(is_told=True))
        self._told = sorted(found)
        return found

    def take_told(self) -> Sequence[str]:
        """The bundles that `overdue` told last, once, in order of their names."""
        told, self._told = self._told, []
        return told


def _has_before(clocks: Mapping[str, Since], since_max_ms: int) -> bool:
    for _, awake_ms in clocks.values():
        return awake_ms < since_max_ms  # The first is the oldest.
    return False


def _before(clocks: Mapping[str, Since], since_max_ms: int) -> Iterable[tuple[Since, str]]:
    """The clocks that began before an awake time, and whose they are."""
    return takewhile(lambda clock: clock[0][1] < since_max_ms, ((since, name) for name, since in clocks.items()))


def _in_order(clocks: Mapping[str, Since]) -> dict[str, Since]:
    return dict(sorted(clocks.items(), key=lambda clock: (clock[1], clock[0])))
