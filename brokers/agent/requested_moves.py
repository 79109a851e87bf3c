"""Decide what a request may do, its next step, and its end, for all drivers of requests.

Drivers work on the channel (`brokers.operations`) or in a broker (`brokers.http`) and do the waiting. `brokers.balancing.moves` classifies
moves for statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from equipoise.brokers.agent.intents import (
    Cancel,
    CreateNamespace,
    DeleteNamespace,
    Intent,
    MergeBundles,
    MoveAway,
    SetClusterPolicy,
    StartDeletingNamespace,
    Unload,
)
from equipoise.brokers.agent.requests import STOPPABLE
from equipoise.brokers.balancing.destinations import Destinations
from equipoise.brokers.balancing.moves import KIND_OF_PHASE, MoveKind
from equipoise.brokers.balancing.policy_changes import check_policy_change
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.errors import Cancelled, DestinationForbidden, Rejected
from equipoise.channel.core.entries import BundleChanged, BundleEntry
from equipoise.channel.core.lifecycle import PHASE_OF_SHAPE
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BundleTransition, Reason, Record
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import Names, describe, explain, standing

T = TypeVar("T")

RACES_MAX: Final = 5
"""Tries of a proposal that loses races. Each lost race is another writer's progress."""

UNLOADS_AT_ONCE: Final = 64
"""Bundles unloaded at a time: enough to keep the log's group commit busy, few enough that clients do not all reconnect at once."""

BY_OPERATOR: Final = "asked for by an admin"
"""The reason of a move that an operator requested."""

CANCELLED_BY_OPERATOR: Final = "cancelled by an admin"
"""The reason of a cancel by an operator."""

_OVERTAKEN: Final = frozenset({Reason.STALE, Reason.ILLEGAL_TRANSITION, Reason.UNKNOWN_BUNDLE})

# On the way to the destination of a transfer, even if the source has died.
_ON_ITS_WAY: Final = frozenset({"assigning", "transferring", "handing_over"})
_MOVING: Final = _ON_ITS_WAY | {"unloading", "splitting"}


# --- proposing ---


def may_run_again(reason: Reason, race: int) -> bool:
    """Return whether to retry a proposal that was rejected as `reason`. `race` counts the attempts, from 1."""
    return reason is Reason.STALE and race < RACES_MAX


@contextmanager
def unless_overtaken() -> Iterator[None]:
    """Ignore the refusal of one step of many because another writer was faster."""
    try:
        yield
    except Rejected as error:
        if error.reason not in _OVERTAKEN:
            raise


def refuse_in_vain(view: View, intent: Intent) -> None:
    """Raise for what would surely be rejected, with more detail than a rejection.

    Raise `Rejected`, and the errors of `check_policy_change`.
    """
    if isinstance(intent, SetClusterPolicy):
        check_policy_change(view, intent.policy, intent.document)
    if isinstance(intent, CreateNamespace) and intent.name in view.namespaces:
        problem = f"it exists already, with {len(view.bundles_of(intent.name))} bundles"
        raise Rejected(key=intent.name, reason=Reason.ILLEGAL_TRANSITION, problem=problem, offset=None)
    left = view.bundles.get(intent.left) if isinstance(intent, MergeBundles) else None
    right = None if left is None else view.right_neighbour(left)
    if left is not None and right is not None and left.phase == right.phase == "owned" and left.owner != right.owner:
        problem = f"they belong to {owner_of(view, left)} and {owner_of(view, right)}; transfer one of them first"
        raise Rejected(key=f"{left.name} and {right.name}", reason=Reason.ILLEGAL_TRANSITION, problem=problem, offset=None)


def refuse_forbidden(view: View, bundle: str, destination: str) -> None:
    """Raise `DestinationForbidden` if isolation policies or pins keep a bundle from `destination`.

    Load is ignored. The channel refuses unknown bundles and dead brokers.
    """
    entry = view.bundles.get(bundle)
    if entry is None:
        return
    rules = settings_in(view, BalancingSettings()).placement
    problem = Destinations(view, rules=rules).bound(entry).refused.get(destination)
    if problem is not None:
        raise DestinationForbidden(bundle=bundle, broker=destination, problem=problem)


