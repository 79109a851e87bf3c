"""Define the archive's tables: columns, meanings, and the table version that added each column.

The page docs/reference/archive.md is generated from these definitions. To change a table, add a column: raise the table's version and set
the column's `since` to it. Never change or remove a column. Readers get null from files of older versions and refuse newer ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from equipoise.spark_jobs.sequence.arrivals import Source
from equipoise.spark_jobs.sequence.emitted import Table

Type = Literal["long", "int", "double", "text", "bytes", "timestamp", "longs"]

SQL_TYPES: Final[Mapping[Type, str]] = {
    "long": "BIGINT",
    "int": "INT",
    "double": "DOUBLE",
    "text": "STRING",
    "bytes": "BINARY",
    "timestamp": "TIMESTAMP",
    "longs": "ARRAY<BIGINT>",
}
"""Each type's name in Spark."""

ARCHIVE_FORMAT: Final = 1
"""Format version of the folder: file names and manifests. Readers refuse newer ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. `timestamp` is UTC with microseconds; `longs` is a list. `meaning` is a sentence without its full stop."""

    name: str
    type: Type
    meaning: str
    since: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One table.

    * `columns`: in order. The partition `day` follows them; it exists only in the folder's name.
    * `source`: where the column `offset` counts. The channel's offsets are logical, all others are the source's own.
    """

    table: Table
    version: int
    source: Source
    meaning: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, without `day`."""
        return tuple(column.name for column in self.columns)


_OFFSET: Final = Column(name="offset", type="long", meaning="the logical offset of the record by which the row came to be")
_OFFSET_BESIDE: Final = Column(name="offset", type="long", meaning="where the document stood in its own source, not on the channel")
_ORDINAL: Final = Column(name="ordinal", type="int", meaning="counts the rows of one offset in this table, from 0")
_AT: Final = Column(name="at", type="timestamp", meaning="the log's time of that offset, made never to fall")
_AT_BESIDE: Final = Column(name="at", type="timestamp", meaning="when its own source took the document, by the clock of that source")
_POSITION: Final = Column(name="position", type="long", meaning="the log's own offset of it, that is `offset` less the base of its genesis")
_NAMESPACE: Final = Column(name="namespace", type="text", meaning="the namespace of the bundle")
_BUNDLE: Final = Column(name="bundle", type="text", meaning="the name of the bundle")
_BROKER: Final = Column(name="broker", type="text", meaning="the id of the broker")
_TRAFFIC: Final = (
    Column(name="bytes_in", type="double", meaning="bytes in per second"),
    Column(name="bytes_out", type="double", meaning="bytes out per second"),
    Column(name="messages_in", type="double", meaning="messages in per second"),
    Column(name="messages_out", type="double", meaning="messages out per second"),
)

