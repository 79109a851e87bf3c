"""The notifier of the SQLite log: no ring that comes after `listen` is missed, whatever happens to
its file.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.channel.sqlite import log as sqlite_log
from equipoise.channel.sqlite.log import Notifier

FOREVER_MS = 3_600_000
DEADLINE_SECONDS = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the notifier is."""
    return tmp_path / "log.db-bell"


@pytest.fixture
def notifier(path: Path) -> Iterator[Notifier]:
    """A notifier that hears by inotify."""
    with closing(Notifier(str(path), use_inotify=True)) as made:
        yield made


@pytest.fixture
def other(path: Path) -> Iterator[Notifier]:
    """Another notifier on the same file, as another process has it."""
    with closing(Notifier(str(path), use_inotify=True)) as made:
        yield made


def test_a_ring_between_listen_and_sleep_ends_the_sleep(
    notifier: Notifier, other: Notifier
) -> None:
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
    """Rings pile up while nobody listens, and all are gone after one `listen`: the sleep that
    follows lasts its time.
    """
    notifier.listen()
    for _ in range(1_000):
        other.ring()
        notifier.ring()
    notifier.listen()
    assert not notifier.sleep(1)


def test_wake_is_told_once(notifier: Notifier) -> None:
    """`listen` tells of wakes since the last time, however many there were, and then forgets
    them.
    """
    for _ in range(100_000):  # More than a pipe holds.
        notifier.wake()
    assert notifier.sleep(FOREVER_MS)
    assert [True, False] == [notifier.listen(), notifier.listen()]
    assert not notifier.sleep(1)


@pytest.mark.parametrize(
    "remove",
    [Path.unlink, lambda path: path.rename(path.with_name("elsewhere"))],
    ids=["deleted", "renamed"],
)
def test_a_lost_file_is_replaced(
    remove: Callable[[Path], object], notifier: Notifier, other: Notifier, path: Path
) -> None:
    """A reader whose file is gone is woken, and then woken by the rings of a new one."""
    notifier.listen()
    remove(path)
    assert notifier.sleep(FOREVER_MS)
    notifier.listen()
    other.ring()
    assert notifier.sleep(FOREVER_MS)


class UsedUp:
    """A system that has no inotify instance left."""

    @staticmethod
    def inotify_init1(flags: int) -> int:
        ctypes.set_errno(errno.EMFILE)
        return -1


@pytest.mark.parametrize(
    ("name", "has_inotify", "is_used_up"),
    [("missing/bell", True, False), ("bell", False, False), ("bell", True, True)],
)
def test_a_reader_that_cannot_be_notified_polls(
    name: str, has_inotify: bool, is_used_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the file cannot be made, or there is no inotify, a ring does nothing and a sleep is
    short.
    """
    if is_used_up:
        monkeypatch.setattr(sqlite_log, "_libc", UsedUp)
    notifier = Notifier(str(tmp_path / name), use_inotify=has_inotify)
    notifier.ring()
    assert not notifier.listen()
    assert not notifier.sleep(FOREVER_MS)
    notifier.close()


def test_a_closed_notifier_cannot_be_woken(notifier: Notifier) -> None:
    """After close, waking and closing do nothing."""
    notifier.close()
    notifier.wake()
    notifier.close()
