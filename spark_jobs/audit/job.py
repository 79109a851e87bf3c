"""Run the streaming audit in Spark: check a channel and its serving evidence against
`spark_jobs.rules` while it grows, on several workers.

Each *shard* folds the whole log in order, and checks the facts of its own subjects, bundles and
brokers among them. It is the plain process's `Auditor`, with its state in Spark.

The fold is repeated, because it is cheaper than its facts: 60,000 records, 12 MB, have 35 MB of
facts, and writing, shuffling and parsing a fact costs more than the fold of a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.spark_jobs.audit.auditing import JOB, Audit, audited_by, new_auditor
from equipoise.spark_jobs.audit.auditor import Auditor
from equipoise.spark_jobs.audit.reporting import Reach
from equipoise.spark_jobs.rules.memory import StateRow
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Table, finding_row, row_beside
from equipoise.spark_jobs.sources.folds import FoldStream, run_folds, state_in
from equipoise.spark_jobs.streams.options import AuditOptions, Screen

SHARDS: Final = (0, 2)
"""The keys of the shards. Spark's hash puts them into different ones of
`spark_jobs.streams.session.SHUFFLE_PARTITIONS` tasks."""


def run_audit(options: AuditOptions, screen: Screen) -> int:
    """Audit a log in Spark. Return and raise as `audited_by` and `run_folds`."""

    def host(audit: Audit) -> None:
        stream = FoldStream(
            job=JOB,
            make=partial(shard, options=options, log=audit.log),
            keys=SHARDS,
            state=audit.state.rows(),
            positions=audit.state.positions,
            take=taker(audit),
        )
        run_folds(options, stream, audit.watch)
        audit.deliver()

    return audited_by(host, options, screen)


class Shard:
    """One shard: an `Auditor` that makes rows. The first one also says how far the audit has
    come.
    """

    def __init__(self, auditor: Auditor, *, is_first: bool) -> None:
        self._auditor = auditor
        self._is_first = is_first
        self._positions: dict[str, int] = {}

    def feed(self, arrivals: Iterable[Arrival]) -> Iterator[Emitted]:
        """Yield the findings of one batch."""
        arrivals = list(arrivals)
        yield from map(finding_row, self._auditor.feed(arrivals))
        if self._is_first:
            ends = {each.source: each.offset + 1 for each in arrivals}
            reach = self._auditor.sequence.reach()
            yield row_beside(Table.REACH, "", orjson.dumps({"ends": ends, "reach": reach}))

    def changed_rows(self) -> list[StateRow]:
        """See `Auditor.changed_rows`."""
        return self._auditor.changed_rows()

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """See `Auditor.restore`."""
        self._auditor.restore(rows)


def shard(key: int, *, options: AuditOptions, log: str) -> Shard:
    """Return the shard with this key."""
    number = SHARDS.index(key)
    auditor = new_auditor(options, log=log, shard=(number, len(SHARDS)))
    return Shard(auditor, is_first=not number)


def taker(audit: Audit) -> Callable[[int, pa.Table], None]:
    """Return the function that takes the rows of each batch: it commits them once, and delivers
    the findings. Spark repeats a batch if that fails.
    """
    taken = -1

    def take(number: int, rows: pa.Table) -> None:
        nonlocal taken
        reaches = rows.filter(pc.equal(rows["table"], str(Table.REACH)))["body"].to_pylist()
        for document in map(orjson.loads, reaches):
            if number > taken:
                found = rows.filter(pc.equal(rows["table"], str(Table.FINDINGS))).sort_by(
                    [("offset", "ascending"), ("ordinal", "ascending")]
                )
                positions = {**audit.state.positions, **document["ends"]}
                audit.commit(state_in(rows), positions, found["body"].to_pylist())
                taken = number
            audit.keep(Reach(**document["reach"]))
        audit.deliver()

    return take
