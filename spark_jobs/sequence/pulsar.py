"""Make the archive's rows from the messages of a recorded Pulsar cluster: fold them, and audit each
by the rules written a second time.

`spark_jobs.tables.schema` defines the columns. `equipoise report` draws the same page
for a cluster of Pulsar. Pulsar's records name no author and no reason, and a broker has no
incarnation: these columns are null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from equipoise.pulsar_cluster.records import (
    ASSIGNING,
    BROKER_LOADS,
    DELETED,
    FREE,
    INIT,
    OWNED,
    RELEASING,
    SPLITTING,
    TOP_BUNDLES,
    Message,
    StateRecord,
    message_of,
)
from equipoise.pulsar_cluster.table import Rejection, StateChange, server_of
from equipoise.pulsar_cluster.table import Table as Bundles
from equipoise.spark_jobs.rules import pulsar as rules
from equipoise.spark_jobs.rules.facts import subject
from equipoise.spark_jobs.rules.rule import ACCEPTED
from equipoise.spark_jobs.sequence.rows import LASTING, Emitted, Table, finding_row

MessageRow = tuple[int, str, str, int, bytes | None, str]
"""Offset, message id, bundle, Unix time in ms, value and producer of a message, as a recording has
them."""

_PHASES: Final[Mapping[str, str]] = {
    OWNED: "owned",
    SPLITTING: "splitting",
    ASSIGNING: "assigning",
    RELEASING: "transferring",
}
_USES: Final = {
    "cpu": "cpu",
    "memory": "memory",
    "directMemory": "direct_memory",
    "bandwidthIn": "bandwidth_in",
    "bandwidthOut": "bandwidth_out",
}
_UNREADABLE: Final = Rejection.UNREADABLE.value


class _Standing(NamedTuple):
    """A bundle's state in the terms of our own channel."""

    phase: str | None
    owner: str | None
    source: str | None


class _Ownership(NamedTuple):
    broker: str
    token: int
    from_offset: int
    from_at: int


class _Move(NamedTuple):
    source: str | None
    destination: str | None
    reason: str | None
    begun_offset: int
    begun_at: int


