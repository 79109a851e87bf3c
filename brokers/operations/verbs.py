"""Define every operation that operators and balancers request, once for all drivers.

An operation checks the request, proposes records, waits for their effect and returns the answer.
`steps` explains drivers. All operations raise:

* `Rejected` if the channel refuses a record.
* `NotFound` for what does not exist, and other `CallerError`s for impossible requests.
* `Cancelled` if a move was accepted and then cancelled.
* `DeadlineExceeded` if the operation had not ended in time. It may still end.
* `OutcomeUnknown` if a truncation removed the records about its end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    SetPolicy,
    SetSettings,
    SplitBundle,
    StartDeletingNamespace,
    Transfer,
    Unload,
    subject_of,
)
from equipoise.brokers.agent.requests import STOPPABLE
from equipoise.brokers.balancing.controls import freeze_key
from equipoise.brokers.balancing.failure_domains import domain_of, domains_in
from equipoise.brokers.balancing.grants import (
    check_role,
    grant_key,
    permission_policy,
    permission_value,
)
from equipoise.brokers.balancing.moves import KIND_OF_PHASE
from equipoise.brokers.balancing.named import (
    bundle_named,
    namespace_named,
    policy_named,
    tenant_named,
    tenants_in,
)
from equipoise.brokers.balancing.placement import in_turns, places_elsewhere
from equipoise.brokers.balancing.policies import (
    DOMAIN_MAINTENANCE,
    MAINTENANCE,
    PAUSE_KEY,
    TENANT,
    control_document,
    grant_document,
    quarantine_key,
    tenant_document,
)
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import (
    Changes,
    SettingsChange,
    change_in,
    check_changes,
    settings_in,
)
from equipoise.brokers.balancing.splitting.split_points import (
    RANGE_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
)
from equipoise.brokers.errors import conflict, counted
from equipoise.brokers.operations.checks import (
    check_destination,
    check_split,
    live_broker,
    owner_of,
    unless_overtaken,
)
from equipoise.brokers.operations.outcomes import PLACED_MS, Outcome, Outcomes, begun_by
from equipoise.brokers.operations.steps import (
    AskOpened,
    Listen,
    Look,
    Operation,
    OrderDrain,
    Propose,
    ProposeEach,
    Seen,
    Until,
    UntilOrGiveUp,
)
from equipoise.brokers.security.rights import Action, Right
from equipoise.channel.core.entries import BundleChanged, BundleEntry
from equipoise.channel.core.errors import CallerError, NotFound
from equipoise.channel.core.ranges import check_broker_id, check_tenant, even_boundaries
from equipoise.channel.core.records import Document, Scalar
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline
from equipoise.shedder.plan import Move

T = TypeVar("T")

UNLOADS_AT_ONCE: Final = 64
"""Bundles unloaded at a time: enough to keep the log's group commit busy, few enough that clients
do not all reconnect at once."""

BY_OPERATOR: Final = "asked for by an admin"
"""The reason of a move that an operator requested."""

CANCELLED_BY_OPERATOR: Final = "cancelled by an admin"
"""The reason of a cancel by an operator."""

_SHOWN: Final = 64

_MOVING: Final = frozenset({"assigning", "transferring", "handing_over", "unloading", "splitting"})
_LEAVING: Final = frozenset({"transferring", "handing_over", "unloading"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an operation did, as a sentence for people and as a document for programs.

    `outcomes` says what became of each bundle that was moved and waited for.
    """

    sentence: str
    document: Mapping[str, object]
    outcomes: Sequence[Outcome] = ()

    @property
    def stuck(self) -> Sequence[Outcome]:
        """The bundles that are back at their source or have no owner."""
        return [outcome for outcome in self.outcomes if outcome.is_stuck]

    @property
    def failed(self) -> Sequence[Outcome]:
        """The `stuck` bundles that a destination refused."""
        return [outcome for outcome in self.stuck if outcome.is_refused]


def _accepted(offset: int, sentence: str, **document: object) -> Answer:
    return Answer(
        sentence=f"accepted at offset {offset}: {sentence}", document={"offset": offset, **document}
    )


# --- moves of one bundle ---


