"""Define the archive's tables: columns and their meanings.

The page docs/reference/archive.md is generated from these definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from equipoise.spark_jobs.sequence.rows import Source, Table

Type = Literal[
    "long", "int", "double", "text", "bytes", "timestamp", "longs", "moves", "stays", "outcomes"
]

MOVES: Final[tuple[tuple[str, Type], ...]] = (
    ("bundle", "text"),
    ("source", "text"),
    ("destination", "text"),
    ("cause", "text"),
    ("reason", "text"),
    ("source_before", "double"),
    ("source_after", "double"),
    ("destination_before", "double"),
    ("destination_after", "double"),
    ("predicted_ms", "double"),
    ("took_ms", "long"),
)
STAYS: Final[tuple[tuple[str, Type], ...]] = (("subject", "text"), ("reason", "text"))
OUTCOMES: Final[tuple[tuple[str, Type], ...]] = (
    ("broker", "text"),
    ("before", "double"),
    ("predicted", "double"),
    ("measured", "double"),
    ("reason", "text"),
)
STRUCTS: Final[Mapping[str, tuple[tuple[str, Type], ...]]] = {
    "moves": MOVES,
    "stays": STAYS,
    "outcomes": OUTCOMES,
}
"""The fields of each type that is a list of structs."""

_SCALARS: Final[Mapping[str, str]] = {
    "long": "BIGINT",
    "int": "INT",
    "double": "DOUBLE",
    "text": "STRING",
    "bytes": "BINARY",
    "timestamp": "TIMESTAMP",
    "longs": "ARRAY<BIGINT>",
}
SQL_TYPES: Final[Mapping[str, str]] = {
    **_SCALARS,
    **{
        kind: f"ARRAY<STRUCT<{', '.join(f'{name}: {_SCALARS[of]}' for name, of in fields)}>>"
        for kind, fields in STRUCTS.items()
    },
}
"""Each type's name in Spark."""


FORMAT: Final = 1
"""The version of all tables. Raise it when columns change their meaning. Readers refuse newer ones.
"""


class Column(NamedTuple):
    """One column. `timestamp` is UTC with microseconds; `longs` is a list, and `moves`, `stays` and
    `outcomes` are lists of structs. `meaning` is a sentence without its full stop.
    """

    name: str
    type: Type
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One table.

    * `columns`: in order. The partition `day` follows them.
    * `source`: where the column `log_offset` counts. The channel's offsets are logical, all others
      are the source's own.
    """

    table: Table
    source: Source
    meaning: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, without `day`."""
        return tuple(column.name for column in self.columns)


_OFFSET: Final = Column("log_offset", "long", "the offset of the record that caused the row")
_OFFSET_BESIDE: Final = Column("log_offset", "long", "the position of the document in its source")
_ORDINAL: Final = Column("ordinal", "int", "the number of the row among those of its offset")
_AT: Final = Column("logged_at", "timestamp", "the log's time of that offset")
_AT_BESIDE: Final = Column("logged_at", "timestamp", "when its source received the document")
_POSITION: Final = Column("position", "long", "the log's own offset of the record")
_NAMESPACE: Final = Column("namespace", "text", "the namespace of the bundle")
_BUNDLE: Final = Column("bundle", "text", "the name of the bundle")
_BROKER: Final = Column("broker", "text", "the id of the broker")
_TOKEN: Final = Column("token", "long", "the fencing token of the ownership")
_INCARNATION: Final = Column("incarnation", "long", "the incarnation of the broker")

