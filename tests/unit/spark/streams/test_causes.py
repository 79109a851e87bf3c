"""Test how the cause of a failure is found in Spark's messages."""

from __future__ import annotations

import pytest

from equipoise.spark_jobs.streams.causes import PROBLEM_CHARACTERS_MAX, Cause, cause_of

OF_A_WORKER = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted: Task 0 in stage 4.0 failed 1 times:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in process
    serializer.dump_stream(out_iter, outfile)
{last}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:640)
"""  # noqa: E501
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


CASES = {
    "an error of ours that passes": (
        OF_A_WORKER.format(
            last=(
                "equipoise.channel.core.errors.LogUnavailable: the log x is unavailable: busy; try"
                " again later"
            )
        ),
        Cause("the log x is unavailable: busy; try again later", passes=True),
    ),
    "an error of ours that stays": (
        OF_A_WORKER.format(
            last="equipoise.channel.core.errors.LogDamaged: the log x cannot be used: not ours"
        ),
        Cause("the log x cannot be used: not ours"),
    ),
    "an error of an archive": (
        OF_A_WORKER.format(
            last=(
                "equipoise.spark_jobs.streams.errors.ArchiveDamaged: the archive x cannot be used:"
                " no file"
            )
        ),
        Cause("the archive x cannot be used: no file"),
    ),
    "an error of Python": (
        OF_A_WORKER.format(last="KeyError: 'owner'"),
        Cause("KeyError: 'owner'"),
    ),
    "a worker that does not start": (
        (
            "Job aborted: Lost task 0.3: org.apache.spark.SparkException: Python worker failed to"
            " connect back.\n\tat"
            " org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:276)\nCaused"  # noqa: E501
            " by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to"
            " connect back"
        ),
        Cause(NOT_STARTED, passes=True),
    ),
    "a worker that does not start while results are fetched": (
        OF_A_DRIVER.format(
            first="org.apache.spark.SparkException: Python worker failed to connect back."
        ),
        Cause(NOT_STARTED, passes=True),
    ),
    "an interpreter that is none": (
        (
            ": org.apache.spark.SparkException: \nEOFException occurred while reading the port"
            " number from pyspark.daemon's stdout.\n"
        ),
        Cause("PYSPARK_PYTHON names an interpreter that does not exist or cannot run these jobs"),
    ),
    "something else of Java": (
        "Caused by: java.lang.OutOfMemoryError: Java heap space",
        Cause("OutOfMemoryError: Java heap space"),
    ),
    "no error that is known": ("\n  [WEIRD] it ended \nmore", Cause("[WEIRD] it ended")),
    "nothing at all": ("", Cause("no reason given")),
    "a long problem, which is cut": (
        "Caused by: java.lang.IllegalStateException: " + "x" * 10_000,
        Cause(f"{'IllegalStateException: ' + 'x' * 10_000:.{PROBLEM_CHARACTERS_MAX}}..."),
    ),
}


@pytest.mark.parametrize(("message", "cause"), CASES.values(), ids=CASES)
def test_the_cause_of_a_failure(message: str, cause: Cause) -> None:
    assert cause == cause_of(message)
