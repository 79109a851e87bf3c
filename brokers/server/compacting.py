"""Start compactions of the channel's log, while this broker leads, by the number of new records and by time.

`compacting_once` runs a compaction; `compaction.compactor` does the work.

* Compactions are not recorded on the channel. Each starts from the latest snapshot, so a new leader continues where the old one stopped.
* Until its first compaction a leader counts from its own start. At worst it compacts too early, and finds little to do.
* For the same reason, two brokers that both believe to lead may compact at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from equipoise.brokers.errors import CompactionFailed
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.server.compacting_once import NOT_BEGUN, Compaction, CompactOnce, compact_once_of
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.reader import Folded
from equipoise.compaction.holds import holds_in

_logger: Final = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""How often to check whether a compaction is due: a comparison of three numbers."""

RETRY_MS: Final = 60_000
"""The pause after a failed compaction. The cause is an outage, or needs an operator: both take a while."""

# Another compactor was faster: an operator, or a leader that has just been replaced. It does the work.
_OVERTAKEN: Final = "SnapshotFenced"


class Compacting:
    """The compactor of one worker. `run` continues until it is cancelled; it logs failures and retries."""

    def __init__(self, worker: Worker, *, compact_once: CompactOnce | None = None) -> None:
        """`compact_once` runs a compaction; by default the log's kind decides."""
        config = worker.config
        self._worker = worker
        self._compact_once = compact_once or compact_once_of(config.log_url)
        self._compaction = Compaction(log_url=config.log_url, cluster=config.cluster, retain=config.retain)
        self._records = 0
        self._since_ms = worker.clock.now().boot_ms
        self._not_before_ms = self._since_ms
        self._told: str | None = None
        self._lapsed: tuple[str, ...] = ()

    async def run(self) -> None:
        """Check every second whether a compaction is due, and run it. If `compact_records` is 0, return at once."""
        if not self._worker.config.compact_records:
            return
        end = self._worker.listen(self._folded, resynced=self._resynced)
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                if self._is_due():
                    await self._compact()
        finally:
            end()

    def _folded(self, _folded: Folded) -> None:
        self._records += 1
        self._worker.metrics.compaction.uncompacted(self._records)

    def _resynced(self, _resync: Resync) -> None:
        """Start counting again: another process has compacted, and this broker continues from its snapshot."""
        self._records = 0
        self._since_ms = self._worker.clock.now().boot_ms

    def _is_due(self) -> bool:
        agent, config, now = self._worker.agent, self._worker.config, self._worker.clock.now()
        if not (agent.leads and agent.lease.good(now)) or now.boot_ms < self._not_before_ms or not self._records:
            return False
        return self._records >= config.compact_records or now.boot_ms - self._since_ms >= config.compact_age_ms

    async def _compact(self) -> None:
        clock, metrics = self._worker.clock, self._worker.metrics.compaction
        began_ms, began_records = clock.now().boot_ms, self._records
        try:
            horizon, ahead = await self._compact_once(self._compaction)
        except CompactionFailed as error:
            self._not_before_ms = clock.now().boot_ms + RETRY_MS
            self._failed(error)
            return
        took_ms = clock.now().boot_ms - began_ms
        self._since_ms, self._told = began_ms, None
        # Records folded during the compaction may or may not be in the snapshot. Counting them again is the safe error.
        self._records = max(self._records - began_records, 0)
        if horizon != NOT_BEGUN:
            metrics.succeeded(horizon=horizon, took_ms=took_ms)
            metrics.uncompacted(self._records)
            fields = {"broker": self._worker.broker_id, "horizon": horizon, "records": began_records, "took_ms": took_ms}
            _logger.info("compacted the channel", extra=fields)
            self._tell_holds()
            self._tell_clock(ahead)

    def _tell_clock(self, ahead: int | None) -> None:
        self._worker.metrics.compaction.clock_ahead(ahead)
        if ahead is not None:
            self._worker.metrics.alarm("log_clock")
            text = "a record has a time ahead of this machine's clock: set the clock of the machine that stores the log, or of this one"
            _logger.warning(text, extra={"broker": self._worker.broker_id, "alarm": "log_clock", "offset": ahead})

    def _tell_holds(self) -> None:
        """Report the archives whose retention holds keep the log long, and those whose holds have lapsed because they stopped moving."""
        held = holds_in(self._worker.agent.view.policies, now_ms=self._worker.clock.now().wall_ms)
        self._worker.metrics.compaction.holds(archived_to=held.archived_to, lapsed=len(held.lapsed))
        if held.lapsed and held.lapsed != self._lapsed:
            fields = {"broker": self._worker.broker_id, "alarm": "archive_hold", "archives": ", ".join(held.lapsed)}
            self._worker.metrics.alarm("archive_hold")
            text = "nothing is kept any longer for archives that have not moved: start them again, or lift their holds"
            _logger.warning(text, extra=fields)
        self._lapsed = held.lapsed

    def _failed(self, error: CompactionFailed) -> None:
        """Count a failure and log it, but only once in a row: a log that cannot be compacted fails every minute."""
        broker = self._worker.broker_id
        if error.error == _OVERTAKEN:
            _logger.info("%s", error, extra={"broker": broker})
            return
        self._worker.metrics.compaction.failed()
        if self._told != error.error:
            self._told = error.error
            self._worker.metrics.alarm("compaction")
            _logger.warning("%s", error, extra={"broker": broker, "alarm": "compaction", "error": error.error})
