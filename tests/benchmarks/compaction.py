"""How long a compaction takes, what it costs those who append meanwhile, and how soon a reader is
ready from what it left.

`make bench BENCH=compaction [LOG=kafka]` prints one JSON line after some minutes, most of which go
into making the records.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Final

from equipoise.channel.core.log import Log
from equipoise.channel.log.blocking_view import read_on
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import restored
from equipoise.compaction.compactor import compact
from equipoise.compaction.retention import Retention
from tests.benchmarks.frame import report_on_log, single, summary
from tests.channels.busy_channel import TIMEOUT_MS, WrittenChannel
from tests.channels.carried import soon

RECORDS: Final = 1_000_000
KEYS: Final = 100_000
TAIL: Final = 10_000
NAMESPACES: Final = 2
BROKERS: Final = 16
APPEND_PAUSE_SECONDS: Final = 0.004
ALONE_SECONDS: Final = 5.0
AN_HOUR_MS: Final = 3_600_000

_spawn = multiprocessing.get_context("spawn")
Latencies = list[tuple[float, float]]
"""When each append began, by the clock that all processes share, and how many milliseconds it
took."""


def append_steadily(url: str, stop: Event, ready: Event, results: Queue[Latencies]) -> None:
    """The other process: one record every few milliseconds, each append measured."""
    with closing(open_log(url)) as log:
        ready.set()
        latencies: Latencies = []
        while not stop.wait(APPEND_PAUSE_SECONDS):
            began = time.monotonic()
            log.append([b'{"kind":"none"}'], timeout_ms=TIMEOUT_MS)
            latencies.append((began, (time.monotonic() - began) * 1e3))
        results.put(latencies)


@contextmanager
def appending(url: str) -> Iterator[Queue[Latencies]]:
    """Somebody appends while the block runs; afterwards what was measured is in the queue."""
    stop, ready = _spawn.Event(), _spawn.Event()
    results: Queue[Latencies] = _spawn.Queue()
    other: SpawnProcess = _spawn.Process(target=append_steadily, args=(url, stop, ready, results))
    other.start()
    ready.wait()
    try:
        yield results
    finally:
        stop.set()


def measured_compaction(log: Log) -> dict[str, object]:
    """Compact beside an appender; what it was like for both."""
    retain = Retention(unit="offsets", amount=0)
    with appending(log.name) as results:
        time.sleep(ALONE_SECONDS)
        began = time.monotonic()
        compact(
            log,
            retain=retain,
            timeout_ms=TIMEOUT_MS,
            now_ms=lambda: time.time_ns() // 1_000_000 + AN_HOUR_MS,
        )
        ended = time.monotonic()
    latencies = results.get()
    alone = [took for at, took in latencies if at < began]
    meanwhile = [took for at, took in latencies if began <= at < ended]
    return {
        "compact": single(ended - began, "s"),
        "append_alone": summary(alone, "ms"),
        "append_meanwhile": summary(meanwhile, "ms"),
    }


def restore_and_tell(url: str, results: Queue[tuple[float, int]]) -> None:
    """A new process: how many seconds it takes to fold the log to its end, and the digest it comes
    to.
    """
    began = time.monotonic()
    with closing(open_log(url)) as log:
        reader = restored(log)
        read_on(log, reader, deadline=soon())
        results.put((time.monotonic() - began, reader.view.digest()))


def measured_starts(url: str, repeats: int) -> tuple[list[float], int]:
    """The seconds of several cold starts, and the digest that all of them came to."""
    results: Queue[tuple[float, int]] = _spawn.Queue()
    taken: list[float] = []
    digests: set[int] = set()
    for _ in range(repeats):
        process = _spawn.Process(target=restore_and_tell, args=(url, results))
        process.start()
        seconds, digest = results.get()
        process.join()
        taken.append(seconds)
        digests.add(digest)
    [digest] = digests
    return taken, digest


def measure(url: str) -> dict[str, object]:
    """Make the history, compact it, go on, and restore."""
    log = open_log(url)
    history = WrittenChannel(log, brokers=BROKERS, bundles=KEYS, namespaces=NAMESPACES)
    history.go_on(RECORDS - history.view.offset)
    print(f"compaction: {history.view.offset} records made", file=sys.stderr)
    figures = measured_compaction(log)
    end = log.end()
    history.view.offset = end
    history.go_on(TAIL)
    starts, digest = measured_starts(url, repeats=5)
    assert history.view.digest() == digest, "what was restored is what was written"
    log.close()
    return figures | {"cold_start": summary(starts, "s")}


if __name__ == "__main__":
    report_on_log(
        "compaction",
        lambda _folder, url, _kind: measure(url),
        f"{RECORDS} records, {KEYS} bundles, {TAIL} records of tail",
    )
