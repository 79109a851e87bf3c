"""Define what an operator or a balancer may request. Intents name brokers by id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from equipoise.brokers.balancing.settings import settings_records
from equipoise.channel.core.ranges import tenant_in
from equipoise.channel.core.records import Document, Scalar


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
    return (
        intent.bundle
        if isinstance(intent, Transfer | MoveAway | Unload | SplitBundle | Cancel)
        else intent.name
    )


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
