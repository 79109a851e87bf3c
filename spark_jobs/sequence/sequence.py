"""Turn the whole log into rows or facts in batches, with a state that outlives the process.

* `folding` folds the channel and stores the view, `LogTime` keeps its time.
* `FactSequence`: `subjects` chooses the facts of a record. `spark_jobs.rules.membership` adds the
  audit's own view to them.
* `RowSequence`: `histories` makes the rows of transitions, intervals, moves and broker events,
  `notes` those of notes.

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
from equipoise.spark_jobs.rules.memory import Stateful, StateRow
from equipoise.spark_jobs.rules.rule import NOT_FOLDED
from equipoise.spark_jobs.sequence.folding import Folding, Lost, ViewRows, view_from
from equipoise.spark_jobs.sequence.histories import Histories
from equipoise.spark_jobs.sequence.notes import content_of, rows_of_note
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Source, Table
from equipoise.spark_jobs.sequence.snapshots import packed
from equipoise.spark_jobs.sequence.subjects import (
    CONCERNED,
    LOG,
    NAMED,
    Subjects,
    bundle_in_fact,
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


def nothing_lost(_first: int, _below: int) -> None:
    """Return None: a `Lost` for a log that is whole."""


class Sequence:
    """Fold the entries of a channel one after the other: what its rows and its facts share."""

    def __init__(self, part: Stateful, begin: bytes | None, *, lost: Lost) -> None:
        """Begin at the log's first record, or at the snapshot `begin` (`channel.core.snapshot`).
        Raise `SnapshotDamaged`.
        """
        self._part = part
        self._until_snapshot = 0  # The first record is followed by a snapshot.
        self._time = LogTime()
        self._folding = Folding(
            View() if begin is None else from_bytes(begin), lost=lost, replaced=self._replace_view
        )
        self._rows = ViewRows(self.view)
        self._follow_view()
        if begin is not None:
            self._begin()

    def _begin(self) -> None:
        """Continue from a view that replaces the one before."""
        raise NotImplementedError

    def _follow_view(self) -> None:
        """Use another object as the view."""

    @property
    def view(self) -> View:
        """The view of all that was folded. Read-only."""
        return self._folding.view

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

    def changed_rows(self) -> list[StateRow]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        standing = {
            **self._folding.standing(),
            "log_ms": self._time.now_ms,
            "before_leaps_ms": self._time.before_leaps_ms,
            "until_snapshot": self._until_snapshot,
        }
        own = [(STATE_KEY, orjson.dumps(standing)), *self._rows.changed()]
        return [*own, *self._part.changed_rows()]

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Continue from the state in these rows: emit what the sequence would emit next that
        returned them.

        Raise `CompactedSnapshotDamaged` if the rows do not fit together, and `KeyError` if they are
        not a sequence's state.
        """
        standing = orjson.loads(rows[STATE_KEY])
        self._folding.restore(view_from(rows, offset=standing["offset"]), standing)
        self._time = LogTime(now_ms=standing["log_ms"], before_leaps_ms=standing["before_leaps_ms"])
        self._until_snapshot = standing["until_snapshot"]
        self._rows = ViewRows(self.view, written=True)
        self._follow_view()
        self._part.restore(rows)

    def _replace_view(self, view: View) -> None:
        self._rows = self._rows.replaced_by(view)
        self._until_snapshot = 0
        self._follow_view()
        self._begin()

    def _folded(self, arrival: Arrival) -> tuple[Folded | None, list[Raw]]:
        """Fold an entry of the channel. Return the result, None if it is not folded, and the events
        of the log. Raise what `lost` raises for an unavailable log.
        """
        events = self._time.advance(arrival.at_ms)
        folded = self._folding.fold(arrival.offset, arrival.value or b"", events)
        for change in () if folded is None else folded.verdict.changes:
            if not isinstance(change, LevelChanged) and change.after is None:
                self._rows.removed(f"{_KEY_PREFIXES[type(change)]}:{change.name}")
        return folded, events


