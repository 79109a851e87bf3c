"""Write findings to the archive's table `findings`, and count them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from equipoise.spark_jobs.archive.tables.reading import FINDING, Archive
from equipoise.spark_jobs.archive.tables.sink import Sink, open_sink
from equipoise.spark_jobs.archive.tables.small_files import compact_beside
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.errors import ArchiveDamaged

_ROWS: Final = pa.schema([
    ("table", pa.string()),
    ("subject", pa.string()),
    ("offset", pa.int64()),
    ("ordinal", pa.int32()),
    ("at", pa.timestamp("us", tz="UTC")),
    ("kind", pa.string()),
    ("publisher", pa.string()),
    ("verdict", pa.string()),
    ("body", pa.binary()),
])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsTable:
    """The table, for its one writer. `log` is the log's identity."""

    sink: Sink
    log: str

    def append(self, number: int, found: Sequence[Finding]) -> None:
        """Append findings as the batch `number`, unless it is there. Raises `OperatorError`."""
        self.write(number, rows_of(found))

    def write(self, number: int, rows: pa.Table) -> None:
        """Append rows (`spark_jobs.sequence.rows.EMITTED_DDL`) as `append` does."""
        self.sink.write(number, rows)
        compact_beside(Archive(self.sink.archive), "audit", number)


def rows_of(found: Sequence[Finding]) -> pa.Table:
    """Return findings as rows of `spark_jobs.sequence.rows.EMITTED_DDL`."""
    columns = {
        "table": [Table.FINDINGS.value] * len(found),
        "subject": [each.subject for each in found],
        "offset": [each.offsets[-1] for each in found],
        "ordinal": [each.ordinal for each in found],
        "at": [1_000 * each.at_ms for each in found],
        "kind": [each.rule for each in found],
        "publisher": [each.publisher for each in found],
        "verdict": [None] * len(found),
        "body": [each.to_bytes() for each in found],
    }
    return pa.table(columns, schema=_ROWS)


def kept_findings(archive: Path, note: Callable[[str], None]) -> int:
    """Return how many findings the archive has. Return 0 if a file is damaged: the audit must still
    run.
    """
    try:
        kept: int = Archive(archive).table(Table.FINDINGS, columns=FINDING).num_rows
    except ArchiveDamaged as error:
        note(f"older findings cannot be counted: {error}")
        return 0
    return kept


@contextmanager
def open_findings(archive: Path, *, log: str, url: str) -> Iterator[FindingsTable]:
    """Open the table of an archive. Raises as `open_sink`."""
    with open_sink(archive, writer="audit", log=log, url=url) as sink:
        yield FindingsTable(sink=sink, log=log)
