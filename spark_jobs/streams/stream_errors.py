"""What stops a stream: its errors, split by who must act, and what an error of Spark says about that.

May live here: exception classes with typed attributes, and the reading of Spark's own messages. Who starts a stream again is
`spark_jobs.streams.streams`.
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

# A traceback of Python ends with the dotted name of the error and its message. Spark quotes tracebacks of its workers whole.
_OURS: Final = re.compile(r"^\s*equipoise\.[\w.]+\.(?P<kind>[A-Z]\w*): (?P<text>.+)$", re.MULTILINE)
# That of the driver ends with what brought Java's error here, in which there is nothing of its own.
_PYTHON: Final = re.compile(
    r"^\s*(?!py4j\.|pyspark\.errors\.exceptions\.captured\.|org\.|java\.)"
    r"(?P<kind>(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Timeout)): (?P<text>.+)$",
    re.MULTILINE,
)
# One names its cause in its own message, so that a match must not swallow the text in which the next one stands.
_JAVA: Final = re.compile(r"(?:^|(?<=: ))(?:[a-z]\w*\.)+(?P<kind>[A-Z][\w$]*(?:Exception|Error))(?:(?=: (?P<text>[^\n]+)))?", re.MULTILINE)

_PASSING: Final = frozenset({
    "BrokerNotAvailableException",
    "ConnectException",
    "ConfigException",  # Of Kafka's client, where no name of its servers can be resolved.
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
"""What a source of Spark says while it is away: simple names of exceptions, of Java and of Kafka's client."""

# Java's 10 s for it are written into Spark. They pass without one where all cores are busy, or where the interpreter cannot run at all.
_WORKER: Final = re.compile(r"Python worker (?:failed )?to connect back|Python daemon failed to launch worker")

_INTERPRETER: Final = re.compile(r"reading the port number from pyspark\.daemon's stdout|Cannot run program")

_UNFIT: Final = "PYSPARK_PYTHON names an interpreter that is not there, or cannot run these jobs"

_NOT_STARTED: Final = (
    "a Python worker of Spark's did not start within 10 s: this machine is busy or short of memory, or PYSPARK_PYTHON names an "
    "interpreter that cannot run these jobs"
)

PROBLEM_CHARACTERS_MAX: Final = 400


class MetricsPortTaken(CallerError):
    """Nothing can listen at the port that was named for metrics."""

    def __init__(self, *, port: int, problem: str) -> None:
        """`port` as given, `problem` what the system says."""
        self.port = port
        self.problem = problem
        super().__init__(f"cannot serve metrics at port {port}: {problem}; name another one with --metrics-port")


class CheckpointOfAnotherVersion(OperatorError):
    """What a checkpoint keeps is in a form that this version does not know."""

    def __init__(self, *, folder: str, job: str, found: str, expected: str) -> None:
        """The state in the checkpoint `folder` of the job `job` is of the version `found`; this one has `expected`."""
        self.folder = folder
        self.job = job
        self.found = found
        self.expected = expected
        super().__init__(
            f"the {job} cannot go on from the checkpoint {folder}: its state is of version {found}, this Equipoise has {expected}; "
            f"go on with that other version, or remove the folder and start the job again: {WITHOUT_CHECKPOINT[job]}"
        )


class StreamFailed(OperatorError):
    """A stream that failed in the same way each time it was started again."""

    def __init__(self, *, job: str, problem: str, details: str) -> None:
        """`problem` in a line, `details` the file that holds the whole story."""
        self.job = job
        self.problem = problem
        self.details = details
        super().__init__(f"the {job} cannot go on: {problem}; see {details}, mend it, and start it again: it goes on where it stopped")


class SparkDied(OperatorError):
    """The Java process of Spark ended while a stream ran in it."""

    def __init__(self, *, job: str, problem: str, memory: str, variable: str) -> None:
        """`problem` is what became of the last thing that it was asked; it had `memory`, as the environment's `variable` may change."""
        self.job = job
        self.problem = problem
        self.memory = memory
        self.variable = variable
        super().__init__(
            f"the {job} stopped because Spark's Java process is gone: {problem}; if it was short of memory, give it more than its "
            f"{memory}, for example by {variable}=4g in the environment, and start the job again: it goes on where it stopped"
        )


class SourceLost(PeerError):
    """What a stream reads was away for longer than it waits."""

    def __init__(self, *, job: str, problem: str, waited_s: int) -> None:
        """`problem` is what the source last said; `waited_s` how long nothing came."""
        self.job = job
        self.problem = problem
        self.waited_s = waited_s
        super().__init__(
            f"the {job} has waited {waited_s} s for its log: {problem}; start it again when that is back: it goes on where it stopped"
        )


class GaveUp(PeerError):
    """What a stream needs besides its log was not to be had for longer than it waits."""

    def __init__(self, *, job: str, problem: str, waited_s: int) -> None:
        """`problem` names what was missing, and says what is wrong with it; `waited_s` is how long the batch in hand was tried."""
        self.job = job
        self.problem = problem
        self.waited_s = waited_s
        super().__init__(
            f"the {job} gives up after {waited_s} s: {problem}; start it again once that is mended: it goes on where it stopped"
        )


class PlaceLost(GaveUp):
    """Where a stream puts what comes out of it could not be written."""


class WorkersLost(GaveUp):
    """The Python workers of Spark did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a stream failed: `kind` is the simple name of an error, `text` its message in a line, `passes` whether it may mend itself.

    `lost` is how a stream ends that has waited for that too long: by default what it reads is away.
    """

    kind: str
    text: str
    passes: bool
    lost: type[SourceLost | GaveUp] = SourceLost


def cause_of(message: str) -> Cause:
    """What Spark's account of a failure, tracebacks of Java and Python and all, comes down to.

    An error of ours says it best; else the last of a worker's traceback, else the innermost of Java's.
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
    """As `cause_of`, of an error that was caught as it was raised."""
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
