"""How fast the state of a bundle streams from one process to another: `make bench
BENCH=state_stream` prints one JSON line, in a minute.

The service is the example that keeps a file for each bundle. Source and destination are processes
of their own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp

from equipoise.brokers.runtime.embedding.embedded import Worker
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer
from equipoise.channel.core.ranges import HASH_MAX, bundle_name
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.free_ports import free_ports
from equipoise.examples.files import Files
from tests.benchmarks.frame import report, resident_bytes, summary
from tests.benchmarks.start import until_ready

NAMESPACE: Final = "bench/state"
BUNDLE: Final = bundle_name(NAMESPACE, 0, HASH_MAX)
MIB: Final = 2**20

MOVES: Final = {1: 9, 100: 5, 1024: 3}
"""Of each size in MiB, how often it moves."""

LOOK_S: Final = 0.01
MOVE_S: Final = 300.0


class Measured(Files):
    """The example, which prints when a bundle closes and when it is open."""

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        began_ns = time.monotonic_ns()
        await super().open(ownership, handover)
        print("opened", began_ns, time.monotonic_ns(), flush=True)

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        print("closed", time.monotonic_ns(), 0, flush=True)
        return await super().close(bundle, moved_to, deadline)


async def broker(log: str, folder: str, port: str) -> None:
    """Run one of the two brokers until it is killed."""
    async with Worker(log, Measured(Path(folder)), http_port=int(port), balance=False) as worker:
        await worker.create_namespace(NAMESPACE, bundles=1)
        await worker.finished()


class Process:
    """One of the two brokers."""

    def __init__(self, log: str, folder: Path, port: int) -> None:
        folder.mkdir()
        self.port = port
        self.files = Files(folder)
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.state_stream",
            log,
            str(folder),
            str(port),
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    async def line(self) -> tuple[int, int]:
        """Return both times of the next line."""
        assert self._process.stdout is not None, "it is a pipe"
        words = (await asyncio.to_thread(self._process.stdout.readline)).split()
        return int(words[1]), int(words[2])

    def resident(self) -> int:
        """Return its memory in bytes."""
        return resident_bytes(self._process.pid)

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def write(path: Path, size_mib: int) -> None:
    """Write a file of noise, and leave it in the cache of the system."""
    noise = os.urandom(MIB)
    with path.open("wb") as file:
        for _ in range(size_mib):
            file.write(noise)


async def peak(process: Process, moving: asyncio.Task[None]) -> int:
    """Return how far the memory of a process rises while a move runs."""
    before = highest = process.resident()
    while not moving.done():
        highest = max(highest, process.resident())
        await asyncio.sleep(LOOK_S)
    return highest - before


async def move(source: Process, destination: Process) -> None:
    """Ask for the move. The answer comes when the channel has it, before the destination has
    opened.
    """
    url = f"http://127.0.0.1:{source.port}/admin/v2/namespaces/{NAMESPACE}/{BUNDLE.rpartition('/')[2]}/unload"
    query = {"destinationBroker": f"127.0.0.1:{destination.port}"}
    async with aiohttp.ClientSession() as http, http.put(url, params=query) as response:
        assert response.ok, await response.text()


async def measure(folder: Path) -> dict[str, object]:
    """Move a file of each size to and fro."""
    log = f"sqlite:{folder / 'channel.db'}"
    first, second = free_ports(2)
    source, destination = Process(log, folder / "a", first), Process(log, folder / "b", second)
    results: dict[str, object] = {}
    try:
        owner = await owner_of((source, destination))
        if not owner.endswith(f":{source.port}"):
            source, destination = destination, source
        await source.line()
        for size_mib, moves in MOVES.items():
            write(source.files.path(BUNDLE), size_mib)
            pauses, rises = list[float](), list[float]()
            for _ in range(moves):
                # To replace a file, ext4 first writes the new one to the disk. Most next owners
                # have no older file.
                destination.files.path(BUNDLE).unlink(missing_ok=True)
                asked = asyncio.create_task(moved(source, destination, pauses, size_mib))
                rises.append(await asyncio.wait_for(peak(destination, asked), MOVE_S) / MIB)
                await asked
                source, destination = destination, source
            results |= {
                f"pause_{size_mib}_mib": summary(pauses, "ms"),
                f"rss_rise_of_destination_{size_mib}_mib": summary(rises, "MiB"),
            }
    finally:
        source.kill()
        destination.kill()
    return results


async def moved(source: Process, destination: Process, pauses: list[float], size_mib: int) -> None:
    """Move the bundle. Note the pause, from close to open."""
    await move(source, destination)
    closed_ns, _ = await source.line()
    _, opened_ns = await destination.line()
    pauses.append((opened_ns - closed_ns) / 1e6)
    sizes = [process.files.path(BUNDLE).stat().st_size for process in (source, destination)]
    assert [size_mib * MIB] * 2 == sizes, sizes


async def owner_of(processes: Sequence[Process]) -> str:
    """Wait until both are members. Return the address of the one that owns the bundle."""
    async with aiohttp.ClientSession() as http:
        for process in processes:
            await until_ready(http, f"http://127.0.0.1:{process.port}")
        async with http.get(
            f"http://127.0.0.1:{processes[0].port}/lookup/v2/topic/non-persistent/{NAMESPACE}/key"
        ) as response:
            assert response.ok, await response.text()
            return str((await response.json())["httpUrl"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(broker(*sys.argv[1:]))
    report(
        "state_stream",
        measure,
        "two brokers on the same CPUs, files in the cache of the system, the log on SQLite, a"
        " deadline of 10 s (open_ms)",
    )