class RowSequence(Sequence):
    """Turn arrivals into rows of the archive's tables."""

    def __init__(
        self,
        begin: bytes | None = None,
        *,
        lost: Lost = nothing_lost,
        snapshot_records: int = SNAPSHOT_RECORDS,
    ) -> None:
        """See `Sequence`. `snapshot_records` are the records between two rows of
        `Table.SNAPSHOTS`.
        """
        self._histories = Histories()
        self._snapshot_records = snapshot_records
        super().__init__(self._histories, begin, lost=lost)

    def _begin(self) -> None:
        self._histories.begin(self.view)

    def feed(self, arrivals: Iterable[Arrival]) -> Iterator[Emitted]:
        """Yield the rows of these arrivals. At the end, all intervals that last, if that changed.

        Consume the iterator to its end, or discard the sequence. Raise what `lost` raises for an
        unavailable log.
        """
        for arrival in arrivals:
            if arrival.source != _CHANNEL:
                yield from rows_of_note(arrival)
            elif arrival.offset >= FIRST_OFFSET:
                # Below it is a topic's note about its owner. No log issues that offset.
                yield from self._entry(arrival)
        yield from self._histories.lasting(self.view, self._time.now_ms)

    def _entry(self, arrival: Arrival) -> Iterator[Emitted]:
        """Yield the rows of one entry of the channel."""
        is_new = arrival.offset > self._folding.seen
        folded, events = self._folded(arrival)
        if is_new:
            yield self._record(folded, arrival.offset, arrival.value)
        for event in events:
            if event["event"] == "records_lost":
                row = {"first_offset": event["from"], "last_offset": event["to"] - 1}
                offset = arrival.offset + self.view.base
                yield self._emitted(Table.GAPS, LOG, offset, 0, orjson.dumps(row))
        if folded is None:
            return
        if folded.verdict.changes:
            yield from self._histories.feed(folded, self._time.now_ms)
        self._until_snapshot -= 1
        if self._until_snapshot <= 0:
            self._until_snapshot = self._snapshot_records
            yield from self._snapshot(folded.offset)

    def _emitted(
        self, table: Table, subject: str, offset: int, ordinal: int, body: bytes
    ) -> Emitted:
        return Emitted(table, subject, offset, ordinal, self._time.now_ms, None, None, None, body)

    def _snapshot(self, offset: int) -> Iterator[Emitted]:
        """Yield the rows of a snapshot: the view, and each bundle in it."""
        view = self.view
        yield self._emitted(Table.SNAPSHOTS, "", offset, 0, packed(view))
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
            yield self._emitted(Table.BUNDLES, name, offset, ordinal, orjson.dumps(row))

    def _record(self, folded: Folded | None, offset: int, value: bytes | None) -> Emitted:
        if folded is None:
            record, verdict, place = decode(value or b""), NOT_FOLDED, offset + self.view.base
        else:
            record, verdict, place = folded.record, verdict_text(folded.verdict), folded.offset
        if isinstance(record, Unreadable):
            raw = parsed(value or b"")
            key, kind = claimed(raw, "key") or "", claimed(raw, "kind")
            publisher = claimed(raw, "publisher")
        else:
            key, kind, publisher = record.key, kind_of(record), record.publisher
        now_ms, behind_ms = self._time.now_ms, self._time.behind_ms
        return Emitted(
            Table.RECORDS, key, place, 0, now_ms, kind, publisher, verdict, value, behind_ms
        )


