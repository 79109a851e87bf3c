"""Run callers in a process of their own, so that other work does not look like a pause of the service.

`python -m equipoise.brokers.local.demo.calling` reads one plan (a JSON line) and calls until its standard input ends.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, Self

import aiohttp
import orjson
from pydantic import BaseModel, ConfigDict, Field

from equipoise.brokers.local.demo.callers import ATTEMPT_S, Caller, History, Line, StubbornCaller, Tally

_REPORT_S: Final = 0.25

# Calls in flight at the stop may still be acknowledged. An attempt lasts no longer than this.
_LAST_CALLS_S: Final = ATTEMPT_S

# How long a parent waits for its callers to end.
_END_S: Final = _LAST_CALLS_S + 5.0

# A plan of thousands of keys is one line of several hundred kilobytes.
_LINE_BYTES_MAX: Final = 16 * 2**20


class Stream(BaseModel):
    """Calls of one key (`tenant/namespace/key`), shared evenly by the callers. Each caller waits for its answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    calls_per_second: float = Field(gt=0, le=10_000)
    callers: int = Field(default=1, ge=1, le=1_000)
    stubborn: bool = False


class Plan(BaseModel):
    """Whom to call, how often, and where to record it. `brokers` are base URLs. `history` must not exist yet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    brokers: tuple[str, ...] = Field(min_length=1)
    streams: tuple[Stream, ...]
    history: Path
    seed: int = 0


# --- in the process of the callers ---


async def call(plan: Plan, *, stopping: asyncio.Event, report: Callable[[Tally], None]) -> None:
    """Call as planned until `stopping` is set. Report four times a second, and once at the end.

    Raises OSError if the history cannot be written.
    """
    history = History(plan.history)
    timeout = aiohttp.ClientTimeout(total=ATTEMPT_S)
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            line = Line(http=http, brokers=plan.brokers, history=history, tally=Tally())
            tasks = [asyncio.ensure_future(_keep_calling(caller, pause_s, stopping)) for caller, pause_s in _callers(plan, line)]
            try:
                await _report_until(stopping, line, report)
                if tasks:
                    await asyncio.wait(tasks, timeout=_LAST_CALLS_S)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            report(line.tally)
    finally:
        history.close()


def _callers(plan: Plan, line: Line) -> Sequence[tuple[Caller | StubbornCaller, float]]:
    """Return every caller of a plan, with the seconds between two of its calls."""
    random = Random(plan.seed)  # noqa: S311 - whom to ask first is no secret
    callers: list[tuple[Caller | StubbornCaller, float]] = []
    for stream in plan.streams:
        kind = StubbornCaller if stream.stubborn else Caller
        for number in range(stream.callers):
            name = f"{kind.__name__} {number} of {stream.key}"
            caller = kind(line=line, name=name, key=stream.key, random=Random(random.getrandbits(64)))  # noqa: S311 - as above
            callers.append((caller, stream.callers / stream.calls_per_second))
    return callers


async def _keep_calling(caller: Caller | StubbornCaller, pause_s: float, stopping: asyncio.Event) -> None:
    """Call at a steady pace. Do not make up for calls that a pause delayed: that would be a burst."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + caller.random.random() * pause_s
    while not stopping.is_set():
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        await caller.increment()
        due_s = max(due_s + pause_s, loop.time())


async def _report_until(stopping: asyncio.Event, line: Line, report: Callable[[Tally], None]) -> None:
    while not stopping.is_set():
        try:
            async with asyncio.timeout(_REPORT_S):
                await stopping.wait()
        except TimeoutError:
            pass
        line.history.flush()
        report(line.tally)
        line.tally.recent_pause_ms = 0.0


async def _main() -> None:
    """Run one process of callers. It reads a plan from standard input, stops when that ends, and prints tallies."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    plan = Plan.model_validate_json(await reader.readline())
    stopping = asyncio.Event()
    # Ctrl-C goes to all processes of a terminal. The parent decides when the callers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    ended = asyncio.ensure_future(reader.read())
    ended.add_done_callback(lambda _: stopping.set())
    await call(plan, stopping=stopping, report=_print_tally)
    ended.cancel()


def _print_tally(tally: Tally) -> None:
    try:
        sys.stdout.buffer.write(orjson.dumps(asdict(tally), option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        pass  # The parent is gone, and with it our standard input, which ends the process.


# --- in the parent ---


class CallerProcess:
    """A process of callers, as an async context: it calls while the context is open.

    `tally` is the latest report. If the parent dies, the process ends too, because its standard input ends.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tally = Tally()
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "equipoise.brokers.local.demo.calling", stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        assert self._process.stdin is not None, "it was asked for"
        self._process.stdin.write(self.plan.model_dump_json().encode() + b"\n")
        self._reading = asyncio.ensure_future(self._read(self._process))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Wait until the callers have finished and their process has ended. Kill a process that hangs."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None, "it was asked for"
        process.stdin.close()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._reading is not None:
            await self._reading
        self._process = None

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None, "it was asked for"
        while line := await process.stdout.readline():
            self.tally = Tally(**orjson.loads(line))


if __name__ == "__main__":
    asyncio.run(_main())
