"""Judge records and apply them to a view: `apply(view, offset, record) -> Verdict`, the only fold.

No IO, clock or randomness, and nothing that only one kind of reader needs.

The rules of the fold
1. `apply` is total: it returns a verdict for any view, higher offset and record, and raises
   nothing.
2. Only `apply` changes a view. So all readers at one offset have equal views and digests.
3. A rejected record changes only its publisher's sequence and the view's offset.
4. Order of the checks: genesis; publisher and sequence; level; form; `stale`; content. A proposal
   based on another state needs no finer answer than `stale`.
5. Entries are values: a change replaces an entry. A `Change` carries both for listeners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final, cast

from equipoise.channel.core.entries import (
    BrokerChanged,
    BrokerEntry,
    BundleChanged,
    BundleEntry,
    Change,
    LevelChanged,
    NamespaceChanged,
    NamespaceEntry,
    PolicyChanged,
    PolicyEntry,
    Verdict,
    broker_entry,
    bundle_entry,
    bundle_moved,
    next_entry,
)
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.lifecycle import (
    DEATH_ROWS,
    PHASE_OF_SHAPE,
    TRANSITIONS,
    Actor,
    Holder,
    Row,
)
from equipoise.channel.core.ranges import (
    BUNDLES_MAX,
    HASH_MAX,
    check_broker_id,
    check_recorded_namespace,
)
from equipoise.channel.core.records import (
    ADMIN_WINDOW_OFFSETS,
    AnyRecord,
    BrokerRecord,
    BundleTransition,
    Genesis,
    Joined,
    LevelRecord,
    Merge,
    NamespaceRecord,
    PolicyRecord,
    Reason,
    Renewed,
    Split,
    Unreadable,
)
from equipoise.channel.core.table import View

__all__ = ["View", "apply"]

_REJECTED: Final[Mapping[Reason, Verdict]] = {reason: Verdict(reason=reason) for reason in Reason}
_STALE: Final = _REJECTED[Reason.STALE]
_LATE: Final = _REJECTED[Reason.LATE]
_ILLEGAL: Final = _REJECTED[Reason.ILLEGAL_TRANSITION]
_NOT_THE_ACTOR: Final = _REJECTED[Reason.NOT_THE_ACTOR]
# Bound once: in Python 3.11 each access to an enum costs as much as a call.
_ANY_BROKER: Final = Actor.ANY_BROKER
_BY_OWNER: Final = Actor.OWNER
_BY_SOURCE: Final = Actor.SOURCE
_OWNER: Final = Holder.OWNER
_TARGET: Final = Holder.TARGET

# Finds the row of a transition in one step, by the phase before and the record's shape.
_ROW_OF_SHAPE: Final = {
    (row.before, *shape): row
    for shape, phase in PHASE_OF_SHAPE.items()
    for row in TRANSITIONS
    if row.after == phase
}

_RENEWED: Final = Verdict()
_RENEWED_AND_DIVERGED: Final = Verdict(diverged=True)


def apply(view: View, offset: int, record: AnyRecord | Unreadable) -> Verdict:
    """Return the verdict on one record at its logical `offset`, above `view.offset`. Apply it if it
    is accepted.

    Total and deterministic.
    """
    view.offset = offset
    kind = type(record)
    if view.genesis is None and kind is not Genesis:
        return _REJECTED[Reason.NO_GENESIS]
    # `genesis` and `joined` precede an incarnation; their rules check publisher and level.
    rule = _BEFORE_MEMBERSHIP.get(kind)
    if rule is not None:
        return rule(view, offset, record)
    settled = _settle(view, offset, record)
    if settled is not None:
        return settled
    if record.level > view.level:
        return _REJECTED[Reason.LEVEL]
    return _RULES[kind](view, offset, record)


def _settle(view: View, offset: int, record: AnyRecord | Unreadable) -> Verdict | None:
    """Check the publisher and settle its attempt, before the verdict.

    So a live publisher that reads back one of its records knows that each earlier one is either
    read or will never be accepted.
    """
    incarnation = record.incarnation
    if incarnation is None:
        return None if isinstance(record, Unreadable) else _admin_refusal(offset, record.as_of or 0)
    publisher = view.live.get(incarnation)
    if publisher is None or publisher.broker != record.publisher:
        return _REJECTED[Reason.DEAD_PUBLISHER]
    sequence = record.sequence or 0
    if sequence <= publisher.sequence:
        return _LATE
    view.raise_sequence(publisher, sequence)
    return None


def _admin_refusal(offset: int, as_of: int) -> Verdict | None:
    if offset - as_of > ADMIN_WINDOW_OFFSETS:
        return _LATE
    if as_of >= offset:
        return Verdict(reason=Reason.MALFORMED, problem="as_of is above the record's own offset")
    return None


def _unreadable(_view: View, _offset: int, record: Unreadable) -> Verdict:
    return Verdict(reason=Reason.MALFORMED, problem=record.problem)


# --- genesis, level, policies ---


def _genesis(view: View, offset: int, record: Genesis) -> Verdict:
    if view.genesis is not None:
        return _genesis_of_copy(view, view.genesis, offset, record)
    view.cluster, view.base, view.genesis = record.cluster, record.base, offset
    view.removed_at = view.level_last = offset
    view.level = record.level
    view.scalars_changed()
    return Verdict(changes=(LevelChanged(before=0, after=record.level),))


def _genesis_of_copy(view: View, genesis: int, offset: int, record: Genesis) -> Verdict:
    if record.cluster != view.cluster:
        return _REJECTED[Reason.FOREIGN_GENESIS]
    # A copy begins with the view of its snapshot, whose genesis stood in the old log, at or below
    # the new base. In other logs the genesis stands above the base. There a second genesis is late:
    # its writer also found the log empty. So is a second genesis of a copy.
    if genesis > view.base or record.base != view.base or record.level != view.level:
        return _STALE
    view.genesis = offset
    view.scalars_changed()
    return Verdict()


def _level(view: View, offset: int, record: LevelRecord) -> Verdict:
    if record.expected_offset != view.level_last:
        return _STALE
    if record.raises_to <= view.level:
        return _ILLEGAL
    unready = [
        broker.broker
        for broker in view.live_brokers()
        if broker.joined.supported_level < record.raises_to
    ]
    if unready:
        return Verdict(reason=Reason.LEVEL, problem=f"not supported by {', '.join(unready)}")
    before, view.level, view.level_last = view.level, record.raises_to, offset
    view.scalars_changed()
    return Verdict(changes=(LevelChanged(before=before, after=record.raises_to),))


def _policy(view: View, offset: int, record: PolicyRecord) -> Verdict:
    before = view.policies.get(record.key)
    if record.expected_offset != (view.removed_at if before is None else before.last):
        return _STALE
    after = None
    if record.status == "removed":
        if before is None:
            return _REJECTED[Reason.UNKNOWN_POLICY]
        _remember_removal(view, offset)
    else:
        after = PolicyEntry(name=record.key, last=offset, document=record.document or {})
    view.put_policy(record.key, after)
    return Verdict(changes=(PolicyChanged(name=record.key, before=before, after=after),))


def _remember_removal(view: View, offset: int) -> None:
    # One offset for all absent keys. A create must expect it, so a late duplicate of an old create
    # restores nothing.
    view.removed_at = offset
    view.scalars_changed()


# --- namespaces ---


def _namespace(view: View, offset: int, record: NamespaceRecord) -> Verdict:
    before = view.namespaces.get(record.key)
    if record.expected_offset != (view.removed_at if before is None else before.last):
        return _STALE
    if record.status == "created":
        return _ILLEGAL if before is not None else _namespace_created(view, offset, record)
    if before is None:
        return _REJECTED[Reason.UNKNOWN_NAMESPACE]
    if record.status == "deleted":
        return _namespace_deleted(view, offset, before)
    if before.status == "deleting":
        return _ILLEGAL
    deleting = record.status == "deleting"
    after = NamespaceEntry(
        name=before.name,
        status="deleting" if deleting else "created",
        last=offset,
        created=before.created,
        policies=before.policies if deleting else record.policies or {},
    )
    view.put_namespace(after.name, after)
    return Verdict(changes=(NamespaceChanged(name=after.name, before=before, after=after),))


def _namespace_created(view: View, offset: int, record: NamespaceRecord) -> Verdict:
    try:
        check_recorded_namespace(record.key)
    except InvalidName as error:
        return Verdict(reason=Reason.MALFORMED, problem=str(error))
    cuts = record.boundaries or ()
    covers = 1 < len(cuts) <= BUNDLES_MAX + 1 and cuts[0] == 0 and cuts[-1] == HASH_MAX
    if not covers or any(low >= high for low, high in pairwise(cuts)):
        return Verdict(
            reason=Reason.BAD_BOUNDARY, problem="boundaries must rise from 0 to 0xffffffff"
        )
    after = NamespaceEntry(
        name=record.key,
        status="created",
        last=offset,
        created=offset,
        policies=record.policies or {},
    )
    view.put_namespace(after.name, after)
    changes: list[Change] = [NamespaceChanged(name=after.name, before=None, after=after)]
    for low, high in pairwise(cuts):
        bundle = bundle_entry(
            record.key, low, high, "free", owner=None, source=None, last=offset, token=offset
        )
        view.insert_bundle(bundle)
        changes.append(BundleChanged(name=bundle.name, before=None, after=bundle))
    return Verdict(changes=tuple(changes))


def _namespace_deleted(view: View, offset: int, before: NamespaceEntry) -> Verdict:
    bundles = view.bundles_of(before.name)
    if before.status != "deleting":
        return Verdict(
            reason=Reason.ILLEGAL_TRANSITION,
            problem="a namespace must be deleting before it is deleted",
        )
    busy = [bundle.name for bundle in bundles if bundle.phase != "free"]
    if busy:
        return Verdict(
            reason=Reason.BUNDLES_IN_USE,
            problem=f"{len(busy)} bundles are not free, the first is {busy[0]}",
        )
    # From the end: removing 65,536 bundles from the front of their index would outlast a lease.
    for bundle in reversed(bundles):
        view.remove_bundle(bundle)
    view.put_namespace(before.name, None)
    _remember_removal(view, offset)
    gone = [BundleChanged(name=bundle.name, before=bundle, after=None) for bundle in bundles]
    return Verdict(changes=(NamespaceChanged(name=before.name, before=before, after=None), *gone))


# --- brokers ---


def _joined(view: View, offset: int, record: Joined) -> Verdict:
    if record.level > view.level or record.supported_level < view.level:
        return _REJECTED[Reason.LEVEL]
    before = view.brokers.get(record.key)
    alive = before is not None and before.live
    # A plain attempt while the id looks alive gets `still_alive` for any expected offset. This
    # shows a process without its data directory that it can reach the log.
    if (
        alive
        and not record.after_silence
        and record.replaces != cast("BrokerEntry", before).joined.instance_id
    ):
        return _REJECTED[Reason.STILL_ALIVE]
    if record.expected_offset != view.last_of_broker(record.key):
        return _STALE
    try:
        check_broker_id(record.key)
    except InvalidName as error:
        return Verdict(reason=Reason.MALFORMED, problem=str(error))
    freed = _declare_dead(view, offset, cast("BrokerEntry", before).incarnation) if alive else []
    if before is not None:
        view.remove_broker(before)
    after = broker_entry(record, incarnation=offset, status="up", last=offset, sequence=0)
    view.put_broker(after)
    after.digest_after = view.digest()
    dead = before.incarnation if before is not None and alive else None
    changed = BrokerChanged(
        name=record.key, before=None if before is None else before.status, after=after, dead=dead
    )
    return Verdict(changes=(changed, *freed))


def _renewed(view: View, offset: int, record: Renewed) -> Verdict:
    broker = view.brokers.get(record.key)
    if record.expected_offset != (view.removed_at if broker is None else broker.last):
        return _STALE
    if broker is None:
        return _REJECTED[Reason.UNKNOWN_BROKER]
    # A live publisher's incarnation matches only its own entry. An admin has none.
    if record.incarnation != broker.incarnation:
        return _NOT_THE_ACTOR
    agrees = record.digest == broker.digest_after
    view.raise_last(broker, offset)
    broker.digest_after = view.digest()
    return _RENEWED if agrees else _RENEWED_AND_DIVERGED


def _broker(view: View, offset: int, record: BrokerRecord) -> Verdict:
    broker = view.brokers.get(record.key)
    if record.expected_offset != view.last_of_broker(record.key):
        return _STALE
    if broker is None:
        return _REJECTED[Reason.UNKNOWN_BROKER]
    refusal = _BROKER_RULES[record.status](broker, record)
    if refusal is not None:
        return refusal
    before, after = broker.status, None
    ends_life = record.status in ("left", "down")
    freed = _declare_dead(view, offset, broker.incarnation) if ends_life else []
    view.remove_broker(broker)
    if record.status == "removed":
        _remember_removal(view, offset)
    else:
        sequence = 0 if ends_life else broker.sequence
        after = broker_entry(
            broker.joined,
            incarnation=broker.incarnation,
            status=record.status,
            last=offset,
            sequence=sequence,
        )
        view.put_broker(after)
        after.digest_after = view.digest()
    changed = BrokerChanged(
        name=record.key, before=before, after=after, dead=broker.incarnation if ends_life else None
    )
    return Verdict(changes=(changed, *freed))


def _may_drain_or_leave(before: BrokerEntry, record: BrokerRecord) -> Verdict | None:
    if record.publisher != before.broker:
        return _NOT_THE_ACTOR
    return _ILLEGAL if record.status == before.status else None


def _may_be_down(before: BrokerEntry, record: BrokerRecord) -> Verdict | None:
    if not before.live:
        return _ILLEGAL
    if record.publisher == before.broker:
        return _NOT_THE_ACTOR
    # The instance id of a process that has ended proves a death. An admin has no other proof.
    is_proof = record.instance_id is not None or record.incarnation is None
    if is_proof and record.instance_id != before.joined.instance_id:
        return _REJECTED[Reason.STILL_ALIVE]
    return None


def _may_be_removed(before: BrokerEntry, record: BrokerRecord) -> Verdict | None:
    if record.incarnation is None:
        return _NOT_THE_ACTOR
    return _REJECTED[Reason.STILL_ALIVE] if before.live else None


_BROKER_RULES: Final[Mapping[str, Callable[[BrokerEntry, BrokerRecord], Verdict | None]]] = {
    "draining": _may_drain_or_leave,
    "left": _may_drain_or_leave,
    "down": _may_be_down,
    "removed": _may_be_removed,
}


def _declare_dead(view: View, offset: int, dead: int) -> list[BundleChanged]:
    """Apply the death of incarnation `dead` to the bundles that name it. Return the changes, by
    bundle name.
    """
    changes = []
    for before in view.held_by(dead):
        row = DEATH_ROWS[before.phase, "owner" if before.owner == dead else "source"]
        owner = {Holder.NOBODY: None, Holder.OWNER: before.owner, Holder.SOURCE: before.source}[
            row.owner
        ]
        token = offset if row.new_token else before.token
        after = next_entry(before, row.after, owner=owner, source=None, last=offset, token=token)
        view.put_bundle(after, before)
        changes.append(BundleChanged(name=before.name, before=before, after=after))
    return changes


# --- bundles ---


def _transition(view: View, offset: int, record: BundleTransition) -> Verdict:
    before = view.bundles.get(record.key)
    if before is None:
        return _REJECTED[Reason.UNKNOWN_BUNDLE]
    if record.expected_offset != before.last:
        return _STALE
    row = _ROW_OF_SHAPE.get(
        (before.phase, record.state, record.owner is not None, record.source is not None)
    )
    if row is None:
        return _ILLEGAL
    refusal = _refusal(view, row, before, record)
    if refusal is not None:
        return refusal
    splitting = row.after == "splitting"
    after = next_entry(
        before,
        row.after,
        owner=record.owner,
        source=record.source,
        last=offset,
        token=offset if row.new_token else before.token,
        algorithm=record.algorithm if splitting else None,
        positions=record.positions if splitting else None,
    )
    view.put_bundle(after, before)
    return bundle_moved(before, after)


def _refusal(view: View, row: Row, before: BundleEntry, record: BundleTransition) -> Verdict | None:
    """Return None if the record meets the columns *who* and *condition* of its row, else the
    rejection.
    """
    owner, source = record.owner, record.source
    # Record and row have the same shape, so the record names nobody else.
    if source is not None and source != (before.owner if row.source is _OWNER else before.source):
        return _ILLEGAL
    if (
        owner is not None
        and row.owner is not _TARGET
        and owner != (before.owner if row.owner is _OWNER else before.source)
    ):
        return _ILLEGAL
    if not _may_act(row.actors, before, record.incarnation):
        return _NOT_THE_ACTOR
    if row.refused_while_deleting and view.namespaces[before.namespace].status == "deleting":
        return _REJECTED[Reason.NAMESPACE_DELETING]
    return _unfit_target(view, before, cast("int", owner)) if row.owner is _TARGET else None


def _may_act(actors: tuple[Actor, ...], before: BundleEntry, incarnation: int | None) -> bool:
    if incarnation is None:
        return Actor.ADMIN in actors
    for actor in actors:
        if actor is _ANY_BROKER:
            return True
        if (actor is _BY_OWNER and incarnation == before.owner) or (
            actor is _BY_SOURCE and incarnation == before.source
        ):
            return True
    return False


def _unfit_target(view: View, before: BundleEntry, target: int) -> Verdict | None:
    if target == before.owner:
        return _ILLEGAL
    broker = view.live.get(target)
    if broker is None:
        return _REJECTED[Reason.DEAD_TARGET]
    if broker.status != "up":
        return _REJECTED[Reason.DRAINING_TARGET]
    return None if broker.joined.serves(before.namespace) else _REJECTED[Reason.NOT_SERVED]


def _split(view: View, offset: int, record: Split) -> Verdict:
    parent = view.bundles.get(record.key)
    if parent is None:
        return _REJECTED[Reason.UNKNOWN_BUNDLE]
    if record.expected_offset != parent.last:
        return _STALE
    if parent.phase != "splitting":
        return _ILLEGAL
    if record.incarnation != parent.owner:
        return _NOT_THE_ACTOR
    edges = (parent.low, *record.positions, parent.high)
    if not record.positions or any(low >= high for low, high in pairwise(edges)):
        return Verdict(
            reason=Reason.BAD_BOUNDARY, problem="the cuts must rise strictly inside the bundle"
        )
    view.remove_bundle(parent)
    changes = [BundleChanged(name=parent.name, before=parent, after=None)]
    for low, high in pairwise(edges):
        child = bundle_entry(
            parent.namespace,
            low,
            high,
            "owned",
            owner=parent.owner,
            source=None,
            last=offset,
            token=parent.token,
        )
        view.insert_bundle(child)
        changes.append(BundleChanged(name=child.name, before=None, after=child))
    return Verdict(changes=tuple(changes))


def _merge(view: View, offset: int, record: Merge) -> Verdict:
    left, right = view.bundles.get(record.key), view.bundles.get(record.right)
    if left is None or right is None:
        return _REJECTED[Reason.UNKNOWN_BUNDLE]
    if record.expected_offset != left.last or record.expected_offset_right != right.last:
        return _STALE
    if left.namespace != right.namespace or left.high != right.low:
        return _REJECTED[Reason.NOT_ADJACENT]
    if left.phase != "owned" or right.phase != "owned" or left.owner != right.owner:
        return _ILLEGAL
    view.remove_bundle(left)
    view.remove_bundle(right)
    token = max(left.token, right.token)
    union = bundle_entry(
        left.namespace,
        left.low,
        right.high,
        "owned",
        owner=left.owner,
        source=None,
        last=offset,
        token=token,
    )
    view.insert_bundle(union)
    return Verdict(
        changes=(
            BundleChanged(name=left.name, before=left, after=None),
            BundleChanged(name=right.name, before=right, after=None),
            BundleChanged(name=union.name, before=None, after=union),
        )
    )


_Rules = Mapping[type, Callable[[View, int, object], Verdict]]

_BEFORE_MEMBERSHIP: Final = cast("_Rules", {Genesis: _genesis, Joined: _joined})

_RULES: Final = cast(
    "_Rules",
    {
        Unreadable: _unreadable,
        BundleTransition: _transition,
        Split: _split,
        Merge: _merge,
        NamespaceRecord: _namespace,
        Renewed: _renewed,
        BrokerRecord: _broker,
        PolicyRecord: _policy,
        LevelRecord: _level,
    },
)
