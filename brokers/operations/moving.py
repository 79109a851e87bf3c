"""Moves as an operator asks for them: proposed straight to the channel, and waited for until they have ended one way or another.

May live here: the moves of bundles, the making and the deletion of a namespace, and changes of policies, as steps on the channel.
Each takes an `Access` and raises `Rejected` if the channel refuses it, `Cancelled` if it was accepted and came to nothing,
`DeadlineExceeded` if it had not ended in time; it may still end then. What has ended how is decided in `brokers.agent.requested_moves`.
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
    """Propose what `intent` wants; the record that the channel accepted. Takes and raises what `brokers.operations.access.submit` does."""
    refuse_in_vain(access.view, intent)
    return submit(access, partial(_spelled, intent), outcomes=outcomes)


def _spelled(intent: Intent, view: View, author: Author) -> AnyRecord:
    make = record_of(view, intent)
    if isinstance(make, Verdict):
        assert make.reason is not None, "what can be spelled is no verdict"
        raise Rejected(key=subject_of(intent), reason=make.reason, problem=make.problem, offset=None)
    return make(author)


def transfer(access: Access, bundle: str, destination: str, *, force: bool = False) -> Folded:
    """Begin to move `bundle` to the broker `destination`; the record that the channel accepted.

    Raises `DestinationForbidden` if policies keep it from there, unless it is to be moved by `force`.
    """
    if not force:
        refuse_forbidden(access.view, bundle, destination)
    return request(access, Transfer(bundle=bundle, destination=destination, reason=BY_OPERATOR))


def unload(access: Access, bundle: str) -> Folded:
    """Begin to move `bundle` away from its owner, to whichever other broker; the record that the channel accepted."""
    return request(access, MoveAway(bundle=bundle, reason=BY_OPERATOR))


def split(access: Access, bundle: str, algorithm: str, positions: tuple[int, ...] | None) -> Folded:
    """Ask the owner of `bundle` to cut it; the record that the channel accepted."""
    return request(access, SplitBundle(bundle=bundle, algorithm=algorithm, positions=positions, reason=BY_OPERATOR))


def await_end(access: Access, accepted: Folded) -> tuple[BundleEntry, ...]:
    """Wait until a transfer or a split that was accepted, the last that was read, has ended; the bundles that it made."""
    move = begun_by(accepted)

    def made(view: View, folded: Folded | None) -> tuple[BundleEntry, ...] | None:
        return None if folded is None else made_by(move, folded, view)

    return until(access, made, what=f"the {move.kind} of {move.bundle}")


def unload_all(
    access: Access, bundles: Iterable[BundleEntry], *, what: str, wait: bool = True, outcomes: Outcomes | None = None
) -> Mapping[str, int]:
    """Unload these bundles as far as they are owned, but for those that somebody else moves at the same moment.

    They are let go of some at a time (`unloads_of`), or are all begun at once if nobody is to `wait` for `what`. The result maps
    the name of each that was unloaded to the offset of the record; `outcomes` gets every record.
    """
    all_begun: dict[str, int] = {}
    for batch in unloads_of(bundles, kind=MoveAway):
        begun = _begin_all(access, batch, "the unload", outcomes)
        if wait:
            await_released(access, begun, what=what, outcomes=outcomes)
        all_begun |= begun
    return all_begun


def await_settled(access: Access, outcomes: Outcomes) -> None:
    """Wait until bundles that were released have an owner who keeps them, at most for `PLACED_MS` and until the deadline."""
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
    """Wait for `what`: that each unload has come to its end. `unloads` maps the name of a bundle to the offset of its unload."""
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
    """Whether a bundle is still on its way from the owner that it had before the unload at offset `since`."""
    return bundle is not None and (bundle.last == since or bundle.phase in ("transferring", "handing_over", "unloading"))


def cancel(access: Access, bundle: str) -> Folded:
    """End a transfer or a split of `bundle` that has not happened; who served it owns it as soon as the channel has accepted that."""
    return request(access, Cancel(bundle=bundle, reason=CANCELLED_BY_OPERATOR))


def cancel_all(access: Access, bundles: Iterable[BundleEntry]) -> Mapping[str, int]:
    """Cancel the moves of these bundles as far as they can be; of each that was, by name, the offset of the record."""
    return {name: offset for batch in calls_off_of(bundles) for name, offset in _begin_all(access, batch, "the end of the move").items()}


def merge(access: Access, left: str) -> Folded:
    """Make one bundle of `left` and its right neighbour, at once; the record that the channel accepted."""
    return request(access, MergeBundles(left=left, reason=BY_OPERATOR))


def create_namespace(access: Access, name: str, boundaries: Sequence[int], policies: Document | None = None) -> Folded:
    """Create a namespace with bundles between each two of `boundaries`; the record that the channel accepted."""
    return request(access, CreateNamespace(name=name, boundaries=boundaries, policies=policies or {}))


def set_policy(access: Access, name: str, policy: str, value: Scalar | None) -> Folded:
    """Set one of the policies of the namespace `name`, or take it away; the others stay. The record that the channel accepted."""
    return request(access, SetPolicy(name=name, policy=policy, value=value))


def set_cluster_policy(access: Access, key: str, document: Document | None) -> Folded:
    """Set the cluster policy `key`, or take it away; the record that the channel accepted.

    Raises `InvalidPolicy` and `PolicyLeavesNobody` as `brokers.balancing.policy_changes.check_policy_change` does.
    """
    return request(access, SetClusterPolicy(policy=key, document=document))


def delete_namespace(access: Access, name: str, *, progress: Callable[[str], None]) -> Folded:
    """Delete a namespace with all its bundles; the record that did it. `next_of_deletion` says in which steps."""
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