def rejection(folded: Folded, view: View) -> Rejected:
    """Return the refusal of a record that was folded and rejected, with the message of its story."""
    record, reason = folded.record, folded.verdict.reason
    assert isinstance(record, Record), "what was encoded can be read"
    assert reason is not None, "an accepted record is not refused"
    problem = explain(folded, view, Names(view)).removeprefix(f"rejected as {reason}: ")
    return Rejected(key=record.key, reason=reason, problem=problem, offset=folded.offset)


def owner_of(view: View, bundle: BundleEntry) -> str:
    """Return the id of the broker that owns `bundle`."""
    return "nobody" if bundle.owner is None else view.live[bundle.owner].broker


# --- moves ---


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedMove:
    """A transfer, unload or split accepted at `offset`. `destination` is the future owner's incarnation."""

    bundle: str
    kind: MoveKind
    offset: int
    destination: int | None


def begun_by(accepted: Folded) -> RequestedMove:
    """Return the move that an accepted record began. Call it for no other record."""
    record = accepted.record
    assert isinstance(record, BundleTransition), "a move begins with a transition"
    kind = KIND_OF_PHASE[PHASE_OF_SHAPE[record.state, record.owner is not None, record.source is not None]]
    return RequestedMove(bundle=record.key, kind=kind, offset=accepted.offset, destination=record.owner)


def made_by(move: RequestedMove, folded: Folded, view: View) -> tuple[BundleEntry, ...] | None:
    """Return the result of a move once `folded` has ended it; None before its end, and for earlier records.

    Transfer: the bundle. Split: the children. Unload: nothing; any next record of the bundle ends it. Pass all records after `move.offset`
    in order.

    Raise `Cancelled` if the move failed, with the cause and the bundle's state in `view`.
    """
    change = next((change for change in folded.verdict.changes if isinstance(change, BundleChanged) and change.name == move.bundle), None)
    if change is None or folded.offset <= move.offset:
        return None
    after = change.after
    if move.kind is MoveKind.UNLOAD:
        return ()
    if move.kind is MoveKind.SPLIT and after is None:
        return tuple(other.after for other in folded.verdict.changes if isinstance(other, BundleChanged) and other.after is not None)
    if move.kind is MoveKind.TRANSFER and after is not None and after.owner == move.destination:
        if after.phase == "owned":
            return (after,)
        if after.phase in _ON_ITS_WAY:
            return None
    raise Cancelled(bundle=move.bundle, move=move.kind.value, problem=_told(folded, view, move.bundle))


def _told(folded: Folded, view: View, name: str) -> str:
    names, bundle = Names(view), view.bundles.get(name)
    return f"{describe(folded, view, names)}; {'it is gone' if bundle is None else f'now {standing(bundle, names)}'}"


# --- all bundles of a namespace ---


def unloads_of(bundles: Iterable[BundleEntry], *, kind: type[MoveAway | Unload]) -> Iterator[tuple[MoveAway | Unload, ...]]:
    """Yield the unloads of the owned `bundles` in batches. Owners must release one batch before the next.

    `MoveAway` moves a bundle to another owner; `Unload` leaves it free, for a deletion.
    """
    return _batches(kind(bundle=bundle.name, reason=BY_OPERATOR) for bundle in bundles if bundle.phase == "owned")


def calls_off_of(bundles: Iterable[BundleEntry]) -> Iterator[tuple[Cancel, ...]]:
    """Yield the cancels of the moves of `bundles` in batches."""
    return _batches(Cancel(bundle=bundle.name, reason=CANCELLED_BY_OPERATOR) for bundle in bundles if bundle.phase in STOPPABLE)


def _batches(intents: Iterator[T]) -> Iterator[tuple[T, ...]]:
    while batch := tuple(islice(intents, UNLOADS_AT_ONCE)):
        yield batch


def next_of_deletion(view: View, name: str) -> tuple[Intent, ...] | None:
    """Return the next requests to delete the namespace `name`; None while its bundles must be waited for.

    1. Stop all assignments.
    2. Unload what is owned, also after earlier moves, one batch of `unloads_of` at a time.
    3. Delete the namespace once all its bundles are free.

    A deletion begun earlier is continued. The channel refuses to delete a namespace that does not exist.
    """
    namespace = view.namespaces.get(name)
    if namespace is not None and namespace.status != "deleting":
        return (StartDeletingNamespace(name=name),)
    bundles = view.bundles_of(name)
    for unloads in unloads_of(bundles, kind=Unload):
        return unloads
    return None if any(bundle.phase in _MOVING for bundle in bundles) else (DeleteNamespace(name=name),)
