"""Which incarnation is named by which bundles, and which of these are on their way: what a death concerns, and what is stuck.

May live here: the class `Holdings`, told by accepted records alone. It knows no phases: a bundle that names nobody is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from spark_jobs.rules.ranges import bundle_name, parse_bundle, pieces

TOLD_AT_ONCE_MAX: Final = 16
"""Overdue bundles told with one record, because each of its facts carries all their names; the others come with the next."""


class Holding(NamedTuple):
    """Whom a bundle names, and since when (awake time) it is on its way: None once it is owned, or was told to be overdue.

    `releasing` is true once the source was told to close it: if that one dies, the destination need not be asked again.
    """

    owner: int | None
    source: int | None
    since_ms: int | None
    releasing: bool = False


class Holdings:
    """The bundles that name somebody."""

    def __init__(self) -> None:
        self._held: dict[str, Holding] = {}
        # Dicts without values keep an order: by incarnation that of holding, and of what is on its way that of setting out.
        self._of: dict[int, dict[str, None]] = {}
        self._moving: dict[str, int] = {}
        self._changed: dict[str, None] = {}
        self._told: list[str] = []

    def get(self, name: str) -> Holding | None:
        """Whom a bundle names; None if it names nobody."""
        return self._held.get(name)

    def names(self) -> Iterable[str]:
        """All bundles that name somebody."""
        return self._held

    def changed(self) -> list[str]:
        """The bundles that changed since this was last asked."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def hold(self, name: str, holding: Holding) -> None:
        """Let a bundle name these from now on."""
        self._drop(name)
        holders = [incarnation for incarnation in (holding.owner, holding.source) if incarnation is not None]
        if not holders:
            return
        self._held[name] = holding
        for incarnation in holders:
            self._of.setdefault(incarnation, {})[name] = None
        if holding.since_ms is not None:
            self._moving[name] = holding.since_ms

    def _drop(self, name: str) -> None:
        self._changed[name] = None
        before = self._held.pop(name, None)
        self._moving.pop(name, None)
        for incarnation in () if before is None else {before.owner: None, before.source: None}:
            if incarnation is not None:
                named = self._of[incarnation]
                named.pop(name, None)
                if not named:
                    del self._of[incarnation]

    def bury(self, dead: int, awake_ms: int) -> Sequence[str]:
        """Strike out a dead incarnation; the bundles that named it, in order of their names.

        Who is left of two keeps the bundle: the source, which still serves, or a destination.
        """
        concerned = sorted(self._of.get(dead, ()))
        for name in concerned:
            before = self._held[name]
            is_owner = before.owner == dead
            is_moving = not is_owner and not before.releasing
            self.hold(name, Holding(before.source if is_owner else before.owner, None, awake_ms if is_moving else None))
        return concerned

    def split(self, parent: str, cuts: Sequence[int], owner: int | None) -> None:
        """Put the children in place of their parent, all with its owner."""
        self._drop(parent)
        at = parse_bundle(parent)
        if at is None:
            return
        for low, high in pieces(at.low, at.high, cuts) or ():
            self.hold(bundle_name(at.namespace, low, high), Holding(owner, None, None))

    def merge(self, left: str, right: str) -> None:
        """Put the union in place of two neighbours, with the owner of the left one."""
        holding, first, second = self._held.get(left), parse_bundle(left), parse_bundle(right)
        self._drop(left)
        self._drop(right)
        if holding is not None and first is not None and second is not None:
            self.hold(bundle_name(first.namespace, first.low, second.high), holding)

    def overdue(self, since_max_ms: int) -> list[str]:
        """Some of the bundles that have been on their way since before `since_max_ms`: each of them is told once."""
        found: list[tuple[int, str]] = []
        for name, since_ms in self._moving.items():
            if since_ms >= since_max_ms:
                break
            found.append((since_ms, name))
        # Sorted, because a membership that was restored knows no other order among those that set out at one time.
        overdue = [name for _, name in sorted(found)[:TOLD_AT_ONCE_MAX]]
        for name in overdue:
            del self._moving[name]
            self._held[name] = self._held[name]._replace(since_ms=None)
            self._changed[name] = None
        self._told = overdue
        return sorted(overdue)

    def take_told(self) -> Sequence[str]:
        """The bundles that `overdue` told last, once, in order of their names."""
        told, self._told = self._told, []
        return sorted(told)