_ALL: Final = (
    TableSchema(
        table=Table.RECORDS,
        source=Source.CHANNEL,
        meaning="Every entry of the channel, accepted or not, byte for byte",
        columns=(
            Column("log_offset", "long", "the offset of the record"),
            _POSITION,
            _AT,
            Column(
                "behind_ms", "long", "how much older than `logged_at` the log's own time of it is"
            ),
            Column("key", "text", "the key that the record changes; empty if it cannot be read"),
            Column("kind", "text", "the kind of the record; null if the entry is not a record"),
            Column(
                "publisher",
                "text",
                "the writer: a broker id or `admin:NAME`; null if it cannot be read",
            ),
            Column("verdict", "text", "`accepted`, or the reason why the fold rejected it"),
            Column("bytes", "bytes", "the bytes of the entry; null if it has no value"),
        ),
    ),
    TableSchema(
        table=Table.SNAPSHOTS,
        source=Source.CHANNEL,
        meaning=(
            "Views after some records, at regular intervals: a replay can start from one and must"
            " reproduce the next"
        ),
        columns=(
            Column("log_offset", "long", "the offset of the last record in the view"),
            _POSITION,
            _AT,
            Column("digest", "text", "the digest of the view, in decimal digits"),
            Column("bundles", "long", "the number of bundles"),
            Column("brokers", "long", "the number of brokers, including dead ones"),
            Column("bytes", "bytes", "the snapshot, compressed with zstd"),
        ),
    ),
    TableSchema(
        table=Table.BUNDLES,
        source=Source.CHANNEL,
        meaning=(
            "Every bundle at each row of `snapshots`, also bundles that have not changed since the"
            " archive began"
        ),
        columns=(
            Column("log_offset", "long", "the offset of the snapshot"),
            _ORDINAL,
            _AT,
            _NAMESPACE,
            _BUNDLE,
            Column("phase", "text", "the phase of the bundle"),
            Column("owner", "text", "the owner"),
            Column("source", "text", "the source"),
            Column("server", "text", "the owner or source that serves it"),
            Column("token", "long", "the fencing token of the ownership, or the last one"),
            Column("last_offset", "long", "the offset of the record that changed it last"),
        ),
    ),
    TableSchema(
        table=Table.TRANSITIONS,
        source=Source.CHANNEL,
        meaning=(
            "The changes of bundles by accepted records. A phase is null before a bundle exists and"
            " after it is deleted"
        ),
        columns=(
            _OFFSET,
            _ORDINAL,
            _AT,
            _NAMESPACE,
            _BUNDLE,
            Column("phase_before", "text", "the phase before"),
            Column("phase_after", "text", "the phase after"),
            Column("owner_before", "text", "the owner before"),
            Column("owner_after", "text", "the owner after"),
            Column("source_before", "text", "the source before"),
            Column("source_after", "text", "the source after"),
            Column("token", "long", "the fencing token after, or the last one"),
            Column("kind", "text", "the kind of the record"),
            Column("publisher", "text", "the admin who asked for the record, or else its writer"),
            Column("reason", "text", "the reason in the record"),
        ),
    ),
    TableSchema(
        table=Table.INTERVALS,
        source=Source.CHANNEL,
        meaning=(
            "The periods in which a broker served a bundle. In those that have not ended, `day` and"
            " all columns about the end are null"
        ),
        columns=(
            Column("log_offset", "long", "as `to_offset`; null while it lasts"),
            _ORDINAL,
            Column("logged_at", "timestamp", "as `to_at`; null while it lasts"),
            _NAMESPACE,
            _BUNDLE,
            _BROKER,
            _INCARNATION,
            _TOKEN,
            Column(
                "from_offset", "long", "the record that began it; null if the archive begins later"
            ),
            Column("from_at", "timestamp", "the time of its beginning; null as above"),
            Column("to_offset", "long", "the record that ended it"),
            Column("to_at", "timestamp", "the time of its end"),
            Column(
                "how",
                "text",
                "the way it ended: `transferred`, `unloaded`, `died`, `left`, `split`, `merged` or"
                " `deleted`",
            ),
            Column("duration_ms", "long", "its duration; null if its beginning is unknown"),
        ),
    ),
    TableSchema(
        table=Table.MOVES,
        source=Source.CHANNEL,
        meaning=(
            "Moves of bundles from one broker to another, and unloads. A row is written when the"
            " move ends"
        ),
        columns=(
            Column("log_offset", "long", "as `ended_offset`"),
            _ORDINAL,
            Column("logged_at", "timestamp", "as `ended_at`"),
            _NAMESPACE,
            _BUNDLE,
            Column("source", "text", "the broker that served the bundle"),
            Column("destination", "text", "the broker that is to serve it; null for an unload"),
            Column("asked_by", "text", "who requested it: a broker id or `admin:NAME`"),
            Column("reason", "text", "the reason in the request"),
            Column(
                "begun_offset",
                "long",
                "the record of the request; null if the archive begins later",
            ),
            Column("begun_at", "timestamp", "the time of `begun_offset`"),
            Column(
                "ready_offset",
                "long",
                "the record that asks the source to release the bundle; null if there is none",
            ),
            Column(
                "ready_at",
                "timestamp",
                "the time of `ready_offset`, when the destination was ready",
            ),
            Column("ended_offset", "long", "the record that ended it"),
            Column("ended_at", "timestamp", "the time of `ended_offset`"),
            Column(
                "result",
                "text",
                "`done`, `unloaded`, `cancelled`; `source_died` or `source_left`,"
                " `destination_died` or `destination_left`",
            ),
            Column(
                "prepare_ms",
                "long",
                "from `begun_at` to `ready_at`: the destination prepares, the source serves",
            ),
            Column(
                "pause_ms",
                "long",
                "from `ready_at` to `ended_at` if it completed: the pause that clients notice",
            ),
            Column("duration_ms", "long", "from `begun_at` to `ended_at`"),
        ),
    ),
    TableSchema(
        table=Table.BROKER_EVENTS,
        source=Source.CHANNEL,
        meaning="The lives of brokers: how each incarnation began, changed and ended",
        columns=(
            _OFFSET,
            _ORDINAL,
            _AT,
            _BROKER,
            _INCARNATION,
            Column(
                "event",
                "text",
                "`joined`, `draining`, `up` (after draining), `left`, `down` (declared dead) or"
                " `replaced` (its broker joined again)",
            ),
            Column("publisher", "text", "the admin who asked for the record, or else its writer"),
            Column("reason", "text", "the reason in the record"),
        ),
    ),
    TableSchema(
        table=Table.GAPS,
        source=Source.CHANNEL,
        meaning=(
            "The records that the log had removed before the archive read them. The tables"
            " continue with the state after them"
        ),
        columns=(
            Column("log_offset", "long", "the offset of the first record after the gap"),
            _ORDINAL,
            _AT,
            Column("first_offset", "long", "the first lost offset"),
            Column("last_offset", "long", "the last lost offset"),
        ),
    ),
    TableSchema(
        table=Table.LOADS,
        source=Source.LOADS,
        meaning=(
            "The load reports: a row of the broker, and a row of each of its busiest bundles. In a"
            " row of the broker, `bundle`, `consumers`, `producers` and `cache_bytes` are null"
        ),
        columns=(
            _OFFSET_BESIDE,
            _ORDINAL,
            _AT_BESIDE,
            _BROKER,
            Column("bundle", "text", "the name of the bundle; null in a row of the broker"),
            Column("reported_at", "timestamp", "the time of the report, by the broker's clock"),
            Column(
                "cpu", "double", "the used share of the CPU; 1 is all of it, null without a limit"
            ),
            Column("memory", "double", "the used share of the memory"),
            Column("direct_memory", "double", "the same of the direct memory"),
            Column("bandwidth_in", "double", "the same of the incoming bandwidth"),
            Column("bandwidth_out", "double", "the same of the outgoing bandwidth"),
            Column("bytes_in", "double", "bytes in per second"),
            Column("bytes_out", "double", "bytes out per second"),
            Column("messages_in", "double", "messages in per second"),
            Column("messages_out", "double", "messages out per second"),
            Column(
                "weighted_max",
                "double",
                "the weighted average use of the busiest resource, as a fraction",
            ),
            Column("bundles", "long", "the number of open bundles of the broker"),
            Column("topics", "long", "the number of open topics"),
            Column("consumers", "long", "the number of consumers"),
            Column("producers", "long", "the number of producers"),
            Column("cache_bytes", "long", "the size of the cache"),
            Column("cost", "double", "the cost, as the balancer computes it"),
        ),
    ),
    TableSchema(
        table=Table.DECISIONS,
        source=Source.DECISIONS,
        meaning="The decisions of the balancer, their reasons, and what came of them",
        columns=(
            _OFFSET_BESIDE,
            _AT_BESIDE,
            Column("decided_at", "timestamp", "when it was decided, by the clock of the broker"),
            Column("broker", "text", "the broker that decided"),
            Column(
                "kind",
                "text",
                "`shed`, `split`, `merge`, `misplaced`, or `outcome`: what came of a round",
            ),
            Column("strategy", "text", "the policy that decided"),
            Column("result", "text", "the result"),
            Column("cause", "text", "the cause, as a code"),
            Column("reason", "text", "the first reason, in a sentence"),
            Column("mean", "double", "the mean load of the brokers"),
            Column("deviation", "double", "the deviation of their loads, as a fraction"),
            Column("deviation_after", "double", "the same, as the moves should leave it"),
            Column("budget_max", "double", "the share of all load that may move in an hour"),
            Column("budget_used", "double", "the part of it that is used"),
            Column(
                "moves",
                "moves",
                "the moves, or in an `outcome` those that were done: loads of both brokers before,"
                " and as predicted after, as fractions of the mean; predicted and measured time",
            ),
            Column("moves_left_out", "long", "the number of moves that the document left out"),
            Column("stays", "stays", "what stays, and why"),
            Column("stays_left_out", "long", "the number of stays that the document left out"),
            Column(
                "brokers",
                "outcomes",
                "in an `outcome`, the load of each broker before, predicted and measured, as"
                " fractions of the mean; null if not measured, for the reason",
            ),
        ),
    ),
    TableSchema(
        table=Table.SERVING,
        source=Source.SERVING,
        meaning=(
            "What brokers note about serving: a row when a broker begins to serve a bundle, and"
            " another when it stops"
        ),
        columns=(
            _OFFSET_BESIDE,
            _AT_BESIDE,
            _BROKER,
            _INCARNATION,
            _BUNDLE,
            _TOKEN,
            Column("boot", "text", "the boot of the machine, within which the times in ns compare"),
            Column("started_ns", "long", "when it began to serve, by CLOCK_BOOTTIME"),
            Column("answered_ns", "long", "when it stopped; null while it serves"),
            Column("lease_deadline_ns", "long", "when the lease of the broker ended"),
            Column("noted_at", "timestamp", "when it was noted, by the clock of the broker"),
            Column("noted_ns", "long", "the same moment by CLOCK_BOOTTIME"),
            Column(
                "ended",
                "text",
                "`closed`, `reshaped`, `lease_over`, `abandoned` or `stopped`; null while it"
                " serves",
            ),
        ),
    ),
    TableSchema(
        table=Table.FINDINGS,
        source=Source.CHANNEL,
        meaning=(
            "The findings of the audit. The audit writes this table, the archive job all others"
        ),
        columns=(
            Column(
                "log_offset",
                "long",
                "the last of `offsets`: the record at which the violation appeared",
            ),
            Column(
                "ordinal",
                "int",
                "a checksum of `rule`, `subject` and `text`, which distinguishes the findings of"
                " one offset",
            ),
            Column(
                "logged_at",
                "timestamp",
                "the log's time when the violation appeared; later than the record at `log_offset`"
                " if evidence or a time limit revealed it",
            ),
            Column("rule", "text", "the violated rule"),
            Column(
                "subject",
                "text",
                "the subject: `bundle:NAME`, `broker:ID`, `namespace:NAME` or `log:`",
            ),
            Column("offsets", "longs", "the offsets that prove it, in rising order"),
            Column("text", "text", "the violation in one sentence"),
            Column(
                "command",
                "text",
                "the command that shows it; `{log}` is a placeholder for the URL of the log",
            ),
            Column("publisher", "text", "the writer of the record at `log_offset`, if known"),
        ),
    ),
)
SCHEMAS: Final[Mapping[Table, TableSchema]] = {schema.table: schema for schema in _ALL}
"""The schema of each table, in the order of the documentation."""

WRITTEN_BY: Final[Mapping[str, tuple[Table, ...]]] = {
    "archive": tuple(schema.table for schema in _ALL if schema.table is not Table.FINDINGS),
    "audit": (Table.FINDINGS,),
}
"""The tables of each writer. Every table has one writer."""

ARCHIVED: Final = frozenset(WRITTEN_BY["archive"])
"""The tables that the archive requests from the sequence."""
