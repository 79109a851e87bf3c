"""Run an audit, live or to the end of a log, each finding exactly once. One process does all of it,
or `spark_jobs.audit.job` checks each batch in Spark.

1. A batch is committed to the state file, with its findings, before anybody sees them.
2. The findings are printed, stored and published, then forgotten by the state file.

After a crash the next run continues at the last commit, and delivers what is still there. The table
and the log of findings recognise what they have already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from equipoise.channel.core.errors import EquipoiseError, PeerError
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.audit.auditor import Auditing, Auditor
from equipoise.spark_jobs.audit.findings_out import FindingsOut
from equipoise.spark_jobs.audit.findings_table import (
    FindingsTable,
    kept_findings,
    open_findings,
    rows_of,
)
from equipoise.spark_jobs.audit.reporting import (
    Reach,
    note_beginning,
    note_end,
    print_findings,
    reach_in,
)
from equipoise.spark_jobs.audit.state import StateFile
from equipoise.spark_jobs.rules.checkers import CHANNEL_RULES
from equipoise.spark_jobs.rules.rule import parse_finding
from equipoise.spark_jobs.sequence.rows import Source
from equipoise.spark_jobs.sources.beginnings import beginning_at, lost
from equipoise.spark_jobs.sources.reading import Batch
from equipoise.spark_jobs.sources.tail import Patience, Tail
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import AuditOptions, Screen, state_folder
from equipoise.spark_jobs.streams.progress import BatchDone, Watch, watching

JOB: Final = "audit"

STATE_FILE: Final = "audit.state"

STATE_VERSION: Final = 1
"""Raise it with every change that makes existing state files unusable."""

COMMIT_S: Final = 5.0
"""Time between two commits without findings: what a crash makes the next run read again."""

_REMEDY: Final = (
    "it reads the log from its beginning, and readers count a finding that it makes again only once"
)

MakeAuditor = Callable[[], Auditing]


class Audit:
    """One run of an audit. `make` makes its auditor, which then gets a state to continue from."""

    def __init__(
        self,
        options: AuditOptions,
        make: MakeAuditor,
        *,
        name: str,
        table: FindingsTable,
        state: StateFile,
        watch: Watch,
    ) -> None:
        """Continue from the state file. A new one gets the state at the log's earliest place.

        Raises what `beginning_at` raises.
        """
        self._options = options
        self._make = make
        self._watch = watch
        self._state = state
        self._name = name
        self._table = table
        self._out = FindingsOut(options.log_url)
        self._pending = state.pending()
        self._printed = -1
        self._patience = Patience(watch.note)
        self._committed_s = time.monotonic()
        begun: int | None = None
        is_first = True
        if not state.positions:
            beginning = beginning_at(options.log_url)
            begun, is_first = beginning.positions[Source.CHANNEL], beginning.snapshot is None
            auditor = new_auditor(options, log=table.log, begin=beginning.snapshot)
            state.commit(auditor.changed_rows(), beginning.positions, [])
        note_beginning(
            watch, name, begun, is_first=is_first, out=self._out, archive=options.archive
        )
        self._restore()

    def to_its_end(self, tail: Tail, check: Callable[[], None]) -> None:
        """Audit batch after batch. Raises what `check` raises, and `PeerError` if findings cannot
        be delivered for `AWAY_S_MAX`.
        """
        self._keep(tail)
        try:
            self._deliver(check)
            while (batch := tail.after(self._position)) is not None:
                self._take(batch, tail, check)
                check()
        finally:
            if self._is_whole:
                self._commit([], tail)

    def _restore(self) -> None:
        """Take an auditor as of the last commit."""
        self._auditor = self._make()
        self._auditor.restore(self._state.rows())
        self._position = dict(self._state.positions)
        # Whether the auditor is at the position. Only then its state may be committed: a second
        # Ctrl-C ends a batch, or a commit, in its midst.
        self._is_whole = True

    def _take(self, batch: Batch, tail: Tail, check: Callable[[], None]) -> None:
        began_s = time.monotonic()
        found: list[bytes] = []
        if batch.arrivals:
            self._is_whole = False
            try:
                found = [each.to_bytes() for each in self._auditor.feed(batch.arrivals)]
            except PeerError as error:  # The log, or Spark, went away in the midst of a batch.
                self._watch.repeated()
                self._patience.failed("the batch is repeated", error)
                self._restore()
                return
            self._patience.over()
        self._position = batch.ends
        self._is_whole = True
        if found or time.monotonic() - self._committed_s >= COMMIT_S:
            self._commit(found, tail)
            self._deliver(check)
        if batch.arrivals:
            end = tail.end()
            self._watch.batch(
                BatchDone(
                    batch=self._watch.batches + 1,
                    rows=len(batch.arrivals),
                    took_ms=round(1_000 * (time.monotonic() - began_s)),
                    behind=None
                    if end is None
                    else max(0, end + 1 - self._position[Source.CHANNEL]),
                    state_rows=self._auditor.state_rows,
                    state_bytes=self._state.path.stat().st_size,
                )
            )

    def _commit(self, found: list[bytes], tail: Tail) -> None:
        """Commit the state after a batch, and its findings."""
        self._is_whole = False
        self._state.commit(self._auditor.changed_rows(), self._position, found)
        self._committed_s = time.monotonic()
        self._is_whole = True
        if found:
            self._pending.append((self._state.number, found))
        self._keep(tail)

    def _keep(self, tail: Tail) -> None:
        """Write how far the audit has come."""
        stopped, base = self._auditor.standing
        audited = self._position[Source.CHANNEL] - 1 + base if stopped is None else stopped
        end = (tail.end() or 0) + base
        self.keep(Reach(audited=audited, end=max(audited, end), base=base))

    def keep(self, reach: Reach) -> None:
        """Write how far the audit has come. Raises as `Reach.keep`."""
        self._table.keep(reach)
        self._watch.reached(audited=reach.audited, end=reach.end)

    def _deliver(self, check: Callable[[], None]) -> None:
        """Deliver what is committed. Wait while somebody is away."""
        while True:
            try:
                self.deliver()
            except PeerError as error:
                self._patience.failed("findings wait to be delivered", error)
                check()
            else:
                self._patience.over()
                return

    def deliver(self) -> None:
        """Deliver the findings that are committed. Raises `PeerError` if somebody is away: then try
        again later. They are printed once, before the rest, which may fail.
        """
        for number, documents in self._pending:
            found = [parse_finding(each) for each in documents]
            if number > self._printed:
                self._printed = number
                print_findings(
                    found,
                    self._watch,
                    archive=self._options.archive,
                    log=self._name,
                    as_json=self._options.as_json,
                )
            self._table.append(rows_of(found))
            self._out.put(found)
        if self._pending:
            self._state.delivered(self._pending[-1][0])
            self._pending.clear()


def new_auditor(
    options: AuditOptions, *, log: str, begin: bytes | None = None, shard: tuple[int, int] = (0, 1)
) -> Auditor:
    """Return the auditor of a log. See `Auditor`."""
    return Auditor(
        begin=begin,
        lost=partial(lost, options.log_url),
        log=log,
        in_flight_max_ms=1_000 * options.in_flight_max_s,
        shard=shard,
    )


def run_audit(options: AuditOptions, screen: Screen) -> int:
    """Audit a log in this process. Return and raise as `audited`."""
    return audited(options, screen, lambda log, _watch: partial(new_auditor, options, log=log))


def audited(
    options: AuditOptions,
    screen: Screen,
    auditors: Callable[[str, Watch], MakeAuditor],
    *,
    in_spark: bool = False,
) -> int:
    """Audit a log until its end (`to_end`) or an interrupt. Return how many findings this run made;
    at the end of a log that it could not audit to its end, at least 1.

    `auditors` returns what makes the auditor, for the log's identity.

    Raises what `open_log`, `beginning_at`, `open_findings`, `StateFile`, `watching`, `Tail` and
    `auditors` raise, and `PeerError` if somebody is away for `AWAY_S_MAX`.
    """
    url, archive = options.log_url, options.archive
    with closing(open_log(url, create=False)) as log:
        name, identity, end = log.name, log.identity, log.end()
    state_file = partial(StateFile, version=STATE_VERSION, log=identity, remedy=_REMEDY)
    with (
        open_findings(archive, log=identity, url=url) as table,
        closing(state_file(state_folder(archive, url) / STATE_FILE)) as state,
        watching(
            JOB, screen, log=name, metrics_port=options.metrics_port, rules=CHANNEL_RULES
        ) as watch,
    ):
        older = kept_findings(archive, watch.note)
        make = auditors(identity, watch)
        audit = Audit(options, make, name=name, table=table, state=state, watch=watch)
        try:
            with (
                Tail(
                    url, identity=identity, to_end=options.to_end, watch=watch, in_spark=in_spark
                ) as tail,
                delayed_interrupts() as check,
            ):
                audit.to_its_end(tail, check)
        finally:
            reach = last_reach(options, end)
            audit.keep(reach)
            note_end(watch, reach, older, as_json=options.as_json)
        return watch.findings.total() or int(not reach.is_whole)


def last_reach(options: AuditOptions, end: int) -> Reach:
    """Return how far the audit has come, and where the log ends now: if it does not answer, at
    `end` at least.
    """
    kept = reach_in(options.archive) or Reach(audited=0, end=0)
    with suppress(EquipoiseError), closing(open_log(options.log_url, create=False)) as log:
        end = log.end()
    return replace(kept, end=max(kept.audited, end + kept.base))
