"""Fold the whole log in batches, with a state that outlives the process, and emit rows and facts.

`subjects` chooses the facts of a record, `notes` handles notes, `state_rows` stores the view. Other parts are plugged in.

Guarantees:

1. The same entries of the channel give the same rows, for any cut into batches and any restart. In each batch notes come after the channel,
   with the log's time at that moment.
2. No entry makes it raise. A closed log, a too new format version or a log that went back ends the folding for good: one fact of the log
   reports that, and later entries get the verdict `not_folded`.
3. Only the channel moves the log's time, which never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import (
    BrokerChanged,
    BrokerEntry,
    BundleChanged,
    Change,
    LevelChanged,
    NamespaceChanged,
    PolicyChanged,
    Verdict,
)
from equipoise.channel.core.errors import BegunAbove, ChannelIncomplete, LevelTooNew, LogClosed
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import Renewed, Unreadable
from equipoise.channel.core.snapshot import from_bytes
from equipoise.channel.core.view import View
from equipoise.spark_jobs.rules.facts import Fact, Raw, subject
from equipoise.spark_jobs.rules.membership.members import Incarnations, Known, Member, Whole
from equipoise.spark_jobs.rules.membership.view import Membership
from equipoise.spark_jobs.rules.rule import ACCEPTED, NOT_FOLDED
from equipoise.spark_jobs.sequence.arrivals import Arrival, Source
from equipoise.spark_jobs.sequence.emitted import Emitted, Table
from equipoise.spark_jobs.sequence.histories import Histories
from equipoise.spark_jobs.sequence.notes import Now, rows_of_note
from equipoise.spark_jobs.sequence.snapshots import packed
from equipoise.spark_jobs.sequence.state_rows import StateRow, ViewRows, view_from
from equipoise.spark_jobs.sequence.subjects import (
    CONCERNED,
    LOG,
    NAMED,
    Subjects,
    claimed,
    fact_bytes,
    kind_of,
    parsed,
    short,
    verdict_text,
)

STATE_KEY: Final = "sequence:"
"""Key of the state row with the sequence's own position."""

TIME_MS_MAX: Final = 9_223_372_036_854
"""The last time, in the year 2262, that a pandas frame holds. A later time is from a damaged entry and is ignored."""

LEAP_MS_MIN: Final = 60_000
"""A shorter step ahead is a pause of the writers."""

LEAPS_MAX: Final = 8
"""Leaps to remember. A clock that is ahead may write with pauses, and each pause looks like a leap."""

_NAME: Final = "the channel"
_CHANNEL: Final = Source.CHANNEL.value
_RECORDS: Final = Table.RECORDS.value
_SNAPSHOTS: Final = Table.SNAPSHOTS.value
_FACTS: Final = Table.FACTS.value
_HISTORIES: Final = frozenset({Table.TRANSITIONS, Table.OWNERSHIP_INTERVALS, Table.TRANSFERS})

Lost = Callable[[int, int], bytes | None]
"""Ask whether entries were lost at the missing physical offsets from the first argument to below the second.

Return None if not (a log may skip offsets), else a snapshot of the view from which the rest can be folded. Raise `ChannelIncomplete`,
`LevelTooNew` or `LogClosed` if nothing leads on, and `LogUnavailable` if it is not known now.
"""

SNAPSHOT_RECORDS: Final = 100_000
"""Records between two snapshots of an archive: about a second of folding, so that a long verification has many parts."""


def nothing_lost(_first: int, _below: int) -> None:
    """Return None: a `Lost` for a log that is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugs:
    """What one `Sequence` works with. `membership` and `histories` must be new. `log` is the log's identity, if known."""

    membership: Membership | None = None
    histories: Histories | None = None
    lost: Lost = nothing_lost
    snapshot_records: int = SNAPSHOT_RECORDS
    log: str | None = None


