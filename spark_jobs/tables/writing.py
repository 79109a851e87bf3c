"""Write batches of rows to an archive, each row exactly once.

1. Each table has one writer. A batch is one commit for each table that it has rows of. The commit
   holds the position at which the source of the rows continues, as an application transaction.
2. `records` is written last. So all tables have the rows of everything below its position.
3. After a crash the next process repeats what lies above that position. A table skips rows below
   its own position.

The same entries give the same rows for any cut into batches (`spark_jobs.sequence.sequence`), so
no row is lost or doubled.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from equipoise.channel.core.errors import OperatorError
from equipoise.spark_jobs.sequence.rows import LASTING, Source, Table
from equipoise.spark_jobs.streams.errors import ArchiveInUse, another_log
from equipoise.spark_jobs.tables.arrow import arrow_schema, base_in, by_table
from equipoise.spark_jobs.tables.delta import DataFile, Place, files_of
from equipoise.spark_jobs.tables.files import locked
from equipoise.spark_jobs.tables.schema import FORMAT, SCHEMAS, WRITTEN_BY

STATE: Final = "_archive"
"""The table with the state of the archive."""


def names_of(writer: str) -> tuple[str, ...]:
    """Return the names of a writer's tables."""
    state = (STATE,) if writer == "archive" else ()
    return (*state, *map(str, WRITTEN_BY[writer]))


ABOUT: Final = "archive:"
"""Key of the state's row with the log that an archive belongs to."""

LOG_PROPERTY: Final = "equipoise.log"
FORMAT_PROPERTY: Final = "equipoise.format"

FILES_MAX: Final = 100
"""New files of a table after which small ones are joined: some seconds of a backfill, minutes of a
live log."""

JOINED_BYTES: Final = 64 << 20
"""Largest file that joining makes: a million and a half records."""

KEPT_HOURS: Final = 24
"""How long a file that was joined stays: readers may have listed it, and time travel needs it."""

FINDING: Final = ("rule", "subject", "log_offset", "text")
"""The columns that identify a finding. An audit that starts anew makes the same findings again."""

_ROW_GROUP_ROWS: Final = 64 * 1024
_UNLIKE: Final = frozenset({"bytes", "text", "data"})
"""Columns with unique values, where a dictionary saves nothing."""

_Value = TypeVar("_Value")

_STATE: Final = pa.schema([("key", pa.string()), ("data", pa.binary())])


