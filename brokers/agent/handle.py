"""Check leases and handles at the moment of the answer to a caller, not at the last step.

The agent shares only these objects with its host.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from equipoise.brokers.agent.events import Instant


@dataclass(slots=True, kw_only=True)
class Lease:
    """The right of one incarnation to serve until `deadline_ms` of boot time; 0 once it is lost.

    * `skew_ms`: wall clock minus boot clock when the lease was decided. If it grows by more than
      `skew_max_ms`, the machine slept unseen by the boot clock, and the lease ends.
    * `outlast_ms`: the latest end of the extension, in boot time; 0 without one.
    * `extended_ms`, `extended_skew_ms`: the end of the extension, and its skew as above.
    * `attention_ms`: past the lease (section 4), a broker without a step for this long serves
      nothing until it hears from the log.
    * `until_ms`: until when it was right to serve, kept after a loss. For evidence only.
    """

    incarnation: int
    skew_max_ms: int
    attention_ms: int = 0
    deadline_ms: int = 0
    skew_ms: int = 0
    outlast_ms: int = 0
    extended_ms: int = 0
    extended_skew_ms: int = 0
    lost: bool = False
    attended: Instant | None = None
    until_ms: int = 0

    def renew(self, *, decided: Instant, lease_ms: int, extend_ms: int = 0) -> None:
        """Count the lease from the decision time of the accepted attempt."""
        if not self.lost:
            self.deadline_ms = decided.boot_ms + lease_ms
            self.outlast_ms = decided.boot_ms + extend_ms if extend_ms > lease_ms else 0
            self.skew_ms = decided.wall_ms - decided.boot_ms
            self.until_ms = self.ends_ms

    def extend(self, *, until_ms: int, skew_ms: int, now: Instant) -> None:
        """Serve until `until_ms`, past the lease too. An earlier time shortens an extension."""
        if not self.lost:
            self.extended_ms, self.extended_skew_ms = until_ms, skew_ms
            # A shorter extension does not make wrong what was served until now.
            self.until_ms = max(self.ends_ms, min(self.until_ms, now.boot_ms))

    def lose(self) -> None:
        """End the lease for good: the incarnation is over, or has stopped serving."""
        self.lost = True
        self.deadline_ms = self.outlast_ms = self.extended_ms = 0

    @property
    def ends_ms(self) -> int:
        """The end of lease and extension, in boot time; 0 once the lease is lost."""
        return max(self.deadline_ms, self.extended_ms)

    def holds(self, now: Instant) -> bool:
        """Return whether the lease itself is good: the broker may propose, accuse and place."""
        return self._lasts(self.deadline_ms, self.skew_ms, now)

    def good(self, now: Instant) -> bool:
        """Return whether work may start or be answered now, by the lease or its extension."""
        return self.holds(now) or self._lasts(self.extended_ms, self.extended_skew_ms, now)

    def outlasts(self, now: Instant) -> bool:
        """Return whether work may be answered now by the extension only."""
        return self.good(now) and not self.holds(now)

    def _lasts(self, until_ms: int, skew_ms: int, now: Instant) -> bool:
        return now.boot_ms < until_ms and now.wall_ms - now.boot_ms - skew_ms <= self.skew_max_ms

    def attend(self, now: Instant) -> None:
        """Note that the broker has taken a step and is awake."""
        self.attended = now

    def is_attended(self, now: Instant) -> bool:
        """Return whether the incarnation goes on, as far as is known, and both clocks show a recent
        step.
        """
        if self.attended is None or not self.deadline_ms:  # No lease, or a lost one.
            return False
        asleep_ms = now.boot_ms - self.attended.boot_ms
        return (
            asleep_ms <= self.attention_ms
            and now.wall_ms - self.attended.wall_ms <= self.attention_ms + self.skew_max_ms
        )

    def left_ms(self, now: Instant) -> int:
        """Return the rest of lease and extension in ms; 0 if both have ended."""
        return self.ends_ms - now.boot_ms if self.good(now) else 0


@dataclass(slots=True, kw_only=True, eq=False)
class Handle:
    """One ownership of one bundle by one incarnation. All work is checked by it.

    * `is_open`: from the end of opening until the bundle must be released.
    * `is_settling`: from there until the service's `close` begins, while the log waits for this
      broker to report the release. No other broker serves the bundle before that report.
    * `children`: the handles that took over the range in a split or merge, in the same step.
    * `serves_on`: whether the namespace is served past the end of the lease.
    * `answered_ns`, `answered_by_token`: boot time of the last work that passed its second check;
      whether any passed past a lease. For evidence only.
    """

    bundle: str
    namespace: str
    low: int
    high: int
    token: int
    lease: Lease
    is_open: bool = False
    is_settling: bool = False
    serves_on: bool = False
    children: tuple[Handle, ...] = field(default=(), repr=False)
    answered_ns: int = 0
    answered_by_token: bool = False

    def passes(self, now: Instant) -> bool:
        """Return whether work on this bundle may start or be answered now."""
        return self.is_open and (
            self.lease.good(now) or (self.serves_on and self.lease.is_attended(now))
        )

    def settles(self, now: Instant) -> bool:
        """Return whether work that the release waits for may be answered now. None may start."""
        return self.is_settling and self.lease.good(now)
