"""Serve past the lease by the assurances of all other brokers (section 4 of the protocol).

Theory of operation:

* A broker that is out of touch with the log asks each other live broker for an assurance: "I am out
  of touch too, and no declaration of your death by me is unsettled".
* To declare the asker dead, a broker that gave an assurance must first get back in touch, and then
  counts the asker's silence anew, for its lease and grace period. So an assurance lasts as long as
  a lease, counted from before the question was sent, and the broker that gives it notes nothing.
* With the assurances of all brokers that it knows, a broker serves on. Those that it may not know
  wait until its extension must have ended (`Membership`).
"""

from __future__ import annotations

from equipoise.brokers.agent.core import NEVER_MS, Core
from equipoise.brokers.agent.effects import AskAssurance, AssuranceAnswered
from equipoise.brokers.agent.events import AssuranceAsked, Assured, Instant
from equipoise.brokers.agent.membership import Membership
from equipoise.channel.core.entries import BrokerEntry


class Assurances:
    """What one broker asks of the others, and answers them."""

    def __init__(self, core: Core, membership: Membership) -> None:
        self._core = core
        self._membership = membership
        self._asker: int | None = None
        self._number = 0
        # By number: whom each question asked, and the clocks before it was sent.
        self._questions: dict[int, tuple[int, Instant]] = {}
        # By incarnation: the clocks before the newest question that it answered with an assurance.
        self._assured: dict[int, Instant] = {}
        self._ask_at_ms = -NEVER_MS

    @property
    def wake_at_ms(self) -> int:
        """When `ask` must be called next, in boot time."""
        core = self._core
        if core.lease.outlast_ms <= core.now.boot_ms or len(core.view.live) <= 1:
            return NEVER_MS
        return max(self._membership.touch_ends_ms, self._ask_at_ms)

    def assured_ms(self, broker: BrokerEntry, now: Instant) -> int | None:
        """Return the age in ms of a broker's newest assurance; None without one."""
        asked = self._assured.get(broker.incarnation)
        return None if asked is None else now.boot_ms - asked.boot_ms

    def asked(self, event: AssuranceAsked) -> None:
        """Answer another broker, in the same step that also accuses."""
        core = self._core
        asker = core.view.live.get(event.asker)
        assured = (
            event.cluster == core.cluster
            and core.incarnation is not None
            and event.asked == core.incarnation
            and asker is not None
            and not core.is_unsettled(asker.broker)
            and not self._membership.is_in_touch()
        )
        core.effects.append(AssuranceAnswered(ticket=event.ticket, assured=assured))

    def assured(self, event: Assured) -> None:
        """Count an assurance from before its own question was sent."""
        core = self._core
        broker, asked = self._questions.get(event.number, (None, core.now))
        if (event.cluster, event.asker, event.by) == (core.cluster, core.incarnation, broker):
            del self._questions[event.number]
            before = self._assured.get(event.by)
            if before is None or before.boot_ms < asked.boot_ms:
                self._assured[event.by] = asked

    def reckon(self) -> None:
        """Compute the end of the extension. Call it in the step that reads who is live, before the
        broker decides on another renewal.
        """
        core, lease = self._core, self._core.lease
        if core.incarnation != self._asker:
            self._asker = core.incarnation
            self._questions.clear()
            self._assured.clear()
        until_ms, skew_ms = lease.outlast_ms, lease.skew_ms
        for incarnation in core.view.live if until_ms else ():
            if incarnation == core.incarnation:
                continue
            asked = self._assured.get(incarnation)
            if asked is None:
                until_ms = 0
                break
            until_ms = min(until_ms, asked.boot_ms + core.timing.lease_ms)
            skew_ms = min(skew_ms, asked.wall_ms - asked.boot_ms)
        lease.extend(until_ms=until_ms, skew_ms=skew_ms, now=core.now)

    def ask(self) -> None:
        """Ask what is due, while this broker is out of touch."""
        core, now_ms = self._core, self._core.now.boot_ms
        if now_ms < self.wake_at_ms:
            return
        self._ask_at_ms = now_ms + core.timing.ask_ms
        self._forget_the_old()
        for broker in core.view.live_brokers():
            age_ms = self.assured_ms(broker, core.now)
            is_new = age_ms is not None and age_ms < core.timing.renew_ms
            if broker.incarnation != core.incarnation and not is_new:
                self._number += 1
                self._questions[self._number] = (broker.incarnation, core.now)
                core.effects.append(
                    AskAssurance(broker=broker, asker=core.lease.incarnation, number=self._number)
                )

    def _forget_the_old(self) -> None:
        """Forget what has lapsed: so there are at most 2 x lease / renewal questions to each."""
        since_ms = self._core.now.boot_ms - self._core.timing.lease_ms
        for number, (_, asked) in list(self._questions.items()):
            if asked.boot_ms <= since_ms:
                del self._questions[number]
        for incarnation, asked in list(self._assured.items()):
            if asked.boot_ms <= since_ms:
                del self._assured[incarnation]
