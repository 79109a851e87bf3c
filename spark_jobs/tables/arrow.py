"""Convert rows to Arrow tables. A field with an invalid value in an external document is null."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.spark_jobs.sequence.rows import LASTING, Emitted, Table
from equipoise.spark_jobs.sequence.snapshots import SNAPSHOT_BYTES_MAX, decompress
from equipoise.spark_jobs.tables.schema import SCHEMAS, STRUCTS, TableSchema

DAY: Final = pa.field("day", pa.date32())

_TIME: Final = pa.timestamp("us", tz="UTC")
_SCALARS: Final[Mapping[str, pa.DataType]] = {
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "timestamp": _TIME,
    "longs": pa.list_(pa.int64()),
}
_TYPES: Final[Mapping[str, pa.DataType]] = {
    **_SCALARS,
    **{
        kind: pa.list_(pa.struct([(name, _SCALARS[of]) for name, of in fields]))
        for kind, fields in STRUCTS.items()
    },
}
_OF_THE_ROW: Final = {"log_offset": "offset", "ordinal": "ordinal", "logged_at": "at"}
_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)

EMITTED: Final = pa.schema([
    ("table", pa.string()),
    ("subject", pa.string()),
    ("offset", pa.int64()),
    ("ordinal", pa.int32()),
    ("at", _TIME),
    ("kind", pa.string()),
    ("publisher", pa.string()),
    ("verdict", pa.string()),
    ("body", pa.binary()),
    ("behind_ms", pa.int64()),
])  # fmt: skip
"""The columns of `spark_jobs.sequence.rows.EMITTED_DDL`."""


def emitted_table(rows: Sequence[Emitted]) -> pa.Table:
    """Return rows in columns."""
    if not rows:
        return EMITTED.empty_table()
    columns: list[Iterable[Any]] = list(zip(*rows, strict=True))
    arrays = [
        pa.array(column, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)
        if field.name == "at"
        else pa.array(column, field.type)
        for column, field in zip(columns, EMITTED, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=EMITTED)


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """Return the columns of a table, with `day` last."""
    return pa.schema([*((each.name, _TYPES[each.type]) for each in schema.columns), DAY])


def base_in(rows: pa.Table, before: int) -> int:
    """Return the base of the channel's offsets in the newest snapshot among these rows; `before` if
    there is none.
    """
    snapshots = rows.filter(pc.equal(rows["table"], str(Table.SNAPSHOTS)))
    return int(_header(snapshots["body"][-1].as_py())["base"]) if snapshots.num_rows else before


def by_table(rows: pa.Table, *, base: int) -> Iterator[tuple[TableSchema, pa.Table]]:
    """Split rows of `EMITTED` by table, each sorted by (offset, ordinal), with the columns of
    `arrow_schema`.

    `base` is the base of the channel's logical offsets. Rows of other tables are dropped.
    """
    found = set(pc.unique(rows["table"]).to_pylist())
    for schema in SCHEMAS.values():
        if schema.table in found:
            part = _sorted(rows.filter(pc.equal(rows["table"], str(schema.table))))
            yield schema, _TABLES.get(schema.table, _documents)(schema, part, base)


def _sorted(rows: pa.Table) -> pa.Table:
    offsets = rows["offset"]
    if pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py() is not False:
        return rows
    return rows.sort_by([("offset", "ascending"), ("ordinal", "ascending")])


def _records(schema: TableSchema, rows: pa.Table, base: int) -> pa.Table:
    columns = {
        **{name: rows[name] for name in ("behind_ms", "kind", "publisher", "verdict")},
        "position": pc.subtract(rows["offset"], base),
        "key": rows["subject"],
        "bytes": rows["body"],
    }
    return _table(schema, rows, columns)


def _snapshots(schema: TableSchema, rows: pa.Table, base: int) -> pa.Table:
    headers = [_header(body) for body in rows["body"].to_pylist()]
    columns = {
        "position": pc.subtract(rows["offset"], base),
        "digest": pa.array([str(header["digest"]) for header in headers], pa.string()),
        "bundles": pa.array([len(header["bundles"]) for header in headers], pa.int64()),
        "brokers": pa.array([len(header["brokers"]) for header in headers], pa.int64()),
        "bytes": rows["body"],
    }
    return _table(schema, rows, columns)


def _header(body: bytes) -> Mapping[str, Any]:
    """Read a snapshot in the body of a row as a document, without building a view."""
    header: Mapping[str, Any] = orjson.loads(
        decompress(body, size_max=SNAPSHOT_BYTES_MAX).partition(b"\n")[2]
    )
    return header


def _intervals(schema: TableSchema, rows: pa.Table, base: int) -> pa.Table:
    """Return intervals. Columns about the end are null in those that last, which only the newest
    state has.
    """
    lasts = pc.equal(rows["ordinal"], LASTING)
    newest = pc.max(rows.filter(lasts)["offset"])
    rows = rows.filter(pc.or_(pc.invert(lasts), pc.equal(rows["offset"], newest)))
    lasts = pc.equal(rows["ordinal"], LASTING)
    for name in ("offset", "at"):
        place = rows.schema.get_field_index(name)
        nothing = pa.scalar(None, rows.schema.field(name).type)
        rows = rows.set_column(place, name, pc.if_else(lasts, nothing, rows[name]))
    return _documents(schema, rows.filter(pc.is_valid(rows["body"])), base)


def _decisions(schema: TableSchema, rows: pa.Table, _base: int) -> pa.Table:
    documents = [_document(body) for body in rows["body"].to_pylist()]
    return _of_documents(schema, rows, [_decision(document) for document in documents])


def _decision(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the columns of a decision (`brokers.decision_log.document_of`)."""
    budget, took = _part(document, "budget"), _part(document, "durations_ms")
    moves = document.get("moves")
    return {
        **document,
        "decided_at": document.get("at_ms"),
        "budget_max": budget.get("most"),
        "budget_used": budget.get("used"),
        "moves": [
            _move(each, took.get(str(each.get("bundle"))))
            for each in (moves if isinstance(moves, list) else ())
            if isinstance(each, dict)
        ],
    }


