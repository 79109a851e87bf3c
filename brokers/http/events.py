"""Stream server-sent events.

Source: the HTML standard, section 9.2, "Server-sent events".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

EVENTS: Final = "text/event-stream"
"""The media type of a stream."""

HEARTBEAT_MS: Final = 10_000
"""How often a stream sends something, and a poll checks for its client, so that each side notices
when the other is gone."""

HEARTBEAT: Final = b":\n\n"
"""An event that every parser ignores."""

WRITE_S_MAX: Final = 30.0
"""How long a client may leave its stream unread once all buffers are full. Then it is disconnected,
and reconnects for the whole."""

Write = Callable[[bytes], Awaitable[None]]


def event(name: str, data: bytes, offset: int | None = None) -> bytes:
    """Return an event. `data` must be one line. `offset` becomes its id."""
    head = b"" if offset is None else b"id: %d\n" % offset
    return head + b"event: %s\ndata: %s\n\n" % (name.encode(), data)


async def streamed(
    request: web.Request, send: Callable[[Write], Awaitable[None]]
) -> web.StreamResponse:
    """Answer with a stream. `send` writes its events until it returns."""
    response = web.StreamResponse(headers={"Content-Type": EVENTS, "Cache-Control": "no-store"})
    await response.prepare(request)

    async def write(data: bytes) -> None:
        async with asyncio.timeout(WRITE_S_MAX):
            await response.write(data)

    try:
        await send(write)
    except (ConnectionError, TimeoutError):
        # The client is gone, or has stopped reading. It may reconnect.
        if request.transport is not None:
            request.transport.abort()
    return response
