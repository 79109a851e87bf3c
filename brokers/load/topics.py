"""Define what is kept beside the log about load: reports, and what load workers share.

The first broker or load worker creates the topics; existing ones stay as they are. Ownership never
depends on their content.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from equipoise.brokers.load.documents import LOAD_BYTES_MAX
from equipoise.channel.core.side_log import SideTopic

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
