"""How fast the audit is in one process and in Spark, side by side: `make bench BENCH=spark_audit`
prints one JSON line after some five minutes.

* `replay`: seconds for a log of 100,000 entries with two injected records, from the start of the
  job to its end, and entries a second between the two, without the start of Spark and its first
  batch.
* `live`: another process appends 2,000 records a second to the log, and now and then a forged one;
  measured is the time from the append, as the log has it, until the finding is told. The two share
  the machine. `kept_up` says whether the audit was, at the end, no further behind than at the
  beginning.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Final

from equipoise.channel.core.errors import LogNotBegun
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.audit.job import run_audit as run_in_spark
from equipoise.spark_jobs.plain.audit import run_audit
from equipoise.spark_jobs.rules.rule import parse_finding
from equipoise.spark_jobs.streams.options import PER_TRIGGER, AuditOptions, Screen
from tests.benchmarks.frame import report, single, summary
from tests.spark.spark_logs import WrittenStream

REPLAYED: Final = 100_000
RATE: Final = 2_000
AT_ONCE: Final = 20
FORGED_EVERY: Final = 1_000
WARM_UP_SECONDS: Final = 40.0
"""What is told in this time after the first finding does not count: while the first batch is under
way entries pile up."""

SECONDS: Final = 60.0

Host = Callable[[AuditOptions, Screen], int]
HOSTS: Final[Mapping[str, tuple[Host, float]]] = {
    "plain": (run_audit, 5.0),
    "spark": (run_in_spark, WARM_UP_SECONDS),
}
"""Each host, and the seconds in which it warms up."""

_spawn = multiprocessing.get_context("spawn")


def listening(told: list[tuple[float, int]], *, seconds: float) -> Screen:
    """A screen that puts down of each finding when it was told and when its record was appended (s,
    ms).

    So many seconds after the first it interrupts.
    """

    def result(line: str) -> None:
        if b'"rule"' not in line.encode():
            return  # The verdict at the end.
        told.append((time.time(), parse_finding(line.encode()).at_ms))
        if told[-1][0] - told[0][0] > seconds:
            raise KeyboardInterrupt

    return Screen(result=result, note=lambda line: print(line, file=sys.stderr))


def replayed(host: Host, folder: Path, name: str) -> tuple[float, float]:
    """Seconds for a whole log, and entries a second between an injected record at the end of
    Spark's first batch and one at the end of the log.
    """
    url = f"sqlite:{folder}/{name}-replayed"
    with closing(open_log(url)) as log:
        stream = WrittenStream(log)
        stream.go_on(PER_TRIGGER - stream.view.offset - 1)
        first = stream.forge()
        stream.go_on(REPLAYED - stream.view.offset - 1)
        last = stream.forge()
    told: list[tuple[float, int]] = []
    began = time.monotonic()
    host(
        AuditOptions(
            log_url=url, archive=folder / f"{name}-replayed.archive", to_end=True, as_json=True
        ),
        listening(told, seconds=float(REPLAYED)),
    )
    took = time.monotonic() - began
    assert len(told) == 2, f"two were injected, {len(told)} found"
    return took, (last - first) / max(told[1][0] - told[0][0], 0.001)


def append_steadily(url: str, stop: Event) -> None:
    """The other process: a busy cluster at a steady rate, with a forged record every so often."""
    with closing(open_log(url)) as log:
        stream = WrittenStream(log)
        began, done = time.monotonic(), 0
        while not stop.is_set():
            stream.go_on(AT_ONCE)
            done += AT_ONCE
            if not done % FORGED_EVERY:
                stream.forge()
            time.sleep(max(0.0, began + done / RATE - time.monotonic()))


def _has_begun(url: str) -> bool:
    with suppress(LogNotBegun), closing(open_log(url, create=False)) as log:
        return log.end() >= FIRST_OFFSET
    return False


def followed(host: Host, folder: Path, name: str, *, warm_up: float) -> list[float]:
    """The milliseconds from append to finding in a log that grows, without those of the warm-up."""
    url = f"sqlite:{folder}/{name}-live"
    told: list[tuple[float, int]] = []
    stop = _spawn.Event()
    writer = _spawn.Process(target=append_steadily, args=(url, stop))
    writer.start()
    try:
        while not _has_begun(url):
            time.sleep(0.1)
        host(
            AuditOptions(log_url=url, archive=folder / f"{name}-live.archive", as_json=True),
            listening(told, seconds=warm_up + SECONDS),
        )
    except KeyboardInterrupt:
        pass
    finally:
        stop.set()
        writer.join()
    return [1_000 * at_s - at_ms for at_s, at_ms in told if at_s - told[0][0] > warm_up]


def measure(folder: Path) -> dict[str, object]:
    """Measure both hosts."""
    found: dict[str, object] = {}
    for name, (host, warm_up) in HOSTS.items():
        took, rate = replayed(host, folder, name)
        latencies = followed(host, folder, name, warm_up=warm_up)
        half = len(latencies) // 2
        early, late = median(latencies[:half]), median(latencies[half:])
        found |= {
            f"{name}_replay": single(took, "s"),
            f"{name}_rate": single(rate, "entries/s"),
            f"{name}_live": summary(latencies, "ms"),
            f"{name}_kept_up": late < 2 * early,
        }
    return found


if __name__ == "__main__":
    report(
        "spark_audit",
        measure,
        f"{REPLAYED:,} entries replayed; live with the writer beside it",
    )
