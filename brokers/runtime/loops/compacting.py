"""Start compactions of the channel's log while this broker leads, and run each in a process of its
own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson

from equipoise.brokers.agent.effects import AlarmName
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import EquipoiseError, PeerError
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.table import Resync
from equipoise.channel.log.open_log import is_in_memory, open_log
from equipoise.compaction.compactor import compact
from equipoise.compaction.retention import COMPACT_S_MAX, WAIT_MS_MAX, holds_in, parse_retention

_logger: Final = logging.getLogger(__name__)

_NICE: Final = 10
"""The niceness of a compaction: on a busy machine, serving clients comes first."""

_OUTPUT_BYTES_MAX: Final = 1 << 16
"""The most output of a child: one document, or one error."""

_QUOTED_BYTES: Final = 500
"""How much unexpected output of a child an error quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The parameters of a compaction: the log, its expected cluster, and the retention."""

    log_url: str
    cluster: str
    retain: str


class Done(NamedTuple):
    """The result: `horizon` and `ahead` as in `compaction.compactor.Compacted`."""

    horizon: int | None
    ahead: int | None = None


CompactOnce = Callable[[Compaction], Awaitable[Done]]
"""Compacts, and returns the result; raises `PeerError` with the code of the cause."""


def compact_once_of(log_url: str) -> CompactOnce:
    """Return how to compact a log: in a child process, or in a thread if no other process can open
    it.
    """
    return compact_in_thread if is_in_memory(log_url) else compact_in_child


async def compact_in_thread(compaction: Compaction) -> Done:
    """Compact in a thread of this process. Raises `PeerError`. If the caller is cancelled,
    the thread still runs to its end.
    """
    return await asyncio.to_thread(_compact_here, compaction)


def _compact_here(compaction: Compaction) -> Done:
    try:
        with closing(open_log(compaction.log_url, create=False)) as log:
            done = compact(
                log,
                cluster=compaction.cluster,
                retain=parse_retention(compaction.retain),
                timeout_ms=WAIT_MS_MAX,
            )
    except EquipoiseError as error:
        raise _not_compacted(compaction, error.code, str(error)) from error
    return Done(done.horizon, done.ahead)


async def compact_in_child(compaction: Compaction) -> Done:
    """Compact in a child process, which does not outlive this one. Raises `PeerError`."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "equipoise.brokers.cli",
        "channel",
        "compact",
        "--json",
        "--stop-on-eof",
        "--retain",
        compaction.retain,
        "--cluster",
        compaction.cluster,
        "--timeout",
        str(COMPACT_S_MAX),
        "--log",
        compaction.log_url,
    ]
    try:
        # This process holds the other end of the child's standard input. Whenever this process
        # ends, the child reads the end of its input.
        child = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
    except OSError as error:
        raise _not_compacted(compaction, type(error).__name__, str(error)) from error
    try:
        # The child may have ended already. A failure to lower its priority does no harm.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, _NICE)
        async with asyncio.timeout(COMPACT_S_MAX):
            output, errors = await _output_of(child)
            code = await child.wait()
    except TimeoutError:
        problem = f"it had not ended after {COMPACT_S_MAX} s"
        raise _not_compacted(compaction, "DeadlineExceeded", problem) from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return _done(compaction, code, output, errors)


async def _output_of(child: Process) -> tuple[bytes, bytes]:
    """Return all output of a child, up to a limit that no valid output reaches. Its input stays
    open meanwhile.
    """
    assert child.stdout is not None, "it was asked for"
    assert child.stderr is not None, "it was asked for"
    output, errors = await asyncio.gather(_all_of(child.stdout), _all_of(child.stderr))
    return output, errors


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    output = b""
    while len(output) < _OUTPUT_BYTES_MAX and (
        more := await stream.read(_OUTPUT_BYTES_MAX - len(output))
    ):
        output += more
    return output


def _done(compaction: Compaction, code: int, output: bytes, errors: bytes) -> Done:
    """Return the result of a child that has ended. Raises `PeerError`."""
    try:
        if code == 0:
            result = orjson.loads(output)
            return Done(
                *(None if result[name] is None else int(result[name]) for name in Done._fields)
            )
        failure = orjson.loads(errors.splitlines()[-1])
        error, problem = str(failure["error"]), str(failure["message"])
    except (ValueError, LookupError, TypeError):
        error, problem = (
            "Bug",
            f"it ended with code {code} and printed {(output + errors)[-_QUOTED_BYTES:]!r}",
        )
    raise _not_compacted(compaction, error, problem)


def _not_compacted(compaction: Compaction, code: str, problem: str) -> PeerError:
    """Return the error for a failed compaction. The log and its snapshot have the same content as
    before. `code` is that of the cause.
    """
    return PeerError(
        f"the log {compaction.log_url} was not compacted ({code}): {problem}", code=code
    )


_LOOK_S: Final = 1.0
"""How often to check whether a compaction is due: a comparison of three numbers."""

