"""Carry load reports between brokers, through side logs beside the channel's log.

Without Kafka the broker that reports also makes the averages. On Kafka load workers do
(`brokers.load.worker`), within milliseconds; without workers, loads grow old, which their age
shows.

The side logs keep reports, and what load workers share. The first broker or load worker creates
their topics; existing ones stay as they are. Ownership never depends on their content.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from equipoise.brokers.load.documents import LOAD_BYTES_MAX, decode_load, encode_load, light
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.side_log import Document, SideLog, SideTopic, read_on
from equipoise.channel.log.open_log import open_side_log
from equipoise.shedder.loads import Load, averaged

PARTITIONS: Final = 8
"""Partitions of each topic that load workers share: the most workers that can be busy at once."""

PASSING_KEPT_MS: Final = 600_000
"""How long samples and messages between workers are kept. Workers that were all away for longer
start from the brokers' current state."""

SUMMARIES_KEPT_MS: Final = 3_600_000
"""A broker without a report for an hour is gone."""

LOADS: Final = SideTopic(
    name="loads",
    content="the load bus",
    consequence="nothing is balanced until that is mended",
    kept_ms=SUMMARIES_KEPT_MS,
    rows_max=100_000,  # 100 to 200 MB, a day of three brokers.
    cleanup="compact,delete",
    document_bytes_max=LOAD_BYTES_MAX,
)
"""Loads with averages, by broker, for brokers. One partition, since readers want all of them."""

SAMPLES: Final = replace(
    LOADS, name="samples", kept_ms=PASSING_KEPT_MS, cleanup="delete", partitions=PARTITIONS
)
"""Samples of brokers, by broker, for load workers. Only on Kafka."""


def worker_topics(partitions: int) -> dict[str, SideTopic]:
    """Return the topics that only load workers use, by purpose.

    * `sightings`: which bundles were seen at which broker, by bundle.
    * `handovers`: averages of bundles that moved, in the partition of the new broker's samples.
    * `brokers`, `bundles`: the changelogs of the workers' tables.
    """
    passing = replace(SAMPLES, partitions=partitions)
    # No retention by age: Faust cannot restore a table from a partition emptied like that. Workers
    # delete old rows.
    table = replace(LOADS, partitions=partitions, cleanup="compact")
    return {
        "sightings": replace(passing, name="load-sightings"),
        "handovers": replace(passing, name="load-handovers"),
        "brokers": replace(table, name="load-brokers-changelog"),
        "bundles": replace(table, name="load-bundles-changelog"),
    }


def group_of(log: str) -> str:
    """Return the consumer group of all load workers of the log on the topic `log`. The names of
    their tables begin with it.
    """
    return f"{log}-load"


class LoadBus:
    """A handle on the load reports of one cluster, for one thread at a time.

    * A report may be lost, late, or outlive its broker. Safety does not depend on it. Readers check
      its age.
    * Averages are over the reports that arrived, from any handle.
    * A broker without a report for `LOADS.kept_ms` is gone.
    * Calls may block for as long as writing a small file.

    Each method raises `SideLogUnavailable`; the next call may succeed.
    """

    def __init__(self, log_url: str) -> None:
        """Raises what `open_side_log` raises."""
        self._loads = open_side_log(log_url, LOADS)
        self._samples: SideLog | None = (
            open_side_log(log_url, SAMPLES) if log_url.startswith("kafka:") else None
        )
        self._position: int | None = None
        # By broker, with the time when it came.
        self._latest: dict[str, tuple[int, Load]] = {}

    def publish(self, load: Load) -> None:
        """Publish what a broker has measured, as `light` leaves it."""
        load = light(load)
        if self._samples is not None:
            self._samples.append([Document(load.broker, encode_load(load))])
            return
        self._read_on()
        _, before = self._latest.get(load.broker, (0, None))
        self._loads.append([Document(load.broker, encode_load(averaged(before, load)))])

    def withdraw(self, broker: str) -> None:
        """Remove the reports of a broker that leaves."""
        (self._samples or self._loads).append([Document(broker, None)])

    def latest(self) -> Sequence[Load]:
        """Return the latest load of each broker, ordered by id, without unreadable ones."""
        self._read_on()
        return [self._latest[broker][1] for broker in sorted(self._latest)]

    def _read_on(self) -> None:
        oldest_ms = time.time_ns() // 1_000_000 - LOADS.kept_ms
        position = self._position
        if position is None:
            position = self._loads.position_at(oldest_ms)
        # Only the newest of each broker is decoded: a new handle reads the reports of an hour.
        newest = {}
        for kept in read_on(self._loads, position):
            newest[kept.key] = kept
            position = kept.position + 1
        self._position = position  # Not before: what an error interrupts is read again.
        for broker, kept in newest.items():
            try:
                self._latest[broker] = kept.at_ms, decode_load(kept.value or b"")
            except PeerError:
                self._latest.pop(broker, None)
        self._latest = {
            broker: kept for broker, kept in self._latest.items() if kept[0] > oldest_ms
        }
