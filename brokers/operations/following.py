"""Propose an operation through a running broker and wait on the channel for its end.

`brokers.agent.requested_moves` decides how an operation ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from equipoise.brokers.agent.intents import Intent, subject_of
from equipoise.brokers.agent.requested_moves import begun_by, made_by, refuse_in_vain, rejection
from equipoise.brokers.errors import Rejected
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import BundleChanged, BundleEntry
from equipoise.channel.core.errors import DeadlineExceeded, OutcomeUnknown, Overloaded
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Unreadable
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline

MOVES_MAX: Final = 1_024
"""Limit of concurrent waits. Each one checks every change of the view: about 15 ms for all of them."""

T = TypeVar("T")
_News = deque[Folded | Resync]


class Following:
    """The operations that callers request of one worker. Each call takes the deadline of its request.

    All calls raise:

    * `Rejected` if the channel refuses the record.
    * `DeadlineExceeded` if the operation had not ended in time. It may still end.
    * `Overloaded` if too many callers wait.
    * What `Worker.request` raises.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._waiting = 0

    async def move(self, intent: Intent, deadline: Deadline, what: str) -> tuple[BundleEntry, ...]:
        """Request a transfer, an unload or a split and wait for its end. Return the resulting bundles (see `requested_moves.made_by`).

        Raises `Cancelled` if it was accepted and then cancelled, and `OutcomeUnknown` if a truncation removed the records about its end.
        """
        with self._followed(intent) as news:
            offset = await self._request(intent, deadline, news)
            move = begun_by(await self._accepted(news, offset, deadline, what))
            while True:
                told = await self._next(news, deadline, what)
                if not isinstance(told, Folded):
                    raise self._unknown(told, move.bundle)
                made = made_by(move, told, self._worker.view)
                if made is not None:
                    return made

    async def settle(self, intent: Intent, deadline: Deadline) -> Folded:
        """Request a change that takes one record. Return the accepted record."""
        with self._followed(intent) as news:
            offset = await self._request(intent, deadline, news)
            return await self._accepted(news, offset, deadline, f"the change of {subject_of(intent)}")

    async def until(self, condition: Callable[[View], T | None], deadline: Deadline, what: str) -> T:
        """Return the first result of `condition` on the worker's view that is not None."""
        try:
            return await self._worker.until(condition, timeout_ms=deadline.remaining_ms(), what=what)
        except DeadlineExceeded:
            deadline.check(what)  # The message counts milliseconds from the start of the request, not from this wait.
            raise

    async def _accepted(self, news: _News, offset: int, deadline: Deadline, what: str) -> Folded:
        """Return the accepted record at `offset`, once this worker has read it."""
        while True:
            told = await self._next(news, deadline, what)
            if isinstance(told, Folded) and told.offset == offset:
                return told

    def _unknown(self, resync: Resync, bundle: str) -> OutcomeUnknown:
        problem = f"it was, and what came of it between offsets {resync.before} and {resync.offset} was truncated before it was read"
        return OutcomeUnknown(log=self._worker.config.log_url, subject=bundle, problem=problem)

    async def _request(self, intent: Intent, deadline: Deadline, news: _News) -> int:
        """Return the offset of the accepted record. A refusal is described from the record that was read (`rejection`)."""
        refuse_in_vain(self._worker.view, intent)
        try:
            return await self._worker.request(intent, timeout_ms=deadline.remaining_ms())
        except Rejected as error:
            refused = next((told for told in news if isinstance(told, Folded) and told.offset == error.offset), None)
            raise (error if refused is None else rejection(refused, self._worker.view)) from None

    @contextmanager
    def _followed(self, intent: Intent) -> Iterator[_News]:
        """Collect all records about the subject of `intent`, starting before the request so that none is missed.

        The list stays short: it leaves out rejected records of others. Raises `Overloaded` if too many moves are waited for.
        """
        if self._waiting >= MOVES_MAX:
            raise Overloaded(what=f"the row of moves at broker {self._worker.broker_id}", limit=MOVES_MAX)
        news: _News = deque()
        subject, broker = subject_of(intent), self._worker.broker_id

        def note(folded: Folded) -> None:
            is_ours = not isinstance(folded.record, Unreadable) and folded.record.key == subject and folded.record.publisher == broker
            if is_ours or any(isinstance(change, BundleChanged) and change.name == subject for change in folded.verdict.changes):
                news.append(folded)

        def resynced(resync: Resync) -> None:
            if any(isinstance(change, BundleChanged) and change.name == subject for change in resync.changes):
                news.append(resync)

        end = self._worker.listen(note, resynced=resynced)
        self._waiting += 1
        try:
            yield news
        finally:
            self._waiting -= 1
            end()

    async def _next(self, news: _News, deadline: Deadline, what: str) -> Folded | Resync:
        return await self.until(lambda _: news.popleft() if news else None, deadline, what)
