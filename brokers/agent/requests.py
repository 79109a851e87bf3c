"""Define what an operator or a balancer may request, and turn such an intent into a record against
the current view, or into the rejection that the log would give. Intents name brokers by id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

from equipoise.brokers.balancing.destinations import Destinations
from equipoise.brokers.balancing.namespace_policies import misfit
from equipoise.brokers.balancing.placement import FewestBundles, Placement, places_elsewhere
from equipoise.brokers.balancing.policy_changes import check_policy_change
from equipoise.brokers.balancing.settings import settings_records
from equipoise.brokers.errors import (
    InvalidPolicy,
    InvalidSetting,
    Rejected,
)
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry, Verdict
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import tenant_in
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import (
    DOCUMENT_ENTRIES_MAX,
    QUIET_REASONS,
    AnyRecord,
    Document,
    Reason,
    Record,
    Scalar,
)
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import Names, explain


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Move `bundle` to the broker `destination`."""

    bundle: str
    destination: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveAway:
    """Transfer `bundle` to any other broker, with the least effect on clients.

    If no other broker may own it, unload it, or refuse if `or_stay` is set. `planned` is the
    incarnation to which a plan for several bundles moves it, if that still takes bundles.
    """

    bundle: str
    reason: str
    or_stay: bool = False
    planned: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """Release `bundle` without naming a new owner. Placement then assigns it again."""

    bundle: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBundle:
    """Let the owner cut `bundle` by `algorithm`, at `positions` if the algorithm needs them."""

    bundle: str
    algorithm: str
    reason: str
    positions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBundles:
    """Merge `left` with its right neighbour. If `right` is given, it must name that neighbour."""

    left: str
    reason: str
    right: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Cancel a transfer or a split that is not done yet. The owner goes on serving with the same
    token.
    """

    bundle: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateNamespace:
    """Create a namespace with these boundaries."""

    name: str
    boundaries: Sequence[int]
    policies: Document = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDeletingNamespace:
    """Stop all assignments in a namespace, so that it can be deleted."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteNamespace:
    """Remove a deleting namespace whose bundles are all free."""

    name: str


class Unset(Enum):
    """The type of `UNSET`: the caller expects no particular value."""

    UNSET = "anything"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPolicy:
    """Set one policy of namespace `name`, or remove it with None.

    With `expected`, set it only if its value is that (None: not set), so that no concurrent change
    is undone.
    """

    name: str
    policy: str
    value: Scalar | None
    expected: Scalar | Unset | None = Unset.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusterPolicy:
    """Set the cluster policy `policy` (KIND/NAME as in `brokers.balancing.policies`), or remove it
    with None.

    With `expected`, set it only if its document is that (None: not set), so that no concurrent
    change is undone.
    """

    policy: str
    document: Document | None
    expected: Document | Unset | None = Unset.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSettings:
    """Set settings of balancing (GROUP.FIELD as in `brokers.balancing.settings.setting_values`), or
    remove them with None.

    `changed_by` names the requester if that is not the proposing broker.
    """

    changes: settings_records.Changes
    changed_by: str | None = None


AboutBundle = Transfer | MoveAway | Unload | SplitBundle | MergeBundles | Cancel
AboutNamespace = CreateNamespace | StartDeletingNamespace | DeleteNamespace | SetPolicy
Intent = AboutBundle | AboutNamespace | SetClusterPolicy | SetSettings


def subject_of(intent: Intent) -> str:
    """Return the key on the channel that an intent changes: a bundle (the left one of a merge), a
    namespace, a policy, or the settings.
    """
    if isinstance(intent, SetClusterPolicy):
        return intent.policy
    if isinstance(intent, SetSettings):
        return settings_records.KEY
    if isinstance(intent, MergeBundles):
        return intent.left
    return intent.bundle if isinstance(intent, AboutBundle) else intent.name


