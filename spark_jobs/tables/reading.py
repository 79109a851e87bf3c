"""Read the archive's tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.dataset as ds

from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.sequence.snapshots import unpacked
from equipoise.spark_jobs.tables.arrow import arrow_schema, of_decision
from equipoise.spark_jobs.tables.schema import SCHEMAS

_SOURCES: Final[Mapping[Table, tuple[Table, ...]]] = {
    Table.INTERVALS: (Table.OWNERSHIP_INTERVALS,),
    Table.MOVES: (Table.TRANSFERS,),
    Table.LOADS: (Table.BROKER_LOAD, Table.BUNDLE_LOAD),
    **dict.fromkeys((Table.BUNDLES, Table.BROKER_EVENTS, Table.GAPS, Table.SERVING), ()),
}


class Tables:
    """The tables of the archive in a folder, or at a URL of object storage."""

    def __init__(self, place: str | Path) -> None:
        """Open the archive at `place`. Raises `NotFound`."""
        self.place = str(place)
        self._archive = Archive(Path(place))

    def dataset(self, table: Table) -> ds.Dataset:
        """Return a table as it is now, with the columns of `SCHEMAS[table]` and then `day`."""
        into = arrow_schema(SCHEMAS[table])
        rows: list[dict[str, Any]] = []
        for source in _SOURCES.get(table, (table,)):
            for row in self._archive.table(source).to_pylist():
                found = {"log_offset": row.pop("offset"), "logged_at": row.pop("at"), **row}
                if table is Table.DECISIONS:
                    found |= of_decision(orjson.loads(found["document"]))
                rows.append({"day": found["logged_at"].date(), **found})
        if table is Table.INTERVALS:
            rows += self._open()
        return ds.dataset(pa.Table.from_pylist(rows, schema=into))

    def _open(self) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        snapshots = self._archive.table(Table.SNAPSHOTS)
        if snapshots.num_rows:
            view = unpacked(snapshots["bytes"][0].as_py())
            brokers = {each.incarnation: each.broker for each in view.live_brokers()}
            for bundle in view.bundles.values():
                if bundle.server is not None:
                    found[bundle.name] = {
                        "namespace": bundle.namespace,
                        "bundle": bundle.name,
                        "broker": brokers.get(bundle.server),
                        "incarnation": bundle.server,
                        "token": bundle.token,
                    }
        for step in self._archive.table(Table.TRANSITIONS).to_pylist():
            before, after = _server(step, "before"), _server(step, "after")
            if before != after:
                found.pop(step["bundle"], None)
                if after is not None:
                    found[step["bundle"]] = {
                        "namespace": step["namespace"],
                        "bundle": step["bundle"],
                        "broker": after,
                        "token": step["token"],
                        "from_offset": step["offset"],
                        "from_at": step["at"],
                    }
        return list(found.values())


def _server(step: Mapping[str, Any], side: str) -> object:
    phase = step[f"phase_{side}"]
    if phase in ("owned", "splitting"):
        return step[f"owner_{side}"]
    return (
        step[f"source_{side}"] if phase in ("transferring", "handing_over", "unloading") else None
    )
