"""How fast a channel is archived, by the plain process and by Spark: `make bench
BENCH=spark_archive` prints one JSON line, after some minutes.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.tables.reading import Tables
from tests.benchmarks.frame import report
from tests.channels.busy_channel import WrittenChannel

RECORDS = int(os.environ.get("RECORDS", "1000000"))
BROKERS, BUNDLES = 16, 1_000
RENEWALS = 0.964
COMMANDS = {"plain": ["archive"], "spark": ["spark", "archive"]}


def make_channel(url: str, records: int) -> None:
    """Write an honest channel of so many records, as it is when it has settled: renewals, and now
    and then a move.
    """
    with closing(open_log(url)) as log:
        channel = WrittenChannel(log, brokers=BROKERS, bundles=BUNDLES, renewals=RENEWALS)
        channel.go_on(records - channel.view.offset)


def measure(folder: Path) -> dict[str, object]:
    """Archive a channel in a file from nothing to its end, in a process of its own."""
    url = f"sqlite:{folder}/log.db"
    make_channel(url, RECORDS)
    found: dict[str, object] = {}
    for name, command in COMMANDS.items():
        archive = folder / name
        line = [sys.executable, "-m", "equipoise.brokers.cli", *command]
        before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(
            [*line, "--log", url, "--archive", str(archive), "--to-end"],
            check=True,
            stdout=sys.stderr,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert RECORDS == Tables(archive).dataset(Table.RECORDS).count_rows()
        spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found[f"{name}_s"] = {"unit": "s", "median": round(time.monotonic() - began_s, 1)}
        if name == "plain":  # Spark's Java is not counted: no process waits for it.
            found["plain_cpu_s"] = {"unit": "s", "median": round(spent_s, 1)}
        # Of the largest process so far: of Spark, its Java.
        found[f"{name}_rss"] = {"unit": "MiB", "median": after.ru_maxrss // 1024}
    return found


if __name__ == "__main__":
    report(
        "spark_archive",
        measure,
        f"a log in a file, {RECORDS} records, {BUNDLES} bundles, one process and Spark",
    )