class Writer:
    """The tables of one writer, with exclusive access. As a context manager it releases that access
    at the end.

    * `base`: the base of the channel's logical offsets, as far as it is known.
    * `rows_written`: the rows that this process wrote.
    """

    def __init__(self, place: Place, *, writer: str, log: str, url: str, held: ExitStack) -> None:
        """Build a writer; see `open_writer`."""
        self.place = place
        self.writer = writer
        self.log = log
        self.url = url
        self.base = 0
        self.rows_written = 0
        self._held = held
        self._tables: dict[str, DeltaTable] = {}
        self._new_files: dict[str, int] = defaultdict(int)
        self._lasting: list[DataFile] | None = None
        self._positions: dict[Table, int] = {}

    def position(self, table: Table) -> int:
        """Return the position of its source at which `table` continues: 0 in a new table."""
        # Not asked of the table: object storage may be away.
        return self._positions.get(table, 0)

    def begin_again(self, source: Source) -> None:
        """Take rows of `source` from position 0 on, after it was made anew. The next commit of its
        tables lowers their position.
        """
        for table in WRITTEN_BY[self.writer]:
            if SCHEMAS[table].source is source:
                self._positions[table] = 0

    def write(self, rows: pa.Table) -> None:
        """Write rows (`spark_jobs.tables.arrow.EMITTED`) that are not there yet.

        Raises `ArchiveInUse`, `OperatorError` if the archive cannot be written, and `PeerError` if
        object storage does not answer.
        """
        self.base = base_in(rows, self.base)
        reached: dict[Source, int] = {}
        parts = dict(by_table(rows, base=self.base)) if rows.num_rows else {}
        sources = {table.value: schema.source for table, schema in SCHEMAS.items()}
        # Intervals that last have the view's offset, which may be ahead after a gap.
        past = rows.filter(pc.not_equal(rows["ordinal"], LASTING))
        last = past.group_by("table").aggregate([("offset", "max")])
        for table, offset in zip(
            *(last[name].to_pylist() for name in last.column_names), strict=True
        ):
            if table in sources:
                source = sources[table]
                reached[source] = max(reached.get(source, 0), offset + 1)
        replaces = pc.any(pc.equal(rows["ordinal"], LASTING)).as_py() is True
        for schema, part in sorted(parts.items(), key=lambda item: item[0].table is Table.RECORDS):
            if schema.table in WRITTEN_BY[self.writer]:
                self._append(
                    schema.table,
                    part,
                    reached.get(schema.source),
                    replaces=replaces and schema.table is Table.INTERVALS,
                )

    def add_findings(self, rows: pa.Table) -> None:
        """Append findings (`EMITTED`) that are not there yet. Raises as `write`."""
        for schema, part in by_table(rows, base=0):
            if schema.table is Table.FINDINGS:
                self._append(schema.table, self._new_findings(part), None)

    def _new_findings(self, rows: pa.Table) -> pa.Table:
        table = self._tables.get(Table.FINDINGS)
        if table is None:
            return rows
        bounds = pc.min_max(rows["log_offset"]).as_py()
        offset = ds.field("log_offset")
        with self.place.reading_errors("table findings"):
            there = table.to_pyarrow_dataset().to_table(
                columns=list(FINDING),
                filter=(offset >= bounds["min"]) & (offset <= bounds["max"]),
            )
        known = set(zip(*(there[name].to_pylist() for name in FINDING), strict=True))
        found = zip(*(rows[name].to_pylist() for name in FINDING), strict=True)
        return rows.filter(pa.array([each not in known for each in found], pa.bool_()))

    def _append(
        self, table: Table, rows: pa.Table, position: int | None, *, replaces: bool = False
    ) -> None:
        """Append rows with the columns of `table` in one commit, with the `position` that they
        reach.

        Drop rows whose offset is below the table's position. With `replaces`, rows without an
        offset replace all that are there.
        """
        if position is not None:
            below, offsets = self.position(table), rows["log_offset"]
            if position <= below:
                return
            rows = rows.filter(pc.or_kleene(pc.is_null(offsets), pc.greater_equal(offsets, below)))
        name = str(table)
        with self.place.writing_errors(name, writer=self.writer):
            removed = self._lasting_files() if replaces else []
            if not rows.num_rows and not removed:
                return
            added = [self._written(name, part, day) for day, part in _by_day(rows)]
            source = SCHEMAS[table].source.value
            self._commit(
                name, added, removed, None if position is None else Transaction(source, position)
            )
            if position is not None:
                self._positions[table] = position
            if replaces:
                self._lasting = [file for file in added if file.day is None]
            self._new_files[name] += len(added)
            if self._new_files[name] >= FILES_MAX:
                self.join_files(name)
        self.rows_written += rows.num_rows

    def replace(self, parts: Iterable[pa.Table]) -> None:
        """Write rows (`EMITTED`) in place of all that this writer has written, each table in one
        commit. Raises as `write`.
        """
        added: dict[Table, list[DataFile]] = {table: [] for table in WRITTEN_BY[self.writer]}
        for rows in parts:
            for schema, part in by_table(rows, base=0):
                if schema.table in added:
                    with self.place.writing_errors(schema.table, writer=self.writer):
                        added[schema.table] += [
                            self._written(schema.table, some, day) for day, some in _by_day(part)
                        ]
                    self.rows_written += part.num_rows
        for table, files in added.items():
            with self.place.writing_errors(table, writer=self.writer):
                self._commit(table, files, files_of(self._table(table)), None)

    # --- the state ---

    def state(self) -> dict[str, bytes] | None:
        """Return the state that was saved last; None before that. Raises as
        `Place.reading_errors`.
        """
        table = self._tables.get(STATE)
        if table is None:
            return None
        with self.place.reading_errors("state"):
            rows = table.to_pyarrow_table()
            found = dict(zip(rows["key"].to_pylist(), rows["data"].to_pylist(), strict=True))
        found.pop(ABOUT, None)
        return found or None

    def save_state(self, rows: Mapping[str, bytes]) -> None:
        """Replace the state in one commit. Raises as `write`."""
        about = orjson.dumps({"log": self.log, "url": self.url})
        every = {ABOUT: about, **rows}
        table = pa.table([list(every), list(every.values())], schema=_STATE)
        with self.place.writing_errors(STATE, writer=self.writer):
            self._commit(
                STATE, [self._written(STATE, table, None)], files_of(self._table(STATE)), None
            )
            # By the version, which restarts do not reset.
            if self._table(STATE).version() % FILES_MAX == 0:
                self._delete_old_files(STATE)

    # --- files and commits ---

    def join_files(self, name: str) -> None:
        """Join neighbouring small files of each day, and delete files that were joined before.

        Raises what the library raises.
        """
        self._new_files[name] = 0
        for group in _groups(files_of(self._table(name))):
            path = _new_path(group[0].day)
            with self.place.new_file(name, path) as file:
                schema = self.place.parquet(name, group[0].path).schema_arrow
                with _parquet_writer(file, schema) as joined:
                    for each in group:
                        for batch in self.place.parquet(name, each.path).iter_batches(
                            _ROW_GROUP_ROWS
                        ):
                            joined.write_batch(batch)
                size = file.tell()
            added = group[0]._replace(
                path=path,
                size_bytes=size,
                rows=sum(each.rows for each in group),
                # The time of a finding does not rise with its offset.
                last=max(_known(each.last for each in group), default=None),
                first_at=min(_known(each.first_at for each in group), default=None),
                last_at=max(_known(each.last_at for each in group), default=None),
            )
            self._commit(name, [added], group, None, data_change=False)
        self._delete_old_files(name)

    def _delete_old_files(self, name: str) -> None:
        """Delete files that are older than `KEPT_HOURS` and in no commit, or replaced. A crash
        between a file and its commit leaves one.
        """
        table = self._table(name)
        table.vacuum(KEPT_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        table.update_incremental()

    def _written(self, name: str, rows: pa.Table, day: str | None) -> DataFile:
        path = _new_path(day)
        stored = rows.drop_columns(["day"]) if "day" in rows.column_names else rows
        with self.place.new_file(name, path) as file:
            with _parquet_writer(file, stored.schema) as writer:
                writer.write_table(stored, row_group_size=_ROW_GROUP_ROWS)
            size = file.tell()
        bounds: list[Any] = []
        for column in ("log_offset", "logged_at"):
            found = pc.min_max(stored[column]).as_py() if column in stored.column_names else {}
            bounds += [found.get("min"), found.get("max")]
        return DataFile(path, day, size, rows.num_rows, *bounds)

    def _commit(
        self,
        name: str,
        added: list[DataFile],
        removed: list[DataFile],
        transaction: Transaction | None,
        *,
        data_change: bool = True,
    ) -> None:
        table = self._table(name)
        partitions = table.metadata().partition_columns
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            *(
                RemoveAction(
                    file.path,
                    data_change,
                    now_ms,
                    file.size_bytes,
                    {"day": file.day} if partitions else {},
                )
                for file in removed
            ),
            *(
                AddAction(
                    path=file.path,
                    size=file.size_bytes,
                    partition_values={"day": file.day} if partitions else {},
                    modification_time=now_ms,
                    data_change=data_change,
                    stats=_stats(file),
                )
                for file in added
            ),
        ]
        if not actions:
            return
        version = table.version() + 1
        table.create_write_transaction(
            actions,
            mode="append",
            schema=table.schema(),
            partition_by=partitions,
            # Nobody else may write this table: a commit in between is another writer's.
            commit_properties=CommitProperties(
                max_commit_retries=0,
                app_transactions=None if transaction is None else [transaction],
            ),
        )
        self.place.keep_commit(name, version)
        table.update_incremental()
        if table.version() != version:
            raise ArchiveInUse(archive=self.place.text, who=self.writer)

    def _table(self, name: str) -> DeltaTable:
        """Return a table. Create it if there is none."""
        found = self._tables.get(name)
        if found is None:
            is_state = name == STATE
            found = self._tables[name] = DeltaTable.create(
                self.place.uri(name),
                _STATE if is_state else arrow_schema(SCHEMAS[Table(name)]),
                partition_by=None if is_state else ["day"],
                configuration={
                    "delta.dataSkippingStatsColumns": "key" if is_state else "log_offset,logged_at",
                    LOG_PROPERTY: self.log,
                    FORMAT_PROPERTY: str(FORMAT),
                },
                storage_options=self.place.options,
                raise_if_key_not_exists=False,
            )
        return found

    def _lasting_files(self) -> list[DataFile]:
        if self._lasting is None:
            files = files_of(self._table(Table.INTERVALS))
            self._lasting = [file for file in files if file.day is None]
        return self._lasting

    def open_tables(self) -> None:
        """Open the tables that are there, also after a commit in doubt. Raises as `open_writer`."""
        self._lasting = None
        self._positions.clear()
        for name in names_of(self.writer):
            self.place.mend(name)
            found = self.place.opened(name)
            if found is not None:
                check_table(found, self.place, log=self.log)
                self._tables[name] = found
                if name != STATE:
                    with self.place.reading_errors(f"table {name}"):
                        version = found.transaction_version(SCHEMAS[Table(name)].source)
                    self._positions[Table(name)] = version or 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()


