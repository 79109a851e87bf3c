"""Notify all followers of a namespace's assignment, with one listener for all.

A follower keeps the names of changed bundles, not the changes. A slow follower thus gets the newest state of each bundle late, and uses no
more memory than its namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from equipoise.brokers.runtime.callers import Listen
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import BundleChanged, NamespaceChanged
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View

FOLLOWERS_MAX: Final = 10_000
"""Limit of concurrent long polls and streams. Each is a socket and about 20 KiB, so 200 MB in all."""


class Follower:
    """A follower of a namespace. `changed` holds the names of its bundles that changed and were not taken yet."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._changed: dict[str, None] = {}

    def touch(self, bundle: str | None) -> None:
        """Note that a bundle changed, or the namespace itself (None)."""
        if bundle is not None:
            self._changed[bundle] = None
        self._woken.set()

    def take(self) -> list[str]:
        """Return the names of the bundles that changed since the last call."""
        changed = list(self._changed)
        self._changed.clear()
        self._woken.clear()
        return changed

    async def wait(self, *, timeout_ms: int) -> bool:
        """Wait until something changed, for at most `timeout_ms`. Return whether something did."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True


class AssignmentFeed:
    """Knows the offset at which each namespace last changed, and wakes its followers. `is_closed` means that followers must end."""

    def __init__(self, listen: Listen, *, broker: str) -> None:
        """`listen` is the worker's. `broker` is its id, for messages."""
        self._broker = broker
        self._offsets: dict[str, int] = {}
        self._followers: dict[str, dict[Follower, None]] = {}
        self._count = 0
        self._end = listen(self._folded, resynced=self._resynced)
        self.is_closed = False

    def offset_of(self, view: View, namespace: str) -> int:
        """Return the offset at which a namespace of `view`, or one of its bundles, last changed."""
        offset = self._offsets.get(namespace)
        if offset is None:
            lasts = (view.namespaces[namespace].last, *(bundle.last for bundle in view.bundles_of(namespace)))
            offset = self._offsets[namespace] = max(lasts)
        return offset

    @contextmanager
    def follower(self, namespace: str) -> Iterator[Follower]:
        """Follow a namespace. Raises `Overloaded` if there are too many followers."""
        if self._count >= FOLLOWERS_MAX:
            raise Overloaded(what=f"the list of assignment followers at broker {self._broker}", limit=FOLLOWERS_MAX)
        follower = Follower()
        self._count += 1
        followers = self._followers.setdefault(namespace, {})
        followers[follower] = None
        try:
            yield follower
        finally:
            self._count -= 1
            del followers[follower]
            if not followers:
                self._followers.pop(namespace, None)

    def close(self) -> None:
        """Stop listening, and wake all followers."""
        self.is_closed = True
        self._end()
        for followers in self._followers.values():
            for follower in followers:
                follower.touch(None)

    def _folded(self, folded: Folded) -> None:
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged):
                entry = change.after or change.before
                assert entry is not None, "a change has a side"
                self._touch(entry.namespace, folded.offset, change.name)
            elif isinstance(change, NamespaceChanged):
                self._touch(change.name, folded.offset, None)
                if change.after is None:
                    del self._offsets[change.name]

    def _resynced(self, resync: Resync) -> None:
        """Wake the followers after a resync, so that they take the newest state. Offsets are looked up again."""
        self._offsets.clear()
        for change in resync.changes:
            if isinstance(change, BundleChanged):
                entry = change.after or change.before
                assert entry is not None, "a change has a side"
                self._wake(entry.namespace, change.name)
            elif isinstance(change, NamespaceChanged):
                self._wake(change.name, None)

    def _touch(self, namespace: str, offset: int, bundle: str | None) -> None:
        self._offsets[namespace] = offset
        self._wake(namespace, bundle)

    def _wake(self, namespace: str, bundle: str | None) -> None:
        for follower in self._followers.get(namespace, ()):
            follower.touch(bundle)
