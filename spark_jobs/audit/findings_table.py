"""Write findings to the archive's table `findings`, and count them.

The libraries of tables take 70 MB. They are imported once there are findings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.channel.core.errors import EquipoiseError
from equipoise.spark_jobs.audit.reporting import Reach, reach_in
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.rows import Table, finding_row
from equipoise.spark_jobs.tables.files import folder_of, locked

if TYPE_CHECKING:
    import pyarrow as pa

    from equipoise.spark_jobs.tables.writing import Writer


class FindingsTable:
    """The table of the archive at a place, for its one writer. `log` is the log's identity."""

    def __init__(self, archive: str | Path, *, log: str, url: str) -> None:
        """Name the table. See `open_findings`."""
        self.archive = archive
        self.log = log
        self._url = url
        self._writer: Writer | None = None

    def append(self, rows: pa.Table) -> None:
        """Append findings (`spark_jobs.tables.arrow.EMITTED`) that are not there yet. Raises what
        `Writer.add_findings` raises.
        """
        self._writer = self._writer or self._opened()
        self._writer.add_findings(rows)

    def keep(self, reach: Reach) -> None:
        """Write how far the audit has come. Raises as `Reach.keep`."""
        reach.keep(self.archive, log=self.log, url=self._url)

    def _opened(self) -> Writer:
        from equipoise.spark_jobs.tables.delta import Place  # noqa: PLC0415 - see above
        from equipoise.spark_jobs.tables.writing import Writer  # noqa: PLC0415 - see above

        writer = Writer(
            Place(self.archive), writer="audit", log=self.log, url=self._url, held=ExitStack()
        )
        writer.open_tables()
        return writer


def rows_of(found: Iterable[Finding]) -> pa.Table:
    """Return findings as rows (`spark_jobs.tables.arrow.EMITTED`)."""
    from equipoise.spark_jobs.tables.arrow import emitted_table  # noqa: PLC0415 - see above

    return emitted_table([finding_row(each) for each in found])


def kept_findings(archive: str | Path, note: Callable[[str], None]) -> int:
    """Return how many findings the archive has. Return 0 if a file is damaged: the audit must still
    run.
    """
    folder = folder_of(archive)
    if folder is not None and not (folder / Table.FINDINGS).exists():
        return 0
    from equipoise.spark_jobs.tables.reading import Tables  # noqa: PLC0415 - see above

    try:
        return sum(file.rows for file in Tables(archive).files(Table.FINDINGS))
    except EquipoiseError as error:
        note(f"older findings cannot be counted: {error}")
        return 0


@contextmanager
def open_findings(archive: str | Path, *, log: str, url: str) -> Iterator[FindingsTable]:
    """Open the table of an archive. From then on `reach_in` knows how far its audit has come.

    Raises as `locked`, `reach_in` and `Reach.keep`.
    """
    folder, table = folder_of(archive), FindingsTable(archive, log=log, url=url)
    with ExitStack() as stack:
        if folder is not None:
            stack.callback(os.close, locked(folder, "audit"))
        table.keep(reach_in(archive, log=log) or Reach(audited=0, end=0))
        yield table
