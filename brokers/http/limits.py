"""Answer 429 to requests of a client that takes more of a broker than one identity may."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from equipoise.brokers.http.caller import address_of
from equipoise.brokers.http.connections import LIMITED, Connection
from equipoise.brokers.http.errors import problem_answer
from equipoise.brokers.security.identity import Surface
from equipoise.brokers.security.limits import Excess, IdentityLimits, Limit, of_role

# Nobody knows when a role closes one of its connections.
_AGAIN_MS: Final = 1_000

_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000
_MILLISECONDS_PER_SECOND: Final = 1_000


async def within_limits(request: web.Request, handler: Handler, limits: IdentityLimits, *, role: str | None = None) -> web.StreamResponse:
    """Return the answer of a handler, or 429 if the client exceeds a limit. Without a `role`, its address is its identity.

    The connections of an address are counted when they are made, before anything is read from them.
    """
    connection = request.protocol
    assert isinstance(connection, Connection), "`served` makes no other"
    address = connection.address or limits.of_address(address_of(request))
    identity = address if role is None else of_role(role)
    now = now_ms()
    excess = limits.excess(Surface.HTTP, identity, now)
    if excess is None and role is not None and not connection.is_used_by(identity, limits):
        excess = Excess(limit=Limit.CONNECTIONS, wait_ms=_AGAIN_MS)
    if excess is not None:
        return _refused(request, limits.problem(excess.limit, identity), excess.wait_ms)
    limits.took(identity, now, requests=1)
    try:
        return await handler(request)
    finally:
        if request.content.total_bytes:
            limits.took(identity, now_ms(), received_bytes=request.content.total_bytes)


def _refused(request: web.Request, problem: str, wait_ms: int) -> web.Response:
    wait_s = -(-wait_ms // _MILLISECONDS_PER_SECOND)
    answer = problem_answer(request, HTTPStatus.TOO_MANY_REQUESTS, f"{problem}; try again in {wait_s} s", LIMITED)
    answer.headers[hdrs.RETRY_AFTER] = str(wait_s)
    return answer


def now_ms() -> int:
    """Return the clock of the limits, which the Pulsar port has, too."""
    return time.monotonic_ns() // _NANOSECONDS_PER_MILLISECOND
