"""Run an example of a web service in processes that share one log."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Final

import aiohttp

from tests.house.house_rules import ROOT

DEADLINE_S: Final = 60.0
RETRY_S, ATTEMPT_S = 0.02, 10.0
UVICORN: Final = (
    "uvicorn",
    "equipoise.examples.visits:app",
    "--port",
    "PORT",
    "--no-access-log",
)
"""The command of one process; its port replaces PORT."""


class Program:
    """One process of the example at a fixed port."""

    def __init__(
        self,
        log_url: str,
        folder: Path,
        *,
        address: str | None = None,
        server: Sequence[str] = UVICORN,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        """`address` is what it advertises, if that is not its own. It runs in `folder`.
        `environment` is added to that of this process. Another `python` has an Equipoise of its
        own.
        """
        self.python = python
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.output = folder / f"{self.port}.txt"
        self._environment = {
            **os.environ,
            **(environment or {}),
            "EQUIPOISE_LOG": log_url,
            "EQUIPOISE_ADDRESS": address or self.address,
        }
        self._folder = folder
        self._server = ("-m", *server)
        self.process: asyncio.subprocess.Process | None = None

    async def run(self) -> asyncio.subprocess.Process:
        """Start the process. Output of all its runs is in one file."""
        words = [word.replace("PORT", str(self.port)) for word in self._server]
        ours = {"PYTHONPATH": str(ROOT)} if self.python == sys.executable else {}
        with self.output.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                self.python,
                *words,
                cwd=self._folder,
                env=self._environment | ours,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self.process

    async def start(self, session: aiohttp.ClientSession, path: str = "/equipoise/ready") -> None:
        """Start the process, and wait until `path` answers 200."""
        process = await self.run()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                assert process.returncode is None, self.output.read_text()
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(self.address + path) as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.02)

    async def terminate(self) -> None:
        """Send SIGTERM, and wait for the end of the process."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_S):
            assert await self.process.wait() in (0, -signal.SIGTERM), self.output.read_text()

    async def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        if self.process is not None and self.process.returncode is None:
            # Servers with workers would leave them behind.
            os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()


@contextlib.asynccontextmanager
async def programs(
    folder: Path,
    count: int,
    session: aiohttp.ClientSession,
    *servers: Sequence[str],
    python: str = sys.executable,
) -> AsyncIterator[Sequence[Program]]:
    """Run programs that share the log `visits.db`, under these servers in turn. Yield them once
    they are ready.
    """
    turns = itertools.islice(itertools.cycle(servers or [UVICORN]), count)
    log_url = f"sqlite:{folder}/visits.db"
    started = [Program(log_url, folder, server=each, python=python) for each in turns]
    try:
        for each in started:
            await each.start(session)
        yield started
    finally:
        for each in started:
            await each.kill()


class PatientCallers:
    """One caller for each page at `rate` calls per second. It asks any program over a new
    connection, also one that is not ready; follows redirects; and tries again until it is served.

    If it `remembers`, it keeps connections, and asks the program that served the page last, unless
    that refuses.

    `calls` are the start of each call and its length with all retries, in seconds. `broken` are the
    errors of attempts that may have been executed: all but refused connections.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        pages: Sequence[str],
        rate: float,
        remembers: bool = False,
    ) -> None:
        self.calls: list[tuple[float, float]] = []
        self.retries = 0
        self.broken: list[str] = []
        self._addresses = addresses
        self._pages = pages
        self._period_s = 1 / rate
        self._remembers = remembers
        self._served_at: dict[str, str] = {}
        self._stopping = asyncio.Event()

    @contextlib.asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Call meanwhile, and finish the last calls at the end."""
        connector = aiohttp.TCPConnector(limit=0, force_close=not self._remembers)
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
        due_s = perf_counter() + random.random() * self._period_s
        while not self._stopping.is_set():
            await asyncio.sleep(max(0.0, due_s - perf_counter()))
            began_s = perf_counter()
            while not await self._is_served(
                session, self._served_at.pop(page, random.choice(self._addresses)), page
            ):
                self.retries += 1
                await asyncio.sleep(RETRY_S)
            self.calls.append((began_s, perf_counter() - began_s))
            due_s = max(due_s + self._period_s, perf_counter())

    async def _is_served(self, session: aiohttp.ClientSession, address: str, page: str) -> bool:
        try:
            async with session.post(f"{address}/visits/{page}") as answer:
                await answer.read()
                if self._remembers and answer.status == 200:
                    self._served_at[page] = str(answer.url.origin())
                return answer.status == 200
        except aiohttp.ClientConnectorError:
            return False
        except (aiohttp.ClientError, TimeoutError) as error:
            self.broken.append(f"{address}: {error!r}")
            return False