_RECORDS: Final = TableSchema(
    table=Table.RECORDS,
    version=1,
    source=Source.CHANNEL,
    meaning="Every entry of the channel, accepted or not, byte for byte",
    columns=(
        Column(name="offset", type="long", meaning="the logical offset, which goes on rising when a channel is copied to another log"),
        _POSITION,
        _AT,
        Column(name="key", type="text", meaning="what the record wants to change; empty where that cannot be read"),
        Column(name="kind", type="text", meaning="its kind, null where it is no record"),
        Column(name="publisher", type="text", meaning="who wrote it: a broker id or `admin:NAME`; null where that cannot be read"),
        Column(name="verdict", type="text", meaning="`accepted`, or the reason for which the fold rejected it"),
        Column(name="bytes", type="bytes", meaning="the entry as it stood on the log; null where it had no value"),
    ),
)
_SNAPSHOTS: Final = TableSchema(
    table=Table.SNAPSHOTS,
    version=1,
    source=Source.CHANNEL,
    meaning="The view after a record, every so many records: where a replay can begin, and what it must come to",
    columns=(
        Column(name="offset", type="long", meaning="the logical offset of the last record that is folded into it"),
        _POSITION,
        _AT,
        Column(name="digest", type="text", meaning="the digest of the view, as decimal digits, because it may exceed a BIGINT"),
        Column(name="bundles", type="long", meaning="how many bundles it holds"),
        Column(name="brokers", type="long", meaning="how many brokers it knows, dead ones too"),
        Column(name="bytes", type="bytes", meaning="the snapshot, compressed by zstd"),
    ),
)
_TRANSITIONS: Final = TableSchema(
    table=Table.TRANSITIONS,
    version=1,
    source=Source.CHANNEL,
    meaning="What each accepted record made of each bundle that it changed; a phase is null before a bundle is there, and after it is gone",
    columns=(
        _OFFSET,
        _ORDINAL,
        _AT,
        _NAMESPACE,
        _BUNDLE,
        Column(name="phase_before", type="text", meaning="its phase before"),
        Column(name="phase_after", type="text", meaning="its phase after"),
        Column(name="owner_before", type="text", meaning="the id of its owner before"),
        Column(name="owner_after", type="text", meaning="the id of its owner after"),
        Column(name="source_before", type="text", meaning="the id of its source before"),
        Column(name="source_after", type="text", meaning="the id of its source after"),
        Column(name="token", type="long", meaning="its fencing token after, or its last one"),
        Column(name="kind", type="text", meaning="the kind of the record"),
        Column(name="publisher", type="text", meaning="who wrote the record"),
        Column(name="reason", type="text", meaning="why, in the words of the record"),
    ),
)
_OWNERSHIP_INTERVALS: Final = TableSchema(
    table=Table.OWNERSHIP_INTERVALS,
    version=1,
    source=Source.CHANNEL,
    meaning="Who served which bundle, from when to when; a row is written when it ends",
    columns=(
        Column(name="offset", type="long", meaning="as `to_offset`"),
        _ORDINAL,
        Column(name="at", type="timestamp", meaning="as `to_at`"),
        _NAMESPACE,
        _BUNDLE,
        _BROKER,
        Column(name="incarnation", type="long", meaning="the incarnation of the broker: the offset at which it joined"),
        Column(name="token", type="long", meaning="the fencing token of the ownership"),
        Column(name="from_offset", type="long", meaning="where it began; null if that is before what the archive has seen"),
        Column(name="from_at", type="timestamp", meaning="when it began; null as above"),
        Column(name="to_offset", type="long", meaning="the record that ended it"),
        Column(name="to_at", type="timestamp", meaning="when it ended"),
        Column(
            name="how",
            type="text",
            meaning="how it ended: `transferred`, `unloaded`, `died`, `left`, `split`, `merged` or `deleted`",
        ),
        Column(name="duration_ms", type="long", meaning="how long it was; null if its beginning is not known"),
    ),
)
_TRANSFERS: Final = TableSchema(
    table=Table.TRANSFERS,
    version=1,
    source=Source.CHANNEL,
    meaning="Bundles on their way from one broker to another, or to nobody; a row is written when the way ends",
    columns=(
        Column(name="offset", type="long", meaning="as `ended_offset`"),
        _ORDINAL,
        Column(name="at", type="timestamp", meaning="as `ended_at`"),
        _NAMESPACE,
        _BUNDLE,
        Column(name="source", type="text", meaning="the id of the broker that served it"),
        Column(name="destination", type="text", meaning="the id of the broker that is to serve it; null for an unload"),
        Column(name="asked_by", type="text", meaning="who asked for it"),
        Column(name="reason", type="text", meaning="why, in the words of that record"),
        Column(name="begun_offset", type="long", meaning="the record that asked for it; null if that is before what the archive has seen"),
        Column(name="begun_at", type="timestamp", meaning="when that was"),
        Column(name="ready_offset", type="long", meaning="the record by which the source was told to let go; null if it never was"),
        Column(name="ready_at", type="timestamp", meaning="when that was: the destination was warm"),
        Column(name="ended_offset", type="long", meaning="the record that ended it"),
        Column(name="ended_at", type="timestamp", meaning="when that was"),
        Column(
            name="result",
            type="text",
            meaning="`done`, `unloaded`, `cancelled`; `source_died` or `source_left`, `destination_died` or `destination_left`",
        ),
        Column(name="pause_ms", type="long", meaning="from `ready_at` to `ended_at` where it was done: what clients could notice"),
        Column(name="duration_ms", type="long", meaning="from `begun_at` to `ended_at`"),
    ),
)
_BROKER_LOAD: Final = TableSchema(
    table=Table.BROKER_LOAD,
    version=1,
    source=Source.LOADS,
    meaning="What brokers said of their load",
    columns=(
        _OFFSET_BESIDE,
        _AT_BESIDE,
        _BROKER,
        Column(name="reported_at", type="timestamp", meaning="when it said so, by its own clock"),
        Column(name="cpu", type="double", meaning="the share of its processor that is used; 1 is all of it, null without a limit"),
        Column(name="memory", type="double", meaning="the share of its memory"),
        Column(name="direct_memory", type="double", meaning="the share of its direct memory"),
        Column(name="bandwidth_in", type="double", meaning="the share of its incoming bandwidth"),
        Column(name="bandwidth_out", type="double", meaning="the share of its outgoing bandwidth"),
        *_TRAFFIC,
        Column(name="weighted_max", type="double", meaning="the average use of its busiest resource, each weighed, as a fraction"),
        Column(name="bundles", type="long", meaning="how many bundles it has open"),
        Column(name="topics", type="long", meaning="how many topics it has open"),
        Column(name="cost", type="double", meaning="what all its bundles cost it, as the balancer counts"),
    ),
)
_BUNDLE_LOAD: Final = TableSchema(
    table=Table.BUNDLE_LOAD,
    version=1,
    source=Source.LOADS,
    meaning="What brokers said of the load of their busiest bundles",
    columns=(
        _OFFSET_BESIDE,
        _ORDINAL,
        _AT_BESIDE,
        _BROKER,
        _BUNDLE,
        *_TRAFFIC,
        Column(name="topics", type="long", meaning="how many topics are open in it"),
        Column(name="consumers", type="long", meaning="how many consumers it has"),
        Column(name="producers", type="long", meaning="how many producers it has"),
        Column(name="cache_bytes", type="long", meaning="the size of its cache"),
        Column(name="cost", type="double", meaning="what it costs its broker, as the balancer counts"),
    ),
)
_DECISIONS: Final = TableSchema(
    table=Table.DECISIONS,
    version=1,
    source=Source.DECISIONS,
    meaning="What the balancer decided, and why",
    columns=(
        _OFFSET_BESIDE,
        _AT_BESIDE,
        Column(name="broker", type="text", meaning="the id of the broker that decided"),
        Column(name="kind", type="text", meaning="what kind of decision it is"),
        Column(name="strategy", type="text", meaning="the strategy that decided"),
        Column(name="result", type="text", meaning="what came of it"),
        Column(name="cause", type="text", meaning="why, as a word to count by"),
        Column(name="document", type="text", meaning="all of it, as one JSON object"),
    ),
)
_FINDINGS: Final = TableSchema(
    table=Table.FINDINGS,
    version=1,
    source=Source.CHANNEL,
    meaning="What the audit found; written by the audit, where the other tables are written by the archive",
    columns=(
        Column(name="offset", type="long", meaning="the last of `offsets`: the record at which it showed"),
        Column(name="ordinal", type="int", meaning="a checksum of `rule`, `subject` and `text`, by which findings of one offset differ"),
        Column(
            name="at",
            type="timestamp",
            meaning="the log's time when it showed; what evidence or the passing of time shows comes after the record at `offset`",
        ),
        Column(name="rule", type="text", meaning="the rule that was broken"),
        Column(name="subject", type="text", meaning="of what: `bundle:NAME`, `broker:ID`, `namespace:NAME` or `log:`"),
        Column(name="offsets", type="longs", meaning="the logical offsets that prove it, rising"),
        Column(name="text", type="text", meaning="what was found, in a sentence"),
        Column(name="command", type="text", meaning="the command that shows it, in which `{log}` stands for the URL of the log"),
        Column(name="publisher", type="text", meaning="who wrote the record at which it showed, where it is known"),
    ),
)

_ALL: Final = (
    _RECORDS,
    _SNAPSHOTS,
    _TRANSITIONS,
    _OWNERSHIP_INTERVALS,
    _TRANSFERS,
    _BROKER_LOAD,
    _BUNDLE_LOAD,
    _DECISIONS,
    _FINDINGS,
)
SCHEMAS: Final[Mapping[Table, TableSchema]] = {schema.table: schema for schema in _ALL}
"""The schema of each table, in the order of the documentation."""

ARCHIVED: Final = frozenset(schema.table for schema in _ALL if schema.table is not Table.FINDINGS)
"""The tables that the archive requests from the sequential operator. Findings come from the audit."""

WRITTEN_BY: Final[Mapping[str, tuple[Table, ...]]] = {
    "archive": tuple(schema.table for schema in _ALL if schema.table is not Table.FINDINGS),
    "audit": (Table.FINDINGS,),
}
"""The tables of each writer. Every table has one writer, so two processes never write the same file."""

WRITER_OF: Final[Mapping[Table, str]] = {table: writer for writer, tables in WRITTEN_BY.items() for table in tables}
"""The writer of each table."""
