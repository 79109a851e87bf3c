"""Test the queries of docs/how-to/ask-the-archive.md in DuckDB and Polars."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import polars as pl
import pytest

from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.schema import SCHEMAS
from tests.spark.day import archive_day
from tests.spark.questions import ANSWERS, VIEW, query_of, questions, rounded, tables


def test_each_query_of_the_page_has_its_answer() -> None:
    assert 20 + 1 == len(questions()) == len(ANSWERS)


@pytest.mark.parametrize("question", ANSWERS)
def test_duckdb(question: str) -> None:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for name, table in tables().items():
            db.register(name, table)
        db.execute(f"CREATE VIEW move_outcomes AS {query_of(VIEW)}")
        answer = db.execute(query_of(question)).fetchall()
    assert rounded(ANSWERS[question]) == rounded(answer)


@pytest.mark.parametrize("question", ANSWERS)
def test_polars(question: str) -> None:
    """One function has another name there."""
    query = re.sub(r"epoch_ms\((\w+)\)", r"EXTRACT(EPOCH FROM \1) * 1000", query_of(question))
    context = pl.SQLContext({name: pl.from_arrow(table) for name, table in tables().items()})
    context.register("move_outcomes", context.execute(query_of(VIEW)))
    answer = context.execute(query, eager=True).rows()
    assert rounded(ANSWERS[question]) == rounded(answer)


def test_the_tables_of_an_archive_answer_them(tmp_path: Path) -> None:
    """All but those about faults, splits and returns, of which the day has none."""
    archive_day(tmp_path / "archive", records=2_000)
    there = Tables(tmp_path / "archive")
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for table in SCHEMAS:
            db.register(str(table), there.dataset(table))
        db.execute(f"CREATE VIEW move_outcomes AS {query_of(VIEW)}")
        empty = [name for name in ANSWERS if not db.execute(query_of(name)).fetchall()]
    assert [
        "Who owned a bundle when record 4711",
        "Which brokers lost their lease",
        "Which bundles moved back",
        "Which bundles were split or merged",
        "What did the audit find?",
        "What is missing in the archive?",
    ] == empty
