"""Lead: place free bundles, cancel stuck moves, drain brokers, forget old brokers, set quarantines,
end controls in time.

Brokers act in order of age. Acting twice is harmless: the expected offset lets one proposal win.

Remember which brokers refused a bundle, and ask them again later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Final

from equipoise.brokers.agent.core import NEVER_MS, Core
from equipoise.brokers.agent.effects import Alarm, AlarmName
from equipoise.brokers.agent.membership import Membership
from equipoise.brokers.balancing.controls import ReadControls, freeze_key, is_control, read_controls
from equipoise.brokers.balancing.placement import Placement, places_elsewhere
from equipoise.brokers.balancing.policies import (
    FAILURE_DOMAIN,
    QUARANTINE,
    Maintenance,
    maintenance_of,
    quarantine_key,
)
from equipoise.brokers.balancing.quarantine import Suspicions, is_quarantined
from equipoise.brokers.balancing.settings import settings_records
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.channel.core import propose
from equipoise.channel.core.entries import (
    BrokerChanged,
    BrokerEntry,
    BundleChanged,
    BundleEntry,
    NamespaceChanged,
    PolicyChanged,
)
from equipoise.channel.core.propose import is_refusal
from equipoise.channel.core.ranges import namespace_in
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX, AnyRecord, PolicyRecord, Unreadable
from equipoise.channel.core.table import Resync

ASK_AGAIN_MS: Final = 750
"""Back-off after a first refusal, so that others get a turn. Shorter than the time after which
others do the leader's work, so that the leader asks again."""

