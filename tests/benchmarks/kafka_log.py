"""How fast the log on Kafka is: `make bench BENCH=kafka_log` prints one JSON line, in about a
minute.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from equipoise.channel.core.log import FIRST_OFFSET, Log
from equipoise.channel.core.snapshot_store import SnapshotRow
from equipoise.channel.log.open_log import open_log
from tests.benchmarks import log as any_log
from tests.benchmarks.figures import machine, print_line, summary
from tests.kafka.finding import GIVEN, some_kafka

TIMEOUT_MS = 10_000
WARM_UP_APPENDS = 500
REPLAY_ENTRIES = 200_000
SNAPSHOT_ROWS, SNAPSHOT_ROW_BYTES, SNAPSHOT_REPEATS = 100_000, 250, 3
TAIL_REPEATS = 20


def timed_ms(work: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds of doing something, each time."""
    measured: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        measured.append((time.perf_counter() - began) * 1e3)
    return measured


def open_and_close(url: str) -> None:
    """What a command pays before it reads, and after."""
    open_log(url, create=False).close()


def append_and_read(log: Log) -> None:
    """What one turn of a broker's thread does: append, and read that back by the same handle."""
    (offset,) = log.append([any_log.record()], timeout_ms=TIMEOUT_MS)
    assert len(log.read(offset, limit=10)) == 1


def measure(address: str) -> dict[str, object]:
    """All measurements, on one log of one node."""
    url = f"kafka://{address}/benchmark-{uuid.uuid4().hex}"
    log = open_log(url)
    for _ in range(WARM_UP_APPENDS):  # A JVM that has just started compiles what it runs.
        append_and_read(log)
    results: dict[str, object] = {
        "read_back": summary(any_log.read_back(url), "ms"),
        "append_and_read": summary(
            timed_ms(lambda: append_and_read(log), any_log.READ_BACKS), "ms"
        ),
        "single_appends": summary(
            any_log.rates(any_log.append_singly, log, any_log.SINGLE_REPEATS), "records/s"
        ),
        "grouped_appends": summary(
            any_log.rates(any_log.append_in_groups, log, any_log.GROUP_REPEATS), "records/s"
        ),
        "four_writers": summary(any_log.contended(url), "ms"),
        "idle_wait": summary(any_log.idle(url), "% of one core"),
        "open_and_close": summary(timed_ms(lambda: open_and_close(url), TAIL_REPEATS), "ms"),
    }
    while log.end() < REPLAY_ENTRIES:
        any_log.append_in_groups(log)
    results["replay"] = summary(
        any_log.rates(any_log.read_all, log, any_log.READ_REPEATS), "records/s"
    )
    results |= measure_snapshot(log)
    assert log.start() == FIRST_OFFSET
    log.close()
    return results


def measure_snapshot(log: Log) -> dict[str, object]:
    """A snapshot of as many rows as a large cluster has bundles: claimed, replaced as a whole, and
    loaded.
    """
    compacted_snapshot = log.compacted_snapshot()
    rows = [
        SnapshotRow(f"bundle:{number}", b"r" * SNAPSHOT_ROW_BYTES)
        for number in range(SNAPSHOT_ROWS)
    ]
    return {
        "snapshot_claim": summary(
            timed_ms(lambda: compacted_snapshot.claim(timeout_ms=TIMEOUT_MS), SNAPSHOT_REPEATS),
            "ms",
        ),
        "snapshot_replace": summary(
            timed_ms(
                lambda: compacted_snapshot.replace(rows, b"marker", timeout_ms=TIMEOUT_MS),
                SNAPSHOT_REPEATS,
            ),
            "ms",
        ),
        "snapshot_load": summary(timed_ms(compacted_snapshot.load, SNAPSHOT_REPEATS), "ms"),
    }


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, some_kafka(Path(folder)) as address:
        where = "given" if os.environ.get(GIVEN) else "of one node on this machine"
        conditions = (
            f"{machine()}, Kafka {where}, acks=all, records of {any_log.RECORD_BYTES} bytes, groups"
            f" of {any_log.GROUP_ENTRIES}, {any_log.WRITERS} writers without pause, a snapshot of"
            f" {SNAPSHOT_ROWS} rows of {SNAPSHOT_ROW_BYTES} bytes"
        )
        print_line("kafka_log", measure(address), conditions)


if __name__ == "__main__":
    main()
