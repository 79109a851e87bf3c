"""Serve a broker's HTTP as an ASGI app or an aiohttp application, which forward each request to a private Unix socket of the same process.

Each path exists once, in the broker's own HTTP server. Source: the ASGI specification, version 3, protocols HTTP and WebSocket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from equipoise.brokers.http.answers import JSON
from equipoise.brokers.http.errors import RETRY_AFTER_S
from equipoise.brokers.http.guard import ARRIVED_AT
from equipoise.brokers.http.limits import CALLER

_logger: Final = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# Headers of one connection (RFC 9110, section 7.6.1), and what the HTTP client or server beside it answers for.
_HOP_BY_HOP: Final = frozenset(
    {"connection", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
    | {ARRIVED_AT.lower(), CALLER.lower()}
)
# What aiohttp would add to a request that lacks them.
_AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
# The path of the one route of the aiohttp application.
_ANY_PATH: Final = "/{path:.*}"

# How a WebSocket is refused before it is accepted: servers answer 403.
_REFUSED: Final = 1_000


class MountedHttp:
    """An ASGI app with all paths of one broker. It forwards to a Unix socket that only this user can open.

    It answers 503 while there is no socket. It may run on another event loop than the broker.
    """

    def __init__(self) -> None:
        self._socket_path: Path | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. WebSockets are refused: no path of a broker takes one."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _REFUSED})
            return
        if scope["type"] != "http":
            raise NotImplementedError(f"the app of a worker has no {scope['type']!r}; mount it into a program, which starts the worker")
        first = await receive()
        while first.get("more_body") and not first.get("body"):  # Whether there is a body at all is not known yet.
            first = await receive()
        body = _Body(first, receive)
        exchange = asyncio.ensure_future(self._exchange(scope, body, send))
        gone = asyncio.ensure_future(body.client_is_gone())
        try:
            await asyncio.wait((exchange, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (exchange, gone):
                task.cancel()
            await asyncio.wait((exchange, gone))
        for task in (exchange, gone):
            if not task.cancelled():
                task.result()

    @contextmanager
    def listening(self) -> Iterator[Path]:
        """Yield the path at which the broker is to listen meanwhile, in a directory that only this user can open."""
        with TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True) as folder:
            self._socket_path = Path(folder) / "http"
            try:
                yield self._socket_path
            finally:
                self._socket_path = None

    def application(self) -> web.Application:
        """Return the same as an aiohttp application, to add as a sub-application."""
        app = web.Application()
        app.add_routes([web.route("*", _ANY_PATH, self._answer)])
        return app

    async def _exchange(self, scope: Message, body: _Body, send: Send) -> None:
        target = _Target(scope["method"], _path(scope), scope["query_string"].decode("latin-1"))
        has_answered = False
        try:
            async with self._response(
                target, _request_headers(scope["headers"], server=scope.get("server"), client=scope.get("client")), body.data()
            ) as response:
                has_answered = True
                await send({"type": "http.response.start", "status": response.status, "headers": _end_to_end(response.raw_headers)})
                async for piece in response.content.iter_any():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except aiohttp.ClientError as error:
            if has_answered:  # Without the end of the answer, the server breaks the connection of the caller.
                _logger.warning("broken answer: %s", error, extra={"method": target.method, "path": target.path})
                return
            refusal = _refusal(error)
            headers = [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
            await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
            await send({"type": "http.response.body", "body": refusal.body})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request of the aiohttp application."""
        assert request.match_info.route.resource is not None, "the route has a path"
        prefix = request.match_info.route.resource.canonical.removesuffix("/{path}")
        target = _Target(request.method, request.rel_url.raw_path.removeprefix(prefix) or "/", request.rel_url.raw_query_string)
        server, client = (request.get_extra_info(name) for name in ("sockname", "peername"))
        headers = _request_headers(request.raw_headers, server=server, client=client)
        answer: web.StreamResponse | None = None
        try:
            async with self._response(target, headers, request.content if request.body_exists else None) as response:
                answer = web.StreamResponse(status=response.status, reason=response.reason)
                for name, value in _end_to_end(response.raw_headers):
                    answer.headers.add(name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))
                await answer.prepare(request)
                async for piece in response.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
        except aiohttp.ClientError as error:
            if answer is None or not answer.prepared:
                return _refusal(error)
            if request.transport is not None:  # Otherwise the caller is gone.
                _logger.warning("broken answer: %s", error, extra={"method": target.method, "path": target.path})
                request.transport.abort()
        return answer

    @asynccontextmanager
    async def _response(
        self, target: _Target, headers: list[tuple[str, str]], data: AsyncIterator[bytes] | aiohttp.StreamReader | bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to the broker, and yield the head of its answer. Raises `aiohttp.ClientError`, also in the context."""
        if self._socket_path is None:
            raise aiohttp.ClientConnectionError("the worker does not run, or is still starting")
        url = URL.build(scheme="http", host="worker", path=target.path, query_string=target.query, encoded=True)
        # One connection for each request: a kept one could be closed by the broker just as the next request is sent.
        connector = aiohttp.UnixConnector(path=str(self._socket_path), force_close=True)
        async with (
            aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_AUTOMATIC,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as session,
            session.request(target.method, url, headers=headers, data=data, allow_redirects=False) as response,
        ):
            yield response


@dataclass(frozen=True, slots=True)
class _Target:
    """The method of a request, and its path below the mount and query, as the client encoded them."""

    method: str
    path: str
    query: str


class _Body:
    """The body of one request, and the end of its client. Both come from the same ASGI channel, one after the other."""

    def __init__(self, first: Message, receive: Receive) -> None:
        self._first = first
        self._receive = receive
        self._is_read = asyncio.Event()
        self._is_gone = first["type"] == "http.disconnect"
        if not first.get("more_body"):
            self._is_read.set()

    def data(self) -> AsyncIterator[bytes] | bytes | None:
        """Return the body for aiohttp; None if there is none."""
        if self._first.get("more_body"):
            return self._pieces()
        return self._first.get("body") or None

    async def _pieces(self) -> AsyncIterator[bytes]:
        message = self._first
        try:
            while True:
                if message.get("body"):
                    yield message["body"]
                if not message.get("more_body"):
                    return
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self._is_gone = True
                    raise aiohttp.ClientConnectionError("the caller is gone")
        finally:
            self._is_read.set()

    async def client_is_gone(self) -> None:
        """Wait until the client has closed its connection, or has its whole answer."""
        await self._is_read.wait()
        while not self._is_gone:
            self._is_gone = (await self._receive())["type"] == "http.disconnect"


def _path(scope: Message) -> str:
    """Return the path below the mount, percent-encoded as the client sent it.

    `path` and `raw_path` begin with `root_path` by the specification. Older frameworks leave it out of `path`.
    """
    path, root = scope["path"], scope.get("root_path", "")
    below = path.removeprefix(root) if path == root or path.startswith(f"{root}/") else path
    sent = (scope.get("raw_path") or b"").decode("latin-1").partition("?")[0]
    start = sent.removeprefix(quote(root))
    # The prefix itself may be encoded in another way; then the decoded path is the only one that can be cut.
    return (start if sent.startswith(f"{quote(root)}/") else quote(below)) or "/"


def _request_headers(sent: Iterable[tuple[bytes, bytes]], *, server: object, client: object) -> list[tuple[str, str]]:
    """Return the headers for the broker. `server` is where the request arrived, `client` is from where, each as (host, port) if known."""
    headers = [(name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in _end_to_end(sent)]
    known = ((name, address) for name, address in ((ARRIVED_AT, server), (CALLER, client)) if isinstance(address, tuple | list))
    return [*headers, *((name, str(address[0])) for name, address in known)]


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers without those of one connection, and those that `Connection` names, with names in lower case."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in pairs if name == b"connection" for part in value.decode("latin-1").split(",")}
    return [(name, value) for name, value in pairs if name.decode("latin-1") not in _HOP_BY_HOP | named]


def _refusal(error: aiohttp.ClientError) -> web.Response:
    """Return 503 in the form of all errors of a broker."""
    reason = f"the broker does not answer: {error}; try again, or use another broker"
    body = orjson.dumps({"reason": reason, "error": "NotReady"})
    return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, body=body, content_type=JSON, headers={"Retry-After": str(RETRY_AFTER_S)})