def open_writer(place: Place, *, writer: str, log: str, url: str) -> Writer:
    """Open the tables of `writer` (`archive` or `audit`) at `place`. `log` is the log's identity.

    Raises `ArchiveInUse`, `ArchiveDamaged`, `OperatorError` for an archive of another log, of a
    newer version or without write access, and `PeerError` if object storage does not answer.
    """
    with ExitStack() as stack:
        if place.folder is not None:
            stack.callback(os.close, locked(place.folder, writer))
        found = Writer(place, writer=writer, log=log, url=url, held=stack)
        found.open_tables()
        found._held = stack.pop_all()  # noqa: SLF001 - only now nothing can fail
        return found


def check_table(table: DeltaTable, place: Place, *, log: str | None = None) -> None:
    """Raise `OperatorError` for a table of a newer version, or of another log than `log`."""
    properties = table.metadata().configuration
    version, owner = properties.get(FORMAT_PROPERTY, "0"), properties.get(LOG_PROPERTY)
    if int(version) > FORMAT:
        raise OperatorError(
            f"the archive {place} has version {version}, this version reads up to {FORMAT}; install"
            " a newer Equipoise"
        )
    if log is not None and owner != log:
        raise another_log(place.text, owner=str(owner), log=log)


def _by_day(rows: pa.Table) -> Iterator[tuple[str | None, pa.Table]]:
    days = rows["day"]
    found = pc.unique(days).to_pylist()
    for day in found:
        if len(found) == 1:
            part = rows
        elif day is None:
            part = rows.filter(pc.is_null(days))
        else:
            part = rows.filter(pc.equal(days, pa.scalar(day, pa.date32())))
        yield (None if day is None else day.isoformat()), part


def _new_path(day: str | None) -> str:
    return f"day={day or '__HIVE_DEFAULT_PARTITION__'}/{uuid4()}.parquet"


def _parquet_writer(file: object, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        use_dictionary=[name for name in schema.names if name not in _UNLIKE],
        write_statistics=[name for name in schema.names if name not in _UNLIKE],
    )


def _stats(file: DataFile) -> str:
    stats: dict[str, Any] = {"numRecords": file.rows}
    if file.first is not None:
        stats["minValues"] = {"log_offset": file.first, "logged_at": _text(file.first_at)}
        stats["maxValues"] = {"log_offset": file.last, "logged_at": _text(file.last_at)}
    return orjson.dumps(stats).decode()


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _known(values: Iterable[_Value | None]) -> list[_Value]:
    return [value for value in values if value is not None]


def _groups(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Yield runs of neighbouring files of one day to join."""
    group: list[DataFile] = []
    for file in [each for each in files if each.day is not None]:
        size = sum(each.size_bytes for each in group) + file.size_bytes
        if group and (file.day != group[0].day or size > JOINED_BYTES):
            yield from [group] if len(group) > 1 else []
            group = []
        group.append(file)
    yield from [group] if len(group) > 1 else []
