"""What one record is told of to whom: the subjects of its facts, and what the fold made of each.

May live here: the choice of subjects, and the spelling of entries before and after. `spark_jobs.rules.facts` says what a fact is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from equipoise.channel.core.entries import BrokerChanged, BrokerEntry, BundleChanged, BundleEntry, NamespaceChanged, NamespaceEntry, Verdict
from equipoise.channel.core.ranges import ADMIN_PREFIX
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import (
    KEY_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    AnyRecord,
    BrokerRecord,
    BundleTransition,
    Genesis,
    Joined,
    LevelRecord,
    Merge,
    NamespaceRecord,
    PolicyRecord,
    Reason,
    Renewed,
    Split,
    Unreadable,
)
from equipoise.channel.core.view import View
from equipoise.spark_jobs.rules.facts import Fact, Raw, subject

LOG: Final = subject("log", "")
"""The subject of what concerns the log as a whole."""

ACCEPTED: Final = "accepted"

_TOLD_TO_LOG: Final = frozenset({Reason.LEVEL, Reason.NO_GENESIS, Reason.FOREIGN_GENESIS})
_LOG_RECORDS: Final = (Genesis, LevelRecord, PolicyRecord, Unreadable)
_KINDS: Final[Mapping[type, str]] = {
    Genesis: "genesis",
    BundleTransition: "bundle",
    Split: "split",
    Merge: "merge",
    NamespaceRecord: "namespace",
    Joined: "joined",
    Renewed: "renewed",
    PolicyRecord: "policy",
    LevelRecord: "level",
}
_TEXTS: Final = {reason: reason.value for reason in Reason}
_SCALARS: Final = (str, int, float, bool, type(None))


Range = list[object]
"""A range that came into a namespace or went: [low, high, phase, owner, token], as whoever compares the two wants it."""


class Told(NamedTuple):
    """One subject of a record, before and after. `is_named` says that the record is about it, and goes with the fact whole."""

    before: Raw | None = None
    after: Raw | None = None
    is_named: bool = True


NAMED: Final = Told()
CONCERNED: Final = Told(is_named=False)


def kind_of(record: AnyRecord | Unreadable, raw: Raw | None) -> str | None:
    """The kind as rows spell it: the record's own, for a broker's its status; of what is no record, what it claims to be."""
    if isinstance(record, BrokerRecord):
        return record.status
    if isinstance(record, Unreadable):
        return claimed(raw, "kind")
    return _KINDS[type(record)]


def verdict_text(verdict: Verdict) -> str:
    """The verdict as rows and facts spell it."""
    return ACCEPTED if verdict.reason is None else _TEXTS[verdict.reason]


def claimed(raw: Raw | None, name: str) -> str | None:
    """A text that stands in what is no record, cut off where no record's may go on; None if there is none."""
    value = None if raw is None else raw.get(name)
    return value[:KEY_CHARACTERS_MAX] if type(value) is str else None


def parsed(data: bytes) -> Raw | None:
    """The JSON object that these bytes spell; None if they spell none."""
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return raw if type(raw) is dict else None


def short(raw: Raw) -> Raw:
    """What of a record goes with the facts of those that it only changed: a death may change thousands, a creation 65,536."""
    return {
        name: value
        for name, value in raw.items()
        if type(value) in _SCALARS and not (type(value) is str and len(value) > TEXT_CHARACTERS_MAX)
    }


def spelled(fact: Fact) -> bytes:
    """The fact as bytes, without those fields of its record that are nested deeper than can be spelled."""
    try:
        return fact.to_bytes()
    except orjson.JSONEncodeError:
        record = {name: value for name, value in (fact.record or {}).items() if _is_spelled(value)}
        return replace(fact, record=record).to_bytes()


def _is_spelled(value: object) -> bool:
    try:
        orjson.dumps({"": {"": value}})
    except orjson.JSONEncodeError:
        return False
    return True


