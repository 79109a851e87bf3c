"""Implement Pulsar's `AvgShedder`: pair the least used broker with the most used, and so on
inwards, and balance each pair.

A pair acts after several rounds of difference: few rounds for a large difference, more for a
smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

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
from equipoise.shedder.plan import Budget, Plan
from equipoise.shedder.policy import ANY, EXACT, SHARE, Policy, SearchRange, setting
from equipoise.shedder.reported import format_percent, format_rate
from equipoise.shedder.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AvgShedder(Policy):
    """Pulsar's, which pairs the most used brokers with the least used."""

    low_percent: float = setting(
        "Difference of use that counts as small, in percentage points.", ANY, default=15
    )
    high_percent: float = setting(
        "Difference of use that counts as large, in percentage points.", ANY, default=40
    )
    low_hits: int = setting(
        "Number of rounds with a small difference before a pair moves bundles.", default=8
    )
    high_hits: int = setting(
        "Number of rounds with a large difference before a pair moves bundles.", default=2
    )
    unloaded_share: float = setting(UNLOADED_SHARE, SHARE, default=0.2)
    messages_min: float = setting(MESSAGES_MIN, ANY, default=1_000)
    bytes_min: float = setting(BYTES_MIN, ANY, default=1_048_576)
    pulsar_exact: bool = setting(EXACT, default=False)

    waits_rounds: ClassVar[bool] = True
    searched: ClassVar[Mapping[str, SearchRange]] = MappingProxyType(
        {
            "average.low_percent": SearchRange(least=1, most=40, log=True),
            "average.high_percent": SearchRange(least=5, most=80, log=True),
            "average.low_hits": SearchRange(least=1, most=20, log=True),
            "average.high_hits": SearchRange(least=1, most=10, log=True),
            "average.unloaded_share": SEARCHED_UNLOADED_SHARE,
            "average.messages_min": SEARCHED_MESSAGES_MIN,
        }
    )

    def plan(self, snapshot: Snapshot, memory: object = None) -> tuple[Plan, Hits]:
        """See `Policy.plan`."""
        picking = Picking.of(snapshot, pulsar_exact=self.pulsar_exact)
        scores = {
            broker: snapshot.weights.weighted_max(load.resources) * 100
            for broker, load in picking.loads.items()
        }
        hits = Hits()
        if isinstance(memory, Hits) and not snapshot.since.stopped:
            hits = Hits(low=dict(memory.low), high=dict(memory.high))
        # Pulsar remembers brokers that are gone until a round without a differing pair.
        if not self.pulsar_exact:
            hits.forget(*[broker for broker in {**hits.low, **hits.high} if broker not in scores])
        pairs = self._pairs(scores, hits)
        if not pairs:
            hits = Hits()
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
        return picking.plan(
            idle=(
                f"it differs from its partner by less than {self.low_percent:.0f} %, or is the less"
                " used one"
            )
        ), hits

    def as_if_due(self, snapshot: Snapshot, budget: Budget | None = None, at_ms: int = 0) -> Hits:
        """See `Policy.as_if_due`."""
        del budget, at_ms
        return Hits(
            low=dict.fromkeys(snapshot.live, self.low_hits),
            high=dict.fromkeys(snapshot.live, self.high_hits),
        )

    def _pairs(self, scores: Mapping[str, float], hits: Hits) -> list[tuple[str, str]]:
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

    def _are_due(self, hits: Hits, least: str, most: str) -> bool:
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
class Hits:
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
