"""Logs in files for the tests and benchmarks of Spark jobs: a busy cluster, honest but for what is
injected; and what jobs make of them.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from equipoise.channel.core import propose
from equipoise.channel.core.log import Log
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.options import Screen
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.schema import WRITTEN_BY
from tests.channels.busy_channel import GARBAGE, WrittenChannel


class WrittenStream(WrittenChannel):
    """A busy cluster on a log, with records that are injected."""

    def __init__(self, log: Log, *, bundles: int = 64, brokers: int = 8) -> None:
        super().__init__(log, bundles=bundles, brokers=brokers)
        self._forged = 0

    def garbage(self) -> int:
        """Write something that is no record; its offset."""
        self.put_bytes(GARBAGE)
        offset = self.entries[-1][0]
        self.flush()
        return offset

    def forge(self) -> int:
        """Have a broker open a bundle that another one owns and is not giving away, each time
        another bundle; the record's offset.
        """
        for name in (*self.names[self._forged :], *self.names):
            bundle = self.view.bundles[name]
            self._forged = (self.names.index(name) + 1) % len(self.names)
            if bundle.phase == "owned":
                thief = next(
                    broker
                    for broker, entry in self.view.brokers.items()
                    if entry.incarnation != bundle.owner
                )
                verdict = self.put(propose.opened(self.author(thief), bundle))
                assert not verdict.accepted
                break
        offset = self.entries[-1][0]
        self.flush()
        return offset


def write_log(url: str, *, records: int, forged_every: int = 97) -> int:
    """Write a busy log in which every `forged_every`th record is forged. Return the number of
    forged records.
    """
    injected = 0
    with closing(open_log(url)) as log:
        stream = WrittenStream(log, bundles=16, brokers=4)
        for _ in range(records // forged_every):
            stream.go_on(forged_every - 1)
            stream.forge()
            injected += 1
    return injected


def silent() -> Screen:
    """Return a screen that prints nothing."""
    return Screen(result=lambda _: None, note=lambda _: None)


def tables(archive: Path, job: str) -> dict[str, list[dict[str, object]]]:
    """Return all rows that a job wrote, in order of offsets. Duplicate rows are kept."""
    found = {}
    for table in WRITTEN_BY[job]:
        rows = Tables(archive).table(table).to_pylist()
        found[table.value] = sorted(
            rows, key=lambda row: (row["log_offset"] or 0, row.get("ordinal", 0), str(row))
        )
    return found


def findings(archive: Path) -> list[dict[str, object]]:
    """Return all findings of an audit, in order of offsets."""
    return tables(archive, "audit")[Table.FINDINGS.value]
