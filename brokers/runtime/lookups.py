"""Answer lookups for every protocol, and hold those that cannot be answered yet.

* Pulsar's C++ and Python clients treat any HTTP error as final, and a refused client backs off for longer than a failover.
* Lookups of one bundle share one wait, so each change of the view is checked once per bundle. A burst after a death costs little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Final

from equipoise.brokers.runtime.metrics import LookupOutcome
from equipoise.brokers.runtime.router import Located, explained
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import DeadlineExceeded, NotFound, Overloaded
from equipoise.channel.system.deadline import Deadline

HELD_MAX: Final = 10_000
"""Lookups held, over all protocols. Each is a socket and some 10 KiB: 100 MB in all."""


class Lookups:
    """The lookups of one worker."""

    def __init__(self, worker: Worker) -> None:
        """`worker` answers the lookups and reports changes."""
        self._worker = worker
        self._held = 0
        self._waits: dict[str, asyncio.Task[object]] = {}

    @property
    def held(self) -> int:
        """The number of lookups that wait."""
        return self._held

    async def locate(self, namespace: str, point: int, *, started_ns: int) -> Located:
        """Return the bundle at `point` and its broker. Wait up to `lookup_ms` for one. Count the outcome.

        After a loss of the channel, only lookups of namespaces that serve on are answered, and marked. `started_ns` is the request's
        monotonic time. Raise `UnknownNamespace`, `PeerError` for a bundle in quarantine, `DeadlineExceeded` (`ChannelLost` if
        that is the cause), and `Overloaded` if too many wait.
        """
        outcome = LookupOutcome.REFUSED
        try:
            located = await self._at_once(namespace, point)
            if located is None:
                located = await self._hold(namespace, point)
                outcome = LookupOutcome.HELD
            else:
                outcome = LookupOutcome.ANSWERED
        except DeadlineExceeded as error:
            outcome = LookupOutcome.TIMED_OUT
            raise explained(error, self._worker.agent, self._worker.clock.now()) from None
        finally:
            self._worker.metrics.lookup(outcome, started_ns=started_ns)
        return located

    async def _at_once(self, namespace: str, point: int) -> Located | None:
        """Return the answer if it is known now, without a task or a timer."""
        try:
            return await self._worker.locate(namespace, point, timeout_ms=0)
        except DeadlineExceeded:
            return None

    async def _hold(self, namespace: str, point: int) -> Located:
        if self._held >= HELD_MAX:
            raise Overloaded(what=f"the queue of lookups at broker {self._worker.broker_id}", limit=HELD_MAX)
        deadline = Deadline.after(timeout_ms=self._worker.config.lookup_ms)
        self._held += 1
        earlier: Collection[asyncio.Task[object]] = tuple(self._waits.values())
        try:
            while True:
                if self._worker.agent.is_ready:
                    with suppress(DeadlineExceeded):
                        return await self._worker.locate(namespace, point, timeout_ms=0)
                wait = self._wait(namespace, point)
                try:
                    await deadline.wait(asyncio.shield(wait), what=wait.get_name())
                except DeadlineExceeded:
                    pass  # The shared wait may have begun earlier and end before this deadline.
                except NotFound:
                    if wait not in earlier:
                        raise
                    # The namespace may have been created since that wait began.
                deadline.check(wait.get_name())
        finally:
            self._held -= 1

    def _wait(self, namespace: str, point: int) -> asyncio.Task[object]:
        """Return the shared wait for the bundle at `point`, or for this broker to be ready, named after it.

        A namespace that is unknown during a loss of the channel has one shared wait. The bundle may be split meanwhile, so callers must
        look again.
        """
        worker, timeout_ms = self._worker, self._worker.config.lookup_ms
        if not worker.agent.is_ready:
            return self._shared(f"broker {worker.broker_id} becoming ready", lambda: worker.ready(timeout_ms=timeout_ms))
        bundle = worker.view.bundle_at(namespace, point)
        what = namespace if bundle is None else bundle.name
        return self._shared(f"an owner for {what}", lambda: worker.locate(namespace, point, timeout_ms=timeout_ms))

    def _shared(self, what: str, begin: Callable[[], Coroutine[None, None, object]]) -> asyncio.Task[object]:
        wait = self._waits.get(what)
        if wait is None or wait.done():
            wait = self._waits[what] = asyncio.get_running_loop().create_task(begin(), name=what)
            wait.add_done_callback(self._ended)
        return wait

    def _ended(self, wait: asyncio.Task[object]) -> None:
        if self._waits.get(wait.get_name()) is wait:
            del self._waits[wait.get_name()]
        if not wait.cancelled():
            wait.exception()  # Marked as retrieved: no caller may be left.
