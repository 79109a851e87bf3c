"""Run one broker as a pure state machine: `Agent.step(event, now) -> effects`.

Theory of operation:

* A step folds the records that were read into the view, informs each part, and asks each part what
  is due.
* Parts decide from the view, never from a single record. So replay, tailing and a resync
  (`Resynced`) behave alike.
* A part decides by proposing a record. The decision counts only once the record is read back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from equipoise.brokers.agent.assurances import Assurances
from equipoise.brokers.agent.core import NEVER_MS, Core, Profile
from equipoise.brokers.agent.effects import Alarm, AlarmName, Answered, Effect, Stop
from equipoise.brokers.agent.events import (
    AppendFailed,
    AssuranceAsked,
    Assured,
    Closed,
    CutsFound,
    Discarded,
    DrainRequested,
    Event,
    InstanceIdWritten,
    Instant,
    MarkWritten,
    OpenContinues,
    Opened,
    PlacementChosen,
    Prepared,
    ProcessEnded,
    Reachable,
    Read,
    Requested,
    Resynced,
    Tick,
    UndrainRequested,
    Wanted,
)
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.agent.leading import Batches, Leading
from equipoise.brokers.agent.membership import Membership
from equipoise.brokers.agent.ownerships import Ownerships
from equipoise.brokers.agent.requests import record_of
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.balancing.placement import FewestBundles, Placement
from equipoise.brokers.balancing.policies import Maintenance
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.errors import not_proposed
from equipoise.channel.core.entries import BrokerChanged, BrokerEntry, Verdict
from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import QUIET_REASONS, Reason, Unreadable
from equipoise.channel.core.view import View


class Agent:
    """One broker. Call `step` for every event; read everything else between steps only."""

    def __init__(
        self,
        *,
        broker: str,
        cluster: str,
        reader: Reader,
        timing: Timing,
        profile: Profile,
        make_instance_id: Callable[[], str],
        predecessor_instance_ids: frozenset[str] = frozenset(),
        placement: Placement | None = None,
        batches: Batches | None = None,
        settings: BalancingSettings | None = None,
        is_reachable: bool = True,
    ) -> None:
        """Create a broker. Only this agent may feed `reader`, which may start from a snapshot.

        `make_instance_id` must never repeat a text. `predecessor_instance_ids` come from the data
        directory, whose exclusive lock this process holds. `settings` apply where the channel has
        none. Unless it `is_reachable`, the broker joins only after a `Reachable`. Raise
        `InvalidConfig` for unsafe durations.
        """
        timing.check()
        core = Core(broker=broker, cluster=cluster, reader=reader, timing=timing, profile=profile)
        self._core = core
        self._membership = Membership(
            core,
            make_instance_id=make_instance_id,
            predecessor_instance_ids=predecessor_instance_ids,
            is_reachable=is_reachable,
        )
        self._assurances = Assurances(core, self._membership)
        self._ownerships = Ownerships(core)
        self._leading = Leading(
            core,
            self._membership,
            placement or FewestBundles(),
            batches or Batches(),
            settings or BalancingSettings(),
        )
        self._drain: DrainRequested | None = None
        # After a drain without a stop: leave, and join again. Only a new incarnation does not
        # drain.
        self._rejoins = False
        # The newest attempt made before a stall, until the broker hears from the log again; then
        # None.
        self._asked_asleep: int | None = None

    # --- what the host may read between steps ---

    @property
    def broker(self) -> str:
        """The broker's id."""
        return self._core.broker

    @property
    def view(self) -> View:
        """The view up to the last record that was read. Read only."""
        return self._core.view

    @property
    def incarnation(self) -> int | None:
        """The live incarnation of this process; None if it is not a member."""
        return self._core.incarnation

    @property
    def lease(self) -> Lease:
        """The lease of the current incarnation; a lost lease without one."""
        return self._core.lease

    @property
    def entry(self) -> BrokerEntry | None:
        """This broker's entry in the view; None if it is not a member."""
        return self._membership.entry

    @property
    def drains(self) -> bool:
        """Whether this broker is a member that drains, with or without leaving."""
        return self._membership.drains

    @property
    def maintenance(self) -> Maintenance | None:
        """The maintenance that this broker is in."""
        return self._leading.maintenance

    @property
    def timing(self) -> Timing:
        """The durations in force, as promised on joining."""
        return self._core.timing

    @property
    def placement(self) -> Placement:
        """The current placement policy."""
        return self._leading.placement

    @property
    def is_ready(self) -> bool:
        """Whether it has read up to the log's end at its start, and its own `joined`."""
        return self._membership.caught_up and self._core.incarnation is not None

    @property
    def leads(self) -> bool:
        """Whether this broker leads in its own view. Other views may be newer."""
        return self._leading.leads

    @property
    def handles(self) -> dict[str, Handle]:
        """The handles of bundles that are open, opening or closing at this broker."""
        return self._ownerships.handles

    @property
    def wake_at_ms(self) -> int:
        """The boot time of the next `Tick`, if no other event comes first."""
        if self._core.stopped:
            return NEVER_MS
        drain_ms = NEVER_MS if self._drain is None else self._core.now.boot_ms + _DRAIN_ROUND_MS
        parts_ms = (
            self._membership.wake_at_ms,
            self._assurances.wake_at_ms,
            self._ownerships.wake_at_ms,
            self._leading.wake_at_ms,
        )
        return min(*parts_ms, self._core.mark.wake_at_ms, drain_ms)

    def handle(self, bundle: str) -> Handle | None:
        """Return the handle of a bundle that is open or opening here; None otherwise."""
        return self._ownerships.handle(bundle)

    def out_of_touch_ms(self, now: Instant) -> int | None:
        """Return the age in ms of the last own renewal read back, if at least half a lease; else
        None.
        """
        return self._membership.out_of_touch_ms(now)

    def unassured(self, now: Instant) -> list[str]:
        """Return the other live brokers whose newest assurance is older than a lease."""
        ages_ms = {
            broker.broker: self._assurances.assured_ms(broker, now)
            for broker in self.view.live_brokers()
            if broker.incarnation != self.incarnation
        }
        return [name for name, ms in ages_ms.items() if ms is None or ms >= self.timing.lease_ms]

    def is_suspect(self, broker: BrokerEntry, now: Instant, *, log_is_readable: bool) -> bool:
        """Return whether only this broker is late with its renewal, so that lookups of its bundles
        should wait. One that has lately given an assurance is alive, and the log may be away.
        """
        assured_ms = self._assurances.assured_ms(broker, now)
        promised = broker.joined
        if assured_ms is not None and assured_ms < promised.lease_ms - promised.grace_ms:
            return False
        return self._membership.is_suspect(broker, now, log_is_readable=log_is_readable)

    # --- the one way in ---

    def step(self, event: Event, now: Instant) -> list[Effect]:
        """Handle one event at one reading of the clocks. Return the effects, in order.

        Raise the errors of `Reader.feed` if the log must not be read on. The broker must then end.
        """
        core = self._core
        core.now, core.effects = now, []
        self._attend(event)
        if not core.stopped:
            _HANDLERS[type(event)](self, event)
            self._assurances.reckon()
            self._membership.tick()
            self._assurances.ask()
            self._ownerships.tick()
            self._leading.tick()
            # Do not propose again at once what the log has just refused: a leaving broker would
            # loop.
            if type(event) is not AppendFailed:
                self._leave_if_due()
            mark = core.mark.due(core.view, now)
            if mark is not None:
                core.effects.append(mark)
        return core.effects

    def _attend(self, event: Event) -> None:
        """Note that the broker is awake. After a stall, wait for news from the log, where it may
        have been declared dead.

        A failed attempt counts as news only if it was made after the stall.
        """
        core = self._core
        is_awake = core.lease.is_attended(core.now)
        if not is_awake and self._asked_asleep is None:
            self._asked_asleep = core.attempts_made
        has_heard = isinstance(event, Read) or (
            isinstance(event, AppendFailed) and event.attempt > (self._asked_asleep or 0)
        )
        if is_awake or has_heard:
            self._asked_asleep = None
            core.lease.attend(core.now)

    def _read(self, event: Read) -> None:
        for entry in event.entries:
            self._fold(entry)
        if event.caught_up:
            self._membership.caught_up_now()

    def _fold(self, entry: Entry) -> None:
        core = self._core
        folded = core.reader.feed(entry)
        core.effects.append(folded)
        record = folded.record
        own = (
            record.publisher == core.broker
            and record.incarnation is not None
            and record.incarnation == core.incarnation
        )
        attempt = core.settle(folded, record.sequence or 0) if own else None
        if own:
            self._ownerships.append_succeeded()
        if self._ends_me(folded):
            self._lose_incarnation(
                f"declared dead at offset {folded.offset} by {folded.record.publisher}",
                folded.offset,
            )
        before = core.incarnation
        self._membership.folded(folded)
        if (
            attempt is not None
            and folded.verdict.accepted
            and attempt.key == core.broker
            and core.incarnation is not None
        ):
            self._membership.renewed(attempt.decided)
        if core.incarnation != before:
            self._ownerships.incarnation_changed()
        self._ownerships.folded(folded)
        self._leading.folded(folded)
        if (
            own
            and folded.verdict.reason is not None
            and attempt is not None
            and not self._is_quiet(folded.verdict.reason)
        ):
            self._complain(folded)

    def _is_quiet(self, reason: Reason) -> bool:
        """Return whether a rejection is routine. Brokers that stop together propose each other as
        destinations at first.
        """
        return reason in QUIET_REASONS or (
            reason is Reason.DRAINING_TARGET and self._drain is not None
        )

    def _ends_me(self, folded: Folded) -> bool:
        me = self._core.incarnation
        return me is not None and any(
            isinstance(change, BrokerChanged) and change.dead == me
            for change in folded.verdict.changes
        )

    def _resynced(self, event: Resynced) -> None:
        """Act on the difference of the views. Do not renew the lease: only an own record that is
        read does.
        """
        core = self._core
        resync = core.resynced(event.reader)
        core.effects.append(resync)
        if core.incarnation is not None and core.incarnation not in core.view.live:
            self._lose_incarnation(
                f"declared dead between offsets {resync.before} and {resync.offset}, in records"
                " that were truncated before they were read",
                resync.offset,
            )
        # Do this first: the membership may adopt an incarnation that joined in the gap, which has
        # no old transfers.
        self._ownerships.resynced(resync)
        before = core.incarnation
        self._membership.resynced(resync)
        if core.incarnation != before:
            self._ownerships.incarnation_changed()
        self._leading.resynced(resync)

    def _lose_incarnation(self, death: str, offset: int) -> None:
        """Close everything and join again after the own death was read (section 4). Do not join
        again when leaving.
        """
        self._membership.ended()
        self._ownerships.incarnation_changed()
        if self._rejoins:
            self._drain, self._rejoins = None, False
        elif self._drain is not None and self._drain.leave:
            self._membership.join_no_more()
        else:
            self._core.effects.append(
                Alarm(
                    name=AlarmName.OWN_DEATH,
                    message=f"{death}; joining anew",
                    key=self._core.broker,
                    offset=offset,
                )
            )

    def _complain(self, folded: Folded) -> None:
        record, verdict = folded.record, folded.verdict
        key = "?" if isinstance(record, Unreadable) else record.key
        message = (
            f"the proposal about {key} at offset {folded.offset} was rejected: {verdict.reason}"
        )
        self._core.effects.append(
            Alarm(
                name=AlarmName.REJECTED,
                message=message,
                key=key,
                offset=folded.offset,
                reason=verdict.reason,
            )
        )

    def _mark_written(self, event: MarkWritten) -> None:
        self._core.mark.written(event.offset)
        self._ownerships.tokens_noted()

    def _append_failed(self, event: AppendFailed) -> None:
        self._core.append_failed(event.attempt, event.error, in_doubt=event.in_doubt)
        self._membership.append_failed()
        self._ownerships.append_failed()

    def _requested(self, event: Requested) -> None:
        core = self._core
        if core.incarnation is None or not core.lease.holds(core.now):
            without_lease = not_proposed(
                broker=core.broker, problem="it has no lease at this moment"
            )
            core.effects.append(Answered(ticket=event.ticket, error=without_lease))
            return
        make = record_of(core.view, event.intent, self._leading.placement)
        lost_ms = self.out_of_touch_ms(core.now)
        if isinstance(make, Verdict) and lost_ms is not None:
            problem = (
                f"it has not read its own renewals for {lost_ms} ms, so its view may be out of date"
            )
            core.effects.append(
                Answered(
                    ticket=event.ticket, error=not_proposed(broker=core.broker, problem=problem)
                )
            )
        elif isinstance(make, Verdict):
            core.effects.append(Answered(ticket=event.ticket, refused=make))
        else:
            core.propose(make, ticket=event.ticket, requested_by=event.requested_by)

    def _drain_requested(self, event: DrainRequested) -> None:
        earlier = self._drain
        self._rejoins = False
        self._drain = event if earlier is None or event.leave else earlier
        self._membership.propose_draining(requested_by=self._drain.requested_by)

    def _undrain_requested(self, _: UndrainRequested) -> None:
        self._rejoins = self._drain is not None and not self._drain.leave

    # --- leaving ---

    def _leave_if_due(self) -> None:
        """Stop gracefully: drain, move all bundles away, stop serving in this incarnation, close,
        then leave.
        """
        core, drain = self._core, self._drain
        if drain is None or core.stopped:
            return
        if core.incarnation is None:
            # A pending `joined` may still create a member that no process runs: wait, then leave.
            # Wait for the service too: after a death during a close, callers still need its result.
            if drain.leave and not self._membership.join_no_more() and self._ownerships.is_empty():
                core.stopped = True
                core.effects.append(Stop(error=None))
            return
        if not core.leaving:
            self._membership.propose_draining(requested_by=drain.requested_by)
            if (drain.leave or self._rejoins) and self._may_leave(drain):
                core.leaving = True
                core.lease.lose()
                self._ownerships.incarnation_changed()
        if core.leaving and self._ownerships.is_empty():
            self._membership.propose_left()

    def _may_leave(self, drain: DrainRequested) -> bool:
        core = self._core
        if drain.leave and core.now.boot_ms >= drain.deadline_ms:
            return True
        if not self._membership.drains or core.incarnation is None:
            return False
        return not core.view.can_give(core.incarnation)


