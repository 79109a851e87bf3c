"""Define the durations of a broker's promises and deadlines, scale them with the number of members,
and refuse unsafe ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from equipoise.brokers.errors import InvalidConfig

RETRY_DIVISOR: Final = 4
"""A failed renewal is retried after the interval divided by this, so that the end of an outage is
noticed soon."""

# Up to here a renewal per second costs next to nothing. Beyond, lease, renewal interval and grace
# period grow in proportion, so that all members together renew 10 times a second. Brokers that join
# one by one keep the pace they found: a hundred renew 33 times a second. A larger number means
# faster failover in large clusters, and costlier idling.
_MEMBERS_AT_FULL_PACE: Final = 10

# Readings in whole milliseconds err by less than 3 ms; the rest is for promises that grow in whole
# ones.
_ROUNDING_MS: Final = 10
_MILLION: Final = 1_000_000

# A question to another broker and its answer.
_ASKED_MS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations in milliseconds. The defaults are for the embedded log; `timing_of` returns those
    of each kind of log.

    * `lease_ms`, `renew_ms`, `grace_ms` (the grace period), `extend_ms`: this incarnation's
      promises. Others use them, never their own settings.
    * `extend_ms`: how long the broker may serve after its last renewal by the assurances of all
      others. No more than the lease: never past it.
    * `round_trip_ms`: longest time from append to read-back.
    * `reconnect_ms`: longest reconnect after an outage of the log.
    * `failover_ms`: how long the log is away while it replaces a dead node of its own (0: it has no
      nodes).
    * `stall_ms`: longest stall of a process that must not cost it its bundles.
    * `clock_rate_error_ppm`: how much faster or slower than true time a clock may run.
    * `prepare_ms`, `open_ms`, `close_ms`: the service's deadlines.
    * `patience_ms`: how long the leader watches a bundle in flight before it cancels the move or
      assigns the bundle again. Later brokers, by age, wait longer.
    * `attempt_ms`: how long to wait for an attempt that is neither read back nor failed.
    """

    lease_ms: int = 3_000
    renew_ms: int = 1_000
    grace_ms: int = 500
    extend_ms: int = 0
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
    # Until then only the leader places a free bundle, so that it places the whole batch.
    leader_first_ms: int = 250
    remove_after_ms: int = 24 * 3_600_000

    def for_members(self, members: int) -> Timing:
        """Return these durations for `members` brokers, in proportion.

        Leases that are extended keep their pace: a broker that renews less often is longer in
        touch, and would assure those that joined before it only after their leases.
        """
        if members <= _MEMBERS_AT_FULL_PACE or self.extends:
            return self
        return replace(
            self,
            lease_ms=self.lease_ms * members // _MEMBERS_AT_FULL_PACE,
            renew_ms=self.renew_ms * members // _MEMBERS_AT_FULL_PACE,
            grace_ms=self.grace_ms * members // _MEMBERS_AT_FULL_PACE,
        )

    @property
    def extends(self) -> bool:
        """Whether the broker may serve past its lease."""
        return self.extend_ms > self.lease_ms

    @property
    def touch_ms(self) -> int:
        """How long a broker is in touch with the log after it has read a renewal of its own."""
        if not self.extends:
            return self.lease_ms // 2
        # Sooner, so that there is time to ask the others before the lease ends.
        return min(self.lease_ms // 2, 2 * self.renew_ms)

    @property
    def ask_ms(self) -> int:
        """How often a broker that is out of touch asks the others for assurances."""
        return self.renew_ms // 2

    @property
    def skew_max_ms(self) -> int:
        """How far the wall clock may run ahead within a lease: the longest unseen sleep."""
        return self.grace_ms // 2

    def check(self) -> None:
        """Raise `InvalidConfig` if these durations could have a live broker declared dead, or two
        brokers own one bundle.
        """
        for setting, least_ms, why in (*self._against_clocks(), *self._against_outages()):
            value = getattr(self, setting)
            if value < least_ms:
                problem = (
                    f"{setting} is {value} ms, which is not safe: it must be at least {least_ms}"
                    f" ({why})"
                )
                raise InvalidConfig(problems=(problem,))

    def _against_clocks(self) -> Iterator[tuple[str, int, str]]:
        """Yield settings, their least values, and why: clocks, stalls and the way to the log."""
        rate_error_ms = 2 * self.clock_rate_error_ppm * self.lease_ms // _MILLION
        # Half of the grace period covers a sleep hidden from the boot clock, the other half the
        # clocks' rates: grace / 2 >= 2 x rate error x (lease + grace) + rounding, solved for the
        # grace period and rounded up.
        for_sleep_ms = -(
            -2
            * (2 * self.clock_rate_error_ppm * self.lease_ms + _ROUNDING_MS * _MILLION)
            // (_MILLION - 4 * self.clock_rate_error_ppm)
        )
        yield (
            "grace_ms",
            for_sleep_ms,
            (
                "twice what clocks differ by in lease and grace period, since a sleep of half the"
                " grace period goes unseen"
            ),
        )
        yield "grace_ms", rate_error_ms + self.stall_ms, "2 x rate error x lease + stall"
        yield "lease_ms", 2 * (self.renew_ms + self.round_trip_ms), "2 x (renewal + round trip)"
        if self.extends:
            yield "renew_ms", self.round_trip_ms, "round trip"

    def _against_outages(self) -> Iterator[tuple[str, int, str]]:
        """Yield settings with their least values, and why: outages of the log."""
        reconnects_ms = 2 * self.round_trip_ms + self.reconnect_ms
        if self.extends:
            outlasts_ms = 2 * self.renew_ms + reconnects_ms
            # At the start of an outage some brokers are still in touch, and give no assurance. At
            # its end the first that is back gives none.
            between_ms = max(outlasts_ms, self.touch_ms + self.renew_ms + reconnects_ms)
            yield (
                "lease_ms",
                between_ms + self.ask_ms + _ASKED_MS,
                "what brokers need to assure each other, and to come back one after the other",
            )
            yield (
                "extend_ms",
                self.failover_ms + outlasts_ms,
                "failover_ms + 2 x (renewal + round trip) + longest reconnect",
            )
        else:
            # A node of the log may die just before a renewal is due. A renewal may fail just before
            # the next node takes over, and is retried a fraction of the interval later.
            yield (
                "lease_ms",
                self.renew_ms
                + self.failover_ms
                + self.renew_ms // RETRY_DIVISOR
                + self.round_trip_ms,
                (
                    "renewal + failover_ms, the log's session timeout and an election, + retry +"
                    " round trip"
                ),
            )
        yield (
            "grace_ms",
            self.renew_ms + self.reconnect_ms - self.lease_ms + self.touch_ms,
            "renewal + longest reconnect - lease + touch",
        )


# `broker.session.timeout.ms` (default 9 s), plus 1 s to elect another leader and inform clients.
_KAFKA_FAILOVER_MS: Final = 9_000 + 1_000

# Touch + renewal + 2 round trips + reconnect + question = 3,000 ms. A reconnect takes librdkafka's
# longest back-off and a metadata request. Extension: 10 s of failover, and 20 s for a log that is
# away longer than it should be. Whoever takes over an id after silence, and a broker that may be
# unknown, waits for 35 s.
_TIMINGS: Final[Mapping[str, Timing]] = {
    "kafka": Timing(
        renew_ms=500,
        extend_ms=30_000,
        round_trip_ms=250,
        reconnect_ms=650,
        failover_ms=_KAFKA_FAILOVER_MS,
    ),
}

# Renewal + failover + retry + round trip = 14,750 ms. For the reconnect, half the lease + grace
# period - renewal would allow 5,500 ms.
_WITHOUT_EXTENSION: Final[Mapping[str, Timing]] = {
    "kafka": Timing(
        lease_ms=15_000,
        renew_ms=3_000,
        grace_ms=1_000,
        round_trip_ms=1_000,
        reconnect_ms=5_000,
        failover_ms=_KAFKA_FAILOVER_MS,
    ),
}

DURATIONS_BY_LOG: Final = (
    "lease_ms",
    "renew_ms",
    "grace_ms",
    "extend_ms",
    "round_trip_ms",
    "reconnect_ms",
    "failover_ms",
)
"""Durations whose defaults depend on the kind of log. `Timing()` has those of the embedded log."""


def timing_of(log_url: str, *, extends: bool = True) -> Timing:
    """Return the durations for the kind of log of `log_url`; those of the embedded log if it is
    unknown. Unless the lease `extends`, it must itself outlast a failover of the log.
    """
    timings = _TIMINGS if extends else _WITHOUT_EXTENSION
    return timings.get(log_url.partition(":")[0], Timing())
