"""Leases and handles: the one check that stands between a broker's belief and its answer to a caller.

May live here: the lease of an incarnation, the handle of a bundle, and their check. They are the only objects that the
agent shares with its host, because the check must be made at the moment of the answer, not at the last step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from equipoise.brokers.agent.events import Instant


@dataclass(slots=True, kw_only=True)
class Lease:
    """The right of one incarnation to serve, until `deadline_ms` of boot time; 0 for ever once the incarnation is lost.

    `skew_ms` is how far the wall clock was ahead of the boot clock when the present lease was decided. A wall clock that
    has since run ahead by more than `skew_max_ms` shows a sleep that the boot clock did not see, and ends the lease too:
    it can shorten a lease, never lengthen it.

    Past its end some bundles are served on, until the incarnation is read to be over (section 4 of the protocol), and only by
    a broker that is awake: whoever has taken no step for `attention_ms` serves nothing before it has heard from the log.

    `until_ms` is the last deadline that it had, also once it is lost: for witnesses, and for no check.
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
        """Count the lease anew from the moment at which the accepted attempt was decided on."""
        if not self.lost:
            self.deadline_ms = self.until_ms = decided.boot_ms + lease_ms
            self.skew_ms = decided.wall_ms - decided.boot_ms

    def lose(self) -> None:
        """The incarnation is over, or has stopped serving for ever."""
        self.lost = True
        self.deadline_ms = 0

    def good(self, now: Instant) -> bool:
        """Whether work may start, or be answered, at this reading of the clocks."""
        return now.boot_ms < self.deadline_ms and now.wall_ms - now.boot_ms - self.skew_ms <= self.skew_max_ms

    def attend(self, now: Instant) -> None:
        """The broker has taken a step, and is awake."""
        self.attended = now

    def is_attended(self, now: Instant) -> bool:
        """Whether the incarnation goes on as far as is known, and its broker was awake a moment ago, by both clocks."""
        if self.attended is None or not self.deadline_ms:  # Lost, or never given: only what had a lease outlasts its end.
            return False
        asleep_ms = now.boot_ms - self.attended.boot_ms
        return asleep_ms <= self.attention_ms and now.wall_ms - self.attended.wall_ms <= self.attention_ms + self.skew_max_ms

    def left_ms(self, now: Instant) -> int:
        """How long the lease still runs; 0 if it does not."""
        return self.deadline_ms - now.boot_ms if self.good(now) else 0


@dataclass(slots=True, kw_only=True, eq=False)
class Handle:
    """One ownership of one bundle by one incarnation, as its service sees it: work is done under it, and checked by it.

    `is_open` is set once the service has opened the bundle, and cleared for ever when it has to let go. After a split or
    a merge the handle is closed and `children` took over its range within the same step, so that sessions go on. `serves_on` is
    what the policies of its namespace say now: it passes past the end of its lease, too, while the incarnation goes on.
    `answered_ns` (boot time) is when work under it last passed its second check, and `answered_by_token` whether any did past a
    lease: for witnesses, and for no check.
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
        """Whether work on this bundle may start, or be answered, at this reading of the clocks."""
        return self.is_open and (self.lease.good(now) or (self.serves_on and self.lease.is_attended(now)))
