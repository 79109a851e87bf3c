"""What an operator or a balancer may ask of a broker, before it becomes a record.

May live here: intents as values. They name brokers by id, as people do; `brokers.agent` turns them into proposals against
the view that it has at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from equipoise.brokers.balancing.settings import settings_records
from equipoise.channel.core.records import Document, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Move `bundle` to the broker `destination`."""

    bundle: str
    destination: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveAway:
    """Have another broker than its owner serve `bundle`, whichever: a transfer, which clients notice least.

    Where no other broker may have it, it is an `Unload`; with `or_stay` it is refused, and the bundle goes on where it is.
    """

    bundle: str
    reason: str
    or_stay: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """Take `bundle` from its owner, with nobody to take it over; it is placed anew."""

    bundle: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBundle:
    """Have the owner cut `bundle` by `algorithm`, at `positions` if the algorithm wants them given."""

    bundle: str
    algorithm: str
    reason: str
    positions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBundles:
    """Make one bundle of `left` and its right neighbour, which, if `right` is given, must be that one."""

    left: str
    reason: str
    right: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End a transfer or a split of `bundle` that has not happened: who served goes on, under the same token."""

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
    """Let nothing of a namespace be assigned any more, so that it can be deleted."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteNamespace:
    """Remove a deleting namespace whose bundles are all free."""

    name: str


class Unset(Enum):
    """What stands for any value, none included."""

    UNSET = "anything"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPolicy:
    """Set one of the policies of namespace `name`, or, with None, take it away; the others stay as they are.

    With `expected` only if that is its value, None standing for no such policy: what somebody else has set meanwhile is not undone.
    """

    name: str
    policy: str
    value: Scalar | None
    expected: Scalar | Unset | None = Unset.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusterPolicy:
    """Set the cluster policy `policy`, KIND/NAME as `brokers.balancing.policies` tells it, or, with None, take it away."""

    policy: str
    document: Document | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSettings:
    """Set settings of balancing, GROUP.FIELD as `brokers.balancing.settings.setting_values` tells them, or, with None, take them away.

    The others stay as they are. `changed_by` says who wants it, where that is not whoever proposes it.
    """

    changes: settings_records.Changes
    changed_by: str | None = None


AboutBundle = Transfer | MoveAway | Unload | SplitBundle | MergeBundles | Cancel
AboutNamespace = CreateNamespace | StartDeletingNamespace | DeleteNamespace | SetPolicy
Intent = AboutBundle | AboutNamespace | SetClusterPolicy | SetSettings


def subject_of(intent: Intent) -> str:
    """The key that an intent is about: a bundle (of a merge, the left one), a namespace, a policy, or the one of the settings."""
    if isinstance(intent, SetClusterPolicy):
        return intent.policy
    if isinstance(intent, SetSettings):
        return settings_records.KEY
    if isinstance(intent, MergeBundles):
        return intent.left
    return intent.bundle if isinstance(intent, Transfer | MoveAway | Unload | SplitBundle | Cancel) else intent.name