class PulsarRows:
    """Makes the rows of messages in the order of their offsets. All bundles of a namespace must
    come to the same object.
    """

    def __init__(self, beginnings: Sequence[int] = ()) -> None:
        """Begin before the first message. `beginnings` are the offsets before which messages are
        lost, rising.
        """
        self._beginnings = list(beginnings)
        self._begin()

    def _begin(self) -> None:
        self._bundles = Bundles()
        self._audit = rules.BundleAudit()
        self._ownerships: dict[str, _Ownership] = {}
        self._moves: dict[str, _Move] = {}
        self._children: dict[str, tuple[str, ...]] = {}

    def feed(self, row: MessageRow) -> Iterator[Emitted]:
        """Yield the rows of one message."""
        message = message_of(row)
        # What was open when messages were lost has no known end.
        while self._beginnings and message.offset >= self._beginnings[0]:
            del self._beginnings[0]
            self._begin()
        change = self._bundles.fold(message)
        verdict = ACCEPTED if change.rejection is None else change.rejection.value
        yield _record(message, row[4], verdict)
        offset, _, bundle, published_ms, value, producer = row
        findings, sighting = self._audit.check(
            rules.Message(offset, bundle, published_ms, producer, value), verdict
        )
        for finding in findings:
            yield finding_row(finding)
        yield _emitted(Table.FACTS, message, 0, sighting.to_bytes())
        if change.rejection is None:
            numbers: dict[Table, int] = {}
            for table, name, columns in self._rows(change):
                ordinal = numbers[table] = numbers.get(table, -1) + 1
                body = {"namespace": name.rpartition("/")[0], "bundle": name, **columns}
                yield _emitted(table, message, ordinal, orjson.dumps(body))

    def end(self, newest_ms: int) -> Iterator[Emitted]:
        """Yield the intervals that last, and the findings that show only after the last message.
        `newest_ms` is the newest time of the recording (Unix time).
        """
        for name in sorted(self._ownerships):
            held = self._ownerships[name]
            row = {"namespace": name.rpartition("/")[0], "bundle": name, **held._asdict()}
            yield Emitted(
                Table.INTERVALS,
                subject("bundle", name),
                0,  # The state of all namespaces is one.
                LASTING,
                held.from_at,
                None,
                None,
                None,
                orjson.dumps(row),
            )
        # Else messages were lost after the last one here, so nothing is known of its bundles.
        if not self._beginnings:
            yield from map(finding_row, self._audit.end(newest_ms))

    def _rows(self, change: StateChange) -> Iterator[tuple[Table, str, dict[str, Any]]]:
        message, name = change.message, change.message.bundle
        held, record = None if change.before is None else change.before.record, message.record
        before, after = _standing(held), _standing(record)
        is_split = record is not None and record.state == DELETED
        yield (
            Table.TRANSITIONS,
            name,
            _transition(before, after, message, kind="split" if is_split else None),
        )
        for child in self._children.pop(name, ()) if is_split else ():
            there = self._bundles.bundles.get(child)
            # Its own first record has the true beginning. This row names its parent.
            if there is not None:
                yield (
                    Table.TRANSITIONS,
                    child,
                    _transition(_standing(None), _standing(there.record), message, kind="split"),
                )
        if record is not None and record.state == SPLITTING:
            self._children[name] = tuple(
                f"{name.rpartition('/')[0]}/{child}" for child in record.children
            )
        served_by, serves = server_of(held), server_of(record)
        if served_by != serves:
            ended = self._ownerships.pop(name, None)
            if ended is not None:
                yield (
                    Table.INTERVALS,
                    name,
                    _ended_ownership(ended, _how_ended(held, record), message),
                )
            if serves is not None and record is not None:
                self._ownerships[name] = _Ownership(
                    serves, record.version, message.offset, message.published_ms
                )
        yield from self._moved(message, record)

    def _moved(
        self, message: Message, record: StateRecord | None
    ) -> Iterator[tuple[Table, str, dict[str, Any]]]:
        """Begin a move with `Releasing`. End it with the next record. An `Assigning` does not end
        it: it is the middle of a transfer.
        """
        if record is not None and record.state == ASSIGNING:
            return
        move = self._moves.pop(message.bundle, None)
        if move is not None:
            yield Table.MOVES, message.bundle, _ended_move(move, record, message)
        if record is not None and record.state == RELEASING:
            self._moves[message.bundle] = _Move(
                record.source,
                record.destination,
                _reason(record),
                message.offset,
                message.published_ms,
            )


def _standing(record: StateRecord | None) -> _Standing:
    """Translate a state. One that waits for nobody has no phase: it was split, or no client has
    asked for it since it was released.
    """
    if record is None or record.state in (DELETED, FREE, INIT):
        return _Standing(None, None, None)
    phase = _PHASES.get(record.state, record.state)
    if record.state == SPLITTING:
        return _Standing(phase, record.source, None)
    if record.state == RELEASING and record.destination is None:
        phase = "unloading"
    return _Standing(
        phase, record.destination, record.source if record.state == RELEASING else None
    )


def _transition(
    before: _Standing, after: _Standing, message: Message, *, kind: str | None
) -> dict[str, Any]:
    record = message.record
    return {
        "phase_before": before.phase,
        "phase_after": after.phase,
        "owner_before": before.owner,
        "owner_after": after.owner,
        "source_before": before.source,
        "source_after": after.source,
        "token": None if record is None else record.version,
        "kind": kind or _kind(message),
        "reason": _reason(record),
    }


def _ended_ownership(ended: _Ownership, how: str, message: Message) -> dict[str, Any]:
    at_ms = message.published_ms
    return {
        **ended._asdict(),
        "to_offset": message.offset,
        "to_at": at_ms,
        "how": how,
        "duration_ms": at_ms - ended.from_at,
    }


