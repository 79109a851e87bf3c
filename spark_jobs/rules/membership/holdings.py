"""Track which incarnations each bundle names, which bundles a death concerns, and which bundles are
stuck.

Each bundle has two clocks, which end when it is owned:

* moving: since it left the owned or free state, through all attempts and targets;
* unserved: since it became free, through all refused assignments.

A death restarts both, because the remaining brokers have new work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice, takewhile
from typing import Final, NamedTuple

import orjson

from equipoise.spark_jobs.rules.membership.members import PREFIX, Since
from equipoise.spark_jobs.rules.memory import StateRow, StateTable
from equipoise.spark_jobs.rules.ranges import bundle_name, parse_bundle, pieces

OVERDUE_AT_ONCE_MAX: Final = 16
"""Overdue bundles to report with one record, because each of its facts carries all their names. The
others follow with the next."""

_NOTHING: Final[Mapping[str, int]] = {}


class Holding(NamedTuple):
    """The incarnations that a bundle names (none if it is free), and its clocks.

    * `moving`: since when it is pending; None if it is not.
    * `unserved`: since when nobody serves it; None if somebody does.
    * `releasing`: the source has been asked to close it. If the source dies now, the destination
      need not be asked again.
    * `is_reported`: an overdue clock was reported. This happens once until the bundle is owned.
    """

    owner: int | None
    source: int | None
    moving: Since | None = None
    unserved: Since | None = None
    releasing: bool = False
    is_reported: bool = False

    @classmethod
    def parse(cls, data: bytes) -> Holding:
        """Return the holding from its row."""
        owner, source, moving, unserved, releasing, is_reported = orjson.loads(data)
        first, second = (
            None if since is None else (since[0], since[1]) for since in (moving, unserved)
        )
        return cls(owner, source, first, second, releasing, is_reported)

    @property
    def is_free(self) -> bool:
        """Whether it names nobody."""
        return self.owner is None and self.source is None


class Holdings:
    """All bundles, with the incarnations that each names."""

    def __init__(self) -> None:
        self._held = StateTable[str, Holding](
            f"{PREFIX}held:", str, lambda each: orjson.dumps(tuple(each)), Holding.parse
        )
        # Insertion order matters in these dicts: by incarnation, when the holding began; for the
        # clocks, when they started.
        self._of: dict[int, dict[str, None]] = {}
        self._moving: dict[str, Since] = {}
        self._unserved: dict[str, Since] = {}

    def get(self, name: str) -> Holding | None:
        """Return the holding of a bundle, or None if the bundle does not exist."""
        return self._held.get(name)

    def changed_rows(self) -> list[StateRow]:
        """Return the rows that changed since the last call; None for removed ones."""
        return self._held.changed_rows()

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Restore the state of a new instance from its rows. Ignore rows of other parts."""
        self._held.restore(rows)
        for name, holding in self._held.items():
            self._index(name, holding)
        self._moving, self._unserved = _in_order(self._moving), _in_order(self._unserved)

    def begin(self, bundles: Mapping[str, tuple[int | None, int | None, str]], now: Since) -> None:
        """Forget everything and continue from these bundles: by name, the owner, the source and the
        state as in records.
        """
        for name in list(self._held):
            self._drop(name)
        for name, (owner, source, state) in sorted(bundles.items()):
            self.follow(name, owner, source, state, now)

    def put(self, name: str, holding: Holding) -> None:
        """Set the holding of a bundle."""
        self._release(name)
        self._held[name] = holding
        self._index(name, holding)

    def _index(self, name: str, holding: Holding) -> None:
        for incarnation in (holding.owner, holding.source):
            if incarnation is not None:
                self._of.setdefault(incarnation, {})[name] = None
        for clocks, since in ((self._moving, holding.moving), (self._unserved, holding.unserved)):
            if since is None or holding.is_reported:
                clocks.pop(name, None)
            elif clocks.get(name) != since:  # A running clock keeps its place.
                clocks.pop(name, None)
                clocks[name] = since

    def follow(
        self, name: str, owner: int | None, source: int | None, state: str, now: Since
    ) -> None:
        """Apply an accepted record that sets a bundle's `state` (as in records) and
        incarnations.
        """
        before = self._held.get(name)
        if state == "owned":
            self.put(name, Holding(owner, source))
            return
        moving, unserved, is_reported = (
            (None, None, False)
            if before is None
            else (before.moving, before.unserved, before.is_reported)
        )
        self.put(
            name,
            Holding(
                owner,
                source,
                moving=None if state == "free" else moving or now,
                unserved=unserved or now if state == "free" else unserved,
                releasing=state == "releasing",
                is_reported=is_reported,
            ),
        )

    def create(self, namespace: str, ranges: Iterable[tuple[int, int]], now: Since) -> None:
        """Add the bundles of a new namespace, all free."""
        for low, high in ranges:
            self.follow(bundle_name(namespace, low, high), None, None, "free", now)

    def delete(self, namespace: str) -> None:
        """Remove a namespace with all its bundles."""
        for name in [name for name in self._held if name.rpartition("/")[0] == namespace]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._release(name)
        self._moving.pop(name, None)
        self._unserved.pop(name, None)

    def _release(self, name: str) -> None:
        before = self._held.remove(name)
        for incarnation in () if before is None else {before.owner: None, before.source: None}:
            if incarnation is not None:
                named = self._of[incarnation]
                named.pop(name, None)
                if not named:
                    del self._of[incarnation]

    def declare_dead(self, dead: int, now: Since) -> Sequence[str]:
        """Remove a dead incarnation. Return the bundles that named it, sorted.

        The remaining party keeps the bundle: the source, which still serves, or the destination.
        """
        concerned = sorted(self._of.get(dead, ()))
        for name in concerned:
            before = self._held[name]
            is_owner = before.owner == dead
            left = before.source if is_owner else before.owner
            is_served = left is not None and (is_owner or before.releasing)
            is_moving = left is not None and not is_served
            self.put(
                name,
                Holding(
                    left,
                    None,
                    moving=now if is_moving else None,
                    unserved=None if is_served else now,
                ),
            )
        return concerned

    def split(self, parent: str, cuts: Sequence[int], owner: int | None) -> None:
        """Replace a parent by its children, all with its owner."""
        self._drop(parent)
        at = parse_bundle(parent)
        if at is None:
            return
        for low, high in pieces(at.low, at.high, cuts) or ():
            self.put(bundle_name(at.namespace, low, high), Holding(owner, None))

    def merge(self, left: str, right: str) -> None:
        """Replace two neighbours by their union, with the owner of the left one."""
        holding, first, second = self._held.get(left), parse_bundle(left), parse_bundle(right)
        self._drop(left)
        self._drop(right)
        if holding is not None and first is not None and second is not None:
            self.put(bundle_name(first.namespace, first.low, second.high), holding)

    def overdue(
        self,
        moving_max_ms: int,
        unserved_max_ms: int,
        now_ms: int,
        *,
        is_deleting: Callable[[str], bool],
        served_since_ms: Callable[[str], int | None],
    ) -> Mapping[str, int]:
        """Return some bundles with a clock that started before these awake times, with the offset
        of that start.

        Each is reported once. Free bundles of a namespace with `is_deleting` are never reported. A
        clock of free bundles starts again at `now_ms` while no broker that serves their namespace
        has been up for long enough.
        """
        if not (
            _has_before(self._moving, moving_max_ms) or _has_before(self._unserved, unserved_max_ms)
        ):
            return _NOTHING  # The usual case: this runs for each record.
        # Both are sorted by start, then by name.
        late = merge(_before(self._moving, moving_max_ms), _before(self._unserved, unserved_max_ms))
        found: dict[str, int] = {}
        for (offset, _), name in list(islice(late, OVERDUE_AT_ONCE_MAX)):
            holding, namespace = self._held[name], name.rpartition("/")[0]
            since_ms = served_since_ms(namespace)
            if holding.is_free and (since_ms is None or since_ms >= unserved_max_ms):
                self.put(name, holding._replace(unserved=(offset, now_ms)))
                continue
            if not (holding.is_reported or (holding.is_free and is_deleting(namespace))):
                found[name] = offset
            self.put(name, holding._replace(is_reported=True))
        return found


def _has_before(clocks: Mapping[str, Since], since_max_ms: int) -> bool:
    for _, awake_ms in clocks.values():
        return awake_ms < since_max_ms  # The first is the oldest.
    return False


def _before(clocks: Mapping[str, Since], since_max_ms: int) -> Iterable[tuple[Since, str]]:
    return takewhile(
        lambda clock: clock[0][1] < since_max_ms, ((since, name) for name, since in clocks.items())
    )


def _in_order(clocks: Mapping[str, Since]) -> dict[str, Since]:
    return dict(sorted(clocks.items(), key=lambda clock: (clock[1], clock[0])))
