"""Implement Pulsar's `ThresholdShedder` and `OverloadShedder`: brokers above the mean plus a
threshold, or above a fixed one, shed throughput until they are 5 % below.

Placement chooses where the bundles go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

from equipoise.shedder.loads import blend
from equipoise.shedder.picking import BYTES_MIN, Picking
from equipoise.shedder.plan import Plan
from equipoise.shedder.policy import (
    ANY,
    EXACT,
    SEARCHED_HISTORY,
    SHARE,
    Policy,
    SearchRange,
    setting,
)
from equipoise.shedder.reported import format_percent, format_rate
from equipoise.shedder.snapshot import Snapshot

# What is shed in addition to the excess: Pulsar's `ADDITIONAL_THRESHOLD_PERCENT_MARGIN` of both
# strategies.
_MARGIN: Final = 0.05

# The share of the threshold that the most used broker sheds if another is far below the mean:
# Pulsar's `LOWER_BOUNDARY_THRESHOLD_MARGIN`.
_LOWER_BOUNDARY_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdShedder(Policy):
    """Pulsar's, which unloads brokers that are too far above the mean.

    With `pulsar_exact` it computes its own averages, one step per round. By default it uses the
    reported averages, which decay by time and survive a change of the leader.
    """

    threshold_percent: float = setting(
        "Distance above the mean at which a broker gives bundles, in percentage points.",
        ANY,
        default=10,
    )
    bytes_min: float = setting(BYTES_MIN, ANY, default=10 * 1_048_576)
    lower_boundary: bool = setting(
        "The most used broker also gives bundles if another broker is that far below the mean.",
        default=False,
    )
    history: float = setting(
        "With `pulsar_exact`: weight of the old value in an average, each round.",
        SHARE,
        default=0.9,
    )
    pulsar_exact: bool = setting(EXACT, default=False)

    searched: ClassVar[Mapping[str, SearchRange]] = MappingProxyType(
        {
            "threshold.threshold_percent": SearchRange(least=1, most=40, log=True),
            "reports.history": SEARCHED_HISTORY,
        }
    )

    def plan(self, snapshot: Snapshot, memory: object = None) -> tuple[Plan, Mapping[str, float]]:
        """See `Policy.plan`. With `pulsar_exact`, it remembers each broker's average use."""
        picking = Picking.of(snapshot, pulsar_exact=self.pulsar_exact)
        uses = self._uses(picking, memory if isinstance(memory, Mapping) else {})
        mean = _mean_of(uses)
        if mean == 0:
            unused = picking.plan(idle="no broker is used at all", mean=mean)
            return unused, uses if self.pulsar_exact else {}
        bound = mean + self.threshold_percent / 100
        for broker, use in uses.items():
            now = snapshot.weights.weighted_max(picking.loads[broker].resources)
            if use < bound:
                picking.stays[broker] = (
                    f"{_use_and_mean(use, mean)}; up to {self.threshold_percent:.0f} points above"
                    " the mean are allowed"
                )
            elif not self.pulsar_exact and 0 < now < bound:
                # After a move the use falls at once, but its average only after many rounds.
                # Without this check the broker would shed each time.
                picking.stays[broker] = (
                    f"{_use_and_mean(use, mean)} on average; now it is {format_percent(now)}"
                )
            else:
                self._shed(picking, broker, use - bound + _MARGIN, _use_and_mean(use, mean))
        if self.lower_boundary and not picking.moves:
            # Pulsar updates the averages a second time here, so they run twice as fast.
            if self.pulsar_exact:
                uses = self._uses(picking, uses)
                mean = _mean_of(uses)
            self._shed_for_the_least_used(picking, uses, mean)
        idle = "no broker is too far from the mean and has enough to give"
        return picking.plan(idle=idle, mean=mean), uses if self.pulsar_exact else {}

    def _uses(self, picking: Picking, before: Mapping[str, float]) -> Mapping[str, float]:
        if not self.pulsar_exact:
            return {broker: load.average_use for broker, load in picking.loads.items()}
        now = {
            broker: picking.snapshot.weights.weighted_max(load.resources)
            for broker, load in picking.loads.items()
        }
        return {
            broker: blend(before[broker], use, kept=self.history) if broker in before else use
            for broker, use in now.items()
        }

    def _shed(self, picking: Picking, broker: str, share: float, comparison: str) -> None:
        """Plan that `broker` sheds this share of its throughput, if that is enough and it has two
        bundles.
        """
        load = picking.loads[broker]
        need = load.traffic.bytes_per_second * share
        if need < self.bytes_min:
            picking.stays[broker] = (
                f"{comparison}, but the {format_rate(need)} to give are too small for a move"
            )
            return
        if load.bundle_count < 2:  # noqa: PLR2004
            picking.stays[broker] = (
                f"{comparison}, but its only bundle is too heavy for another broker: split it"
            )
            return
        reason = (
            f"threshold: {broker} should give {format_rate(need)} of"
            f" {format_rate(load.traffic.bytes_per_second)}: {comparison}"
        )
        picking.shed(broker, need, comparison=comparison, reason=reason)

    def _shed_for_the_least_used(
        self, picking: Picking, uses: Mapping[str, float], mean: float
    ) -> None:
        threshold = self.threshold_percent / 100
        if not any(use < mean - threshold for use in uses.values()):
            return
        givers = [broker for broker in uses if picking.loads[broker].bundle_count > 1]
        if givers:
            most = max(givers, key=lambda broker: uses[broker])
            self._shed(
                picking,
                most,
                threshold * _LOWER_BOUNDARY_SHARE,
                f"{_use_and_mean(uses[most], mean)}, and other brokers are far below",
            )


