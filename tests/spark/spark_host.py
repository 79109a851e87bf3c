"""Run the audit as Spark hosts it, without a JVM: in shards, each of which goes to another worker
with each batch.

`tests/integration/spark` has the same on a real Spark.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from equipoise.spark_jobs.audit.auditor import Auditor
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.folding import Lost
from equipoise.spark_jobs.sequence.rows import Arrival
from equipoise.spark_jobs.sequence.sequence import nothing_lost

SHARDS = 2


def spark_findings_of(
    arrivals: Many[Arrival], *, batch: int = 500, lost: Lost | None = None
) -> list[Finding]:
    """What the audit says of these arrivals, read in batches of so many."""
    states: list[dict[str, bytes]] = [{} for _ in range(SHARDS)]
    found: list[Finding] = []
    for first in range(0, len(arrivals), batch):
        for number, state in enumerate(states):
            auditor = Auditor(lost=lost or nothing_lost, shard=(number, SHARDS))
            if state:
                auditor.restore(state)
            found += auditor.feed(arrivals[first : first + batch])
            for key, data in auditor.changed_rows():
                if data is None:
                    state.pop(key, None)
                else:
                    state[key] = data
    return found
