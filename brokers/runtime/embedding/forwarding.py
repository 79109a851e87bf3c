"""Forward a request of an ASGI program to another HTTP server, and its answer back, piece by piece.

Source: the ASGI specification, version 3, protocol HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
import orjson

from equipoise.brokers.http.answers import JSON, RETRY_AFTER_S
from equipoise.brokers.http.caller import CALLED_FROM
from equipoise.brokers.http.guard import ARRIVED_AT

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")

# Headers of one connection (RFC 9110, section 7.6.1), and those that the HTTP client or server
# sets.
_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
    | {ARRIVED_AT.lower(), CALLED_FROM.lower()}
)
# The versions in which a request has its connection for itself.
_WITH_CONNECTIONS: Final = ("1.0", "1.1")
# What aiohttp would add to a request that lacks them.
_AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Body:
    """The body of one request, and the end of its client. Both come from the same ASGI channel, one
    after the other.
    """

    def __init__(self, first: Message, receive: Receive) -> None:
        """`first` is the first message of `receive`, with a part of the body unless there is none:
        see `body_of`.
        """
        self._messages = [first]
        self._receive = receive
        self._is_read = asyncio.Event()
        self._is_gone = first["type"] == "http.disconnect"
        self._is_spent = False
        if not first.get("more_body"):
            self._is_read.set()

    def ending(self, scope: Message) -> Sequence[tuple[bytes, bytes]]:
        """Return the headers that end the connection after an answer that does not wait for the
        rest of the body. HTTP/2 has none.
        """
        return (
            ()
            if self._is_read.is_set() or scope.get("http_version", "1.1") not in _WITH_CONNECTIONS
            else ((b"connection", b"close"),)
        )

    @property
    def may_repeat(self) -> bool:
        """Return whether `data` still returns the whole body: it is in memory, or nothing of the
        rest has been taken.
        """
        return not self._is_spent

    async def hold(self, *, bytes_max: int) -> None:
        """Receive the body into memory, up to about `bytes_max`. A body that ends before can be
        sent any number of times.
        """
        size = sum(len(message.get("body", b"")) for message in self._messages)
        while self._messages[-1].get("more_body") and size <= bytes_max:
            message = await self._next()
            self._messages.append(message)
            size += len(message.get("body", b""))

    def data(self) -> AsyncIterator[bytes] | bytes | None:
        """Return the body for aiohttp; None if there is none."""
        if self._messages[-1].get("more_body"):
            return self._pieces()
        return b"".join(message.get("body", b"") for message in self._messages) or None

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            for message in self._messages:
                if message.get("body"):
                    yield message["body"]
            self._is_spent = True
            while message.get("more_body"):
                message = await self._next()
                if message.get("body"):
                    yield message["body"]
        finally:
            self._is_read.set()

    async def receive(self) -> Message:
        """Receive the body as an ASGI app does, if `may_repeat`. Do not call `data` afterwards."""
        return self._messages.pop(0) if self._messages else await self._receive()

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._is_gone = True
            self._is_read.set()
            raise aiohttp.ClientConnectionError("the caller is gone")
        if not message.get("more_body"):
            self._is_read.set()
        return message

    async def client_is_gone(self) -> None:
        """Wait until the client has closed its connection, or has its whole answer."""
        await self._is_read.wait()
        while not self._is_gone:
            self._is_gone = (await self._receive())["type"] == "http.disconnect"


async def body_of(receive: Receive) -> Body:
    """Return the body of a request."""
    first = await receive()
    # Whether there is a body at all is not known yet.
    while first.get("more_body") and not first.get("body"):
        first = await receive()
    return Body(first, receive)


async def while_client_waits(body: Body, exchange: Coroutine[None, None, T]) -> T | None:
    """Return the result of `exchange`; None if the client is gone before its end. Raise its error.

    It runs in the current task, so no turn of the event loop passes between its end and what
    follows it.
    """
    task = asyncio.current_task()
    assert task is not None, "a request is answered in a task"
    is_gone = is_over = False

    def end(_: object) -> None:
        nonlocal is_gone
        if not is_over:
            is_gone = True
            task.cancel()

    watching = asyncio.ensure_future(body.client_is_gone())
    watching.add_done_callback(end)
    try:
        return await exchange
    except asyncio.CancelledError:
        if not is_gone or task.uncancel():
            raise
        watching.result()
        return None
    finally:
        is_over = True
        watching.cancel()


def forwarding_session(
    connector: aiohttp.BaseConnector, timeout: aiohttp.ClientTimeout
) -> aiohttp.ClientSession:
    """Return a session that changes nothing of requests and answers, and remembers no cookies."""
    return aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_AUTOMATIC,
        timeout=timeout,
    )


async def send_answer(
    response: aiohttp.ClientResponse, send: Send, further: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send the answer of the other server to the client, with `further` headers."""
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": [*end_to_end(response.raw_headers), *further],
        }
    )
    async for piece in response.content.iter_any():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def refuse(
    send: Send, status: int, reason: str, error: str, headers: Mapping[str, str] | None = None
) -> None:
    """Answer in the form of all errors of a broker: `reason` for people, `error` for programs. 503
    says when to try again.
    """
    body = orjson.dumps({"reason": reason, "error": error})
    fields = {"content-type": JSON, "content-length": str(len(body)), **(headers or {})}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        fields["retry-after"] = str(RETRY_AFTER_S)
    encoded = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": int(status), "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def path_of(scope: Message, *, below: str = "") -> str:
    """Return the path of a request after the prefix `below`, percent-encoded as the client sent it.

    `path` and `raw_path` begin with `root_path` by the specification. Older frameworks leave it out
    of `path`.
    """
    path = scope["path"]
    rest = path.removeprefix(below) if path == below or path.startswith(f"{below}/") else path
    sent = (scope.get("raw_path") or b"").decode("latin-1").partition("?")[0]
    if not below:  # Behind an address, what does not begin with a slash would be another address.
        return sent if sent.startswith("/") else f"/{quote(path.lstrip('/'))}"
    start = sent.removeprefix(quote(below))
    # The prefix itself may be encoded in another way; then the decoded path is the only one that
    # can be cut.
    return (start if sent.startswith(f"{quote(below)}/") else quote(rest)) or "/"


def forwarded_headers(sent: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return the headers of a request that go on to the other server."""
    return [
        (name.decode("latin-1"), value.decode("utf-8", "replace"))
        for name, value in end_to_end(sent)
    ]


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers without those of one connection, and those that `Connection` names, with
    names in lower case.

    The length goes with an encoding of the transfer, which makes it void (RFC 9112, section 6.3).
    """
    pairs = [(name.lower(), value) for name, value in headers]
    named = (
        {"content-length"} if any(name == b"transfer-encoding" for name, _ in pairs) else set[str]()
    )
    named |= {
        part.strip().lower()
        for name, value in pairs
        if name == b"connection"
        for part in value.decode("latin-1").split(",")
    }
    return [
        (name, value) for name, value in pairs if name.decode("latin-1") not in _HOP_BY_HOP | named
    ]
