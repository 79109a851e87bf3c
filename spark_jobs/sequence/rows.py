"""Define the entries that come from the sources, the channel's log and the notes, and the rows that
the sequential operator emits.

`spark_jobs.sources.frames` reads the entries, `spark_jobs.tables` defines the bodies of
rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from equipoise.spark_jobs.rules.rule import Finding


class Source(StrEnum):
    """Where an arrival comes from. `CHANNEL` is the log; all others are notes, and no verdict
    depends on them.
    """

    CHANNEL = "channel"
    DECISIONS = "decisions"
    SERVING = "serving"
    LOADS = "loads"


ALL_SOURCES: Final = frozenset(Source)

Positions = Mapping[str, int]
"""The next offset to read of each source, by source name."""


class Arrival(NamedTuple):
    """One entry. `offset` is the storage's own and rises within its source; `at_ms` is the time of
    the storage (Unix).

    Use the channel's times, which never fall. Other sources may use other clocks, and Kafka's first
    batch may bring notes that are hours ahead of its records.
    """

    source: str
    offset: int
    at_ms: int
    value: bytes | None


# Times are numbers, because Spark converts timestamps to the session's time zone for Python.
FRAME_DDL: Final = "source STRING, offset BIGINT, at_ms BIGINT, value BINARY"
"""Columns of the frame of every source: the fields of `Arrival`."""


class Table(StrEnum):
    """The destination of a row. `REACH` (how far the audit has come) and `STATE` go to Spark's
    driver, `FACTS` to the audit of Pulsar's brokers; all others are tables of the archive.
    """

    FACTS = "facts"
    RECORDS = "records"
    SNAPSHOTS = "snapshots"
    BUNDLES = "bundles"
    TRANSITIONS = "transitions"
    INTERVALS = "intervals"
    MOVES = "moves"
    BROKER_EVENTS = "broker_events"
    GAPS = "gaps"
    LOADS = "loads"
    DECISIONS = "decisions"
    SERVING = "serving"
    REACH = "reach"
    STATE = "state"
    FINDINGS = "findings"


LASTING: Final = -1
"""The ordinal of a row of `Table.INTERVALS` that has not ended. These rows are the present state:
each batch that changes it has all of them, in place of those of earlier batches."""


class Emitted(NamedTuple):
    """One row. `(table, offset, ordinal)` is unique, and the same in every replay of the same
    entries (for findings, a checksum).

    * `subject`: of a fact its key (see `spark_jobs.rules.facts`), of a record its own key.
    * `offset`: logical for rows of the channel, else the source's own.
    * `at_ms`: the log's time, which never falls: the greatest of all entries so far. In the tables
      of notes, the source's own time.
    * `kind`, `publisher`, `verdict`: of a record (verdict: `accepted` or the reason), else None.
    * `behind_ms`: of a record, how much older than `at_ms` the storage's time of it is.
    * `body`: the entry's bytes for `RECORDS`, a compressed snapshot for `SNAPSHOTS`, else one JSON
      object; of a row with the ordinal `LASTING` null if no interval lasts.
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
    behind_ms: int = 0


def finding_row(finding: Finding) -> Emitted:
    """Return the row of a finding, at its last offset."""
    return Emitted(
        table=Table.FINDINGS.value,
        subject=finding.subject,
        offset=finding.offsets[-1],
        ordinal=finding.ordinal,
        at_ms=finding.at_ms,
        kind=finding.rule,
        publisher=finding.publisher,
        verdict=None,
        body=finding.to_bytes(),
    )


def row_beside(table: Table, subject: str, body: bytes | None) -> Emitted:
    """Return a row that is in no table of the archive."""
    return Emitted(table.value, subject, 0, 0, 0, None, None, None, body)


EMITTED_DDL: Final = (
    "table STRING, subject STRING, offset BIGINT, ordinal INT, at TIMESTAMP, kind STRING, publisher"
    " STRING, verdict STRING, body BINARY, behind_ms BIGINT"
)
