"""The errors of the Spark jobs, split by who must act, as in `channel.core.errors`.

May live here: exception classes with typed attributes that nothing in `channel` raises.
"""

from __future__ import annotations

from typing import Final

from equipoise.channel.core.errors import OperatorError, PeerError

JAVA_MIN: Final = 17
"""What the line of Spark that the extra names runs on; see docs/adr/0012-spark.md."""

_JAVA_ADVICE: Final = (
    f"on Debian: apt-get install openjdk-{JAVA_MIN}-jre-headless; elsewhere any JRE from https://adoptium.net; "
    "where there are several, JAVA_HOME names the one to use"
)


class MissingJava(OperatorError):
    """Spark runs in a Java virtual machine, and this machine has none that is new enough."""

    def __init__(self, *, problem: str) -> None:
        """`problem` says what was found instead."""
        self.problem = problem
        super().__init__(f"Spark needs Java {JAVA_MIN} or newer: {problem}; {_JAVA_ADVICE}")


class JarsMissing(OperatorError):
    """The jars of Spark's Kafka connector are not in their folder, and cannot be fetched."""

    def __init__(self, *, folder: str, problem: str, names: tuple[str, ...]) -> None:
        """`folder` is where the jars named `names` belong, `problem` why they are not there."""
        self.folder = folder
        self.problem = problem
        self.names = names
        super().__init__(
            f"Spark's Kafka connector is not there: {problem}; run `equipoise spark jars` where Maven reaches its repository "
            f"(on Debian: apt-get install maven), or put {', '.join(names)} into {folder} by hand"
        )


class WrongJar(OperatorError):
    """A jar is not the one that was tried out: its bytes differ."""

    def __init__(self, *, path: str, expected: str, found: str) -> None:
        """`expected` and `found` are the SHA-256 of the file `path`."""
        self.path = path
        self.expected = expected
        self.found = found
        super().__init__(
            f"{path} is not the jar that it should be: its SHA-256 is {found}, expected {expected}; "
            "remove it and run `equipoise spark jars`, and ask who put it there"
        )


class SourceAway(PeerError):
    """A file that entries are read from was not there for so long that a job gave up."""

    def __init__(self, *, source: str, problem: str, waited_s: int) -> None:
        """`source` is what is read, `problem` what it last said, `waited_s` for how long."""
        self.source = source
        self.problem = problem
        self.waited_s = waited_s
        super().__init__(f"{source} was away for {waited_s} s: {problem}; start the job again once it is back, it goes on where it was")


class OtherLog(OperatorError):
    """Where a job read one log there is another now: its positions mean nothing there."""

    def __init__(self, *, log: str, expected: str, found: str) -> None:
        """`log` is its URL; `expected` and `found` are identities, made at random when a log is."""
        self.log = log
        self.expected = expected
        self.found = found
        super().__init__(
            f"the log {log} is another one than this job began to read ({found}, not {expected}): "
            "put the right one back, or give the job another archive"
        )


class SparkFailed(PeerError):
    """A job of Spark ended with an error that none of ours explains."""

    def __init__(self, *, job: str, problem: str) -> None:
        """`job` is its name, `problem` what Spark says, in a line."""
        self.job = job
        self.problem = problem
        super().__init__(f"the Spark job {job} failed: {problem}; mend what that names, and start it again")
