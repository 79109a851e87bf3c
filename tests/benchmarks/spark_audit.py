"""How fast the streaming audit is: `make bench BENCH=spark_audit` prints one JSON line after some
three minutes.

* `replay`: entries a second of a log that is there, between two injected records, so that the start
  of Spark and the first batch, which takes as long as many others, are not in it.
* `live`: another process appends 2,000 records a second to the log, and now and then a forged one;
  measured is the time from the append, as the log has it, until the finding is told. The two share
  the machine. `kept_up` says whether the audit was, at the end, no further behind than at the
  beginning.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from contextlib import closing, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Final

from equipoise.channel.core.errors import LogNotBegun
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.audit.job import run_audit
from equipoise.spark_jobs.rules.rule import parse_finding
from equipoise.spark_jobs.streams.options import PER_TRIGGER, AuditOptions, Screen
from tests.benchmarks.frame import report, single, summary
from tests.spark.spark_logs import WrittenStream

REPLAYED: Final = 3 * PER_TRIGGER
RATE: Final = 2_000
AT_ONCE: Final = 20
FORGED_EVERY: Final = 1_000
WARM_UP_SECONDS: Final = 40.0
"""What is told in this time after the first finding does not count: while the first batch is under
way entries pile up."""

SECONDS: Final = 60.0

_spawn = multiprocessing.get_context("spawn")


def listening(told: list[tuple[float, int]], *, seconds: float) -> Screen:
    """A screen that puts down of each finding when it was told and when its record was appended (s,
    ms).

    So many seconds after the first it interrupts.
    """

    def result(line: str) -> None:
        told.append((time.time(), parse_finding(line.encode()).at_ms))
        if told[-1][0] - told[0][0] > seconds:
            raise KeyboardInterrupt

    return Screen(result=result, note=lambda line: print(line, file=sys.stderr))


def replayed(folder: Path) -> float:
    """Entries a second between an injected record at the end of the first batch, and one at the end
    of the log.
    """
    url = f"sqlite:{folder}/replayed"
    with closing(open_log(url)) as log:
        stream = WrittenStream(log)
        stream.go_on(PER_TRIGGER - stream.view.offset - 1)
        first = stream.forge()
        stream.go_on(REPLAYED - stream.view.offset - 1)
        last = stream.forge()
    told: list[tuple[float, int]] = []
    run_audit(
        AuditOptions(log_url=url, archive=folder / "replayed.archive", to_end=True, as_json=True),
        listening(told, seconds=float(REPLAYED)),
    )
    assert len(told) == 2, f"two were injected, {len(told)} found"
    return (last - first) / (told[1][0] - told[0][0])


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


def followed(folder: Path) -> list[tuple[float, int]]:
    """When each finding of a log that grows was told, and when its record was appended, without
    those of the warm-up.
    """
    url = f"sqlite:{folder}/live"
    told: list[tuple[float, int]] = []
    stop = _spawn.Event()
    writer = _spawn.Process(target=append_steadily, args=(url, stop))
    writer.start()
    try:
        while not _has_begun(url):
            time.sleep(0.1)
        run_audit(
            AuditOptions(log_url=url, archive=folder / "live.archive", as_json=True),
            listening(told, seconds=WARM_UP_SECONDS + SECONDS),
        )
    except KeyboardInterrupt:
        pass
    finally:
        stop.set()
        writer.join()
    return [(at_s, at_ms) for at_s, at_ms in told if at_s - told[0][0] > WARM_UP_SECONDS]


def measure(folder: Path) -> dict[str, object]:
    """Measure both."""
    rate, told = replayed(folder), followed(folder)
    latencies = [1_000 * at_s - at_ms for at_s, at_ms in told]
    half = len(latencies) // 2
    early, late = median(latencies[:half]), median(latencies[half:])
    return {
        "replay": single(rate, "entries/s"),
        "live": summary(latencies, "ms"),
        "kept_up": late < 2 * early,
    }


if __name__ == "__main__":
    report(
        "spark_audit",
        measure,
        f"{REPLAYED:,} entries replayed; live with the writer beside it",
    )
