"""Moves as an operator asks a broker for them: proposed by it, and waited for until they have ended one way or another.

May live here: the steps of moves, splits, merges and deletions on a worker. What a command line does straight on the channel
without a broker is in `brokers.admin`; the ends of moves are told alike in both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

from brokers.agent.intents import DeleteNamespace, Intent, MergeBundles, SplitBundle, StartDeletingNamespace, Transfer, Unload
from brokers.worker import Worker
from channel.deadline import Deadline
from channel.entries import BundleChanged, BundleEntry
from channel.errors import CalledOff, Overloaded, Rejected
from channel.lifecycle import Phase
from channel.reader import Folded
from channel.records import Reason
from channel.story import Names, describe
from channel.view import View

UNLOADS_AT_ONCE: Final = 64
"""Bundles of a namespace that are unloaded at a time: enough to keep the log's group commit busy, few enough that the
clients of all of them do not come back at once."""

MOVES_MAX: Final = 1_024
"""Moves that are waited for at a time: each looks at every change of the view, 15 ms for all of them."""

_REASON: Final = "asked for by an admin"
_MOVING: Final[frozenset[Phase]] = frozenset({"assigning", "transferring", "handing_over", "unloading", "splitting"})

# Somebody else was quicker: where the bundle is now is for the next look to tell.
_OVERTAKEN: Final = frozenset({Reason.STALE, Reason.ILLEGAL_TRANSITION, Reason.UNKNOWN_BUNDLE})


class Moving:
    """What one worker does for operators. Each step takes the deadline of its request.

    All raise `Rejected` if the channel refuses, `CalledOff` if it accepted and nothing came of it, `DeadlineExceeded` if it
    had not ended in time (it may still), and what `Worker.request` raises.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._waiting = 0

    async def transfer(self, bundle: str, destination: str, deadline: Deadline) -> None:
        """Move `bundle` to the broker `destination`, until that one owns it."""
        with self._followed(bundle) as news:
            offset = await self._request(Transfer(bundle=bundle, destination=destination, reason=_REASON), deadline)
            target = None
            while True:
                folded, now = await self._next(news, deadline, f"the transfer of {bundle} to {destination}")
                if folded.offset == offset and now is not None:
                    target = now.owner
                elif folded.offset > offset and (now is None or now.phase not in _MOVING):
                    if now is None or now.phase != "owned" or now.owner != target:
                        raise CalledOff(bundle=bundle, move="transfer", problem=self._told(folded))
                    return

    async def unload(self, bundle: str, deadline: Deadline) -> None:
        """Take `bundle` from its owner, until that one has let go of it."""
        with self._followed(bundle) as news:
            offset = await self._request(Unload(bundle=bundle, reason=_REASON), deadline)
            while True:
                folded, _ = await self._next(news, deadline, f"the release of {bundle}")
                if folded.offset > offset:
                    return

    async def unload_all(self, bundles: Sequence[str], deadline: Deadline) -> None:
        """Unload these bundles, some at a time, but for those that somebody else moves at the same moment."""
        waiting = iter(bundles)
        while batch := tuple(islice(waiting, UNLOADS_AT_ONCE)):
            unloads = (self._unload_unless_overtaken(bundle, deadline) for bundle in batch)
            outcomes = await asyncio.gather(*unloads, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def split(self, bundle: str, algorithm: str, positions: Sequence[int] | None, deadline: Deadline) -> None:
        """Have the owner of `bundle` cut it, until its children are there."""
        with self._followed(bundle) as news:
            wish = SplitBundle(
                bundle=bundle, algorithm=algorithm, positions=None if positions is None else tuple(positions), reason=_REASON
            )
            offset = await self._request(wish, deadline)
            while True:
                folded, now = await self._next(news, deadline, f"the split of {bundle}")
                if now is None:
                    return
                if folded.offset > offset:
                    raise CalledOff(bundle=bundle, move="split", problem=self._told(folded))

    async def merge(self, left: str, deadline: Deadline) -> None:
        """Make one bundle of `left` and its right neighbour: that is one record."""
        await self._request(MergeBundles(left=left, reason=_REASON), deadline)

    async def delete_namespace(self, name: str, deadline: Deadline) -> None:
        """Delete a namespace with all its bundles. What was begun before, here or elsewhere, is gone on with.

        1. Set it to deleting, so that nothing of it is assigned any more.
        2. Unload what is owned, and wait until all is free; what is on the move is waited for, and unloaded then.
        3. Delete it.
        """
        if self._worker.view.namespaces[name].status != "deleting":
            await self._request(StartDeletingNamespace(name=name), deadline)
        while True:
            what = f"the release of all bundles of {name}"
            deadline.check(what)
            owned = await self._worker.until(lambda view: owned_or_free(view, name), timeout_ms=deadline.remaining_ms(), what=what)
            if not owned:
                break
            await self.unload_all(owned, deadline)
        await self._request(DeleteNamespace(name=name), deadline)

    async def _unload_unless_overtaken(self, bundle: str, deadline: Deadline) -> None:
        try:
            await self.unload(bundle, deadline)
        except Rejected as error:
            if error.reason not in _OVERTAKEN:
                raise

    async def _request(self, intent: Intent, deadline: Deadline) -> int:
        return await self._worker.request(intent, timeout_ms=deadline.remaining_ms())

    @contextmanager
    def _followed(self, bundle: str) -> Iterator[_News]:
        """All changes of a bundle, from before something is asked of it on, so that none is missed.

        Raises `Overloaded` if too many moves are waited for.
        """
        if self._waiting >= MOVES_MAX:
            raise Overloaded(what=f"the row of moves at broker {self._worker.broker_id}", limit=MOVES_MAX)
        news: _News = deque()

        def note(folded: Folded) -> None:
            for change in folded.verdict.changes:
                if isinstance(change, BundleChanged) and change.name == bundle:
                    news.append((folded, change.after))

        end = self._worker.listen(note)
        self._waiting += 1
        try:
            yield news
        finally:
            self._waiting -= 1
            end()

    async def _next(self, news: _News, deadline: Deadline, what: str) -> tuple[Folded, BundleEntry | None]:
        return await self._worker.until(lambda _: news.popleft() if news else None, timeout_ms=deadline.remaining_ms(), what=what)

    def _told(self, folded: Folded) -> str:
        return describe(folded, self._worker.view, Names(self._worker.view))


_News = deque[tuple[Folded, BundleEntry | None]]


def owned_or_free(view: View, namespace: str) -> list[str] | None:
    """The bundles of a namespace that can be unloaded; none if all are free; None while the rest must be waited for."""
    bundles = view.bundles_of(namespace)
    owned = [bundle.name for bundle in bundles if bundle.phase == "owned"]
    return None if not owned and any(bundle.phase in _MOVING for bundle in bundles) else owned
