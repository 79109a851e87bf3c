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


_OFFSET: Final = Column(name="offset", type="long", meaning="the logical offset of the record that caused the row")
_OFFSET_BESIDE: Final = Column(name="offset", type="long", meaning="the position of the document in its own source, not on the channel")
_ORDINAL: Final = Column(name="ordinal", type="int", meaning="the number of the row among those of its offset in this table, from 0")
_AT: Final = Column(name="at", type="timestamp", meaning="the log's time of that offset, adjusted so that it never decreases")
_AT_BESIDE: Final = Column(name="at", type="timestamp", meaning="when its own source received the document, by the clock of that source")
_POSITION: Final = Column(
    name="position", type="long", meaning="the log's own offset of the record: `offset` minus the base of the genesis"
)
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
        Column(name="offset", type="long", meaning="the logical offset, which continues to rise when a channel is copied to another log"),
        _POSITION,
        _AT,
        Column(name="key", type="text", meaning="the key that the record changes; empty if it cannot be read"),
        Column(name="kind", type="text", meaning="the kind of the record; null if the entry is not a record"),
        Column(name="publisher", type="text", meaning="the writer: a broker id or `admin:NAME`; null if it cannot be read"),
        Column(name="verdict", type="text", meaning="`accepted`, or the reason why the fold rejected it"),
        Column(name="bytes", type="bytes", meaning="the bytes of the entry; null if it has no value"),
    ),
)
_SNAPSHOTS: Final = TableSchema(
    table=Table.SNAPSHOTS,
    version=1,
    source=Source.CHANNEL,
    meaning="Views after some records, at regular intervals: a replay can start from one and must reproduce the next",
    columns=(
        Column(name="offset", type="long", meaning="the logical offset of the last record in the view"),
        _POSITION,
        _AT,
        Column(name="digest", type="text", meaning="the digest of the view, as decimal digits, because it may exceed a BIGINT"),
        Column(name="bundles", type="long", meaning="the number of bundles"),
        Column(name="brokers", type="long", meaning="the number of brokers, including dead ones"),
        Column(name="bytes", type="bytes", meaning="the snapshot, compressed with zstd"),
    ),
)
_TRANSITIONS: Final = TableSchema(
    table=Table.TRANSITIONS,
    version=1,
    source=Source.CHANNEL,
    meaning="The changes of bundles by accepted records. A phase is null before a bundle exists and after it is deleted",
    columns=(
        _OFFSET,
        _ORDINAL,
        _AT,
        _NAMESPACE,
        _BUNDLE,
        Column(name="phase_before", type="text", meaning="the phase before"),
        Column(name="phase_after", type="text", meaning="the phase after"),
        Column(name="owner_before", type="text", meaning="the broker id of the owner before"),
        Column(name="owner_after", type="text", meaning="the broker id of the owner after"),
        Column(name="source_before", type="text", meaning="the broker id of the source before"),
        Column(name="source_after", type="text", meaning="the broker id of the source after"),
        Column(name="token", type="long", meaning="the fencing token after, or the last one"),
        Column(name="kind", type="text", meaning="the kind of the record"),
        Column(name="publisher", type="text", meaning="the writer of the record"),
        Column(name="reason", type="text", meaning="the reason in the record"),
    ),
)
_OWNERSHIP_INTERVALS: Final = TableSchema(
    table=Table.OWNERSHIP_INTERVALS,
    version=1,
    source=Source.CHANNEL,
    meaning="The periods in which a broker owned a bundle. A row is written when the period ends",
    columns=(
        Column(name="offset", type="long", meaning="as `to_offset`"),
        _ORDINAL,
        Column(name="at", type="timestamp", meaning="as `to_at`"),
        _NAMESPACE,
        _BUNDLE,
        _BROKER,
        Column(name="incarnation", type="long", meaning="the incarnation of the broker: the offset of its join"),
        Column(name="token", type="long", meaning="the fencing token of the ownership"),
        Column(name="from_offset", type="long", meaning="the record that began it; null if the archive begins later"),
        Column(name="from_at", type="timestamp", meaning="the time of its beginning; null as above"),
        Column(name="to_offset", type="long", meaning="the record that ended it"),
        Column(name="to_at", type="timestamp", meaning="the time of its end"),
        Column(
            name="how",
            type="text",
            meaning="the way it ended: `transferred`, `unloaded`, `died`, `left`, `split`, `merged` or `deleted`",
        ),
        Column(name="duration_ms", type="long", meaning="its duration; null if its beginning is unknown"),
    ),
)
_TRANSFERS: Final = TableSchema(
    table=Table.TRANSFERS,
    version=1,
    source=Source.CHANNEL,
    meaning="Moves of bundles from one broker to another, and unloads. A row is written when the move ends",
    columns=(
        Column(name="offset", type="long", meaning="as `ended_offset`"),
        _ORDINAL,
        Column(name="at", type="timestamp", meaning="as `ended_at`"),
        _NAMESPACE,
        _BUNDLE,
        Column(name="source", type="text", meaning="the id of the broker that served the bundle"),
        Column(name="destination", type="text", meaning="the id of the broker that is to serve the bundle; null for an unload"),
        Column(name="asked_by", type="text", meaning="the writer of the request"),
        Column(name="reason", type="text", meaning="the reason in the request"),
        Column(name="begun_offset", type="long", meaning="the record of the request; null if the archive begins later"),
        Column(name="begun_at", type="timestamp", meaning="the time of `begun_offset`"),
        Column(name="ready_offset", type="long", meaning="the record that asks the source to release the bundle; null if there is none"),
        Column(name="ready_at", type="timestamp", meaning="the time of `ready_offset`, when the destination was ready"),
        Column(name="ended_offset", type="long", meaning="the record that ended it"),
        Column(name="ended_at", type="timestamp", meaning="the time of `ended_offset`"),
        Column(
            name="result",
            type="text",
            meaning="`done`, `unloaded`, `cancelled`; `source_died` or `source_left`, `destination_died` or `destination_left`",
        ),
        Column(name="pause_ms", type="long", meaning="from `ready_at` to `ended_at` if it completed: the pause that clients notice"),
        Column(name="duration_ms", type="long", meaning="from `begun_at` to `ended_at`"),
    ),
)
_BROKER_LOAD: Final = TableSchema(
    table=Table.BROKER_LOAD,
    version=1,
    source=Source.LOADS,
    meaning="The load reports of brokers",
    columns=(
        _OFFSET_BESIDE,
        _AT_BESIDE,
        _BROKER,
        Column(name="reported_at", type="timestamp", meaning="the time of the report, by the broker's clock"),
        Column(name="cpu", type="double", meaning="the used share of the CPU; 1 is all of it, null without a limit"),
        Column(name="memory", type="double", meaning="the used share of the memory"),
        Column(name="direct_memory", type="double", meaning="the used share of the direct memory"),
        Column(name="bandwidth_in", type="double", meaning="the used share of the incoming bandwidth"),
        Column(name="bandwidth_out", type="double", meaning="the used share of the outgoing bandwidth"),
        *_TRAFFIC,
        Column(name="weighted_max", type="double", meaning="the weighted average use of the busiest resource, as a fraction"),
        Column(name="bundles", type="long", meaning="the number of open bundles"),
        Column(name="topics", type="long", meaning="the number of open topics"),
        Column(name="cost", type="double", meaning="the cost of all its bundles, as the balancer computes it"),
    ),
)
_BUNDLE_LOAD: Final = TableSchema(
    table=Table.BUNDLE_LOAD,
    version=1,
    source=Source.LOADS,
    meaning="The load of the busiest bundles, as reported by their brokers",
    columns=(
        _OFFSET_BESIDE,
        _ORDINAL,
        _AT_BESIDE,
        _BROKER,
        _BUNDLE,
        *_TRAFFIC,
        Column(name="topics", type="long", meaning="the number of open topics"),
        Column(name="consumers", type="long", meaning="the number of consumers"),
        Column(name="producers", type="long", meaning="the number of producers"),
        Column(name="cache_bytes", type="long", meaning="the size of the cache"),
        Column(name="cost", type="double", meaning="the cost of the bundle, as the balancer computes it"),
    ),
)
_DECISIONS: Final = TableSchema(
    table=Table.DECISIONS,
    version=1,
    source=Source.DECISIONS,
    meaning="The decisions of the balancer, and their reasons",
    columns=(
        _OFFSET_BESIDE,
        _AT_BESIDE,
        Column(name="broker", type="text", meaning="the id of the broker that decided"),
        Column(name="kind", type="text", meaning="the kind of the decision"),
        Column(name="strategy", type="text", meaning="the strategy that decided"),
        Column(name="result", type="text", meaning="the result"),
        Column(name="cause", type="text", meaning="the cause, as a code"),
        Column(name="document", type="text", meaning="the whole decision as a JSON object"),
    ),
)
_FINDINGS: Final = TableSchema(
    table=Table.FINDINGS,
    version=1,
    source=Source.CHANNEL,
    meaning="The findings of the audit. The audit writes this table, the archive job all others",
    columns=(
        Column(name="offset", type="long", meaning="the last of `offsets`: the record at which the violation appeared"),
        Column(
            name="ordinal", type="int", meaning="a checksum of `rule`, `subject` and `text`, which distinguishes the findings of one offset"
        ),
        Column(
            name="at",
            type="timestamp",
            meaning="the log's time when the violation appeared; later than the record at `offset` if evidence or a time limit revealed it",
        ),
        Column(name="rule", type="text", meaning="the violated rule"),
        Column(name="subject", type="text", meaning="the subject: `bundle:NAME`, `broker:ID`, `namespace:NAME` or `log:`"),
        Column(name="offsets", type="longs", meaning="the logical offsets that prove it, in rising order"),
        Column(name="text", type="text", meaning="the violation in one sentence"),
        Column(name="command", type="text", meaning="the command that shows it; `{log}` is a placeholder for the URL of the log"),
        Column(name="publisher", type="text", meaning="the writer of the record at `offset`, if known"),
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
