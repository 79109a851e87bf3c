"""Moves as an operator asks a broker for them: proposed by it, and waited for until they have ended one way or another.

May live here: the steps of moves, splits, merges, creations and deletions on a worker. What has ended how, and in which words
that is told, is decided in `brokers.requested_moves`, for `brokers.admin` and its command line as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from brokers.agent.intents import (
    CreateNamespace,
    DeleteNamespace,
    Intent,
    MergeBundles,
    MoveAway,
    SetPolicy,
    SplitBundle,
    StartDeletingNamespace,
    Transfer,
    subject_of,
)
from brokers.errors import Rejected
from brokers.requested_moves import (
    BY_OPERATOR,
    begun_by,
    made_by,
    next_of_deletion,
    refuse_in_vain,
    rejection,
    unless_overtaken,
    unloads_of,
)
from brokers.worker import Worker
from channel.deadline import Deadline
from channel.difference import Jump
from channel.entries import BundleChanged, BundleEntry
from channel.errors import DeadlineExceeded, OutcomeUnknown, Overloaded
from channel.reader import Folded
from channel.records import Document, Scalar, Unreadable
from channel.view import View

MOVES_MAX: Final = 1_024
"""Moves that are waited for at a time: each looks at every change of the view, 15 ms for all of them."""

T = TypeVar("T")
_News = deque[Folded | Jump]


class Moving:
    """What one worker does for operators. Each step takes the deadline of its request.

    All raise `Rejected` if the channel refuses, `CalledOff` if it accepted and nothing came of it, `DeadlineExceeded` if it
    had not ended in time (it may still), `Overloaded` if too many wait, and what `Worker.request` raises.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._waiting = 0

    async def transfer(self, bundle: str, destination: str, deadline: Deadline) -> None:
        """Move `bundle` to the broker `destination`, until that one owns it."""
        wish = Transfer(bundle=bundle, destination=destination, reason=BY_OPERATOR)
        await self._move(wish, deadline, f"the transfer of {bundle} to {destination}")

    async def unload(self, bundle: str, deadline: Deadline) -> None:
        """Move `bundle` away from its owner, until another owns it; where there is no other, until it has been let go of."""
        await self._move(MoveAway(bundle=bundle, reason=BY_OPERATOR), deadline, f"the unload of {bundle}")

    async def unload_all(self, bundles: Iterable[BundleEntry], deadline: Deadline) -> None:
        """Unload these bundles as far as they are owned, but for those that somebody else moves at the same moment."""
        for batch in unloads_of(bundles, kind=MoveAway):
            await self._unload_batch(batch, deadline)

    async def split(self, bundle: str, algorithm: str, positions: Sequence[int] | None, deadline: Deadline) -> None:
        """Have the owner of `bundle` cut it, until its children are there."""
        cuts = None if positions is None else tuple(positions)
        wish = SplitBundle(bundle=bundle, algorithm=algorithm, positions=cuts, reason=BY_OPERATOR)
        await self._move(wish, deadline, f"the split of {bundle}")

    async def merge(self, left: str, deadline: Deadline) -> None:
        """Make one bundle of `left` and its right neighbour: that is one record."""
        await self._settle(MergeBundles(left=left, reason=BY_OPERATOR), deadline)

    async def create_namespace(self, name: str, boundaries: Sequence[int], policies: Document, deadline: Deadline) -> None:
        """Create a namespace with bundles between each two of `boundaries`: that is one record."""
        await self._settle(CreateNamespace(name=name, boundaries=boundaries, policies=policies), deadline)

    async def set_policy(self, name: str, policy: str, value: Scalar, deadline: Deadline) -> None:
        """Set one of the policies of the namespace `name`: that is one record, too."""
        await self._settle(SetPolicy(name=name, policy=policy, value=value), deadline)

    async def delete_namespace(self, name: str, deadline: Deadline) -> None:
        """Delete a namespace with all its bundles. `next_of_deletion` says in which steps."""
        while True:
            what = f"the release of all bundles of {name}"
            deadline.check(what)
            steps = await self._until(lambda view: next_of_deletion(view, name), deadline, what)
            match steps[0]:
                case DeleteNamespace() as deletion:
                    return await self._settle(deletion, deadline)
                case StartDeletingNamespace() as start:
                    with unless_overtaken():
                        await self._settle(start, deadline)
                case _:
                    await self._unload_batch(steps, deadline)

    async def _unload_batch(self, unloads: Sequence[Intent], deadline: Deadline) -> None:
        """Request these unloads side by side, and follow each to its end."""
        ends = (self._unload_unless_overtaken(unload, deadline) for unload in unloads)
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _unload_unless_overtaken(self, unload: Intent, deadline: Deadline) -> None:
        with unless_overtaken():
            await self._move(unload, deadline, f"the unload of {subject_of(unload)}")

    async def _move(self, intent: Intent, deadline: Deadline, what: str) -> None:
        """Request a move, and follow it to its end."""
        with self._followed(intent) as news:
            offset = await self._request(intent, deadline, news)
            accepted = await self._next(news, deadline, what)
            while not isinstance(accepted, Folded) or accepted.offset != offset:
                accepted = await self._next(news, deadline, what)
            move = begun_by(accepted)
            while True:
                told = await self._next(news, deadline, what)
                if not isinstance(told, Folded):
                    raise self._unknown(told, move.bundle)
                if made_by(move, told, self._worker.view) is not None:
                    return

    def _unknown(self, jump: Jump, bundle: str) -> OutcomeUnknown:
        problem = f"it was, and what came of it between offsets {jump.before} and {jump.offset} was truncated before it was read"
        return OutcomeUnknown(log=self._worker.config.log_url, subject=bundle, problem=problem)

    async def _settle(self, intent: Intent, deadline: Deadline) -> None:
        """Request what is done with one record."""
        with self._followed(intent) as news:
            await self._request(intent, deadline, news)

    async def _request(self, intent: Intent, deadline: Deadline, news: _News) -> int:
        """The offset of the record that was accepted; a refusal is told in the words of its story."""
        refuse_in_vain(self._worker.view, intent)
        try:
            return await self._worker.request(intent, timeout_ms=deadline.remaining_ms())
        except Rejected as error:
            refused = next((told for told in news if isinstance(told, Folded) and told.offset == error.offset), None)
            raise (error if refused is None else rejection(refused, self._worker.view)) from None

    @contextmanager
    def _followed(self, intent: Intent) -> Iterator[_News]:
        """All records about what `intent` wants to change, from before it is requested on, so that none is missed unheard.

        They are few: those of others that were rejected are left out, and what is about one bundle has to wait for it.

        Raises `Overloaded` if too many moves are waited for.
        """
        if self._waiting >= MOVES_MAX:
            raise Overloaded(what=f"the row of moves at broker {self._worker.broker_id}", limit=MOVES_MAX)
        news: _News = deque()
        subject, broker = subject_of(intent), self._worker.broker_id

        def note(folded: Folded) -> None:
            is_ours = not isinstance(folded.record, Unreadable) and folded.record.key == subject and folded.record.publisher == broker
            if is_ours or any(isinstance(change, BundleChanged) and change.name == subject for change in folded.verdict.changes):
                news.append(folded)

        def jumped(jump: Jump) -> None:
            if any(isinstance(change, BundleChanged) and change.name == subject for change in jump.changes):
                news.append(jump)

        end = self._worker.listen(note, jumped=jumped)
        self._waiting += 1
        try:
            yield news
        finally:
            self._waiting -= 1
            end()

    async def _next(self, news: _News, deadline: Deadline, what: str) -> Folded | Jump:
        return await self._until(lambda _: news.popleft() if news else None, deadline, what)

    async def _until(self, condition: Callable[[View], T | None], deadline: Deadline, what: str) -> T:
        try:
            return await self._worker.until(condition, timeout_ms=deadline.remaining_ms(), what=what)
        except DeadlineExceeded:
            deadline.check(what)  # In milliseconds of the whole request, not of what was left of it.
            raise