class FactSequence(Sequence):
    """Turn arrivals into facts for checkers."""

    def __init__(
        self,
        begin: bytes | None = None,
        *,
        lost: Lost = nothing_lost,
        log: str | None = None,
        in_flight_max_ms: int = IN_FLIGHT_MAX_MS,
        concerns: Callable[[str], bool] = lambda _subject: True,
    ) -> None:
        """See `Sequence`.

        * `log`: the log's identity, if known. Evidence of a former log with the same name is
          ignored.
        * `in_flight_max_ms`: how long a bundle may be pending before it is overdue.
        * `concerns`: whether to yield the facts of a subject.
        """
        self._membership = Membership(in_flight_max_ms=in_flight_max_ms)
        self._log = log
        self._concerns = concerns
        self.facts_ms = 0
        """The log's time at the last entry that had facts, of any subject."""
        super().__init__(self._membership, begin, lost=lost)

    def _begin(self) -> None:
        self._membership.begin(*known_in(self.view))

    def _follow_view(self) -> None:
        self._subjects = Subjects(self.view)

    def feed(self, arrivals: Iterable[Arrival]) -> Iterator[Fact]:
        """Yield the facts of these arrivals. Consume and raise as `RowSequence.feed`."""
        facts: Iterable[Fact]
        for arrival in arrivals:
            if arrival.source != _CHANNEL:
                facts = self._facts_of_note(arrival)
            elif arrival.offset >= FIRST_OFFSET:
                facts = self._facts_of_entry(arrival)
            else:
                continue
            # A checker may store what it gets, so it must get what JSON can hold.
            yield from map(_as_read, facts) if _may_be_deep(arrival.value) else facts

    def _facts_of_note(self, arrival: Arrival) -> Iterator[Fact]:
        """Yield the fact of a note. It has the log's time, so that checkers use one clock."""
        at_ms, view = self._time.now_ms, self.view
        content = content_of(arrival)
        if content is None:
            self.facts_ms = at_ms
            if self._concerns(LOG):
                yield Fact(
                    subject=LOG,
                    source=arrival.source,
                    offset=arrival.offset,
                    at_ms=at_ms,
                    after={"event": "unreadable_note", "source": arrival.source},
                    context={"reached": max(view.offset, 0)},
                )
        elif arrival.source == Source.SERVING and isinstance(content, Mapping):
            self.facts_ms = at_ms
            bundle = content["bundle"]
            who, entry = subject("bundle", bundle), view.bundles.get(bundle)
            follows = self._membership.damage_of(bundle, content.get("token"))
            context: dict[str, object] = {
                "begin": self._folding.begin,
                "reached": view.offset,
                "received_ms": arrival.at_ms,
                **({} if self._log is None else {"log": self._log}),
                **({} if self._folding.stopped is None else {"stopped": True}),
                **({} if follows is None else {"follows": follows}),
            }
            if self._concerns(who):
                yield Fact(
                    subject=who,
                    source=arrival.source,
                    offset=arrival.offset,
                    at_ms=at_ms,
                    record=content,
                    after=None if entry is None else bundle_in_fact(entry),
                    context=context,
                )

    def _facts_of_entry(self, arrival: Arrival) -> list[Fact]:
        """Return the facts of an entry of the channel: the events of the log, then the
        record's.
        """
        seen = self._folding.seen
        folded, events = self._folded(arrival)
        if events or folded is not None:
            self.facts_ms = self._time.now_ms
        facts = [
            Fact(
                subject=LOG,
                source=_CHANNEL,
                offset=arrival.offset + self.view.base,
                at_ms=self._time.now_ms,
                after=event,
            )
            for event in events
            if self._concerns(LOG)
        ]
        if folded is not None:
            first = seen + 1 + self.view.base
            gap_from = first if seen >= FIRST_OFFSET and first < folded.offset else None
            facts += self._facts_of_record(folded, arrival.value, gap_from)
        return facts

    def _facts_of_record(
        self, folded: Folded, value: bytes | None, gap_from: int | None
    ) -> Iterator[Fact]:
        """Yield the facts of a record. `gap_from` is the first missing offset before it; None if
        none is missing.
        """
        offset, at_ms, record, verdict = (
            folded.offset,
            self._time.now_ms,
            folded.record,
            verdict_text(folded.verdict),
        )
        raw = parsed(value or b"")
        context = self._membership.context_of(offset, at_ms, raw, behind_ms=self._time.behind_ms)
        entry = referring(folded, is_damaged=value is None, gap_from=gap_from)
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
