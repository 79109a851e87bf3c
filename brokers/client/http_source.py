"""Follow namespaces over HTTP: one stream of server-sent events per namespace, from any broker that
answers.

`brokers.http.assignment` defines the events.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from typing import Final

import aiohttp
from pydantic import BaseModel, ValidationError

from equipoise.brokers.client.table import Assigned, Table, advised
from equipoise.brokers.errors import InvalidConfig, UnknownNamespace
from equipoise.brokers.runtime.service import Peer
from equipoise.brokers.security.own_token import NO_TOKEN, OwnToken
from equipoise.brokers.security.tls import client_context_of_environment
from equipoise.channel.core.errors import CallerError, Overloaded, PeerError

NAMESPACES_MAX: Final = 1_000
"""Namespaces that one client follows. Each is a connection to a broker, which accepts ten thousand
from all clients.

A further namespace replaces one that does not exist or was not asked for during `IDLE_SECONDS`.
"""

IDLE_SECONDS: Final = 60.0

EVENT_BYTES_MAX: Final = 64 << 20
"""The largest event: a table of 65,536 bundles, with names and addresses of up to 1 KiB each."""

ROWS_MAX: Final = 131_072
"""Bundles of one namespace that a client keeps, half a kilobyte each: twice as many as a namespace
may start with."""

CONNECT_SECONDS_MAX: Final = 2.0

TABLE_SECONDS_MAX: Final = 10.0
"""How long a broker may take to send its table. Heartbeats alone do not count."""

SILENCE_SECONDS_MAX: Final = 25.0
"""A stream sends something every ten seconds. After two missed heartbeats the client asks another
broker."""

BACK_OFF_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""The pause before the next broker is asked, by failures in a row. Each pause is random, from half
of it to all of it."""

UNKNOWN_SECONDS: Final = 1.0
"""How long the answer that a namespace does not exist is used."""

REFRESH_SECONDS: Final = 1.0
"""The least time before a suspect stream is replaced, and the time after which a stream counts as a
success.

So brokers that send a table and hang up are asked once a second, not once per round trip.
"""


class _Row(BaseModel):
    bundle: str
    low: int
    high: int
    token: int
    broker: str | None
    addresses: dict[str, str]

    def assigned(self) -> Assigned:
        """Return the row as an `Assigned`."""
        peer = None if self.broker is None else Peer(broker=self.broker, addresses=self.addresses)
        return Assigned(
            bundle=self.bundle, low=self.low, high=self.high, token=self.token, peer=peer
        )


class _Rows(BaseModel):
    bundles: list[_Row]
    gone: list[str] = []
    unserved: str | None = None


class HttpSource:
    """Follows each namespace from the first lookup in it. See `Source`."""

    def __init__(
        self, addresses: Sequence[str], *, changed: Callable[[], None], token: OwnToken = NO_TOKEN
    ) -> None:
        """`addresses` are base URLs of brokers; one that answers is enough. `changed` is as in
        `LogSource`; `token` goes to brokers.
        """
        self._addresses = [address.rstrip("/") for address in addresses]
        self._token = token
        self._changed = changed
        self._session: aiohttp.ClientSession | None = None
        self._streams: dict[str, _Stream] = {}

    # Streams start with the first lookup.
    async def start(self, *, timeout_ms: int) -> None:  # noqa: ARG002
        """See `Source.start`. Raises `InvalidConfig` for certificates in the environment that
        cannot be used.
        """
        client_context_of_environment()
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS_MAX, sock_read=SILENCE_SECONDS_MAX
        )
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=NAMESPACES_MAX)
        )

    async def stop(self) -> None:
        """See `Source.stop`."""
        streams = list(self._streams.values())
        for stream in streams:
            stream.end()
        await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def find(self, namespace: str, point: int) -> Assigned | None:
        """See `Source.find`. Raises `Overloaded` if too many namespaces are followed, and
        `CallerError` while brokers refuse the token.
        """
        stream = self._streams.get(namespace)
        if stream is None or stream.has_expired():
            stream = self._follow(namespace)
        stream.asked_at = time.monotonic()
        if stream.unknown_at is not None:
            raise UnknownNamespace(namespace=namespace)
        if stream.refusal is not None:
            raise CallerError(stream.refusal)
        return None if stream.table is None else stream.table.at(point)

    def unserved(self, namespace: str) -> str | None:
        """See `Source.unserved`. Without a table, no broker has answered yet."""
        stream = self._streams.get(namespace)
        if stream is None or stream.table is None:
            return f"no broker answers at {', '.join(self._addresses)}; give other addresses"
        return None if stream.unserved is None else advised(stream.unserved)

    def refresh(self, namespace: str) -> None:
        """See `Source.refresh`. Asks the next broker."""
        stream = self._streams.get(namespace)
        if stream is not None:
            stream.ask_another()

    def _follow(self, namespace: str) -> _Stream:
        assert self._session is not None, "a client is entered before it is asked"
        expired = self._streams.pop(namespace, None)
        if expired is not None:
            expired.end()
        if len(self._streams) >= NAMESPACES_MAX:
            self._make_room()
        stream = self._streams[namespace] = _Stream(
            namespace, self._addresses, self._session, self._changed, self._token
        )
        return stream

    def _make_room(self) -> None:
        """Drop a namespace that does not exist, or else the one not asked for the longest. Raises
        `Overloaded`.
        """
        name, stream = min(
            self._streams.items(), key=lambda item: (item[1].unknown_at is None, item[1].asked_at)
        )
        if stream.unknown_at is None and time.monotonic() - stream.asked_at <= IDLE_SECONDS:
            raise Overloaded(
                what="the list of namespaces that this client follows", limit=NAMESPACES_MAX
            )
        self._streams.pop(name).end()


