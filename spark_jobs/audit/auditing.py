"""Run an audit, each finding exactly once: what its two hosts share. `spark_jobs.plain.audit` is a
small process beside the brokers, `spark_jobs.audit.job` runs in Spark.

1. A batch is committed to the state file, with its findings, before anybody sees them.
2. The findings are printed, stored and published, then forgotten by the state file.

After a crash either host continues at the last commit, and delivers what is still there. The table
and the log of findings recognise what they have already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.audit.auditor import Auditor
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
from equipoise.spark_jobs.rules.memory import StateRow
from equipoise.spark_jobs.rules.rule import parse_finding
from equipoise.spark_jobs.sequence.folding import Lost
from equipoise.spark_jobs.sequence.rows import Positions, Source
from equipoise.spark_jobs.sources.beginnings import beginning_at
from equipoise.spark_jobs.sources.beginnings import lost as lost_in_log
from equipoise.spark_jobs.streams.options import AuditOptions, Screen, state_folder
from equipoise.spark_jobs.streams.progress import LookedAt, Watch, watching

JOB: Final = "audit"

STATE_FILE: Final = "audit.state"

STATE_VERSION: Final = 1
"""Raise it with every change that makes existing state files unusable."""

_REMEDY: Final = (
    "it reads the log from its beginning, and readers count a finding that it makes again only once"
)


class Audit:
    """One run of an audit.

    * `state`: the state as of the last commit.
    * `log`: the log's identity.
    * `is_new`: there was no state before this run.
    """

    def __init__(
        self,
        options: AuditOptions,
        *,
        name: str,
        table: FindingsTable,
        state: StateFile,
        watch: Watch,
    ) -> None:
        """Continue from the state file. A new one gets the state at the log's earliest place.

        Raises what `beginning_at` raises.
        """
        self.options = options
        self.watch = watch
        self.state = state
        self.log = table.log
        self._name = name
        self._table = table
        self._out = FindingsOut(options.log_url)
        self._pending = state.pending()
        self._printed = -1
        begun: int | None = None
        is_first = True
        self.is_new = not state.positions
        if self.is_new:
            beginning = beginning_at(options.log_url)
            begun, is_first = beginning.positions[Source.CHANNEL], beginning.snapshot is None
            auditor = new_auditor(options, log=self.log, begin=beginning.snapshot)
            state.commit(auditor.changed_rows(), beginning.positions, [])
        note_beginning(
            watch, name, begun, is_first=is_first, out=self._out, archive=options.archive
        )

    def commit(self, changed: Iterable[StateRow], positions: Positions, found: list[bytes]) -> None:
        """Commit the state after a batch, and its findings. Raises as `StateFile.commit`."""
        self.state.commit(changed, positions, found)
        if found:
            self._pending.append((self.state.number, found))

    def keep(self, reach: Reach) -> None:
        """Write how far the audit has come. Raises as `Reach.keep`."""
        self._table.keep(reach)
        self.watch.reached(audited=reach.audited, end=reach.end)

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
                    self.watch,
                    archive=self.options.archive,
                    log=self._name,
                    as_json=self.options.as_json,
                )
            self._table.append(rows_of(found))
            self._out.put(found)
        if self._pending:
            self.state.delivered(self._pending[-1][0])
            self._pending.clear()


def new_auditor(
    options: AuditOptions,
    *,
    log: str | None,
    begin: bytes | None = None,
    shard: tuple[int, int] = (0, 1),
    lost: Lost | None = None,
) -> Auditor:
    """Return the auditor of a log. See `Auditor`; without `lost` the log is asked."""
    return Auditor(
        begin=begin,
        lost=lost or partial(lost_in_log, options.log_url),
        log=log,
        in_flight_max_ms=1_000 * options.in_flight_max_s,
        shard=shard,
    )


def audited_by(host: Callable[[Audit], None], options: AuditOptions, screen: Screen) -> int:
    """Audit a log by `host` until its end (`to_end`) or an interrupt. Return how many findings this
    run made; at the end of a log that it could not audit to its end, at least 1.

    Raise the errors of `open_log`, `beginning_at`, `open_findings`, `StateFile` and `watching`, and
    what `host` raises.
    """
    url, archive = options.log_url, options.archive
    with closing(open_log(url, create=False)) as log:
        name, identity, end = log.name, log.identity, log.end()
    state_file = partial(StateFile, version=STATE_VERSION, log=identity, remedy=_REMEDY)
    with (
        open_findings(archive, log=identity, url=url) as table,
        closing(state_file(state_folder(archive, url) / STATE_FILE)) as state,
        watching(
            JOB,
            screen,
            log=LookedAt.at(name, url),
            metrics_port=options.metrics_port,
            rules=CHANNEL_RULES,
        ) as watch,
    ):
        older = kept_findings(archive, watch.note)
        audit = Audit(options, name=name, table=table, state=state, watch=watch)
        try:
            host(audit)
        finally:
            watch.show()
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
