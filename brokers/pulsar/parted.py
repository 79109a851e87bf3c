"""What the next owner of a bundle may still fetch here: the states of bundles that were closed.

May live here: their table, bounded in bytes and in time.
"""

from __future__ import annotations

import asyncio


class Parted:
    """States by name of bundle. Each is kept for a while, and of too many bytes the oldest are forgotten."""

    def __init__(self, *, bytes_max: int, kept_ms: int) -> None:
        """All states together take at most `bytes_max`; each is forgotten `kept_ms` after its bundle was closed."""
        self._bytes_max = bytes_max
        self._kept_ms = kept_ms
        self._bytes = 0
        self._states: dict[str, bytes] = {}

    def keep(self, bundle: str, state: bytes) -> None:
        """Keep what the next owner of `bundle` will ask for, in place of what an earlier one might have."""
        self.forget(bundle)
        self._states[bundle] = state
        self._bytes += len(state)
        while self._bytes > self._bytes_max:
            self.forget(next(iter(self._states)))
        asyncio.get_running_loop().call_later(self._kept_ms / 1_000, self._expire, bundle, state)

    def get(self, bundle: str) -> bytes | None:
        """The state of a bundle, if it is still kept."""
        return self._states.get(bundle)

    def forget(self, bundle: str) -> None:
        """Nobody will ask for it any more."""
        self._bytes -= len(self._states.pop(bundle, b""))

    def _expire(self, bundle: str, state: bytes) -> None:
        if self._states.get(bundle) is state:
            self.forget(bundle)
