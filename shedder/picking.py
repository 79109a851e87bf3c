"""Choose the bundles that a broker sheds, for strategies that name no destination, or the same one
for all bundles.

This is the common part of Pulsar's classic strategies: which brokers take part, which bundles may
go, and how much is taken. Where their rules have faults, the default corrects them, and
`pulsar_exact` keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from equipoise.shedder.loads import BundleTraffic, Load
from equipoise.shedder.plan import Cause, Idle, Move, Plan
from equipoise.shedder.policy import REPORT_TTL_MS, SearchRange
from equipoise.shedder.reported import Reported, bundles_of, in_order, reported, why_held
from equipoise.shedder.snapshot import Snapshot

UNLOADED_SHARE: Final = "Fraction of the difference that moves."
MESSAGES_MIN: Final = "Minimum messages per second for a move."
BYTES_MIN: Final = "Minimum bytes per second for a move."
SEARCHED_UNLOADED_SHARE: Final = SearchRange(least=0.05, most=1, log=True)
SEARCHED_MESSAGES_MIN: Final = SearchRange(least=10, most=10_000, log=True)

Weight = Callable[[BundleTraffic], float]


def throughput(bundle: BundleTraffic) -> float:
    """Return a bundle's bytes per second."""
    return bundle.traffic.bytes_per_second


def message_rate(bundle: BundleTraffic) -> float:
    """Return a bundle's messages per second."""
    return bundle.traffic.messages_per_second


@dataclass(slots=True, kw_only=True)
class Picking:
    """One round of a strategy while its plan is made."""

    snapshot: Snapshot
    pulsar_exact: bool
    seen: Reported
    moves: list[Move] = field(default_factory=list)
    stays: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, *, pulsar_exact: bool) -> Picking:
        """Start a round over a snapshot. Pulsar believes every report."""
        seen = (
            Reported(loads=snapshot.loads)
            if pulsar_exact
            else reported(snapshot, ttl_ms=REPORT_TTL_MS)
        )
        return cls(snapshot=snapshot, pulsar_exact=pulsar_exact, seen=seen)

    @property
    def loads(self) -> Mapping[str, Load]:
        """The brokers that take part, with their reported loads."""
        return self.seen.loads

    def movable(
        self, broker: str, *, weight: Weight, destination: str | None = None
    ) -> list[BundleTraffic]:
        """Return the bundles that `broker` may give (to `destination`, if given), heaviest first,
        ties by name.

        Pulsar keeps ties in their given order, and checks no rules before it unloads.
        """
        bundles = bundles_of(self.loads[broker])
        if self.pulsar_exact:
            free = [bundle for bundle in bundles if bundle.bundle not in self.snapshot.resting]
            return sorted(free, key=lambda bundle: -weight(bundle))
        free = []
        for bundle in bundles:
            refusal = self._why_not(bundle, broker, weight, destination)
            if refusal is None:
                free.append(bundle)
            else:
                self.stays[bundle.bundle] = refusal
        return sorted(free, key=lambda bundle: (-weight(bundle), bundle.bundle))

    def give(
        self,
        bundles: Iterable[BundleTraffic],
        source: str,
        *,
        reason: str,
        destination: str | None = None,
    ) -> None:
        """Plan the moves of some bundles of one broker. If the rules forbid the destination,
        placement chooses.
        """
        for bundle in bundles:
            target = (
                None
                if destination is None
                or destination not in self.snapshot.candidates(bundle.bundle).allowed
                else destination
            )
            self.moves.append(
                Move(
                    bundle=bundle.bundle,
                    source=source,
                    destination=target,
                    cause="Overloaded",
                    reason=reason,
                )
            )

    def shed(self, broker: str, need: float, *, comparison: str, reason: str) -> None:
        """Plan that `broker` sheds its heaviest bundles, which together carry `need` bytes per
        second. A broker keeps at least one bundle.
        """
        bundles = self.movable(broker, weight=throughput)
        one_stays = not self.pulsar_exact and len(bundles) == self.loads[broker].bundle_count
        chosen = up_to(bundles, need, one_stays=one_stays)
        self.give(chosen, broker, reason=reason)
        if not chosen:
            self.stays[broker] = f"{comparison}, but none of its reported bundles can move"

    def plan(self, *, idle: str, mean: float | None = None) -> Plan:
        """Return the plan. If nothing moves, `idle` is the reason for each broker without a reason
        of its own.
        """
        found = Plan(moves=tuple(self.moves), mean=mean)
        stays = in_order(
            {**dict.fromkeys(self.snapshot.live, idle), **self.seen.apart, **self.stays}, self.moves
        )
        if self.moves:
            return replace(found, stays=stays)
        cause: Cause = (
            "NoBundles" if self.loads else "OutDatedData" if self.seen.has_outdated else "NoBrokers"
        )
        return replace(found, stays=stays, idle=Idle(result="Skip", cause=cause, reason=idle))

    def _why_not(
        self, bundle: BundleTraffic, broker: str, weight: Weight, destination: str | None
    ) -> str | None:
        held = why_held(self.snapshot, bundle.bundle, broker)
        if held is not None:
            return held
        if not weight(bundle) > 0:
            return "it has no traffic, so a move would change nothing"
        candidates = self.snapshot.candidates(bundle.bundle)
        if destination is not None:
            return (
                None
                if destination in candidates.allowed
                else candidates.refused.get(destination, f"the rules keep it from {destination}")
            )
        return (
            None
            if any(other != broker for other in candidates.allowed)
            else "the rules allow no other broker"
        )


def up_to(bundles: Sequence[BundleTraffic], need: float, *, one_stays: bool) -> list[BundleTraffic]:
    """Return the heaviest bundles that together carry `need` bytes per second, at least one. With
    `one_stays`, never all.
    """
    taken: list[BundleTraffic] = []
    carried = 0.0
    for bundle in bundles[: len(bundles) - 1] if one_stays else bundles:
        if taken and carried >= need:
            break
        taken.append(bundle)
        carried += throughput(bundle)
    return taken