def tenant_of(intent: Intent) -> str | None:
    """Return the tenant whose bundle or namespace an intent changes; None for one that changes the
    cluster.
    """
    return (
        None
        if isinstance(intent, SetClusterPolicy | SetSettings)
        else tenant_in(subject_of(intent))
    )


def action_of(intent: Intent) -> str:
    """Return what an intent does to `subject_of(intent)`, as the words between `cannot` and the
    subject.
    """
    match intent:
        case Transfer() | MoveAway():
            return "move"
        case Unload():
            return "unload"
        case SplitBundle():
            return "split"
        case MergeBundles():
            return "merge"
        case Cancel():
            return "cancel the move of"
        case CreateNamespace():
            return "create namespace"
        case StartDeletingNamespace() | DeleteNamespace():
            return "delete namespace"
        case SetPolicy(policy=policy, value=value):
            return f"{'set' if value is not None else 'remove'} {policy} of namespace"
        case SetClusterPolicy(document=None):
            return "delete"
        case SetClusterPolicy(expected=expected):
            return "create" if expected is None else "set"
        case SetSettings():
            return "change"


BY_COUNT: Final = FewestBundles()
"""The placement policy for callers that know no load."""

STOPPABLE: Final = frozenset[Phase]({"transferring", "splitting"})
"""The phases in which a move can be cancelled. Later its source has been ordered to release."""

RACES_MAX: Final = 5
"""Tries of a proposal that loses races. Each lost race is another writer's progress."""

_UNFIT_TARGET: Final = frozenset({Reason.DEAD_TARGET, Reason.DRAINING_TARGET})

Make = Callable[[Author], AnyRecord]


def may_run_again(view: View, intent: Intent | None, reason: Reason, race: int) -> bool:
    """Return whether to retry a proposal that was rejected as `reason` and read back in `view`.
    `race` counts the attempts, from 1.

    A proposal loses a race if its key or its destination changes before it is read back: the
    destination dies, joins again or drains.
    """
    if race >= RACES_MAX:
        return False
    if reason not in _UNFIT_TARGET:
        return reason is Reason.STALE
    if isinstance(intent, Transfer):
        broker = view.brokers.get(intent.destination)
        return broker is not None and broker.status == "up"
    return isinstance(intent, MoveAway)


def refusal(intent: Intent, verdict: Verdict) -> Rejected:
    """Return the refusal of an intent for which no record was proposed."""
    assert verdict.reason is not None, "an accepted record is not refused"
    action, reason, problem = action_of(intent), verdict.reason, verdict.problem
    return Rejected(
        key=subject_of(intent), reason=reason, problem=problem, offset=None, action=action
    )


def rejection(folded: Folded, view: View, action: str) -> Rejected:
    """Return the refusal of a record that was folded and rejected. `action` is as in `Rejected`.

    The problem is that of the record's story. A lost race has none: its story compares offsets.
    """
    record, reason = folded.record, folded.verdict.reason
    assert isinstance(record, Record), "what was encoded can be read"
    assert reason is not None, "an accepted record is not refused"
    problem = None if reason in QUIET_REASONS else explain(folded, view, Names(view))
    return Rejected(
        key=record.key, reason=reason, problem=problem, offset=folded.offset, action=action
    )


