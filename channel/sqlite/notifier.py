"""Wake the readers of an SQLite log in all processes after a commit in any of them.

Writers open and close a small file beside the database, which readers watch with inotify. SQLite
has no such notification. Watching its WAL wakes a reader before the commit is visible, and polling
it each millisecond costs 5 % of a core.
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
"""How often a reader checks without inotify (macOS, or a user with all of Linux's 128 instances in
use).

200 checks a second are about 1 % of a core, and show a commit after 2.5 ms on average.
"""

_IN_CLOSE_WRITE: Final = 0x00000008
_IN_MOVE_SELF: Final = 0x00000800
# Watch descriptor, mask, cookie, length of the name (0 for a watch on a file).
_EVENT: Final = struct.Struct("iIII")
_EVENTS_BYTES: Final = 256 * _EVENT.size


class Notifier:
    """Notifies all processes that watch one path.

    One thread calls `listen`, `sleep` and `close`; any thread calls `ring` and `wake`. Call
    `listen`, then check the condition, then `sleep` if it does not hold. A notification after
    `listen` ends the following sleep, so none is missed.
    """

    def __init__(self, path: str, *, use_inotify: bool = sys.platform == "linux") -> None:
        """`path` is the notifier's file, created when first needed."""
        self._path = path
        self._woken_read, self._woken_write = os.pipe()
        # Guards the next two fields, so that `wake` never writes to a closed pipe.
        self._lock = threading.Lock()
        self._open = True
        self._woken = False  # True exactly while there is a byte in the pipe.
        self._inotify = _inotify_init() if use_inotify else None
        self._watching = False
        self._poll = select.poll()
        for descriptor in (self._woken_read, self._inotify):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    def ring(self) -> None:
        """Wake the readers of all processes.

        Opening and closing the file is an event; unlike a write it leaves no dirty inode for the
        next fsync. A failed notification is ignored: readers check now and then, and a commit must
        not fail for it.
        """
        with contextlib.suppress(OSError):
            os.close(
                os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, private_files.MODE)
            )

    def wake(self) -> None:
        """End the sleep of this notifier's own reader, now or when it next begins."""
        with self._lock:
            if self._open and not self._woken:
                self._woken = True
                os.write(self._woken_write, b"\0")

    def listen(self) -> bool:
        """Discard past notifications. Return whether `wake` was called."""
        if self._inotify is not None and not (self._watching and self._hear()):
            self._watching = self._watch()
        with self._lock:
            woken, self._woken = self._woken, False
            if woken:
                os.read(self._woken_read, 1)
        return woken

    def sleep(self, timeout_ms: int) -> bool:
        """Wait for a notification or `wake`, at most `timeout_ms`, or `POLL_MS` without inotify.
        Return whether one came.
        """
        return bool(self._poll.poll(timeout_ms if self._watching else min(timeout_ms, POLL_MS)))

    def close(self) -> None:
        """Close all descriptors. `wake` then does nothing."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            for descriptor in (self._woken_read, self._woken_write, self._inotify):
                if descriptor is not None:
                    os.close(descriptor)

    def _hear(self) -> bool:
        """Read all events. Return False if one is not a notification: the file may be gone."""
        assert self._inotify is not None
        only_rings = True
        while True:
            try:
                events = os.read(self._inotify, _EVENTS_BYTES)
            except BlockingIOError:
                return only_rings
            only_rings = only_rings and all(
                mask == _IN_CLOSE_WRITE for _, mask, _, _ in _EVENT.iter_unpack(events)
            )

    def _watch(self) -> bool:
        """Watch the file, creating it if needed. Return whether that worked."""
        assert self._inotify is not None
        self.ring()
        mask = _IN_CLOSE_WRITE | _IN_MOVE_SELF
        return int(_libc.inotify_add_watch(self._inotify, os.fsencode(self._path), mask)) >= 0


_libc = ctypes.CDLL(None, use_errno=True)


def _inotify_init() -> int | None:
    """Return a new inotify descriptor, or None if the system has none left."""
    if not hasattr(_libc, "inotify_init1"):
        return None
    descriptor = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    return descriptor if descriptor >= 0 else None
