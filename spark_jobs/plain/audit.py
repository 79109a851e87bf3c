"""Audit a channel in one small process beside the brokers, live."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from equipoise.channel.core.errors import PeerError
from equipoise.spark_jobs.audit.auditing import Audit, audited_by, new_auditor
from equipoise.spark_jobs.audit.reporting import Reach
from equipoise.spark_jobs.plain.reading import Patience, Tail
from equipoise.spark_jobs.sequence.rows import Source
from equipoise.spark_jobs.sources.reading import Batch
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import AuditOptions, Screen
from equipoise.spark_jobs.streams.progress import BatchDone

COMMIT_S: Final = 5.0
"""Time between two commits without findings: what a crash makes the next run read again."""


def run_audit(options: AuditOptions, screen: Screen) -> int:
    """Audit a log. Return and raise as `audited_by` and `Tail`, and `PeerError` if findings cannot
    be delivered for `AWAY_S_MAX`.
    """
    return audited_by(_to_its_end, options, screen)


def _to_its_end(audit: Audit) -> None:
    options = audit.options
    with (
        Tail(options.log_url, identity=audit.log, to_end=options.to_end) as tail,
        delayed_interrupts() as check,
    ):
        _Run(audit, tail, check).to_its_end()


class _Run:
    """One run of the process."""

    def __init__(self, audit: Audit, tail: Tail, check: Callable[[], None]) -> None:
        self._audit = audit
        self._tail = tail
        self._check = check
        self._patience = Patience(audit.watch.note)
        self._committed_s = time.monotonic()
        self._restore()

    def _restore(self) -> None:
        """Take the auditor as of the last commit."""
        self._auditor = new_auditor(self._audit.options, log=self._audit.log)
        self._auditor.restore(self._audit.state.rows())
        self._position = dict(self._audit.state.positions)
        # Whether the auditor is at the position. Only then its state may be committed: a second
        # Ctrl-C ends a batch, or a commit, in its midst.
        self._is_whole = True

    def to_its_end(self) -> None:
        """Audit batch after batch."""
        self._keep()
        try:
            self._deliver()
            while (batch := self._tail.after(self._position)) is not None:
                self._take(batch)
                self._check()
        finally:
            if self._is_whole:
                self._commit([])

    def _take(self, batch: Batch) -> None:
        began_s = time.monotonic()
        found: list[bytes] = []
        if batch.arrivals:
            self._is_whole = False
            try:
                found = [each.to_bytes() for each in self._auditor.feed(batch.arrivals)]
            except PeerError as error:  # The log went away in the midst of a batch.
                self._patience.failed("the batch is repeated", error)
                self._restore()
                return
            self._patience.over()
        self._position = batch.ends
        self._is_whole = True
        if found or time.monotonic() - self._committed_s >= COMMIT_S:
            self._commit(found)
            self._deliver()
        if batch.arrivals:
            self._show(len(batch.arrivals), took_ms=round(1_000 * (time.monotonic() - began_s)))
        self._audit.watch.show()

    def _show(self, rows: int, *, took_ms: int) -> None:
        end = self._tail.end()
        self._audit.watch.batch(
            BatchDone(
                batch=self._audit.watch.batches + 1,
                rows=rows,
                took_ms=took_ms,
                behind=None if end is None else max(0, end + 1 - self._position[Source.CHANNEL]),
                state_rows=self._auditor.state_rows,
                state_bytes=self._audit.state.path.stat().st_size,
            )
        )

    def _keep(self) -> None:
        sequence = self._auditor.sequence
        audited, base = sequence.reached(self._position[Source.CHANNEL]), sequence.view.base
        end = (self._tail.end() or 0) + base
        self._audit.keep(Reach(audited=audited, end=max(audited, end), base=base))

    def _commit(self, found: list[bytes]) -> None:
        self._is_whole = False
        self._audit.commit(self._auditor.changed_rows(), self._position, found)
        self._committed_s = time.monotonic()
        self._is_whole = True
        self._keep()

    def _deliver(self) -> None:
        """Deliver what is committed. Wait while somebody is away."""
        while True:
            try:
                self._audit.deliver()
            except PeerError as error:
                self._patience.failed("findings wait to be delivered", error)
                self._audit.watch.show()
                self._check()
            else:
                self._patience.over()
                return