def _mean_of(uses: Mapping[str, float]) -> float:
    return sum(uses.values()) / len(uses) if uses else 0.0


def _use_and_mean(use: float, mean: float) -> str:
    return f"use is {format_percent(use)} (mean: {format_percent(mean)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadShedder(Policy):
    """Pulsar's, which unloads brokers above a fixed use.

    Example: a broker at 95 % with a threshold of 85 % sheds (95 - 85) + 5 = 15 % of its throughput.
    By default nothing moves if no broker is below the threshold, and a broker keeps at least one
    bundle.
    """

    overloaded_percent: float = setting(
        "Use above which a broker gives bundles, in percent.", ANY, default=85
    )
    pulsar_exact: bool = setting(EXACT, default=False)

    searched: ClassVar[Mapping[str, SearchRange]] = MappingProxyType(
        {"overload.overloaded_percent": SearchRange(least=20, most=95)}
    )

    def plan(self, snapshot: Snapshot, memory: object = None) -> tuple[Plan, object]:
        """See `Policy.plan`. It remembers nothing."""
        picking = Picking.of(snapshot, pulsar_exact=self.pulsar_exact)
        threshold = self.overloaded_percent / 100
        uses = {
            broker: snapshot.weights.weighted_max(load.resources)
            for broker, load in picking.loads.items()
        }
        has_taker = self.pulsar_exact or any(use < threshold for use in uses.values())
        for broker, use in uses.items():
            if use < threshold:
                picking.stays[broker] = (
                    f"use is {format_percent(use)} (allowed: up to {format_percent(threshold)})"
                )
            elif not has_taker:
                picking.stays[broker] = (
                    f"use is {format_percent(use)}, and no broker with less use can take a bundle"
                )
            else:
                self._shed(picking, broker, use)
        return picking.plan(idle="no broker is overloaded and has a bundle that can move"), memory

    def _shed(self, picking: Picking, broker: str, use: float) -> None:
        load, comparison = picking.loads[broker], f"use is {format_percent(use)}"
        if load.bundle_count < 2:  # noqa: PLR2004
            picking.stays[broker] = (
                f"{comparison}, but its only bundle would overload another broker: split it"
            )
            return
        need = load.traffic.bytes_per_second * (use - self.overloaded_percent / 100 + _MARGIN)
        reason = (
            f"overload: the use of {broker} is {format_percent(use)} (allowed: up to"
            f" {self.overloaded_percent:.0f} %); it should give {format_rate(need)} of"
            f" {format_rate(load.traffic.bytes_per_second)}"
        )
        picking.shed(broker, need, comparison=comparison, reason=reason)
