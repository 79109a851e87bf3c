"""How long things take: the promises that a broker makes on joining, and its patience with others.

May live here: durations in milliseconds, how they grow with the membership, and the arithmetic by which wrong ones are
refused. No clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from equipoise.brokers.errors import InvalidTiming

RETRY_DIVISOR: Final = 4
"""After a failed append a renewal is tried again this much sooner: an outage ends between two of these."""

# Up to here renewals once a second cost next to nothing. Beyond, each broker reads the renewals of all others, so that
# lease, renewal interval and margin grow in proportion, and the renewals of all who know of each other stay at 10 a second.
# Brokers that join one after another keep the pace at which each found the cluster: a hundred of them renew 33 times a
# second. A larger number here means quicker failover in clusters of more than ten, and dearer idling.
_MEMBERS_AT_FULL_PACE: Final = 10

# Clocks are read in whole milliseconds, which makes less than 3 ms; the rest is for promises that grow in whole ones.
_ROUNDING_MS: Final = 10
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations in milliseconds; the defaults are those of the embedded log, and `timing_of` has those of each kind of log.

    `lease_ms`, `renew_ms` and `margin_ms` are this incarnation's promises: others use them, never their own settings.
    `round_trip_ms` bounds append to read-back, `reconnect_ms` the longest reconnect after an outage of the log, `failover_ms` how
    long the log is away while it replaces a node of its own that has died (0: it has no nodes),
    `stall_ms` the longest stall of a process that must not cost it its bundles, `clock_rate_error_ppm` how much faster or
    slower than true time a clock may run. `prepare_ms`, `open_ms` and `close_ms` are the service's deadlines. `patience_ms`
    is how long the leader watches a bundle in flight before it calls it off or assigns it anew; the brokers after it wait
    that much longer, by age. `attempt_ms` is how long an attempt that is neither read back nor failed is waited for.
    """

    lease_ms: int = 3_000
    renew_ms: int = 1_000
    margin_ms: int = 500
    round_trip_ms: int = 250
    reconnect_ms: int = 800
    failover_ms: int = 0
    stall_ms: int = 400
    clock_rate_error_ppm: int = 10_000
    prepare_ms: int = 10_000
    open_ms: int = 10_000
    close_ms: int = 5_000
    patience_ms: int = 30_000
    attempt_ms: int = 1_000
    # For a quarter of a second a bundle that a death has freed is left to the leader, which places the whole batch.
    leader_first_ms: int = 250
    remove_after_ms: int = 24 * 3_600_000

    def for_members(self, members: int) -> Timing:
        """These durations for a cluster of `members` brokers: the lease and what hangs on it, in proportion."""
        if members <= _MEMBERS_AT_FULL_PACE:
            return self
        return replace(
            self,
            lease_ms=self.lease_ms * members // _MEMBERS_AT_FULL_PACE,
            renew_ms=self.renew_ms * members // _MEMBERS_AT_FULL_PACE,
            margin_ms=self.margin_ms * members // _MEMBERS_AT_FULL_PACE,
        )

    @property
    def skew_max_ms(self) -> int:
        """How long a sleep that the boot clock hides may go unseen: by so much the wall clock may run ahead within a lease."""
        return self.margin_ms // 2

    def check(self) -> None:
        """Raise `InvalidTiming` if these durations would let a live broker be declared dead, or two own one bundle."""
        rate_error_ms = 2 * self.clock_rate_error_ppm * self.lease_ms // _MILLION
        # One half of the margin covers a sleep that the boot clock hides. The other half must cover the clocks' rates, during lease
        # and margin: margin / 2 >= 2 x rate error x (lease + margin) + rounding, solved for the margin and rounded up.
        for_sleep_ms = -(
            -2 * (2 * self.clock_rate_error_ppm * self.lease_ms + _ROUNDING_MS * _MILLION) // (_MILLION - 4 * self.clock_rate_error_ppm)
        )
        half_lease_ms = self.lease_ms // 2
        # A node may die just before a renewal that is due, so that the lease runs since the one before; and a renewal may fail
        # just before the next node takes it, and come again a fraction of the interval later.
        through_failover_ms = self.renew_ms + self.failover_ms + self.renew_ms // RETRY_DIVISOR + self.round_trip_ms
        rules = (
            (
                self.margin_ms >= for_sleep_ms,
                "margin_ms",
                f"at least {for_sleep_ms} (twice what clocks differ by in lease and margin, since a sleep of half the margin goes unseen)",
            ),
            (
                self.margin_ms >= rate_error_ms + self.stall_ms,
                "margin_ms",
                f"at least {rate_error_ms + self.stall_ms} (2 x rate error x lease + stall)",
            ),
            (
                half_lease_ms >= self.renew_ms + self.round_trip_ms,
                "lease_ms",
                f"at least {2 * (self.renew_ms + self.round_trip_ms)} (2 x (renewal + round trip))",
            ),
            (
                self.lease_ms >= through_failover_ms,
                "lease_ms",
                f"at least {through_failover_ms} (renewal + failover_ms, the log's session timeout and an election, + retry + round trip)",
            ),
            (
                half_lease_ms + self.margin_ms >= self.renew_ms + self.reconnect_ms,
                "margin_ms",
                f"at least {self.renew_ms + self.reconnect_ms - half_lease_ms} (renewal + longest reconnect - lease / 2)",
            ),
        )
        for holds, setting, expected in rules:
            if not holds:
                raise InvalidTiming(setting=setting, value_ms=getattr(self, setting), expected=expected)


# What the controller of a Kafka cluster waits for a node that is silent (`broker.session.timeout.ms`, 9 s unless somebody has set
# it), and 1 s for the election of another leader and for clients to learn of it.
_KAFKA_FAILOVER_MS: Final = 9_000 + 1_000

# Renewal, failover, retry and round trip are 14,750 ms, and the lease is a little more. A reconnect takes librdkafka's longest
# back-off and a look at the cluster; half the lease and the margin less the renewal would allow for 5,500 ms.
_TIMINGS: Final[Mapping[str, Timing]] = {
    "kafka": Timing(
        lease_ms=15_000,
        renew_ms=3_000,
        margin_ms=1_000,
        round_trip_ms=1_000,
        reconnect_ms=5_000,
        failover_ms=_KAFKA_FAILOVER_MS,
    ),
}


def timing_of(log_url: str) -> Timing:
    """The durations for the kind of log that a URL names; those of the embedded log for any other, whoever is to refuse it."""
    return _TIMINGS.get(log_url.partition(":")[0]) or Timing()