def record_of(view: View, intent: Intent, placement: Placement = BY_COUNT) -> Make | Verdict:
    """Return the maker of the record for `intent`, or its rejection. `placement` chooses missing
    destinations.

    A transfer to a dead or draining broker is proposed and rejected by the log, for `channel why`.
    Refused here are only intents without a record (unknown bundle, no owner) or without effect.
    """
    if isinstance(intent, AboutBundle):
        bundle = view.bundles.get(subject_of(intent))
        if bundle is None:
            return Verdict(reason=Reason.UNKNOWN_BUNDLE)
        if isinstance(intent, Cancel):
            return _cancel(bundle, intent.reason)
        if bundle.phase != "owned":
            return Verdict(
                reason=Reason.ILLEGAL_TRANSITION, problem=f"it is {bundle.state}, not owned"
            )
        return _about_bundle(view, bundle, intent, placement)
    if isinstance(intent, SetClusterPolicy):
        return _cluster_policy(view, intent)
    if isinstance(intent, SetSettings):
        return _settings(view, intent)
    if isinstance(intent, CreateNamespace):
        problem = misfit(intent.policies)
        if problem is not None:
            return Verdict(reason=Reason.MALFORMED, problem=problem)
        return partial(
            propose.create_namespace,
            view=view,
            name=intent.name,
            boundaries=intent.boundaries,
            policies=intent.policies,
        )
    if intent.name not in view.namespaces:
        return Verdict(reason=Reason.UNKNOWN_NAMESPACE)
    if isinstance(intent, SetPolicy):
        return _namespace_policy(view, intent)
    if isinstance(intent, StartDeletingNamespace):
        return partial(propose.start_deleting_namespace, view=view, name=intent.name)
    assert isinstance(intent, DeleteNamespace)
    return partial(propose.delete_namespace, view=view, name=intent.name)


def _away(
    view: View, bundle: BundleEntry, intent: MoveAway, placement: Placement
) -> Make | Verdict:
    """Return a transfer to another broker; if there is none, an unload or a rejection."""
    assert bundle.owner is not None, "an owned bundle has an owner"
    planned = view.live.get(intent.planned or 0)
    if planned is not None and planned.status == "up" and planned.incarnation != bundle.owner:
        return partial(
            propose.transfer, bundle=bundle, destination=planned.incarnation, reason=intent.reason
        )
    placed = places_elsewhere(view, [bundle], placement)
    if bundle.name in placed:
        return partial(
            propose.transfer, bundle=bundle, destination=placed[bundle.name], reason=intent.reason
        )
    if not intent.or_stay:
        return partial(propose.unload, bundle=bundle, reason=intent.reason)
    problem = (
        f"it stays at {view.live[bundle.owner].broker}:"
        f" {nobody_else(view, bundle) or 'placement finds no other broker'}"
    )
    return Verdict(reason=Reason.ILLEGAL_TRANSITION, problem=problem)


def nobody_else(view: View, bundle: BundleEntry) -> str | None:
    """Return why no broker other than the owner may have an owned bundle; None if one may."""
    assert bundle.owner is not None, "an owned bundle has an owner"
    owner = view.live[bundle.owner].broker
    refused = Destinations(view).bound(bundle).refused
    if any(broker.broker not in {owner, *refused} for broker in view.takers(bundle.namespace)):
        return None
    reasons = sorted({reason for broker, reason in refused.items() if broker != owner})
    return f"no other broker may own it: {'; '.join(reasons) or 'no other broker accepts bundles'}"


def _namespace_policy(view: View, intent: SetPolicy) -> Make | Verdict:
    before = view.namespaces[intent.name].policies
    now = before.get(intent.policy)
    # Check in each attempt: of two concurrent changes, the second sees the first.
    if not isinstance(intent.expected, Unset) and now != intent.expected:
        problem = (
            f"{intent.policy} is now {_value(now)}, but the change expects"
            f" {_value(intent.expected)}"
        )
        return Verdict(reason=Reason.ILLEGAL_TRANSITION, problem=problem)
    policies = {policy: value for policy, value in before.items() if policy != intent.policy}
    if intent.value is not None:
        policies[intent.policy] = intent.value
        unfit = misfit({intent.policy: intent.value})
        if unfit is not None:
            return Verdict(reason=Reason.MALFORMED, problem=unfit)
    if len(policies) > DOCUMENT_ENTRIES_MAX:
        problem = f"it already has {DOCUMENT_ENTRIES_MAX} policies, the maximum"
        return Verdict(reason=Reason.ILLEGAL_TRANSITION, problem=problem)
    return partial(propose.set_namespace_policies, view=view, name=intent.name, policies=policies)


def _value(value: Scalar | None) -> str:
    return "not set" if value is None else repr(value)


