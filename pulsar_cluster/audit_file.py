"""Keep a file with a line for each request that a plan sends to a Pulsar cluster, and for its
outcome. One process has it at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal

from equipoise.channel.core.errors import OperatorError, PeerError

SWITCHED_OFF: Final = "shedding switched off"
RESTORED: Final = "shedding restored"


class AuditFile:
    """An open audit file. Each line is a JSON object: `at_ms` (Unix time), `event`, and the fields
    of the event.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        """Append to `file`, whose name is `path`."""
        self.path = path
        self._file = file

    def note(self, event: str, **fields: object) -> None:
        """Append a line, and return once it is on the disk. Raises `OperatorError`."""
        line = json.dumps({"at_ms": time.time_ns() // 1_000_000, "event": event, **fields})
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OperatorError(
                f"the audit file {self.path} cannot be written: {error.strerror}; free space on its"
                " disk"
            ) from error

    def unrestored(self) -> Mapping[str, object] | None:
        """Return the line of the last switch of Pulsar's shedding, if it was never switched on
        again: that process was killed.
        """
        found: Mapping[str, object] | None = None
        for entry in entries_in(self.path):
            event = entry.get("event")
            found = entry if event == SWITCHED_OFF else None if event == RESTORED else found
        return found


def entries_in(path: Path) -> list[Mapping[str, object]]:
    """Return the lines of an audit file, none if there is no file. The last line of a process that
    was killed may be cut off.
    """
    found: list[Mapping[str, object]] = []
    try:
        with path.open("rb") as file:
            for line in file:
                with suppress(ValueError):
                    entry = json.loads(line)
                    found += [entry] if isinstance(entry, dict) else []
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OperatorError(
            f"the audit file {path} cannot be read: {error.strerror}; name another one"
        ) from error
    return found


@contextmanager
def audit_file(path: Path, *, plan: Path | None) -> Iterator[AuditFile]:
    """Open and lock an audit file, and lock the file of the `plan`, if it has one; make an audit
    file if there is none.

    Raises `PeerError` if another process has one of them, and `OperatorError`.
    """
    with ExitStack() as stack:
        if plan is not None:
            stack.enter_context(
                _locked(
                    plan, "rb", f"another process applies the plan {plan}; wait until it has ended"
                )
            )
        file = _locked(
            path,
            "a+b",
            f"another process applies a plan with the audit file {path}; wait until it has ended",
        )
        stack.enter_context(file)
        if file.tell() and not _ends_whole(file):
            file.write(b"\n")
        yield AuditFile(file, path)


def _locked(path: Path, mode: Literal["rb", "a+b"], held: str) -> BinaryIO:
    """Open a file that is locked until it is closed. Raises `PeerError` with the text `held` if
    another process has the lock.
    """
    try:
        file = path.open(mode)
    except OSError as error:
        raise OperatorError(
            f"the file {path} cannot be opened: {error.strerror}; name another one"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise PeerError(held) from error
    return file


def _ends_whole(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
