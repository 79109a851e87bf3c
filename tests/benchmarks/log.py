"""How fast the log is: `make bench BENCH=log [LOG=kafka]` prints one JSON line, in less than a
minute.
"""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

from equipoise.channel.core.log import Log
from equipoise.channel.log.open_log import open_log
from tests.benchmarks.frame import report_on_log, summary
from tests.load.log_places import LogKind

RECORD_BYTES = 220
TIMEOUT_MS = 10_000
WARM_UP_APPENDS = 500
READ_BACKS = 1_500
READ_BACK_PAUSE_SECONDS = 0.003
SINGLE_APPENDS, SINGLE_REPEATS = 1_500, 7
GROUP_ENTRIES, GROUPS, GROUP_REPEATS = 500, 40, 7
WRITERS, WRITER_APPENDS = 4, 1_500

spawn = multiprocessing.get_context("spawn")
Latencies = list[float]


def record() -> bytes:
    """A record that tells when it was made."""
    return time.monotonic_ns().to_bytes(8, "big").ljust(RECORD_BYTES, b"r")


def rates(work: Callable[[Log], int], log: Log, repeats: int) -> list[float]:
    """How many a second, of what `work` says that it did with the log, each time."""
    measured: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        done = work(log)
        measured.append(done / (time.perf_counter() - began))
    return measured


def append_with_pauses(url: str, ready: Barrier) -> None:
    """The other process of `read_back`: appends now and then, so that the reader sleeps each
    time.
    """
    with closing(open_log(url)) as log:
        ready.wait()
        for _ in range(READ_BACKS):
            time.sleep(random.expovariate(1 / READ_BACK_PAUSE_SECONDS))
            log.append([record()], timeout_ms=TIMEOUT_MS)


def read_back(url: str) -> Latencies:
    """Milliseconds from before an append in another process until its record was read here."""
    log = open_log(url)
    ready = spawn.Barrier(2)
    writer = spawn.Process(target=append_with_pauses, args=(url, ready))
    writer.start()
    ready.wait()
    latencies: Latencies = []
    position = log.end() + 1
    while len(latencies) < READ_BACKS and log.wait(position, timeout_ms=TIMEOUT_MS):
        for offset, data in log.read(position, limit=100):
            latencies.append((time.monotonic_ns() - int.from_bytes(data[:8], "big")) / 1e6)
            position = offset + 1
    writer.join()
    log.close()
    return latencies


def append_singly(log: Log) -> int:
    """Append records one by one; how many."""
    for _ in range(SINGLE_APPENDS):
        log.append([record()], timeout_ms=TIMEOUT_MS)
    return SINGLE_APPENDS


def append_in_groups(log: Log) -> int:
    """Append records many at once; how many."""
    for _ in range(GROUPS):
        log.append([record()] * GROUP_ENTRIES, timeout_ms=TIMEOUT_MS)
    return GROUPS * GROUP_ENTRIES


def append_without_pause(url: str, ready: Barrier, results: Queue[Latencies]) -> None:
    """One of the processes of `contended`: measures each of its appends."""
    with closing(open_log(url)) as log:
        ready.wait()
        latencies: Latencies = []
        for _ in range(WRITER_APPENDS):
            began = time.perf_counter()
            log.append([record()], timeout_ms=TIMEOUT_MS)
            latencies.append((time.perf_counter() - began) * 1e3)
        results.put(latencies)


def contended(url: str) -> Latencies:
    """Milliseconds of single appends of processes that all append without pause."""
    ready = spawn.Barrier(WRITERS)
    results: Queue[Latencies] = spawn.Queue()
    writers: list[SpawnProcess] = [
        spawn.Process(target=append_without_pause, args=(url, ready, results))
        for _ in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    latencies = [each for _ in writers for each in results.get()]
    for writer in writers:
        writer.join()
    return latencies


def measure(_folder: Path, url: str, _kind: LogKind) -> dict[str, object]:
    """All measurements, on one log."""
    with closing(open_log(url)) as log:
        for _ in range(WARM_UP_APPENDS):  # A JVM that has just started compiles what it runs.
            log.append([record()], timeout_ms=TIMEOUT_MS)
        results: dict[str, object] = {
            "read_back": summary(read_back(url), "ms"),
            "single_appends": summary(rates(append_singly, log, SINGLE_REPEATS), "records/s"),
            "grouped_appends": summary(rates(append_in_groups, log, GROUP_REPEATS), "records/s"),
            "four_writers": summary(contended(url), "ms"),
        }
    return results


if __name__ == "__main__":
    report_on_log(
        "log",
        measure,
        f"SQLite {sqlite3.sqlite_version} with synchronous=full, or Kafka with acks=all; records of"
        f" {RECORD_BYTES} bytes, groups of {GROUP_ENTRIES}, {WRITERS} writers without pause",
    )
