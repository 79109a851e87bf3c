"""Test that each batch of a query is counted once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import cast

from pyspark.sql.streaming.query import StreamingQuery

from equipoise.spark_jobs.streams.options import Screen
from equipoise.spark_jobs.streams.progress import Follower, StreamMetrics, Watch


@dataclass(frozen=True)
class Progress:
    batchId: int  # noqa: N815 - Spark calls it so
    rows: int
    timestamp: str
    is_idle: bool = False

    @property
    def durationMs(self) -> dict[str, int]:  # noqa: N802 - Spark calls it so
        return {} if self.is_idle else {"addBatch": 1}

    @property
    def json(self) -> str:
        return json.dumps({"batchId": self.batchId, "sources": [{"numInputRows": self.rows}]})


@dataclass
class Query:
    recentProgress: list[Progress] = field(default_factory=list)  # noqa: N815 - Spark calls it so

    @property
    def lastProgress(self) -> Progress | None:  # noqa: N802 - Spark calls it so
        return self.recentProgress[-1] if self.recentProgress else None


class Told(Watch):
    """A watch that counts how often it was told that nothing is new."""

    idles = 0

    def idle(self) -> None:
        self.idles += 1


def test_each_batch_is_told_once() -> None:
    """Batches count once, however many have ended since the last look; one that waits to be worked on says that nothing is new."""
    query, watch = Query(), Told("archive", Screen(note=print, result=print), metrics=StreamMetrics("archive"))
    follower = Follower(cast("StreamingQuery", query), watch)
    idle = Progress(1, 0, "12:00:02", is_idle=True)
    waited = []
    for come in ((), (Progress(0, 5, "12:00:01"),), (), (idle,), (Progress(1, 7, "12:00:03"), Progress(2, 11, "12:00:04"))):
        query.recentProgress += come
        follower.follow()
        watch.show()
        waited.append(follower.has_waited)
    assert [23, 3] == [watch.rows, watch.batches]
    assert [False, False, False, True, True] == waited
    assert 1 == watch.idles
