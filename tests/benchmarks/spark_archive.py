"""How fast a channel is archived: `make bench BENCH=spark_archive` prints one JSON line, after some
minutes.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.archive.job import run_archive
from equipoise.spark_jobs.archive.tables.parquet import file_offsets
from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.options import ARCHIVE_PER_TRIGGER, ArchiveOptions, Screen
from tests.benchmarks.frame import report
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


def measure(folder: Path) -> dict[str, object]:
    """Archive a channel from nothing to its end. The first file does not count."""
    with some_kafka(folder / "kafka") as address:
        url = f"kafka://{address}/{TOPIC}"
        make_channel(url, RECORDS)
        options = ArchiveOptions(
            log_url=url, archive=folder / "archive", to_end=True, per_trigger=ARCHIVE_PER_TRIGGER
        )
        run_archive(options, Screen(result=tell, note=tell))
    files = [
        (path.stat().st_mtime, file_offsets(path)[2])
        for path in Archive(folder / "archive").files(Table.RECORDS)
    ]
    warm = sum(rows for _, rows in files[1:]) / (files[-1][0] - files[0][0])
    return {"archive": {"unit": "records/s", "median": round(warm), "repeats": len(files) - 1}}


if __name__ == "__main__":
    report(
        "spark_archive",
        measure,
        f"Kafka on this machine, {RECORDS} records, {ARCHIVE_PER_TRIGGER} in a batch, {BUNDLES}"
        " bundles",
    )
