"""Choose the subjects of a record's facts, and describe each subject before and after the
record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from equipoise.channel.core.entries import (
    BrokerChanged,
    BrokerEntry,
    BundleChanged,
    BundleEntry,
    NamespaceChanged,
    NamespaceEntry,
    Verdict,
)
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
from equipoise.channel.inspect.verify import ties
from equipoise.spark_jobs.rules.facts import Fact, Raw, subject
from equipoise.spark_jobs.rules.membership.references import Referring

LOG: Final = subject("log", "")
"""The subject of events of the log as a whole."""

ACCEPTED: Final = "accepted"

_REASONS_OF_LOG: Final = frozenset({Reason.LEVEL, Reason.NO_GENESIS, Reason.FOREIGN_GENESIS})
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
"""A range that was added to a namespace or removed: [low, high, phase, owner, token]."""


class SubjectChange(NamedTuple):
    """One subject of a record, before and after. If `is_named`, the record names it, and its fact
    carries the whole record.
    """

    before: Raw | None = None
    after: Raw | None = None
    is_named: bool = True


NAMED: Final = SubjectChange()
CONCERNED: Final = SubjectChange(is_named=False)


def kind_of(record: AnyRecord) -> str:
    """Return the kind for a row: a broker record's status, else the record's kind."""
    return record.status if isinstance(record, BrokerRecord) else _KINDS[type(record)]


def verdict_text(verdict: Verdict) -> str:
    """Return the verdict as in rows and facts."""
    return ACCEPTED if verdict.reason is None else _TEXTS[verdict.reason]


def claimed(raw: Raw | None, name: str) -> str | None:
    """Return a string field of an unreadable entry, cut to the length of a key; None if there is
    none.
    """
    value = None if raw is None else raw.get(name)
    return value[:KEY_CHARACTERS_MAX] if type(value) is str else None


def parsed(data: bytes) -> Raw | None:
    """Return the JSON object in these bytes, or None."""
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return raw if type(raw) is dict else None


def short(raw: Raw) -> Raw:
    """Return the scalar fields of a record, for subjects that it changes but does not name: a
    creation may have 65,536 of them.
    """
    return {
        name: value
        for name, value in raw.items()
        if type(value) in _SCALARS and not (type(value) is str and len(value) > TEXT_CHARACTERS_MAX)
    }


def fact_bytes(fact: Fact) -> bytes:
    """Return the fact as bytes, without fields of its record that are nested too deeply for
    JSON.
    """
    try:
        return fact.to_bytes()
    except orjson.JSONEncodeError:
        record = {name: value for name, value in (fact.record or {}).items() if _fits_json(value)}
        return replace(fact, record=record).to_bytes()


def _fits_json(value: object) -> bool:
    try:
        orjson.dumps({"": {"": value}})
    except orjson.JSONEncodeError:
        return False
    return True


class Subjects:
    """Choose the subjects of each record. Remember each broker's last incarnation, which changes do
    not include.
    """

    def __init__(self, view: View) -> None:
        """Continue from `view`, which stays unchanged."""
        self._view = view
        self._incarnations = {name: entry.incarnation for name, entry in view.brokers.items()}

    def of_renewal(self, record: Renewed, offset: int, verdict: Verdict) -> SubjectChange:
        """Return the one subject of an accepted renewal (nine tenths of a channel): the broker that
        published it.
        """
        broker = self._view.brokers[record.key]
        after: dict[str, Any] = {
            "status": broker.status,
            "incarnation": broker.incarnation,
            "last": offset,
        }
        before = {**after, "last": record.expected_offset}
        if verdict.diverged:
            after["diverged"] = True
        return SubjectChange(before, after)

    def of_record(
        self, folded: Folded, raw: Raw | None, *, is_damaged: bool = False
    ) -> dict[str, SubjectChange]:
        """Return every subject of a record, in the order of their facts. `is_damaged`: the
        entry has no value, because it does not match its checksum.
        """
        record, verdict = folded.record, folded.verdict
        found = dict.fromkeys(self._named(record, verdict, raw), NAMED)
        if isinstance(record, Renewed) and verdict.accepted:
            found[subject("broker", record.key)] = self.of_renewal(record, folded.offset, verdict)
        if isinstance(record, Unreadable):
            event = "damaged" if is_damaged else "garbage" if raw is None else "malformed"
            found[LOG] = SubjectChange(
                None, {"event": event, "problem": record.problem[:TEXT_CHARACTERS_MAX]}
            )
        removed: dict[str, list[Range]] = {}
        added: dict[str, list[Range]] = {}
        for change in verdict.changes:
            if isinstance(change, BundleChanged):
                key = subject("bundle", change.name)
                found[key] = SubjectChange(
                    _bundle(change.before), _bundle(change.after), key in found
                )
                if change.after is None and change.before is not None:
                    removed.setdefault(change.before.namespace, []).append(_range(change.before))
                if change.before is None and change.after is not None:
                    added.setdefault(change.after.namespace, []).append(_range(change.after))
            elif isinstance(change, BrokerChanged):
                found[subject("broker", change.name)] = self._broker(change, record)
            elif isinstance(change, NamespaceChanged):
                found[subject("namespace", change.name)] = SubjectChange(
                    _namespace(change.before), _namespace(change.after)
                )
        for name in {**removed, **added}:
            self._add_ranges(found, name, folded.offset, removed.get(name, []), added.get(name, []))
        return found

    def _named(
        self, record: AnyRecord | Unreadable, verdict: Verdict, raw: Raw | None
    ) -> list[str]:
        """Return the subjects that the record names, for any verdict."""
        named: list[str] = []
        publisher = (
            claimed(raw, "publisher") if isinstance(record, Unreadable) else record.publisher
        )
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
        if (
            isinstance(record, _LOG_RECORDS)
            or verdict.reason in _REASONS_OF_LOG
            or (is_admin and not verdict.accepted)
        ):
            named.append(LOG)
        return named

    def _broker(self, change: BrokerChanged, record: AnyRecord | Unreadable) -> SubjectChange:
        # An accepted record expects the offset of the last one of its key, so that need not be
        # stored.
        last = record.expected_offset if isinstance(record, (Joined, BrokerRecord)) else None
        before = (
            None
            if change.before is None
            else {
                "status": change.before,
                "incarnation": self._incarnations[change.name],
                "last": last,
            }
        )
        if change.after is None:
            del self._incarnations[change.name]
        else:
            self._incarnations[change.name] = change.after.incarnation
        return SubjectChange(before, _broker(change.after))

    def _add_ranges(
        self,
        found: dict[str, SubjectChange],
        name: str,
        offset: int,
        removed: list[Range],
        added: list[Range],
    ) -> None:
        """Add the changed ranges to a namespace's fact."""
        key = subject("namespace", name)
        before, after, is_named = found.get(
            key, SubjectChange(_namespace(self._view.namespaces.get(name)))
        )
        entry = _namespace(self._view.namespaces.get(name)) or {"status": "deleted", "last": offset}
        found[key] = SubjectChange(
            before, {**(after or entry), "removed": removed, "added": added}, is_named
        )