def _move(move: Mapping[str, Any], took_ms: object) -> Mapping[str, Any]:
    predicted = _part(move, "predicted")
    loads = {
        f"{end}_{when}": pair[place]
        for end in ("source", "destination")
        for place, when in enumerate(("before", "after"))
        if isinstance(pair := predicted.get(end), list) and len(pair) > place
    }
    return {**move, **loads, "predicted_ms": predicted.get("duration_ms"), "took_ms": took_ms}


def _serving(schema: TableSchema, rows: pa.Table, _base: int) -> pa.Table:
    documents = [_document(body) for body in rows["body"].to_pylist()]
    renamed = [
        {**each, "noted_at": each.get("at_ms"), "noted_ns": each.get("at_ns")} for each in documents
    ]
    return _of_documents(schema, rows, renamed)


def _documents(schema: TableSchema, rows: pa.Table, _base: int) -> pa.Table:
    return _of_documents(schema, rows, [_document(body) for body in rows["body"].to_pylist()])


def _of_documents(
    schema: TableSchema, rows: pa.Table, documents: Sequence[Mapping[str, Any]]
) -> pa.Table:
    columns = {
        each.name: _column([document.get(each.name) for document in documents], each.type)
        for each in schema.columns
        if each.name not in _OF_THE_ROW
    }
    return _table(schema, rows, columns)


def _column(values: Sequence[object], kind: str) -> pa.Array:
    """Return values from documents as a column. Convert them one by one only if some of them do not
    fit.
    """
    try:
        return _array(values, kind)
    except _MISFITS:
        return pa.concat_arrays([_cell(value, kind) for value in values])


def _cell(value: object, kind: str) -> pa.Array:
    try:
        return _array([value], kind)
    except _MISFITS:
        return pa.nulls(1, _TYPES[kind])


def _array(values: Sequence[object], kind: str) -> pa.Array:
    if kind == "timestamp":
        return pa.array(values, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)
    return pa.array(values, _TYPES[kind])


def _table(schema: TableSchema, rows: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    into = arrow_schema(schema)
    of_rows = {name: rows[source] for name, source in _OF_THE_ROW.items()}
    every = {**of_rows, **columns, DAY.name: pc.cast(rows["at"], DAY.type)}
    return pa.Table.from_arrays([every[each.name].cast(each.type) for each in into], schema=into)


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _document(body: bytes | None) -> Mapping[str, Any]:
    try:
        document = orjson.loads(body or b"null")
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


_TABLES: Final[Mapping[Table, Callable[[TableSchema, pa.Table, int], pa.Table]]] = {
    Table.RECORDS: _records,
    Table.SNAPSHOTS: _snapshots,
    Table.INTERVALS: _intervals,
    Table.DECISIONS: _decisions,
    Table.SERVING: _serving,
}
