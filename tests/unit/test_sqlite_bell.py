"""The bell of the SQLite log: no ring that comes after `listen` is missed, whatever happens to its file.

May live here: bells alone, without a log.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from equipoise.channel.sqlite import bell as sqlite_bell
from equipoise.channel.sqlite.bell import Bell

FOREVER_MS = 3_600_000
DEADLINE_SECONDS = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the bell is."""
    return tmp_path / "log.db-bell"


@pytest.fixture
def bell(path: Path) -> Iterator[Bell]:
    """A bell that hears by inotify."""
    bell = Bell(str(path), use_inotify=True)
    yield bell
    bell.close()


@pytest.fixture
def other(path: Path) -> Iterator[Bell]:
    """Another bell on the same file, as another process has it."""
    other = Bell(str(path), use_inotify=True)
    yield other
    other.close()


def test_a_ring_between_listen_and_sleep_ends_the_sleep(bell: Bell, other: Bell) -> None:
    """A ring that falls between looking and sleeping is not missed."""
    for _ in range(3):
        assert not bell.listen()
        other.ring()
        assert bell.sleep(FOREVER_MS)


def test_a_ring_ends_a_sleep_in_progress(bell: Bell, other: Bell) -> None:
    """A sleeping reader is woken by a ring."""
    bell.listen()
    with ThreadPoolExecutor(1) as pool:
        sleeping = pool.submit(bell.sleep, FOREVER_MS)
        other.ring()
        assert sleeping.result(DEADLINE_SECONDS)


def test_many_rings_are_forgotten_at_once(bell: Bell, other: Bell) -> None:
    """Rings pile up while nobody listens, and all are gone after one `listen`: the sleep that follows lasts its time."""
    bell.listen()
    for _ in range(1_000):
        other.ring()
        bell.ring()
    bell.listen()
    assert not bell.sleep(1)


def test_wake_is_told_once(bell: Bell) -> None:
    """`listen` tells of wakes since the last time, however many there were, and then forgets them."""
    for _ in range(100_000):  # More than a pipe holds.
        bell.wake()
    assert bell.sleep(FOREVER_MS)
    assert [True, False] == [bell.listen(), bell.listen()]
    assert not bell.sleep(1)


def test_a_removed_bell_is_hung_up_again(bell: Bell, other: Bell, path: Path) -> None:
    """A reader whose bell was deleted hears of that, and then the rings of a new one."""
    bell.listen()
    path.unlink()
    assert bell.sleep(FOREVER_MS)
    bell.listen()
    other.ring()
    assert bell.sleep(FOREVER_MS)


def test_a_moved_bell_is_hung_up_again(bell: Bell, other: Bell, path: Path) -> None:
    """A reader whose bell was renamed hears of that, and then the rings of a new one."""
    bell.listen()
    path.rename(path.with_name("elsewhere"))
    assert bell.sleep(FOREVER_MS)
    bell.listen()
    other.ring()
    assert bell.sleep(FOREVER_MS)


def test_a_bell_that_cannot_ring_harms_nobody(tmp_path: Path) -> None:
    """Where the file cannot be made, ringing does nothing and a sleep is a short one, so that the reader polls."""
    bell = Bell(str(tmp_path / "missing" / "bell"), use_inotify=True)
    bell.ring()
    assert not bell.listen()
    assert not bell.sleep(FOREVER_MS)
    bell.close()


def test_without_inotify_a_sleep_is_short(path: Path) -> None:
    """Where there is no inotify, a sleep ends by itself soon, so that the reader polls."""
    bell = Bell(str(path), use_inotify=False)
    bell.listen()
    assert not bell.sleep(FOREVER_MS)
    bell.close()


def test_when_inotify_is_used_up_a_sleep_is_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has no inotify instance left gets a reader that polls, and no error."""

    class UsedUp:
        @staticmethod
        def inotify_init1(flags: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr(sqlite_bell, "_libc", UsedUp)
    bell = Bell(str(path), use_inotify=True)
    bell.listen()
    assert not bell.sleep(FOREVER_MS)
    bell.close()


def test_a_closed_bell_cannot_be_woken(bell: Bell) -> None:
    """After close, waking and closing do nothing."""
    bell.close()
    bell.wake()
    bell.close()
