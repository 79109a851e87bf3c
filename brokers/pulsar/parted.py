"""What bundles that were closed here left behind: for their next owners to fetch, and for this broker, if it is the next owner.

May live here: their table, bounded in bytes and in time. It holds the states of topics as they were, so that what waits in them is
not copied before somebody asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from equipoise.brokers.pulsar.topics.handover import size_of
from equipoise.brokers.pulsar.topics.topic import TopicState
from equipoise.brokers.runtime.service import Bundle

# What a bundle counts for beside what it left, which may be nothing.
_ROW_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Left:
    """What a bundle, held here under `token`, left as it was closed: the handover, if it had one to give, and all that it is about.

    `is_awaited`: the next owner cannot do without the states, because the handover does not say all.
    """

    bundle: Bundle
    token: int
    handover: bytes | None = None
    states: Mapping[str, TopicState] = field(default_factory=dict)
    is_awaited: bool = False

    @property
    def messages(self) -> int:
        """How many messages are in it that were not delivered."""
        return sum(entry.messages for state in self.states.values() for entry in state.entries)


@dataclass(slots=True)
class _Row:
    left: Left
    size_bytes: int
    is_fetched: bool = False

    @property
    def is_awaited(self) -> bool:
        return self.left.is_awaited and not self.is_fetched


class Parted:
    """What bundles left, by name of bundle. Each is kept for a while; of too many bytes go first those that were fetched, the oldest first.

    What goes although nobody has fetched it is told.
    """

    def __init__(self, *, bytes_max: int, kept_ms: int, on_lost: Callable[[Left], None]) -> None:
        """All together take at most `bytes_max`; each is forgotten `kept_ms` after its bundle was closed.

        `on_lost` is told of each that was awaited, and is forgotten before it was fetched.
        """
        self._bytes_max = bytes_max
        self._kept_ms = kept_ms
        self._on_lost = on_lost
        self._bytes = 0
        self._rows: dict[str, _Row] = {}
        self._fetches = asyncio.Event()

    @property
    def awaited(self) -> int:
        """How many bundles have left something that its next owner cannot do without, and has not fetched."""
        return sum(row.is_awaited for row in self._rows.values())

    def keep(self, left: Left) -> None:
        """Keep what the next owner of a bundle will ask for, in place of what an earlier ownership might have left."""
        self._pop(left.bundle.name)
        row = self._rows[left.bundle.name] = _Row(left, _ROW_BYTES + len(left.handover or b"") + size_of(left.states))
        self._bytes += row.size_bytes
        while self._bytes > self._bytes_max:
            self._lose(next((name for name, each in self._rows.items() if not each.is_awaited), next(iter(self._rows))))
        asyncio.get_running_loop().call_later(self._kept_ms / 1_000, self._expire, row)

    def get(self, bundle: str) -> Left | None:
        """What is to be fetched of a bundle, if anything is, and if it is still kept."""
        row = self._rows.get(bundle)
        return None if row is None or not row.left.is_awaited else row.left

    def fetched(self, left: Left) -> None:
        """The next owner has been given this; it is kept all the same, as long as there is room, since that may have been in vain."""
        row = self._rows.get(left.bundle.name)
        if row is not None and row.left is left:
            row.is_fetched = True
            self._fetches.set()

    async def next_fetch(self, *, timeout_ms: int) -> bool:
        """Wait until something more has been fetched; whether that was in time."""
        self._fetches.clear()
        try:
            await asyncio.wait_for(self._fetches.wait(), timeout_ms / 1_000)
        except TimeoutError:
            return False
        return True

    def belonging_to(self, bundle: str, handover: bytes) -> Mapping[str, TopicState] | None:
        """The states of a bundle, if they were left together with this handover; another owner's has nothing to do with them."""
        row = self._rows.get(bundle)
        return None if row is None or row.left.handover != handover else row.left.states

    def of_ownership(self, bundle: Bundle, token: int) -> Sequence[Left]:
        """What bundles left that make up `bundle` now; nothing if another broker may have held it since.

        A merge goes on under the greater of two tokens. So where one of them is that of `bundle`, both were held here until now.
        """
        left = self._over(bundle)
        return left if any(each.token == token for each in left) else ()

    def forget(self, bundle: Bundle) -> None:
        """Nobody will ask any more for what was left of these points."""
        for left in self._over(bundle):
            self._pop(left.bundle.name)

    def _over(self, bundle: Bundle) -> Sequence[Left]:
        """What was left by bundles that share points with this one."""
        return [
            left
            for left in (row.left for row in self._rows.values())
            if left.bundle.namespace == bundle.namespace and left.bundle.low < bundle.high and bundle.low < left.bundle.high
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
