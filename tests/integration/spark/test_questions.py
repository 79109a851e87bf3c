"""Test the queries of docs/how-to/ask-the-archive.md in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.questions import ANSWERS, VIEW, query_of, rounded, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]


def test_spark_answers_each_question(spark: SparkSession) -> None:
    """Two functions have other names there."""
    for name, table in tables().items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    spark.sql(of_spark(VIEW)).createOrReplaceTempView("move_outcomes")
    for question, answer in ANSWERS.items():
        assert rounded(answer) == rounded(spark.sql(of_spark(question)).collect()), question


def of_spark(question: str) -> str:
    """Return a query with Spark's names of functions."""
    return query_of(question).replace("epoch_ms(", "unix_millis(").replace("UNNEST(", "explode(")
