"""Test how the cause of a failure is found in Spark's messages."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from equipoise.channel.core.errors import LogUnavailable, OutcomeUnknown
from equipoise.spark_jobs.streams.causes import (
    PROBLEM_CHARACTERS_MAX,
    Cause,
    cause_of,
    cause_of_error,
)

OF_A_WORKER = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted: Task 0 in stage 4.0 failed 1 times:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in process
    serializer.dump_stream(out_iter, outfile)
{last}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:640)
"""  # noqa: E501
OF_JAVA = """[STREAM_FAILED] Query terminated with exception: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node
Caused by: java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node"""  # noqa: E501


OF_A_DRIVER = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred: Traceback (most recent call last):
  File "streams.py", line 1, in _take
    self._stream.take(number, frame.toArrow())
py4j.protocol.Py4JJavaError: An error occurred while calling o123.collectAsArrowToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 4.0 failed 4 times: Lost task 0.3: {first}
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:276)
"""  # noqa: E501

NOT_STARTED = (
    "a Python worker of Spark did not start within 10 s: this machine is busy or short of memory,"
    " or PYSPARK_PYTHON names an interpreter that cannot run these jobs"
)


@dataclass(frozen=True, kw_only=True)
class Case:
    message: str
    expected: Cause


CASES = {
    "an error of ours that passes": Case(
        message=OF_A_WORKER.format(
            last=(
                "equipoise.channel.core.errors.LogUnavailable: the log x is unavailable: busy; try"
                " again later"
            )
        ),
        expected=Cause(
            kind="LogUnavailable",
            text="the log x is unavailable: busy; try again later",
            passes=True,
        ),
    ),
    "an error of a job that passes": Case(
        message=OF_A_WORKER.format(
            last="equipoise.channel.core.errors.PeerError: x was away for 600 s: gone"
        ),
        expected=Cause(kind="PeerError", text="x was away for 600 s: gone", passes=True),
    ),
    "an error of ours that stays": Case(
        message=OF_A_WORKER.format(
            last="equipoise.channel.core.errors.LogDamaged: the log x cannot be used: not ours"
        ),
        expected=Cause(kind="LogDamaged", text="the log x cannot be used: not ours", passes=False),
    ),
    "an error of an archive": Case(
        message=OF_A_WORKER.format(
            last=(
                "equipoise.spark_jobs.streams.errors.ArchiveDamaged: the archive x cannot be used:"
                " no file"
            )
        ),
        expected=Cause(
            kind="ArchiveDamaged", text="the archive x cannot be used: no file", passes=False
        ),
    ),
    "an error of Python": Case(
        message=OF_A_WORKER.format(last="KeyError: 'owner'"),
        expected=Cause(kind="KeyError", text="KeyError: 'owner'", passes=False),
    ),
    "a Kafka that is away": Case(
        message=OF_JAVA,
        expected=Cause(
            kind="TimeoutException",
            text="TimeoutException: Timed out waiting for a node",
            passes=True,
        ),
    ),
    "a worker that does not start": Case(
        message=(
            "Job aborted: Lost task 0.3: org.apache.spark.SparkException: Python worker failed to"
            " connect back.\n\tat"
            " org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:276)\nCaused"  # noqa: E501
            " by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to"
            " connect back"
        ),
        expected=Cause(kind="WorkerNotStarted", text=NOT_STARTED, passes=True, missing="workers"),
    ),
    "a planner that does not start": Case(
        message="[STREAM_FAILED] terminated with exception: Python worker failed to connect back.",
        expected=Cause(kind="WorkerNotStarted", text=NOT_STARTED, passes=True, missing="workers"),
    ),
    "a worker that does not start while rows are taken": Case(
        message=OF_A_DRIVER.format(
            first="org.apache.spark.SparkException: Python worker failed to connect back."
        ),
        expected=Cause(kind="WorkerNotStarted", text=NOT_STARTED, passes=True, missing="workers"),
    ),
    "a Kafka that goes away while rows are taken": Case(
        message=OF_A_DRIVER.format(
            first="org.apache.kafka.common.errors.TimeoutException: Failed to get offsets"
        ),
        expected=Cause(
            kind="TimeoutException", text="TimeoutException: Failed to get offsets", passes=True
        ),
    ),
    "an interpreter that is none": Case(
        message=(
            ": org.apache.spark.SparkException: \nEOFException occurred while reading the port"
            " number from pyspark.daemon's stdout.\n"
        ),
        expected=Cause(
            kind="InterpreterUnfit",
            text="PYSPARK_PYTHON names an interpreter that does not exist or cannot run these jobs",
            passes=False,
        ),
    ),
    "something else of Java": Case(
        message="Caused by: java.lang.OutOfMemoryError: Java heap space",
        expected=Cause(
            kind="OutOfMemoryError", text="OutOfMemoryError: Java heap space", passes=False
        ),
    ),
    "no error that is known": Case(
        message="\n  [WEIRD] it ended \nmore",
        expected=Cause(kind="", text="[WEIRD] it ended", passes=False),
    ),
    "nothing at all": Case(
        message="", expected=Cause(kind="", text="no reason given", passes=False)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_cause_of_a_failure(case: Case) -> None:
    assert case.expected == cause_of(case.message)


def test_a_long_problem_is_cut() -> None:
    cause = cause_of("Caused by: java.lang.IllegalStateException: " + "x" * 10_000)
    assert PROBLEM_CHARACTERS_MAX + len("...") == len(cause.text)


def test_the_class_of_an_error_decides_whether_it_passes() -> None:
    away = LogUnavailable(log="sqlite:x", problem="busy")
    assert Cause(kind="LogUnavailable", text=str(away), passes=True) == cause_of_error(away)
    assert Cause(kind="OSError", text="disk on fire", passes=False) == cause_of_error(
        OSError("disk on fire")
    )
    assert cause_of_error(OutcomeUnknown(log="x", subject="y", problem="z")).passes
