"""Call a broker at the address that it advertises, until the broker itself answers there."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import aiohttp

from equipoise.brokers.runtime.service import own_http
from equipoise.brokers.runtime.worker import PROCESS, Worker
from equipoise.channel.system.failures import RepeatedFailures

_logger: Final = logging.getLogger(__name__)

PROBLEM: Final = "own address"
"""The key of this problem in the worker's `client_problems`."""

# A server opens its listener some milliseconds after its program has started.
_FIRST_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 5.0
_LISTENS_AFTER_MS: Final = 1_000
_LINES_MS: Final = 60_000

# How long an answer may take. Others wait as long for state.
_ANSWER_S: Final = 5.0


async def call_own_address(worker: Worker) -> None:
    """Return once the worker has answered at its own address, and let it join. Until then, log and
    show what is wrong there.
    """
    url = f"{own_http(worker.profile.addresses)}/health"
    began_ms, pause_s = worker.clock.now().boot_ms, _FIRST_PAUSE_S
    lines = RepeatedFailures(interval_ms=_LINES_MS)
    while (found := await _found_at(url, worker)) is not None:
        now_ms = worker.clock.now().boot_ms
        if now_ms - began_ms >= _LISTENS_AFTER_MS:
            problem = (
                f"{url} does not lead to this broker: {found}; correct the address that it"
                " advertises, or set check_address=false if this network does not let a host call"
                " itself"
            )
            if not worker.agent.is_ready:
                problem = f"it takes no bundles: {problem}"
            worker.client_problems[PROBLEM] = problem
            if lines.failed(now_ms) is not None:
                _logger.error("not reachable: %s", problem, extra={"broker": worker.broker_id})
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
    worker.client_problems.pop(PROBLEM, None)
    worker.reachable()


async def _found_at(url: str, worker: Worker) -> str | None:
    """Return who answers in place of the worker, or why nobody does."""
    timeout, tls = aiohttp.ClientTimeout(total=_ANSWER_S), worker.access.certificates.client
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=False, ssl=tls) as answer,
        ):
            process = answer.headers.get(PROCESS)
            if process == worker.process:
                return None
            if process is None:
                return f"what answers is no broker (HTTP {answer.status})"
            body = await answer.json(content_type=None)
            broker = body.get("broker") if isinstance(body, dict) else None
            return f"{broker or 'another broker'} answers"
    except TimeoutError:
        return f"no answer within {_ANSWER_S:.0f} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return str(error) or type(error).__name__
