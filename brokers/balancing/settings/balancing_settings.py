"""Define all settings of balancing as one value, and create the strategies that they name.

A setting is named GROUP.FIELD: a group is a field of `BalancingSettings`, FIELD is a field of the
group. `settings_records` stores them on the channel; `pulsar_settings` reads them from a
`broker.conf`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import entry_points
from typing import Any, Final

from equipoise.brokers.balancing.destinations import PlacementRules
from equipoise.brokers.balancing.placement import (
    FewestBundles,
    LeastCost,
    LeastLongTermMessageRate,
    LeastResourceUsageWithWeight,
    Placement,
    RoundRobin,
)
from equipoise.brokers.balancing.quarantine import QuarantineRules
from equipoise.brokers.balancing.splitting.auto_merge import MergeSettings
from equipoise.brokers.balancing.splitting.auto_split import SplitSettings
from equipoise.brokers.balancing.splitting.split_points import RANGE_EQUALLY_DIVIDE, BundleLimits
from equipoise.shedder.loads import Load, Weights
from equipoise.shedder.policy import Policy
from equipoise.shedder.registry import ENTRY_POINTS, found_in

Loads = Mapping[str, Load]
"""The reported loads of brokers, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """The group `balancing`: what is done, when, by which strategies, and how much at once.

    * `enabled`: all automatic moves, splits and merges. `shedding`, `splitting`, `merging`: each of
      these.
    * `shedder`, `placement`: a name of `SHEDDERS` and of `PLACEMENTS`.
    * `shed_interval_ms`, `split_interval_ms`: the time between two rounds. Merges run with splits.
    * `rest_ms`: how long a bundle is left alone after any move, split or merge.
    * `move_timeout_ms`: how long to wait for the end of a move.
    * `moves_max`: concurrent moves in the cluster. `broker_moves_max`: concurrent moves to and from
      one broker.
    * `split_algorithm`: a name of `splitting.split_points`. `unload_split_children`: move the
      children of a split away at once.
    * `namespace_bundles`: the default number of bundles of a new namespace.
    """

    enabled: bool = True
    shedding: bool = True
    splitting: bool = True
    merging: bool = False
    shedder: str = "BalancedShedder"
    placement: str = "LeastCost"
    shed_interval_ms: int = 5_000
    split_interval_ms: int = 5_000
    rest_ms: int = 60_000
    move_timeout_ms: int = 60_000
    moves_max: int = 64
    broker_moves_max: int = 16
    split_algorithm: str = RANGE_EQUALLY_DIVIDE
    unload_split_children: bool = False
    namespace_bundles: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRules:
    """The group `reports`: when a broker reports, and what.

    * `sample_interval_ms`: the time between two samples.
    * `interval_min_ms`, `interval_max_ms`: the least and the most time between two reports. In
      between, a report is due when a figure has changed by `change_percent`.
    * `bundles_max`: how many bundles a report names; None: all. `history`: see
      `shedder.loads.Load`.
    * `cost_window_ms`: the time of the long average of a bundle's load. All times of costs are
      shares of it, see `brokers.load.sampling`.
    * `nic_speed_gbps`: the network capacity in each direction, if the card does not report it;
      None: as the card reports.
    """

    sample_interval_ms: int = 2_500
    interval_min_ms: int = 2_500
    interval_max_ms: int = 5_000
    change_percent: int = 10
    bundles_max: int | None = 20
    history: float = 0.9
    cost_window_ms: int = 900_000
    nic_speed_gbps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuotas:
    """The group `tenants`: what one tenant may have, so that it leaves room for the others.

    * `namespaces_max`, `bundles_max`: in the cluster. `topics_max`: at one broker.
    * `records_per_second_max`: what callers of one broker may change, for 2 s at once.
    """

    namespaces_max: int = 1_000
    bundles_max: int = 16_384
    topics_max: int = 50_000
    records_per_second_max: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastMessageRate:
    """The group `least_message_rate`, for
    `brokers.balancing.placement.LeastLongTermMessageRate`.
    """

    overloaded_percent: float = 85.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastUsage:
    """The group `least_usage`, for `brokers.balancing.placement.LeastResourceUsageWithWeight`."""

    difference_percent: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPointRules:
    """The group `split_points`, for `brokers.balancing.splitting.split_points.SplitQuestion`."""

    margin: float = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancingSettings:
    """All groups. `weights` apply to all strategies that weigh resources, `limits` to splits and
    merges. `policies` are those that are installed, by the group of their settings.
    """

    balancing: RoundSettings = field(default_factory=RoundSettings)
    reports: ReportRules = field(default_factory=ReportRules)
    weights: Weights = field(default_factory=Weights)
    # A mapping has no hash. Settings that differ only here are rare.
    policies: Mapping[str, Policy] = field(default_factory=lambda: _DEFAULTS, hash=False)
    limits: BundleLimits = field(default_factory=BundleLimits)
    split: SplitSettings = field(default_factory=SplitSettings)
    merge: MergeSettings = field(default_factory=MergeSettings)
    split_points: SplitPointRules = field(default_factory=SplitPointRules)
    placement: PlacementRules = field(default_factory=PlacementRules)
    least_message_rate: LeastMessageRate = field(default_factory=LeastMessageRate)
    least_usage: LeastUsage = field(default_factory=LeastUsage)
    quarantine: QuarantineRules = field(default_factory=QuarantineRules)
    tenants: TenantQuotas = field(default_factory=TenantQuotas)

    @property
    def policy(self) -> Policy:
        """The policy that `balancing.shedder` names, with its settings."""
        name = self.balancing.shedder
        return next(each for each in self.policies.values() if type(each).__name__ == name)

    def groups(self) -> Mapping[str, Any]:
        """Return all groups by name, in order."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            found |= value if each.name == _POLICIES else {each.name: value}
        return found

    def with_group(self, name: str, **values: object) -> BalancingSettings:
        """Return the settings with other values in one group."""
        group = replace(self.groups()[name], **values)
        if name in self.policies:
            return replace(self, policies={**self.policies, name: group})
        return replace(self, **{name: group})


_POLICIES: Final = "policies"

POLICIES, UNUSABLE = found_in(
    entry_points(group=ENTRY_POINTS),
    reserved=frozenset(each.name for each in fields(BalancingSettings)),
)
"""The policies by the group of their settings, and why others cannot be used, by name."""

_DEFAULTS: Final[Mapping[str, Policy]] = {group: policy() for group, policy in POLICIES.items()}

SHEDDERS: Final[Mapping[str, str]] = {policy.__name__: group for group, policy in POLICIES.items()}
"""The group of settings of each policy, by the name in `balancing.shedder`."""

PLACEMENTS: Final[Mapping[str, Callable[[BalancingSettings, Loads], Placement]]] = {
    "LeastCost": lambda settings, loads: LeastCost(loads=loads, rules=settings.placement),
    "FewestBundles": lambda settings, loads: FewestBundles(loads=loads, rules=settings.placement),
    "LeastLongTermMessageRate": lambda settings, loads: LeastLongTermMessageRate(
        loads=loads,
        overloaded_percent=settings.least_message_rate.overloaded_percent,
        rules=settings.placement,
    ),
    "LeastResourceUsageWithWeight": lambda settings, loads: LeastResourceUsageWithWeight(
        loads=loads,
        difference_percent=settings.least_usage.difference_percent,
        rules=settings.placement,
    ),
    "RoundRobin": lambda settings, _: RoundRobin(rules=settings.placement),
}
"""The placements by the names of `balancing.placement`, made from the reported loads."""


def placement_of(
    settings: BalancingSettings, loads: Loads, *, before: Placement | None = None
) -> Placement:
    """Return the configured placement for these reports. Return `before` if both are `RoundRobin`
    with equal rules: it knows the turn.
    """
    made = PLACEMENTS[settings.balancing.placement](settings, loads)
    return (
        before
        if isinstance(made, RoundRobin)
        and isinstance(before, RoundRobin)
        and made.rules == before.rules
        else made
    )


def split_settings_of(settings: BalancingSettings) -> SplitSettings:
    """Return the settings of splits, with the common limits."""
    return replace(settings.split, limits=settings.limits)


def merge_settings_of(settings: BalancingSettings) -> MergeSettings:
    """Return the settings of merges, with the common limits."""
    return replace(settings.merge, limits=settings.limits)
