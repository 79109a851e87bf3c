"""Define the errors of an archive that its readers and writers decide by."""

from __future__ import annotations

from pathlib import Path

from equipoise.channel.core.errors import OperatorError


class ArchiveDamaged(OperatorError):
    """The archive's description or a file of it is unreadable or missing."""

    def __init__(self, *, archive: str, problem: str) -> None:
        """`problem` describes the damage."""
        self.archive = archive
        self.problem = problem
        super().__init__(
            f"the archive {archive} cannot be used: {problem}; restore it from a copy, or name"
            " another folder with --archive"
        )


class ArchiveInUse(OperatorError):
    """Another process writes the same tables of the archive."""

    def __init__(self, *, archive: str, who: str) -> None:
        """`who` holds the lock: `archive` or `audit`."""
        self.archive = archive
        self.who = who
        super().__init__(
            f"another process ({who}) uses the archive {archive}; stop it, or wait until it ends"
        )


def another_log(archive: str | Path, *, owner: str, log: str) -> OperatorError:
    """Return the error for an archive of the log `owner`."""
    return OperatorError(
        f"the archive {archive} belongs to the log {owner}, not to {log}; name another with"
        " --archive"
    )
