"""Run the audit as Spark hosts it, without a JVM: in shards, each of which goes to another worker
with each batch.

`tests/integration/spark` has the same on a real Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from types import SimpleNamespace
from typing import Any, cast

from pyspark import SparkContext

from equipoise.spark_jobs.audit.auditor import Auditor
from equipoise.spark_jobs.audit.job import checked
from equipoise.spark_jobs.rules.memory import put_rows
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.folding import Lost
from equipoise.spark_jobs.sequence.rows import Arrival
from equipoise.spark_jobs.sequence.sequence import nothing_lost
from equipoise.spark_jobs.streams import tasks
from equipoise.spark_jobs.streams.tasks import Tasks

SHARDS = 2


class FakeTask:
    """A task of Spark, which runs in this process."""

    def __init__(self, numbers: list[int]) -> None:
        self.results: Iterable[Any] = numbers

    def mapPartitions(self, work: Callable[[Iterable[int]], Iterator[Any]]) -> FakeTask:  # noqa: N802 - Spark's name
        self.results = work(self.results)
        return self

    def id(self) -> int:
        return 0


class FakeContext:
    """A `SparkContext` whose tasks run here."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}

    def broadcast(self, value: object) -> SimpleNamespace:
        return SimpleNamespace(value=value, destroy=lambda: None)

    def parallelize(self, numbers: list[int], _parts: int) -> FakeTask:
        return FakeTask(numbers)

    def union(self, found: list[FakeTask]) -> SimpleNamespace:
        return SimpleNamespace(collect=lambda: [row for task in found for row in task.results])

    def cancelAllJobs(self) -> None:  # noqa: N802 - Spark's name
        raise AssertionError("nothing is interrupted")


def fake_context() -> SparkContext:
    """Return a context without Spark."""
    return cast("SparkContext", FakeContext())


def spark_findings_of(
    arrivals: Many[Arrival], *, batch: int = 500, lost: Lost | None = None
) -> list[Finding]:
    """What the audit says of these arrivals, read in batches of so many."""

    def shard(number: int) -> Auditor:
        return Auditor(lost=lost or nothing_lost, shard=(number, SHARDS))

    folds = Tasks(fake_context(), "audit", count=SHARDS, make=shard, feed=checked)
    state: dict[str, bytes] = {}
    put_rows(state, Auditor(lost=lost or nothing_lost).changed_rows())
    folds.restore(state)
    found: list[Finding] = []
    for first in range(0, len(arrivals), batch):
        tasks._kept.clear()  # noqa: SLF001 - another worker's
        for findings, _, _ in folds.feed(arrivals[first : first + batch]):
            found += findings
    return found
