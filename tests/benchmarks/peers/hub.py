"""The store of the benchmark of peers, and the record of who holds which shard."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from equipoise.channel.system.clocks import boot_ns
from tests.benchmarks.peers.judge import Holding, Pause, Write, without_pauses

Opened = tuple[str, int, int]
"""Program, shard and epoch."""

_OF_WRITES: Final = ("shard", "program", "epoch", "request", "count")
_REQUESTS_MAX: Final = 2_000
"""Those of 20 s, if a shard gets half of all calls."""


class Hub:
    """Takes counts as they come, unless a token is older than one that it has seen."""

    def __init__(self) -> None:
        self.port = 0
        self.writes: list[Write] = []
        self.pauses: list[Pause] = []
        self.started: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.changed_ns = boot_ns()
        self._ended: list[Holding] = []
        self._open: dict[Opened, int] = {}
        self._counts: dict[int, int] = defaultdict(int)
        self._tokens: dict[int, int] = {}
        self._requests: dict[int, list[str]] = defaultdict(list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take connections meanwhile."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        yield
        server.close()

    def owners(self) -> dict[int, list[str]]:
        """Return the programs that serve each shard now."""
        found = defaultdict[int, list[str]](list)
        for program, shard, _ in self._open:
            found[shard].append(program)
        return found

    def died(self, program: str, at_ns: int) -> None:
        """Take note that a program has ended, whatever it still said."""
        for opened in [each for each in self._open if each[0] == program]:
            self._close(opened, at_ns)

    def holdings(self) -> list[Holding]:
        """Return what is known until now, without pauses."""
        now_ns = boot_ns()
        still = [_holding(each, from_ns, now_ns) for each, from_ns in self._open.items()]
        return without_pauses([*self._ended, *still], self.pauses)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                message = json.loads(line)
                answer = self._take(message)
                if "number" in message:
                    writer.write(
                        json.dumps({"number": message["number"], **answer}).encode() + b"\n"
                    )
        writer.close()

    def _take(self, message: Mapping[str, Any]) -> dict[str, Any]:
        match message["do"]:
            case "started":
                self.started[message["program"]].set()
            case "read":
                shard = message["shard"]
                return {
                    "count": self._counts[shard],
                    "requests": self._requests[shard][-_REQUESTS_MAX:],
                }
            case "write":
                return {"accepted": self._write(message)}
            case what:
                opened = message["program"], message["shard"], message["epoch"]
                self.changed_ns = message["at_ns"]
                if what == "opened":
                    self._open[opened] = message["at_ns"]
                else:
                    self._close(opened, message["at_ns"])
        return {}

    def _write(self, message: Mapping[str, Any]) -> bool:
        shard, token = message["shard"], message["token"]
        is_accepted = token is None or token >= self._tokens.get(shard, token)
        if is_accepted:
            self._counts[shard] = message["count"]
            self._requests[shard].append(message["request"])
            if token is not None:
                self._tokens[shard] = token
        self.writes.append(
            Write(
                at_ns=boot_ns(),
                accepted=is_accepted,
                **{
                    name: message[name]
                    for name in ("shard", "program", "epoch", "request", "count")
                },
            )
        )
        return is_accepted

    def _close(self, opened: Opened, at_ns: int) -> None:
        # A program that is killed may have said so before.
        if (from_ns := self._open.pop(opened, None)) is not None:
            self._ended.append(_holding(opened, from_ns, max(from_ns, at_ns)))


def _holding(opened: Opened, from_ns: int, to_ns: int) -> Holding:
    program, shard, epoch = opened
    return Holding(shard=shard, program=program, epoch=epoch, from_ns=from_ns, to_ns=to_ns)
