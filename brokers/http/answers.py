"""Make HTTP responses: JSON, plain text, or no body."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import orjson
from aiohttp import web

JSON: Final = "application/json"

SERVER: Final = "equipoise"
"""The Server header. aiohttp's default would reveal its version and Python's."""


def json_answer(
    value: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """Return a JSON response. `value` must be serialisable; `None` becomes `null`."""
    return web.Response(body=orjson.dumps(value), status=status, headers=headers, content_type=JSON)


def text_answer(text: str) -> web.Response:
    """Return one line of plain text, as Pulsar does on some paths."""
    return web.Response(text=text, content_type="text/plain")


def raw_answer(status: HTTPStatus, problem: Mapping[str, str], *headers: str) -> bytes:
    """Return the bytes of a whole JSON response, for a connection without an HTTP server. The
    connection ends after it.
    """
    body = orjson.dumps(problem)
    head = (
        f"HTTP/1.1 {status} {status.phrase}",
        f"Server: {SERVER}",
        f"Content-Type: {JSON}",
        f"Content-Length: {len(body)}",
        *headers,
    )
    return "\r\n".join((*head, "Connection: close", "", "")).encode() + body


def done() -> web.Response:
    """Return 204: the request was carried out."""
    return web.Response(status=204)
