"""Audit a channel in Spark, on all cores.

Each *shard* folds the whole log in order, and checks the facts of its own subjects, bundles and
brokers among them. It is the `Auditor` of one process, in tasks of Spark.

The fold is repeated, because it is cheaper than its facts: 60,000 records, 12 MB, have 35 MB of
facts, and writing, shuffling and parsing a fact costs more than the fold of a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from equipoise.spark_jobs.audit.auditor import Auditor, Standing
from equipoise.spark_jobs.audit.run import JOB, MakeAuditor, audited, new_auditor
from equipoise.spark_jobs.rules.memory import StateRow
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.rows import Arrival
from equipoise.spark_jobs.streams.options import AuditOptions, Screen
from equipoise.spark_jobs.streams.progress import Watch
from equipoise.spark_jobs.streams.session import spark_session
from equipoise.spark_jobs.streams.tasks import Tasks

if TYPE_CHECKING:
    from pyspark import SparkContext

SHARDS_MAX: Final = 16
"""With more, each of them would do little but repeat the fold."""

Checked = tuple[list[Finding], Standing, int]
"""What a shard makes of a batch: findings, its standing and its number of subjects."""


def run_audit(options: AuditOptions, screen: Screen) -> int:
    """Audit a log in Spark. Return and raise as `audited` and `spark_session`."""

    def auditors(log: str, watch: Watch) -> MakeAuditor:
        spark = spark_session(f"equipoise {JOB}", options, note=watch.note)
        return lambda: Shards(spark.sparkContext, options, log=log, watch=watch)

    return audited(options, screen, auditors, in_spark=True)


class Shards:
    """An auditor in tasks of Spark, a shard for each core."""

    def __init__(
        self, context: SparkContext, options: AuditOptions, *, log: str, watch: Watch
    ) -> None:
        count = max(2, min(context.defaultParallelism, SHARDS_MAX))
        self._make = partial(shard_of, options=options, log=log, count=count)
        self._tasks: Tasks[Auditor, Checked] = Tasks(
            context, JOB, count=count, make=self._make, feed=checked, meanwhile=watch.show
        )
        self.standing: Standing = (None, 0)
        self.state_rows = 0

    def feed(self, batch: Sequence[Arrival]) -> list[Finding]:
        """See `Auditor.feed`. Raises as `Tasks.feed`."""
        shards = self._tasks.feed(batch)
        self.standing = shards[0][1]
        self.state_rows = sum(subjects for _, _, subjects in shards)
        findings = [finding for found, _, _ in shards for finding in found]
        return sorted(findings, key=lambda finding: (finding.offsets[-1], finding.ordinal))

    def changed_rows(self) -> list[StateRow]:
        """See `Auditor.changed_rows`."""
        return self._tasks.changed_rows()

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """See `Auditor.restore`."""
        auditor = self._make(0)
        auditor.restore(rows)
        self.standing = auditor.standing
        self._tasks.restore(rows)


def shard_of(number: int, *, options: AuditOptions, log: str, count: int) -> Auditor:
    """Return the auditor of the shard with this number."""
    return new_auditor(options, log=log, shard=(number, count))


def checked(auditor: Auditor, batch: Sequence[Arrival]) -> Checked:
    """Feed a batch to a shard."""
    return auditor.feed(batch), auditor.standing, auditor.state_rows
