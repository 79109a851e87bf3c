"""Run commands of the real pulsar-admin, all in one process."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import orjson

from tests.pulsar.programs import admin_command

_COMMAND_S: Final = 90.0
"""How long a command may take: the tool gives up after 60 s."""

_LINE_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of the tool, hidden or not: `options` are the names of each, `--help` and
    `--version` included.
    """

    name: str
    options: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command left behind: its exit code, its output, and the status of the answer that it
    failed for (0: none).
    """

    code: int
    status: int
    out: str
    err: str


class AdminTool:
    """The running tool, from `admin_tool`."""

    def __init__(self, process: Process, commands: Sequence[Command]) -> None:
        """`commands` are all that the tool has."""
        self.commands = commands
        self._process = process

    async def run(self, words: Sequence[str]) -> Answer:
        """Run one command line. Raises `TimeoutError`, and `AssertionError` if the process has
        ended.
        """
        assert self._process.stdin is not None, "it was started with one"
        self._process.stdin.write(orjson.dumps(words) + b"\n")
        await self._process.stdin.drain()
        return Answer(**orjson.loads(await _line(self._process)))


@asynccontextmanager
async def admin_tool(url: str) -> AsyncIterator[AdminTool]:
    """Start the tool for the broker at a base URL, and end it. Raises `BuildFailedError`."""
    process = await asyncio.create_subprocess_exec(
        *admin_command(), url, stdin=PIPE, stdout=PIPE, limit=_LINE_BYTES_MAX
    )
    try:
        rows = orjson.loads(await _line(process))
        commands = [
            Command(name=row["name"], options=tuple(map(tuple, row["options"]))) for row in rows
        ]
        yield AdminTool(process, commands)
    finally:
        process.kill()
        await process.wait()


async def _line(process: Process) -> bytes:
    assert process.stdout is not None, "it was started with one"
    line = await asyncio.wait_for(process.stdout.readline(), _COMMAND_S)
    assert line.endswith(b"\n"), (
        "the program with pulsar-admin has ended; its standard error has the reason"
    )
    return line
