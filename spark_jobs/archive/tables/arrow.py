"""Convert the operators' rows to Arrow tables.

A field with an invalid value in an external document becomes null.
`spark_jobs.archive.tables.schema` applies to every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.spark_jobs.archive.tables.schema import SCHEMAS, SQL_TYPES, TableSchema, Type
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.sequence.snapshots import SNAPSHOT_BYTES_MAX, decompress

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
_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """Return the columns of a table's files. Their metadata names the table and its version."""
    metadata = {"equipoise.table": str(schema.table), "equipoise.version": str(schema.version)}
    return pa.schema(
        [(column.name, _TYPES[column.type]) for column in schema.columns], metadata=metadata
    )


def ddl(schema: TableSchema) -> str:
    """Return the columns of a table with its partition, as Spark DDL."""
    return ", ".join(
        [*(f"`{column.name}` {SQL_TYPES[column.type]}" for column in schema.columns), "day DATE"]
    )


def base_in(rows: pa.Table, before: int) -> int:
    """Return the base of the channel's offsets in the newest snapshot among these rows; `before` if
    there is none.
    """
    snapshots = rows.filter(pc.equal(rows["table"], str(Table.SNAPSHOTS)))
    return int(_header(snapshots["body"][-1].as_py())["base"]) if snapshots.num_rows else before


def by_table(rows: pa.Table, *, base: int) -> Iterator[tuple[TableSchema, pa.Table]]:
    """Split rows of `spark_jobs.sequence.rows.EMITTED_DDL` by table, each sorted by (offset,
    ordinal).

    `base` is the base of the channel's logical offsets. Rows of other tables are dropped.
    """
    for schema in SCHEMAS.values():
        part = _sorted(rows.filter(pc.equal(rows["table"], str(schema.table))))
        if part.num_rows:
            yield schema, _TABLES.get(schema.table, _documents)(schema, part, base)


def by_day(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Split a table by the day (UTC) of its column `at`. Yield each day as `YYYY-MM-DD`, in
    order.
    """
    days = pc.cast(table["at"], pa.date32())
    found = sorted(day.as_py() for day in pc.unique(days))
    for day in found:
        yield (
            day.isoformat(),
            table if len(found) == 1 else table.filter(pc.equal(days, pa.scalar(day, pa.date32()))),
        )


def _sorted(rows: pa.Table) -> pa.Table:
    offsets = rows["offset"]
    # One row is sorted.
    if rows.num_rows < 2 or pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py():  # noqa: PLR2004
        return rows
    return rows.sort_by([("offset", "ascending"), ("ordinal", "ascending")])


def _records(schema: TableSchema, rows: pa.Table, base: int) -> pa.Table:
    columns = {
        **{name: rows[name] for name in ("offset", "at", "kind", "publisher", "verdict")},
        "position": pc.subtract(rows["offset"], base),
        "key": rows["subject"],
        "bytes": rows["body"],
    }
    return _table(schema, columns)


def _snapshots(schema: TableSchema, rows: pa.Table, base: int) -> pa.Table:
    headers = [_header(body) for body in rows["body"].to_pylist()]
    columns = {
        "offset": rows["offset"],
        "position": pc.subtract(rows["offset"], base),
        "at": rows["at"],
        "digest": pa.array([str(header["digest"]) for header in headers], pa.string()),
        "bundles": pa.array([len(header["bundles"]) for header in headers], pa.int64()),
        "brokers": pa.array([len(header["brokers"]) for header in headers], pa.int64()),
        "bytes": rows["body"],
    }
    return _table(schema, columns)


def _header(body: bytes) -> Mapping[str, Any]:
    """Read a snapshot in the body of a row as a document, without building a view."""
    header: Mapping[str, Any] = orjson.loads(
        decompress(body, size_max=SNAPSHOT_BYTES_MAX).partition(b"\n")[2]
    )
    return header


def _decisions(schema: TableSchema, rows: pa.Table, _base: int) -> pa.Table:
    bodies = rows["body"].to_pylist()
    documents = [
        {**_document(body), "document": None if body is None else body.decode(errors="replace")}
        for body in bodies
    ]
    return _of_documents(schema, rows, documents)


def _documents(schema: TableSchema, rows: pa.Table, _base: int) -> pa.Table:
    return _of_documents(schema, rows, [_document(body) for body in rows["body"].to_pylist()])


def _of_documents(
    schema: TableSchema, rows: pa.Table, documents: Sequence[Mapping[str, Any]]
) -> pa.Table:
    columns = {
        column.name: rows[column.name]
        if column.name in _OF_THE_ROW
        else _column([document.get(column.name) for document in documents], column.type)
        for column in schema.columns
    }
    return _table(schema, columns)


def _column(values: Sequence[object], kind: Type) -> pa.Array:
    """Return values from documents as a column. Convert them one by one only if some of them do not
    fit.
    """
    try:
        return _array(values, kind)
    except _MISFITS:
        return pa.concat_arrays([_cell(value, kind) for value in values])


def _cell(value: object, kind: Type) -> pa.Array:
    try:
        return _array([value], kind)
    except _MISFITS:
        return pa.nulls(1, _TYPES[kind])


def _array(values: Sequence[object], kind: Type) -> pa.Array:
    if kind == "timestamp":
        return pa.array(values, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(_TYPES[kind])
    return pa.array(values, _TYPES[kind])


def _table(schema: TableSchema, columns: Mapping[str, Any]) -> pa.Table:
    into = arrow_schema(schema)
    return pa.Table.from_arrays(
        [columns[field.name].cast(field.type) for field in into], schema=into
    )


def _document(body: bytes | None) -> Mapping[str, Any]:
    try:
        document = orjson.loads(body or b"null")
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


_TABLES: Final[Mapping[Table, Callable[[TableSchema, pa.Table, int], pa.Table]]] = {
    Table.RECORDS: _records,
    Table.SNAPSHOTS: _snapshots,
    Table.DECISIONS: _decisions,
}
