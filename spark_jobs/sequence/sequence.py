"""Turn the whole log into rows and facts in batches, with a state that outlives the process.

* `folding` folds the channel, `LogTime` keeps its time, and `state_rows` stores the view.
* `subjects` chooses the facts of a record. `spark_jobs.rules.membership` adds the audit's own view
  to them.
* `histories` makes the rows of transitions, intervals, moves and broker events. `notes` handles
  notes.

Guarantees:

1. The same entries of the channel give the same rows, for any cut into batches and any restart. In
   each batch notes come after the channel, with the log's time at that moment.
2. No entry makes it raise. A closed log, a too new format version or a log that went back ends the
   folding for good: one fact of the log reports that, and later entries get the verdict
   `not_folded`.
3. Only the channel moves the log's time, which never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
)
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Renewed, Unreadable
from equipoise.channel.core.snapshot import from_bytes
from equipoise.channel.core.view import View
from equipoise.spark_jobs.rules.facts import Fact, Raw, parse_fact, subject
from equipoise.spark_jobs.rules.membership.members import (
    Incarnations,
    Known,
    Member,
    Namespace,
    Whole,
)
from equipoise.spark_jobs.rules.membership.view import IN_FLIGHT_MAX_MS, Membership
from equipoise.spark_jobs.rules.memory import StateRow
from equipoise.spark_jobs.rules.rule import ACCEPTED, NOT_FOLDED
from equipoise.spark_jobs.sequence.folding import Folding, Lost, ViewRows, view_from
from equipoise.spark_jobs.sequence.histories import Histories
from equipoise.spark_jobs.sequence.notes import Now, fact_row, rows_of_note
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Source, Table
from equipoise.spark_jobs.sequence.snapshots import packed
from equipoise.spark_jobs.sequence.subjects import (
    CONCERNED,
    LOG,
    NAMED,
    Subjects,
    claimed,
    fact_bytes,
    kind_of,
    parsed,
    referring,
    short,
    verdict_text,
)

TIME_MS_MAX: Final = 9_223_372_036_854
"""The last time, in the year 2262, that a pandas frame holds. A later time is from a damaged entry
and is ignored."""

LEAP_MS_MIN: Final = 60_000
"""A shorter step ahead is a pause of the writers."""

LEAPS_MAX: Final = 8
"""Leaps to remember. A clock that is ahead may write with pauses, and each pause looks like a
leap."""


@dataclass(slots=True, kw_only=True)
class LogTime:
    """The log's time, which never falls: the greatest time of all entries so far.

    * `behind_ms`: how much older the last entry is than the log's time.
    * `before_leaps_ms`: the log's times before its last leaps ahead, rising; empty once a leap is
      reported.
    """

    now_ms: int = 0
    behind_ms: int = 0
    before_leaps_ms: list[int] = field(default_factory=list)

    def advance(self, at_ms: int) -> list[Raw]:
        """Take the time of the next entry. Return the events that it shows: the time fell, or an
        earlier entry let it leap.
        """
        events: list[Raw] = []
        if self.now_ms < at_ms <= TIME_MS_MAX:
            if self.now_ms and at_ms - self.now_ms > LEAP_MS_MIN:
                self.before_leaps_ms = [*self.before_leaps_ms[1 - LEAPS_MAX :], self.now_ms]
            self.now_ms = at_ms
        elif at_ms < self.now_ms:
            events = self._fallen(at_ms)
        self.behind_ms = max(0, self.now_ms - at_ms)
        return events

    def _fallen(self, at_ms: int) -> list[Raw]:
        by_ms = self.now_ms - at_ms
        events: list[Raw] = [{"event": "time_fell", "by_ms": by_ms}]
        # A leap may be a night without writers. It was a wrong clock if the time is now nearer to
        # the time before the leap.
        before_ms = next(
            (
                before
                for before in reversed(self.before_leaps_ms)
                if -LEAP_MS_MIN < at_ms - before < by_ms
            ),
            None,
        )
        if before_ms is not None:
            self.before_leaps_ms = []
            events.append(
                {"event": "time_leapt", "by_ms": self.now_ms - before_ms, "stands_ms": by_ms}
            )
        return events


STATE_KEY: Final = "sequence:"
"""Key of the state row with the sequence's own position."""

