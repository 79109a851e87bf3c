"""Implement Pulsar's `UniformLoadShedder`: move a share of the difference between the busiest and
the idlest broker.

It compares messages, or bytes if messages do not differ enough, but not their cost. Placement
chooses where the bundles go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

from equipoise.shedder.loads import BundleTraffic
from equipoise.shedder.picking import (
    BYTES_MIN,
    MESSAGES_MIN,
    SEARCHED_MESSAGES_MIN,
    SEARCHED_UNLOADED_SHARE,
    UNLOADED_SHARE,
    Picking,
    Weight,
    message_rate,
    throughput,
)
from equipoise.shedder.plan import Plan
from equipoise.shedder.policy import ANY, EXACT, SHARE, Policy, SearchRange, setting
from equipoise.shedder.reported import format_rate
from equipoise.shedder.snapshot import Snapshot

_INTEGER_MAX: Final = 2**31 - 1

# Pulsar treats a smaller rate as none, and counts it as 1 to keep ratios finite.
_NOTHING: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLoadShedder(Policy):
    """Pulsar's, which compares messages and throughput."""

    rate_difference_percent: float = setting(
        "Allowed difference of the highest message rate from the lowest, in percent of the lowest."
        " 0: no limit.",
        ANY,
        default=50,
    )
    throughput_ratio: float = setting(
        "Allowed ratio of the highest throughput to the lowest. 0: no limit.", ANY, default=4
    )
    unloaded_share: float = setting(UNLOADED_SHARE, SHARE, default=0.2)
    messages_min: float = setting(MESSAGES_MIN, ANY, default=1_000)
    bytes_min: float = setting(BYTES_MIN, ANY, default=1_048_576)
    bundles_max: int | None = setting(
        "Limit of bundles moved in one round. None: as many as fit.", default=None
    )
    pulsar_exact: bool = setting(EXACT, default=False)

    searched: ClassVar[Mapping[str, SearchRange]] = MappingProxyType(
        {
            "uniform.rate_difference_percent": SearchRange(least=5, most=200, log=True),
            "uniform.unloaded_share": SEARCHED_UNLOADED_SHARE,
            "uniform.messages_min": SEARCHED_MESSAGES_MIN,
        }
    )

    def plan(self, snapshot: Snapshot, memory: object = None) -> tuple[Plan, object]:
        """See `Policy.plan`. It remembers nothing."""
        return self._plan(snapshot), memory

    def _plan(self, snapshot: Snapshot) -> Plan:
        picking = Picking.of(snapshot, pulsar_exact=self.pulsar_exact)
        loads = picking.loads
        if not loads:
            return picking.plan(idle="there is no load of any broker")
        rates = self._range(
            {broker: load.traffic.messages_per_second for broker, load in loads.items()}
        )
        throughputs = self._range(
            {broker: load.traffic.bytes_per_second for broker, load in loads.items()}
        )
        comparison = (
            f"the highest rate is {rates.most:.0f} messages/s, the lowest {rates.least:.0f}; the"
            f" highest throughput is {format_rate(throughputs.most)}, the lowest"
            f" {format_rate(throughputs.least)}"
        )
        if 0 < self.rate_difference_percent < (rates.most - rates.least) * 100 / rates.least:
            weight, compared, need_min = message_rate, rates, self.messages_min
        elif 0 < self.throughput_ratio < throughputs.most / throughputs.least:
            weight, compared, need_min = throughput, throughputs, self.bytes_min
        else:
            return picking.plan(idle=f"the traffic is uniform enough: {comparison}")
        need = self._whole((compared.most - compared.least) * self.unloaded_share)
        if loads[compared.busiest].bundle_count < 2:  # noqa: PLR2004
            return picking.plan(
                idle=(
                    f"{compared.busiest} has too much traffic in its only bundle: split it;"
                    f" {comparison}"
                )
            )
        if need < need_min:
            return picking.plan(
                idle=(
                    f"the traffic to take from {compared.busiest} is too small for a move:"
                    f" {comparison}"
                )
            )
        chosen = self._fitting(picking.movable(compared.busiest, weight=weight), weight, need)
        picking.give(chosen, compared.busiest, reason=f"uniform: {comparison}")
        return picking.plan(
            idle=(
                f"no bundle of {compared.busiest} fits into the traffic to take from it:"
                f" {comparison}"
            )
        )

    def _range(self, carried: Mapping[str, float]) -> _Range:
        least = min(carried.values())
        # Pulsar starts its search for the least with the greatest 32-bit integer.
        if self.pulsar_exact:
            least = min(least, _INTEGER_MAX)
        busiest = max(carried, key=lambda broker: carried[broker])
        return _Range(
            busiest=busiest,
            most=carried[busiest],
            least=1.0 if -_NOTHING <= least <= _NOTHING else least,
        )

    def _fitting(
        self, bundles: Sequence[BundleTraffic], weight: Weight, need: float
    ) -> list[BundleTraffic]:
        """Return the heaviest bundles that fit into what is still needed."""
        chosen: list[BundleTraffic] = []
        for bundle in bundles:
            if self.bundles_max is not None and len(chosen) >= self.bundles_max:
                break
            if weight(bundle) <= need:
                chosen.append(bundle)
                need -= self._whole(weight(bundle))
        return chosen

    def _whole(self, number: float) -> float:
        """Round as Pulsar does, which counts in 32-bit integers."""
        if not self.pulsar_exact:
            return number
        return 0 if math.isnan(number) else int(min(max(number, -_INTEGER_MAX - 1), _INTEGER_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """The busiest broker and its rate per second, and the rate of the idlest (1 if it has none)."""

    busiest: str
    most: float
    least: float
