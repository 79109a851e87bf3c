"""A broker's data directory: the lock that proves a process dead, the nonces of its attempts to join, its last snapshot.

May live here: these three files, and how they are kept whole over a power cut. What a nonce proves is the protocol's
business (section 4); what a snapshot holds is `channel.core.snapshot`'s.

The directory holds
* `lock`: locked exclusively (flock) as long as the broker's process lives, with the process's id for people to read. The
  kernel lets go of the lock when the process is gone, however it went, and not before.
* `nonces`: one nonce a line, each fsynced before the record that bears it is sent.
* `snapshot`: the identity of the log that it was taken of, then the snapshot.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from equipoise.brokers.errors import DataDirectoryInUse, DataDirectoryUnusable
from equipoise.channel.core.errors import Bug
from equipoise.channel.system.file_system import refuse_network_file_system

NONCES_MAX: Final = 65_536
"""Nonces that a directory keeps. One is made at each attempt to join, at most one a second: those of 18 hours without a
single one accepted. Then the oldest half is forgotten, which costs nothing but the wait for a lease to run out."""

_LOCK: Final = "lock"
_NONCES: Final = "nonces"
_SNAPSHOT: Final = "snapshot"
_PID_BYTES_MAX: Final = 20  # A process id is a number of at most ten digits.


class DataDirectory:
    """A broker's data directory, locked from the moment of its making until `close`; also a context.

    Its methods block on the disk and must not overlap: one thread at a time. Each raises `DataDirectoryUnusable` if the
    disk refuses (full, failing, read-only), or if somebody deleted or replaced the directory's lock meanwhile.
    """

    def __init__(self, path: Path) -> None:
        """Make the directory if it is not there, and lock it.

        Raises `DataDirectoryInUse` if another process holds it, `NetworkFileSystem` where locks cannot be trusted, and
        `DataDirectoryUnusable`.
        """
        self.path = path
        with _typed(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_network_file_system(path / _LOCK)
            self._lock: int | None = _locked(path, flags=os.O_RDWR | os.O_CREAT)
            try:
                os.ftruncate(self._lock, 0)
                os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)
                # In a dict, because the oldest are the first to go.
                self._nonces = dict.fromkeys(_read_nonces(path))
            except BaseException:
                self.close()
                raise

    @property
    def nonces(self) -> frozenset[str]:
        """Every nonce that is in the directory: a process that is gone may have joined with any of them."""
        return frozenset(self._nonces)

    def write_nonce(self, nonce: str) -> None:
        """Add a nonce, a word of printable ASCII; on return it is on the disk."""
        if not _is_nonce(nonce):
            raise Bug(f"{nonce!r} is no nonce: it must be a word of printable ASCII")
        with self._changing():
            if len(self._nonces) >= NONCES_MAX:
                self._replace_nonces(tuple(self._nonces)[NONCES_MAX // 2 :])
            is_new = not (self.path / _NONCES).exists()
            # The newline before it keeps it from being joined to the rest of a line that a power cut has torn.
            _write(self.path / _NONCES, b"\n%s\n" % nonce.encode("ascii"), flags=os.O_APPEND)
            if is_new:
                _sync_folder(self.path)
            self._nonces[nonce] = None

    def forget_nonces(self, keep: str) -> None:
        """Forget every nonce but `keep`, the one of an incarnation that has been read back."""
        with self._changing():
            self._replace_nonces((keep,))

    def save_snapshot(self, snapshot: bytes, *, log_identity: str) -> None:
        """Keep `snapshot` in place of the one before; `log_identity` is that of the log which it was taken of (`Log.identity`)."""
        with self._changing():
            self._replace(_SNAPSHOT, b"%s\n%s" % (log_identity.encode(), snapshot))

    @property
    def log_identity(self) -> str | None:
        """The identity of the log that the last snapshot was taken of; None if there is no snapshot."""
        found = self._saved()
        return None if found is None else found[0].decode("utf-8", "replace")

    def load_snapshot(self) -> bytes | None:
        """The last snapshot, of whichever log it was taken (see `log_identity`); None if there is none."""
        found = self._saved()
        return None if found is None else found[1]

    def _saved(self) -> tuple[bytes, bytes] | None:
        with _typed(self.path):
            try:
                identity, _, snapshot = (self.path / _SNAPSHOT).read_bytes().partition(b"\n")
            except FileNotFoundError:
                return None
            return identity, snapshot

    def close(self) -> None:
        """Let go of the directory; afterwards nothing may be called but this."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Only while the lock is ours: a nonce written into the directory of a stranger would let it declare dead us alive."""
        if self._lock is None:
            raise Bug(f"the data directory {self.path} was used after it was closed")
        with _typed(self.path):
            _check_is_at(self.path, self._lock)
            yield

    def _replace_nonces(self, nonces: Sequence[str]) -> None:
        self._replace(_NONCES, b"".join(b"%s\n" % nonce.encode("ascii") for nonce in nonces))
        self._nonces = dict.fromkeys(nonces)

    def _replace(self, name: str, data: bytes) -> None:
        """Replace a file whole: after a power cut there is the old one or the new one, and never half of either."""
        new = self.path / f"{name}.new"
        _write(new, data, flags=os.O_TRUNC)
        new.replace(self.path / name)
        _sync_folder(self.path)


def nonces_of_dead(path: Path) -> frozenset[str]:
    """The nonces in the directory of a broker whose process is gone: with one of them its death can be proved to the channel.

    Raises `DataDirectoryInUse` if that process is still there, `NetworkFileSystem` where its lock would prove nothing, and
    `DataDirectoryUnusable` if no broker has ever used the directory. A process that starts there afterwards is safe: it
    joins with a nonce of its own, about which those returned here prove nothing.
    """
    with _typed(path):
        refuse_network_file_system(path / _LOCK)
        lock = _locked(path, flags=os.O_RDWR)
        try:
            return frozenset(_read_nonces(path))
        finally:
            os.close(lock)


@contextmanager
def _typed(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a path with a null character.
        raise DataDirectoryUnusable(path=str(path), problem=str(error)) from error


def _locked(path: Path, *, flags: int) -> int:
    """The descriptor of the directory's lock, which is ours from now on until it is closed."""
    lock = os.open(path / _LOCK, flags, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirectoryInUse(path=str(path), pid=_pid_in(lock)) from None
        _check_is_at(path, lock)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _check_is_at(path: Path, lock: int) -> None:
    """Raise `DataDirectoryUnusable` unless the lock that is held is the one that others find."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock), (path / _LOCK).stat()):
            return
    raise DataDirectoryUnusable(path=str(path), problem="its lock file was deleted or replaced while it was held")


def _pid_in(lock: int) -> int | None:
    text = os.pread(lock, _PID_BYTES_MAX, 0).strip()
    return int(text) if text.isdigit() else None


def _read_nonces(path: Path) -> list[str]:
    """What is in the file of nonces; what a power cut left of a line that was being written is passed over."""
    try:
        data = (path / _NONCES).read_bytes()
    except FileNotFoundError:
        return []
    # What stands behind the last newline was never fsynced, so no record bears it.
    lines = data.decode("ascii", "replace").split("\n")[:-1]
    return [line for line in lines if _is_nonce(line)]


def _is_nonce(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _write(path: Path, data: bytes, *, flags: int) -> None:
    """Write and fsync."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.write(file, data[written:])
        os.fsync(file)
    finally:
        os.close(file)


def _sync_folder(path: Path) -> None:
    """Make the names in a folder as durable as the files."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
