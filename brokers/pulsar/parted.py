"""What bundles that were closed here left behind: for their next owners to fetch, and for this broker, if it is the next owner.

May live here: their table, bounded in bytes and in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from brokers.service import Bundle

# What a bundle counts for beside what it left, which may be nothing.
_ROW_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Left:
    """What a bundle, held here under `token`, left as it was closed: handover and fetched state, if there was anything."""

    bundle: Bundle
    token: int
    handover: bytes | None = None
    fetched: bytes | None = None

    @property
    def size_bytes(self) -> int:
        """How much room it takes."""
        return _ROW_BYTES + len(self.handover or b"") + len(self.fetched or b"")


class Parted:
    """What bundles left, by name of bundle. Each is kept for a while, and of too many bytes the oldest are forgotten."""

    def __init__(self, *, bytes_max: int, kept_ms: int) -> None:
        """All together take at most `bytes_max`; each is forgotten `kept_ms` after its bundle was closed."""
        self._bytes_max = bytes_max
        self._kept_ms = kept_ms
        self._bytes = 0
        self._left: dict[str, Left] = {}

    def keep(self, left: Left) -> None:
        """Keep what the next owner of a bundle will ask for, in place of what an earlier tenure might have left."""
        self._forget(left.bundle.name)
        self._left[left.bundle.name] = left
        self._bytes += left.size_bytes
        while self._bytes > self._bytes_max:
            self._forget(next(iter(self._left)))
        asyncio.get_running_loop().call_later(self._kept_ms / 1_000, self._expire, left)

    def get(self, bundle: str) -> bytes | None:
        """What is to be fetched of a bundle, if it is still kept."""
        left = self._left.get(bundle)
        return None if left is None else left.fetched

    def belonging_to(self, bundle: str, handover: bytes) -> bytes | None:
        """As `get`, if it was left together with this handover; another owner's handover has nothing to do with it."""
        left = self._left.get(bundle)
        return None if left is None or left.handover != handover else left.fetched

    def of_tenure(self, bundle: Bundle, token: int) -> Sequence[Left]:
        """What bundles left that make up `bundle` now; nothing if another broker may have held it since.

        A merge goes on under the greater of two tokens. So where one of them is that of `bundle`, both were held here until now.
        """
        left = self._over(bundle)
        return left if any(each.token == token for each in left) else ()

    def forget(self, bundle: Bundle) -> None:
        """Nobody will ask any more for what was left of these points."""
        for left in self._over(bundle):
            self._forget(left.bundle.name)

    def _over(self, bundle: Bundle) -> Sequence[Left]:
        """What was left by bundles that share points with this one."""
        return [
            each
            for each in self._left.values()
            if each.bundle.namespace == bundle.namespace and each.bundle.low < bundle.high and bundle.low < each.bundle.high
        ]

    def _forget(self, bundle: str) -> None:
        left = self._left.pop(bundle, None)
        self._bytes -= 0 if left is None else left.size_bytes

    def _expire(self, left: Left) -> None:
        if self._left.get(left.bundle.name) is left:
            self._forget(left.bundle.name)