def transfer(
    bundle: str,
    destination: str,
    *,
    force: bool = False,
    wait: bool = True,
    reason: str = BY_OPERATOR,
) -> Operation[Answer]:
    """Transfer `bundle` to the broker `destination`, and wait until an owner keeps it.

    Raises `DestinationForbidden` if policies exclude the destination, unless `force` is set.
    """
    seen = yield from Look()
    entry = bundle_named(seen.view, bundle)
    check_broker_id(destination)
    if not force:
        check_destination(seen.view, entry, destination)
    return (
        yield from _moved(
            seen, entry, Transfer(bundle=bundle, destination=destination, reason=reason), wait=wait
        )
    )


def unload(bundle: str, *, wait: bool = True) -> Operation[Answer]:
    """Move `bundle` away from its owner, to another broker if one is allowed, and wait until an
    owner keeps it.
    """
    seen = yield from Look()
    entry = bundle_named(seen.view, bundle)
    return (yield from _moved(seen, entry, MoveAway(bundle=bundle, reason=BY_OPERATOR), wait=wait))


def _moved(
    seen: Seen, bundle: BundleEntry, intent: Transfer | MoveAway, *, wait: bool
) -> Operation[Answer]:
    outcomes = Outcomes(seen.view, [bundle], log=seen.log)
    yield from Listen(listener=outcomes.heard)
    accepted = yield from Propose(intent=intent)
    begun = begun_by(accepted)
    seen = yield from Look()
    source = outcomes.begun(accepted, seen.view)
    if begun.destination is None:
        return (yield from _released(bundle.name, source, accepted.offset, outcomes, wait=wait))
    new_owner = seen.view.live.get(begun.destination)
    destination = (
        intent.destination
        if isinstance(intent, Transfer)
        else new_owner.broker
        if new_owner
        else f"#{begun.destination}"
    )
    if not wait:
        sentence = f"{bundle.name} is on its way to {destination}"
        return _accepted(
            accepted.offset, sentence, bundle=bundle.name, destination=destination, done=False
        )
    (made,) = yield from Until(
        condition=lambda view: outcomes.made(begun, view),
        what=f"the {begun.kind} of {bundle.name} to {destination}",
    )
    view = yield from _settled(outcomes)
    outcome = outcomes.check(
        bundle.name, view, destination=destination if isinstance(intent, Transfer) else None
    )
    return Answer(
        sentence=f"accepted at offset {accepted.offset}, done at {made.last}: {outcome.sentence()}",
        document={
            "offset": accepted.offset,
            "destination": destination,
            "done": True,
            **outcome.document(),
        },
        outcomes=[outcome],
    )


def _released(
    name: str, source: str, offset: int, outcomes: Outcomes, *, wait: bool
) -> Operation[Answer]:
    """Wait for the end of an unload that names no new owner."""
    if not wait:
        return _accepted(
            offset, f"{source} releases {name}", bundle=name, source=source, done=False
        )
    yield from Until(condition=_all_released({name: offset}), what=f"the release of {name}")
    view = yield from _settled(outcomes)
    outcome = outcomes.of(name, view)
    document = {"offset": offset, "done": True, **outcome.document()}
    return Answer(
        sentence=f"accepted at offset {offset}: {outcome.sentence()}",
        document=document,
        outcomes=[outcome],
    )


def split(
    bundle: str,
    algorithm: str | None = None,
    positions: Sequence[int] | None = None,
    *,
    wait: bool = True,
    reason: str = BY_OPERATOR,
) -> Operation[Answer]:
    """Have the owner of `bundle` split it, and wait for the children. Without `algorithm`, cut at
    `positions` or in the middle.

    Raises what `check_split` raises.
    """
    seen = yield from Look()
    entry = bundle_named(seen.view, bundle)
    cuts = None if positions is None else tuple(sorted(positions))
    algorithm = algorithm or (RANGE_EQUALLY_DIVIDE if cuts is None else SPECIFIED_POSITIONS_DIVIDE)
    check_split(entry, algorithm, cuts)
    intent = SplitBundle(bundle=bundle, algorithm=algorithm, positions=cuts, reason=reason)
    if not wait:
        accepted = yield from Propose(intent=intent)
        return _accepted(
            accepted.offset, f"{bundle} is being split", bundle=bundle, children=[], done=False
        )
    offset, made = yield from move(intent, f"the split of {bundle}")
    children = [child.name for child in made]
    return _accepted(
        offset,
        f"{bundle} is split into {', '.join(children)}",
        bundle=bundle,
        children=children,
        done=True,
    )


