"""Answer lookups for every protocol, and hold those that cannot be answered yet.

Pulsar's C++ and Python clients treat any HTTP error as final, and a refused client backs off for
longer than a failover.
"""

from __future__ import annotations

from equipoise.brokers.runtime.metrics import LookupOutcome
from equipoise.brokers.runtime.router import Located
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import DeadlineExceeded


class Lookups:
    """The lookups of one worker."""

    def __init__(self, worker: Worker) -> None:
        """`worker` answers the lookups and reports changes."""
        self._worker = worker
        self._held = 0

    @property
    def held(self) -> int:
        """The number of lookups that wait."""
        return self._held

    async def locate(self, namespace: str, point: int, *, started_ns: int) -> Located:
        """Return the bundle at `point` and its broker. Wait up to `lookup_ms` for one. Count the
        outcome.

        After a loss of the channel, only lookups of namespaces that serve on are answered, and
        marked. `started_ns` is the request's monotonic time. Raise `UnknownNamespace`, `PeerError`
        for a bundle in quarantine, `DeadlineExceeded` (`ChannelLost` if that is the cause), and
        `Overloaded` if too many wait.
        """
        outcome = LookupOutcome.REFUSED
        try:
            located = await self._at_once(namespace, point)
            if located is None:
                located = await self._hold(namespace, point)
                outcome = LookupOutcome.HELD
            else:
                outcome = LookupOutcome.ANSWERED
        except DeadlineExceeded:
            outcome = LookupOutcome.TIMED_OUT
            raise
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
        self._held += 1
        try:
            return await self._worker.locate(
                namespace, point, timeout_ms=self._worker.config.lookup_ms
            )
        finally:
            self._held -= 1
