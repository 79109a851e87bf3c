"""Write findings to the archive's table `findings`, and count them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from equipoise.channel.core.errors import EquipoiseError
from equipoise.spark_jobs.audit.reporting import Reach, reach_in
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.rows import Table, finding_row
from equipoise.spark_jobs.tables.arrow import emitted_table
from equipoise.spark_jobs.tables.delta import Place
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.writing import Writer, open_writer


def rows_of(found: Iterable[Finding]) -> pa.Table:
    """Return findings as rows (`spark_jobs.tables.arrow.EMITTED`)."""
    return emitted_table([finding_row(each) for each in found])


def kept_findings(archive: Path, note: Callable[[str], None]) -> int:
    """Return how many findings the archive has. Return 0 if a file is damaged: the audit must still
    run.
    """
    try:
        return sum(file.rows for file in Tables(archive).files(Table.FINDINGS))
    except EquipoiseError as error:
        note(f"older findings cannot be counted: {error}")
        return 0


@contextmanager
def open_findings(archive: Path, *, log: str, url: str) -> Iterator[Writer]:
    """Open the table of an archive. From then on `reach_in` knows how far its audit has come.

    Raises as `open_writer` and `Reach.keep`.
    """
    with open_writer(Place(archive), writer="audit", log=log, url=url) as writer:
        writer.save_state({})
        if reach_in(archive) is None:
            Reach(audited=0, end=0).keep(archive)
        yield writer
