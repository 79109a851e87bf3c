"""Turn notes (decisions, loads and serving evidence) into rows and facts.

Notes are not folded. No note changes a verdict or the log's time.

`brokers.load.documents` defines the documents of load reports, `spark_jobs.tables.schema` the
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

import orjson

from equipoise.brokers.load.documents import decode_load
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.view import View
from equipoise.shedder.loads import BundleTraffic, Load, Traffic, Use
from equipoise.spark_jobs.rules.facts import Fact, Raw, subject
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Source, Table
from equipoise.spark_jobs.sequence.subjects import LOG, bundle_in_fact, fact_bytes, parsed

Row = Mapping[str, str | int | float | None]


def load_rows(document: bytes) -> tuple[Row, ...] | None:
    """Return the rows of a load report, the broker's first and then one for each bundle in it, or
    None for another document. A figure that is not a finite number is null.
    """
    try:
        load = decode_load(document)
    except PeerError:
        return None
    of_all: Row = {"broker": load.broker, "reported_at": load.at_ms}
    return (
        {**of_all, **_of_broker(load)},
        *({**of_all, **_of_bundle(each)} for each in load.bundles),
    )


def _of_broker(load: Load) -> Row:
    resources = load.resources
    return {
        "cpu": _share(resources.cpu),
        "memory": _share(resources.memory),
        "direct_memory": _share(resources.direct_memory),
        "bandwidth_in": _share(resources.bandwidth_in),
        "bandwidth_out": _share(resources.bandwidth_out),
        **_rates(load.traffic),
        "weighted_max": _figure(load.average_use),
        "bundles": load.bundle_count,
        "topics": load.topics,
        "cost": _figure(load.cost),
    }


def _of_bundle(bundle: BundleTraffic) -> Row:
    return {
        "bundle": bundle.bundle,
        **_rates(bundle.traffic),
        "topics": bundle.topics,
        "consumers": bundle.consumers,
        "producers": bundle.producers,
        "cache_bytes": bundle.cache_bytes,
        "cost": _figure(bundle.cost),
    }


def _rates(traffic: Traffic) -> Row:
    """Return bytes and messages per second."""
    return {
        "bytes_in": _figure(traffic.bytes_in_per_second),
        "bytes_out": _figure(traffic.bytes_out_per_second),
        "messages_in": _figure(traffic.messages_in_per_second),
        "messages_out": _figure(traffic.messages_out_per_second),
    }


def _share(use: Use) -> float | None:
    """Return the use of a resource as a fraction; None if it has no limit."""
    return _figure(use.used / use.limit) if use.limit > 0 else None


def _figure(value: float) -> float | None:
    return value if isfinite(value) else None


FACT_ORDINALS: Final = {
    Source.SERVING: 1 << 30,
    Source.DECISIONS: (1 << 30) + (1 << 28),
    Source.LOADS: (1 << 30) + (1 << 29),
}
"""First ordinal of each source's facts. A note's offset may equal a record's, so their ordinals
must differ.

A record of the channel has at most some 65,540 facts: the creation of a namespace with that many
bundles.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The state of the channel when a note arrives.

    * `at_ms`: the log's time.
    * `begin`: the offset after which the channel is known (0: from its beginning).
    * `log`: the log's identity, None if unknown.
    * `stopped`: whether folding has stopped for good.
    * `damage_of`: see `spark_jobs.rules.membership.view.Membership`.
    """

    at_ms: int
    view: View
    begin: int
    log: str | None
    stopped: bool
    damage_of: Callable[[str, object], int | None]


def rows_of_note(arrival: Arrival, *, now: Now) -> Sequence[Emitted]:
    """Return the rows and facts of one note. Facts carry the log's time, so that checkers use one
    clock.

    A malformed document becomes a fact of the log and makes no row.
    """
    source = Source(arrival.source)
    if source is Source.LOADS and arrival.value is None:
        return ()  # A broker that leaves deletes its report.
    raw = None if arrival.value is None else parsed(arrival.value)
    rows = None if raw is None else _ROWS[source](arrival, raw, now)
    if rows is None:
        fact = Fact(
            subject=LOG,
            source=arrival.source,
            offset=arrival.offset,
            at_ms=now.at_ms,
            after={"event": "unreadable_note", "source": arrival.source},
            context={"reached": max(now.view.offset, 0)},
        )
        return (_emitted(fact),)
    return rows


def _decision(arrival: Arrival, _raw: Raw, _now: Now) -> Sequence[Emitted]:
    return (_row(Table.DECISIONS, arrival, 0, arrival.value),)


def _loads(arrival: Arrival, _raw: Raw, _now: Now) -> Sequence[Emitted] | None:
    found = load_rows(arrival.value or b"")
    if found is None:
        return None
    return [
        _row(Table.LOADS, arrival, ordinal, orjson.dumps(body))
        for ordinal, body in enumerate(found)
    ]


def _serving(arrival: Arrival, raw: Raw, now: Now) -> Sequence[Emitted] | None:
    bundle = raw.get("bundle")
    if type(bundle) is not str or type(raw.get("broker")) is not str:
        return None
    entry = now.view.bundles.get(bundle)
    context: dict[str, object] = {
        "begin": now.begin,
        "reached": now.view.offset,
        "received_ms": arrival.at_ms,
    }
    if now.log is not None:
        context["log"] = now.log
    if now.stopped:
        context["stopped"] = True
    follows = now.damage_of(bundle, raw.get("token"))
    if follows is not None:
        context["follows"] = follows
    fact = Fact(
        subject=subject("bundle", bundle),
        source=arrival.source,
        offset=arrival.offset,
        at_ms=now.at_ms,
        record=raw,
        after=None if entry is None else bundle_in_fact(entry),
        context=context,
    )
    return (_emitted(fact), _row(Table.SERVING, arrival, 0, arrival.value))


_ROWS: Final[dict[Source, Callable[[Arrival, Raw, Now], Sequence[Emitted] | None]]] = {
    Source.DECISIONS: _decision,
    Source.LOADS: _loads,
    Source.SERVING: _serving,
}


def _row(table: Table, arrival: Arrival, ordinal: int, body: bytes | None) -> Emitted:
    """Return a row of a table of notes, with the source's own time."""
    return Emitted(
        table, "", arrival.offset, ordinal, max(arrival.at_ms, 0), None, None, None, body
    )


def fact_row(fact: Fact, ordinal: int) -> Emitted:
    """Return the row of a fact. `ordinal` distinguishes the facts of one offset."""
    return Emitted(
        Table.FACTS.value,
        fact.subject,
        fact.offset,
        ordinal,
        fact.at_ms,
        None,
        None,
        None,
        fact_bytes(fact),
    )


def _emitted(fact: Fact) -> Emitted:
    return fact_row(fact, FACT_ORDINALS[Source(fact.source)])
