"""Run an operator's moves directly on the channel and wait for their end.

Each function takes an `Access` and raises:

* `Rejected` if the channel refuses the record.
* `Cancelled` if the operation was accepted and then cancelled.
* `DeadlineExceeded` if it had not ended in time. It may still end.

`brokers.agent.requested_moves` decides how an operation ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from equipoise.brokers.agent.intents import (
    Cancel,
    CreateNamespace,
    DeleteNamespace,
    Intent,
    MergeBundles,
    MoveAway,
    SetClusterPolicy,
    SetPolicy,
    SplitBundle,
    StartDeletingNamespace,
    Transfer,
    subject_of,
)
from equipoise.brokers.agent.requested_moves import (
    BY_OPERATOR,
    CANCELLED_BY_OPERATOR,
    begun_by,
    calls_off_of,
    made_by,
    next_of_deletion,
    refuse_forbidden,
    refuse_in_vain,
    unless_overtaken,
    unloads_of,
)
from equipoise.brokers.agent.requests import record_of
from equipoise.brokers.errors import Rejected
from equipoise.brokers.operations.access import Access, follow, submit, until
from equipoise.brokers.operations.outcomes import PLACED_MS, Outcomes
from equipoise.channel.core.entries import BundleEntry, Verdict
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, Document, Scalar
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline


def request(access: Access, intent: Intent, *, outcomes: Outcomes | None = None) -> Folded:
    """Propose the record for `intent` and return it once accepted. Raises what `brokers.operations.access.submit` raises."""
    refuse_in_vain(access.view, intent)
    return submit(access, partial(_spelled, intent), outcomes=outcomes)


def _spelled(intent: Intent, view: View, author: Author) -> AnyRecord:
    make = record_of(view, intent)
    if isinstance(make, Verdict):
        assert make.reason is not None, "what can be spelled is no verdict"
        raise Rejected(key=subject_of(intent), reason=make.reason, problem=make.problem, offset=None)
    return make(author)


def transfer(access: Access, bundle: str, destination: str, *, force: bool = False) -> Folded:
    """Start the transfer of `bundle` to the broker `destination`. Return the accepted record.

    Raises `DestinationForbidden` if policies exclude the destination, unless `force` is set.
    """
    if not force:
        refuse_forbidden(access.view, bundle, destination)
    return request(access, Transfer(bundle=bundle, destination=destination, reason=BY_OPERATOR))


def unload(access: Access, bundle: str) -> Folded:
    """Start to move `bundle` from its owner to any other broker. Return the accepted record."""
    return request(access, MoveAway(bundle=bundle, reason=BY_OPERATOR))


def split(access: Access, bundle: str, algorithm: str, positions: tuple[int, ...] | None) -> Folded:
    """Request that the owner of `bundle` splits it. Return the accepted record."""
    return request(access, SplitBundle(bundle=bundle, algorithm=algorithm, positions=positions, reason=BY_OPERATOR))


def await_end(access: Access, accepted: Folded) -> tuple[BundleEntry, ...]:
    """Wait until an accepted transfer or split has ended. Return the resulting bundles. `accepted` must be the last record read."""
    move = begun_by(accepted)

    def made(view: View, folded: Folded | None) -> tuple[BundleEntry, ...] | None:
        return None if folded is None else made_by(move, folded, view)

    return until(access, made, what=f"the {move.kind} of {move.bundle}")


def unload_all(
    access: Access, bundles: Iterable[BundleEntry], *, what: str, wait: bool = True, outcomes: Outcomes | None = None
) -> Mapping[str, int]:
    """Unload the bundles that have an owner. Skip those that somebody else moves at the same moment.

    With `wait`, unload them in batches (`unloads_of`); without, start all at once. `what` names the wait in errors. `outcomes` receives
    every record. Return the offset of the unload's record by bundle name.
    """
    all_begun: dict[str, int] = {}
    for batch in unloads_of(bundles, kind=MoveAway):
        begun = _begin_all(access, batch, "the unload", outcomes)
        if wait:
            await_released(access, begun, what=what, outcomes=outcomes)
        all_begun |= begun
    return all_begun


def await_settled(access: Access, outcomes: Outcomes) -> None:
    """Wait until the released bundles have a settled owner, for at most `PLACED_MS` and until the deadline."""
    give_up = Deadline.after(timeout_ms=min(PLACED_MS, access.deadline.remaining_ms()))
    for folded in follow(access):
        if folded is not None:
            outcomes.folded(folded)
        elif outcomes.are_settled(access.view):
            return
        if not give_up.remaining_ms():
            return


def _begin_all(access: Access, intents: Sequence[Intent], what: str, outcomes: Outcomes | None = None) -> Mapping[str, int]:
    begun = {}
    for intent in intents:
        access.deadline.check(f"{what} of {subject_of(intent)}")
        with unless_overtaken():
            begun[subject_of(intent)] = request(access, intent, outcomes=outcomes).offset
    return begun


def await_released(access: Access, unloads: Mapping[str, int], *, what: str, outcomes: Outcomes | None = None) -> None:
    """Wait until each unload has ended. `unloads` maps bundle names to offsets of unload records; `what` names the wait in errors."""
    waiting = dict(unloads)

    def all_released(view: View, folded: Folded | None) -> bool | None:
        if folded is not None and outcomes is not None:
            outcomes.folded(folded)
        for name, offset in list(waiting.items()):
            if not _is_leaving(view.bundles.get(name), offset):
                del waiting[name]
        return None if waiting else True

    until(access, all_released, what=what)


def _is_leaving(bundle: BundleEntry | None, since: int) -> bool:
    """Return whether a bundle is still leaving the owner that it had before the unload at offset `since`."""
    return bundle is not None and (bundle.last == since or bundle.phase in ("transferring", "handing_over", "unloading"))


def cancel(access: Access, bundle: str) -> Folded:
    """Cancel a transfer or a split of `bundle` that is not complete. The source owns the bundle again once the record is accepted."""
    return request(access, Cancel(bundle=bundle, reason=CANCELLED_BY_OPERATOR))


def cancel_all(access: Access, bundles: Iterable[BundleEntry]) -> Mapping[str, int]:
    """Cancel those moves of these bundles that can be cancelled. Return the offset of each cancel by bundle name."""
    return {name: offset for batch in calls_off_of(bundles) for name, offset in _begin_all(access, batch, "the end of the move").items()}


def merge(access: Access, left: str) -> Folded:
    """Merge `left` with its right neighbour. Return the accepted record."""
    return request(access, MergeBundles(left=left, reason=BY_OPERATOR))


def create_namespace(access: Access, name: str, boundaries: Sequence[int], policies: Document | None = None) -> Folded:
    """Create a namespace with one bundle between each two adjacent `boundaries`. Return the accepted record."""
    return request(access, CreateNamespace(name=name, boundaries=boundaries, policies=policies or {}))


def set_policy(access: Access, name: str, policy: str, value: Scalar | None) -> Folded:
    """Set one policy of the namespace `name`, or remove it (None). Other policies stay. Return the accepted record."""
    return request(access, SetPolicy(name=name, policy=policy, value=value))


def set_cluster_policy(access: Access, key: str, document: Document | None) -> Folded:
    """Set the cluster policy `key`, or remove it (None). Return the accepted record.

    Raises `InvalidPolicy` and `PolicyLeavesNobody` as `brokers.balancing.policy_changes.check_policy_change` does.
    """
    return request(access, SetClusterPolicy(policy=key, document=document))


def delete_namespace(access: Access, name: str, *, progress: Callable[[str], None]) -> Folded:
    """Delete a namespace with all its bundles, in the steps of `next_of_deletion`. Return the record of the deletion."""
    while True:
        what = f"the release of all bundles of {name}"
        access.deadline.check(what)
        steps = until(access, lambda view, _: next_of_deletion(view, name), what=what)
        match steps[0]:
            case DeleteNamespace() as deletion:
                return request(access, deletion)
            case StartDeletingNamespace() as start:
                with unless_overtaken():
                    accepted = request(access, start)
                    progress(f"{name} is being deleted since offset {accepted.offset}; its bundles are unloaded")
            case _:
                await_released(access, _begin_all(access, steps, "the unload"), what=what)