class Teller:
    """Tells the subjects of each record. It knows which incarnation each broker id had last, which changes do not say."""

    def __init__(self, view: View) -> None:
        """Go on from `view`, which is read and never written."""
        self._view = view
        self._incarnations = {name: entry.incarnation for name, entry in view.brokers.items()}

    def renewed(self, record: Renewed, offset: int, verdict: Verdict) -> Told:
        """The one subject of an accepted renewal, nine tenths of a channel: the broker that published it."""
        broker = self._view.brokers[record.key]
        after: dict[str, Any] = {"status": broker.status, "incarnation": broker.incarnation, "last": offset}
        before = {**after, "last": record.based_on}
        if verdict.diverged:
            after["diverged"] = True
        return Told(before, after)

    def told(self, folded: Folded, raw: Raw | None, *, is_null: bool = False) -> dict[str, Told]:
        """Every subject of a record, in the order in which their facts stand. `is_null`: the entry had no value at all."""
        record, verdict = folded.record, folded.verdict
        told = dict.fromkeys(self._named(record, verdict, raw), NAMED)
        if isinstance(record, Renewed) and verdict.accepted:
            told[subject("broker", record.key)] = self.renewed(record, folded.offset, verdict)
        if isinstance(record, Unreadable):
            event = "null" if is_null else "garbage" if raw is None else "malformed"
            told[LOG] = Told(None, {"event": event, "problem": record.problem[:TEXT_CHARACTERS_MAX]})
        removed: dict[str, list[Range]] = {}
        added: dict[str, list[Range]] = {}
        for change in verdict.changes:
            if isinstance(change, BundleChanged):
                key = subject("bundle", change.name)
                told[key] = Told(_bundle(change.before), _bundle(change.after), key in told)
                if change.after is None and change.before is not None:
                    removed.setdefault(change.before.namespace, []).append(_range(change.before))
                if change.before is None and change.after is not None:
                    added.setdefault(change.after.namespace, []).append(_range(change.after))
            elif isinstance(change, BrokerChanged):
                told[subject("broker", change.name)] = self._broker(change, record)
            elif isinstance(change, NamespaceChanged):
                told[subject("namespace", change.name)] = Told(_namespace(change.before), _namespace(change.after))
        for name in {**removed, **added}:
            self._add_ranges(told, name, folded.offset, removed.get(name, []), added.get(name, []))
        return told

    def _named(self, record: AnyRecord | Unreadable, verdict: Verdict, raw: Raw | None) -> list[str]:
        """The subjects that the record names, whatever became of it."""
        named: list[str] = []
        publisher = claimed(raw, "publisher") if isinstance(record, Unreadable) else record.publisher
        if isinstance(record, (BundleTransition, Split, Merge)):
            named.append(subject("bundle", record.key))
        if isinstance(record, Merge):
            named.append(subject("bundle", record.right))
        if isinstance(record, NamespaceRecord):
            named.append(subject("namespace", record.key))
        if isinstance(record, (Joined, Renewed, BrokerRecord)):
            named.append(subject("broker", record.key))
        is_admin = publisher is None or publisher.startswith(ADMIN_PREFIX)
        if publisher and not is_admin:
            named.append(subject("broker", publisher))
        if isinstance(record, _LOG_RECORDS) or verdict.reason in _TOLD_TO_LOG or (is_admin and not verdict.accepted):
            named.append(LOG)
        return named

    def _broker(self, change: BrokerChanged, record: AnyRecord | Unreadable) -> Told:
        # An accepted record is based on the last one of its key, so that need not be remembered.
        last = record.based_on if isinstance(record, (Joined, BrokerRecord)) else None
        before = None if change.before is None else {"status": change.before, "incarnation": self._incarnations[change.name], "last": last}
        if change.after is None:
            del self._incarnations[change.name]
        else:
            self._incarnations[change.name] = change.after.incarnation
        return Told(before, _broker(change.after))

    def _add_ranges(self, told: dict[str, Told], name: str, offset: int, removed: list[Range], added: list[Range]) -> None:
        """Tell a namespace which of its ranges came and went; a split or a merge changes nothing else of it."""
        key = subject("namespace", name)
        before, after, is_named = told.get(key, Told(_namespace(self._view.namespaces.get(name))))
        entry = _namespace(self._view.namespaces.get(name)) or {"status": "deleted", "last": offset}
        told[key] = Told(before, {**(after or entry), "removed": removed, "added": added}, is_named)


def told_bundle(entry: BundleEntry) -> Raw:
    """A bundle as facts spell it."""
    return {
        "phase": entry.phase,
        "owner": entry.owner,
        "source": entry.source,
        "last": entry.last,
        "token": entry.token,
        "low": entry.low,
        "high": entry.high,
    }


def _range(entry: BundleEntry) -> Range:
    return [entry.low, entry.high, entry.phase, entry.owner, entry.token]


def _bundle(entry: BundleEntry | None) -> Raw | None:
    return None if entry is None else told_bundle(entry)


def _broker(entry: BrokerEntry | None) -> Raw | None:
    return None if entry is None else {"status": entry.status, "incarnation": entry.incarnation, "last": entry.last}


def _namespace(entry: NamespaceEntry | None) -> Raw | None:
    return None if entry is None else {"status": entry.status, "last": entry.last}
