"""Run one compaction of a broker's log, outside the event loop, so that folding a million records blocks nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson

from equipoise.brokers.errors import CompactionFailed
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.log.open_log import is_in_memory, open_log
from equipoise.compaction.bounds import COMPACT_S_MAX, WAIT_MS_MAX
from equipoise.compaction.compactor import compact
from equipoise.compaction.retention import parse_retention

_NICE: Final = 10
"""The niceness of a compaction: on a busy machine, serving clients comes first."""

_OUTPUT_BYTES_MAX: Final = 1 << 16
"""The most output of a child: one document, or one error."""

_TOLD_BYTES: Final = 500
"""How much unexpected output of a child an error quotes."""

NOT_BEGUN: Final = -1
"""The horizon of a log without records for a snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The parameters of a compaction: the log, its expected cluster, and the retention."""

    log_url: str
    cluster: str
    retain: str


class Done(NamedTuple):
    """The result: `horizon` (or `NOT_BEGUN`) and `ahead` as in `compaction.compactor.Compacted`."""

    horizon: int
    ahead: int | None = None


CompactOnce = Callable[[Compaction], Awaitable[Done]]
"""Compacts, and returns the result; raises `CompactionFailed`."""


def compact_once_of(log_url: str) -> CompactOnce:
    """Return how to compact a log: in a child process, or in a thread if no other process can open it."""
    return compact_in_thread if is_in_memory(log_url) else compact_in_child


async def compact_in_thread(compaction: Compaction) -> Done:
    """Compact in a thread of this process. Raises `CompactionFailed`. If the caller is cancelled, the thread still runs to its end."""
    return await asyncio.to_thread(_compact_here, compaction)


def _compact_here(compaction: Compaction) -> Done:
    try:
        log = open_log(compaction.log_url, create=False)
        try:
            done = compact(log, cluster=compaction.cluster, retain=parse_retention(compaction.retain), timeout_ms=WAIT_MS_MAX)
        finally:
            log.close()
    except EquipoiseError as error:
        raise CompactionFailed(log=compaction.log_url, error=type(error).__name__, problem=str(error)) from error
    return Done(NOT_BEGUN if done.horizon is None else done.horizon, done.ahead)


async def compact_in_child(compaction: Compaction) -> Done:
    """Compact in a child process, which does not outlive this one. Raises `CompactionFailed`."""
    command = [sys.executable, "-P", "-m", "equipoise.brokers.cli", "channel", "compact", "--json", "--stop-on-eof"]
    command += ["--retain", compaction.retain, "--cluster", compaction.cluster, "--timeout", str(COMPACT_S_MAX)]
    command += ["--log", compaction.log_url]
    try:
        # This process holds the other end of the child's standard input. Whenever this process ends, the child reads the end of its input.
        child = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)
    except OSError as error:
        raise CompactionFailed(log=compaction.log_url, error=type(error).__name__, problem=str(error)) from error
    try:
        with suppress(OSError):  # The child may have ended already. A failure to lower its priority does no harm.
            os.setpriority(os.PRIO_PROCESS, child.pid, _NICE)
        async with asyncio.timeout(COMPACT_S_MAX):
            output, errors = await _said(child)
            code = await child.wait()
    except TimeoutError:
        problem = f"it had not ended after {COMPACT_S_MAX} s"
        raise CompactionFailed(log=compaction.log_url, error="DeadlineExceeded", problem=problem) from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return _done(compaction, code, output, errors)


async def _said(child: Process) -> tuple[bytes, bytes]:
    """Return all output of a child, up to a limit that no valid output reaches. Its input stays open meanwhile."""
    assert child.stdout is not None, "it was asked for"
    assert child.stderr is not None, "it was asked for"
    output, errors = await asyncio.gather(_all_of(child.stdout), _all_of(child.stderr))
    return output, errors


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    said = b""
    while len(said) < _OUTPUT_BYTES_MAX and (more := await stream.read(_OUTPUT_BYTES_MAX - len(said))):
        said += more
    return said


def _done(compaction: Compaction, code: int, output: bytes, errors: bytes) -> Done:
    """Return the result of a child that has ended. Raises `CompactionFailed`."""
    try:
        if code == 0:
            told = orjson.loads(output)
            horizon, ahead = told["horizon"], told["ahead"]
            return Done(NOT_BEGUN if horizon is None else int(horizon), None if ahead is None else int(ahead))
        said = orjson.loads(errors.splitlines()[-1])
        error, problem = str(said["error"]), str(said["message"])
    except (ValueError, LookupError, TypeError):
        error, problem = "Bug", f"it ended with code {code} and said {(output + errors)[-_TOLD_BYTES:]!r}"
    raise CompactionFailed(log=compaction.log_url, error=error, problem=problem)
