"""Keep a broker's data directory whole over a power cut.

* `lock`: locked exclusively (flock) while the process lives; contains its id. The kernel releases it when the process is gone, however it
  ended, and not before.
* `nonces`: one instance id per line, fsynced before its record is sent. Section 4 of the protocol defines what it proves.
* `snapshot`: the identity of its log, then a `channel.core.snapshot`.
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
"""Instance ids kept: 18 hours of one failed attempt to join per second. Then the oldest half is dropped, at the cost of waiting for a lease
to expire."""

_LOCK: Final = "lock"
_NONCES: Final = "nonces"
_SNAPSHOT: Final = "snapshot"
_PID_BYTES_MAX: Final = 20  # A process id has at most ten digits.


class DataDirectory:
    """A broker's data directory, locked until `close`. Also a context manager.

    Methods block on the disk; call them from one thread at a time. Each raises `DataDirectoryUnusable` if the disk fails, or if the lock
    file was deleted or replaced.
    """

    def __init__(self, path: Path) -> None:
        """Lock the directory. Create it if needed.

        Raise `DataDirectoryInUse` if another process holds it, `OperatorError` if locks cannot be trusted, and `DataDirectoryUnusable`.
        """
        self.path = path
        with _typed(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_network_file_system(path / _LOCK)
            self._lock: int | None = _locked(path, flags=os.O_RDWR | os.O_CREAT)
            try:
                os.ftruncate(self._lock, 0)
                os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)
                # In a dict, because the oldest are dropped first.
                self._nonces = dict.fromkeys(_read_nonces(path))
            except BaseException:
                self.close()
                raise

    @property
    def nonces(self) -> frozenset[str]:
        """All instance ids: a dead process may have joined with any of them."""
        return frozenset(self._nonces)

    def write_nonce(self, nonce: str) -> None:
        """Write and fsync an instance id, a word of printable ASCII."""
        if not _is_nonce(nonce):
            raise Bug(f"{nonce!r} is no nonce: it must be a word of printable ASCII")
        with self._changing():
            if len(self._nonces) >= NONCES_MAX:
                self._replace_nonces(tuple(self._nonces)[NONCES_MAX // 2 :])
            is_new = not (self.path / _NONCES).exists()
            # The leading newline ends a line that a power cut has torn.
            _write(self.path / _NONCES, b"\n%s\n" % nonce.encode("ascii"), flags=os.O_APPEND)
            if is_new:
                _sync_folder(self.path)
            self._nonces[nonce] = None

    def forget_nonces(self, keep: str) -> None:
        """Forget all instance ids but `keep`, which has been read back."""
        with self._changing():
            self._replace_nonces((keep,))

    def save_snapshot(self, snapshot: bytes, *, log_identity: str) -> None:
        """Replace the snapshot. `log_identity` is the `Log.identity` of its log."""
        with self._changing():
            self._replace(_SNAPSHOT, b"%s\n%s" % (log_identity.encode(), snapshot))

    @property
    def log_identity(self) -> str | None:
        """The identity of the snapshot's log; None without a snapshot."""
        found = self._saved()
        return None if found is None else found[0].decode("utf-8", "replace")

    def load_snapshot(self) -> bytes | None:
        """Return the last snapshot, of any log (see `log_identity`), if there is one."""
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
        """Release the directory. Afterwards call nothing but this."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Check that we hold the lock. An instance id in another broker's directory would let it declare us dead."""
        if self._lock is None:
            raise Bug(f"the data directory {self.path} was used after it was closed")
        with _typed(self.path):
            _check_is_at(self.path, self._lock)
            yield

    def _replace_nonces(self, nonces: Sequence[str]) -> None:
        self._replace(_NONCES, b"".join(b"%s\n" % nonce.encode("ascii") for nonce in nonces))
        self._nonces = dict.fromkeys(nonces)

    def _replace(self, name: str, data: bytes) -> None:
        """Replace a file: after a power cut it is the old or the new one, never a mixture."""
        new = self.path / f"{name}.new"
        _write(new, data, flags=os.O_TRUNC)
        new.replace(self.path / name)
        _sync_folder(self.path)


def nonces_of_dead(path: Path) -> frozenset[str]:
    """Return the instance ids of a dead process, which prove its death to the channel.

    Raise `DataDirectoryInUse` if it lives, `OperatorError` if its lock proves nothing, and `DataDirectoryUnusable` if no broker used
    the directory. A process that starts later is safe: it joins with a new id.
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
    """Lock the directory and return the descriptor; closing it releases the lock."""
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
    """Raise `DataDirectoryUnusable` unless the held lock is the file that others find."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock), (path / _LOCK).stat()):
            return
    raise DataDirectoryUnusable(path=str(path), problem="its lock file was deleted or replaced while it was held")


def _pid_in(lock: int) -> int | None:
    text = os.pread(lock, _PID_BYTES_MAX, 0).strip()
    return int(text) if text.isdigit() else None


def _read_nonces(path: Path) -> list[str]:
    """Return the instance ids in the file, without a line torn by a power cut."""
    try:
        data = (path / _NONCES).read_bytes()
    except FileNotFoundError:
        return []
    # Text after the last newline was never fsynced: no record carries it.
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
