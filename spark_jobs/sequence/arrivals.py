"""What comes out of a source: entries of the channel and of what stands beside it, in one frame.

May live here: the value, the names of the sources, and the columns of the frame. Where they are read is `spark_jobs.sources.frames`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class Source(StrEnum):
    """Where an arrival comes from. `CHANNEL` is the log itself; all others are notes beside it, on which no verdict depends."""

    CHANNEL = "channel"
    DECISIONS = "decisions"
    SERVING = "serving"
    LOADS = "loads"


ALL_SOURCES: Final = frozenset(Source)

Positions = Mapping[str, int]
"""For each source, by its name, the offset that is wanted next."""


class Arrival(NamedTuple):
    """One entry: `offset` is the storage's own, and rises within its source alone; `at_ms` is the time of whoever kept it (Unix).

    Times of the channel are its storage's, and never fall. Those of other sources may be of other clocks, and on Kafka a first
    batch may bring some that are hours ahead of the records that it brings: whoever makes one time of all takes the channel's.
    """

    source: str
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None


FRAME_DDL: Final = "source STRING, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, day DATE"
"""The columns of every source's frame, batch or streaming; `day` (UTC) is what tables are partitioned by."""