def _cluster_policy(view: View, intent: SetClusterPolicy) -> Make | Verdict:
    if intent.document is None and intent.policy not in view.policies:
        return Verdict(reason=Reason.UNKNOWN_POLICY)
    try:
        check_policy_change(view, intent.policy, intent.document)
    except InvalidPolicy as error:
        return Verdict(reason=Reason.MALFORMED, problem=error.problem)
    except Rejected as error:
        return Verdict(reason=Reason(error.reason), problem=error.problem)
    entry = view.policies.get(intent.policy)
    now = None if entry is None else entry.document
    # Check in each attempt: of two concurrent changes, the second sees the first.
    if not isinstance(intent.expected, Unset) and now != intent.expected:
        problem = "it already exists" if intent.expected is None else "another change was faster"
        return Verdict(reason=Reason.ILLEGAL_TRANSITION, problem=problem)
    if intent.document is None:
        return partial(propose.remove_policy, view=view, name=intent.policy)
    return partial(propose.set_policy, view=view, name=intent.policy, document=intent.document)


def _settings(view: View, intent: SetSettings) -> Make | Verdict:
    """Change the current settings, so that concurrent changes of different settings succeed."""
    try:
        document = settings_records.changed(
            settings_records.document_of(view), intent.changes, intent.changed_by
        )
    except (NotFound, InvalidSetting) as error:
        return Verdict(reason=Reason.MALFORMED, problem=str(error))
    if len(document) > DOCUMENT_ENTRIES_MAX:
        problem = (
            f"the balancing settings have at most {DOCUMENT_ENTRIES_MAX} entries, and each"
            " namespace counts"
        )
        return Verdict(reason=Reason.ILLEGAL_TRANSITION, problem=problem)
    return partial(propose.set_policy, view=view, name=settings_records.KEY, document=document)


def _cancel(bundle: BundleEntry, reason: str) -> Make | Verdict:
    if bundle.phase not in STOPPABLE:
        state = (
            "it is owned and does not move"
            if bundle.phase == "owned"
            else f"it is {bundle.state} already"
        )
        return Verdict(
            reason=Reason.ILLEGAL_TRANSITION, problem=f"there is nothing to cancel: {state}"
        )
    return partial(propose.cancel, bundle=bundle, reason=reason)


def _about_bundle(
    view: View, bundle: BundleEntry, intent: AboutBundle, placement: Placement
) -> Make | Verdict:
    if isinstance(intent, Transfer):
        broker = view.brokers.get(intent.destination)
        if broker is None:
            return Verdict(
                reason=Reason.UNKNOWN_BROKER,
                problem=f"no broker {intent.destination!r} has ever joined",
            )
        if broker.incarnation == bundle.owner:
            return Verdict(
                reason=Reason.ILLEGAL_TRANSITION,
                problem=f"{intent.destination} already owns it, so there is nothing to move",
            )
        return partial(
            propose.transfer, bundle=bundle, destination=broker.incarnation, reason=intent.reason
        )
    if isinstance(intent, MoveAway):
        return _away(view, bundle, intent, placement)
    if isinstance(intent, Unload):
        return partial(propose.unload, bundle=bundle, reason=intent.reason)
    if isinstance(intent, SplitBundle):
        return partial(
            propose.start_split,
            bundle=bundle,
            algorithm=intent.algorithm,
            positions=intent.positions,
            reason=intent.reason,
        )
    assert isinstance(intent, MergeBundles), "a cancel is handled above"
    right = view.right_neighbour(bundle)
    if right is None:
        return Verdict(reason=Reason.NOT_ADJACENT, problem="it is the last bundle of its namespace")
    if intent.right not in (None, right.name):
        return Verdict(
            reason=Reason.NOT_ADJACENT,
            problem=f"its right neighbour is {right.name}, not {intent.right}",
        )
    return partial(propose.merge, left=bundle, right=right, reason=intent.reason)
