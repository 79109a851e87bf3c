"""Convert the operators' rows to Arrow tables.

A field with an invalid value in an external document becomes null. `spark_jobs.archive.tables.schema` applies to every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.channel.core.records import INTEGER_MAX
from equipoise.compaction.compressed import decompress
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS, SQL_TYPES, TableSchema, Type
from equipoise.spark_jobs.sequence.emitted import Table
from equipoise.spark_jobs.sequence.snapshots import SNAPSHOT_BYTES_MAX

DAY: Final = pa.field("day", pa.date32())

_TYPES: Final[Mapping[Type, pa.DataType]] = {
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "longs": pa.list_(pa.int64()),
}
_OF_THE_ROW: Final = frozenset({"offset", "ordinal", "at"})


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """Return the columns of a table's files. Their metadata names the table and its version."""
    metadata = {"equipoise.table": str(schema.table), "equipoise.version": str(schema.version)}
    return pa.schema([(column.name, _TYPES[column.type]) for column in schema.columns], metadata=metadata)


def ddl(schema: TableSchema) -> str:
    """Return the columns of a table with its partition, as Spark DDL."""
    return ", ".join([*(f"`{column.name}` {SQL_TYPES[column.type]}" for column in schema.columns), "day DATE"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The header of a snapshot, read without building a view. `digest` is in decimal digits."""

    offset: int
    base: int
    digest: str
    bundles: int
    brokers: int


def read_snapshot(body: bytes) -> Snapshot:
    """Read the header of the snapshot in a row's body. Raises `ValueError` or `KeyError` if the body is not a snapshot."""
    raw = orjson.loads(decompress(body, size_max=SNAPSHOT_BYTES_MAX).partition(b"\n")[2])
    return Snapshot(
        offset=raw["offset"], base=raw["base"], digest=str(raw["digest"]), bundles=len(raw["bundles"]), brokers=len(raw["brokers"])
    )


def base_in(rows: pa.Table, before: int) -> int:
    """Return the base of the channel's offsets in the newest snapshot among these rows; `before` if there is none."""
    snapshots = rows.filter(pc.equal(rows["table"], str(Table.SNAPSHOTS)))
    return read_snapshot(snapshots["body"][-1].as_py()).base if snapshots.num_rows else before


def by_table(rows: pa.Table, *, base: int) -> Iterator[tuple[TableSchema, pa.Table]]:
    """Split rows of `spark_jobs.sequence.emitted.EMITTED_DDL` by table, each sorted by (offset, ordinal).

    `base` is the base of the channel's logical offsets. Rows of other tables are dropped.
    """
    for schema in SCHEMAS.values():
        part = _sorted(rows.filter(pc.equal(rows["table"], str(schema.table))))
        if part.num_rows:
            yield schema, _TABLES.get(schema.table, _documents)(schema, part, base)


def by_day(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Split a table by the day (UTC) of its column `at`. Yield each day as `YYYY-MM-DD`, in order."""
    days = pc.cast(table["at"], pa.date32())
    found = sorted(day.as_py() for day in pc.unique(days))
    for day in found:
        yield day.isoformat(), table if len(found) == 1 else table.filter(pc.equal(days, pa.scalar(day, pa.date32())))


def _sorted(rows: pa.Table) -> pa.Table:
    offsets = rows["offset"]
    if rows.num_rows < 2 or pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py():  # noqa: PLR2004 - one row is sorted
        return rows
    return rows.sort_by([("offset", "ascending"), ("ordinal", "ascending")])


def _records(schema: TableSchema, rows: pa.Table, base: int) -> pa.Table:
    columns = [
        rows["offset"],
        pc.subtract(rows["offset"], base),
        rows["at"],
        rows["subject"],
        rows["kind"],
        rows["publisher"],
        rows["verdict"],
        rows["body"],
    ]
    return _table(schema, columns)


def _snapshots(schema: TableSchema, rows: pa.Table, base: int) -> pa.Table:
    headers = [read_snapshot(body) for body in rows["body"].to_pylist()]
    columns = [
        rows["offset"],
        pc.subtract(rows["offset"], base),
        rows["at"],
        [each.digest for each in headers],
        [each.bundles for each in headers],
        [each.brokers for each in headers],
        rows["body"],
    ]
    return _table(schema, columns)


def _decisions(schema: TableSchema, rows: pa.Table, _base: int) -> pa.Table:
    bodies = rows["body"].to_pylist()
    documents = [{**_document(body), "document": None if body is None else body.decode(errors="replace")} for body in bodies]
    return _of_documents(schema, rows, documents)


def _documents(schema: TableSchema, rows: pa.Table, _base: int) -> pa.Table:
    return _of_documents(schema, rows, [_document(body) for body in rows["body"].to_pylist()])


def _of_documents(schema: TableSchema, rows: pa.Table, documents: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns: list[Any] = []
    for column in schema.columns:
        name = column.name
        columns.append(rows[name] if name in _OF_THE_ROW else _column([document.get(name) for document in documents], column.type))
    return _table(schema, columns)


def _column(values: list[Any], kind: Type) -> pa.Array:
    """Return values from documents as a column. Check single values only if the fast conversion fails."""
    try:
        if kind == "timestamp":
            return pa.array(values, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(_TYPES[kind])
        return pa.array(values, _TYPES[kind])
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        fit = _FITS[kind]
        return pa.array([fit(value) for value in values], _TYPES[kind])


def _table(schema: TableSchema, columns: Sequence[Any]) -> pa.Table:
    into = arrow_schema(schema)
    arrays = [
        pa.array(column, field.type) if isinstance(column, list) else column.cast(field.type)
        for column, field in zip(columns, into, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=into)


def _document(body: bytes | None) -> Mapping[str, Any]:
    try:
        document = orjson.loads(body or b"null")
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _long(value: object) -> int | None:
    return value if type(value) is int and -INTEGER_MAX <= value <= INTEGER_MAX else None


def _int(value: object) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 31 else None


def _double(value: object) -> float | None:
    return float(value) if type(value) is float or type(value) is int else None


def _text(value: object) -> str | None:
    return value if type(value) is str else None


def _bytes(_value: object) -> None:
    """Return None: no document holds bytes."""


def _timestamp(value: object) -> int | None:
    return value * 1_000 if type(value) is int and abs(value) < 1 << 50 else None


def _longs(value: object) -> list[int] | None:
    return [each for each in value if _long(each) is not None] if isinstance(value, list) else None


_FITS: Final[Mapping[Type, Callable[[object], object]]] = {
    "long": _long,
    "int": _int,
    "double": _double,
    "text": _text,
    "bytes": _bytes,
    "timestamp": _timestamp,
    "longs": _longs,
}
_TABLES: Final[Mapping[Table, Callable[[TableSchema, pa.Table, int], pa.Table]]] = {
    Table.RECORDS: _records,
    Table.SNAPSHOTS: _snapshots,
    Table.DECISIONS: _decisions,
}
