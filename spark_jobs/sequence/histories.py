"""Make rows of transitions, intervals, moves and broker events from the fold's changes.

`spark_jobs.tables.schema` defines their columns.

* An interval lasts while one incarnation serves one bundle (`BundleEntry.server`).
* A move lasts while a bundle is `transferring`, `handing_over` or `unloading`.
* Both are written when they end, and all intervals that last with every batch that changes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from equipoise.channel.core.entries import BrokerChanged, BundleChanged, BundleEntry, Change
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, BrokerRecord, Merge, Split, Unreadable
from equipoise.channel.core.view import View
from equipoise.spark_jobs.rules.facts import subject
from equipoise.spark_jobs.rules.memory import StateRow, StateTable
from equipoise.spark_jobs.sequence.rows import LASTING, Emitted, Table
from equipoise.spark_jobs.sequence.subjects import kind_of

_MOVING: Final[tuple[Phase, ...]] = ("transferring", "handing_over", "unloading")


# Tuples for speed: each move of a bundle makes several.


class _Ownership(NamedTuple):
    """Who serves a bundle now, and since when. `from_offset` and `from_at` are None if that was
    before the reading began.
    """

    broker: str | None
    incarnation: int
    token: int
    from_offset: int | None
    from_at: int | None


class _Transfer(NamedTuple):
    """A pending move of a bundle: who asked for it, and its progress. `owner` and `giver` are
    incarnations.
    """

    owner: int | None
    giver: int | None
    source: str | None
    destination: str | None
    asked_by: str | None
    reason: str | None
    begun_offset: int | None
    begun_at: int | None
    ready_offset: int | None = None
    ready_at: int | None = None


class _Moment(NamedTuple):
    """The current record. `dead` is the incarnation that it ended, and `dead_how` is `died` or
    `left`.
    """

    offset: int
    at_ms: int
    record: AnyRecord | Unreadable
    dead: int | None
    dead_how: str

    @property
    def requester(self) -> str | None:
        """Who wanted the record: an admin or a broker."""
        return (
            self.record.publisher if isinstance(self.record, Unreadable) else self.record.requester
        )


class Histories:
    """Make rows from the changes of each record. The state is rows of bytes, so that another
    process can continue.
    """

    def __init__(self) -> None:
        """Begin at the start of a log, where nobody serves anything."""
        self._holders = StateTable("holder:", int, str.encode, bytes.decode)
        self._ownerships = StateTable(
            "interval:", str, _to_bytes, lambda data: _Ownership(**orjson.loads(data))
        )
        self._transfers = StateTable(
            "transfer:", str, _to_bytes, lambda data: _Transfer(**orjson.loads(data))
        )
        self._tables = (self._holders, self._ownerships, self._transfers)
        self._is_changed = False

    def begin(self, view: View) -> None:
        """Continue from `view`. Drop intervals and moves that it lacks; those that are new
        began before it.
        """
        self._holders.replace({broker.incarnation: broker.broker for broker in view.live_brokers()})
        ownerships: dict[str, _Ownership] = {}
        transfers: dict[str, _Transfer] = {}
        for name, bundle in view.bundles.items():
            server, ownership, transfer = (
                bundle.server,
                self._ownerships.get(name),
                self._transfers.get(name),
            )
            if server is not None:
                same = ownership is not None and (ownership.incarnation, ownership.token) == (
                    server,
                    bundle.token,
                )
                ownerships[name] = (
                    ownership
                    if ownership is not None and same
                    else self._ownership(bundle, server, None, None)
                )
            if bundle.phase in _MOVING:
                same = transfer is not None and (transfer.owner, transfer.giver) == (
                    bundle.owner,
                    bundle.source,
                )
                transfers[name] = (
                    transfer if transfer is not None and same else self._transfer(bundle, None)
                )
        self._ownerships.replace(ownerships)
        self._transfers.replace(transfers)
        self._is_changed = True

    def lasting(self, view: View, at_ms: int) -> Iterator[Emitted]:
        """Yield all intervals that last in `view`, if any began or ended since the last call. One
        row without a body stands for none.
        """
        if not self._is_changed:
            return
        self._is_changed = False
        names = sorted(self._ownerships) or [""]
        for name in names:
            found, bundle = self._ownerships.get(name), view.bundles.get(name)
            body = (
                None
                if found is None or bundle is None
                else orjson.dumps(
                    {"namespace": bundle.namespace, "bundle": name, **found._asdict()}
                )
            )
            yield Emitted(
                Table.INTERVALS, name, view.offset, LASTING, at_ms, None, None, None, body
            )

    def feed(self, folded: Folded, at_ms: int) -> Iterator[Emitted]:
        """Yield the rows of an accepted record with changes. `at_ms` is the log's time, which never
        falls.
        """
        changes = folded.verdict.changes
        moment = _Moment(
            offset=folded.offset, at_ms=at_ms, record=folded.record, dead=None, dead_how="died"
        )
        for broker in changes:
            if isinstance(broker, BrokerChanged):
                how = (
                    "left"
                    if isinstance(folded.record, BrokerRecord) and folded.record.status == "left"
                    else "died"
                )
                moment = moment._replace(dead=broker.dead, dead_how=how)
                if broker.after is not None and broker.after.live:
                    self._holders[broker.after.incarnation] = broker.name
        rows: dict[Table, int] = {}
        for event in _broker_events(changes, moment):
            ordinal = rows[Table.BROKER_EVENTS] = rows.get(Table.BROKER_EVENTS, -1) + 1
            yield _emitted(
                Table.BROKER_EVENTS, subject("broker", event["broker"]), moment, ordinal, event
            )
        for bundle in changes:
            if isinstance(bundle, BundleChanged):
                for table, row in self._rows(bundle, moment):
                    ordinal = rows[table] = rows.get(table, -1) + 1
                    yield _emitted(table, subject("bundle", bundle.name), moment, ordinal, row)
        if moment.dead is not None:
            self._holders.remove(moment.dead)

    def changed_rows(self) -> list[StateRow]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        return [row for table in self._tables for row in table.changed_rows()]

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Restore the state from these rows. Ignore rows of other parts."""
        self._is_changed = True
        for table in self._tables:
            table.restore(rows)

    def _rows(
        self, change: BundleChanged, moment: _Moment
    ) -> Iterator[tuple[Table, dict[str, Any]]]:
        before, after = change.before, change.after
        there = after or before
        if there is None:
            return
        what = {"namespace": there.namespace, "bundle": there.name}
        yield Table.TRANSITIONS, {**what, **self._transition(before, after, moment)}
        served_by, serves = _server(before), _server(after)
        if served_by != serves:
            self._is_changed = True
            if served_by is not None:
                yield (
                    Table.INTERVALS,
                    {**what, **self._ended_ownership(change, served_by, moment)},
                )
            if after is not None and serves is not None:
                self._ownerships[after.name] = self._ownership(
                    after, serves, moment.offset, moment.at_ms
                )
        was, is_now = (
            before is not None and before.phase in _MOVING,
            after is not None and after.phase in _MOVING,
        )
        if before is not None and was and not is_now:
            yield Table.MOVES, {**what, **self._ended_transfer(before, after, moment)}
        elif after is not None and is_now:
            self._transfers[after.name] = (
                self._moved_on(after, moment) if was else self._transfer(after, moment)
            )

    def _transition(
        self, before: BundleEntry | None, after: BundleEntry | None, moment: _Moment
    ) -> dict[str, Any]:
        there = after or before
        return {
            "phase_before": None if before is None else before.phase,
            "phase_after": None if after is None else after.phase,
            "owner_before": None if before is None else self._name(before.owner),
            "owner_after": None if after is None else self._name(after.owner),
            "source_before": None if before is None else self._name(before.source),
            "source_after": None if after is None else self._name(after.source),
            "token": None if there is None else there.token,
            "kind": None if isinstance(moment.record, Unreadable) else kind_of(moment.record),
            "publisher": moment.requester,
            "reason": _reason(moment.record),
        }

    def _ended_ownership(
        self, change: BundleChanged, served_by: int, moment: _Moment
    ) -> dict[str, Any]:
        before = change.before
        ownership = self._ownerships.remove(change.name)
        if ownership is None and before is not None:
            ownership = self._ownership(before, served_by, None, None)
        row: dict[str, Any] = {} if ownership is None else ownership._asdict()
        began = row.get("from_at")
        return {
            **row,
            "to_offset": moment.offset,
            "to_at": moment.at_ms,
            "how": _how_ownership_ended(change, served_by, moment),
            "duration_ms": None if began is None else moment.at_ms - began,
        }

    def _ended_transfer(
        self, before: BundleEntry, after: BundleEntry | None, moment: _Moment
    ) -> dict[str, Any]:
        transfer = self._transfers.remove(before.name) or self._transfer(before, None)
        result = _result(before, after, moment)
        row = transfer._asdict()
        del row["owner"], row["giver"]
        is_paused = result == "done" and transfer.ready_at is not None
        return {
            **row,
            "ended_offset": moment.offset,
            "ended_at": moment.at_ms,
            "result": result,
            "prepare_ms": None
            if transfer.ready_at is None or transfer.begun_at is None
            else transfer.ready_at - transfer.begun_at,
            "pause_ms": moment.at_ms - transfer.ready_at
            if is_paused and transfer.ready_at is not None
            else None,
            "duration_ms": None if transfer.begun_at is None else moment.at_ms - transfer.begun_at,
        }

    def _ownership(
        self, bundle: BundleEntry, server: int, offset: int | None, at_ms: int | None
    ) -> _Ownership:
        return _Ownership(
            broker=self._name(server),
            incarnation=server,
            token=bundle.token,
            from_offset=offset,
            from_at=at_ms,
        )

    def _transfer(self, bundle: BundleEntry, moment: _Moment | None) -> _Transfer:
        return _Transfer(
            owner=bundle.owner,
            giver=bundle.source,
            source=self._name(bundle.source),
            destination=self._name(bundle.owner),
            asked_by=None if moment is None else moment.requester,
            reason=None if moment is None else _reason(moment.record),
            begun_offset=None if moment is None else moment.offset,
            begun_at=None if moment is None else moment.at_ms,
        )

    def _moved_on(self, after: BundleEntry, moment: _Moment) -> _Transfer:
        transfer = self._transfers.get(after.name) or self._transfer(after, None)
        return (
            transfer._replace(ready_offset=moment.offset, ready_at=moment.at_ms)
            if after.phase == "handing_over"
            else transfer
        )

    def _name(self, incarnation: int | None) -> str | None:
        return None if incarnation is None else self._holders.get(incarnation)


