"""What the page about a day of three brokers costs, cold: `make bench BENCH=report` prints one JSON
line.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.frame import report, summary
from tests.spark.day import BROKERS, BUNDLES, REPORT_EVERY_MS, archive_day

RECORDS = 60_000
"""A renewal of each broker every 5 s, and what happens between."""

REPEATS = 5


def measure(folder: Path) -> dict[str, object]:
    """Start the command in a new process each time."""
    archive_day(folder / "archive", records=RECORDS)
    cpu_s, wall_s = [], []
    command = ["report", "--archive", str(folder / "archive"), "--out", str(folder / "page.html")]
    for _ in range(REPEATS):
        before, began_s = _used_s(), time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "equipoise.brokers.cli", *command],
            check=True,
            stdout=sys.stderr,
        )
        cpu_s.append(_used_s() - before)
        wall_s.append(time.monotonic() - began_s)
    return {"cpu": summary(cpu_s, "s"), "wall": summary(wall_s, "s")}


def _used_s() -> float:
    """The CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    report(
        "report",
        measure,
        f"{RECORDS} records, {BROKERS} brokers, {BUNDLES} bundles, load reports every"
        f" {REPORT_EVERY_MS // 1_000} s",
    )
