"""Define the errors that stop a stream, by who must act, and find the cause in Spark's error messages.

`spark_jobs.streams.streams` decides about restarts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core import errors as of_the_channel
from equipoise.channel.core.errors import CallerError, EquipoiseError, OperatorError, PeerError
from equipoise.spark_jobs.streams import archive_errors as of_the_tables
from equipoise.spark_jobs.streams import errors as of_the_jobs
from equipoise.spark_jobs.streams.archive_errors import WITHOUT_CHECKPOINT

_MODULES: Final = (of_the_channel, of_the_jobs, of_the_tables)

# A Python traceback ends with the error's dotted name and its message. Spark quotes its workers' tracebacks in full.
_OURS: Final = re.compile(r"^\s*equipoise\.[\w.]+\.(?P<kind>[A-Z]\w*): (?P<text>.+)$", re.MULTILINE)
# The driver's traceback ends with the errors that carry Java's error to Python, which have no content of their own.
_PYTHON: Final = re.compile(
    r"^\s*(?!py4j\.|pyspark\.errors\.exceptions\.captured\.|org\.|java\.)"
    r"(?P<kind>(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Timeout)): (?P<text>.+)$",
    re.MULTILINE,
)
# A Java error may quote its cause in its message, so a match must not consume the text that contains the next one.
_JAVA: Final = re.compile(r"(?:^|(?<=: ))(?:[a-z]\w*\.)+(?P<kind>[A-Z][\w$]*(?:Exception|Error))(?:(?=: (?P<text>[^\n]+)))?", re.MULTILINE)

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
"""Errors of a source that is unavailable: simple names of exceptions of Java and of Kafka's client."""

# Spark hard-codes a limit of 10 s. A worker misses it if all cores are busy or the interpreter cannot run at all.
_WORKER: Final = re.compile(r"Python worker (?:failed )?to connect back|Python daemon failed to launch worker")

_INTERPRETER: Final = re.compile(r"reading the port number from pyspark\.daemon's stdout|Cannot run program")

_UNFIT: Final = "PYSPARK_PYTHON names an interpreter that is not there, or cannot run these jobs"

_NOT_STARTED: Final = (
    "a Python worker of Spark's did not start within 10 s: this machine is busy or short of memory, or PYSPARK_PYTHON names an "
    "interpreter that cannot run these jobs"
)

PROBLEM_CHARACTERS_MAX: Final = 400


class MetricsPortTaken(CallerError):
    """The metrics port cannot be opened."""

    def __init__(self, *, port: int, problem: str) -> None:
        """`port` as given, `problem` the system's message."""
        self.port = port
        self.problem = problem
        super().__init__(f"cannot serve metrics at port {port}: {problem}; name another one with --metrics-port")


class CheckpointOfAnotherVersion(OperatorError):
    """A checkpoint's state has a version that this program does not know."""

    def __init__(self, *, folder: str, job: str, found: str, expected: str) -> None:
        """The state in the checkpoint `folder` of `job` has version `found`; this program has `expected`."""
        self.folder = folder
        self.job = job
        self.found = found
        self.expected = expected
        super().__init__(
            f"the {job} cannot go on from the checkpoint {folder}: its state is of version {found}, this Equipoise has {expected}; "
            f"go on with that other version, or remove the folder and start the job again: {WITHOUT_CHECKPOINT[job]}"
        )


class StreamFailed(OperatorError):
    """A stream failed in the same way at each start."""

    def __init__(self, *, job: str, problem: str, details: str) -> None:
        """`problem` is one line; `details` is the file with the full error."""
        self.job = job
        self.problem = problem
        self.details = details
        super().__init__(f"the {job} cannot go on: {problem}; see {details}, mend it, and start it again: it goes on where it stopped")


class SparkDied(OperatorError):
    """Spark's Java process ended during a stream."""

    def __init__(self, *, job: str, problem: str, memory: str, variable: str) -> None:
        """`problem` is the error of the last call. The process had `memory`; the environment's `variable` sets it."""
        self.job = job
        self.problem = problem
        self.memory = memory
        self.variable = variable
        super().__init__(
            f"the {job} stopped because Spark's Java process is gone: {problem}; if it was short of memory, give it more than its "
            f"{memory}, for example by {variable}=4g in the environment, and start the job again: it goes on where it stopped"
        )


class SourceLost(PeerError):
    """The source of a stream was unavailable for longer than the stream waits."""

    def __init__(self, *, job: str, problem: str, waited_s: int) -> None:
        """`problem` is the source's last error; `waited_s` is how long nothing came."""
        self.job = job
        self.problem = problem
        self.waited_s = waited_s
        super().__init__(
            f"the {job} has waited {waited_s} s for its log: {problem}; start it again when that is back: it goes on where it stopped"
        )


class GaveUp(PeerError):
    """Something that a stream needs besides its log was missing for longer than the stream waits."""

    def __init__(self, *, job: str, problem: str, waited_s: int) -> None:
        """`problem` names what was missing and why; `waited_s` is how long the current batch was tried."""
        self.job = job
        self.problem = problem
        self.waited_s = waited_s
        super().__init__(
            f"the {job} gives up after {waited_s} s: {problem}; start it again once that is mended: it goes on where it stopped"
        )


class PlaceLost(GaveUp):
    """The destination of a stream's output could not be written."""


class WorkersLost(GaveUp):
    """Spark's Python workers did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a stream failed.

    * `kind`: the simple name of an error.
    * `text`: its message in one line.
    * `passes`: whether it may resolve without action.
    * `lost`: the error to raise after waiting too long; by default the source is unavailable.
    """

    kind: str
    text: str
    passes: bool
    lost: type[SourceLost | GaveUp] = SourceLost


def cause_of(message: str) -> Cause:
    """Return the cause in Spark's message, which may contain tracebacks of Java and Python.

    Prefer an error of ours, then the last one of a worker's traceback, then Java's innermost.
    """
    for pattern in (_OURS, _PYTHON, _JAVA):
        found = list(pattern.finditer(message))
        if pattern is _JAVA and _WORKER.search(message):
            return Cause(kind="WorkerNotStarted", text=_NOT_STARTED, passes=True, lost=WorkersLost)
        if pattern is _JAVA and _INTERPRETER.search(message):
            return Cause(kind="InterpreterUnfit", text=_UNFIT, passes=False)
        if found:
            return _cause(found[-1]["kind"].rpartition(".")[2], found[-1]["text"] or "")
    return _cause("", next((line.strip() for line in message.splitlines() if line.strip()), "no reason is told"))


def cause_of_error(error: BaseException, *, lost: type[SourceLost | GaveUp] = SourceLost) -> Cause:
    """Return the cause for a caught error."""
    kind = type(error).__name__
    return Cause(kind=kind, text=_shortened(str(error) or kind), passes=isinstance(error, PeerError), lost=lost)


def _cause(kind: str, text: str) -> Cause:
    ours = next((found for module in _MODULES if (found := getattr(module, kind, None)) is not None), None)
    if isinstance(ours, type) and issubclass(ours, EquipoiseError):
        return Cause(kind=kind, text=_shortened(text), passes=issubclass(ours, PeerError))
    return Cause(kind=kind, text=_shortened(f"{kind}: {text}".strip(": ")), passes=kind in _PASSING)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= PROBLEM_CHARACTERS_MAX else f"{line[:PROBLEM_CHARACTERS_MAX]}..."
