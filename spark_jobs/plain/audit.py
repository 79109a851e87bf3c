"""Audit a channel in one small process beside the brokers, live, each finding exactly once.

1. A batch with findings is committed to the state file, with the findings, before anybody sees
   them.
2. The findings are printed, stored and published, then forgotten by the state file.

After a crash the process continues at the last commit, and delivers what is still there. The table
and the log of findings recognise what they have already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final

from equipoise.channel.core.errors import PeerError
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.audit.findings_out import FindingsOut
from equipoise.spark_jobs.audit.findings_table import (
    PLAIN_STATE,
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
from equipoise.spark_jobs.plain.auditor import Auditor
from equipoise.spark_jobs.plain.reading import AWAY_S_MAX, Batch, Tail
from equipoise.spark_jobs.plain.state import StateFile
from equipoise.spark_jobs.rules.checkers import CHANNEL_RULES
from equipoise.spark_jobs.rules.rule import parse_finding
from equipoise.spark_jobs.sequence.rows import Source
from equipoise.spark_jobs.sources.beginnings import beginning_at
from equipoise.spark_jobs.streams.errors import WITHOUT_CHECKPOINT
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.losses import lost
from equipoise.spark_jobs.streams.options import AuditOptions, Screen, default_archive
from equipoise.spark_jobs.streams.progress import BatchDone, LookedAt, Watch, watching
from equipoise.spark_jobs.tables.files import folder_of

JOB: Final = "audit"

STATE_VERSION: Final = 1
"""Raise it with every change that makes existing state files unusable."""

COMMIT_S: Final = 5.0
"""Time between two commits without findings: what a crash makes the next run read again."""

_RETRY_S: Final = 1.0


def run_audit(options: AuditOptions, screen: Screen) -> int:
    """Audit a log until its end (`to_end`) or an interrupt. Return how many findings this run made;
    at the end of a log that it could not audit to its end, at least 1.

    Raise the errors of `open_log`, `beginning_at`, `open_findings` and `StateFile`, those of
    `watching` and `Tail`, and `PeerError` if findings cannot be delivered for `AWAY_S_MAX`.
    """
    url = options.log_url
    with closing(open_log(url, create=False)) as log:
        name, identity = log.name, log.identity
    with (
        open_findings(options.archive, state=PLAIN_STATE, log=identity, url=url) as table,
        closing(
            StateFile(
                (folder_of(options.archive) or default_archive(url)) / PLAIN_STATE,
                version=STATE_VERSION,
                log=identity,
                remedy=WITHOUT_CHECKPOINT[JOB],
            )
        ) as state,
        Tail(url, identity=identity, to_end=options.to_end) as tail,
        watching(
            JOB,
            screen,
            log=LookedAt.at(name, url),
            metrics_port=options.metrics_port,
            rules=CHANNEL_RULES,
        ) as watch,
    ):
        run = _Run(options, log=name, state=state, tail=tail, table=table, watch=watch)
        with delayed_interrupts() as check:
            return run.to_its_end(check)


class _Run:
    """One run of the process."""

    def __init__(
        self,
        options: AuditOptions,
        *,
        log: str,
        state: StateFile,
        tail: Tail,
        table: FindingsTable,
        watch: Watch,
    ) -> None:
        self._options = options
        self._log = log
        self._state = state
        self._tail = tail
        self._table = table
        self._watch = watch
        self._out = FindingsOut(options.log_url)
        self._older = kept_findings(options.archive, watch.note)
        self._pending = state.pending()
        self._printed = -1
        self._failed_s: float | None = None
        self._lost_s: float | None = None
        self._retry_s = 0.0
        kept = reach_in(options.archive) or Reach(audited=0, end=0)
        self._end = kept.end - kept.base  # The log's last offset, when it last answered.
        self._batches = 0
        self._committed_s = time.monotonic()
        self._position: dict[str, int] = {}
        # Whether the auditor is at the position. Only then its state may be committed: a second
        # Ctrl-C ends a batch, or a commit, in its midst.
        self._is_whole = True
        self._auditor = self._begun()

    def _begun(self) -> Auditor:
        """Return the audit as of the last commit, or of the log's earliest place."""
        beginning = None if self._state.positions else beginning_at(self._options.log_url)
        auditor = Auditor(
            begin=None if beginning is None else beginning.snapshot,
            lost=partial(lost, self._options.log_url),
            log=self._table.log,
            in_flight_max_ms=1_000 * self._options.in_flight_max_s,
        )
        if beginning is None:
            auditor.restore(self._state.rows())
            self._position = dict(self._state.positions)
        else:
            self._position = dict(beginning.positions)
        return auditor

    def to_its_end(self, check: Callable[[], None]) -> int:
        """Audit batch after batch. Return as `run_audit`. Raise what that raises, and what `check`
        raises.
        """
        watch = self._watch
        self._reach()
        note_beginning(
            watch,
            self._log,
            None if self._state.positions else self._position[Source.CHANNEL],
            is_first=not self._auditor.sequence.begin,
            out=self._out,
            archive=self._options.archive,
        )
        try:
            while (batch := self._tail.after(self._position)) is not None:
                self._take(batch)
                check()
            self._commit([])
            while self._pending:
                self._deliver()
                check()
        except KeyboardInterrupt:
            if self._is_whole:
                self._commit([])
            raise
        finally:
            watch.show()
            reach = self._reach()
            note_end(watch, reach, self._older, as_json=self._options.as_json)
        return watch.findings.total() or int(not reach.is_whole)

    def _take(self, batch: Batch) -> None:
        began_s = time.monotonic()
        found: list[bytes] = []
        try:
            if not self._is_whole:  # The batch before could not be repeated yet.
                self._auditor = self._begun()
                self._is_whole = True
                return
            if batch.arrivals:
                self._is_whole = False
                found = [each.to_bytes() for each in self._auditor.feed(batch.arrivals)]
                self._lost_s = None
        except PeerError as error:  # The log went away in the midst of a batch.
            self._wait(error)
            return
        self._position = batch.ends
        if found or time.monotonic() - self._committed_s >= COMMIT_S:
            self._commit(found)
        self._is_whole = True
        if self._pending:
            self._deliver()
        if batch.arrivals:
            self._show(len(batch.arrivals), took_ms=round(1_000 * (time.monotonic() - began_s)))
        else:
            self._watch.idle()
        self._watch.show()

    def _wait(self, error: PeerError) -> None:
        now_s = time.monotonic()
        self._lost_s = self._lost_s or now_s
        if now_s - self._lost_s > AWAY_S_MAX:
            raise error
        self._watch.note(f"the batch is repeated: {error}")
        time.sleep(_RETRY_S)

    def _show(self, rows: int, *, took_ms: int) -> None:
        self._batches += 1
        end = self._tail.end()
        self._watch.batch(
            BatchDone(
                batch=self._batches,
                rows=rows,
                took_ms=took_ms,
                behind=None if end is None else max(0, end + 1 - self._position[Source.CHANNEL]),
                state_rows=self._auditor.state_rows,
                state_bytes=self._state.path.stat().st_size,
            )
        )

    def _reach(self) -> Reach:
        sequence, end = self._auditor.sequence, self._tail.end()
        self._end = self._end if end is None else end
        audited = sequence.reached(self._position[Source.CHANNEL])
        base = sequence.view.base
        reach = Reach(audited=audited, end=max(audited, self._end + base), base=base)
        self._watch.reached(audited=reach.audited, end=reach.end)
        return reach

    def _commit(self, found: list[bytes]) -> None:
        self._is_whole = False
        self._state.commit(self._auditor.changed_rows(), self._position, found)
        self._committed_s = time.monotonic()
        if found:
            self._pending.append((self._state.number, found))
        self._is_whole = True
        self._table.keep(self._reach())

    def _deliver(self) -> None:
        """Deliver what is pending. Try again later if somebody is away."""
        if time.monotonic() < self._retry_s:
            time.sleep(_RETRY_S / 10)
            return
        try:
            for number, documents in self._pending:
                self._deliver_one(number, documents)
        except PeerError as error:
            now_s = time.monotonic()
            self._failed_s = self._failed_s or now_s
            if now_s - self._failed_s > AWAY_S_MAX:
                raise
            self._watch.note(f"findings wait to be delivered: {error}")
            self._retry_s = now_s + _RETRY_S
            return
        self._failed_s = None
        self._state.delivered(self._pending[-1][0])
        self._pending.clear()

    def _deliver_one(self, number: int, documents: list[bytes]) -> None:
        found = [parse_finding(each) for each in documents]
        if number > self._printed:
            # Before the rest, which may fail.
            self._printed = number
            print_findings(
                found,
                self._watch,
                archive=self._options.archive,
                log=self._log,
                as_json=self._options.as_json,
            )
        self._table.append(rows_of(found))
        self._out.put(found)
