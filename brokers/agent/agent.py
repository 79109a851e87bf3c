"""The broker as a pure state machine: `Agent.step(event, now) -> effects`.

May live here: the agent, which joins its parts; each event's way through them. The host owns clocks, log, disk and service.

Theory of operation. A step folds what was read (`Read`) through the one fold, lets each part take note, and then asks each
part what is due at this moment. Nothing is decided from a record alone, only from the view that it led to, so that replay
and tail are one, and so that a resync over what nobody can read any more (`Resynced`) is but a larger step between two views. A
part decides by proposing; the record comes back by the log, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from equipoise.brokers.agent.core import Core, Profile
from equipoise.brokers.agent.effects import Alarm, Answered, Effect, Stop
from equipoise.brokers.agent.events import (
    AppendFailed,
    Closed,
    CutsFound,
    Discarded,
    DrainRequested,
    Event,
    Instant,
    NonceWritten,
    Opened,
    PlacementChosen,
    Prepared,
    Read,
    Requested,
    Resynced,
    Tick,
    Wanted,
)
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.agent.leading import Batches, Leading
from equipoise.brokers.agent.membership import NEVER_MS, Membership
from equipoise.brokers.agent.ownerships import Ownerships
from equipoise.brokers.agent.requests import record_of
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.balancing.placement import FewestBundles, Placement
from equipoise.brokers.errors import NotProposed
from equipoise.channel.core.entries import BrokerChanged, BrokerEntry, Verdict
from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import QUIET_REASONS, Reason, Unreadable
from equipoise.channel.core.view import View


class Agent:
    """One broker. `step` is the only way in; `view`, `lease` and the handles may be read between steps."""

    def __init__(
        self,
        *,
        broker: str,
        cluster: str,
        reader: Reader,
        timing: Timing,
        profile: Profile,
        make_nonce: Callable[[], str],
        predecessor_nonces: frozenset[str] = frozenset(),
        placement: Placement | None = None,
        batches: Batches | None = None,
    ) -> None:
        """A broker that has done nothing yet. `reader` may start from a snapshot; nobody else may feed it.

        `make_nonce` gives a text that nobody has used before. `predecessor_nonces` were found in the data directory, whose
        exclusive lock this process holds. Raises `InvalidTiming` for durations that are not safe.
        """
        timing.check()
        core = Core(broker=broker, cluster=cluster, reader=reader, timing=timing, profile=profile)
        self._core = core
        self._membership = Membership(core, make_nonce=make_nonce, predecessor_nonces=predecessor_nonces)
        self._ownerships = Ownerships(core)
        self._leading = Leading(core, self._membership, placement or FewestBundles(), batches or Batches())
        self._drain: DrainRequested | None = None
        # The newest attempt that was made before the stall from which the broker has not yet heard from the log; None if it has.
        self._asked_asleep: int | None = None

    # --- what the host may read between steps ---

    @property
    def broker(self) -> str:
        """The broker's id."""
        return self._core.broker

    @property
    def view(self) -> View:
        """The view up to what was read; read only."""
        return self._core.view

    @property
    def incarnation(self) -> int | None:
        """The live incarnation of this process; None while it is no member."""
        return self._core.incarnation

    @property
    def lease(self) -> Lease:
        """The lease of the present incarnation; a lost one while there is none."""
        return self._core.lease

    @property
    def entry(self) -> BrokerEntry | None:
        """This broker's own entry in the view, while it is a member."""
        return self._membership.entry

    @property
    def timing(self) -> Timing:
        """The durations in force: what was promised on joining."""
        return self._core.timing

    @property
    def placement(self) -> Placement:
        """By what bundles are placed now."""
        return self._leading.placement

    @property
    def is_ready(self) -> bool:
        """Whether it has read up to the end that it saw at its start, and its own `joined`."""
        return self._membership.caught_up and self._core.incarnation is not None

    @property
    def leads(self) -> bool:
        """Whether this broker acts as the leader, as its view says: others' views may be ahead of it."""
        return self._leading.leads

    @property
    def is_in_touch(self) -> bool:
        """Whether an own renewal was read back within half a lease."""
        return self._membership.is_in_touch()

    @property
    def handles(self) -> dict[str, Handle]:
        """The handles of bundles that are open, or being opened or closed, at this broker."""
        return self._ownerships.handles

    @property
    def wake_at_ms(self) -> int:
        """The boot time at which a `Tick` is wanted, if nothing happens before."""
        if self._core.stopped:
            return NEVER_MS
        drain_ms = NEVER_MS if self._drain is None else self._core.now.boot_ms + _DRAIN_ROUND_MS
        return min(self._membership.wake_at_ms, self._ownerships.wake_at_ms, self._leading.wake_at_ms, drain_ms)

    def handle(self, bundle: str) -> Handle | None:
        """The handle of one bundle, if this broker has it open or is opening it."""
        return self._ownerships.handle(bundle)

    def out_of_touch_ms(self, now: Instant) -> int | None:
        """How long ago an own renewal was last read back, if that is half a lease or more: the channel is lost to this member."""
        return self._membership.out_of_touch_ms(now)

    def is_suspect(self, broker: BrokerEntry, now: Instant, *, log_is_readable: bool) -> bool:
        """Whether a broker is late with its renewal, though others are not, so that lookups of its bundles had better wait."""
        return self._membership.is_suspect(broker, now, log_is_readable=log_is_readable)

    # --- the one way in ---

    def step(self, event: Event, now: Instant) -> list[Effect]:
        """Take one event at one reading of the clocks; the effects are to be carried out in their order.

        Raises what `Reader.feed` raises when the log must not be read on: the broker must then end.
        """
        core = self._core
        core.now, core.effects = now, []
        self._attend(event)
        if not core.stopped:
            _HANDLERS[type(event)](self, event)
            self._membership.tick()
            self._ownerships.tick()
            self._leading.tick()
            # What the log has just refused is not said again at once, or a broker that leaves would turn in circles with it.
            if type(event) is not AppendFailed:
                self._leave_if_due()
        return core.effects

    def _attend(self, event: Event) -> None:
        """Note that the broker is awake; after a stall only once it hears from the log, which may have declared dead it meanwhile.

        What it asked before the stall tells of a log as it was then: only a failure of what was asked since says that it is away.
        """
        core = self._core
        is_awake = core.lease.is_attended(core.now)
        if not is_awake and self._asked_asleep is None:
            self._asked_asleep = core.attempts_made
        has_heard = isinstance(event, Read) or (isinstance(event, AppendFailed) and event.attempt > (self._asked_asleep or 0))
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
        own = record.publisher == core.broker and record.incarnation is not None and record.incarnation == core.incarnation
        attempt = core.settle(folded, record.sequence or 0) if own else None
        if own:
            self._ownerships.append_succeeded()
        if self._ends_me(folded):
            self._lose_incarnation(f"declared dead at offset {folded.offset} by {folded.record.publisher}", folded.offset)
        before = core.incarnation
        self._membership.folded(folded)
        if attempt is not None and folded.verdict.accepted and attempt.key == core.broker and core.incarnation is not None:
            self._membership.renewed(attempt.decided)
        if core.incarnation != before:
            self._ownerships.incarnation_changed()
        self._ownerships.folded(folded)
        self._leading.folded(folded)
        if own and folded.verdict.reason is not None and attempt is not None and not self._is_quiet(folded.verdict.reason):
            self._complain(folded)

    def _is_quiet(self, reason: Reason) -> bool:
        """Whether a rejection is in the ordinary run of things: brokers that all stop at once propose each other, and soon know better."""
        return reason in QUIET_REASONS or (reason is Reason.DRAINING_TARGET and self._drain is not None)

    def _ends_me(self, folded: Folded) -> bool:
        me = self._core.incarnation
        return me is not None and any(isinstance(change, BrokerChanged) and change.dead == me for change in folded.verdict.changes)

    def _resynced(self, event: Resynced) -> None:
        """Act on the difference of the views as on verdicts; but for the lease, which only an own record that is read renews."""
        core = self._core
        resync = core.resynced(event.reader)
        core.effects.append(resync)
        if core.incarnation is not None and core.incarnation not in core.view.live:
            self._lose_incarnation(
                f"declared dead between offsets {resync.before} and {resync.offset}, in what was truncated unread", resync.offset
            )
        # This comes before the membership, which may begin an incarnation that joined in the gap: that one has no old transfers.
        self._ownerships.resynced(resync)
        before = core.incarnation
        self._membership.resynced(resync)
        if core.incarnation != before:
            self._ownerships.incarnation_changed()
        self._leading.resynced(resync)

    def _lose_incarnation(self, death: str, offset: int) -> None:
        """Section 4: a broker that reads its own death closes all, and joins anew; one that means to leave only closes all."""
        self._membership.ended()
        self._ownerships.incarnation_changed()
        if self._drain is not None and self._drain.leave:
            self._membership.join_no_more()
        else:
            self._core.effects.append(Alarm(name="own_death", message=f"{death}; joining anew", key=self._core.broker, offset=offset))

    def _complain(self, folded: Folded) -> None:
        record, verdict = folded.record, folded.verdict
        key = "?" if isinstance(record, Unreadable) else record.key
        message = f"the proposal about {key} at offset {folded.offset} was rejected: {verdict.reason}"
        self._core.effects.append(Alarm(name="rejected", message=message, key=key, offset=folded.offset, reason=verdict.reason))

    def _append_failed(self, event: AppendFailed) -> None:
        self._core.append_failed(event.attempt, event.error, in_doubt=event.in_doubt)
        self._membership.append_failed()
        self._ownerships.append_failed()

    def _requested(self, event: Requested) -> None:
        core = self._core
        if core.incarnation is None or not core.lease.good(core.now):
            without_lease = NotProposed(broker=core.broker, problem="it has no lease at this moment")
            core.effects.append(Answered(ticket=event.ticket, error=without_lease))
            return
        make = record_of(core.view, event.intent, self._leading.placement)
        lost_ms = self.out_of_touch_ms(core.now)
        if isinstance(make, Verdict) and lost_ms is not None:
            problem = f"it has read none of its own renewals for {lost_ms} ms, and what it knows may be out of date"
            core.effects.append(Answered(ticket=event.ticket, error=NotProposed(broker=core.broker, problem=problem)))
        elif isinstance(make, Verdict):
            core.effects.append(Answered(ticket=event.ticket, verdict=make))
        else:
            core.propose(make, ticket=event.ticket)

    def _drain_requested(self, event: DrainRequested) -> None:
        earlier = self._drain
        self._drain = event if earlier is None or event.leave else earlier
        self._membership.propose_draining()

    # --- leaving ---

    def _leave_if_due(self) -> None:
        """A graceful stop: drain, move all away, stop serving for ever in this incarnation, close, and only then leave."""
        core, drain = self._core, self._drain
        if drain is None or core.stopped:
            return
        if core.incarnation is None:
            # A `joined` that is under way would make a member that nobody is: it is waited for, to be left properly. And so
            # is the service: whoever was declared dead while it closed still owes its callers the end of that.
            if drain.leave and not self._membership.join_no_more() and self._ownerships.is_empty():
                core.stopped = True
                core.effects.append(Stop(error=None))
            return
        if not core.leaving:
            self._membership.propose_draining()
            if drain.leave and self._may_leave(drain):
                core.leaving = True
                core.lease.lose()
                self._ownerships.incarnation_changed()
        if core.leaving and self._ownerships.is_empty():
            self._membership.propose_left()

    def _may_leave(self, drain: DrainRequested) -> bool:
        core, entry = self._core, self._membership.entry
        if core.now.boot_ms >= drain.deadline_ms:
            return True
        if entry is None or entry.status != "draining" or core.incarnation is None:
            return False
        nobody_else = all(broker.status != "up" for broker in core.view.live_brokers())
        return nobody_else or core.view.held_count(core.incarnation) == 0


