"""A proxy in front of a broker's Pulsar port that makes lookups stale on command.

It changes the owner that LOOKUP_RESPONSE names, and nothing else. Clients go to the named broker directly.
"""

from __future__ import annotations

import asyncio
import struct
from types import TracebackType
from typing import Final, Self

from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand, CommandLookupTopicResponse

HOST: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 64 << 10


class LookupProxy:
    """Forward connections to `target` (`host:port`) while the context is open, on the caller's loop."""

    def __init__(self, target: str) -> None:
        """Nothing is open yet."""
        self._target = target
        self._stale_url: str | None = None
        self._server: asyncio.Server | None = None
        self.falsified = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None, "it was entered"
        self._server.close()

    @property
    def url(self) -> str:
        """The service URL for clients."""
        assert self._server is not None, "it was entered"
        return f"pulsar://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def falsify(self, url: str) -> None:
        """Let the next lookup that names another broker name `url` instead."""
        self._stale_url = url

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        carrying = {asyncio.create_task(_carry(reader, server_writer)), asyncio.create_task(self._carry_back(server_reader, writer))}
        await asyncio.wait(carrying, return_when=asyncio.FIRST_COMPLETED)
        for task in carrying:
            task.cancel()
        writer.close()
        server_writer.close()

    async def _carry_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(4)
            frame = head + await reader.readexactly(struct.unpack(">I", head)[0])
            writer.write(self._made_stale(frame))
            await writer.drain()

    def _made_stale(self, frame: bytes) -> bytes:
        (size,) = struct.unpack_from(">I", frame, 4)
        command = BaseCommand.FromString(frame[8 : 8 + size])
        found, url = command.lookup_response, self._stale_url
        is_owner_named = command.HasField("lookup_response") and found.response == CommandLookupTopicResponse.Connect
        if url is None or not is_owner_named or found.brokerServiceUrl == url:
            return frame
        self._stale_url = None
        self.falsified += 1
        return replies.located(found.request_id, url)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
