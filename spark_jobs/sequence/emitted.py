"""What the sequential operator emits: rows of tables, and facts for the operators that follow it.

May live here: the row, its columns, and the names of the tables. What a table's body holds is `spark_jobs.archive.tables`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Table(StrEnum):
    """Where a row belongs. `FACTS` are no table: they go on to the keyed operators; all others are tables of the archive."""

    FACTS = "facts"
    RECORDS = "records"
    SNAPSHOTS = "snapshots"
    TRANSITIONS = "transitions"
    OWNERSHIP_INTERVALS = "ownership_intervals"
    TRANSFERS = "transfers"
    BROKER_LOAD = "broker_load"
    BUNDLE_LOAD = "bundle_load"
    DECISIONS = "decisions"
    FINDINGS = "findings"


class Emitted(NamedTuple):
    """One row. `(table, offset, ordinal)` is unique, and the same in every replay of the same entries (of findings: a checksum).

    `subject` is the key of a fact (see `spark_jobs.rules.facts`), and of a record its own key. `offset` is logical for what comes from
    the channel, else its source's own. `at_ms` is the log's time, made never to fall: the greatest that any entry had so far; in the
    tables of notes it is that of the note's own source.
    `kind`, `publisher` and `verdict` are those of a record (verdict: `accepted`, or the reason); None elsewhere. `body` is the
    entry's bytes as they stand on the log for `RECORDS`, a compressed snapshot for `SNAPSHOTS`, and one JSON object elsewhere.
    """

    table: str
    subject: str
    offset: int
    ordinal: int
    at_ms: int
    kind: str | None
    publisher: str | None
    verdict: str | None
    body: bytes | None


EMITTED_DDL: Final = (
    "table STRING, subject STRING, offset BIGINT, ordinal INT, at TIMESTAMP, kind STRING, publisher STRING, verdict STRING, body BINARY"
)