# Interval of checks while a broker drains or leaves. Each record that it reads is a check, too.
_DRAIN_ROUND_MS: Final = 100

_HANDLERS: Final[dict[type, Callable[..., None]]] = {
    Read: Agent._read,  # noqa: SLF001 - the table of the class's own handlers
    Resynced: Agent._resynced,  # noqa: SLF001
    Tick: lambda _agent, _event: None,
    AppendFailed: Agent._append_failed,  # noqa: SLF001
    InstanceIdWritten: lambda agent, event: agent._membership.instance_id_written(  # noqa: SLF001
        event.instance_id
    ),
    MarkWritten: Agent._mark_written,  # noqa: SLF001
    ProcessEnded: lambda agent, event: agent._membership.process_ended(event.instance_ids),  # noqa: SLF001
    Prepared: lambda agent, event: agent._ownerships.prepared(event.bundle, event.problem),  # noqa: SLF001
    OpenContinues: lambda agent, event: agent._ownerships.open_continues(event.bundle),  # noqa: SLF001
    Opened: lambda agent, event: agent._ownerships.opened(event.bundle, event.problem),  # noqa: SLF001
    Closed: lambda agent, event: agent._ownerships.closed(event.bundle, event.handover),  # noqa: SLF001
    Discarded: lambda agent, event: agent._ownerships.discarded(event.bundle),  # noqa: SLF001
    CutsFound: lambda agent, event: agent._ownerships.cuts_found(event),  # noqa: SLF001
    Wanted: lambda agent, event: agent._leading.wanted(event.bundle),  # noqa: SLF001
    Requested: Agent._requested,  # noqa: SLF001
    DrainRequested: Agent._drain_requested,  # noqa: SLF001
    UndrainRequested: Agent._undrain_requested,  # noqa: SLF001
    AssuranceAsked: lambda agent, event: agent._assurances.asked(event),  # noqa: SLF001
    Assured: lambda agent, event: agent._assurances.assured(event),  # noqa: SLF001
    Reachable: lambda agent, _event: agent._membership.reachable(),  # noqa: SLF001
    PlacementChosen: lambda agent, event: agent._leading.place_by(event.placement),  # noqa: SLF001
}
