"""Handle membership: join, renew, declare others dead, leave (section 4 of the protocol).

Theory of operation:

* A broker serves until the decision time of its last accepted renewal, plus its lease.
* A broker accuses another after reading nothing from it for that lease plus the grace period. Its
  own clock counts from the latest of: the other's last record was read, its own lease became good,
  it got back in touch with the log.
* So, with clocks of nearly equal rate, no broker is declared dead while it may still answer, and an
  outage of the log kills none.
* Silence is not needed where the host has proof that the other's process has ended.
* A broker that the other may not know accuses it only once the other's extension must have ended
  (`brokers.agent.assurances`).
* A broker late with one renewal is suspect: clients should wait. Its silence counts only if another
  broker was heard after its renewal was due, or if nothing shows that the log is away. Otherwise it
  is trusted until its lease must have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from equipoise.brokers.agent.core import NEVER_MS, Core
from equipoise.brokers.agent.effects import ForgetInstanceIds, Refold, Stop, WriteInstanceId
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Lease
from equipoise.brokers.agent.timing import RETRY_DIVISOR
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BrokerChanged, BrokerEntry, Change
from equipoise.channel.core.errors import OperatorError
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BrokerRecord, Genesis, Joined, Reason, Renewed
from equipoise.channel.core.table import Resync

# This many renewals of a stranger under this id show a live process, not late records of a dead
# one.
_RENEWALS_OF_A_LIVING_STRANGER: Final = 3

# Remembered own instance ids: over an hour at one attempt per second. A forgotten one that is
# accepted counts as a stranger's, which silence ends.
_OWN_INSTANCE_IDS_MAX: Final = 4_096


class Membership:
    """One broker's membership."""

    def __init__(
        self,
        core: Core,
        *,
        make_instance_id: Callable[[], str],
        predecessor_instance_ids: frozenset[str],
        is_reachable: bool,
    ) -> None:
        self._core = core
        self._timing = core.timing
        self._make_instance_id = make_instance_id
        # Instance ids of dead processes, since we hold their directory's lock. Replaced, never
        # adopted.
        self._predecessor_instance_ids = predecessor_instance_ids
        # Own instance ids, with the decision times from which a lease is counted.
        self._own_instance_ids: dict[str, Instant] = {}
        self._caught_up_ms: int | None = None
        self._heard_ms: dict[int, int] = {}
        # When any broker, this one included, was last heard, and since when without a gap that cost
        # a renewal.
        self._heard_anybody_ms = -NEVER_MS
        self._hearing_since_ms = -NEVER_MS
        self._append_failed_ms = -NEVER_MS
        self._touched_ms = -NEVER_MS
        self._renewed_ms = -NEVER_MS
        self._back_in_touch_ms = -NEVER_MS
        self._lease_good_since_ms = -NEVER_MS
        self._renew_at_ms = NEVER_MS
        self._join_at_ms = NEVER_MS
        self._may_join = True
        self._is_reachable = is_reachable
        self._asked_to_join_ms = -NEVER_MS
        self._accuse_at_ms = NEVER_MS
        # Live incarnations whose process has ended, by the proof of the host.
        self._proven: set[int] = set()
        self._strangers_renewals = 0
        self._adopted_ms = -NEVER_MS
        # Older incarnations whose records prove that they have read this one's `joined`.
        self._known_to: set[int] = set()

    # --- what others ask ---

    @property
    def entry(self) -> BrokerEntry | None:
        """This broker's entry in the view; None if it is not a member."""
        incarnation = self._core.incarnation
        return None if incarnation is None else self._core.view.live.get(incarnation)

    @property
    def drains(self) -> bool:
        """Whether this broker is a member that takes no bundles and gives its own away for good."""
        entry = self.entry
        return entry is not None and entry.status == "draining"

    @property
    def caught_up(self) -> bool:
        """Whether the broker has read up to the log's end at its start."""
        return self._caught_up_ms is not None

    @property
    def wake_at_ms(self) -> int:
        """When `tick` must be called next, in boot time."""
        renew_at_ms = NEVER_MS if self._core.leaving else self._renew_at_ms
        join_at_ms = self._join_at_ms if self._may_join and self._is_reachable else NEVER_MS
        return min(renew_at_ms, join_at_ms, self._accuse_at_ms)

    def is_suspect(self, broker: BrokerEntry, now: Instant, *, log_is_readable: bool) -> bool:
        """Return whether a broker is so late with a renewal that clients should avoid it. False for
        this broker.

        In an outage all serve until their leases end, so a broker that was not late before is
        trusted that long. After the outage it has a renewal interval and a grace period to be
        heard.
        """
        promised = broker.joined
        heard_ms = self._heard_of_ms(broker)
        late_ms = promised.renew_ms + promised.grace_ms
        if broker.incarnation == self._core.incarnation or now.boot_ms - heard_ms <= late_ms:
            return False
        if now.boot_ms - heard_ms >= promised.lease_ms - promised.grace_ms:
            return True
        silent_since_ms = max(heard_ms, self._hearing_since_ms)
        if now.boot_ms - silent_since_ms <= late_ms:
            return False
        others_were_heard = self._heard_anybody_ms > silent_since_ms + promised.renew_ms
        return others_were_heard or (log_is_readable and not self._hears_nobody(now))

    def _hears_nobody(self, now: Instant) -> bool:
        """Return whether the log may be away for all: no renewal was read, or the last append
        failed.
        """
        late_ms = self._core.timing.renew_ms + self._core.timing.grace_ms
        return (
            now.boot_ms - self._heard_anybody_ms > late_ms
            or self._append_failed_ms > self._heard_anybody_ms
        )

    def is_in_touch(self) -> bool:
        """Return whether an own renewal was read back recently enough to judge others' silence."""
        return self._core.now.boot_ms < self.touch_ends_ms

    @property
    def touch_ends_ms(self) -> int:
        """When this broker is out of touch, in boot time, unless it reads another own renewal."""
        return self._touched_ms + self._core.timing.touch_ms

    def out_of_touch_ms(self, now: Instant) -> int | None:
        """Return the age in ms of the last own renewal read back; None while in touch or not a
        member.
        """
        silent_ms = now.boot_ms - self._renewed_ms
        is_lost = self._core.serving is not None and silent_ms >= self._core.timing.lease_ms // 2
        return silent_ms if is_lost else None

    # --- what was read ---

    def caught_up_now(self) -> None:
        """Note that the log's end at the start is reached: silence counts from now, and the broker
        may join.
        """
        if self._caught_up_ms is None:
            self._caught_up_ms = self._core.now.boot_ms
            self._join_at_ms = self._core.now.boot_ms

    def folded(self, folded: Folded) -> None:
        """Note a record about membership. The core has settled its attempt."""
        record, verdict = folded.record, folded.verdict
        if isinstance(record, Genesis) and verdict.accepted and self.caught_up:
            self._join_at_ms = self._core.now.boot_ms
        elif isinstance(record, Joined):
            self._joined(folded, record)
        elif verdict.accepted and isinstance(record, Renewed):
            self._heard(record.incarnation)
            self._note_base(record)
            # An earlier renewal shows no live stranger: it is most likely the predecessor's.
            if (
                self.caught_up
                and record.publisher == self._core.broker
                and record.incarnation != self._core.incarnation
            ):
                self._strangers_renewals += 1
            if verdict.diverged:
                self._core.effects.append(Refold(other=record.publisher, offset=folded.offset))
                # A wrong view may lack a broker that must be asked. The next own renewal ends this.
                self._core.lease.outlast_ms = 0
        elif verdict.accepted and isinstance(record, BrokerRecord) and record.status == "draining":
            self._heard(record.incarnation)
            self._note_base(record)
        for change in verdict.changes:
            self._note_death(change)

    def resynced(self, resync: Resync) -> None:
        """Handle skipped records. The view holds their results, but not their times.

        So nothing in it renews the lease or shows that this broker is in touch; silence counts from
        the next own record. An accepted `joined` of this process is adopted, without a lease.
        """
        core = self._core
        self._touched_ms = -NEVER_MS
        for change in resync.changes:
            self._note_death(change)
        for incarnation in core.view.live:
            self._heard(incarnation)
        myself = core.view.brokers.get(core.broker)
        if (
            core.incarnation is None
            and myself is not None
            and myself.live
            and myself.joined.instance_id in self._own_instance_ids
        ):
            self._asked_to_join_ms = -NEVER_MS
            self._adopt(myself.incarnation, myself.joined)
            # Nothing to read back yet; that is no loss of the channel.
            self._renewed_ms = core.now.boot_ms
        if core.incarnation is not None:
            self._renew_at_ms = core.now.boot_ms

    def _note_death(self, change: Change) -> None:
        if isinstance(change, BrokerChanged) and change.dead is not None:
            self._heard_ms.pop(change.dead, None)
            self._proven.discard(change.dead)
            self._known_to.discard(change.dead)
            if change.name == self._core.broker:
                self._strangers_renewals = 0

    def renewed(self, decided: Instant) -> None:
        """Renew the lease from the time at which the accepted attempt was decided."""
        core = self._core
        was_good = core.lease.holds(core.now)
        core.lease.renew(
            decided=decided, lease_ms=core.timing.lease_ms, extend_ms=core.timing.extend_ms
        )
        self._renewed_ms = core.now.boot_ms
        self._touch()
        if not was_good and core.lease.holds(core.now):
            self._lease_good_since_ms = core.now.boot_ms

    def ended(self) -> None:
        """Start over: the broker was declared dead, or another process took its id."""
        core = self._core
        core.lease.lose()
        core.lose_all()
        core.incarnation = None
        core.leaving = False
        self._renew_at_ms = self._accuse_at_ms = NEVER_MS
        self._join_at_ms = core.now.boot_ms

    def _joined(self, folded: Folded, record: Joined) -> None:
        decided = self._own_instance_ids.get(record.instance_id)
        if decided is not None:
            self._asked_to_join_ms = -NEVER_MS  # The attempt is settled.
        if folded.verdict.accepted:
            self._heard(folded.offset)
            if decided is not None and record.key == self._core.broker:
                self._adopt(folded.offset, record)
                self.renewed(decided)
        elif (
            decided is not None
            and self._core.incarnation is None
            and folded.verdict.reason is Reason.STILL_ALIVE
        ):
            # An answer proves that this process is in touch, although it is not a member.
            self._touch()

    def _adopt(self, incarnation: int, joined: Joined) -> None:
        """Adopt an incarnation that this process has begun. The caller renews its lease."""
        core = self._core
        core.incarnation = incarnation
        # The promised durations count, not those of today's settings.
        core.timing = replace(
            self._timing,
            lease_ms=joined.lease_ms,
            grace_ms=joined.grace_ms,
            renew_ms=joined.renew_ms,
            extend_ms=joined.extend_ms,
        )
        # An awake broker takes a step at each renewal. Add the longest harmless stall.
        attention_ms = core.timing.renew_ms + core.timing.stall_ms
        core.lease = Lease(
            incarnation=incarnation, skew_max_ms=core.timing.skew_max_ms, attention_ms=attention_ms
        )
        core.lease.attend(core.now)
        self._renewed_ms = self._adopted_ms = core.now.boot_ms
        self._known_to = set()
        self._renew_at_ms = core.now.boot_ms + core.timing.renew_ms
        self._accuse_at_ms = core.now.boot_ms
        self._join_at_ms = NEVER_MS
        self._predecessor_instance_ids = frozenset()
        self._own_instance_ids = {joined.instance_id: self._own_instance_ids[joined.instance_id]}
        core.effects.append(ForgetInstanceIds(keep=joined.instance_id))

    def _heard(self, incarnation: int | None) -> None:
        if incarnation is not None:
            now_ms, timing = self._core.now.boot_ms, self._core.timing
            if now_ms - self._heard_anybody_ms > timing.renew_ms + timing.grace_ms:
                self._hearing_since_ms = now_ms
            self._heard_ms[incarnation] = self._heard_anybody_ms = now_ms
            broker = self._core.view.live.get(incarnation)
            if broker is not None and self._core.incarnation is not None:
                self._accuse_at_ms = min(
                    self._accuse_at_ms, now_ms + broker.joined.lease_ms + broker.joined.grace_ms
                )

    def _touch(self) -> None:
        if not self.is_in_touch():
            self._back_in_touch_ms = self._core.now.boot_ms
        self._touched_ms = self._core.now.boot_ms

    # --- what is due ---

    def tick(self) -> None:
        """Do what is due now: join, renew, accuse."""
        core, now_ms = self._core, self._core.now.boot_ms
        if core.stopped:
            return
        if core.incarnation is None:
            if now_ms >= self._join_at_ms and self._may_join and self._is_reachable:
                self._join()
        else:
            if now_ms >= self._renew_at_ms and not core.leaving:
                self._renew()
            if now_ms >= self._accuse_at_ms:
                self._accuse()

    def append_failed(self) -> None:
        """Retry the next renewal soon, to notice the end of an outage."""
        self._append_failed_ms = self._core.now.boot_ms
        soon_ms = self._core.now.boot_ms + self._core.timing.renew_ms // RETRY_DIVISOR
        if self._core.incarnation is not None:
            self._renew_at_ms = min(self._renew_at_ms, soon_ms)

    def _renew(self) -> None:
        core, entry = self._core, self.entry
        self._renew_at_ms = core.now.boot_ms + core.timing.renew_ms
        if entry is not None:
            core.propose(partial(propose.renewed, broker=entry))

    def process_ended(self, instance_ids: frozenset[str]) -> None:
        """Declare dead what joined with one of `instance_ids`: its process has ended."""
        for broker in self._core.view.live_brokers():
            if broker.joined.instance_id in instance_ids:
                self._proven.add(broker.incarnation)
                self._accuse_at_ms = self._core.now.boot_ms

    def _accuse(self) -> None:
        core, now_ms = self._core, self._core.now.boot_ms
        others = [
            broker for broker in core.view.live_brokers() if broker.incarnation != core.incarnation
        ]
        # One broker accuses at a time: each waits a grace period more per older broker that is not
        # overdue.
        elders = sum(1 for broker in others if self._accuses_before_us(broker))
        may_accuse = core.lease.holds(core.now) and self.is_in_touch() and not core.leaving
        due_ms = NEVER_MS
        for broker in others:
            # Proof needs no lease, and is no matter of turns: the first `down` on the log counts.
            if broker.incarnation in self._proven and not core.leaving:
                self._propose_down(
                    broker, "its process has ended", instance_id=broker.joined.instance_id
                )
                due_ms = min(due_ms, now_ms + core.timing.attempt_ms)
                continue
            rank = elders - self._accuses_before_us(broker)
            overdue_ms = self._overdue_ms(broker)
            accusable_ms = max(
                overdue_ms + broker.joined.grace_ms * rank, self._is_known_from_ms(broker)
            )
            if accusable_ms <= now_ms and may_accuse:
                silent_ms = now_ms - self._silent_since_ms(broker)
                reason = (
                    f"silent for {silent_ms} ms: longer than its lease of"
                    f" {broker.joined.lease_ms} ms and the grace period"
                )
                self._propose_down(broker, reason)
            # The ranks change when an elder becomes overdue: look again then.
            again_ms = now_ms + core.timing.grace_ms // 2
            due_ms = min(
                due_ms,
                next(at_ms for at_ms in (overdue_ms, accusable_ms, again_ms) if at_ms > now_ms),
            )
        self._accuse_at_ms = due_ms

    def _propose_down(
        self, broker: BrokerEntry, reason: str, *, instance_id: str | None = None
    ) -> None:
        self._core.propose(
            partial(propose.down, broker=broker, instance_id=instance_id, reason=reason)
        )

    def _silent_since_ms(self, broker: BrokerEntry) -> int:
        """Return when the broker's silence begins to count. This broker's own absence does not
        count.
        """
        return max(self._heard_of_ms(broker), self._lease_good_since_ms, self._back_in_touch_ms)

    def _note_base(self, record: Renewed | BrokerRecord) -> None:
        """Note that the author of an accepted record had read this broker's `joined` before it
        decided on it: the record's base is above that. The author asks this broker for assurances.
        """
        me = self._core.incarnation
        if me is not None and record.incarnation is not None and record.expected_offset > me:
            self._known_to.add(record.incarnation)

    def _is_known_from_ms(self, broker: BrokerEntry) -> int:
        """Return from when on `broker` serves only if this broker does not accuse it, or its lease
        is good. One that may not know this broker may serve for its whole extension.
        """
        is_known = (
            broker.incarnation > (self._core.incarnation or 0)
            or broker.incarnation in self._known_to
        )
        return -NEVER_MS if is_known else self._adopted_ms + broker.joined.unheard_ms

    def _heard_of_ms(self, broker: BrokerEntry) -> int:
        """Return when its last record was read, or the log's end was reached if that is later."""
        caught_up_ms = self._core.now.boot_ms if self._caught_up_ms is None else self._caught_up_ms
        return max(self._heard_ms.get(broker.incarnation, -NEVER_MS), caught_up_ms)

    def _accuses_before_us(self, broker: BrokerEntry) -> bool:
        """Return whether an older broker that lives and is not overdue must accuse before this
        one.
        """
        return (
            broker.incarnation < (self._core.incarnation or 0)
            and broker.incarnation not in self._proven
            and self._core.now.boot_ms < self._overdue_ms(broker)
        )

    def _overdue_ms(self, broker: BrokerEntry) -> int:
        """Return when the broker will have been silent for its lease and its grace period."""
        return self._silent_since_ms(broker) + broker.joined.lease_ms + broker.joined.grace_ms

    # --- joining ---

    def reachable(self) -> None:
        """Join from now on: clients that are sent here arrive."""
        self._is_reachable = True

    def _join(self) -> None:
        """Make an instance id and have it written before use. `instance_id_written` continues."""
        core = self._core
        self._join_at_ms = core.now.boot_ms + core.timing.renew_ms
        if core.view.genesis is None:
            core.append(encode(propose.genesis(core.author(0), cluster=core.cluster)))
            return
        if self._strangers_renewals >= _RENEWALS_OF_A_LIVING_STRANGER:
            core.stopped = True
            incarnation = core.view.brokers[core.broker].incarnation
            problem = (
                f"the broker id {core.broker!r} is in use by a live broker (incarnation"
                f" {incarnation}); stop it, or choose another --id"
            )
            core.effects.append(Stop(error=OperatorError(problem)))
            return
        instance_id = self._make_instance_id()
        if len(self._own_instance_ids) >= _OWN_INSTANCE_IDS_MAX:
            del self._own_instance_ids[next(iter(self._own_instance_ids))]
        self._own_instance_ids[instance_id] = core.now
        core.effects.append(WriteInstanceId(instance_id=instance_id))

    def instance_id_written(self, instance_id: str) -> None:
        """Send the `joined` with an instance id that is on disk."""
        core = self._core
        if (
            instance_id not in self._own_instance_ids
            or core.incarnation is not None
            or not self._may_join
        ):
            return
        self._asked_to_join_ms = core.now.boot_ms
        before = core.view.brokers.get(core.broker)
        alive = before if before is not None and before.live else None
        replaces = (
            alive.joined.instance_id
            if alive is not None and alive.joined.instance_id in self._predecessor_instance_ids
            else None
        )
        joined = core.profile.joined(
            key=core.broker,
            expected_offset=core.view.last_of_broker(core.broker),
            instance_id=instance_id,
            timestamp_ms=core.now.wall_ms,
            timing=self._timing.for_members(len(core.view.live) + 1),
        )
        after_silence = alive is not None and replaces is None and self._is_silent(alive)
        core.append(encode(replace(joined, replaces=replaces, after_silence=after_silence)))

    def _is_silent(self, before: BrokerEntry) -> bool:
        """Return whether this process, in touch, read nothing of the incarnation for as long as it
        may serve and the grace period.
        """
        silent_ms = self._core.now.boot_ms - self._silent_since_ms(before)
        return self.is_in_touch() and silent_ms >= before.joined.unheard_ms

    # --- leaving ---

    def join_no_more(self) -> bool:
        """Send no further `joined`. Return whether an earlier one may still be read back."""
        self._may_join = False
        return self._core.now.boot_ms - self._asked_to_join_ms < self._core.timing.attempt_ms

    def propose_draining(self, *, requested_by: str | None) -> None:
        """Take no new bundles from now on. `requested_by` is as in `Requested`."""
        entry = self.entry
        if entry is not None and entry.status == "up":
            self._core.propose(partial(propose.draining, broker=entry), requested_by=requested_by)

    def propose_left(self) -> None:
        """End the incarnation. It must have stopped serving for good."""
        entry = self.entry
        if entry is not None:
            self._core.propose(partial(propose.left, broker=entry))
