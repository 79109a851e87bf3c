"""How fast a channel is archived: `make bench BENCH=spark_archive` prints one JSON line, after some
minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.archive.job import run_archive
from equipoise.spark_jobs.archive.tables.parquet import file_offsets
from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.sequence.emitted import Table
from equipoise.spark_jobs.streams.options import ARCHIVE_PER_TRIGGER, ArchiveOptions, Screen
from tests.benchmarks.figures import machine, print_line, single
from tests.channels.busy_channel import WrittenChannel
from tests.kafka.finding import some_kafka

RECORDS = 1_000_000
BROKERS, BUNDLES = 16, 1_000
RENEWALS = 0.964

TOPIC = "archived"


def make_channel(url: str, records: int) -> None:
    """Write an honest channel of so many records, as it is when it has settled: renewals, and now
    and then a move.
    """
    with closing(open_log(url)) as log:
        channel = WrittenChannel(log, brokers=BROKERS, bundles=BUNDLES, renewals=RENEWALS)
        channel.go_on(records - channel.view.offset)


def tell(line: str) -> None:
    """What the job says goes past the one line of result."""
    print(line, file=sys.stderr, flush=True)


def measured(url: str, folder: Path, per_trigger: int) -> dict[str, object]:
    """Archive a channel from nothing to its end."""
    began = time.time()
    options = ArchiveOptions(log_url=url, archive=folder, to_end=True, per_trigger=per_trigger)
    run_archive(options, Screen(result=tell, note=tell))
    whole_s = time.time() - began
    files = [
        (path.stat().st_mtime, file_offsets(path)[2], path.stat().st_size)
        for path in Archive(folder).files(Table.RECORDS)
    ]
    rows, size = sum(rows for _, rows, _ in files), sum(size for _, _, size in files)
    warm_s = files[-1][0] - files[0][0]
    warm = sum(rows for _, rows, _ in files[1:]) / warm_s
    return {
        "archive": {"unit": "records/s", "median": round(warm), "repeats": len(files) - 1},
        "whole_run": single(whole_s, "s"),
        "records": single(rows, "records"),
        "size": single(size / rows, "bytes/record"),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--per-trigger", type=int, default=ARCHIVE_PER_TRIGGER)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, some_kafka(Path(folder) / "kafka") as address:
        url = f"kafka://{address}/{TOPIC}"
        make_channel(url, given.records)
        results = measured(url, Path(folder) / "archive", given.per_trigger)
        conditions = (
            f"{machine()}, Kafka on this machine, {given.per_trigger} records in a batch, {BUNDLES}"
            " bundles"
        )
        print_line("spark_archive", results, conditions)


if __name__ == "__main__":
    main()
