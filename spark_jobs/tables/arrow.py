"""Convert rows to Arrow tables. A field with an invalid value in an external document is null."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from equipoise.spark_jobs.tables.schema import STRUCTS, TableSchema

DAY: Final = pa.field("day", pa.date32())

_SCALARS: Final[Mapping[str, pa.DataType]] = {
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "longs": pa.list_(pa.int64()),
}
_TYPES: Final[Mapping[str, pa.DataType]] = {
    **_SCALARS,
    **{
        kind: pa.list_(pa.struct([(name, _SCALARS[of]) for name, of in fields]))
        for kind, fields in STRUCTS.items()
    },
}


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """Return the columns of a table, with `day` last."""
    return pa.schema([*((each.name, _TYPES[each.type]) for each in schema.columns), DAY])


def of_decision(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the columns of a decision (`brokers.decision_log.document_of`)."""
    budget = document.get("budget") or {}
    took = document.get("durations_ms") or {}
    return {
        **document,
        "decided_at": document.get("at_ms"),
        "budget_max": budget.get("most"),
        "budget_used": budget.get("used"),
        "moves": [_move(each, took.get(each.get("bundle"))) for each in document.get("moves", ())],
    }


def _move(move: Mapping[str, Any], took_ms: int | None) -> Mapping[str, Any]:
    predicted = move.get("predicted") or {}
    source, destination = (
        predicted.get(each) or (None, None) for each in ("source", "destination")
    )
    return {
        **move,
        "source_before": source[0],
        "source_after": source[1],
        "destination_before": destination[0],
        "destination_after": destination[1],
        "predicted_ms": predicted.get("duration_ms"),
        "took_ms": took_ms,
    }
