"""Follow a channel live in an asyncio loop: tail a `Log` into a `View` and notify listeners.

For hosts that only read (clients, the demo). A broker's agent has its own `Reader`; programs
without a loop use `blocking_view`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.log import Entry, Log
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.table import resync_between
from equipoise.channel.core.view import View
from equipoise.channel.log.listeners import Listeners
from equipoise.channel.log.subscription import FROM_NOTHING, Subscription
from equipoise.channel.system.clocks import Deadline

STOP_MS_MAX: Final = 5_000
"""How long leaving the context waits for the thread, which may be in a read (1 s) of a hanging
log."""


class TableView:
    """A live view of the channel from `start` to `stop`, or as an async context. Call everything on
    the loop.

    Read `view` freely between two awaits, but do not keep it: a resync replaces it.
    `view.bundle_at` is the lookup. While a listener is called, the view stands just after the
    record or the resync.
    """

    def __init__(self, open_handle: Callable[[], Log], *, name: str) -> None:
        """Follow the log that `open_handle` opens, from its snapshot or beginning. `name` is its
        URL.
        """
        self.name = name
        self._reader = Reader(log=name)
        # Its thread opens the handle, so that a log that does not exist yet is an ordinary outage.
        self._subscription = Subscription(
            open_handle,
            name=name,
            position=FROM_NOTHING,
            deliver=self._deliver,
            caught_up=self._caught_up,
            resynced=self._resynced,
            failed=self._failed,
        )
        self._has_begun = False
        self._is_ready = False
        self._settled = asyncio.Event()  # Set when the view is ready, or never will be.
        self._listeners = Listeners(name, {"log": name})
        self.listen = self._listeners.listen

    @property
    def view(self) -> View:
        """The folded channel, as far as it has been read."""
        return self._reader.view

    @property
    def failure(self) -> EquipoiseError | None:
        """What ended the subscription for good: see `Subscription`, and what `Reader.feed`
        raises.
        """
        return self._subscription.failure

    def start(self) -> None:
        """Start to follow."""
        self._subscription.start()

    async def stop(self, deadline: Deadline) -> None:
        """Stop to follow and release the log. Pending waits run into their deadlines. Raises
        `DeadlineExceeded` if the log hangs.
        """
        await self._subscription.stop(deadline)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop(Deadline.after(timeout_ms=STOP_MS_MAX))

    async def ready(self, deadline: Deadline) -> None:
        """Wait until everything has been folded that was on the log at the start.

        Raises `DeadlineExceeded`, or at once what ended the subscription (`failure`).
        """
        await deadline.wait(self._settled.wait(), what=f"reading {self.name} to its end")
        if not self._is_ready:
            assert self.failure is not None, "only a failure settles a view that is not ready"
            raise self.failure

    # --- calls from the thread ---

    def _deliver(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._listeners.folded(self._reader.feed(entry))

    def _resynced(self, reader: Reader) -> None:
        """Replace the view after a resync. The first one starts the view and skips nothing."""
        before, self._reader = self._reader.view, reader
        if not self._has_begun:
            self._has_begun = True
            return
        self._listeners.resynced(resync_between(before, reader.view))

    def _caught_up(self, _end: int) -> None:
        self._is_ready = True
        self._settled.set()

    def _failed(self, _error: EquipoiseError) -> None:
        self._settled.set()
