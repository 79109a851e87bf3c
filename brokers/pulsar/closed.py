"""Keep the states of bundles that were closed here until their next owner, possibly this broker,
fetches them.

The table is bounded in bytes and time. It keeps states uncopied until they are fetched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from equipoise.brokers.pulsar.topics.handover import size_of
from equipoise.brokers.pulsar.topics.topic import TopicState
from equipoise.brokers.runtime.service import Bundle

# The cost of a bundle on top of its states.
_ROW_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Left:
    """What a bundle that was owned here under `token` left when it closed: its handover, if any,
    and its topic states.

    `is_awaited`: the handover is incomplete, so the next owner must fetch the states.
    """

    bundle: Bundle
    token: int
    handover: bytes | None = None
    states: Mapping[str, TopicState] = field(default_factory=dict)
    is_awaited: bool = False

    @property
    def messages(self) -> int:
        """The number of undelivered messages in it."""
        return sum(entry.messages for state in self.states.values() for entry in state.entries)


@dataclass(slots=True)
class _Row:
    left: Left
    size_bytes: int
    is_fetched: bool = False

    @property
    def is_awaited(self) -> bool:
        return self.left.is_awaited and not self.is_fetched


class ClosedBundles:
    """What closed bundles left, by bundle name. When bytes run out, fetched states are dropped
    first, the oldest first.
    """

    def __init__(self, *, bytes_max: int, kept_ms: int, on_lost: Callable[[Left], None]) -> None:
        """Keep at most `bytes_max` in total, each state for at most `kept_ms`.

        `on_lost` is called for each awaited state that is dropped before it was fetched.
        """
        self._bytes_max = bytes_max
        self._kept_ms = kept_ms
        self._on_lost = on_lost
        self._bytes = 0
        self._rows: dict[str, _Row] = {}
        self._fetches = asyncio.Event()

    @property
    def awaited(self) -> int:
        """The number of bundles whose next owner still must fetch their states."""
        return sum(row.is_awaited for row in self._rows.values())

    def keep(self, left: Left) -> None:
        """Keep what a bundle left, in place of what an earlier ownership left."""
        self._pop(left.bundle.name)
        row = self._rows[left.bundle.name] = _Row(
            left, _ROW_BYTES + len(left.handover or b"") + size_of(left.states)
        )
        self._bytes += row.size_bytes
        while self._bytes > self._bytes_max:
            self._lose(
                next(
                    (name for name, each in self._rows.items() if not each.is_awaited),
                    next(iter(self._rows)),
                )
            )
        asyncio.get_running_loop().call_later(self._kept_ms / 1_000, self._expire, row)

    def get(self, bundle: str) -> Left | None:
        """Return what the next owner of a bundle must fetch, or None."""
        row = self._rows.get(bundle)
        return None if row is None or not row.left.is_awaited else row.left

    def fetched(self, left: Left) -> None:
        """Note that the next owner has fetched this. Keep it while there is room, because the owner
        may fail and fetch again.
        """
        row = self._rows.get(left.bundle.name)
        if row is not None and row.left is left:
            row.is_fetched = True
            self._fetches.set()

    async def next_fetch(self, *, timeout_ms: int) -> bool:
        """Wait for the next fetch. Return False on timeout."""
        self._fetches.clear()
        try:
            await asyncio.wait_for(self._fetches.wait(), timeout_ms / 1_000)
        except TimeoutError:
            return False
        return True

    def belonging_to(self, bundle: str, handover: bytes) -> Mapping[str, TopicState] | None:
        """Return the states of a bundle if they were left with exactly this handover, or None."""
        row = self._rows.get(bundle)
        return None if row is None or row.left.handover != handover else row.left.states

    def of_ownership(self, bundle: Bundle, token: int) -> Sequence[Left]:
        """Return what the bundles that now make up `bundle` left, or nothing if another broker may
        have owned it since.

        A merge continues with the greater of two tokens. If one of them is that of `bundle`, both
        were owned here until now.
        """
        left = self._over(bundle)
        return left if any(each.token == token for each in left) else ()

    def forget(self, bundle: Bundle) -> None:
        """Drop what was left of these points."""
        for left in self._over(bundle):
            self._pop(left.bundle.name)

    def _over(self, bundle: Bundle) -> Sequence[Left]:
        """Return what bundles left that overlap this one."""
        return [
            left
            for left in (row.left for row in self._rows.values())
            if left.bundle.namespace == bundle.namespace
            and left.bundle.low < bundle.high
            and bundle.low < left.bundle.high
        ]

    def _pop(self, bundle: str) -> _Row | None:
        row = self._rows.pop(bundle, None)
        self._bytes -= 0 if row is None else row.size_bytes
        return row

    def _lose(self, bundle: str) -> None:
        row = self._pop(bundle)
        if row is not None and row.is_awaited:
            self._on_lost(row.left)

    def _expire(self, row: _Row) -> None:
        if self._rows.get(row.left.bundle.name) is row:
            self._lose(row.left.bundle.name)
