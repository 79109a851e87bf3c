"""Find the cause of a failure in Spark's error messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from equipoise.channel.core import errors as of_the_channel
from equipoise.channel.core.errors import EquipoiseError, PeerError
from equipoise.spark_jobs.streams import errors as of_the_jobs

_MODULES: Final = (of_the_channel, of_the_jobs)

# A Python traceback ends with the error's dotted name and its message. Spark quotes its workers'
# tracebacks in full.
_OURS: Final = re.compile(r"^\s*equipoise\.[\w.]+\.(?P<kind>[A-Z]\w*): (?P<text>.+)$", re.MULTILINE)
# The driver's traceback ends with the errors that carry Java's error to Python, which have no
# content of their own.
_PYTHON: Final = re.compile(
    r"^\s*(?!py4j\.|pyspark\.errors\.exceptions\.captured\.|org\.|java\.)"
    r"(?P<kind>(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Timeout)): (?P<text>.+)$",
    re.MULTILINE,
)
# A Java error may quote its cause in its message, so a match must not consume the text that
# contains the next one.
_JAVA: Final = re.compile(
    r"(?:^|(?<=: ))(?:[a-z]\w*\.)+(?P<kind>[A-Z][\w$]*(?:Exception|Error))(?:(?=:"
    r" (?P<text>[^\n]+)))?",
    re.MULTILINE,
)

_PASSING: Final = frozenset({
    "BrokerNotAvailableException",
    "ConnectException",
    "ConfigException",  # Of Kafka's client, if no server name can be resolved.
    "CoordinatorNotAvailableException",
    "DisconnectException",
    "LeaderNotAvailableException",
    "NetworkException",
    "NotLeaderOrFollowerException",
    "RetriableException",
    "SocketTimeoutException",
    "TimeoutException",
    "UnknownTopicOrPartitionException",
})  # fmt: skip
"""Errors of a source that is unavailable: simple names of exceptions of Java and of Kafka's
client."""

# Spark hard-codes a limit of 10 s. A worker misses it if all cores are busy or the interpreter
# cannot run at all.
_WORKER: Final = re.compile(
    r"Python worker (?:failed )?to connect back|Python daemon failed to launch worker"
)

_INTERPRETER: Final = re.compile(
    r"reading the port number from pyspark\.daemon's stdout|Cannot run program"
)

_UNFIT: Final = "PYSPARK_PYTHON names an interpreter that does not exist or cannot run these jobs"

_NOT_STARTED: Final = (
    "a Python worker of Spark did not start within 10 s: this machine is busy or short of memory,"
    " or PYSPARK_PYTHON names an interpreter that cannot run these jobs"
)

PROBLEM_CHARACTERS_MAX: Final = 400

Missing = Literal["source", "output", "workers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a stream failed.

    * `kind`: the simple name of an error.
    * `text`: its message in one line.
    * `passes`: whether it may resolve without action.
    * `missing`: what a stream waits for, if it passes.
    """

    kind: str
    text: str
    passes: bool
    missing: Missing = "source"


def cause_of(message: str) -> Cause:
    """Return the cause in Spark's message, which may contain tracebacks of Java and Python.

    Prefer an error of ours, then the last one of a worker's traceback, then Java's innermost.
    """
    for pattern in (_OURS, _PYTHON, _JAVA):
        found = list(pattern.finditer(message))
        if pattern is _JAVA and _WORKER.search(message):
            return Cause(kind="WorkerNotStarted", text=_NOT_STARTED, passes=True, missing="workers")
        if pattern is _JAVA and _INTERPRETER.search(message):
            return Cause(kind="InterpreterUnfit", text=_UNFIT, passes=False)
        if found:
            return _cause(found[-1]["kind"].rpartition(".")[2], found[-1]["text"] or "")
    return _cause(
        "", next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")
    )


def cause_of_error(error: BaseException, *, missing: Missing = "source") -> Cause:
    """Return the cause for a caught error."""
    kind = error.code if isinstance(error, EquipoiseError) else type(error).__name__
    return Cause(
        kind=kind,
        text=_shortened(str(error) or kind),
        passes=isinstance(error, PeerError),
        missing=missing,
    )


def spark_failed(job: str, message: str) -> PeerError:
    """Return the error for a job that ended with Spark's `message`."""
    return PeerError(
        f"the Spark job {job} failed: {cause_of(message).text}; fix that, and start the job again"
    )


def _cause(kind: str, text: str) -> Cause:
    ours = next(
        (found for module in _MODULES if (found := getattr(module, kind, None)) is not None), None
    )
    if isinstance(ours, type) and issubclass(ours, EquipoiseError):
        return Cause(kind=kind, text=_shortened(text), passes=issubclass(ours, PeerError))
    return Cause(kind=kind, text=_shortened(f"{kind}: {text}".strip(": ")), passes=kind in _PASSING)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= PROBLEM_CHARACTERS_MAX else f"{line[:PROBLEM_CHARACTERS_MAX]}..."