def _how_ended(held: StateRecord | None, record: StateRecord | None) -> str:
    if record is None:
        return "deleted"
    if record.state == DELETED:
        return "split"
    if record.force and held is not None and held.state in (OWNED, SPLITTING):
        return "died"
    return "unloaded" if record.state == FREE else "transferred"


def _reason(record: StateRecord | None) -> str | None:
    """Return why a record is forced. No other record has a reason."""
    if record is None or not record.force:
        return None
    if record.state == RELEASING:
        return "its namespace is deleted" if record.destination is None else "its broker stops"
    return (
        "forced, as the step before or by the leader, which ends what a broker that is gone or late"
        " has not done"
    )


def _ended_move(move: _Move, record: StateRecord | None, message: Message) -> dict[str, Any]:
    at_ms = message.published_ms
    result = "cancelled"
    if record is not None and record.state == OWNED and record.destination == move.destination:
        result = "done"
    elif record is not None and record.state == FREE and move.destination is None:
        result = "unloaded"
    spent_ms = at_ms - move.begun_at
    return {
        **move._asdict(),
        # From this record on the source closes the topics, and clients wait until another broker
        # owns the bundle.
        "ready_offset": move.begun_offset,
        "ready_at": move.begun_at,
        "ended_offset": message.offset,
        "ended_at": at_ms,
        "result": result,
        "prepare_ms": 0,
        "pause_ms": spent_ms if result == "done" else None,
        "duration_ms": spent_ms,
    }


def _kind(message: Message) -> str:
    return "tombstone" if message.record is None else message.record.state


def _record(message: Message, value: bytes | None, verdict: str) -> Emitted:
    kind = None if verdict == _UNREADABLE else _kind(message)
    return Emitted(
        Table.RECORDS,
        message.bundle,
        message.offset,
        0,
        message.published_ms,
        kind,
        message.producer,
        verdict,
        value,
    )


def _emitted(table: Table, message: Message, ordinal: int, body: bytes) -> Emitted:
    return Emitted(
        table,
        subject("bundle", message.bundle),
        message.offset,
        ordinal,
        message.published_ms,
        None,
        None,
        None,
        body,
    )


# --- load reports ---


def load_rows(
    number: int, at_ms: int, topic: str, broker: str, value: bytes | None
) -> Iterator[Emitted]:
    """Yield the rows of a load report of a broker or of its busiest bundles. A tombstone and an
    unreadable report have none.
    """
    try:
        raw = orjson.loads(value or b"{}")
        if topic == BROKER_LOADS and raw:
            found = [_of_broker(raw)]
        elif topic == TOP_BUNDLES:
            found = [_of_bundle(each) for each in raw.get("topBundlesLoadData") or ()]
        else:
            return
    except (ValueError, TypeError, AttributeError, KeyError):
        return
    for ordinal, each in enumerate(found):
        body = orjson.dumps({"broker": broker, **each})
        yield Emitted(
            Table.LOADS, subject("broker", broker), number, ordinal, at_ms, None, None, None, body
        )


def _of_broker(raw: Mapping[str, Any]) -> dict[str, Any]:
    uses = {name: raw[name] for name in _USES}
    shares = {
        _USES[name]: use["usage"] / use["limit"] if use["limit"] > 0 else None
        for name, use in uses.items()
    }
    return {
        **shares,
        **_rates(raw),
        "reported_at": raw["updatedAt"],
        "weighted_max": raw["weightedMaxEMA"],
        "bundles": raw["bundleCount"],
        "topics": raw["topics"],
    }


def _of_bundle(raw: Mapping[str, Any]) -> dict[str, Any]:
    stats = raw["stats"]
    return {
        "bundle": raw["bundleName"],
        **_rates(stats),
        "topics": stats["topics"],
        "consumers": stats["consumerCount"],
        "producers": stats["producerCount"],
        "cache_bytes": stats["cacheSize"],
    }


def _rates(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bytes_in": raw["msgThroughputIn"],
        "bytes_out": raw["msgThroughputOut"],
        "messages_in": raw["msgRateIn"],
        "messages_out": raw["msgRateOut"],
    }
