"""Count the bytes that all connections of one broker keep in memory.

The server decides what happens above a bound.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)


class Pool(Generic[H]):
    """Bytes of one kind, by holder. It only counts; the caller enforces the bound."""

    __slots__ = ("_held", "bytes", "bytes_max")

    def __init__(self, *, bytes_max: int) -> None:
        """Start empty, with a bound of `bytes_max`."""
        self._held: dict[H, int] = {}
        self.bytes = 0
        self.bytes_max = bytes_max

    @property
    def is_exceeded(self) -> bool:
        """Whether the holders together exceed the bound."""
        return self.bytes > self.bytes_max

    @property
    def share_bytes(self) -> int:
        """An equal share of the bound for each current holder."""
        return self.bytes_max // max(len(self._held), 1)

    @property
    def oldest_above_share(self) -> H | None:
        """The longest holder of those above their share, or None. If the bound is exceeded there is always one."""
        share_bytes = self.share_bytes
        return next((holder for holder, bytes_ in self._held.items() if bytes_ > share_bytes), None)

    def would_exceed(self, bytes_: int) -> bool:
        """Return whether `bytes_` more would exceed the bound."""
        return self.bytes + bytes_ > self.bytes_max

    def held_by(self, holder: H) -> int:
        """Return the bytes of one holder."""
        return self._held.get(holder, 0)

    def hold(self, holder: H, bytes_: int) -> None:
        """Set the bytes of one holder."""
        self.bytes += bytes_ - self._held.get(holder, 0)
        if bytes_:
            self._held[holder] = bytes_
        else:
            self._held.pop(holder, None)
