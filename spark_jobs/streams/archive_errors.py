"""Define the errors of an archive, by who must act."""

from __future__ import annotations

from typing import Final

from equipoise.channel.core.errors import CallerError, OperatorError


class NoArchive(CallerError):
    """There is no archive to read."""

    def __init__(self, *, archive: str) -> None:
        """`archive` is the folder as given."""
        self.archive = archive
        super().__init__(f"there is no archive at {archive}; write one with `equipoise spark archive`, or name another with --archive")


class ArchiveOfAnotherLog(OperatorError):
    """The archive belongs to another log. Records of two logs must not mix."""

    def __init__(self, *, archive: str, expected: str, found: str) -> None:
        """`expected` is the identity of the log being read, `found` the archive's."""
        self.archive = archive
        self.expected = expected
        self.found = found
        super().__init__(f"the archive {archive} is of the log {found}, not of {expected}; name another folder with --archive")


class ArchiveTooNew(OperatorError):
    """A newer version wrote this archive."""

    def __init__(self, *, archive: str, what: str, found: int, supported: int) -> None:
        """`what` has the version `found`; this version reads up to `supported`."""
        self.archive = archive
        self.what = what
        self.found = found
        self.supported = supported
        super().__init__(f"{what} of the archive {archive} is of version {found}, this version reads up to {supported}; upgrade it")


class ArchiveDamaged(OperatorError):
    """The archive's description or a file of it is unreadable or missing."""

    def __init__(self, *, archive: str, problem: str) -> None:
        """`problem` describes the damage."""
        self.archive = archive
        self.problem = problem
        super().__init__(f"the archive {archive} cannot be used: {problem}; restore it from a copy, or name another folder with --archive")


class ArchiveFileGone(ArchiveDamaged):
    """A file is missing. If its small files are being compacted, list again to find the replacement."""

    def __init__(self, *, archive: str, file: str) -> None:
        """`file` is the missing one."""
        self.file = file
        super().__init__(archive=archive, problem=f"its file {file} is not there any more")


class ArchiveInUse(OperatorError):
    """Another process writes the same tables of the archive, or compacts its small files."""

    def __init__(self, *, archive: str, who: str) -> None:
        """`who` holds the lock: `archive`, `audit` or `tidy`."""
        self.archive = archive
        self.who = who
        super().__init__(f"another process ({who}) works on the archive {archive}; stop it first, or wait until it has ended")


class ArchiveFull(OperatorError):
    """The archive's disk is full. The current batch is unfinished, and runs again after a restart."""

    def __init__(self, *, archive: str, file: str) -> None:
        """`file` is the one that could not be written."""
        self.archive = archive
        self.file = file
        super().__init__(f"the disk of the archive {archive} is full, {file} could not be written; free space on it, and start again")


class ArchiveUnwritable(OperatorError):
    """The archive cannot be written: missing rights or a failing disk."""

    def __init__(self, *, archive: str, problem: str) -> None:
        """`problem` is the operating system's message."""
        self.archive = archive
        self.problem = problem
        super().__init__(f"the archive {archive} cannot be written: {problem}; mend that, and start again")


WITHOUT_CHECKPOINT: Final = {
    "archive": "it goes on where the archive ends",
    "audit": "it reads the log from where the log begins, and our readers take what it finds again once",
}
"""What each writer does if it finds no checkpoint next to its tables."""


class CheckpointBehind(OperatorError):
    """Spark's checkpoint is older than the archive: its next batch is not the one that the archive expects."""

    def __init__(self, *, archive: str, writer: str, checkpoint: str, batch: int, finished: int) -> None:
        """`batch` arrived, but the archive already has up to `finished` from this writer, `archive` or `audit`."""
        self.archive = archive
        self.writer = writer
        self.checkpoint = checkpoint
        self.batch = batch
        self.finished = finished
        super().__init__(
            f"Spark's checkpoint {checkpoint} goes on with batch {batch}, and the archive {archive} holds all up to batch {finished}: the "
            "checkpoint lost its newest batches, as in a power cut, or is an older copy; the archive is whole, and nothing was written; "
            f"remove that folder and start the job again: {WITHOUT_CHECKPOINT[writer]}"
        )


class NoHold(CallerError):
    """The channel has no retention hold of this name."""

    def __init__(self, *, key: str) -> None:
        """`key` is the key of its record."""
        self.key = key
        super().__init__(
            f"there is no hold {key} on the channel; the holds that compaction counts are named by `equipoise channel compact`"
        )
