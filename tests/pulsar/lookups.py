"""Proxies in front of brokers' Pulsar ports that make lookups stale on command.

All connections of a client pass through them: LOOKUP_RESPONSE, CLOSE_PRODUCER and CLOSE_CONSUMER
name the owner's proxy. While a stale lookup is due, the two CLOSE commands name nobody, so that the
client looks its topic up. Everything else passes unchanged.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Final, Self

from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandCloseConsumer,
    CommandCloseProducer,
)

HOST: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 64 << 10
# A client looks up within its back-off after CLOSE, also on a slow machine.
_LOOKUP_S: Final = 60.0
_SCHEME: Final = "pulsar://"


class LookupProxies:
    """A proxy for each of the brokers at `urls` (`pulsar://host:port`) while the context is open,
    on the caller's loop.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        """Nothing is open yet."""
        self._brokers = urls
        self._proxies: dict[str, str] = {}
        self._stale_url: str | None = None
        self._asked = asyncio.Event()
        self._parts = AsyncExitStack()
        self.falsified = 0

    async def __aenter__(self) -> Self:
        for url in self._brokers:
            host, _, port = url.removeprefix(_SCHEME).rpartition(":")
            server = await asyncio.start_server(partial(self._serve, host, int(port)), HOST, 0)
            self._parts.callback(server.close)
            self._proxies[url] = f"{_SCHEME}{HOST}:{server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._parts.aclose()

    @property
    def url(self) -> str:
        """The service URL for clients."""
        return self._proxies[self._brokers[0]]

    def falsify(self, url: str) -> None:
        """Let the next lookup that names another broker name the broker at `url` instead."""
        self._stale_url = url
        self._asked.clear()

    async def wait_falsified(self) -> None:
        """Wait until a lookup has used what `falsify` asked for. Raises `TimeoutError`."""
        await asyncio.wait_for(self._asked.wait(), _LOOKUP_S)

    async def _serve(
        self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, port)
        carrying = {
            asyncio.create_task(_carry(reader, server_writer)),
            asyncio.create_task(self._carry_back(server_reader, writer)),
        }
        await asyncio.wait(carrying, return_when=asyncio.FIRST_COMPLETED)
        for task in carrying:
            task.cancel()
        writer.close()
        server_writer.close()

    async def _carry_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(4)
                writer.write(
                    self._changed(head + await reader.readexactly(struct.unpack(">I", head)[0]))
                )
                await writer.drain()

    def _changed(self, frame: bytes) -> bytes:
        (size,) = struct.unpack_from(">I", frame, 4)
        command = BaseCommand.FromString(frame[8 : 8 + size])
        if (
            command.HasField("lookup_response")
            and command.lookup_response.brokerServiceUrl in self._proxies
        ):
            command.lookup_response.brokerServiceUrl = self._proxies[
                self._named(command.lookup_response.brokerServiceUrl)
            ]
        elif command.HasField("close_producer"):
            self._redirect(command.close_producer)
        elif command.HasField("close_consumer"):
            self._redirect(command.close_consumer)
        else:
            return frame
        body = command.SerializeToString()
        return struct.pack(">II", len(body) + 4, len(body)) + body

    def _named(self, owner: str) -> str:
        stale = self._stale_url
        if stale is None or stale == owner:
            return owner
        self._stale_url = None
        self.falsified += 1
        self._asked.set()
        return stale

    def _redirect(self, close: CommandCloseProducer | CommandCloseConsumer) -> None:
        if self._stale_url is not None:
            close.ClearField("assignedBrokerServiceUrl")
        elif close.assignedBrokerServiceUrl:
            close.assignedBrokerServiceUrl = self._proxies[close.assignedBrokerServiceUrl]


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
