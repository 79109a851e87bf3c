"""How long callers of the FastAPI example wait in restarts and kills: `make bench
BENCH=fastapi_restart`, in four minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final

import aiohttp
import uvloop

from tests.benchmarks.frame import report, single, summary
from tests.load.fastapi_programs import PatientCallers, Program, programs

PROGRAMS: Final = 3
PAGES, RATES = [f"page-{number}" for number in range(80)], (200.0, 800.0)
ROUNDS, KILLS = 2, 3
WARM_UP_S, SETTLE_S = 5.0, 6.0
"""After each event callers go on for `SETTLE_S`, which is twice the lease. So all calls that it
delays end in its window."""


async def window(callers: PatientCallers, event: Callable[[], Awaitable[None]]) -> list[float]:
    """Let something happen. Return the length of each call that ended from then on, in seconds."""
    began_s = perf_counter()
    await event()
    await asyncio.sleep(SETTLE_S)
    return [length_s for at_s, length_s in callers.calls if at_s + length_s >= began_s]


async def measure(folder: Path) -> dict[str, object]:
    """Restart each program some times by SIGTERM, at each rate. Then kill some, and start them
    again.
    """
    results: dict[str, object] = {}
    for rate in RATES:
        place = folder / f"{rate:.0f}"
        place.mkdir()
        of_rate = await measure_at(place, rate, kills=KILLS if rate == RATES[-1] else 0)
        results |= {f"{name}_at_{rate:.0f}": figures for name, figures in of_rate.items()}
    return results


async def measure_at(folder: Path, rate: float, *, kills: int) -> dict[str, object]:
    """Return the figures of one rate."""
    async with aiohttp.ClientSession() as session, programs(folder, PROGRAMS, session) as started:
        callers = PatientCallers(
            [each.address for each in started], pages=PAGES, rate=rate / len(PAGES)
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
            broken, of_kills = len(callers.broken), []
            for number in range(kills):
                of_kills.append(await window(callers, started[number % PROGRAMS].kill))
                await started[number % PROGRAMS].start(session)
                # Kill at different times after a renewal, which comes each second.
                await asyncio.sleep(SETTLE_S + (number + 1) / kills)
        span_s = perf_counter() - began_s
    calls = [length_s for of_restart in restarts for length_s in of_restart]
    return {
        "rate": single(len(callers.calls) / span_s, "calls/s"),
        "retries": single(callers.retries, "retries"),
        "steady_call": summary([1e3 * each for each in steady], "ms"),
        "call_in_restarts": summary([1e3 * each for each in calls], "ms"),
        "broken_in_restarts": single(broken, f"calls of {len(calls):,}"),
        "late_in_restarts": single(sum(each > 1 for each in calls), "calls of more than 1 s"),
        "longest_in_a_restart": longest(restarts),
        **({"longest_in_a_kill": longest(of_kills)} if of_kills else {}),
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
        f"{PROGRAMS} processes of uvicorn and {len(PAGES)} callers on the same CPUs, the log in"
        f" SQLite, {ROUNDS * PROGRAMS} restarts by SIGTERM at each rate, {KILLS} kills; a call"
        " includes its redirects and retries",
    )