def merge(left: str, *, reason: str = BY_OPERATOR) -> Operation[Answer]:
    """Merge `left` with its right neighbour, which must have the same owner."""
    entry = bundle_named((yield from Look()).view, left)
    accepted = yield from Propose(intent=MergeBundles(left=left, reason=reason))
    whole = (yield from Look()).view.bundle_at(entry.namespace, entry.low)
    union = left if whole is None else whole.name
    return _accepted(
        accepted.offset, f"{left} and its right neighbour are {union} now", bundle=left, union=union
    )


def cancel(bundle: str) -> Operation[Answer]:
    """Cancel a transfer or a split of `bundle` that is not complete. The source owns the bundle
    again.
    """
    bundle_named((yield from Look()).view, bundle)
    accepted = yield from Propose(intent=Cancel(bundle=bundle, reason=CANCELLED_BY_OPERATOR))
    change = accepted.verdict.changes[0]
    assert isinstance(change, BundleChanged), "a transition changes its bundle"
    before, after = change.before, change.after
    assert before is not None, "a move is of a bundle that was there"
    assert after is not None, "and it goes on"
    kind, owner = KIND_OF_PHASE[before.phase].value, owner_of((yield from Look()).view, after)
    sentence = f"the {kind} of {bundle} is cancelled; {owner} owns it, token {after.token}"
    return _accepted(
        accepted.offset, sentence, bundle=bundle, move=kind, owner=owner, token=after.token
    )


def move(intent: Intent, what: str) -> Operation[tuple[int, tuple[BundleEntry, ...]]]:
    """Request a transfer, an unload or a split, and wait for its end. Return the offset of its
    record, and the resulting bundles.
    """
    seen = yield from Look()
    entry = seen.view.bundles.get(subject_of(intent))
    outcomes = Outcomes(seen.view, [] if entry is None else [entry], log=seen.log)
    yield from Listen(listener=outcomes.heard)
    accepted = yield from Propose(intent=intent)
    begun = begun_by(accepted)
    return accepted.offset, (
        yield from Until(condition=lambda view: outcomes.made(begun, view), what=what)
    )


def _settled(outcomes: Outcomes) -> Operation[View]:
    """Wait until the moved bundles are open at their owners, for at most `PLACED_MS` and until the
    deadline. Return the view.

    Ask again when a bundle has another owner, because the first one failed to open it. Of an owner
    that does not answer, see for `SETTLED_MS` whether it keeps the bundle.
    """
    deadline, unanswered = Deadline.after(timeout_ms=PLACED_MS), dict[str, int]()
    while True:
        yield from _until(outcomes.are_owned, "an owner for each", deadline)
        view = (yield from Look()).view
        unopened = outcomes.unopened(view)
        if not unopened or not deadline.remaining_ms():
            return view
        if unopened == unanswered:
            yield from _until(outcomes.are_settled, "an owner that stays for each", deadline)
            return (yield from Look()).view
        answer = yield from AskOpened(tokens=unopened, within_ms=deadline.remaining_ms())
        outcomes.opened({name: token for name, token in unopened.items() if name in answer.bundles})
        unanswered = {name: token for name, token in unopened.items() if name not in answer.bundles}
        # An owner has read its own failure before this operation has.
        yield from _until(
            partial(_is_read, answer.offset), f"offset {answer.offset} being read", deadline
        )


def _is_read(offset: int, view: View) -> bool:
    return view.offset >= offset


def _until(condition: Callable[[View], bool], what: str, deadline: Deadline) -> Operation[None]:
    yield from UntilOrGiveUp(
        condition=lambda view: condition(view) or None, what=what, within_ms=deadline.remaining_ms()
    )


# --- all bundles of a namespace ---


