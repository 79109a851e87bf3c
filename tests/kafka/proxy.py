"""A TCP proxy that delays, swallows and resets on command, to stand between clients and Kafka.

Threads: the connections live on a loop in a thread of its own; commands come from any other, and
have happened when they return.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

from equipoise.channel.system.loop_thread import InThread

HOST: Final = "127.0.0.1"

# A command takes no longer than the loop needs to come by.
_COMMAND_MS: Final = 10_000
_CHUNK_BYTES: Final = 64 << 10
# 4 MiB in each direction of each connection: a black hole swallows that much before the sender
# notices that nobody reads.
_CHUNKS_MAX: Final = 64
# Closing such a socket sends a reset, and no polite end.
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class Direction(StrEnum):
    """Which way bytes go."""

    TO_SERVER = "to_server"
    TO_CLIENT = "to_client"


BOTH: Final = tuple(Direction)


class TcpProxy:
    """A proxy, from entering this context to leaving it.

    Nothing is ever lost within a connection that goes on, as nothing is over TCP: what a black hole
    has swallowed comes out when the proxy heals, unless the connection was reset in between.
    """

    def __init__(self, target: str = "", *, at: str = f"{HOST}:0") -> None:
        """`target` is the server's address, `host:port`; without one, connections are reset until
        `forward_to` names it.

        Clients connect `at` an address; port 0 is any free one.
        """
        self._core = _Core(target, at)
        self._thread = InThread(
            self._core, what="the proxy", start_ms=_COMMAND_MS, stop_ms=_COMMAND_MS
        )

    def __enter__(self) -> Self:
        self._thread.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.__exit__(kind, error, trace)

    @property
    def address(self) -> str:
        """Where clients connect, `host:port`; the same from beginning to end."""
        return f"{self._core.host}:{self._core.port}"

    def forward_to(self, target: str) -> None:
        """Forward the connections that come from now on to another server."""
        self._command(lambda: self._core.forward_to(target))

    def delay(self, delay_ms: int, *directions: Direction) -> None:
        """Deliver what comes from now on so much later; in both directions, unless some are
        named.
        """
        self._command(lambda: self._core.delay(delay_ms, directions or BOTH))

    def black_hole(self, *directions: Direction) -> None:
        """Deliver nothing, on connections open and new, and say nothing of it; in both directions,
        unless some are named.

        With `Direction.TO_CLIENT` requests are carried out, and their answers do not arrive.
        """
        self._command(lambda: self._core.black_hole(directions or BOTH))

    def reset(self) -> None:
        """Reset the connections that are open; new ones are welcome. What was on its way in them is
        lost.
        """
        self._command(self._core.reset)

    def heal(self) -> None:
        """Be a good proxy again, and deliver what was swallowed."""
        self._command(self._core.heal)

    def _command(self, command: Callable[[], Awaitable[None]]) -> None:
        async def carried_out() -> None:
            await command()

        self._thread.run(carried_out(), timeout_ms=_COMMAND_MS, what="a command to the proxy")


class _Core:
    """The proxy on its loop. All but reading `port` happens there."""

    def __init__(self, target: str, at: str) -> None:
        self.host, _, port = at.rpartition(":")
        self.port = int(port)
        self.connections: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}
        self._target = target
        self._delay_s = dict.fromkeys(Direction, 0.0)
        self._gates: dict[Direction, asyncio.Event] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        for direction in Direction:
            self._gates[direction] = gate = asyncio.Event()
            gate.set()
        self._server = await asyncio.start_server(self._take, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None, "it was entered"
        self._server.close()
        await self.reset()

    async def forward_to(self, target: str) -> None:
        self._target = target

    async def delay(self, delay_ms: int, directions: tuple[Direction, ...]) -> None:
        self._delay_s.update(dict.fromkeys(directions, delay_ms / 1_000))

    async def black_hole(self, directions: tuple[Direction, ...]) -> None:
        for direction in directions:
            self._gates[direction].clear()

    async def reset(self) -> None:
        ending = dict(self.connections)
        for task, writers in ending.items():
            for writer in writers:
                _reset(writer)
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    async def heal(self) -> None:
        self._delay_s = dict.fromkeys(Direction, 0.0)
        for gate in self._gates.values():
            gate.set()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it is over, in a task that `reset` may cancel."""
        serving = asyncio.create_task(self._serve(reader, writer))
        self.connections[serving] = (writer,)
        try:
            await asyncio.wait({serving})
        finally:
            del self.connections[serving]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None, "it runs in one"
        writers = [writer]
        try:
            host, _, port = self._target.rpartition(":")
            server_reader, server_writer = await asyncio.open_connection(host, port)
            writers.append(server_writer)
            self.connections[this] = tuple(writers)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, server_writer, Direction.TO_SERVER))
                group.create_task(self._carry(server_reader, writer, Direction.TO_CLIENT))
        except* OSError:  # One end is gone, or was never there; the other one hears of it.
            for one in writers:
                _reset(one)
        finally:
            for one in writers:
                one.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        """Carry all bytes in one direction, and their end. Raises `OSError` if a side breaks
        off.
        """
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_MAX)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._receive(reader, chunks, direction))
            group.create_task(self._deliver(chunks, writer, direction))

    async def _receive(
        self,
        reader: asyncio.StreamReader,
        chunks: asyncio.Queue[tuple[float, bytes]],
        direction: Direction,
    ) -> None:
        clock = asyncio.get_running_loop().time
        chunk = b"to begin with"
        while chunk:
            chunk = await reader.read(_CHUNK_BYTES)
            await chunks.put((clock() + self._delay_s[direction], chunk))

    async def _deliver(
        self,
        chunks: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due_s, chunk = await chunks.get()
            await asyncio.sleep(due_s - clock())
            await self._gates[direction].wait()
            if not chunk:
                writer.write_eof()
                return
            writer.write(chunk)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection off, so that its other end hears of it."""
    if not writer.transport.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        writer.transport.abort()