# While a broker drains or leaves it looks this often whether it may go on; every record that it reads is a look, too.
_DRAIN_ROUND_MS: Final = 100

_HANDLERS: Final[dict[type, Callable[..., None]]] = {
    Read: Agent._read,  # noqa: SLF001 - the table of the class's own handlers
    Resynced: Agent._resynced,  # noqa: SLF001
    Tick: lambda _agent, _event: None,
    AppendFailed: Agent._append_failed,  # noqa: SLF001
    NonceWritten: lambda agent, event: agent._membership.nonce_written(event.nonce),  # noqa: SLF001
    Prepared: lambda agent, event: agent._ownerships.prepared(event.bundle, event.problem),  # noqa: SLF001
    Opened: lambda agent, event: agent._ownerships.opened(event.bundle, event.problem),  # noqa: SLF001
    Closed: lambda agent, event: agent._ownerships.closed(event.bundle, event.handover),  # noqa: SLF001
    Discarded: lambda agent, event: agent._ownerships.discarded(event.bundle),  # noqa: SLF001
    CutsFound: lambda agent, event: agent._ownerships.cuts_found(event),  # noqa: SLF001
    Wanted: lambda agent, event: agent._leading.wanted(event.bundle),  # noqa: SLF001
    Requested: Agent._requested,  # noqa: SLF001
    DrainRequested: Agent._drain_requested,  # noqa: SLF001
    PlacementChosen: lambda agent, event: agent._leading.place_by(event.placement),  # noqa: SLF001
}
