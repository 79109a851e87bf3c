"""Run an example of a web service in processes that share one log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from tests.house.house_rules import ROOT

DEADLINE_S: Final = 60.0
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
    ) -> None:
        """`address` is what it advertises, if that is not its own. It runs in `folder`.
        `environment` is added to that of this process.
        """
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.output = folder / f"{self.port}.txt"
        self._environment = {
            **os.environ,
            **(environment or {}),
            "EQUIPOISE_LOG": log_url,
            "EQUIPOISE_ADDRESS": address or self.address,
            "PYTHONPATH": str(ROOT),
        }
        self._folder = folder
        self._server = ("-m", *server)
        self.process: asyncio.subprocess.Process | None = None

    async def run(self) -> asyncio.subprocess.Process:
        """Start the process. Output of all its runs is in one file."""
        words = [word.replace("PORT", str(self.port)) for word in self._server]
        with self.output.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                cwd=self._folder,
                env=self._environment,
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
    folder: Path, count: int, session: aiohttp.ClientSession, server: Sequence[str] = UVICORN
) -> AsyncIterator[Sequence[Program]]:
    """Run programs that share the log `visits.db`. Yield them once they are ready."""
    started = [Program(f"sqlite:{folder}/visits.db", folder, server=server) for _ in range(count)]
    try:
        for each in started:
            await each.start(session)
        yield started
    finally:
        for each in started:
            await each.kill()
