"""Define the limits of a bundle: above one it is split, and far below all of them two neighbours
are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from equipoise.shedder.loads import RATES, BundleTraffic, fault_among

MIB: Final = 1_048_576

# The counts of `BundleTraffic`, by field name.
_COUNTS: Final = ("topics", "consumers", "producers")


class Excess(StrEnum):
    """The limit that a bundle exceeds, by the name in Pulsar's decisions and counters."""

    TOPICS = "Topics"
    SESSIONS = "Sessions"
    MESSAGES = "MsgRate"
    BYTES = "Bandwidth"


_UNITS: Final = {
    Excess.TOPICS: "topics",
    Excess.SESSIONS: "sessions",
    Excess.MESSAGES: "messages/s",
    Excess.BYTES: "bytes/s",
}


class Measure(NamedTuple):
    """One measured load of a bundle, with its limit."""

    excess: Excess
    carried: float
    limit: float

    @property
    def is_exceeded(self) -> bool:
        """Return whether the load is above the limit. A load equal to the limit is allowed."""
        return self.carried > self.limit

    @property
    def share(self) -> float:
        """The used fraction of the limit."""
        return self.carried / self.limit

    def __str__(self) -> str:
        return f"{self.carried:,.0f} {_UNITS[self.excess]} (limit: {self.limit:,.0f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLimits:
    """The limits of a bundle, both ways together: Pulsar's `loadBalancerNamespaceBundleMax...`
    settings with their defaults.

    Sessions are consumers and producers; None: no limit. Every limit is above 0.
    """

    topics_max: int = 1_000
    sessions_max: int | None = 1_000
    messages_per_second_max: float = 30_000
    bytes_per_second_max: float = 100 * MIB

    def measures(self, *bundles: BundleTraffic) -> Iterator[Measure]:
        """Yield each limited load of the bundles together, in Pulsar's order."""
        yield Measure(Excess.TOPICS, sum(bundle.topics for bundle in bundles), self.topics_max)
        if self.sessions_max is not None:
            yield Measure(
                Excess.SESSIONS,
                sum(bundle.consumers + bundle.producers for bundle in bundles),
                self.sessions_max,
            )
        yield Measure(
            Excess.MESSAGES,
            sum(bundle.traffic.messages_per_second for bundle in bundles),
            self.messages_per_second_max,
        )
        yield Measure(
            Excess.BYTES,
            sum(bundle.traffic.bytes_per_second for bundle in bundles),
            self.bytes_per_second_max,
        )

    def exceeded(self, bundle: BundleTraffic) -> Measure | None:
        """Return the first limit that a bundle exceeds; None if it exceeds none."""
        return next((measure for measure in self.measures(bundle) if measure.is_exceeded), None)

    def fullest(self, *bundles: BundleTraffic) -> Measure:
        """Return the measure with the largest used fraction, of the bundles together; of equals the
        first.
        """
        return max(self.measures(*bundles), key=lambda measure: measure.share)


def fault_of_bundle(bundle: BundleTraffic) -> str | None:
    """Return a message about the first impossible figure (not a number, negative, or absurd); None
    if there is none.
    """
    fault = fault_among(bundle.traffic, RATES) or fault_among(bundle, _COUNTS)
    return None if fault is None else f"it has {fault}"
