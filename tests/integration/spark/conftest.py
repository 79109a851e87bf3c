"""Share one Spark session between all tests of a process: it takes 10 s to start, and a process can
have only one.

* `spark`: the session, on two threads of this machine. A test stops what it runs there.
* `spark_on_kafka`: the same, with Spark's Kafka connector on its path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import pytest

from equipoise.channel.core.errors import OperatorError
from equipoise.spark_jobs.streams.options import SparkOptions
from equipoise.spark_jobs.streams.session import check_java, spark_session
from tests.pulsar.programs import is_required

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = "local[2,4]"
# Tests end before code that runs often pays for its second compilation.
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def lacking(error: Exception) -> NoReturn:
    """Skip the test with the reason, or fail it in CI."""
    if is_required():
        pytest.fail(str(error))
    pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start the session, with the connector if it is available."""
    try:
        check_java()
    except OperatorError as error:
        lacking(error)
    # For this JVM alone: others tell of the variable where tests read what they print.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", _QUICK_JVM)
        try:
            session = spark_session("tests", SparkOptions(master=_MASTER), kafka=True)
        except OperatorError:
            session = spark_session("tests", SparkOptions(master=_MASTER))
    yield session
    session.stop()


@pytest.fixture
def spark_on_kafka(spark: SparkSession) -> SparkSession:
    """Return the session for a test that reads topics."""
    if "spark-sql-kafka" not in spark.sparkContext.getConf().get("spark.jars", ""):
        lacking(RuntimeError("Spark's Kafka connector is not there: see `equipoise spark jars`"))
    return spark
