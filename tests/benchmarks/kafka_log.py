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


def timed_ms(work: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds of doing something, each time."""
    measured: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        measured.append((time.perf_counter() - began) * 1e3)
    return measured


def measure(address: str) -> dict[str, object]:
    """All measurements, on one log of one node."""
    url = f"kafka://{address}/benchmark-{uuid.uuid4().hex}"
    log = open_log(url)
    for _ in range(WARM_UP_APPENDS):  # A JVM that has just started compiles what it runs.
        log.append([any_log.record()], timeout_ms=TIMEOUT_MS)
    results: dict[str, object] = {
        "read_back": summary(any_log.read_back(url), "ms"),
        "single_appends": summary(
            any_log.rates(any_log.append_singly, log, any_log.SINGLE_REPEATS), "records/s"
        ),
        "grouped_appends": summary(
            any_log.rates(any_log.append_in_groups, log, any_log.GROUP_REPEATS), "records/s"
        ),
        "four_writers": summary(any_log.contended(url), "ms"),
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
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    return {
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
