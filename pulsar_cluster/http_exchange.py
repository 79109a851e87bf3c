"""Send one HTTP request, and return the reply. A command has no event loop, so each call blocks."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPSConnection
from typing import NamedTuple
from urllib.parse import urlsplit


class Request(NamedTuple):
    """A request to a URL. To connect may take `connect_s`, and each step after it `timeout_s`."""

    method: str
    url: str
    headers: Mapping[str, str]
    connect_s: float
    timeout_s: float
    body: str | None = None


class Reply(NamedTuple):
    """The answer to a request. `location` is where it redirects to, "" if it does not."""

    status: int
    text: str = ""
    reason: str = ""
    location: str = ""


class NotSent(OSError):
    """There was no connection, so nobody can have got the request."""


Exchange = Callable[[Request], Reply]
"""Returns the reply to a request. Raises `NotSent`, `OSError` and `HTTPException` after it was
sent, and `ValueError` for what is no URL. Several threads may call it."""


def exchange_by(tls: ssl.SSLContext) -> Exchange:
    """Return the exchange over the network, with a new connection for each request.

    A server may close a kept connection at any moment. Then nobody knows whether it got the
    request.
    """

    def exchange(request: Request) -> Reply:
        parts = urlsplit(request.url)
        host = parts.hostname
        if parts.scheme not in {"http", "https"} or not host:
            raise ValueError(f"{request.url} is no http:// or https:// address")
        connection = (
            HTTPSConnection(host, parts.port, timeout=request.connect_s, context=tls)
            if parts.scheme == "https"
            else HTTPConnection(host, parts.port, timeout=request.connect_s)
        )
        with closing(connection):
            try:
                connection.connect()
            except OSError as error:
                raise NotSent(str(error)) from error
            connection.sock.settimeout(request.timeout_s)
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request(request.method, target, request.body, dict(request.headers))
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
            return Reply(answer.status, text, answer.reason, answer.getheader("Location", ""))

    return exchange
