"""Serve a broker's HTTP as an ASGI app or an aiohttp application, which forward each request to a
private Unix socket of the same process.

Each path exists once, in the broker's own HTTP server. Source: the ASGI specification, version 3,
protocols HTTP and WebSocket.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import quote

import aiohttp
from aiohttp import hdrs, web
from yarl import URL

from equipoise.brokers.http.answers import problem_answer
from equipoise.brokers.http.caller import CALLED_FROM
from equipoise.brokers.http.guard import ARRIVED_AT
from equipoise.brokers.runtime.embedding.forwarding import (
    Body,
    Message,
    Receive,
    Send,
    body_of,
    end_to_end,
    forwarded_headers,
    forwarding_session,
    path_of,
    refuse,
    send_answer,
    while_client_waits,
)

_logger: Final = logging.getLogger(__name__)

# The path of the one route of the aiohttp application.
_ANY_PATH: Final = "/{path:.*}"

# The page finds its files beside itself.
_AT_SLASH: Final = "the page is at the same address with a slash at its end"

# How a WebSocket is refused before it is accepted: servers answer 403.
_REFUSED: Final = 1_000


class MountedHttp:
    """An ASGI app with all paths of one broker. It forwards to a Unix socket that only this user
    can open.

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
            raise NotImplementedError(
                f"the app of a worker has no {scope['type']!r}; mount it into a program, which"
                " starts the worker"
            )
        body = await body_of(receive)
        await while_client_waits(body, self._exchange(scope, body, send))

    @contextmanager
    def listening(self) -> Iterator[Path]:
        """Yield the path at which the broker is to listen meanwhile, in a directory that only this
        user can open.
        """
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

    async def _exchange(self, scope: Message, body: Body, send: Send) -> None:
        target = _Target(
            scope["method"],
            path_of(scope, below=scope.get("root_path", "")),
            scope["query_string"].decode("latin-1"),
        )
        if target.path == "/" and not scope["path"].endswith("/"):
            # Relative, because a proxy may show the mount elsewhere.
            mount = scope.get("root_path", "") or scope["path"]
            moved = {"location": quote(f"{mount.rpartition('/')[2]}/")}
            await refuse(send, HTTPStatus.PERMANENT_REDIRECT, _AT_SLASH, "Moved", moved)
            return
        headers = _request_headers(
            scope["headers"], server=scope.get("server"), client=scope.get("client")
        )
        has_answered = False
        try:
            async with self._response(target, headers, body.data()) as response:
                has_answered = True
                await send_answer(response, send, body.ending(scope))
        except aiohttp.ClientError as error:
            # Without the end of the answer, the server breaks the connection of the caller.
            if has_answered:
                _logger.warning(
                    "broken answer: %s", error, extra={"method": target.method, "path": target.path}
                )
                return
            await refuse(send, HTTPStatus.SERVICE_UNAVAILABLE, _not_ready(error), "NotReady")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request of the aiohttp application."""
        assert request.match_info.route.resource is not None, "the route has a path"
        prefix = request.match_info.route.resource.canonical.removesuffix("/{path}")
        target = _Target(
            request.method,
            request.rel_url.raw_path.removeprefix(prefix) or "/",
            request.rel_url.raw_query_string,
        )
        server, client = (request.get_extra_info(name) for name in ("sockname", "peername"))
        headers = _request_headers(request.raw_headers, server=server, client=client)
        # aiohttp decompresses as long as somebody reads, and the broker refuses an encoded body by
        # its head.
        is_encoded = request.body_exists and hdrs.CONTENT_ENCODING in request.headers
        answer: web.StreamResponse | None = None
        try:
            async with self._response(
                target, headers, request.content if request.body_exists and not is_encoded else None
            ) as response:
                answer = web.StreamResponse(status=response.status, reason=response.reason)
                for name, value in end_to_end(response.raw_headers):
                    answer.headers.add(
                        name.decode("latin-1"), value.decode("utf-8", "surrogateescape")
                    )
                if is_encoded:
                    answer.force_close()
                await answer.prepare(request)
                async for piece in response.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
            if is_encoded:
                # Otherwise the server of the program would read the rest, and decompress it.
                request.protocol.force_close()
        except aiohttp.ClientError as error:
            if answer is None or not answer.prepared:
                return problem_answer(
                    request, HTTPStatus.SERVICE_UNAVAILABLE, _not_ready(error), "NotReady"
                )
            if request.transport is not None:  # Otherwise the caller is gone.
                _logger.warning(
                    "broken answer: %s", error, extra={"method": target.method, "path": target.path}
                )
                request.transport.abort()
        return answer

    @asynccontextmanager
    async def _response(
        self,
        target: _Target,
        headers: list[tuple[str, str]],
        data: AsyncIterator[bytes] | aiohttp.StreamReader | bytes | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to the broker, and yield the head of its answer. Raises
        `aiohttp.ClientError`, also in the context.
        """
        if self._socket_path is None:
            raise aiohttp.ClientConnectionError("the worker does not run, or is still starting")
        url = URL.build(
            scheme="http", host="worker", path=target.path, query_string=target.query, encoded=True
        )
        # One connection for each request: a kept one could be closed by the broker just as the next
        # request is sent.
        connector = aiohttp.UnixConnector(path=str(self._socket_path), force_close=True)
        async with (
            forwarding_session(connector, aiohttp.ClientTimeout(total=None)) as session,
            session.request(
                target.method, url, headers=headers, data=data, allow_redirects=False
            ) as response,
        ):
            yield response


@dataclass(frozen=True, slots=True)
class _Target:
    """The method of a request, and its path below the mount and query, as the client encoded
    them.
    """

    method: str
    path: str
    query: str


def _request_headers(
    sent: Iterable[tuple[bytes, bytes]], *, server: object, client: object
) -> list[tuple[str, str]]:
    """Return the headers for the broker. `server` is where the request arrived, `client` is from
    where, each as (host, port) if known.
    """
    known = (
        (name, address)
        for name, address in ((ARRIVED_AT, server), (CALLED_FROM, client))
        if isinstance(address, tuple | list)
    )
    return [*forwarded_headers(sent), *((name, str(address[0])) for name, address in known)]


def _not_ready(error: aiohttp.ClientError) -> str:
    return f"the broker does not answer: {error}; try again, or use another broker"