def unload_all(namespace: str, *, wait: bool = True) -> Operation[Answer]:
    """Unload all bundles of `namespace` that have an owner. Skip those that somebody else moves at
    the same moment.

    Plan and unload them in batches. With `wait`, owners must release one batch before the next.
    """
    seen = yield from Look()
    bundles = seen.view.bundles_of(namespace_named(seen.view, namespace).name)
    owned = [bundle for bundle in bundles if bundle.phase == "owned"]
    outcomes = Outcomes(seen.view, owned, log=seen.log)
    yield from Listen(listener=outcomes.heard)
    unloads: dict[str, int] = {}
    for batch in _batches(iter(in_turns(owned))):
        begun = yield from ProposeEach(
            intents=moves_away((yield from Look()), batch, reason=BY_OPERATOR)
        )
        if wait:
            yield from Until(
                condition=_all_released(begun), what=f"the unload of all bundles of {namespace}"
            )
        unloads |= begun
    skipped = len(bundles) - len(unloads)
    rest = f"{skipped} had no owner, or were on the move already"
    document: dict[str, object] = {
        "namespace": namespace,
        "offsets": unloads,
        "skipped": skipped,
        "done": wait,
    }
    if not wait:
        return Answer(
            sentence=f"{counted(len(unloads), 'bundle')} of {namespace} are being unloaded; {rest}",
            document=document,
        )
    view = yield from _settled(outcomes)
    found = [outcomes.of(name, view) for name in unloads]
    document["bundles"] = [outcome.document() for outcome in found]
    moved = sum(not outcome.is_stuck for outcome in found)
    sentence = f"{counted(moved, 'bundle')} of {namespace} moved to another owner; {rest}"
    return Answer(sentence=sentence, document=document, outcomes=found)


def transfer_batch(moves: Sequence[Move]) -> Operation[Sequence[Outcome]]:
    """Transfer bundles to the destinations of a plan, all at once, and wait until their owners keep
    them.

    Leave out those that somebody else moves at the same moment.
    """
    seen = yield from Look()
    outcomes = Outcomes(
        seen.view, [bundle_named(seen.view, move.bundle) for move in moves], log=seen.log
    )
    yield from Listen(listener=outcomes.heard)
    intents = [
        Transfer(bundle=move.bundle, destination=move.destination or "", reason=move.reason)
        for move in moves
    ]
    begun = yield from ProposeEach(intents=intents)
    yield from Until(condition=_all_released(begun), what="the moves of the plan")
    view = yield from _settled(outcomes)
    return [outcomes.of(name, view) for name in begun]


def cancel_all(namespace: str) -> Operation[Answer]:
    """Cancel those moves of a namespace's bundles that can be cancelled."""
    view = (yield from Look()).view
    bundles = view.bundles_of(namespace_named(view, namespace).name)
    moving = sum(bundle.phase not in ("owned", "free") for bundle in bundles)
    ended: dict[str, int] = {}
    for batch in cancels_of(bundles):
        ended |= yield from ProposeEach(intents=batch)
    late = moving - len(ended)
    sentence = f"{counted(len(ended), 'move')} of {namespace} cancelled; {late} too far on, or over"
    return Answer(
        sentence=sentence, document={"namespace": namespace, "offsets": ended, "late": late}
    )


def moves_away(
    seen: Seen, bundles: Sequence[BundleEntry], *, reason: str, or_stay: bool = False
) -> list[MoveAway]:
    """Return the moves of owned bundles to other owners, planned together."""
    planned = places_elsewhere(seen.view, bundles, seen.placement)
    return [
        MoveAway(
            bundle=bundle.name, reason=reason, or_stay=or_stay, planned=planned.get(bundle.name)
        )
        for bundle in bundles
    ]


def unloads_of(bundles: Iterable[BundleEntry]) -> Iterator[tuple[Unload, ...]]:
    """Yield the unloads of the owned `bundles`, which leave them free, in batches. Owners must
    release one batch before the next.
    """
    return _batches(
        Unload(bundle=bundle.name, reason=BY_OPERATOR)
        for bundle in bundles
        if bundle.phase == "owned"
    )


def cancels_of(bundles: Iterable[BundleEntry]) -> Iterator[tuple[Cancel, ...]]:
    """Yield the cancels of the moves of `bundles` in batches."""
    return _batches(
        Cancel(bundle=bundle.name, reason=CANCELLED_BY_OPERATOR)
        for bundle in bundles
        if bundle.phase in STOPPABLE
    )


def _batches(intents: Iterator[T]) -> Iterator[tuple[T, ...]]:
    while batch := tuple(islice(intents, UNLOADS_AT_ONCE)):
        yield batch


