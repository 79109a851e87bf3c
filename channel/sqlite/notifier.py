"""The notifier of an SQLite log: how a commit in one process wakes the readers in all others.

May live here: `Notifier`, a small file beside the database that writers open and close after a commit, and that readers
watch by inotify. SQLite itself tells nobody of a commit; watching its WAL wakes a reader before the commit is visible,
and asking it each millisecond costs 5 % of a core.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import sys
import threading
from typing import Final

from equipoise.channel.system import private_files

POLL_MS: Final = 5
"""How often a reader looks for itself where there is no inotify (macOS, or a user who has used up the 128 instances that
Linux grants): 200 looks a second are about 1 % of a core, and a commit is seen after 2.5 ms on average."""

_IN_CLOSE_WRITE: Final = 0x00000008
_IN_MOVE_SELF: Final = 0x00000800
_EVENT: Final = struct.Struct("iIII")  # watch descriptor, mask, cookie, length of the name: 0, for a watch on a file
_EVENTS_BYTES: Final = 256 * _EVENT.size


class Notifier:
    """Rings for all processes that listen to one path.

    `listen`, `sleep` and `close` are called by one thread, `ring` and `wake` by any. The order is: `listen`, then look
    for what is waited for, then `sleep` if it is not there. A ring after `listen` ends the sleep that follows, so
    that nothing is missed in between.
    """

    def __init__(self, path: str, *, use_inotify: bool = sys.platform == "linux") -> None:
        """`path` is the file that is the notifier; it is made when it is first needed."""
        self._path = path
        self._woken_read, self._woken_write = os.pipe()
        self._lock = threading.Lock()  # Over the two that follow, so that `wake` never writes to what is closed by now.
        self._open = True
        self._woken = False  # Then, and only then, there is a byte in the pipe.
        self._inotify = _inotify_init() if use_inotify else None
        self._watching = False
        self._poll = select.poll()
        for descriptor in (self._woken_read, self._inotify):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    def ring(self) -> None:
        """Wake the readers of all processes.

        Opening and closing the file is an event of its own, and unlike a write it makes no inode dirty that the next
        fsync would have to take along. A ring that fails is lost: readers look for themselves now and then, and what
        was committed must not fail for it.
        """
        with contextlib.suppress(OSError):
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, private_files.MODE))

    def wake(self) -> None:
        """End the sleep of this notifier's own reader, now or when it next begins."""
        with self._lock:
            if self._open and not self._woken:
                self._woken = True
                os.write(self._woken_write, b"\0")

    def listen(self) -> bool:
        """Forget what rang so far; whether `wake` was called."""
        if self._inotify is not None and not (self._watching and self._hear()):
            self._watching = self._watch()
        with self._lock:
            woken, self._woken = self._woken, False
            if woken:
                os.read(self._woken_read, 1)
        return woken

    def sleep(self, timeout_ms: int) -> bool:
        """Wait until the notifier rings or `wake` is called, at most `timeout_ms`, or `POLL_MS` where rings are not heard.

        Whether it was a ring or a wake that ended it.
        """
        return bool(self._poll.poll(timeout_ms if self._watching else min(timeout_ms, POLL_MS)))

    def close(self) -> None:
        """Let go of all descriptors; `wake` does nothing from here on."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            for descriptor in (self._woken_read, self._woken_write, self._inotify):
                if descriptor is not None:
                    os.close(descriptor)

    def _hear(self) -> bool:
        """Read all events; whether they were mere rings. Any other event says that the file may be gone."""
        assert self._inotify is not None
        only_rings = True
        while True:
            try:
                events = os.read(self._inotify, _EVENTS_BYTES)
            except BlockingIOError:
                return only_rings
            only_rings = only_rings and all(mask == _IN_CLOSE_WRITE for _, mask, _, _ in _EVENT.iter_unpack(events))

    def _watch(self) -> bool:
        """Watch the file, after making it if it is not there; whether that was possible."""
        assert self._inotify is not None
        self.ring()
        mask = _IN_CLOSE_WRITE | _IN_MOVE_SELF
        return int(_libc.inotify_add_watch(self._inotify, os.fsencode(self._path), mask)) >= 0


_libc = ctypes.CDLL(None, use_errno=True)


def _inotify_init() -> int | None:
    """A new inotify descriptor, or None where there is none to be had."""
    if not hasattr(_libc, "inotify_init1"):
        return None
    descriptor = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    return descriptor if descriptor >= 0 else None
