"""The notifier of the SQLite log: no ring that comes after `listen` is missed, whatever happens to its file."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from equipoise.channel.sqlite import notifier as sqlite_notifier
from equipoise.channel.sqlite.notifier import Notifier

FOREVER_MS = 3_600_000
DEADLINE_SECONDS = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the notifier is."""
    return tmp_path / "log.db-bell"


@pytest.fixture
def notifier(path: Path) -> Iterator[Notifier]:
    """A notifier that hears by inotify."""
    notifier = Notifier(str(path), use_inotify=True)
    yield notifier
    notifier.close()


@pytest.fixture
def other(path: Path) -> Iterator[Notifier]:
    """Another notifier on the same file, as another process has it."""
    other = Notifier(str(path), use_inotify=True)
    yield other
    other.close()


def test_a_ring_between_listen_and_sleep_ends_the_sleep(notifier: Notifier, other: Notifier) -> None:
    """A ring that falls between looking and sleeping is not missed."""
    for _ in range(3):
        assert not notifier.listen()
        other.ring()
        assert notifier.sleep(FOREVER_MS)


def test_a_ring_ends_a_sleep_in_progress(notifier: Notifier, other: Notifier) -> None:
    """A sleeping reader is woken by a ring."""
    notifier.listen()
    with ThreadPoolExecutor(1) as pool:
        sleeping = pool.submit(notifier.sleep, FOREVER_MS)
        other.ring()
        assert sleeping.result(DEADLINE_SECONDS)


def test_many_rings_are_forgotten_at_once(notifier: Notifier, other: Notifier) -> None:
    """Rings pile up while nobody listens, and all are gone after one `listen`: the sleep that follows lasts its time."""
    notifier.listen()
    for _ in range(1_000):
        other.ring()
        notifier.ring()
    notifier.listen()
    assert not notifier.sleep(1)


def test_wake_is_told_once(notifier: Notifier) -> None:
    """`listen` tells of wakes since the last time, however many there were, and then forgets them."""
    for _ in range(100_000):  # More than a pipe holds.
        notifier.wake()
    assert notifier.sleep(FOREVER_MS)
    assert [True, False] == [notifier.listen(), notifier.listen()]
    assert not notifier.sleep(1)


def test_a_removed_notifier_is_hung_up_again(notifier: Notifier, other: Notifier, path: Path) -> None:
    """A reader whose notifier was deleted hears of that, and then the rings of a new one."""
    notifier.listen()
    path.unlink()
    assert notifier.sleep(FOREVER_MS)
    notifier.listen()
    other.ring()
    assert notifier.sleep(FOREVER_MS)


def test_a_moved_notifier_is_hung_up_again(notifier: Notifier, other: Notifier, path: Path) -> None:
    """A reader whose notifier was renamed hears of that, and then the rings of a new one."""
    notifier.listen()
    path.rename(path.with_name("elsewhere"))
    assert notifier.sleep(FOREVER_MS)
    notifier.listen()
    other.ring()
    assert notifier.sleep(FOREVER_MS)


def test_a_notifier_that_cannot_ring_harms_nobody(tmp_path: Path) -> None:
    """Where the file cannot be made, ringing does nothing and a sleep is a short one, so that the reader polls."""
    notifier = Notifier(str(tmp_path / "missing" / "bell"), use_inotify=True)
    notifier.ring()
    assert not notifier.listen()
    assert not notifier.sleep(FOREVER_MS)
    notifier.close()


def test_without_inotify_a_sleep_is_short(path: Path) -> None:
    """Where there is no inotify, a sleep ends by itself soon, so that the reader polls."""
    notifier = Notifier(str(path), use_inotify=False)
    notifier.listen()
    assert not notifier.sleep(FOREVER_MS)
    notifier.close()


def test_when_inotify_is_used_up_a_sleep_is_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has no inotify instance left gets a reader that polls, and no error."""

    class UsedUp:
        @staticmethod
        def inotify_init1(flags: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr(sqlite_notifier, "_libc", UsedUp)
    notifier = Notifier(str(path), use_inotify=True)
    notifier.listen()
    assert not notifier.sleep(FOREVER_MS)
    notifier.close()


def test_a_closed_notifier_cannot_be_woken(notifier: Notifier) -> None:
    """After close, waking and closing do nothing."""
    notifier.close()
    notifier.wake()
    notifier.close()
