"""Define the errors of the Spark jobs, by who must act, beyond those in `channel.core.errors`."""

from __future__ import annotations

from typing import Final

from equipoise.channel.core.errors import OperatorError, PeerError

JAVA_MIN: Final = 17
"""The Java that the extra's Spark needs; see docs/adr/0012-spark.md."""

_JAVA_ADVICE: Final = (
    f"on Debian: apt-get install openjdk-{JAVA_MIN}-jre-headless; elsewhere any JRE from https://adoptium.net; "
    "where there are several, JAVA_HOME names the one to use"
)


class MissingJava(OperatorError):
    """This machine has no Java virtual machine that is new enough for Spark."""

    def __init__(self, *, problem: str) -> None:
        """`problem` describes what was found instead."""
        self.problem = problem
        super().__init__(f"Spark needs Java {JAVA_MIN} or newer: {problem}; {_JAVA_ADVICE}")


class JarsMissing(OperatorError):
    """The jars of Spark's Kafka connector are missing and cannot be fetched."""

    def __init__(self, *, folder: str, problem: str, names: tuple[str, ...]) -> None:
        """`folder` is where the jars `names` belong, `problem` the reason why they are missing."""
        self.folder = folder
        self.problem = problem
        self.names = names
        super().__init__(
            f"Spark's Kafka connector is not there: {problem}; run `equipoise spark jars` where Maven reaches its repository "
            f"(on Debian: apt-get install maven), or put {', '.join(names)} into {folder} by hand"
        )


class WrongJar(OperatorError):
    """A jar has another checksum than the tested one."""

    def __init__(self, *, path: str, expected: str, found: str) -> None:
        """`expected` and `found` are SHA-256 checksums of the file `path`."""
        self.path = path
        self.expected = expected
        self.found = found
        super().__init__(
            f"{path} is not the jar that it should be: its SHA-256 is {found}, expected {expected}; "
            "remove it and run `equipoise spark jars`, and ask who put it there"
        )


class SourceAway(PeerError):
    """A file of entries was missing for so long that a job gave up."""

    def __init__(self, *, source: str, problem: str, waited_s: int) -> None:
        """`source` is the file, `problem` its last error, `waited_s` the time waited."""
        self.source = source
        self.problem = problem
        self.waited_s = waited_s
        super().__init__(f"{source} was away for {waited_s} s: {problem}; start the job again once it is back, it goes on where it was")


class OtherLog(OperatorError):
    """The URL now leads to another log, so the job's positions are meaningless."""

    def __init__(self, *, log: str, expected: str, found: str) -> None:
        """`log` is the URL; `expected` and `found` are identities, which are random for each log."""
        self.log = log
        self.expected = expected
        self.found = found
        super().__init__(
            f"the log {log} is another one than this job began to read ({found}, not {expected}): "
            "put the right one back, or give the job another archive"
        )


class SparkFailed(PeerError):
    """A Spark job ended with an error that is none of ours."""

    def __init__(self, *, job: str, problem: str) -> None:
        """`job` is its name, `problem` Spark's message in one line."""
        self.job = job
        self.problem = problem
        super().__init__(f"the Spark job {job} failed: {problem}; mend what that names, and start it again")
