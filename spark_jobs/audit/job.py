"""Run the streaming audit in Spark: check a channel and its serving evidence against
`spark_jobs.rules` while it grows, on several workers.

Each *shard* folds the whole log in order, and checks the facts of its own subjects, bundles and
brokers among them. It is the plain process's `Auditor`, with its state in Spark.

The fold is repeated, because it is cheaper than its facts: 60,000 records, 12 MB, have 35 MB of
facts, and writing, shuffling and parsing a fact costs more than the fold of a record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.channel.core.snapshot import to_bytes
from equipoise.spark_jobs.audit.auditing import JOB, Audit, audited_by, new_auditor
from equipoise.spark_jobs.audit.auditor import Auditor
from equipoise.spark_jobs.audit.reporting import Reach
from equipoise.spark_jobs.rules.memory import StateRow
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Table, finding_row, row_beside
from equipoise.spark_jobs.sources.folds import FoldStream, fold_session, run_folds, state_in
from equipoise.spark_jobs.streams.options import AuditOptions, Screen
from equipoise.spark_jobs.streams.progress import BatchDone
from equipoise.spark_jobs.streams.session import side_by_side
from equipoise.spark_jobs.tables.arrow import emitted_table
from equipoise.spark_jobs.tables.delta import Place, files_of
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.writing import check_table

ARCHIVE_SHARDS_MAX: Final = 4
"""Most shards of archived records. Each folds all of them, which is half of the work: with more
shards the time hardly falls."""

SHARDS: Final = (0, 2)
"""The keys of the shards. Spark's hash puts them into different ones of
`spark_jobs.streams.session.SHUFFLE_PARTITIONS` tasks."""


def run_audit(options: AuditOptions, screen: Screen) -> int:
    """Audit a log in Spark. Return and raise as `audited_by` and `run_folds`."""

    def host(audit: Audit) -> None:
        if audit.is_new:
            begin_with_archive(audit, screen)
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


def begin_with_archive(audit: Audit, screen: Screen) -> None:
    """Audit the records that the archive has already, on all cores. Raises as `fold_session` and
    `side_by_side`.
    """
    options, place, began_s = audit.options, Place(audit.options.archive), time.monotonic()
    table = place.opened(Table.RECORDS)
    records = 0 if table is None else sum(file.rows for file in files_of(table))
    if table is None or not records:
        return
    check_table(table, place, log=audit.log)
    context = fold_session(options, JOB, audit.watch).sparkContext
    count = min(context.defaultParallelism, ARCHIVE_SHARDS_MAX)
    audit.watch.note(f"auditing {records:,} archived records first, on {count} cores")
    shards = side_by_side(
        context,
        JOB,
        [(number, count) for number in range(count)],
        partial(audit_records, place=place, options=options, log=audit.log),
        Screen(result=screen.result, note=audit.watch.note),
        records_of=lambda _: records // count,
    )
    taker(audit)(0, emitted_table([row for rows in shards for row in rows]))
    audit.watch.batch(
        BatchDone(
            batch=0,
            rows=records,
            took_ms=round(1_000 * (time.monotonic() - began_s)),
            behind=None,
            state_rows=0,
            state_bytes=audit.state.path.stat().st_size,
        )
    )


def audit_records(
    shard: tuple[int, int], *, place: Place, options: AuditOptions, log: str | None
) -> list[Emitted]:
    """Return the rows of one shard of the records of an archive, and then those of its state.

    What a record means to the audit depends on all records before it, so an archive is not cut.
    Raises as `Tables` and `Tables.snapshot`.
    """
    tables = Tables(place)
    gaps = set(tables.table(Table.GAPS)["first_offset"].to_pylist())

    def lost(first: int, below: int) -> bytes | None:
        base = auditor.sequence.view.base
        regained = tables.snapshot(below + base) if first + base in gaps else None
        return None if regained is None else to_bytes(regained)

    # The first record is followed by a snapshot, here of the log's first record alone.
    begun = tables.snapshot()
    is_first = begun is None or (not begun.base and begun.genesis in (None, begun.offset))
    begin = None if begun is None or is_first else to_bytes(begun)
    auditor = new_auditor(options, log=log, begin=begin, shard=shard, lost=lost)
    fold = Shard(auditor, is_first=not shard[0])
    rows = [row for arrivals in tables.arrivals() for row in fold.feed(arrivals)]
    return [*rows, *(row_beside(Table.STATE, *row) for row in fold.changed_rows())]


class Shard:
    """One shard: an `Auditor` that makes rows. The first one also says how far the audit has
    come.
    """

    def __init__(self, auditor: Auditor, *, is_first: bool) -> None:
        self._auditor = auditor
        self._is_first = is_first

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
        for document in map(orjson.loads, reaches[-1:]):
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
