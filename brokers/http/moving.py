"""Run an operator's moves through a broker, and wait for their end.

`brokers.operations.following` follows each operation. `brokers.operations.moving` does the same for the command line, directly on the
channel.
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
    """The operations of one worker for operators. Each call takes the deadline of its request.

    All calls raise:

    * `Rejected` if the channel refuses the record.
    * `Cancelled` if the operation was accepted and then cancelled.
    * `DeadlineExceeded` if it had not ended in time. It may still end.
    * `Overloaded` if too many callers wait.
    * What `Worker.request` raises.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._following = Following(worker)

    async def transfer(self, bundle: str, destination: str, deadline: Deadline, *, force: bool = False) -> Outcome:
        """Transfer `bundle` to the broker `destination`, and wait for a settled owner. Return what became of the bundle.

        Raises `DestinationForbidden` if policies exclude the destination, unless `force` is set.
        """
        if not force:
            refuse_forbidden(self._worker.view, bundle, destination)
        wish = Transfer(bundle=bundle, destination=destination, reason=BY_OPERATOR)
        with self._outcomes([self._worker.view.bundles[bundle]]) as outcomes:
            await self._following.move(wish, deadline, f"the transfer of {bundle} to {destination}")
            await self._settled(outcomes, deadline)
        return outcomes.check(bundle, self._worker.view, destination=destination)

    async def unload(self, bundle: str, deadline: Deadline) -> Outcome:
        """Move `bundle` away from its owner, to another broker if one is allowed. Return what became of the bundle."""
        with self._outcomes([self._worker.view.bundles[bundle]]) as outcomes:
            made = await self._following.move(MoveAway(bundle=bundle, reason=BY_OPERATOR), deadline, f"the unload of {bundle}")
            await self._settled(outcomes, deadline)
        if made:
            return outcomes.check(bundle, self._worker.view, destination=None)
        return outcomes.of(bundle, self._worker.view)

    async def unload_all(self, bundles: Sequence[BundleEntry], deadline: Deadline) -> Sequence[Outcome]:
        """Unload the bundles that have an owner. Skip those that somebody else moves at the same moment.

        Return what became of each bundle that had an owner.
        """
        with self._outcomes([bundle for bundle in bundles if bundle.phase == "owned"]) as outcomes:
            for batch in unloads_of(bundles, kind=MoveAway):
                await self._unload_batch(batch, deadline)
            await self._settled(outcomes, deadline)
        return outcomes.all(self._worker.view)

    async def split(self, bundle: str, algorithm: str, positions: Sequence[int] | None, deadline: Deadline) -> None:
        """Have the owner of `bundle` split it, and wait for the children."""
        cuts = None if positions is None else tuple(positions)
        wish = SplitBundle(bundle=bundle, algorithm=algorithm, positions=cuts, reason=BY_OPERATOR)
        await self._following.move(wish, deadline, f"the split of {bundle}")

    async def merge(self, left: str, deadline: Deadline) -> None:
        """Merge `left` with its right neighbour. This takes one record."""
        await self._following.settle(MergeBundles(left=left, reason=BY_OPERATOR), deadline)

    async def create_namespace(self, name: str, boundaries: Sequence[int], policies: Document, deadline: Deadline) -> None:
        """Create a namespace with one bundle between each two adjacent `boundaries`. This takes one record."""
        await self._following.settle(CreateNamespace(name=name, boundaries=boundaries, policies=policies), deadline)

    async def set_policy(self, name: str, policy: str, value: Scalar | None, deadline: Deadline) -> None:
        """Set one policy of the namespace `name`, or remove it (None). This takes one record."""
        await self._following.settle(SetPolicy(name=name, policy=policy, value=value), deadline)

    async def set_cluster_policy(self, key: str, document: Document | None, deadline: Deadline) -> None:
        """Set the cluster policy `key`, or remove it (None). This takes one record.

        Raises `InvalidPolicy` and `PolicyLeavesNobody` as `brokers.balancing.policy_changes.check_policy_change` does.
        """
        await self._following.settle(SetClusterPolicy(policy=key, document=document), deadline)

    async def cancel(self, bundle: str, deadline: Deadline) -> None:
        """Cancel a transfer or a split of `bundle` that is not complete.

        This takes one record, after which the source owns the bundle again.
        """
        await self._following.settle(Cancel(bundle=bundle, reason=CANCELLED_BY_OPERATOR), deadline)

    async def cancel_all(self, bundles: Iterable[BundleEntry], deadline: Deadline) -> None:
        """Cancel those moves of these bundles that can be cancelled."""
        for batch in calls_off_of(bundles):
            await self._side_by_side(self._following.settle(cancel, deadline) for cancel in batch)

    async def set_settings(self, changes: Changes, changed_by: str, deadline: Deadline) -> Folded:
        """Change balancing settings. Return the record, which has their previous values."""
        return await self._following.settle(SetSettings(changes=changes, changed_by=changed_by), deadline)

    async def delete_namespace(self, name: str, deadline: Deadline) -> None:
        """Delete a namespace with all its bundles, in the steps of `next_of_deletion`."""
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
        """Follow bundles, starting before their unload, so that their outcomes are known."""
        outcomes = Outcomes(self._worker.view, bundles)
        end = self._worker.listen(outcomes.folded)
        try:
            yield outcomes
        finally:
            end()

    async def _settled(self, outcomes: Outcomes, deadline: Deadline) -> None:
        """Wait until the released bundles have a settled owner, for at most `PLACED_MS` and until the deadline."""
        timeout_ms = min(PLACED_MS, deadline.remaining_ms())
        with suppress(DeadlineExceeded):
            await self._worker.until(lambda view: outcomes.are_settled(view) or None, timeout_ms=timeout_ms, what="an owner for each")

    async def _unload_batch(self, unloads: Sequence[Intent], deadline: Deadline) -> None:
        """Request these unloads concurrently, and follow each to its end."""
        await self._side_by_side(self._following.move(unload, deadline, f"the unload of {subject_of(unload)}") for unload in unloads)

    async def _side_by_side(self, steps: Iterable[Awaitable[object]]) -> None:
        """Run all of these steps, and ignore those that somebody else has overtaken."""
        for outcome in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(outcome, BaseException):
                with unless_overtaken():
                    raise outcome
