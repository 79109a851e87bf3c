"""Find bundles that break their owners, and keep them from every broker until an operator releases them.

Each broker judges the same records by their own times, so all brokers agree, and a new leader knows what the former one knew. Only a broker
that started from a snapshot does not know what happened before it. The rules:

* Deaths: the owner died while it served the bundle, and so did the next owner: `deaths` times in a row within `deaths_ms`. A death
  ends all ownerships of a broker, so it accuses all its bundles. Of these, only those with the most deaths in a row are suspects. If every
  bundle of the broker is a suspect, nothing distinguishes them, and none is quarantined.
* Failed opens: the owner's service refused or failed to open the bundle `failed_opens` times in a row within `failed_opens_ms`.
* At most `share_percent` of all bundles are in quarantine. If more are suspects, or fail to open at present, the cause is not a bundle (a
  rack without power, a store that is away), and none is quarantined. In a small cluster this may be less than one bundle: then deaths say
  too little about any bundle, and only failed opens, which name their bundle, quarantine one.

A bundle that was assigned to a broker that was already dead accuses nobody, because that broker never served it. A move from a live owner,
and a release by an operator, start all counts at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.balancing.policies import QUARANTINE, Quarantine, parse_policy, quarantine_document, quarantine_key
from equipoise.brokers.errors import InvalidPolicy, counted
from equipoise.channel.core.entries import BrokerChanged, BundleChanged, Change, PolicyChanged
from equipoise.channel.core.propose import is_refusal
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, BrokerRecord, BundleTransition, Document, Unreadable
from equipoise.channel.core.view import View
from equipoise.shedder.reported import format_duration

_PREFIX: Final = f"{QUARANTINE}/"
_EVENTS_MAX: Final = 16  # Kept per bundle, and shown as evidence.


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRules:
    """The group `quarantine`: see the module. 0 `deaths` or 0 `failed_opens` turns this cause off."""

    deaths: int = 2
    failed_opens: int = 3
    deaths_ms: int = 30_000
    failed_opens_ms: int = 600_000
    share_percent: float = 10.0

    def room(self, view: View, *, least: int) -> int:
        """Return how many bundles of the view may be in quarantine: `least` at least, and never all."""
        bundles = len(view.bundles)
        return max(0, min(max(least, int(bundles * self.share_percent / 100)), bundles - 1))


@dataclass(frozen=True, slots=True)
class _Event:
    """A death or a failed open: the offset and the time of its record."""

    offset: int
    at_ms: int


_Events = dict[str, tuple[_Event, ...]]


class Suspicions:
    """What speaks against bundles. `due` has the documents of quarantines that somebody must set now, by bundle."""

    def __init__(self) -> None:
        """Know nothing."""
        self.due: dict[str, Document] = {}
        self._deaths: _Events = {}
        self._failed_opens: _Events = {}

    def note(self, folded: Folded, view: View, rules: QuarantineRules) -> None:
        """Judge a folded record. `view` is as just after it."""
        record, at_ms = folded.record, 0 if isinstance(folded.record, Unreadable) else folded.record.timestamp_ms
        event = _Event(folded.offset, at_ms)
        is_death = _is_death(folded)
        lost = []
        for change in folded.verdict.changes:
            self.changed(change)
            if not isinstance(change, BundleChanged) or change.before is None or change.after is None:
                continue
            if is_death:
                if change.before.server is not None and change.after.server != change.before.server:
                    _add(self._deaths, change.name, event)
                    lost.append(change.name)
            else:
                self._note_transition(change, record, event)
                if change.after.phase == "free":
                    self._judge_opens(change.name, view, rules, at_ms)
        if lost:
            self._judge_deaths(lost, view, rules, at_ms)

    def changed(self, change: Change) -> None:
        """Forget what is settled: the bundle is gone or has an owner, or its quarantine was set or released."""
        if isinstance(change, PolicyChanged) and change.name.startswith(_PREFIX):
            self._forget(change.name.removeprefix(_PREFIX))
        elif isinstance(change, BundleChanged) and change.after is None:
            self._forget(change.name)
        elif isinstance(change, BundleChanged) and change.after is not None and change.after.phase != "free":
            self.due.pop(change.name, None)

    def _forget(self, bundle: str) -> None:
        for known in (self.due, self._deaths, self._failed_opens):
            known.pop(bundle, None)

    def _note_transition(self, change: BundleChanged, record: AnyRecord | Unreadable, event: _Event) -> None:
        assert change.before is not None, "only a bundle that exists has a transition"
        if is_refusal(record, change.before):
            if isinstance(record, BundleTransition) and record.state != "owned":  # Else the source serves on: a move was refused.
                _add(self._failed_opens, change.name, event)
        elif change.before.phase == "owned" and change.after is not None:
            # It was open. A transfer may yet be cut short by a death; an unload ends the ownership of a live owner.
            self._failed_opens.pop(change.name, None)
            if change.after.phase == "unloading":
                self._deaths.pop(change.name, None)
        elif change.before.phase == "handing_over":
            self._deaths.pop(change.name, None)

    def _judge_deaths(self, lost: Sequence[str], view: View, rules: QuarantineRules, at_ms: int) -> None:
        self._deaths = _recent(self._deaths, at_ms, rules.deaths_ms)
        most = max((len(self._deaths.get(name, ())) for name in lost), default=0)
        suspects = [name for name in lost if len(self._deaths.get(name, ())) == most]
        is_told_apart = len(suspects) == 1 or len(suspects) < len(lost)
        if not 0 < rules.deaths <= most or not is_told_apart or not self._fits(suspects, view, rules, least=0):
            return
        for name in suspects:
            if view.bundles[name].phase == "free":
                self._accuse(name, f"{counted(most, 'owner')} in a row died within {format_duration(rules.deaths_ms)}", self._deaths[name])

    def _judge_opens(self, name: str, view: View, rules: QuarantineRules, at_ms: int) -> None:
        if not 0 < rules.failed_opens <= len(self._failed_opens.get(name, ())):
            return
        self._failed_opens = _recent(self._failed_opens, at_ms, rules.failed_opens_ms)
        events = self._failed_opens.get(name, ())
        if len(events) >= rules.failed_opens and self._fits(self._failed_opens, view, rules, least=1):
            self._accuse(name, f"{counted(len(events), 'open')} in a row failed", events)

    def _fits(self, suspects: Iterable[str], view: View, rules: QuarantineRules, *, least: int) -> bool:
        quarantined = {key.removeprefix(_PREFIX) for key in view.policies if key.startswith(_PREFIX)}
        return len(quarantined | set(self.due) | set(suspects)) <= rules.room(view, least=least)

    def _accuse(self, bundle: str, reason: str, events: Sequence[_Event]) -> None:
        self.due[bundle] = quarantine_document(reason, evidence=[event.offset for event in events])


def is_quarantined(view: View, bundle: str) -> bool:
    """Return whether nobody may be assigned the bundle. An unreadable quarantine holds it as well."""
    return quarantine_key(bundle) in view.policies


def why_quarantined(view: View, bundle: str) -> str | None:
    """Return why the bundle is in quarantine; None if it is not."""
    entry = view.policies.get(quarantine_key(bundle))
    return None if entry is None else str(entry.document.get("reason", "its record cannot be read"))


def quarantined_in(view: View) -> Iterator[Quarantine]:
    """Yield the quarantines of a view, by bundle."""
    for key in sorted(key for key in view.policies if key.startswith(_PREFIX)):
        try:
            policy = parse_policy(key, view.policies[key].document)
        except InvalidPolicy as error:
            policy = Quarantine(name=key, reason=f"its record cannot be read: {error.problem}", until_ms=0, evidence=())
        assert isinstance(policy, Quarantine), "the key says so"
        yield policy


def _is_death(folded: Folded) -> bool:
    """Return whether a record ended an incarnation that had not left."""
    record = folded.record
    if isinstance(record, BrokerRecord) and record.status == "left":
        return False
    return any(isinstance(change, BrokerChanged) and change.dead is not None for change in folded.verdict.changes)


def _add(events: _Events, bundle: str, event: _Event) -> None:
    events[bundle] = (*events.get(bundle, ()), event)[-_EVENTS_MAX:]


def _recent(events: Mapping[str, tuple[_Event, ...]], at_ms: int, window_ms: int) -> _Events:
    """Return the events of the window that ends at `at_ms` (Unix time)."""
    since_ms = at_ms - window_ms
    kept = ((name, tuple(event for event in each if event.at_ms >= since_ms)) for name, each in events.items())
    return {name: each for name, each in kept if each}