RETRY_MS: Final = 60_000
"""The pause after a failed compaction. The cause is an outage, or needs an operator: both take a
while."""

# Another compactor was faster: an operator, or a leader that has just been replaced. It does the
# work.
_OVERTAKEN: Final = "SnapshotFenced"


class Compacting:
    """The compactor of one worker. `run` continues until it is cancelled; it logs failures and
    retries.
    """

    def __init__(self, worker: Worker, *, compact_once: CompactOnce | None = None) -> None:
        """`compact_once` runs a compaction; by default the log's kind decides."""
        config = worker.config
        self._worker = worker
        self._compact_once = compact_once or compact_once_of(config.log_url)
        self._compaction = Compaction(
            log_url=config.log_url, cluster=config.cluster, retain=config.retain
        )
        self._records = 0
        self._since_ms = worker.clock.now().boot_ms
        self._not_before_ms = self._since_ms
        self._logged: str | None = None
        self._lapsed: tuple[str, ...] = ()

    async def run(self) -> None:
        """Check every second whether a compaction is due, and run it. If `compact_records` is 0,
        return at once.
        """
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
        self._worker.metrics.set("uncompacted_records", self._records)

    def _resynced(self, _resync: Resync) -> None:
        """Start counting again: another process has compacted, and this broker continues from its
        snapshot.
        """
        self._records = 0
        self._since_ms = self._worker.clock.now().boot_ms

    def _is_due(self) -> bool:
        agent, config, now = self._worker.agent, self._worker.config, self._worker.clock.now()
        if (
            not (agent.leads and agent.lease.holds(now))
            or now.boot_ms < self._not_before_ms
            or not self._records
        ):
            return False
        return (
            self._records >= config.compact_records
            or now.boot_ms - self._since_ms >= config.compact_age_ms
        )

    async def _compact(self) -> None:
        clock, metrics = self._worker.clock, self._worker.metrics
        began_ms, began_records = clock.now().boot_ms, self._records
        try:
            horizon, ahead = await self._compact_once(self._compaction)
        except PeerError as error:
            self._not_before_ms = clock.now().boot_ms + RETRY_MS
            self._failed(error)
            return
        took_ms = clock.now().boot_ms - began_ms
        self._since_ms, self._logged = began_ms, None
        # Records folded during the compaction may or may not be in the snapshot. Counting them
        # again is the safe error.
        self._records = max(self._records - began_records, 0)
        if horizon is not None:
            metrics.compacted_ns = time.monotonic_ns()
            metrics.set("compaction_horizon_offset", horizon)
            metrics.set("compaction_duration_seconds", took_ms / 1_000)
            metrics.set("uncompacted_records", self._records)
            fields = {
                "broker": self._worker.broker_id,
                "horizon": horizon,
                "records": began_records,
                "took_ms": took_ms,
            }
            _logger.info("compacted the channel", extra=fields)
            self._report_holds()
            self._report_clock(ahead)

    def _report_clock(self, ahead: int | None) -> None:
        self._worker.metrics.set("log_clock_ahead_offset", ahead or 0)
        if ahead is not None:
            self._worker.metrics.count("alarms_total", AlarmName.LOG_CLOCK)
            text = (
                "a record has a time ahead of this machine's clock: set the clock of the machine"
                " that stores the log, or of this one"
            )
            _logger.warning(
                text,
                extra={
                    "broker": self._worker.broker_id,
                    "alarm": AlarmName.LOG_CLOCK,
                    "offset": ahead,
                },
            )

    def _report_holds(self) -> None:
        """Report the archives whose retention holds keep the log long, and those whose holds have
        lapsed because they stopped moving.
        """
        held = holds_in(self._worker.agent.view.policies, now_ms=self._worker.clock.now().wall_ms)
        self._worker.metrics.set("archive_archived_offset", held.archived_to or 0)
        self._worker.metrics.set("archive_holds_lapsed", len(held.lapsed))
        if held.lapsed and held.lapsed != self._lapsed:
            fields = {
                "broker": self._worker.broker_id,
                "alarm": AlarmName.ARCHIVE_HOLD,
                "archives": ", ".join(held.lapsed),
            }
            self._worker.metrics.count("alarms_total", AlarmName.ARCHIVE_HOLD)
            text = (
                "nothing is kept any longer for archives that have not moved: start them again, or"
                " lift their holds"
            )
            _logger.warning(text, extra=fields)
        self._lapsed = held.lapsed

    def _failed(self, error: PeerError) -> None:
        """Count a failure and log it, unless the last one was the same: a log that cannot be
        compacted fails every minute.
        """
        broker = self._worker.broker_id
        if error.code == _OVERTAKEN:
            _logger.info("%s", error, extra={"broker": broker})
            return
        self._worker.metrics.count("compaction_failures_total")
        if self._logged != str(error):
            self._logged = str(error)
            self._worker.metrics.count("alarms_total", AlarmName.COMPACTION)
            _logger.warning(
                "%s",
                error,
                extra={"broker": broker, "alarm": AlarmName.COMPACTION, "error": error.code},
            )