class _Stream:
    """The stream of one namespace.

    * `table`: None until it is known.
    * `unserved`: why no broker can get a bundle of the namespace, by the last event, or None.
    * `unknown_at`: when a broker reported that the namespace does not exist, or None.
    * `refusal`: why the last broker that was asked refused the token of this client or its role, or
      None.
    * `asked_at`: the time of the last lookup.
    """

    def __init__(
        self,
        namespace: str,
        addresses: Sequence[str],
        session: aiohttp.ClientSession,
        changed: Callable[[], None],
        token: OwnToken,
    ) -> None:
        self._token = token
        self.refusal: str | None = None
        self.table: Table | None = None
        self.unserved: str | None = None
        self.unknown_at: float | None = None
        self.asked_at = time.monotonic()
        self._namespace = namespace
        self._addresses = addresses
        # So that not all clients lean on the first broker.
        self._turn = random.randrange(len(addresses))  # noqa: S311
        self._session = session
        self._changed = changed
        self._connected_at = time.monotonic()
        self._reading: asyncio.Task[None] | None = None
        self.task = asyncio.get_running_loop().create_task(
            self._run(), name=f"assignment of {namespace}"
        )

    def end(self) -> None:
        """Stop following."""
        self.task.cancel()

    def has_expired(self) -> bool:
        """Return whether the answer that the namespace does not exist is too old to use."""
        return self.unknown_at is not None and time.monotonic() - self.unknown_at > UNKNOWN_SECONDS

    def ask_another(self) -> None:
        """Switch to the next broker, unless that was just done."""
        if self._reading is not None and time.monotonic() - self._connected_at > REFRESH_SECONDS:
            self._reading.cancel()

    async def _run(self) -> None:
        """Follow one broker after another. The old table stays in use meanwhile, since it is only a
        hint.
        """
        failures = 0
        while True:
            before = self.table
            self._connected_at = time.monotonic()
            self._reading = asyncio.get_running_loop().create_task(
                self._read(self._addresses[self._turn % len(self._addresses)])
            )
            try:
                await asyncio.wait([self._reading])
            finally:
                self._reading.cancel()
            if self.unknown_at is not None:
                return
            has_lasted = (
                self.table is not before and time.monotonic() - self._connected_at > REFRESH_SECONDS
            )
            failures = 0 if has_lasted else failures + 1
            self._turn += 1
            pause = BACK_OFF_SECONDS[min(failures, len(BACK_OFF_SECONDS) - 1)]
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - jitter, no secret

    async def _read(self, address: str) -> None:
        url = f"{address}/v1/assignment/{self._namespace}"
        try:
            # Read for each connection, because certificates are renewed.
            tls = client_context_of_environment()
            async with (
                asyncio.timeout(TABLE_SECONDS_MAX) as until_table,
                self._session.get(
                    url,
                    headers={"Accept": "text/event-stream", **self._token.headers(url)},
                    ssl=tls,
                ) as response,
            ):
                if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                    self._is_refused(address, await response.json())
                    return
                self.refusal = None
                if response.status == HTTPStatus.NOT_FOUND:
                    self._is_unknown()
                elif response.status == HTTPStatus.OK:
                    async for name, data in events(response.content.iter_any()):
                        self._take(name, data)
                        if self.unknown_at is not None:
                            return
                        if name == "table":
                            until_table.reschedule(None)
        except (
            aiohttp.ClientError,
            TimeoutError,
            ValidationError,
            PeerError,
            ValueError,
            InvalidConfig,
        ):
            return  # `_run` asks the next broker.

    def _take(self, name: str, data: bytes) -> None:
        if name == "deleted":
            self._is_unknown()
            return
        rows = _Rows.model_validate_json(data)
        self.unserved = rows.unserved
        assigned = [row.assigned() for row in rows.bundles]
        if name == "table":
            self.table = Table(assigned)
        elif self.table is not None:
            self.table.change(assigned, rows.gone)
        if self.table is not None and len(self.table) > ROWS_MAX:
            raise PeerError(f"a broker sends more than {ROWS_MAX} bundles of {self._namespace}")
        self._changed()

    def _is_refused(self, address: str, answer: object) -> None:
        reason = answer.get("reason") if isinstance(answer, dict) else None
        self.refusal = (
            f"the broker at {address} refuses this client: {reason or 'it needs valid credentials'}"
        )
        self._changed()

    def _is_unknown(self) -> None:
        self.unknown_at = time.monotonic()
        self._changed()


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the events of a stream as (name, data), without comments. Raises `PeerError` for a
    giant event.

    Supports the part of the format that our brokers send (HTML standard, "Server-sent events"):
    lines that end in LF.
    """
    buffer = bytearray()
    async for chunk in chunks:
        # Already searched, except that a chunk may split the separator.
        searched = max(0, len(buffer) - 1)
        buffer += chunk
        while (end := buffer.find(b"\n\n", searched)) >= 0:
            fields = dict(
                line.split(b": ", 1)
                for line in bytes(buffer[:end]).split(b"\n")
                if b": " in line and not line.startswith(b":")
            )
            del buffer[: end + 2]
            searched = 0
            if b"event" in fields and b"data" in fields:
                yield fields[b"event"].decode(), fields[b"data"]
        if len(buffer) > EVENT_BYTES_MAX:
            raise PeerError(f"an event of the assignment is larger than {EVENT_BYTES_MAX} bytes")