def _all_released(unloads: Mapping[str, int]) -> Callable[[View], bool | None]:
    """Return a condition that holds once each unload has ended. `unloads` maps bundle names to
    offsets of unload records.
    """
    waiting = dict(unloads)

    def released(view: View) -> bool | None:
        for name, offset in list(waiting.items()):
            bundle = view.bundles.get(name)
            if bundle is None or (bundle.last != offset and bundle.phase not in _LEAVING):
                del waiting[name]
        return None if waiting else True

    return released


# --- namespaces ---


def create_namespace(
    name: str,
    boundaries: Sequence[int] | None = None,
    policies: Document | None = None,
    *,
    base: BalancingSettings | None = None,
) -> Operation[Answer]:
    """Create a namespace with one bundle between each two adjacent `boundaries`.

    Without boundaries, make as many equal bundles as the settings on the channel, or else in
    `base`, define.
    """
    if boundaries is None:
        settings = settings_in((yield from Look()).view, base or BalancingSettings())
        boundaries = even_boundaries(settings.balancing.namespace_bundles)
    accepted = yield from Propose(
        intent=CreateNamespace(name=name, boundaries=boundaries, policies=policies or {})
    )
    count = len(boundaries) - 1
    return _accepted(
        accepted.offset,
        f"{name} is created with {counted(count, 'bundle')}",
        namespace=name,
        bundles=count,
    )


def set_namespace_policy(name: str, policy: str, value: Scalar | None) -> Operation[Answer]:
    """Set one policy of the namespace `name`, or remove it (None). Other policies stay."""
    namespace_named((yield from Look()).view, name)
    accepted = yield from Propose(intent=SetPolicy(name=name, policy=policy, value=value))
    sentence = f"{policy} of {name} is {'no longer set' if value is None else value}"
    return _accepted(accepted.offset, sentence, namespace=name, **{policy: value})


def set_namespace_policies(name: str, values: Mapping[str, Scalar | None]) -> Operation[None]:
    """Set or remove policies of the namespace `name`, one after the other."""
    for policy, value in values.items():
        yield from set_namespace_policy(name, policy, value)


def delete_namespace(
    name: str, *, progress: Callable[[str], None] = lambda _: None
) -> Operation[Answer]:
    """Delete a namespace with all its bundles, in the steps of `next_of_deletion`. Continue a
    deletion begun earlier.
    """
    namespace_named((yield from Look()).view, name)
    while True:
        what = f"the release of all bundles of {name}"
        intents = yield from Until(condition=lambda view: next_of_deletion(view, name), what=what)
        match intents[0]:
            case DeleteNamespace() as deletion:
                accepted = yield from Propose(intent=deletion)
                return _accepted(accepted.offset, f"{name} is deleted", namespace=name)
            case StartDeletingNamespace() as start:
                with unless_overtaken():
                    accepted = yield from Propose(intent=start)
                    progress(
                        f"{name} is being deleted since offset {accepted.offset}; its bundles are"
                        " unloaded"
                    )
            case _:
                unloads = yield from ProposeEach(intents=intents)
                yield from Until(condition=_all_released(unloads), what=what)


def next_of_deletion(view: View, name: str) -> tuple[Intent, ...] | None:
    """Return the next requests to delete the namespace `name`; None while its bundles must be
    waited for.

    1. Stop all assignments.
    2. Unload what is owned, also after earlier moves, one batch of `unloads_of` at a time.
    3. Delete the namespace once all its bundles are free.

    The channel refuses to delete a namespace that does not exist.
    """
    namespace = view.namespaces.get(name)
    if namespace is not None and namespace.status != "deleting":
        return (StartDeletingNamespace(name=name),)
    bundles = view.bundles_of(name)
    for unloads in unloads_of(bundles):
        return unloads
    return (
        None
        if any(bundle.phase in _MOVING for bundle in bundles)
        else (DeleteNamespace(name=name),)
    )


# --- policies, settings and brokers ---


def set_cluster_policy(key: str, document: Document) -> Operation[Answer]:
    """Set the cluster policy `key`. Raises `InvalidPolicy` and `PolicyLeavesNobody` as
    `check_policy_change` does.
    """
    accepted = yield from Propose(intent=SetClusterPolicy(policy=key, document=document))
    return _accepted(accepted.offset, f"{key} is set", policy=key)


def delete_cluster_policy(key: str) -> Operation[Answer]:
    """Remove the cluster policy `key`. Raises as `set_cluster_policy` does."""
    policy_named((yield from Look()).view, key)
    accepted = yield from Propose(intent=SetClusterPolicy(policy=key, document=None))
    return _accepted(accepted.offset, f"{key} is deleted", policy=key)


