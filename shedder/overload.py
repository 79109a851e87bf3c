"""Implement Pulsar's `OverloadShedder`: a broker above a threshold sheds throughput until it is 5 %
below.

It looks at each broker alone. Placement chooses where the bundles go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

from equipoise.shedder.picking import Picking, throughput, up_to
from equipoise.shedder.plan import Plan
from equipoise.shedder.policy import ANY, EXACT, Policy, SearchRange, setting
from equipoise.shedder.reported import format_percent, format_rate
from equipoise.shedder.snapshot import Snapshot

# How far below the threshold a broker should end: Pulsar's `ADDITIONAL_THRESHOLD_PERCENT_MARGIN`.
_MARGIN: Final = 0.05


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
