"""Make rows of transitions, ownership intervals and transfers from the fold's changes.

`spark_jobs.archive.tables.schema` defines their columns.

* An interval lasts while one incarnation serves one bundle (`BundleEntry.server`).
* A transfer lasts while a bundle is `transferring`, `handing_over` or `unloading`.
* Both are written when they end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from equipoise.channel.core.entries import BrokerChanged, BundleChanged, BundleEntry
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, BrokerRecord, Merge, Split, Unreadable
from equipoise.channel.core.view import View
from equipoise.spark_jobs.rules.facts import subject
from equipoise.spark_jobs.sequence.emitted import Emitted, Table
from equipoise.spark_jobs.sequence.subjects import kind_of

_INTERVAL: Final = "interval:"
_TRANSFER: Final = "transfer:"
_HOLDER: Final = "holder:"

_ON_ITS_WAY: Final[tuple[Phase, ...]] = ("transferring", "handing_over", "unloading")


# Tuples for speed: each move of a bundle makes several.


class _Ownership(NamedTuple):
    """Who serves a bundle now, and since when. `from_offset` and `from_at` are None if that was before the reading began."""

    broker: str | None
    incarnation: int
    token: int
    from_offset: int | None
    from_at: int | None


class _Way(NamedTuple):
    """A pending move of a bundle: who asked for it, and its progress. `owner` and `giver` are incarnations."""

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
    """The current record. `dead` is the incarnation that it ended, and `dead_how` is `died` or `left`."""

    offset: int
    at_ms: int
    record: AnyRecord | Unreadable
    dead: int | None
    dead_how: str


class Histories:
    """Make rows from the changes of each record. The state is rows of bytes, so that another process can continue."""

    def __init__(self) -> None:
        """Begin at the start of a log, where nobody serves anything."""
        self._holders: dict[int, str] = {}
        self._ownerships: dict[str, _Ownership] = {}
        self._ways: dict[str, _Way] = {}
        self._changed: dict[str, None] = {}

    def begin(self, view: View) -> None:
        """Continue from `view`. Drop intervals and transfers that it lacks; those that are new began before it."""
        for key in self._keys():
            self._changed[key] = None
        self._holders = {broker.incarnation: broker.broker for broker in view.live_brokers()}
        ownerships, ways = self._ownerships, self._ways
        self._ownerships, self._ways = {}, {}
        for name, bundle in view.bundles.items():
            server = bundle.server
            if server is not None:
                known = ownerships.get(name)
                same = known is not None and known.incarnation == server and known.token == bundle.token
                self._ownerships[name] = known if known is not None and same else self._ownership(bundle, server, None, None)
            if bundle.phase in _ON_ITS_WAY:
                way = ways.get(name)
                same = way is not None and (way.owner, way.giver) == (bundle.owner, bundle.source)
                self._ways[name] = way if way is not None and same else self._way(bundle, None)
        for key in self._keys():
            self._changed[key] = None

    def feed(self, folded: Folded, at_ms: int) -> Iterator[Emitted]:
        """Yield the rows of an accepted record with changes. `at_ms` is the log's time, which never falls."""
        changes = folded.verdict.changes
        moment = _Moment(offset=folded.offset, at_ms=at_ms, record=folded.record, dead=None, dead_how="died")
        for broker in changes:
            if isinstance(broker, BrokerChanged):
                how = "left" if isinstance(folded.record, BrokerRecord) and folded.record.status == "left" else "died"
                moment = moment._replace(dead=broker.dead, dead_how=how)
                if broker.after is not None and broker.after.live:
                    self._put_holder(broker.after.incarnation, broker.name)
        rows: dict[Table, int] = {}
        for bundle in changes:
            if isinstance(bundle, BundleChanged):
                for table, row in self._rows(bundle, moment):
                    ordinal = rows[table] = rows.get(table, -1) + 1
                    yield _emitted(table, bundle.name, moment, ordinal, row)
        if moment.dead is not None:
            self._put_holder(moment.dead, None)

    def changed_rows(self) -> Iterable[tuple[str, bytes | None]]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        keys, self._changed = list(self._changed), {}
        return [(key, self._row(key)) for key in keys]

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Restore the state from these rows. Ignore rows of other parts."""
        for key, data in rows.items():
            prefix, _, name = key.partition(":")
            match f"{prefix}:":
                case "holder:":
                    self._holders[int(name)] = data.decode()
                case "interval:":
                    self._ownerships[name] = _Ownership(**orjson.loads(data))
                case "transfer:":
                    self._ways[name] = _Way(**orjson.loads(data))
                case _:
                    pass

    def _rows(self, change: BundleChanged, moment: _Moment) -> Iterator[tuple[Table, dict[str, Any]]]:
        before, after = change.before, change.after
        there = after or before
        if there is None:
            return
        what = {"namespace": there.namespace, "bundle": there.name}
        yield Table.TRANSITIONS, {**what, **self._transition(before, after, moment)}
        served_by, serves = _server(before), _server(after)
        if served_by != serves:
            if served_by is not None:
                yield Table.OWNERSHIP_INTERVALS, {**what, **self._ended_ownership(change, served_by, moment)}
            if after is not None and serves is not None:
                self._put_ownership(after.name, self._ownership(after, serves, moment.offset, moment.at_ms))
        was, is_now = before is not None and before.phase in _ON_ITS_WAY, after is not None and after.phase in _ON_ITS_WAY
        if before is not None and was and not is_now:
            yield Table.TRANSFERS, {**what, **self._ended_way(before, after, moment)}
        elif after is not None and is_now:
            self._put_way(after.name, self._moved_on(after, moment) if was else self._way(after, moment))

    def _transition(self, before: BundleEntry | None, after: BundleEntry | None, moment: _Moment) -> dict[str, Any]:
        there = after or before
        return {
            "phase_before": None if before is None else before.phase,
            "phase_after": None if after is None else after.phase,
            "owner_before": None if before is None else self._name(before.owner),
            "owner_after": None if after is None else self._name(after.owner),
            "source_before": None if before is None else self._name(before.source),
            "source_after": None if after is None else self._name(after.source),
            "token": None if there is None else there.token,
            "kind": kind_of(moment.record, None),
            "publisher": moment.record.publisher,
            "reason": _reason(moment.record),
        }

    def _ended_ownership(self, change: BundleChanged, served_by: int, moment: _Moment) -> dict[str, Any]:
        before = change.before
        ownership = self._ownerships.pop(change.name, None)
        self._changed[f"{_INTERVAL}{change.name}"] = None
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

    def _ended_way(self, before: BundleEntry, after: BundleEntry | None, moment: _Moment) -> dict[str, Any]:
        way = self._ways.pop(before.name, None) or self._way(before, None)
        self._changed[f"{_TRANSFER}{before.name}"] = None
        result = _how_way_ended(before, after, moment)
        row = way._asdict()
        del row["owner"], row["giver"]
        is_paused = result == "done" and way.ready_at is not None
        return {
            **row,
            "ended_offset": moment.offset,
            "ended_at": moment.at_ms,
            "result": result,
            "pause_ms": moment.at_ms - way.ready_at if is_paused and way.ready_at is not None else None,
            "duration_ms": None if way.begun_at is None else moment.at_ms - way.begun_at,
        }

    def _ownership(self, bundle: BundleEntry, server: int, offset: int | None, at_ms: int | None) -> _Ownership:
        return _Ownership(broker=self._name(server), incarnation=server, token=bundle.token, from_offset=offset, from_at=at_ms)

    def _way(self, bundle: BundleEntry, moment: _Moment | None) -> _Way:
        return _Way(
            owner=bundle.owner,
            giver=bundle.source,
            source=self._name(bundle.source),
            destination=self._name(bundle.owner),
            asked_by=None if moment is None else moment.record.publisher,
            reason=None if moment is None else _reason(moment.record),
            begun_offset=None if moment is None else moment.offset,
            begun_at=None if moment is None else moment.at_ms,
        )

    def _moved_on(self, after: BundleEntry, moment: _Moment) -> _Way:
        way = self._ways.get(after.name) or self._way(after, None)
        return way._replace(ready_offset=moment.offset, ready_at=moment.at_ms) if after.phase == "handing_over" else way

    def _name(self, incarnation: int | None) -> str | None:
        return None if incarnation is None else self._holders.get(incarnation)

    def _put_holder(self, incarnation: int, broker: str | None) -> None:
        if broker is None:
            self._holders.pop(incarnation, None)
        else:
            self._holders[incarnation] = broker
        self._changed[f"{_HOLDER}{incarnation}"] = None

    def _put_ownership(self, bundle: str, ownership: _Ownership) -> None:
        self._ownerships[bundle] = ownership
        self._changed[f"{_INTERVAL}{bundle}"] = None

    def _put_way(self, bundle: str, way: _Way) -> None:
        self._ways[bundle] = way
        self._changed[f"{_TRANSFER}{bundle}"] = None

    def _keys(self) -> list[str]:
        holders = [f"{_HOLDER}{incarnation}" for incarnation in self._holders]
        return [*holders, *(f"{_INTERVAL}{name}" for name in self._ownerships), *(f"{_TRANSFER}{name}" for name in self._ways)]

    def _row(self, key: str) -> bytes | None:
        prefix, _, name = key.partition(":")
        if prefix == "holder":
            broker = self._holders.get(int(name))
            return None if broker is None else broker.encode()
        value = self._ownerships.get(name) if prefix == "interval" else self._ways.get(name)
        return None if value is None else orjson.dumps(value._asdict())


def _server(entry: BundleEntry | None) -> int | None:
    return None if entry is None else entry.server


def _reason(record: AnyRecord | Unreadable) -> str | None:
    return getattr(record, "reason", None)


def _how_ownership_ended(change: BundleChanged, served_by: int, moment: _Moment) -> str:
    if served_by == moment.dead:
        return moment.dead_how
    if change.after is None:
        return "split" if isinstance(moment.record, Split) else "merged" if isinstance(moment.record, Merge) else "deleted"
    return "transferred" if change.after.server is not None else "unloaded"


def _how_way_ended(before: BundleEntry, after: BundleEntry | None, moment: _Moment) -> str:
    if moment.dead is not None:
        return f"{'source' if before.source == moment.dead else 'destination'}_{moment.dead_how}"
    if before.phase == "unloading":
        return "unloaded"
    return "done" if after is not None and after.owner == before.owner else "cancelled"


def _emitted(table: Table, bundle: str, moment: _Moment, ordinal: int, row: Mapping[str, Any]) -> Emitted:
    return Emitted(
        table=table,
        subject=subject("bundle", bundle),
        offset=moment.offset,
        ordinal=ordinal,
        at_ms=moment.at_ms,
        kind=None,
        publisher=None,
        verdict=None,
        body=orjson.dumps(row),
    )