def create_tenant(
    name: str, *, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
) -> Operation[Answer]:
    """Create a tenant. Without clusters, it is allowed in this one.

    Raises `CallerError` for another cluster, and `Rejected` if the tenant exists. One that only has
    namespaces exists, too.
    """
    check_tenant(name)
    view = (yield from Look()).view
    if name in tenants_in(view):
        advice = f"see its namespaces: equipoise namespaces list {name}"
        raise conflict(name, "it already exists", action="create tenant", advice=advice)
    document = _tenant_document(view, admin_roles, allowed_clusters)
    accepted = yield from Propose(
        intent=SetClusterPolicy(policy=f"{TENANT}/{name}", document=document, expected=None)
    )
    return _accepted(accepted.offset, f"tenant {name} is created", tenant=name)


def update_tenant(
    name: str, *, admin_roles: Sequence[str], allowed_clusters: Sequence[str]
) -> Operation[Answer]:
    """Replace the roles and clusters of a tenant. Raises `NotFound`, `Rejected` if another change
    was faster, and `CallerError`.
    """
    view = (yield from Look()).view
    tenant_named(view, check_tenant(name))
    document, entry = (
        _tenant_document(view, admin_roles, allowed_clusters),
        view.policies.get(f"{TENANT}/{name}"),
    )
    # A tenant that is deleted meanwhile must not come back.
    expected = None if entry is None else entry.document
    accepted = yield from Propose(
        intent=SetClusterPolicy(policy=f"{TENANT}/{name}", document=document, expected=expected)
    )
    return _accepted(accepted.offset, f"tenant {name} is updated", tenant=name)


def delete_tenant(name: str) -> Operation[Answer]:
    """Delete a tenant. Raises `NotFound`, and `Rejected` if it has namespaces."""
    tenant_named((yield from Look()).view, check_tenant(name))
    accepted = yield from Propose(intent=SetClusterPolicy(policy=f"{TENANT}/{name}", document=None))
    return _accepted(accepted.offset, f"tenant {name} is deleted", tenant=name)


def _tenant_document(
    view: View, admin_roles: Sequence[str], allowed_clusters: Sequence[str]
) -> Document:
    cluster = view.cluster or ""  # A log without a cluster refuses all records.
    clusters = allowed_clusters or (cluster,)
    unknown = sorted(set(clusters) - {cluster})
    if unknown:
        raise CallerError(
            f"there is no cluster {unknown[0][:_SHOWN]!r}: the only cluster here is {cluster!r};"
            " allow that one"
        )
    return tenant_document(admin_roles=admin_roles, allowed_clusters=clusters)


def grant_right(role: str, right: Right) -> Operation[Answer]:
    """Give a role a right in the cluster, in place of the one that it has. Raises
    `InvalidRequest`.
    """
    accepted = yield from Propose(
        intent=SetClusterPolicy(policy=grant_key(check_role(role)), document=grant_document(right))
    )
    return _accepted(
        accepted.offset, f"role {role} has the right {right} in the cluster", role=role, right=right
    )


def revoke_right(role: str) -> Operation[Answer]:
    """Take from a role its right in the cluster. Raises `NotFound` if it has none."""
    if grant_key(check_role(role)) not in (yield from Look()).view.policies:
        raise NotFound(
            f"role {role!r} has no right in the cluster; list those that have one: equipoise rights"
            " list"
        )
    accepted = yield from Propose(intent=SetClusterPolicy(policy=grant_key(role), document=None))
    return _accepted(
        accepted.offset, f"role {role} has no right in the cluster", role=role, right=None
    )


def grant_permission(namespace: str, role: str, actions: Collection[Action]) -> Operation[Answer]:
    """Set what a role may do in a namespace, in place of what it may do now. Without actions,
    revoke all. Raises `InvalidRequest`.
    """
    namespace_named((yield from Look()).view, namespace)
    value = permission_value(actions)
    accepted = yield from Propose(
        intent=SetPolicy(name=namespace, policy=permission_policy(check_role(role)), value=value)
    )
    sentence = (
        f"role {role} may {' and '.join(sorted(actions)) or 'neither produce nor consume'} in"
        f" {namespace}"
    )
    return _accepted(
        accepted.offset, sentence, namespace=namespace, role=role, actions=sorted(actions)
    )