SNAPSHOT_RECORDS: Final = 100_000
"""Records between two snapshots of an archive: about a second of folding, so that a long
verification has many parts."""

_CHANNEL: Final = Source.CHANNEL.value
_RECORDS: Final = Table.RECORDS.value
_SNAPSHOTS: Final = Table.SNAPSHOTS.value
_HISTORIES: Final = frozenset(
    {Table.TRANSITIONS, Table.INTERVALS, Table.MOVES, Table.BROKER_EVENTS}
)


def nothing_lost(_first: int, _below: int) -> None:
    """Return None: a `Lost` for a log that is whole."""


class Sequence:
    """Turn arrivals into rows, one after the other."""

    def __init__(
        self,
        wants: frozenset[Table],
        begin: bytes | None = None,
        *,
        lost: Lost = nothing_lost,
        log: str | None = None,
        in_flight_max_ms: int = IN_FLIGHT_MAX_MS,
        snapshot_records: int = SNAPSHOT_RECORDS,
        concerns: Callable[[str], bool] = lambda _subject: True,
    ) -> None:
        """Begin at the log's first record, or at the snapshot `begin` (`channel.core.snapshot`).
        Raise `SnapshotDamaged`.

        * `wants`: the tables whose rows to emit.
        * `log`: the log's identity, if known. Evidence of a former log with the same name is
          ignored.
        * `in_flight_max_ms`: how long a bundle may be pending before it is overdue.
        * `snapshot_records`: records between two rows of `Table.SNAPSHOTS`.
        * `concerns`: whether `facts` yields the facts of a subject.
        """
        self._wants = wants
        self._wants_records, self._wants_snapshots = _RECORDS in wants, _SNAPSHOTS in wants
        self._membership = (
            Membership(in_flight_max_ms=in_flight_max_ms) if Table.FACTS in wants else None
        )
        self._histories = Histories() if wants & _HISTORIES else None
        self._parts = tuple(
            part for part in (self._membership, self._histories) if part is not None
        )
        self._log = log
        self._concerns = concerns
        self.facts_ms = 0
        """The log's time at the last entry that had facts, of any subject."""
        self._snapshot_records = snapshot_records
        self._seen = 0  # The greatest physical offset before the present entry.
        self._until_snapshot = 0  # The first record is followed by a snapshot.
        self._time = LogTime()
        self._folding = Folding(
            View() if begin is None else from_bytes(begin), lost=lost, replaced=self._replace_view
        )
        self._subjects = Subjects(self.view)
        self._rows = ViewRows(self.view)
        if begin is not None:
            self._begin_parts()

    @property
    def view(self) -> View:
        """The view of all that was folded. Read-only."""
        return self._folding.view

    @property
    def begin(self) -> int:
        """The offset after which the channel is known; 0 if from its first record."""
        return self._folding.begin

    @property
    def position(self) -> int:
        """The physical offset of the next entry to feed. After a gap the view may be ahead."""
        seen = self._folding.seen
        return (seen if seen >= FIRST_OFFSET else self.view.offset - self.view.base) + 1

    def reached(self, position: int) -> int:
        """Return the last offset that was looked at, if all entries below the physical `position`
        were fed. No entry counts after one at which the folding stopped for good.
        """
        view = self.view
        return view.offset if self._folding.stopped is not None else position - 1 + view.base

    def reach(self) -> dict[str, int]:
        """Return how far this sequence has come: the fields of `audit.reporting.Reach`."""
        audited = max(0, self.reached(self._folding.seen + 1))
        return {"audited": audited, "end": audited, "base": self.view.base}

    # --- the state ---

    def changed_rows(self) -> list[StateRow]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        standing = {
            **self._folding.standing(),
            "log_ms": self._time.now_ms,
            "before_leaps_ms": self._time.before_leaps_ms,
            "until_snapshot": self._until_snapshot,
        }
        rows: list[StateRow] = [(STATE_KEY, orjson.dumps(standing)), *self._rows.changed()]
        for part in self._parts:
            rows.extend(part.changed_rows())
        return rows

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Continue from the state in these rows: emit the rows that the sequence would emit next
        that returned them.

        Raise `CompactedSnapshotDamaged` if the rows do not fit together, and `KeyError` if they are
        not a sequence's state.
        """
        standing = orjson.loads(rows[STATE_KEY])
        self._folding.restore(view_from(rows, offset=standing["offset"]), standing)
        self._time = LogTime(now_ms=standing["log_ms"], before_leaps_ms=standing["before_leaps_ms"])
        self._until_snapshot = standing["until_snapshot"]
        self._subjects = Subjects(self.view)
        self._rows = ViewRows(self.view, written=True)
        for part in self._parts:
            part.restore(rows)

    def _replace_view(self, view: View) -> None:
        self._subjects = Subjects(view)
        self._rows = self._rows.replaced_by(view)
        self._until_snapshot = 0
        self._begin_parts()

    def _begin_parts(self) -> None:
        if self._membership is not None:
            self._membership.begin(*known_in(self.view))
        if self._histories is not None:
            self._histories.begin(self.view)

    # --- feeding ---

    def feed(self, arrivals: Iterable[Arrival]) -> Iterator[Emitted]:
        """Yield the rows of these arrivals: first those of the channel, by offset, then the others.
        At the end, all intervals that last, if that changed.

        Consume the iterator to its end, or discard the sequence. Raise what `lost` raises for an
        unavailable log.
        """
        for arrival in arrivals:
            if arrival.source != _CHANNEL:
                now = Now(
                    at_ms=self._time.now_ms,
                    view=self.view,
                    begin=self._folding.begin,
                    log=self._log,
                    stopped=self._folding.stopped is not None,
                    damage_of=self._damage_of,
                )
                yield from (
                    row for row in rows_of_note(arrival, now=now) if row.table in self._wants
                )
            elif arrival.offset >= FIRST_OFFSET:
                # Below it is a topic's note about its owner. No log issues that offset.
                yield from self._entry(arrival)
        if self._histories is not None and Table.INTERVALS in self._wants:
            yield from self._histories.lasting(self.view, self._time.now_ms)

    def _damage_of(self, bundle: str, token: object) -> int | None:
        return None if self._membership is None else self._membership.damage_of(bundle, token)

    def facts(self, arrivals: Iterable[Arrival]) -> Iterator[Fact]:
        """Yield the facts of these arrivals in the order of `feed`, for a host that checks them in
        the same process. The sequence wants nothing but `Table.FACTS`.
        """
        for arrival in arrivals:
            if arrival.source != _CHANNEL or arrival.offset < FIRST_OFFSET:
                for row in self.feed((arrival,)):
                    self.facts_ms = row.at_ms
                    if self._concerns(row.subject):
                        yield parse_fact(row.body or b"")
                continue
            _, offset, at_ms, value = arrival
            self._seen = self._folding.seen
            events = self._time.advance(at_ms)
            folded = self._folding.fold(offset, value or b"", events)
            if events or folded is not None:
                self.facts_ms = self._time.now_ms
            facts = self._facts(folded, offset, value, events, parsed(value or b""))
            # A checker may store what it gets, so it must get what JSON can hold.
            yield from map(_as_read, facts) if _may_be_deep(value) else facts
            if folded is not None and folded.verdict.changes:
                self._remember_gone(folded.verdict.changes)

    def _entry(self, arrival: Arrival) -> list[Emitted]:
        """Return the rows of one entry of the channel."""
        _, offset, at_ms, value = arrival
        self._seen = self._folding.seen
        is_new = offset > self._seen
        events = self._time.advance(at_ms)
        folded = self._folding.fold(offset, value or b"", events)
        rows: list[Emitted] = []
        record = None if folded is None or self._membership is not None else folded.record
        if (
            folded is not None
            and type(record) is Renewed
            and folded.verdict.reason is None
            and not events
        ):
            # Nine tenths of a channel are accepted renewals. They have no other rows.
            if self._wants_records and is_new:
                at_ms = self._time.now_ms
                rows.append(
                    Emitted(
                        _RECORDS,
                        record.key,
                        folded.offset,
                        0,
                        at_ms,
                        "renewed",
                        record.publisher,
                        ACCEPTED,
                        value,
                    )
                )
        else:
            rows = self._rows_of(folded, offset, value, events, is_new=is_new)
        if self._wants_snapshots and folded is not None:
            self._until_snapshot -= 1
            if self._until_snapshot <= 0:
                self._until_snapshot = self._snapshot_records
                rows += self._snapshot(folded.offset)
        return rows

    def _rows_of(
        self,
        folded: Folded | None,
        offset: int,
        value: bytes | None,
        events: list[Raw],
        *,
        is_new: bool,
    ) -> list[Emitted]:
        """Return the rows of one entry of the channel other than snapshots."""
        rows: list[Emitted] = []
        raw = (
            parsed(value or b"")
            if self._membership is not None or folded is None or type(folded.record) is Unreadable
            else None
        )
        if self._wants_records and is_new:
            rows.append(self._record(folded, offset, value, raw))
        if Table.GAPS in self._wants:
            rows += self._gaps(offset, events)
        if self._membership is not None:
            rows += (
                fact_row(fact, ordinal)
                for ordinal, fact in enumerate(self._facts(folded, offset, value, events, raw))
            )
        if folded is None:
            return rows
        changes = folded.verdict.changes
        if changes:
            self._remember_gone(changes)
            if self._histories is not None:
                rows += (
                    row
                    for row in self._histories.feed(folded, self._time.now_ms)
                    if row.table in self._wants
                )
        return rows

    def _snapshot(self, offset: int) -> Iterator[Emitted]:
        """Yield the rows of a snapshot: the view, and each bundle in it."""
        at_ms, view = self._time.now_ms, self.view
        yield Emitted(_SNAPSHOTS, "", offset, 0, at_ms, None, None, None, packed(view))
        if Table.BUNDLES not in self._wants:
            return
        brokers = {each.incarnation: each.broker for each in view.live_brokers()}
        for ordinal, name in enumerate(sorted(view.bundles)):
            each = view.bundles[name]
            row = {
                "namespace": each.namespace,
                "bundle": name,
                "phase": each.phase,
                "owner": None if each.owner is None else brokers.get(each.owner),
                "source": None if each.source is None else brokers.get(each.source),
                "server": None if each.server is None else brokers.get(each.server),
                "token": each.token,
                "last_offset": each.last,
            }
            body = orjson.dumps(row)
            yield Emitted(Table.BUNDLES, name, offset, ordinal, at_ms, None, None, None, body)

    def _gaps(self, offset: int, events: Iterable[Raw]) -> Iterator[Emitted]:
        for event in events:
            if event["event"] == "records_lost":
                row = {"first_offset": event["from"], "last_offset": event["to"] - 1}
                body, at_ms = orjson.dumps(row), self._time.now_ms
                place = offset + self.view.base
                yield Emitted(Table.GAPS, LOG, place, 0, at_ms, None, None, None, body)

    def _record(
        self, folded: Folded | None, offset: int, value: bytes | None, raw: Raw | None
    ) -> Emitted:
        if folded is None:
            record, verdict, place = decode(value or b""), NOT_FOLDED, offset + self.view.base
        else:
            record, verdict, place = folded.record, verdict_text(folded.verdict), folded.offset
        kind, at_ms = kind_of(record, raw), self._time.now_ms
        if isinstance(record, Unreadable):
            return Emitted(
                _RECORDS,
                claimed(raw, "key") or "",
                place,
                0,
                at_ms,
                kind,
                claimed(raw, "publisher"),
                verdict,
                value,
            )
        return Emitted(
            _RECORDS, record.key, place, 0, at_ms, kind, record.publisher, verdict, value
        )

    def _facts(
        self,
        folded: Folded | None,
        offset: int,
        value: bytes | None,
        events: list[Raw],
        raw: Raw | None,
    ) -> list[Fact]:
        """Return the facts of one entry: the events of the log, then the record's."""
        facts = [
            Fact(
                subject=LOG,
                source=_CHANNEL,
                offset=offset + self.view.base,
                at_ms=self._time.now_ms,
                after=event,
            )
            for event in events
            if self._concerns(LOG)
        ]
        if folded is not None:
            facts += self._facts_of_record(folded, value, raw)
        return facts

    def _gap_from(self, offset: int) -> int | None:
        """Return the first missing offset below the entry at `offset`; None if none is missing."""
        first = self._seen + 1 + self.view.base
        return first if self._seen >= FIRST_OFFSET and first < offset else None

    def _facts_of_record(
        self, folded: Folded, value: bytes | None, raw: Raw | None
    ) -> Iterator[Fact]:
        offset, at_ms, record, verdict = (
            folded.offset,
            self._time.now_ms,
            folded.record,
            verdict_text(folded.verdict),
        )
        assert self._membership is not None, "a sequence that makes facts has one"
        context = self._membership.context_of(offset, at_ms, raw, behind_ms=self._time.behind_ms)
        entry = referring(folded, is_damaged=value is None, gap_from=self._gap_from(offset))
        for event in self._membership.refer(entry, raw, context):
            if self._concerns(LOG):
                yield Fact(subject=LOG, source=_CHANNEL, offset=offset, at_ms=at_ms, after=event)
        further = self._membership.follow(offset, raw, verdict)
        if type(record) is Renewed and folded.verdict.accepted:
            who = subject("broker", record.key)
            if not further and not self._concerns(who):
                return  # Nine tenths of a channel.
            changes = {who: self._subjects.of_renewal(record, offset, folded.verdict)}
        else:
            changes = self._subjects.of_record(folded, raw, is_damaged=value is None)
            # The checker that compares the verdicts needs a fact, even of an entry that only
            # resembles a record.
            changes.setdefault(context["checked_by"], NAMED)
        for name in further:
            changes.setdefault(subject("bundle", name), CONCERNED)
        brief: Raw | None = None
        for who, (before, after, is_named) in changes.items():
            if not self._concerns(who):
                continue
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

    def _remember_gone(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            if not isinstance(change, LevelChanged) and change.after is None:
                self._rows.removed(f"{_KEY_PREFIXES[type(change)]}:{change.name}")


BRACKETS_MAX: Final = 200
"""Brackets in an entry that certainly fits into JSON, which nests at most 254 levels."""


def _may_be_deep(value: bytes | None) -> bool:
    return value is not None and value.count(b"[") + value.count(b"{") > BRACKETS_MAX


def _as_read(fact: Fact) -> Fact:
    return parse_fact(fact_bytes(fact))


def known_in(view: View) -> tuple[Known, Mapping[str, tuple[int | None, int | None, str]]]:
    """Return the arguments of `Membership.begin` for continuing after the last record in `view`."""
    brokers = {broker.broker: _member(broker) for broker in view.brokers.values()}
    known = Known(
        Whole(
            begun=view.offset,
            genesis=view.genesis,
            cluster=view.cluster,
            base=view.base,
            level=view.level,
            level_last=view.level_last,
            removed_at=view.removed_at,
        ),
        Incarnations(
            known_from=view.offset,
            offsets=sorted(member.incarnation for member in brokers.values()),
        ),
    )
    known.brokers.replace(brokers)
    known.namespaces.replace(
        {each.name: Namespace(each.status, each.last) for each in view.namespaces.values()}
    )
    known.policies.replace({each.name: each.last for each in view.policies.values()})
    return known, {
        bundle.name: (bundle.owner, bundle.source, bundle.state) for bundle in view.bundles.values()
    }


def _member(broker: BrokerEntry) -> Member:
    joined = broker.joined
    return Member(
        status=broker.status,
        incarnation=broker.incarnation,
        last=broker.last,
        sequence=broker.sequence,
        instance_id=joined.instance_id,
        lease_ms=joined.lease_ms,
        grace_ms=joined.grace_ms,
        renew_ms=joined.renew_ms,
        supported_level=joined.supported_level,
        extend_ms=joined.extend_ms,
        namespaces=None if joined.namespaces is None else list(joined.namespaces),
    )


_KEY_PREFIXES: Final[Mapping[type, str]] = {
    BundleChanged: "bundle",
    BrokerChanged: "broker",
    NamespaceChanged: "namespace",
    PolicyChanged: "policy",
}