class Sequence:
    """Turn arrivals into rows, one after the other. `restored` continues from the rows of `changed_rows`."""

    def __init__(self, wants: frozenset[Table], begin: bytes | None = None, *, plugs: Plugs | None = None) -> None:
        """Begin at the log's first record, or at the snapshot `begin` (`channel.core.snapshot`). Raise `SnapshotDamaged`."""
        self._wants = wants
        self._wants_facts, self._wants_records, self._wants_snapshots = _FACTS in wants, _RECORDS in wants, _SNAPSHOTS in wants
        self._plugs = Plugs() if plugs is None else plugs
        self._membership = self._plugs.membership if Table.FACTS in wants else None
        self._histories = self._plugs.histories if wants & _HISTORIES else None
        self._parts = tuple(part for part in (self._membership, self._histories) if part is not None)
        # The position besides the view: see `_standing`.
        self._log_ms = 0
        self._behind_ms = 0  # How much older the current entry is than the log's time.
        self._before_leaps_ms: list[int] = []  # The log's times before its last leaps ahead, rising; empty once a leap is reported.
        self._seen = FIRST_OFFSET - 1
        self._until_snapshot = 0  # The first record is followed by a snapshot.
        self._stopped: Raw | None = None
        self._is_stop_reported = False
        self._take_up(View() if begin is None else from_bytes(begin))
        self._rows = ViewRows(self._view)
        if begin is not None:
            self._begin_parts()

    @classmethod
    def restored(cls, rows: Mapping[str, bytes], wants: frozenset[Table], *, plugs: Plugs | None = None) -> Sequence:
        """Return the sequence with this state. It emits the rows that the former one would emit next.

        Raise `CompactedSnapshotDamaged` if the rows do not fit together, and `KeyError` if they are not a sequence's state.
        """
        sequence = cls(wants, plugs=plugs)
        standing = orjson.loads(rows[STATE_KEY])
        sequence._stopped, sequence._is_stop_reported = standing["stopped"], standing["is_stop_told"]
        sequence._take_up(view_from(rows, offset=standing["offset"]))
        sequence._rows = ViewRows(sequence._view, written=True)
        sequence._log_ms, sequence._before_leaps_ms, sequence._seen = standing["log_ms"], standing["before_leaps_ms"], standing["seen"]
        sequence._begin, sequence._until_snapshot = standing["begin"], standing["until_snapshot"]
        for part in sequence._parts:
            part.restore(rows)
        return sequence

    @property
    def view(self) -> View:
        """The view of all that was folded. Read-only."""
        return self._view

    # --- the state ---

    def changed_rows(self) -> list[StateRow]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        rows: list[StateRow] = [(STATE_KEY, orjson.dumps(self._standing())), *self._rows.changed()]
        for part in self._parts:
            rows.extend(part.changed_rows())
        return rows

    def _standing(self) -> dict[str, object]:
        return {
            "offset": self._view.offset,
            "log_ms": self._log_ms,
            "before_leaps_ms": self._before_leaps_ms,
            "seen": self._seen,
            "begin": self._begin,
            "until_snapshot": self._until_snapshot,
            "stopped": self._stopped,
            "is_stop_told": self._is_stop_reported,
        }

    def _take_up(self, view: View) -> None:
        """Continue from a view, unless its format version is too new or its log is closed."""
        self._view = view
        self._begin = max(view.offset, 0)
        self._subjects = Subjects(view)
        self._reader: Reader | None = None
        if self._stopped is None:
            try:
                self._reader = Reader(log=_NAME, view=view)
            except (LevelTooNew, LogClosed) as error:
                self._stop(error)

    def _begin_parts(self) -> None:
        if self._membership is not None:
            self._membership.begin(*known_in(self._view))
        if self._histories is not None:
            self._histories.begin(self._view)

    # --- feeding ---

    def feed(self, arrivals: Iterable[Arrival]) -> Iterator[Emitted]:
        """Yield the rows of these arrivals: first those of the channel, by offset, then the others.

        Consume the iterator to its end, or discard the sequence. Raise what `Plugs.lost` raises for an unavailable log.
        """
        wants_facts, wants_records, wants_snapshots = self._wants_facts, self._wants_records, self._wants_snapshots
        events: list[Raw] = []
        for arrival in arrivals:
            source, offset, at_ms, value = arrival
            if source != _CHANNEL:
                yield from self._note(arrival)
                continue
            if offset < FIRST_OFFSET:  # A topic's note about its owner. No log issues this offset.
                continue
            if self._log_ms < at_ms <= TIME_MS_MAX:
                if self._log_ms and at_ms - self._log_ms > LEAP_MS_MIN:
                    self._before_leaps_ms = [*self._before_leaps_ms[1 - LEAPS_MAX :], self._log_ms]
                self._log_ms = at_ms
            elif at_ms < self._log_ms:
                events += self._fallen(at_ms)
            self._behind_ms = max(0, self._log_ms - at_ms)
            folded = self._fold(offset, value or b"", events)
            is_new = offset > self._seen
            if is_new:
                self._seen = offset
            record = None if folded is None or wants_facts else folded.record
            if folded is not None and type(record) is Renewed and folded.verdict.reason is None:
                # Nine tenths of a channel are accepted renewals. They have no other rows.
                if wants_records and is_new:
                    yield Emitted(_RECORDS, record.key, folded.offset, 0, self._log_ms, "renewed", record.publisher, ACCEPTED, value)
            else:
                yield from self._rows_of(folded, offset, value, events, is_new=is_new)
            if wants_snapshots and folded is not None:
                self._until_snapshot -= 1
                if self._until_snapshot <= 0:
                    self._until_snapshot = self._plugs.snapshot_records
                    yield Emitted(_SNAPSHOTS, "", folded.offset, 0, self._log_ms, None, None, None, packed(self._view))
            events.clear()

    def _fallen(self, at_ms: int) -> Iterator[Raw]:
        """Yield what an entry that is older than an earlier one shows about the log's time."""
        yield {"event": "time_fell", "by_ms": self._log_ms - at_ms}
        # A leap may be a night without writers. It was a wrong clock if the time is now nearer to the time before the leap.
        for before_ms in reversed(self._before_leaps_ms):
            if -LEAP_MS_MIN < at_ms - before_ms < self._log_ms - at_ms:
                self._before_leaps_ms = []
                yield {"event": "time_leapt", "by_ms": self._log_ms - before_ms, "stands_ms": self._log_ms - at_ms}
                return

    def _note(self, arrival: Arrival) -> Iterator[Emitted]:
        now = Now(at_ms=self._log_ms, view=self._view, begin=self._begin, log=self._plugs.log, stopped=self._stopped is not None)
        for row in rows_of_note(arrival, now=now):
            if row.table in self._wants:
                yield row

    def _rows_of(self, folded: Folded | None, offset: int, value: bytes | None, events: list[Raw], *, is_new: bool) -> list[Emitted]:
        """Return the rows of one entry of the channel."""
        rows: list[Emitted] = []
        raw = parsed(value or b"") if self._wants_facts or folded is None or type(folded.record) is Unreadable else None
        if self._wants_records and is_new:
            rows.append(self._record(folded, offset, value, raw))
        if self._wants_facts:
            rows += self._facts(folded, offset, value, events, raw)
        if folded is None:
            return rows
        changes = folded.verdict.changes
        if changes:
            self._remember_gone(changes)
            if self._histories is not None:
                rows += (row for row in self._histories.feed(folded, self._log_ms) if row.table in self._wants)
        return rows

    def _record(self, folded: Folded | None, offset: int, value: bytes | None, raw: Raw | None) -> Emitted:
        if folded is None:
            record, verdict, place = decode(value or b""), NOT_FOLDED, offset + self._view.base
        else:
            record, verdict, place = folded.record, verdict_text(folded.verdict), folded.offset
        kind = kind_of(record, raw)
        if isinstance(record, Unreadable):
            return Emitted(_RECORDS, claimed(raw, "key") or "", place, 0, self._log_ms, kind, claimed(raw, "publisher"), verdict, value)
        return Emitted(_RECORDS, record.key, place, 0, self._log_ms, kind, record.publisher, verdict, value)

    def _facts(self, folded: Folded | None, offset: int, value: bytes | None, events: list[Raw], raw: Raw | None) -> Iterator[Emitted]:
        """Yield the facts of one entry: the events of the log, then the record's."""
        place, at_ms = offset + self._view.base, self._log_ms
        facts = [Fact(subject=LOG, source=_CHANNEL, offset=place, at_ms=at_ms, after=event) for event in events]
        if folded is not None:
            facts += self._facts_of_record(folded, value, raw)
        for ordinal, fact in enumerate(facts):
            yield Emitted(_FACTS, fact.subject, fact.offset, ordinal, at_ms, None, None, None, fact_bytes(fact))

    def _facts_of_record(self, folded: Folded, value: bytes | None, raw: Raw | None) -> Iterator[Fact]:
        offset, at_ms, record = folded.offset, self._log_ms, folded.record
        verdict = verdict_text(folded.verdict)
        context, further = ({}, ()) if self._membership is None else self._context(self._membership, folded, raw, verdict)
        if type(record) is Renewed and folded.verdict.accepted:
            changes = {subject("broker", record.key): self._subjects.of_renewal(record, offset, folded.verdict)}
        else:
            changes = self._subjects.of_record(folded, raw, is_null=value is None)
            # The checker that compares the verdicts needs a fact, even of an entry that only resembles a record.
            if "checked_by" in context:
                changes.setdefault(context["checked_by"], NAMED)
        for name in further:
            changes.setdefault(subject("bundle", name), CONCERNED)
        brief: Raw | None = None
        for who, (before, after, is_named) in changes.items():
            if not is_named and brief is None and raw is not None:
                brief = short(raw)
            yield Fact(
                subject=who,
                source=_CHANNEL,
                offset=offset,
                at_ms=at_ms,
                record=raw if is_named else brief,
                verdict=verdict,
                before=before,
                after=after,
                context=context,
            )

    def _context(self, membership: Membership, folded: Folded, raw: Raw | None, verdict: str) -> tuple[Raw, Iterable[str]]:
        context = membership.context_of(folded.offset, self._log_ms, raw, behind_ms=self._behind_ms)
        return context, membership.follow(folded.offset, raw, verdict)

    def _remember_gone(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            if not isinstance(change, LevelChanged) and change.after is None:
                self._rows.removed(f"{_KEY_PREFIXES[type(change)]}:{change.name}")

    # --- folding ---

    def _fold(self, offset: int, data: bytes, events: list[Raw]) -> Folded | None:
        """Return the fold's result for one entry; None if it is not folded. Append events of the log to `events`."""
        reader = self._reader
        if reader is not None and offset != reader.position:
            reader = self._reader_at(reader, offset, events)
        folded = None if reader is None else self._folded(reader, Entry(offset, data), events)
        if self._stopped is not None and not self._is_stop_reported:
            self._is_stop_reported = True
            events.append(self._stopped)
        return folded

    def _folded(self, reader: Reader, entry: Entry, events: list[Raw]) -> Folded | None:
        level = reader.view.level
        try:
            return reader.feed(entry)
        except (LevelTooNew, LogClosed) as error:
            # The record raised the format version or closed the log. It is accepted, and is the last one that can be folded.
            self._stop(error, copied_to=claimed(parsed(entry.data), "copied_to"))
            changes = (LevelChanged(before=level, after=self._view.level),)
            return Folded(offset=self._view.offset, record=decode(entry.data), verdict=Verdict(changes=changes))
        except BegunAbove as error:
            # The log is a copy that was being made when the job began. Its snapshot has the state to continue from.
            regained = self._regained(FIRST_OFFSET - 1, entry.offset, events)
            if regained is None or regained.view.genesis is None:
                self._stop(error)
                return None
            return None if entry.offset < regained.position else regained.feed(entry)

    def _reader_at(self, reader: Reader, offset: int, events: list[Raw]) -> Reader | None:
        """Return the reader for an entry at another position than the next; None to skip the entry."""
        if offset <= self._seen:
            self._stopped = {"event": "log_went_back", "position": reader.position, "found": offset}
            self._reader = None
            return None
        if offset < reader.position:  # The view that the sequence began with, or regained, includes it already.
            return None
        regained = self._regained(reader.position, offset, events)
        return regained if regained is not None and offset >= regained.position else None

    def _regained(self, first: int, below: int, events: list[Raw]) -> Reader | None:
        """Return the reader that continues after a gap; None if that is impossible."""
        base = self._view.base
        lost = {"event": "records_lost", "from": first + base, "to": below + base}
        try:
            snapshot = self._plugs.lost(first, below)
        except (ChannelIncomplete, LevelTooNew, LogClosed) as error:
            events.append({**lost, "restored": False, "problem": str(error)})
            self._stop(error)
            return None
        if snapshot is not None:
            view = from_bytes(snapshot)
            self._rows = self._rows.replaced_by(view)
            self._take_up(view)
            self._until_snapshot = 0
            self._begin_parts()
            events.append({**lost, "restored": True, "goes_on": view.offset + 1})
        return self._reader

    def _stop(self, error: BegunAbove | ChannelIncomplete | LevelTooNew | LogClosed, *, copied_to: str | None = None) -> None:
        """Stop folding for good. `copied_to` is where the channel of a closed log continues."""
        self._stopped = {"event": _EVENTS[type(error)], "problem": str(error)}
        if copied_to is not None:
            self._stopped = {**self._stopped, "copied_to": copied_to}
        self._reader = None


def known_in(view: View) -> tuple[Known, Mapping[str, tuple[int | None, int | None, str]]]:
    """Return the arguments of `Membership.begin` for continuing after the last record in `view`."""
    brokers = {broker.broker: _member(broker) for broker in view.brokers.values()}
    known = Known(
        whole=Whole(
            begun=view.offset,
            genesis=view.genesis,
            cluster=view.cluster,
            base=view.base,
            level=view.level,
            level_last=view.level_last,
            removed_at=view.removed_at,
        ),
        brokers=brokers,
        namespaces={namespace.name: (namespace.status, namespace.last) for namespace in view.namespaces.values()},
        policies={policy.name: policy.last for policy in view.policies.values()},
        incarnations=Incarnations(known_from=view.offset, offsets=sorted(member.incarnation for member in brokers.values())),
    )
    return known, {bundle.name: (bundle.owner, bundle.source, bundle.state) for bundle in view.bundles.values()}


def _member(broker: BrokerEntry) -> Member:
    joined = broker.joined
    return Member(
        status=broker.status,
        incarnation=broker.incarnation,
        last=broker.last,
        sequence=broker.sequence,
        nonce=joined.nonce,
        lease_ms=joined.lease_ms,
        margin_ms=joined.margin_ms,
        renew_ms=joined.renew_ms,
        supported_level=joined.supported_level,
    )


_KEY_PREFIXES: Final[Mapping[type, str]] = {
    BundleChanged: "bundle",
    BrokerChanged: "broker",
    NamespaceChanged: "namespace",
    PolicyChanged: "policy",
}
_EVENTS: Final[Mapping[type, str]] = {
    BegunAbove: "begun_above",
    ChannelIncomplete: "channel_incomplete",
    LevelTooNew: "level_too_new",
    LogClosed: "log_closed",
}