def _broker_events(changes: Iterable[Change], moment: _Moment) -> Iterator[dict[str, Any]]:
    for change in changes:
        if isinstance(change, BrokerChanged) and change.after is not None:
            row = {
                "broker": change.name,
                "publisher": moment.requester,
                "reason": _reason(moment.record),
            }
            has_joined = change.after.incarnation == moment.offset
            if has_joined and change.dead is not None:
                yield {**row, "incarnation": change.dead, "event": "replaced"}
            event = "joined" if has_joined else change.after.status
            yield {**row, "incarnation": change.after.incarnation, "event": event}


def _to_bytes(value: _Ownership | _Transfer) -> bytes:
    return orjson.dumps(value._asdict())


def _server(entry: BundleEntry | None) -> int | None:
    return None if entry is None else entry.server


def _reason(record: AnyRecord | Unreadable) -> str | None:
    return getattr(record, "reason", None)


def _how_ownership_ended(change: BundleChanged, served_by: int, moment: _Moment) -> str:
    if served_by == moment.dead:
        return moment.dead_how
    if change.after is None:
        return (
            "split"
            if isinstance(moment.record, Split)
            else "merged"
            if isinstance(moment.record, Merge)
            else "deleted"
        )
    return "transferred" if change.after.server is not None else "unloaded"


def _result(before: BundleEntry, after: BundleEntry | None, moment: _Moment) -> str:
    if moment.dead is not None:
        return f"{'source' if before.source == moment.dead else 'destination'}_{moment.dead_how}"
    if before.phase == "unloading":
        return "unloaded"
    return "done" if after is not None and after.owner == before.owner else "cancelled"


def _emitted(
    table: Table, who: str, moment: _Moment, ordinal: int, row: Mapping[str, Any]
) -> Emitted:
    return Emitted(
        table=table,
        subject=who,
        offset=moment.offset,
        ordinal=ordinal,
        at_ms=moment.at_ms,
        kind=None,
        publisher=None,
        verdict=None,
        body=orjson.dumps(row),
    )
