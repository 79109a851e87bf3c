"""What the connections of one broker keep in its memory, counted together.

May live here: the count of one kind of bytes, and who has most to do with it. What is done beyond a bound is the server's business.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)


class Pool(Generic[H]):
    """Bytes of one kind, by holder. It only counts: who holds more than there is room for must be made to let go."""

    __slots__ = ("_held", "bytes", "bytes_max")

    def __init__(self, *, bytes_max: int) -> None:
        """Nobody holds anything; there is room for `bytes_max`."""
        self._held: dict[H, int] = {}
        self.bytes = 0
        self.bytes_max = bytes_max

    @property
    def is_exceeded(self) -> bool:
        """Whether more is held than there is room for."""
        return self.bytes > self.bytes_max

    @property
    def share_bytes(self) -> int:
        """What each of those who hold something could have, if all had the same."""
        return self.bytes_max // max(len(self._held), 1)

    @property
    def oldest_above_share(self) -> H | None:
        """Who has held something for longest of those who hold more than their share; there is one where too much is held."""
        share_bytes = self.share_bytes
        return next((holder for holder, bytes_ in self._held.items() if bytes_ > share_bytes), None)

    def would_exceed(self, bytes_: int) -> bool:
        """Whether so much more is more than there is room for."""
        return self.bytes + bytes_ > self.bytes_max

    def held_by(self, holder: H) -> int:
        """What one of them holds."""
        return self._held.get(holder, 0)

    def hold(self, holder: H, bytes_: int) -> None:
        """From now on this one holds so much."""
        self.bytes += bytes_ - self._held.get(holder, 0)
        if bytes_:
            self._held[holder] = bytes_
        else:
            self._held.pop(holder, None)
