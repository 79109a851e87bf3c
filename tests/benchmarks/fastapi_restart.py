"""How long callers of the FastAPI example wait in restarts and kills: `make bench
BENCH=fastapi_restart`, in two minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Final

import aiohttp
import uvloop

from tests.benchmarks.frame import report, single, summary
from tests.load.fastapi_programs import Program, programs

PROGRAMS: Final = 3
PAGES, CALLS_PER_SECOND = 80, 800.0
ROUNDS, KILLS = 3, 3
WARM_UP_S, SETTLE_S = 5.0, 6.0
"""After each event callers go on for `SETTLE_S`, which is twice the lease. So all calls that it
delays end in its window."""

RETRY_S, ATTEMPT_S = 0.02, 10.0


class PatientCallers:
    """One caller for each page at `rate` calls per second. It follows redirects, and retries any
    program until it is served.

    `calls` are the start of each call and its length with all retries, in seconds.
    """

    def __init__(self, addresses: Sequence[str], *, pages: int, rate: float) -> None:
        self.calls: list[tuple[float, float]] = []
        self.retries = 0
        self._addresses = addresses
        self._pages = [f"page-{number}" for number in range(pages)]
        self._period_s = 1 / rate
        self._stopping = asyncio.Event()

    @contextlib.asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Call meanwhile, and finish the last calls at the end."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=ATTEMPT_S)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as callers,
        ):
            for number, page in enumerate(self._pages):
                callers.create_task(self._call_on(session, page, Random(number)))
            yield
            self._stopping.set()

    async def _call_on(self, session: aiohttp.ClientSession, page: str, random: Random) -> None:
        at = random.choice(self._addresses)
        due_s = perf_counter() + random.random() * self._period_s
        while not self._stopping.is_set():
            await asyncio.sleep(max(0.0, due_s - perf_counter()))
            began_s = perf_counter()
            while (served_at := await self._served_at(session, at, page)) is None:
                self.retries += 1
                await asyncio.sleep(RETRY_S)
                at = random.choice(self._addresses)
            at = served_at
            self.calls.append((began_s, perf_counter() - began_s))
            due_s = max(due_s + self._period_s, perf_counter())

    @staticmethod
    async def _served_at(session: aiohttp.ClientSession, address: str, page: str) -> str | None:
        """Visit a page. Return the program that served it, or None."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.post(f"{address}/visits/{page}") as answer:
                if answer.status == 200:
                    await answer.read()
                    return str(answer.url.origin())
        return None


async def window(callers: PatientCallers, event: Callable[[], Awaitable[None]]) -> list[float]:
    """Let something happen. Return the length of each call that ended from then on, in seconds."""
    began_s = perf_counter()
    await event()
    await asyncio.sleep(SETTLE_S)
    return [length_s for at_s, length_s in callers.calls if at_s + length_s >= began_s]


async def measure(folder: Path) -> dict[str, object]:
    """Restart each program some times by SIGTERM. Then kill some, and start them again."""
    async with aiohttp.ClientSession() as session, programs(folder, PROGRAMS, session) as started:
        callers = PatientCallers(
            [each.address for each in started], pages=PAGES, rate=CALLS_PER_SECOND / PAGES
        )

        async def restart(each: Program) -> None:
            await each.terminate()
            await each.start(session)

        began_s = perf_counter()
        async with callers.calling():
            await asyncio.sleep(WARM_UP_S)
            steady = [length_s for _, length_s in callers.calls]
            restarts = [
                await window(callers, partial(restart, each))
                for _ in range(ROUNDS)
                for each in started
            ]
            kills = []
            for number in range(KILLS):
                kills.append(await window(callers, started[number % PROGRAMS].kill))
                await started[number % PROGRAMS].start(session)
                # Kill at different times after a renewal, which comes each second.
                await asyncio.sleep(SETTLE_S + (number + 1) / KILLS)
        span_s = perf_counter() - began_s
    calls = [length_s for of_restart in restarts for length_s in of_restart]
    return {
        "rate": single(len(callers.calls) / span_s, "calls/s"),
        "retries": single(callers.retries, "retries"),
        "steady_call": summary([1e3 * each for each in steady], "ms"),
        "call_in_restarts": summary([1e3 * each for each in calls], "ms"),
        "failed_in_restarts": single(sum(each > 1 for each in calls), "calls of more than 1 s"),
        "longest_in_a_restart": longest(restarts),
        "longest_in_a_kill": longest(kills),
    }


def longest(windows: Sequence[Sequence[float]]) -> dict[str, object]:
    """Return the figures of the longest call of each window."""
    return {
        **summary([1e3 * max(each) for each in windows], "ms"),
        "worst": round(1e3 * max(map(max, windows)), 1),
    }


if __name__ == "__main__":
    report(
        "fastapi_restart",
        lambda folder: uvloop.run(measure(folder)),
        f"{PROGRAMS} processes of uvicorn and {PAGES} callers on the same CPUs,"
        f" {CALLS_PER_SECOND:.0f} calls/s, the log in SQLite, {ROUNDS * PROGRAMS} restarts by"
        f" SIGTERM, {KILLS} kills; a call includes its redirects and retries",
    )
