"""Implement Pulsar's `AvgShedder`: pair the least used broker with the most used, and so on
inwards, and balance each pair.

A pair acts after several rounds of difference: few rounds for a large difference, more for a
smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from equipoise.shedder.loads import BundleTraffic, Weights
from equipoise.shedder.picking import Picking, Weight, message_rate, throughput
from equipoise.shedder.plan import Plan
from equipoise.shedder.reported import format_percent, format_rate
from equipoise.shedder.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AvgShedder:
    """The strategy and its settings, with Pulsar's names in brackets.

    * `low_percent`, `high_percent`: the difference of use that counts, and the one that counts as
      large, in percentage points (`loadBalancerAvgShedderLowThreshold`, `...HighThreshold`).
    * `low_hits`, `high_hits`: the rounds after which a pair acts
      (`loadBalancerAvgShedderHitCountLowThreshold`, `...High...`).
    * `unloaded_share`: the share of the traffic difference that moves (`maxUnloadPercentage`).
    * `messages_min`, `bytes_min`: move only more than this, per second (`minUnloadMessage`,
      `minUnloadMessageThroughput`).
    """

    low_percent: float = 15
    high_percent: float = 40
    low_hits: int = 8
    high_hits: int = 2
    unloaded_share: float = 0.2
    messages_min: float = 1_000
    bytes_min: float = 1_048_576
    weights: Weights = field(default_factory=Weights)
    pulsar_exact: bool = False

    def plan(self, snapshot: Snapshot) -> Plan:
        """See `Shedder.plan`."""
        picking = Picking.of(snapshot, pulsar_exact=self.pulsar_exact)
        scores = {
            broker: self.weights.weighted_max(load.resources) * 100
            for broker, load in picking.loads.items()
        }
        hits = _Hits(low=dict(snapshot.memory.low_hits), high=dict(snapshot.memory.high_hits))
        # Pulsar remembers brokers that are gone until a round without a differing pair.
        if not self.pulsar_exact:
            hits.forget(*[broker for broker in {**hits.low, **hits.high} if broker not in scores])
        pairs = self._pairs(scores, hits)
        if not pairs:
            hits = _Hits()
        for least, most in pairs:
            comparison = (
                f"use is {format_percent(scores[most] / 100)}, and of {least}"
                f" {format_percent(scores[least] / 100)}"
            )
            if not self._are_due(hits, least, most):
                picking.stays[most] = f"{comparison}: too few rounds in a row"
                continue
            hits.forget(least, most)
            self._even_out(picking, least, most, comparison)
        memory = replace(snapshot.memory, low_hits=hits.low, high_hits=hits.high)
        return picking.plan(
            idle=(
                f"it differs from its partner by less than {self.low_percent:.0f} %, or is the less"
                " used one"
            ),
            memory=memory,
        )

    def _pairs(self, scores: Mapping[str, float], hits: _Hits) -> list[tuple[str, str]]:
        """Return the differing pairs, outermost first, and count their hits. `scores` is the use of
        each broker in percent.

        With an odd number, the middle broker is its own partner, and its hits are forgotten.
        """
        order = sorted(scores) if not self.pulsar_exact else list(scores)
        order.sort(key=lambda broker: scores[broker])
        pairs = list(zip(order, reversed(order), strict=True))[: (len(order) + 1) // 2]
        differing = []
        for least, most in pairs:
            difference = scores[most] - scores[least]
            if difference < self.low_percent:
                hits.forget(least, most)
                continue
            differing.append((least, most))
            for broker in (least, most):
                hits.low[broker] = hits.low.get(broker, 0) + 1
                if difference < self.high_percent:
                    hits.high.pop(broker, None)
                else:
                    hits.high[broker] = hits.high.get(broker, 0) + 1
        return differing

    def _are_due(self, hits: _Hits, least: str, most: str) -> bool:
        return any(
            hits.high.get(broker, 0) >= self.high_hits or hits.low.get(broker, 0) >= self.low_hits
            for broker in (least, most)
        )

    def _even_out(self, picking: Picking, least: str, most: str, comparison: str) -> None:
        """Plan the moves from one broker of a pair to the other, by messages, or by bytes if
        messages do not differ enough.
        """
        giving, taking = picking.loads[most].traffic, picking.loads[least].traffic
        messages = (giving.messages_per_second - taking.messages_per_second) * self.unloaded_share
        bytes_ = (giving.bytes_per_second - taking.bytes_per_second) * self.unloaded_share
        if messages > self.messages_min:
            weight, need = message_rate, messages
            amount = f"{messages:.0f} messages/s"
        elif bytes_ > self.bytes_min:
            weight, need = throughput, bytes_
            amount = format_rate(bytes_)
        else:
            picking.stays[most] = (
                f"{comparison}, but the difference of traffic is too small for a move"
            )
            return
        chosen = _fitting(picking.movable(most, weight=weight, destination=least), weight, need)
        picking.give(
            chosen,
            most,
            destination=least,
            reason=f"average: {most} should give {amount} to {least}: {comparison}",
        )
        if not chosen:
            picking.stays[most] = (
                f"{comparison}, but no movable bundle fits into the {amount} that it should give"
            )


@dataclass(slots=True, kw_only=True)
class _Hits:
    """For each broker, the rounds in which it differed from its partner at all (`low`), and much
    (`high`). 0 is left out.
    """

    low: dict[str, int] = field(default_factory=dict)
    high: dict[str, int] = field(default_factory=dict)

    def forget(self, *brokers: str) -> None:
        """Reset the counts of some brokers."""
        for broker in brokers:
            self.low.pop(broker, None)
            self.high.pop(broker, None)


def _fitting(bundles: Sequence[BundleTraffic], weight: Weight, need: float) -> list[BundleTraffic]:
    chosen: list[BundleTraffic] = []
    for bundle in bundles:
        if 0 < weight(bundle) <= need:
            chosen.append(bundle)
            need -= weight(bundle)
    return chosen
