"""One SQLite log in many real processes: one order, nothing lost to `kill -9`, and nobody blocked
for ever by SIGSTOP.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.channel.core.errors import LogStorageFull, LogUnavailable
from equipoise.channel.core.log import Entry, Log
from equipoise.channel.log.open_log import open_log
from tests.channels.carried import entries_of

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 60.0
TIMEOUT_MS = 20_000


class Child:
    """A `log_process`, and the lines that it says, read by a thread so that waiting for one has a
    deadline.
    """

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.integration.log_process", *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def line(self) -> str:
        """The next line that the process says."""
        return self._lines.get(timeout=DEADLINE_SECONDS)

    def remaining_lines(self) -> list[str]:
        """What the process says until its end, which this waits for."""
        self._process.wait(DEADLINE_SECONDS)
        self._reader.join(DEADLINE_SECONDS)
        return [self._lines.get_nowait() for _ in range(self._lines.qsize())]

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; a stop has happened when this returns."""
        self._process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """Give the process the line that it waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Leave nothing of the process."""
        self._process.kill()
        self._process.wait(DEADLINE_SECONDS)
        self._reader.join(DEADLINE_SECONDS)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


Start = Callable[..., Child]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes, and ends them all."""
    children: list[Child] = []

    def start_child(*arguments: str) -> Child:
        children.append(Child(*arguments))
        return children[-1]

    yield start_child
    for child in children:
        child.end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log is."""
    return tmp_path / "log.db"


@pytest.fixture
def url(path: Path) -> str:
    """The log's URL."""
    return f"sqlite:{path}"


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    """A handle of the test's own process."""
    with closing(open_log(url)) as made:
        yield made


def entry_of(line: str) -> Entry:
    """The entry that a writer said was acknowledged."""
    offset, record = line.split(" ")
    return Entry(int(offset), record.encode())


def test_all_processes_see_one_order(start: Start, log: Log, url: str) -> None:
    """What four writers had acknowledged stands there once, each writer's own in its order, and two
    readers beside them saw the same.
    """
    writers, count = 4, 400
    readers = [start("tail", url, str(writers * count)) for _ in range(2)]
    for reader in readers:
        assert reader.line() == "ready"
    children = [start("write", url, f"w{number}", str(count), "4") for number in range(writers)]
    acknowledged = [[entry_of(line) for line in child.remaining_lines()[1:]] for child in children]
    entries = entries_of(log)
    assert sorted(entry for own in acknowledged for entry in own) == entries
    for number, own in enumerate(acknowledged):
        assert [f"w{number}:{place}".encode() for place in range(count)] == [
            entry.data for entry in own
        ]
        assert sorted(own) == own
    digest = hashlib.sha256(b"".join(b"%d %s\n" % entry for entry in entries)).hexdigest()
    assert [[digest], [digest]] == [reader.remaining_lines() for reader in readers]


@pytest.mark.parametrize("batch_size", [1, 50])
def test_a_killed_writer_loses_nothing_that_was_acknowledged(
    start: Start, url: str, batch_size: int
) -> None:
    """After each `kill -9` in the middle of appending, all acknowledged records are there and
    batches are whole.
    """
    acknowledged: list[Entry] = []
    for number in range(3):
        child = start("write", url, f"w{number}", "1000000", str(batch_size))
        assert child.line() == "ready"
        acknowledged += [entry_of(child.line()) for _ in range(100)]
        child.send_signal(signal.SIGKILL)
        acknowledged += [entry_of(line) for line in child.remaining_lines()]
    with closing(open_log(url, create=False)) as log:
        entries = entries_of(log)
        assert set(acknowledged) <= set(entries)
        for number in range(3):
            own = [entry.data for entry in entries if entry.data.startswith(b"w%d:" % number)]
            assert [b"w%d:%d" % (number, place) for place in range(len(own))] == own
            assert 0 == len(own) % batch_size
        assert entries[-1].offset < log.append([b"after"], timeout_ms=TIMEOUT_MS)[0]


def test_a_stopped_writer_blocks_others_no_longer_than_they_wait(
    start: Start, log: Log, path: Path
) -> None:
    """While a writer is stopped within its append others give up in time and read on; when it goes
    on so do they, after it.
    """
    before = log.append([b"before"], timeout_ms=TIMEOUT_MS)[0]
    holder = start("hold", str(path))
    assert holder.line() == "holding"
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(LogUnavailable, match="nothing was appended"):
        log.append([b"refused"], timeout_ms=200)
    assert [(before, b"before")] == entries_of(log)
    assert not log.wait(before + 1, timeout_ms=50)

    holder.send_signal(signal.SIGCONT)
    holder.go_on()
    offset = log.append([b"after"], timeout_ms=TIMEOUT_MS)[0]
    assert ["done"] == holder.remaining_lines()
    assert before + 1 < offset
    assert log.wait(offset, timeout_ms=0)


def test_a_stopped_writer_that_is_killed_leaves_nothing(start: Start, log: Log, path: Path) -> None:
    """When a writer is killed within its append, others go on at once, and its entry is not
    there.
    """
    before = log.append([b"before"], timeout_ms=TIMEOUT_MS)[0]
    holder = start("hold", str(path))
    assert holder.line() == "holding"
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(LogUnavailable):
        log.append([b"refused"], timeout_ms=200)
    holder.send_signal(signal.SIGKILL)
    after = log.append([b"after"], timeout_ms=TIMEOUT_MS)[0]
    assert [(before, b"before"), (after, b"after")] == entries_of(log)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mount.returncode != 0:
        pytest.skip(f"needs the right to mount a small file system: {mount.stderr.strip()}")
    yield folder
    # A process that was killed may still hold a file there for a moment.
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill_up(file: Path) -> None:
    """Take the last page of a file system."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4_096))


def test_a_full_disk_refuses_appends_and_loses_nothing(start: Start, small_disk: Path) -> None:
    """On a full disk appends and new logs are refused as such; what was acknowledged is read; with
    space they go on.
    """
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"b" * 200_000)
    url = f"sqlite:{small_disk}/log.db"
    log = open_log(url)
    acknowledged, error = start("fill", url).line().split(" ")
    assert error == "LogStorageFull"
    assert int(acknowledged) == len(entries_of(log)) > 0
    fill_up(small_disk / "filler")
    with pytest.raises(LogStorageFull):
        open_log(f"sqlite:{small_disk}/another.db")
    ballast.unlink()
    log.append([b"after"], timeout_ms=TIMEOUT_MS)
    assert int(acknowledged) + 1 == len(entries_of(log))
    log.close()


def test_a_log_cannot_be_opened_on_a_full_disk(small_disk: Path) -> None:
    """Opening a log that is in order needs some space for SQLite's shared memory, and says so if
    there is none.
    """
    url = f"sqlite:{small_disk}/log.db"
    log = open_log(url)
    log.append([b"a"], timeout_ms=TIMEOUT_MS)
    log.close()
    fill_up(small_disk / "filler")
    with pytest.raises(LogStorageFull):
        open_log(url)
    (small_disk / "filler").unlink()
    with closing(open_log(url)) as log:
        assert [b"a"] == [entry.data for entry in entries_of(log)]