def bundle_in_fact(entry: BundleEntry) -> Raw:
    """Return a bundle as in facts."""
    return {
        "phase": entry.phase,
        "owner": entry.owner,
        "source": entry.source,
        "last": entry.last,
        "token": entry.token,
        "low": entry.low,
        "high": entry.high,
    }


def referring(folded: Folded, *, is_damaged: bool, gap_from: int | None) -> Referring:
    """Return what a folded entry refers to. `is_damaged`, `gap_from` are as in `Referring`."""
    record, verdict = folded.record, folded.verdict
    if isinstance(record, Unreadable | Genesis):
        return Referring(
            offset=folded.offset,
            verdict=verdict_text(verdict),
            is_damaged=is_damaged,
            gap_from=gap_from,
        )
    bases = (record.expected_offset, getattr(record, "expected_offset_right", None))
    return Referring(
        offset=folded.offset,
        bases=tuple(base for base in bases if base),
        others=ties(record),
        verdict=verdict_text(verdict),
        gap_from=gap_from,
        agrees=not verdict.diverged if type(record) is Renewed and verdict.accepted else None,
    )


def _range(entry: BundleEntry) -> Range:
    return [entry.low, entry.high, entry.phase, entry.owner, entry.token]


def _bundle(entry: BundleEntry | None) -> Raw | None:
    return None if entry is None else bundle_in_fact(entry)


def _broker(entry: BrokerEntry | None) -> Raw | None:
    return (
        None
        if entry is None
        else {"status": entry.status, "incarnation": entry.incarnation, "last": entry.last}
    )


def _namespace(entry: NamespaceEntry | None) -> Raw | None:
    return None if entry is None else {"status": entry.status, "last": entry.last}
