"""The session of Spark that all tests of a process share, since one takes 10 s to start, and a process has only one.

* `spark`: the session, on two threads of this machine. What runs in it is its test's to stop.
* `spark_on_kafka`: the same, once Spark's connector is on its path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import pytest

from equipoise.channel.core.errors import OperatorError
from equipoise.spark_jobs.streams.session import check_java, spark_session
from tests.pulsar.programs import is_required

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = "local[2,4]"


def _lacking(error: Exception) -> NoReturn:
    """Skip what needs something that this machine lacks, aloud; under CI it fails."""
    if is_required():
        pytest.fail(str(error))
    pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session for all tests of this process, with the connector on its path if that can be had."""
    try:
        check_java()
    except OperatorError as error:
        _lacking(error)
    try:
        session = spark_session("tests", master=_MASTER, kafka=True)
    except OperatorError:
        session = spark_session("tests", master=_MASTER)
    yield session
    session.stop()


@pytest.fixture
def spark_on_kafka(spark: SparkSession) -> SparkSession:
    """The session, for a test that reads topics."""
    if "spark-sql-kafka" not in spark.sparkContext.getConf().get("spark.jars", ""):
        _lacking(RuntimeError("Spark's Kafka connector is not there: see `equipoise spark jars`"))
    return spark