def change_settings(changes: Changes) -> Operation[SettingsChange]:
    """Change balancing settings, all or none. Return the change with the previous values.

    Raises what `check_changes` raises.
    """
    seen = yield from Look()
    check_changes(seen.view, changes)
    change = change_in(
        (yield from Propose(intent=SetSettings(changes=changes, changed_by=seen.requester)))
    )
    assert change is not None, "what was accepted is this record"
    return change


def pause_balancing(*, reason: str, until_ms: int) -> Operation[Answer]:
    """Stop moves, splits and merges of the balancer until `until_ms` (Unix time), in place of a
    pause before. Raises `InvalidPolicy`.
    """
    document = control_document(reason, until_ms=until_ms)
    accepted = yield from Propose(intent=SetClusterPolicy(policy=PAUSE_KEY, document=document))
    return _accepted(
        accepted.offset, "balancing is paused", policy=PAUSE_KEY, reason=reason, until_ms=until_ms
    )


def resume_balancing() -> Operation[Answer]:
    """End the pause of balancing. Raises `NotFound` if there is none."""
    if PAUSE_KEY not in (yield from Look()).view.policies:
        raise NotFound(
            "balancing is not paused; see whether it is off: equipoise balancing show --all"
        )
    accepted = yield from Propose(intent=SetClusterPolicy(policy=PAUSE_KEY, document=None))
    return _accepted(accepted.offset, "balancing is not paused any more", policy=PAUSE_KEY)


def freeze_namespace(namespace: str, *, reason: str, until_ms: int = 0) -> Operation[Answer]:
    """Have the balancer leave the bundles of a namespace alone until `until_ms` (Unix time; 0: no
    end), in place of a freeze before.

    Raises `NotFound` and `InvalidPolicy`.
    """
    namespace_named((yield from Look()).view, namespace)
    key = freeze_key(namespace)
    document = control_document(reason, until_ms=until_ms)
    accepted = yield from Propose(intent=SetClusterPolicy(policy=key, document=document))
    return _accepted(
        accepted.offset,
        f"{namespace} is frozen",
        policy=key,
        reason=reason,
        until_ms=until_ms or None,
    )


def unfreeze_namespace(namespace: str) -> Operation[Answer]:
    """End the freeze of a namespace. Raises `NotFound` if it is not frozen."""
    key = freeze_key(namespace)
    if key not in (yield from Look()).view.policies:
        raise NotFound(
            f"namespace {namespace[:_SHOWN]!r} is not frozen; see what is: equipoise balancing show"
        )
    accepted = yield from Propose(intent=SetClusterPolicy(policy=key, document=None))
    return _accepted(accepted.offset, f"{namespace} is not frozen any more", policy=key)


def release_bundle(bundle: str) -> Operation[Answer]:
    """End the quarantine of a bundle: the leader assigns it at once. Raises `NotFound` if it is in
    none.
    """
    key = quarantine_key(bundle)
    if key not in (yield from Look()).view.policies:
        raise NotFound(
            f"bundle {bundle[:_SHOWN]!r} is not in quarantine; see which are: equipoise bundles"
            " quarantine list"
        )
    accepted = yield from Propose(intent=SetClusterPolicy(policy=key, document=None))
    return _accepted(accepted.offset, f"{bundle} is released from quarantine", policy=key)


def drain(broker_id: str, *, wait: bool = True) -> Operation[Answer]:
    """Have a broker take no new bundles and move all its bundles away, and wait until it has
    none.
    """
    view = (yield from Look()).view
    broker = live_broker(view, broker_id)
    incarnation, bundles = broker.incarnation, view.held_count(broker.incarnation)
    yield from OrderDrain(broker=broker)
    if wait:
        yield from Until(
            condition=lambda view: _is_drained(view, incarnation),
            what=f"the draining of {broker_id}",
        )
    return Answer(
        sentence=(
            f"{broker_id} {'is drained' if wait else 'drains'}: it had {counted(bundles, 'bundle')}"
        ),
        document={
            "broker": broker_id,
            "incarnation": incarnation,
            "bundles": bundles,
            "done": wait,
        },
    )


