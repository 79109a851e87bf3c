"""Moves as an operator asks a broker for them: proposed by it, and waited for until they have ended one way or another.

May live here: the steps of moves, splits, merges, creations, deletions and changes of policies on a worker; each is followed to
its end by `brokers.operations.following`. The same for the command line, straight on the channel, is in `brokers.operations`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from equipoise.brokers.agent.intents import (
    Cancel,
    CreateNamespace,
    DeleteNamespace,
    Intent,
    MergeBundles,
    MoveAway,
    SetClusterPolicy,
    SetPolicy,
    SetSettings,
    SplitBundle,
    StartDeletingNamespace,
    Transfer,
    subject_of,
)
from equipoise.brokers.agent.requested_moves import (
    BY_OPERATOR,
    CANCELLED_BY_OPERATOR,
    calls_off_of,
    next_of_deletion,
    refuse_forbidden,
    unless_overtaken,
    unloads_of,
)
from equipoise.brokers.balancing.settings.settings_records import Changes
from equipoise.brokers.operations.following import Following
from equipoise.brokers.operations.outcomes import PLACED_MS, Outcome, Outcomes
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import DeadlineExceeded
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Document, Scalar
from equipoise.channel.system.deadline import Deadline


class Moving:
    """What one worker does for operators. Each step takes the deadline of its request.

    All raise `Rejected` if the channel refuses, `Cancelled` if it accepted and nothing came of it, `DeadlineExceeded` if it
    had not ended in time (it may still), `Overloaded` if too many wait, and what `Worker.request` raises.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._following = Following(worker)

    async def transfer(self, bundle: str, destination: str, deadline: Deadline, *, force: bool = False) -> Outcome:
        """Move `bundle` to the broker `destination`, until that one owns it and keeps it; what became of the bundle.

        Raises `DestinationForbidden` if policies keep it from there, unless it is to be moved by `force`.
        """
        if not force:
            refuse_forbidden(self._worker.view, bundle, destination)
        wish = Transfer(bundle=bundle, destination=destination, reason=BY_OPERATOR)
        with self._outcomes([self._worker.view.bundles[bundle]]) as outcomes:
            await self._following.move(wish, deadline, f"the transfer of {bundle} to {destination}")
            await self._settled(outcomes, deadline)
        return outcomes.check(bundle, self._worker.view, destination=destination)

    async def unload(self, bundle: str, deadline: Deadline) -> Outcome:
        """Move `bundle` away from its owner, to another one if any may have it; what became of the bundle."""
        with self._outcomes([self._worker.view.bundles[bundle]]) as outcomes:
            made = await self._following.move(MoveAway(bundle=bundle, reason=BY_OPERATOR), deadline, f"the unload of {bundle}")
            await self._settled(outcomes, deadline)
        if made:
            return outcomes.check(bundle, self._worker.view, destination=None)
        return outcomes.of(bundle, self._worker.view)

    async def unload_all(self, bundles: Sequence[BundleEntry], deadline: Deadline) -> Sequence[Outcome]:
        """Unload these bundles as far as they are owned, but for those that somebody else moves at the same moment.

        Returns what became of each that was owned.
        """
        with self._outcomes([bundle for bundle in bundles if bundle.phase == "owned"]) as outcomes:
            for batch in unloads_of(bundles, kind=MoveAway):
                await self._unload_batch(batch, deadline)
            await self._settled(outcomes, deadline)
        return outcomes.all(self._worker.view)

    async def split(self, bundle: str, algorithm: str, positions: Sequence[int] | None, deadline: Deadline) -> None:
        """Have the owner of `bundle` cut it, until its children are there."""
        cuts = None if positions is None else tuple(positions)
        wish = SplitBundle(bundle=bundle, algorithm=algorithm, positions=cuts, reason=BY_OPERATOR)
        await self._following.move(wish, deadline, f"the split of {bundle}")

    async def merge(self, left: str, deadline: Deadline) -> None:
        """Make one bundle of `left` and its right neighbour: that is one record."""
        await self._following.settle(MergeBundles(left=left, reason=BY_OPERATOR), deadline)

    async def create_namespace(self, name: str, boundaries: Sequence[int], policies: Document, deadline: Deadline) -> None:
        """Create a namespace with bundles between each two of `boundaries`: that is one record."""
        await self._following.settle(CreateNamespace(name=name, boundaries=boundaries, policies=policies), deadline)

    async def set_policy(self, name: str, policy: str, value: Scalar | None, deadline: Deadline) -> None:
        """Set one of the policies of the namespace `name`, or take it away: that is one record, too."""
        await self._following.settle(SetPolicy(name=name, policy=policy, value=value), deadline)

    async def set_cluster_policy(self, key: str, document: Document | None, deadline: Deadline) -> None:
        """Set the cluster policy `key`, or take it away, by one record.

        Raises `InvalidPolicy` and `PolicyLeavesNobody` as `brokers.balancing.policy_changes.check_policy_change` does.
        """
        await self._following.settle(SetClusterPolicy(policy=key, document=document), deadline)

    async def cancel(self, bundle: str, deadline: Deadline) -> None:
        """End a transfer or a split of `bundle` that has not happened: by one record, after which who served it owns it."""
        await self._following.settle(Cancel(bundle=bundle, reason=CANCELLED_BY_OPERATOR), deadline)

    async def cancel_all(self, bundles: Iterable[BundleEntry], deadline: Deadline) -> None:
        """Cancel the moves of these bundles as far as they can be."""
        for batch in calls_off_of(bundles):
            await self._side_by_side(self._following.settle(cancel, deadline) for cancel in batch)

    async def set_settings(self, changes: Changes, changed_by: str, deadline: Deadline) -> Folded:
        """Change settings of balancing: one record, which says what they were."""
        return await self._following.settle(SetSettings(changes=changes, changed_by=changed_by), deadline)

    async def delete_namespace(self, name: str, deadline: Deadline) -> None:
        """Delete a namespace with all its bundles. `next_of_deletion` says in which steps."""
        while True:
            what = f"the release of all bundles of {name}"
            deadline.check(what)
            steps = await self._following.until(lambda view: next_of_deletion(view, name), deadline, what)
            match steps[0]:
                case DeleteNamespace() as deletion:
                    await self._following.settle(deletion, deadline)
                    return
                case StartDeletingNamespace() as start:
                    with unless_overtaken():
                        await self._following.settle(start, deadline)
                case _:
                    await self._unload_batch(steps, deadline)

    @contextmanager
    def _outcomes(self, bundles: Iterable[BundleEntry]) -> Iterator[Outcomes]:
        """What becomes of bundles, followed from before their unload on."""
        outcomes = Outcomes(self._worker.view, bundles)
        end = self._worker.listen(outcomes.folded)
        try:
            yield outcomes
        finally:
            end()

    async def _settled(self, outcomes: Outcomes, deadline: Deadline) -> None:
        """Wait until bundles that were released have an owner who keeps them, at most for `PLACED_MS` and until the deadline."""
        timeout_ms = min(PLACED_MS, deadline.remaining_ms())
        with suppress(DeadlineExceeded):
            await self._worker.until(lambda view: outcomes.are_settled(view) or None, timeout_ms=timeout_ms, what="an owner for each")

    async def _unload_batch(self, unloads: Sequence[Intent], deadline: Deadline) -> None:
        """Request these unloads side by side, and follow each to its end."""
        await self._side_by_side(self._following.move(unload, deadline, f"the unload of {subject_of(unload)}") for unload in unloads)

    async def _side_by_side(self, steps: Iterable[Awaitable[object]]) -> None:
        """Take all of these steps, but for those in which somebody else was quicker."""
        for outcome in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(outcome, BaseException):
                with unless_overtaken():
                    raise outcome
