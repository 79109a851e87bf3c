"""Find bundles that break their owners, and keep them from every broker for a while.

Each broker judges the same records in the order of the log, so all brokers agree, and a new leader
knows what the former one knew. Only a broker that started from a snapshot does not know what
happened before it. No clock counts, because clocks differ: an owner has *outlived* a bundle once it
has renewed its lease `renewals` times with it. That clears the bundle. The rules:

* Deaths: `deaths` different owners in a row died before they had outlived the bundle. A broker
  takes all its bundles along, so of those only the bundles with the longest row are suspects.
* Few others died: since the first of the last `deaths` deaths of the row, fewer than `deaths`
  brokers died without the bundle. Else something other than a bundle ends brokers.
* Failed opens: the owner's service refused or failed to open the bundle `failed_opens` times in a
  row, each broker at least once. Else the next one may serve it: services of one cluster may
  differ.
* At most `share_percent` of all bundles are in quarantine, but one may always be, unless it is the
  only one. If more are suspects, or fail to open at present, the cause is not a bundle (a store
  that is away), and none is quarantined.

A quarantine ends after `hold_ms` at first, or earlier because an operator releases the bundle.
The row goes on in both cases: the next death or failed open quarantines the bundle again, each time
for twice as long. The quarantines of suspects that cannot be told apart end one after the other, so
that the next death shows which one it is.

A death of a broker that was already silent when it got the bundle does not count. A move from a
live owner ends the row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.balancing.policies import (
    QUARANTINE,
    Quarantine,
    parse_policy,
    quarantine_document,
    quarantine_key,
)
from equipoise.brokers.errors import InvalidPolicy, counted
from equipoise.channel.core.entries import (
    BrokerChanged,
    BundleChanged,
    BundleEntry,
    Change,
    PolicyChanged,
)
from equipoise.channel.core.propose import is_refusal
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BrokerRecord, BundleTransition, Document, Renewed
from equipoise.channel.core.view import View

_PREFIX: Final = f"{QUARANTINE}/"
RENEWALS_MAX: Final = 100  # Kept per incarnation: `renewals` is at most so many.
HOLD_MS_MAX: Final = 3_600_000  # Of the first quarantine. Doubled, it is some days.
_EVENTS_MAX: Final = 16  # Kept per bundle, and shown as evidence.
# Kept of the cluster: a row with as many other deaths in between is broken anyway.
_DEATHS_MAX: Final = 64
# 30 s become 64 minutes: a bundle that was mended is served within an hour or so.
_DOUBLINGS_MAX: Final = 7
_NEVER: Final = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRules:
    """The group `quarantine`: see the module. 0 `deaths` or 0 `failed_opens` turns this cause
    off.
    """

    deaths: int = 2
    failed_opens: int = 3
    renewals: int = 10
    hold_ms: int = 30_000
    share_percent: float = 10.0

    def room(self, view: View) -> int:
        """Return how many bundles of the view may be in quarantine: one at least, but never all."""
        bundles = len(view.bundles)
        return max(0, min(max(1, int(bundles * self.share_percent / 100)), bundles - 1))


@dataclass(frozen=True, slots=True)
class _Event:
    """A death or a failed open: the offset of its record, and the broker."""

    offset: int
    broker: str


@dataclass(frozen=True, slots=True)
class Accusation:
    """Why somebody must set a quarantine now, and for how long."""

    reason: str
    evidence: tuple[int, ...]
    hold_ms: int

    def document(self, now_ms: int) -> Document:
        """Return the document of a quarantine that begins at `now_ms` (Unix time)."""
        return quarantine_document(
            self.reason,
            hold_ms=self.hold_ms,
            until_ms=now_ms + self.hold_ms,
            evidence=self.evidence,
        )


_Row = tuple[_Event, ...]


class Suspicions:
    """What speaks against bundles. `due` has the quarantines that somebody must set now, by
    bundle.
    """

    def __init__(self) -> None:
        """Know nothing."""
        self.due: dict[str, Accusation] = {}
        self._deaths: dict[str, _Row] = {}
        self._failed_opens: dict[str, _Row] = {}
        self._times_held: dict[str, int] = {}  # Of the bundles that have not been cleared since.
        self._all_deaths: deque[_Event] = deque(maxlen=_DEATHS_MAX)
        # The offsets of the last renewals of each live incarnation.
        self._renewed: dict[int, deque[int]] = {}
        self._known_from: int | None = None  # No record below this offset was noted.

    def note(self, folded: Folded, view: View, rules: QuarantineRules) -> None:
        """Judge an accepted record. `view` is as just after it."""
        record = folded.record
        if self._known_from is None:
            self._known_from = folded.offset
        if isinstance(record, Renewed) and record.incarnation is not None:
            self._renewed.setdefault(record.incarnation, deque(maxlen=RENEWALS_MAX)).append(
                folded.offset
            )
            return
        death = _death(folded)
        if death is not None:
            self._note_death(folded, death, view, rules)
        for change in folded.verdict.changes:
            self._settle(change)
            if (
                death is None
                and isinstance(change, BundleChanged)
                and change.before is not None
                and change.after is not None
            ):
                self._note_transition(change, folded)
                if change.after.phase == "free":
                    self._judge_opens(change.name, view, rules)

    def skipped(self, changes: Iterable[Change]) -> None:
        """Note what changed in records that nobody has noted."""
        for change in changes:
            self._settle(change)
        self._renewed.clear()
        self._known_from = None

    def _settle(self, change: Change) -> None:
        """Forget what is settled: the bundle is gone or has an owner, or its quarantine was set or
        has ended.
        """
        if isinstance(change, PolicyChanged) and change.name.startswith(_PREFIX):
            bundle = change.name.removeprefix(_PREFIX)
            self.due.pop(bundle, None)
            if change.after is not None:
                self._times_held[bundle] = self._times_held.get(bundle, 0) + 1
        elif isinstance(change, BundleChanged) and change.after is None:
            self.due.pop(change.name, None)
            self._clear(change.name)
        elif (
            isinstance(change, BundleChanged)
            and change.after is not None
            and change.after.phase != "free"
        ):
            self.due.pop(change.name, None)
        elif isinstance(change, BrokerChanged) and change.dead is not None:
            self._renewed.pop(change.dead, None)

    def _clear(self, bundle: str) -> None:
        self._deaths.pop(bundle, None)
        self._failed_opens.pop(bundle, None)
        self._times_held.pop(bundle, None)

    def _note_death(
        self, folded: Folded, death: BrokerChanged, view: View, rules: QuarantineRules
    ) -> None:
        assert death.dead is not None, "it is a death"
        event = _Event(folded.offset, death.name)
        self._all_deaths.append(event)
        silent_from = self._silent_from(death.dead)
        lost: list[str] = []
        for change in folded.verdict.changes:
            if (
                not isinstance(change, BundleChanged)
                or change.before is None
                or change.after is None
            ):
                continue
            is_served = change.before.server == death.dead
            if is_served and self._is_outlived(change.before, death.dead, rules):
                self._clear(change.name)
            elif is_served or (change.before.server is None and change.before.last < silent_from):
                _add(self._deaths, change.name, event)
                lost.append(change.name)
        self._judge_deaths(lost, view, rules)

    def _silent_from(self, incarnation: int) -> int:
        """Return the offset from which a broker was silent: another one has renewed twice since
        this one was heard last.
        """
        own = self._renewed.get(incarnation)
        heard = own[-1] if own else incarnation
        silent_from = _NEVER
        for other, renewed in self._renewed.items():
            since = [offset for offset in renewed if offset > heard]
            if other != incarnation and len(since) > 1:
                silent_from = min(silent_from, since[1])
        return silent_from

    def _is_outlived(self, bundle: BundleEntry, server: int, rules: QuarantineRules) -> bool:
        """Return whether the broker that serves a bundle has cleared it; also if it has served
        since before anything was noted.
        """
        renewed = self._renewed.get(server, ())
        is_cleared = len(renewed) >= rules.renewals and renewed[-rules.renewals] > bundle.token
        return is_cleared or self._known_from is None or bundle.token < self._known_from

    def _note_transition(self, change: BundleChanged, folded: Folded) -> None:
        record, before, after = folded.record, change.before, change.after
        assert before is not None, "only a bundle that exists has a transition"
        if is_refusal(record, before):
            # Else the source serves on: a move was refused.
            if isinstance(record, BundleTransition) and record.state != "owned":
                _add(self._failed_opens, change.name, _Event(folded.offset, record.publisher))
        elif before.phase == "owned" and after is not None:
            # It was open. A transfer may yet be cut short by a death; an unload ends the ownership
            # of a live owner.
            self._failed_opens.pop(change.name, None)
            if after.phase == "unloading":
                self._clear(change.name)
        elif before.phase == "handing_over":
            self._clear(change.name)

    def _judge_deaths(self, lost: Sequence[str], view: View, rules: QuarantineRules) -> None:
        rows = {name: row for name in lost if self._accuses(row := self._deaths[name], rules)}
        longest = max(map(len, rows.values()), default=0)
        suspects = sorted(name for name, row in rows.items() if len(row) == longest)
        if suspects and self._fits(suspects, view, rules):
            reason = f"{counted(longest, 'owner')} in a row died soon after they got it"
            for place, name in enumerate(suspects):
                if view.bundles[name].phase == "free":
                    self._accuse(name, reason, rows[name], rules, later=place / len(suspects))

    def _accuses(self, row: _Row, rules: QuarantineRules) -> bool:
        """Return whether enough different owners died, and few other brokers meanwhile."""
        if not 0 < rules.deaths <= len({event.broker for event in row}):
            return False
        first = row[-rules.deaths].offset
        others = sum(1 for event in self._all_deaths if event.offset > first and event not in row)
        return others < rules.deaths

    def _judge_opens(self, name: str, view: View, rules: QuarantineRules) -> None:
        row = self._failed_opens.get(name, ())
        tried = {event.broker for event in row}
        is_refused = len(tried) >= _EVENTS_MAX or all(
            each.broker in tried for each in view.takers(view.bundles[name].namespace)
        )
        if not 0 < rules.failed_opens <= len(row) or not is_refused:
            return
        failing = [
            each
            for each in self._failed_opens
            if not self._is_served_well(view.bundles[each], rules)
        ]
        if self._fits(failing, view, rules):
            self._accuse(name, f"{counted(len(row), 'open')} in a row failed", row, rules)

    def _is_served_well(self, bundle: BundleEntry, rules: QuarantineRules) -> bool:
        return bundle.server is not None and self._is_outlived(bundle, bundle.server, rules)

    def _fits(self, suspects: Collection[str], view: View, rules: QuarantineRules) -> bool:
        quarantined = {
            key.removeprefix(_PREFIX) for key in view.policies if key.startswith(_PREFIX)
        }
        return len(quarantined.union(self.due, suspects)) <= rules.room(view)

    def _accuse(
        self, bundle: str, reason: str, row: _Row, rules: QuarantineRules, *, later: float = 0
    ) -> None:
        """Note a quarantine that is due. It ends `later`, in lengths, than that of a bundle that is
        the only suspect.
        """
        hold_ms = rules.hold_ms << min(self._times_held.get(bundle, 0), _DOUBLINGS_MAX)
        self.due[bundle] = Accusation(
            reason, tuple(event.offset for event in row), hold_ms + int(hold_ms * later)
        )


def is_quarantined(view: View, bundle: str) -> bool:
    """Return whether nobody may be assigned the bundle."""
    return quarantine_key(bundle) in view.policies


def why_quarantined(view: View, bundle: str) -> str | None:
    """Return why the bundle is in quarantine; None if it is not."""
    entry = view.policies.get(quarantine_key(bundle))
    return None if entry is None else str(entry.document.get("reason", "its record cannot be read"))


def quarantined_in(view: View) -> Iterator[Quarantine]:
    """Yield the quarantines of a view, by bundle. One that cannot be read has ended."""
    for key in sorted(key for key in view.policies if key.startswith(_PREFIX)):
        try:
            policy = parse_policy(key, view.policies[key].document)
        except InvalidPolicy as error:
            policy = Quarantine(
                name=key,
                reason=f"its record cannot be read: {error.problem}",
                until_ms=1,
                hold_ms=0,
                evidence=(),
            )
        assert isinstance(policy, Quarantine), "the key says so"
        yield policy


def _add(rows: dict[str, _Row], bundle: str, event: _Event) -> None:
    rows[bundle] = (*rows.get(bundle, ()), event)[-_EVENTS_MAX:]


def _death(folded: Folded) -> BrokerChanged | None:
    """Return the change by which a record ended an incarnation that had not left."""
    record = folded.record
    if isinstance(record, BrokerRecord) and record.status == "left":
        return None
    return next(
        (
            change
            for change in folded.verdict.changes
            if isinstance(change, BrokerChanged) and change.dead is not None
        ),
        None,
    )
