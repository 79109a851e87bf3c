"""Test the reader of the archive's tables."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from equipoise.channel.core.codec import decode
from equipoise.channel.core.view import View, apply
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.schema import SCHEMAS
from tests.channels.walk import Walk
from tests.spark.archived import archived, arrivals_of


@pytest.mark.parametrize("table", SCHEMAS)
def test_each_table_is_a_dataset_with_its_columns(tmp_path: Path, table: Table) -> None:
    """Also a table without rows has its columns, and `day`."""
    walk = Walk(21)
    archived(tmp_path, [arrivals_of(walk.step() for _ in range(200))])
    dataset = Tables(tmp_path).dataset(table)
    assert [*SCHEMAS[table].names, "day"] == dataset.schema.names
    assert dataset.count_rows() == len(dataset.to_table())


def test_an_interval_that_lasts_has_no_end(tmp_path: Path) -> None:
    """Each bundle that is served has one interval without an end."""
    walk, view = Walk(21), View()
    entries = [walk.step() for _ in range(200)]
    for offset, data in entries:
        apply(view, offset, decode(data))
    archived(tmp_path, [arrivals_of(entries)])
    intervals = Tables(tmp_path).dataset(Table.INTERVALS)  # noqa: F841 - DuckDB finds it by name
    open_ones = (
        duckdb.connect()
        .execute("SELECT bundle, broker FROM intervals WHERE to_at IS NULL ORDER BY bundle")
        .fetchall()
    )
    brokers = {each.incarnation: each.broker for each in view.live_brokers()}
    assert open_ones
    assert open_ones == sorted(
        (name, brokers[each.server])
        for name, each in view.bundles.items()
        if each.server is not None
    )
