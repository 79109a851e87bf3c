"""The thread that writes to a data directory: its order, its bound, and its end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from equipoise.brokers.errors import DataDirectoryUnusable
from equipoise.brokers.runtime.data_directory import QUEUED_MAX, DataDirectory, DirectoryThread
from equipoise.channel.core.errors import Bug, DeadlineExceeded, EquipoiseError, OperatorError, Overloaded
from equipoise.channel.system.deadline import Deadline

PATIENCE_MS = 20_000


class Bench:
    """A thread over a directory, a disk that hangs until it is told not to, and what came of each write."""

    def __init__(self, path: Path) -> None:
        self.disk = threading.Event()
        self.order: list[str] = []
        self.told: list[tuple[str, EquipoiseError | None]] = []
        self.thread = DirectoryThread(DataDirectory(path))

    def write(self, name: str) -> None:
        """Write something that takes until the disk answers."""

        def write(_directory: DataDirectory) -> None:
            assert self.disk.wait(PATIENCE_MS / 1_000)
            self.order.append(name)

        self.thread.write(write, lambda error: self.told.append((name, error)))

    async def until_told(self, count: int) -> None:
        """Wait until so many writes are answered."""
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            while len(self.told) < count:  # noqa: ASYNC110 - what is watched has no event
                await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Let the disk go on, and end."""
        self.disk.set()
        await self.thread.stop(Deadline.after(timeout_ms=PATIENCE_MS))


async def test_a_slow_disk_holds_up_nobody_and_keeps_the_order(tmp_path: Path) -> None:
    """The loop goes on while the disk hangs, and writes are answered one by one in their order, after they were made."""
    bench = Bench(tmp_path)
    bench.write("nonce")
    bench.write("forget")
    bench.thread.write(lambda directory: directory.write_nonce("n1"), lambda error: bench.told.append(("n1", error)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert ([], []) == (bench.order, bench.told)
    bench.disk.set()
    await bench.until_told(3)
    assert ["nonce", "forget"] == bench.order
    assert [("nonce", None), ("forget", None), ("n1", None)] == bench.told
    assert b"n1" in (tmp_path / "nonces").read_bytes()
    await bench.stop()


async def test_what_goes_wrong_is_told_and_ends_nothing(tmp_path: Path) -> None:
    """An error of the disk is passed on, any other is a bug, and the next write is made all the same."""
    bench = Bench(tmp_path)
    bench.disk.set()
    (tmp_path / "lock").unlink()
    bench.thread.write(lambda directory: directory.forget_nonces("n1"), lambda error: bench.told.append(("lost", error)))
    bench.thread.write(lambda directory: directory.write_nonce(7), lambda error: bench.told.append(("wrong", error)))  # type: ignore[arg-type]  # a bug
    bench.write("good")
    await bench.until_told(3)
    assert [DataDirectoryUnusable, Bug, type(None)] == [type(error) for _, error in bench.told]
    await bench.stop()


async def test_a_queue_that_is_full_refuses(tmp_path: Path) -> None:
    """A disk that hangs for long does not fill the memory: what is beyond the bound is refused, later than it was asked for."""
    bench = Bench(tmp_path)
    for number in range(QUEUED_MAX + 2):  # One is in the thread's hands, or about to be.
        bench.write(str(number))
    assert [] == bench.told
    await bench.until_told(1)
    assert isinstance(bench.told[0][1], Overloaded)
    await bench.stop()
    await bench.until_told(QUEUED_MAX + 2)


async def test_the_lock_is_held_until_the_last_write_is_made(tmp_path: Path) -> None:
    """Who stops waits no longer than its deadline, and the directory stays locked as long as the disk is at it."""
    bench = Bench(tmp_path)
    bench.write("last")
    with pytest.raises(DeadlineExceeded):
        await bench.thread.stop(Deadline.after(timeout_ms=1))
    with pytest.raises(OperatorError):
        DataDirectory(tmp_path)
    await bench.stop()
    assert ["last"] == bench.order
    DataDirectory(tmp_path).close()
