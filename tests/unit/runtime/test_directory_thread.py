"""The thread that writes to a data directory: order, bound, errors and end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from equipoise.brokers.runtime.data_directory import QUEUED_MAX, DataDirectory, DirectoryThread
from equipoise.channel.core.errors import (
    Bug,
    DeadlineExceeded,
    EquipoiseError,
    OperatorError,
    Overloaded,
)
from equipoise.channel.system.clocks import Deadline

PATIENCE_MS = 20_000


class Bench:
    """A thread over a directory, a disk that hangs until `disk` is set, and the outcome of each
    write.
    """

    def __init__(self, path: Path) -> None:
        self.disk = threading.Event()
        self.order: list[str] = []
        self.answered: list[tuple[str, EquipoiseError | None]] = []
        self.thread = DirectoryThread(DataDirectory(path))

    def write(self, name: str) -> None:
        """Queue a write that takes until the disk answers."""

        def write(_directory: DataDirectory) -> None:
            assert self.disk.wait(PATIENCE_MS / 1_000)
            self.order.append(name)

        self.thread.write(write, lambda error: self.answered.append((name, error)))

    async def until_answered(self, count: int) -> None:
        """Wait until so many writes are answered."""
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            while len(self.answered) < count:  # noqa: ASYNC110 - what is watched has no event
                await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Let the disk answer, and end."""
        self.disk.set()
        await self.thread.stop(Deadline.after(timeout_ms=PATIENCE_MS))


async def test_a_slow_disk_does_not_block_the_loop(tmp_path: Path) -> None:
    """Writes are answered in their order, after they are made."""
    bench = Bench(tmp_path)
    bench.write("instance_id")
    bench.write("forget")
    bench.thread.write(
        lambda directory: directory.write_instance_id("n1"),
        lambda error: bench.answered.append(("n1", error)),
    )
    for _ in range(10):
        await asyncio.sleep(0)
    assert ([], []) == (bench.order, bench.answered)
    bench.disk.set()
    await bench.until_answered(3)
    assert ["instance_id", "forget"] == bench.order
    assert [("instance_id", None), ("forget", None), ("n1", None)] == bench.answered
    assert b"n1" in (tmp_path / "lock").read_bytes()
    await bench.stop()


async def test_errors_are_passed_on_and_end_nothing(tmp_path: Path) -> None:
    """Any unexpected error is a `Bug`."""
    bench = Bench(tmp_path)
    bench.disk.set()
    (tmp_path / "lock").unlink()
    bench.thread.write(
        lambda directory: directory.forget_instance_ids("n1"),
        lambda error: bench.answered.append(("lost", error)),
    )
    # A bug.
    bench.thread.write(
        lambda directory: directory.write_instance_id(7),  # type: ignore[arg-type]
        lambda error: bench.answered.append(("wrong", error)),
    )
    bench.write("good")
    await bench.until_answered(3)
    assert [OperatorError, Bug, type(None)] == [type(error) for _, error in bench.answered]
    await bench.stop()


async def test_a_full_queue_refuses_writes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in range(QUEUED_MAX + 2):  # One is in the thread's hands, or about to be.
        bench.write(str(number))
    assert [] == bench.answered
    await bench.until_answered(1)
    assert isinstance(bench.answered[0][1], Overloaded)
    await bench.stop()
    await bench.until_answered(QUEUED_MAX + 2)


async def test_the_lock_is_held_until_the_last_write_is_made(tmp_path: Path) -> None:
    """Even if a stop ends at its deadline before that."""
    bench = Bench(tmp_path)
    bench.write("last")
    with pytest.raises(DeadlineExceeded):
        await bench.thread.stop(Deadline.after(timeout_ms=1))
    with pytest.raises(OperatorError):
        DataDirectory(tmp_path)
    await bench.stop()
    assert ["last"] == bench.order
    DataDirectory(tmp_path).close()