def undrain(broker_id: str, *, wait: bool = True) -> Operation[Answer]:
    """End the drain of a broker, without a restart: it gives its last bundles away, joins again,
    and takes bundles.

    Raises `NotFound` for a broker that is not alive, and `Rejected` if it does not drain.
    """
    broker = live_broker((yield from Look()).view, broker_id)
    if broker.status != "draining":
        advice = "to end a maintenance: equipoise brokers maintenance end"
        raise conflict(broker_id, "it does not drain", action="undrain", advice=advice)
    yield from OrderDrain(broker=broker, ends=True)
    if wait:
        yield from Until(
            condition=partial(_is_up, broker_id=broker_id), what=f"the return of {broker_id}"
        )
    sentence = f"{broker_id} {'takes bundles again' if wait else 'ends its drain'}"
    return Answer(sentence=sentence, document={"broker": broker_id, "done": wait})


def start_maintenance(
    subject: str, *, reason: str, until_ms: int = 0, of_domain: bool = False, wait: bool = True
) -> Operation[Answer]:
    """Have a broker, or with `of_domain` those of a failure domain, take no bundles and give theirs
    away. Wait until they have none.

    The leader ends it at `until_ms` (Unix time; 0: no end). It applies to later processes with
    these ids, too. Raises `NotFound` for a broker that never joined, and for a domain without
    brokers; `InvalidPolicy`; and `PolicyLeavesNobody` if no other broker may have the bundles.
    """
    view = (yield from Look()).view
    key, document = (
        _maintenance_key(subject, of_domain=of_domain),
        control_document(reason, until_ms=until_ms),
    )
    domains = domains_in(view)
    names = [
        name
        for name, broker in view.brokers.items()
        if subject == (domain_of(broker, domains).name if of_domain else name)
    ]
    if not names:
        what = (
            f"broker is in the failure domain {subject[:_SHOWN]!r}"
            if of_domain
            else f"broker {subject[:_SHOWN]!r} has ever joined"
        )
        raise NotFound(f"no {what}; see the brokers: equipoise brokers list --all --json")
    live = {view.brokers[name].incarnation: name for name in names if view.brokers[name].live}
    bundles = sum(map(view.held_count, live))
    accepted = yield from Propose(intent=SetClusterPolicy(policy=key, document=document))
    if wait:
        yield from Until(
            condition=partial(_hold_nothing, incarnations=frozenset(live)),
            what=f"the maintenance of {subject}",
        )
    gives = (
        f"{counted(bundles, 'bundle')} of {counted(len(live), 'broker')}"
        f" {'moved' if wait else 'will move'} away"
    )
    sentence = f"{subject} is in maintenance: {gives}"
    return _accepted(
        accepted.offset,
        sentence,
        policy=key,
        brokers=sorted(names),
        bundles=bundles,
        until_ms=until_ms or None,
        done=wait,
    )


def end_maintenance(subject: str, *, of_domain: bool = False) -> Operation[Answer]:
    """End the maintenance of a broker or of a failure domain. Raises `NotFound` if it is in
    none.
    """
    key = _maintenance_key(subject, of_domain=of_domain)
    if key not in (yield from Look()).view.policies:
        raise NotFound(
            f"{subject[:_SHOWN]!r} is not in maintenance; see what is: equipoise brokers"
            " maintenance list"
        )
    accepted = yield from Propose(intent=SetClusterPolicy(policy=key, document=None))
    return _accepted(accepted.offset, f"the maintenance of {subject} has ended", policy=key)


def _maintenance_key(subject: str, *, of_domain: bool) -> str:
    return f"{DOMAIN_MAINTENANCE if of_domain else MAINTENANCE}/{subject}"


def _hold_nothing(view: View, *, incarnations: Collection[int]) -> bool | None:
    """Return True if these incarnations own no bundles; otherwise None."""
    return None if any(map(view.held_count, incarnations)) else True


def _is_up(view: View, *, broker_id: str) -> bool | None:
    """Return True if a broker is alive and does not drain; otherwise None."""
    broker = view.brokers.get(broker_id)
    return True if broker is not None and broker.status == "up" else None


def _is_drained(view: View, incarnation: int) -> bool | None:
    """Return True if an incarnation is draining and owns nothing, or is gone; otherwise None."""
    broker = view.live.get(incarnation)
    return (
        True
        if broker is None or (broker.status == "draining" and not view.held_count(incarnation))
        else None
    )
