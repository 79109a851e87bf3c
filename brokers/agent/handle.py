"""Check leases and handles at the moment a broker answers a caller.

The agent shares only these objects with its host. The check must be made when the answer is sent, not at the last step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from equipoise.brokers.agent.events import Instant


@dataclass(slots=True, kw_only=True)
class Lease:
    """The right of one incarnation to serve until `deadline_ms` of boot time; 0 once the incarnation is lost.

    * `skew_ms`: how far the wall clock was ahead of the boot clock when the lease was decided. If the wall clock has since run ahead by
      more than `skew_max_ms`, the machine slept unseen by the boot clock, and the lease ends. This never lengthens a lease.
    * `attention_ms`: a broker without a step for this long serves nothing until it hears from the log. It matters for bundles that are
      served past the lease until the incarnation is over (section 4).
    * `until_ms`: the last deadline, kept once the lease is lost. It is for evidence only, never for a check.
    """

    incarnation: int
    skew_max_ms: int
    attention_ms: int = 0
    deadline_ms: int = 0
    skew_ms: int = 0
    lost: bool = False
    attended: Instant | None = None
    until_ms: int = 0

    def extend(self, *, decided: Instant, lease_ms: int) -> None:
        """Count the lease from the moment at which the accepted attempt was decided."""
        if not self.lost:
            self.deadline_ms = self.until_ms = decided.boot_ms + lease_ms
            self.skew_ms = decided.wall_ms - decided.boot_ms

    def lose(self) -> None:
        """End the lease for good: the incarnation is over, or has stopped serving."""
        self.lost = True
        self.deadline_ms = 0

    def good(self, now: Instant) -> bool:
        """Return whether work may start, or be answered, at this reading of the clocks."""
        return now.boot_ms < self.deadline_ms and now.wall_ms - now.boot_ms - self.skew_ms <= self.skew_max_ms

    def attend(self, now: Instant) -> None:
        """Note that the broker has taken a step and is awake."""
        self.attended = now

    def is_attended(self, now: Instant) -> bool:
        """Return whether the incarnation goes on, as far as is known, and both clocks show a recent step of its broker."""
        if self.attended is None or not self.deadline_ms:  # No lease, or a lost one.
            return False
        asleep_ms = now.boot_ms - self.attended.boot_ms
        return asleep_ms <= self.attention_ms and now.wall_ms - self.attended.wall_ms <= self.attention_ms + self.skew_max_ms

    def left_ms(self, now: Instant) -> int:
        """Return the remaining time of the lease in ms; 0 if it has ended."""
        return self.deadline_ms - now.boot_ms if self.good(now) else 0


@dataclass(slots=True, kw_only=True, eq=False)
class Handle:
    """One ownership of one bundle by one incarnation, as its service sees it. All work is checked by it.

    * `is_open`: set once the service has opened the bundle, cleared for good when it must release it.
    * `children`: after a split or a merge, the handles that took over the range in the same step, so that sessions go on.
    * `serves_on`: whether the namespace's policies allow serving past the end of the lease while the incarnation goes on.
    * `answered_ns`: boot time at which work under it last passed its second check. For evidence only.
    * `answered_by_token`: whether any work passed the check past a lease. For evidence only.
    """

    bundle: str
    namespace: str
    low: int
    high: int
    token: int
    lease: Lease
    is_open: bool = False
    serves_on: bool = False
    children: tuple[Handle, ...] = field(default=(), repr=False)
    answered_ns: int = 0
    answered_by_token: bool = False

    def passes(self, now: Instant) -> bool:
        """Return whether work on this bundle may start, or be answered, at this reading of the clocks."""
        return self.is_open and (self.lease.good(now) or (self.serves_on and self.lease.is_attended(now)))
