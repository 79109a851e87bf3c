"""Define the entries that come from the sources: the channel's log and the notes.
`spark_jobs.sources.frames` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class Source(StrEnum):
    """Where an arrival comes from. `CHANNEL` is the log; all others are notes, and no verdict
    depends on them.
    """

    CHANNEL = "channel"
    DECISIONS = "decisions"
    SERVING = "serving"
    LOADS = "loads"


ALL_SOURCES: Final = frozenset(Source)

Positions = Mapping[str, int]
"""The next offset to read of each source, by source name."""


class Arrival(NamedTuple):
    """One entry. `offset` is the storage's own and rises within its source; `at_ms` is the time of
    the storage (Unix).

    Use the channel's times, which never fall. Other sources may use other clocks, and Kafka's first
    batch may bring notes that are hours ahead of its records.
    """

    source: str
    offset: int
    at_ms: int
    value: bytes | None


# Times are numbers, because Spark converts timestamps to the session's time zone for Python.
FRAME_DDL: Final = "source STRING, offset BIGINT, at_ms BIGINT, value BINARY"
"""Columns of the frame of every source: the fields of `Arrival`."""