ASK_AGAIN_MS_MAX: Final = 60_000
"""Longest back-off, doubled per refusal. Each try costs three or four records. An operator who
fixed the service waits at most this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """The last refusal of a broker, and the number of refusals in a row."""

    at_ms: int
    in_a_row: int

    @property
    def back_off_ms(self) -> int:
        # Bounded, or the integer would become huge.
        return min(ASK_AGAIN_MS << min(self.in_a_row - 1, 16), ASK_AGAIN_MS_MAX)

    @property
    def forgotten_at_ms(self) -> int:
        """After this a refusal counts as the first again: the bundle was open meanwhile, or the
        broker was not asked.
        """
        return self.at_ms + self.back_off_ms + ASK_AGAIN_MS_MAX


@dataclass(slots=True, kw_only=True)
class _Refused:
    """A bundle's last refusals by incarnation. Do not ask the `resting` ones before `until_ms`.

    `resting` is cached: a leader may ask about thousands of bundles repeatedly.
    """

    refusals: dict[int, _Refusal]
    resting: frozenset[int] = frozenset()
    until_ms: int = 0

    def look(self, now_ms: int) -> None:
        """Update which brokers are resting now."""
        ends_ms = {
            incarnation: refusal.at_ms + refusal.back_off_ms
            for incarnation, refusal in self.refusals.items()
        }
        rests = {incarnation: end_ms for incarnation, end_ms in ends_ms.items() if now_ms < end_ms}
        self.resting = frozenset(rests)
        self.until_ms = min(rests.values(), default=self.forgotten_at_ms)

    @property
    def forgotten_at_ms(self) -> int:
        """When the last refusal is forgotten."""
        return max(refusal.forgotten_at_ms for refusal in self.refusals.values())


class Refusals:
    """Per bundle, the incarnations that have refused it. Times are boot time in milliseconds."""

    def __init__(self) -> None:
        """Create an empty memory of refusals."""
        self._refused: dict[str, _Refused] = {}

    def note(self, bundle: str, refuser: int, now_ms: int) -> None:
        """Note a refusal of a bundle. Drop old ones, so that memory stays bounded."""
        refused = self._refused.get(bundle)
        earlier = {} if refused is None else refused.refusals
        known = {
            incarnation: refusal
            for incarnation, refusal in earlier.items()
            if now_ms < refusal.forgotten_at_ms
        }
        before = known.get(refuser)
        known[refuser] = _Refusal(
            at_ms=now_ms, in_a_row=1 if before is None else before.in_a_row + 1
        )
        self._refused[bundle] = _Refused(refusals=known)

    def forget(self, bundle: str) -> None:
        """Forget a bundle that no longer exists."""
        self._refused.pop(bundle, None)

    def to_avoid(self, bundles: Sequence[str], now_ms: int) -> Mapping[str, frozenset[int]]:
        """Return, for each of `bundles` with refusals, the incarnations that must not be asked
        yet.
        """
        avoid = {}
        for name in [name for name in bundles if name in self._refused]:
            refused = self._refused[name]
            if now_ms >= refused.until_ms:
                refused.look(now_ms)
            if refused.resting:
                avoid[name] = refused.resting
            elif now_ms >= refused.forgotten_at_ms:
                del self._refused[name]
        return avoid


# Interval of checks of unsettled bundles when nothing is read. Brokers after the leader wait longer
# to act.
_ROUND_MS: Final = 250

_FAILURE_DOMAIN: Final = f"{FAILURE_DOMAIN}/"
_QUARANTINE: Final = f"{QUARANTINE}/"

# Each broker after the leader, by age, waits this much longer before it does the leader's work.
_STEP_IN_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """How much is begun at once. Bundles that no broker takes are skipped.

    * `placements_max`: assignments per step. 256 records of 250 bytes are one group commit of a few
      milliseconds; the rest follows one round trip later.
    * `transfers_max`: concurrent transfers away from a draining broker: enough to hide the log's
      round trip, few enough for the destinations' services.
    """

    placements_max: int = 256
    transfers_max: int = 64


class Leading:
    """The leader's tasks. Every other broker does them too, after longer deadlines."""

    def __init__(
        self,
        core: Core,
        membership: Membership,
        placement: Placement,
        batches: Batches,
        settings: BalancingSettings,
    ) -> None:
        self._core = core
        self._membership = membership
        self.placement = placement
        self._batches = batches
        # The boot time since which a bundle is free, or in a move, oldest first. So a step looks
        # only at those that are due: with all of 28,000 in each step, the steps of one creation
        # took longer than a lease.
        self._free_since: dict[str, int] = {}
        self._moving_since: dict[str, int] = {}
        # The free bundles of each namespace that no broker serves. They wait for one that does, and
        # no step looks at them.
        self._unserved: dict[str, dict[str, int]] = {}
        self._is_served: dict[str, bool] = {}  # As long as no broker changes.
        self._refusals = Refusals()
        # When an elder was last seen placing. While it places, this broker waits.
        self._elder_placed_ms = -NEVER_MS
        self._gone_since_ms: dict[str, int] = {}
        self._knows_the_snapshot = False
        self._controls: ReadControls | None = None  # None before they are read, and after a change.
        self._suspicions = Suspicions()
        # By the key of the quarantine: when this broker read it.
        self._held_since_ms: dict[str, int] = {}
        self._settings = settings  # Those of this broker; the channel's come first.
        self._rules = settings_records.settings_in(core.view, settings).quarantine
        self._has_news = False
        self.wake_at_ms = NEVER_MS

    @property
    def leads(self) -> bool:
        """Whether no other broker has to act before this one."""
        return self._core.incarnation is not None and self._standing() == 0

    def place_by(self, placement: Placement) -> None:
        """Use this placement policy from now on."""
        self.placement = placement

    def folded(self, folded: Folded) -> None:
        """Note changes. `tick` acts on the whole batch, so that a death is placed at once."""
        now_ms = self._core.now.boot_ms
        if folded.verdict.accepted:
            self._suspicions.note(folded, self._core.view, self._rules)
        for change in folded.verdict.changes:
            self._has_news = True
            if isinstance(change, BrokerChanged):
                self._note_broker(change)
            elif isinstance(change, BundleChanged):
                self._note_bundle(change)
                if _is_placed(change) and self._is_elder(folded.record.incarnation):
                    self._elder_placed_ms = now_ms
                refuser = _refuser(change, folded.record)
                # A replayed record has no known time. Old refusals must not delay a broker.
                if refuser is not None and self._membership.caught_up:
                    self._refusals.note(change.name, refuser, now_ms)
            elif isinstance(change, PolicyChanged):
                self._note_policy(change)
                self._report_quarantine(folded, change)
            elif isinstance(change, NamespaceChanged):
                self._note_namespace(change)

    def resynced(self, resync: Resync) -> None:
        """Note what changed in skipped records, as if it had just happened."""
        self._has_news = True
        self._suspicions.skipped(resync.changes)
        for change in resync.changes:
            if isinstance(change, BrokerChanged):
                self._note_broker(change)
            elif isinstance(change, BundleChanged):
                self._note_bundle(change)
            elif isinstance(change, PolicyChanged):
                self._note_policy(change)
            elif isinstance(change, NamespaceChanged):
                self._note_namespace(change)

    def _note_policy(self, change: PolicyChanged) -> None:
        if is_control(change.name) or change.name.startswith((_QUARANTINE, _FAILURE_DOMAIN)):
            self._controls = None
        if change.name == settings_records.KEY:
            self._rules = settings_records.settings_in(self._core.view, self._settings).quarantine
        if change.name.startswith(_QUARANTINE):
            self._note_quarantine(change)

    def _note_quarantine(self, change: PolicyChanged) -> None:
        if change.after is not None:
            self._held_since_ms[change.name] = self._core.now.boot_ms
        else:
            self._held_since_ms.pop(change.name, None)
            # It is to be served at once.
            self._refusals.forget(change.name.removeprefix(_QUARANTINE))

    def _report_quarantine(self, folded: Folded, change: PolicyChanged) -> None:
        """Raise an alarm about a quarantine that this broker has set."""
        record = folded.record
        is_own = (
            isinstance(record, PolicyRecord)
            and record.incarnation is not None
            and record.incarnation == self._core.incarnation
        )
        if is_own and change.after is not None and change.name.startswith(_QUARANTINE):
            bundle, reason = (
                change.name.removeprefix(_QUARANTINE),
                change.after.document.get("reason"),
            )
            message = (
                f"{bundle} is in quarantine: {reason}; nobody serves it until the quarantine ends"
                " (equipoise bundles quarantine list), or until: equipoise bundles quarantine"
                f" release {bundle}"
            )
            self._core.effects.append(
                Alarm(name=AlarmName.QUARANTINE, message=message, key=bundle, offset=folded.offset)
            )

    def _note_broker(self, change: BrokerChanged) -> None:
        if change.after is not None and not change.after.live:
            self._gone_since_ms[change.name] = self._core.now.boot_ms
        else:
            self._gone_since_ms.pop(change.name, None)
        self._is_served.clear()
        for namespace in [each for each in self._unserved if self._serves(each)]:
            waiting = self._unserved.pop(namespace)
            self._free_since |= dict.fromkeys(waiting, self._core.now.boot_ms)
        for name in [each for each in self._free_since if not self._serves(namespace_in(each))]:
            self._unserved.setdefault(namespace_in(name), {})[name] = self._free_since.pop(name)

    def _serves(self, namespace: str) -> bool:
        """Return whether a broker serves a namespace."""
        found = self._is_served.get(namespace)
        if found is None:
            found = self._is_served[namespace] = bool(self._core.view.takers(namespace))
        return found

    def _note_bundle(self, change: BundleChanged) -> None:
        name, after = change.name, change.after
        self._free_since.pop(name, None)
        self._moving_since.pop(name, None)
        self._unserved.get(namespace_in(name), {}).pop(name, None)
        if after is not None and after.phase != "owned":
            self._since(after)[name] = self._core.now.boot_ms
        if after is None:
            self._refusals.forget(name)
            if is_quarantined(self._core.view, name):
                self._controls = None

    def _note_namespace(self, change: NamespaceChanged) -> None:
        if change.after is None and freeze_key(change.name) in self._core.view.policies:
            self._controls = None

    def wanted(self, name: str) -> None:
        """Assign a free bundle that a client looked up, together with others, unless the leader is
        about to do so.

        One batch is spread over the brokers. Bundles placed one by one, before the first is read
        back, would all go to the same broker.
        """
        bundle = self._core.view.bundles.get(name)
        if (
            bundle is None
            or bundle.phase != "free"
            or not self._serves(bundle.namespace)
            or self._core.is_proposed(bundle)
            or not self._may_act()
        ):
            return
        earliest_ms = 0 if self._standing() == 0 else self._core.timing.leader_first_ms
        if self._waited_ms(bundle) >= earliest_ms:
            free = takewhile(
                lambda each: self._waited_ms(each) >= earliest_ms, self._bundles(self._free_since)
            )
            batch = {
                each.name: each for each in (bundle, *islice(free, self._batches.placements_max))
            }
            self._place(list(batch.values()))

    def tick(self) -> None:
        """Do what is due."""
        if not self._has_news and self._core.now.boot_ms < self.wake_at_ms:
            return
        self._has_news = False
        self._note_the_snapshot()
        self.wake_at_ms = NEVER_MS
        if not self._may_act():
            self.wake_at_ms = self._core.now.boot_ms + _ROUND_MS
            return
        standing = self._standing()
        self._quarantine(standing)
        stuck_ms = self._core.timing.patience_ms + standing * _STEP_IN_MS
        self._unstick(
            list(
                takewhile(
                    lambda each: self._waited_ms(each) >= stuck_ms,
                    self._bundles(self._moving_since),
                )
            )
        )
        self._place_due(standing)
        reason = self._why_it_gives()
        if reason is not None:
            self._give_away(reason)
        if self._free_since or self._moving_since or reason is not None:
            self.wake_at_ms = self._core.now.boot_ms + _ROUND_MS
        if standing == 0:
            self._forget_the_gone()
            self._end_controls()

    def _may_act(self) -> bool:
        core = self._core
        return (
            core.serving is not None
            and self._membership.caught_up
            and core.lease.holds(core.now)
            and not core.is_crowded()
        )

    def _standing(self) -> int:
        """Return how many brokers must act before this one: 0 for the leader."""
        return sum(1 for broker in self._core.view.live_brokers() if self._comes_first(broker))

    def _comes_first(self, broker: BrokerEntry) -> bool:
        """Return whether `broker` must act before this one: draining brokers come last, older ones
        first.
        """
        mine = (self._membership.drains, self._core.incarnation or 0)
        return (broker.status == "draining", broker.incarnation) < mine

    def _is_elder(self, incarnation: int | None) -> bool:
        broker = self._core.view.live.get(incarnation or 0)
        return broker is not None and self._comes_first(broker)

    def _waited_ms(self, bundle: BundleEntry) -> int:
        now_ms = self._core.now.boot_ms
        return now_ms - self._since(bundle).get(bundle.name, now_ms)

    def _since(self, bundle: BundleEntry) -> dict[str, int]:
        if bundle.phase != "free":
            return self._moving_since
        return (
            self._free_since
            if self._serves(bundle.namespace)
            else self._unserved.setdefault(bundle.namespace, {})
        )

    def _bundles(self, names: Iterable[str]) -> Iterator[BundleEntry]:
        return map(self._core.view.bundles.__getitem__, names)

    def _is_due(self, bundle: BundleEntry, standing: int) -> bool:
        """Return whether this broker must place a free bundle: no elder has placed it or is placing
        others.

        An elder that never places this one is not waited for longer than a bundle in flight.
        """
        waited_ms, deadline_ms = self._waited_ms(bundle), standing * _STEP_IN_MS
        idle_ms = self._core.now.boot_ms - self._elder_placed_ms
        return (
            min(waited_ms, idle_ms) >= deadline_ms
            or waited_ms >= self._core.timing.patience_ms + deadline_ms
        )

    def _place_due(self, standing: int) -> None:
        """Assign the first batch of free bundles in which one can be placed. The rest follows when
        that batch is read back.
        """
        due = takewhile(lambda each: self._is_due(each, standing), self._bundles(self._free_since))
        assignable = filter(self._may_be_assigned, due)
        while batch := list(islice(assignable, self._batches.placements_max)):
            if self._place(batch):
                break

    def _place(self, bundles: list[BundleEntry]) -> bool:
        """Assign the first of `bundles` that can be placed. Return whether there are any."""
        view = self._core.view
        fit = [bundle for bundle in bundles if self._may_be_assigned(bundle)]
        destinations = self._destinations(fit, at_most=self._batches.placements_max)
        for name, owner in destinations.items():
            self._core.propose(partial(propose.assign, bundle=view.bundles[name], owner=owner))
        return bool(destinations)

    def _may_be_assigned(self, bundle: BundleEntry) -> bool:
        """Return whether somebody may have it: the log refuses it while its namespace is being
        deleted, and a quarantine forbids it.
        """
        view = self._core.view
        is_refused = (
            view.namespaces[bundle.namespace].status != "created"
            or bundle.name in self._suspicions.due
        )
        return not is_refused and not is_quarantined(view, bundle.name)

    def _quarantine(self, standing: int) -> None:
        """Set the quarantines that are due, before their bundles are placed again."""
        view = self._core.view
        for name, accusation in self._suspicions.due.items():
            if self._waited_ms(view.bundles[name]) >= standing * _STEP_IN_MS:
                document = accusation.document(self._core.now.wall_ms)
                self._core.propose(
                    partial(
                        propose.set_policy, view=view, name=quarantine_key(name), document=document
                    )
                )

    def _destinations(self, bundles: Sequence[BundleEntry], *, at_most: int) -> dict[str, int]:
        """Return the chosen owners of the first of `bundles`, without brokers that have refused
        them.
        """
        if not bundles:
            return {}
        avoid = self._refusals.to_avoid([bundle.name for bundle in bundles], self._core.now.boot_ms)
        return self.placement.place(self._core.view, bundles, avoid=avoid, at_most=at_most)

    def _unstick(self, bundles: Sequence[BundleEntry]) -> None:
        """Cancel slow moves, or assign their bundles elsewhere, all together, where the log allows
        it without the actor.
        """
        core = self._core
        stranded = [
            each
            for each in bundles
            if each.phase == "assigning" and each.owner is not None and self._may_be_assigned(each)
        ]
        owners = places_elsewhere(core.view, stranded, self.placement)
        for bundle in bundles:
            reason = f"nothing happened for {self._waited_ms(bundle)} ms"
            if bundle.phase in ("transferring", "splitting"):
                core.propose(partial(propose.cancel, bundle=bundle, reason=reason))
            elif bundle.name in owners:
                core.propose(
                    partial(propose.assign, bundle=bundle, owner=owners[bundle.name], reason=reason)
                )

    # --- a broker that drains, or is in maintenance ---

    @property
    def maintenance(self) -> Maintenance | None:
        """The maintenance that this broker is in."""
        entry, controls = self._membership.entry, self._read_controls()
        return (
            None
            if entry is None
            else maintenance_of(controls.maintenances, controls.domains, [entry]).get(entry.broker)
        )

    def _why_it_gives(self) -> str | None:
        """Return why this broker has to give its bundles away; None if it need not, or has none."""
        core = self._core
        if core.serving is None:
            return None
        if self._membership.drains:
            return "drain"
        policy = self.maintenance
        if policy is None or not core.view.held_count(core.serving):
            return None
        return f"{policy.name}: {policy.reason}"[:TEXT_CHARACTERS_MAX]

    def _give_away(self, reason: str) -> None:
        """Move this broker's own bundles to others, several at once."""
        core = self._core
        assert core.serving is not None, "only a broker that serves has to give"
        held = core.view.held_by(core.serving)
        movable = [bundle for bundle in held if bundle.phase == "owned"]
        room = self._batches.transfers_max - (len(held) - len(movable))
        if room > 0:
            for name, destination in self._destinations(movable, at_most=room).items():
                bundle = core.view.bundles[name]
                core.propose(
                    partial(propose.transfer, bundle=bundle, destination=destination, reason=reason)
                )

    # --- controls ---

    def _read_controls(self) -> ReadControls:
        if self._controls is None:
            self._controls = read_controls(self._core.view)
        return self._controls

    def _end_controls(self) -> None:
        """Remove each control whose end has passed or whose subject is gone, so that the history
        shows its end; wake at the next end.
        """
        core, controls = self._core, self._read_controls()
        for key in controls.outlived:
            core.propose(partial(propose.remove_policy, view=core.view, name=key))
        if controls.outlived:
            self.wake_at_ms = min(self.wake_at_ms, core.now.boot_ms + _ROUND_MS)
        now_ms = core.now.boot_ms
        ends_ms = [
            (control.name, now_ms + control.until_ms - core.now.wall_ms)
            for control in controls.ending
        ]
        # A broker that starts during a quarantine, from a snapshot, counts from its start.
        ends_ms += [
            (each.name, self._held_since_ms.setdefault(each.name, now_ms) + each.hold_ms)
            for each in controls.quarantines
        ]
        for key, end_ms in ends_ms:
            if end_ms <= now_ms:
                core.propose(partial(propose.remove_policy, view=core.view, name=key))
            self.wake_at_ms = min(
                self.wake_at_ms, end_ms if end_ms > now_ms else now_ms + _ROUND_MS
            )

    # --- brokers long gone ---

    def _note_the_snapshot(self) -> None:
        """Date what a snapshot holds from now: no record reports it."""
        if not self._knows_the_snapshot:
            self._knows_the_snapshot = True
            for broker in self._core.view.brokers.values():
                if not broker.live:
                    self._gone_since_ms.setdefault(broker.broker, self._core.now.boot_ms)
            for bundle in self._core.view.unsettled():
                self._since(bundle).setdefault(bundle.name, self._core.now.boot_ms)

    def _forget_the_gone(self) -> None:
        core = self._core
        for name, since_ms in self._gone_since_ms.items():
            due_ms = since_ms + core.timing.remove_after_ms
            if due_ms <= core.now.boot_ms:
                core.propose(partial(propose.remove_broker, broker=core.view.brokers[name]))
                due_ms = core.now.boot_ms + _ROUND_MS
            self.wake_at_ms = min(self.wake_at_ms, due_ms)


def _is_placed(change: BundleChanged) -> bool:
    before, after = change.before, change.after
    return (
        before is not None
        and after is not None
        and (before.phase, after.phase) == ("free", "assigning")
    )


def _refuser(change: BundleChanged, record: AnyRecord | Unreadable) -> int | None:
    """Return the broker that refused to prepare or failed to open a bundle; None otherwise.

    A cancel, the leader's patience and a death do not count against the destination.
    """
    before = change.before
    return before.owner if before is not None and is_refusal(record, before) else None
