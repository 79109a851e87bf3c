"""Implement Pulsar's `OverloadShedder`: a broker above a threshold sheds throughput until it is 5 %
below.

It looks at each broker alone. Placement chooses where the bundles go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from equipoise.shedder.loads import Weights
from equipoise.shedder.picking import Picking, throughput, up_to
from equipoise.shedder.plan import Plan
from equipoise.shedder.reported import format_percent, format_rate
from equipoise.shedder.snapshot import Snapshot

# How far below the threshold a broker should end: Pulsar's `ADDITIONAL_THRESHOLD_PERCENT_MARGIN`.
_MARGIN: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadShedder:
    """The strategy and its settings. Example: a broker at 95 % with a threshold of 85 % sheds (95 -
    85) + 5 = 15 % of its throughput.

    `overloaded_percent` is Pulsar's `loadBalancerBrokerOverloadedThresholdPercentage`. By default
    nothing moves if no broker is below it, and a broker keeps at least one bundle.
    """

    overloaded_percent: float = 85
    weights: Weights = field(default_factory=Weights)
    pulsar_exact: bool = False

    def plan(self, snapshot: Snapshot) -> Plan:
        """See `Shedder.plan`."""
        picking = Picking.of(snapshot, pulsar_exact=self.pulsar_exact)
        threshold = self.overloaded_percent / 100
        uses = {
            broker: self.weights.weighted_max(load.resources)
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
        return picking.plan(idle="no broker is overloaded and has a bundle that can move")

    def _shed(self, picking: Picking, broker: str, use: float) -> None:
        load = picking.loads[broker]
        if load.bundle_count < 2:  # noqa: PLR2004
            picking.stays[broker] = (
                f"use is {format_percent(use)}, but its only bundle would overload another broker:"
                " split it"
            )
            return
        need = load.traffic.bytes_per_second * (use - self.overloaded_percent / 100 + _MARGIN)
        reason = (
            f"overload: the use of {broker} is {format_percent(use)} (allowed: up to"
            f" {self.overloaded_percent:.0f} %); it should give {format_rate(need)} of"
            f" {format_rate(load.traffic.bytes_per_second)}"
        )
        bundles = picking.movable(broker, weight=throughput)
        one_stays = not self.pulsar_exact and len(bundles) == load.bundle_count
        chosen = up_to(bundles, need, one_stays=one_stays)
        picking.give(chosen, broker, reason=reason)
        if not chosen:
            picking.stays[broker] = (
                f"use is {format_percent(use)}, but none of its reported bundles can move"
            )
