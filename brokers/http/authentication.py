"""Refuse HTTP requests without valid credentials, or above the limits of their client.

Probes are answered without credentials, but only with whether the broker lives and is ready.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from equipoise.brokers.http.answers import json_answer, problem_answer
from equipoise.brokers.http.caller import address_of, asked_in, identify
from equipoise.brokers.http.connections import LIMITED, Connection
from equipoise.brokers.http.page.files import PAGE_PATHS
from equipoise.brokers.runtime.worker import PROCESS
from equipoise.brokers.security.audit import Audit
from equipoise.brokers.security.gate import Gate
from equipoise.brokers.security.identity import (
    BASIC,
    TLS,
    TOKEN,
    Credentials,
    Fault,
    Refusal,
    Surface,
)
from equipoise.brokers.security.limits import Excess, IdentityLimits, Limit, of_role
from equipoise.channel.system.clocks import now_ms

ORIGINAL: Final = "X-Original-Principal"
"""The role of the client behind a Pulsar Proxy."""

OPEN_PATHS: Final = frozenset({"/health", "/ready"})
"""Probes of Kubernetes and of load balancers ask them, and have no token."""

# A service may have its own route at one of these paths, with another method.
_PROBING: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})

_NEEDS_HINT: Final = frozenset({Fault.MISSING, Fault.UNKNOWN})
_REALM: Final = 'Bearer realm="equipoise"'
_BASIC_REALM: Final = 'Basic realm="equipoise", charset="UTF-8"'


# Nobody knows when a role closes one of its connections.
_AGAIN_MS: Final = 1_000

_MILLISECONDS_PER_SECOND: Final = 1_000


def authenticated(gate: Gate | None, limits: IdentityLimits, audit: Audit) -> Middleware:
    """Return a middleware that answers 401 to requests that `gate` refuses, logs that to `audit`,
    and answers 429 to those beyond `limits`.

    Without a gate all are let in. Probes have no limits either, because an answer to them costs no
    more than 429.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = None if resource is None or request.method not in _PROBING else resource.canonical
        is_probe = path in OPEN_PATHS
        if gate is None or path in PAGE_PATHS:
            return await (handler(request) if is_probe else within_limits(request, handler, limits))
        credentials = credentials_in(
            request.headers.getall(hdrs.AUTHORIZATION, ()), request.headers.getall(ORIGINAL, ())
        )
        certificate = (
            None if request.transport is None else request.transport.get_extra_info("peercert")
        )
        if is_probe and credentials is None and not (certificate and gate.takes_certificates):
            return _status_only(request, await handler(request))
        client = address_of(request)
        checked = await gate.checked(
            Surface.HTTP, credentials, certificate, client=limits.of_address(client)
        )
        if not isinstance(checked, Refusal):
            identify(request, checked)
            return await (
                handler(request)
                if is_probe
                else within_limits(request, handler, limits, role=checked.role)
            )
        audit.refused(
            Surface.HTTP,
            what=asked_in(request),
            why=checked.problem,
            fault=checked.fault.value,
            client=client,
        )
        if is_probe:  # An orchestrator must not kill a broker because a token has expired.
            return _status_only(request, await handler(request))
        if checked.fault is Fault.BUSY:
            return problem_answer(
                request, HTTPStatus.SERVICE_UNAVAILABLE, checked.problem, "Overloaded"
            )
        forms = (
            "Bearer TOKEN, or Basic with USER:PASSWORD in base64"
            if gate.takes_passwords
            else "Bearer TOKEN"
        )
        how = f" (header Authorization: {forms})" if checked.fault in _NEEDS_HINT else ""
        reason = f"the request is not authenticated: {checked.problem}{how}"
        answer = problem_answer(request, HTTPStatus.UNAUTHORIZED, reason, "NotAuthenticated")
        # RFC 6750, 3.1: a request without credentials gets no code.
        answer.headers[hdrs.WWW_AUTHENTICATE] = (
            _REALM if checked.fault is Fault.MISSING else f'{_REALM}, error="invalid_token"'
        )
        if gate.takes_passwords:
            answer.headers.add(hdrs.WWW_AUTHENTICATE, _BASIC_REALM)
        return answer

    return middleware


def _status_only(request: web.Request, answer: web.StreamResponse) -> web.Response:
    """Return an answer to a probe without what it says about the broker and its bundles."""
    good = "ready" if request.path == "/ready" else "ok"
    shown = json_answer(
        {"status": good if answer.status == HTTPStatus.OK else "not ready"}, status=answer.status
    )
    if PROCESS in answer.headers:
        shown.headers[PROCESS] = answer.headers[PROCESS]
    return shown


def credentials_in(headers: Sequence[str], originals: Sequence[str] = ()) -> Credentials | None:
    """Return the credentials in the headers Authorization of a request; None if there are none.
    Several are of no known method.

    `originals` are the headers `ORIGINAL`.
    """
    # Of several, a client may have sent some itself. A line break makes them no role, so they are
    # refused.
    original = "\n".join(originals) or None
    if not headers:
        return None if original is None else Credentials(method=TLS, data=b"", original=original)
    if len(headers) > 1:
        return Credentials(method="several headers", data=b"-")
    scheme, _, rest = headers[0].partition(" ")
    data = rest.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() == BASIC:
        return Credentials(method=BASIC, data=_decoded(data), original=original)
    # Only the connection itself shows a certificate, so no header may name the method of
    # certificates.
    return Credentials(
        method=TOKEN if scheme.lower() == "bearer" else f"header {scheme}",
        data=data,
        original=original,
    )


def _decoded(data: bytes) -> bytes:
    """Return what base64 encodes, or nothing, which is refused as malformed."""
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        return b""


async def within_limits(
    request: web.Request, handler: Handler, limits: IdentityLimits, *, role: str | None = None
) -> web.StreamResponse:
    """Return the answer of a handler, or 429 if the client exceeds a limit. Without a `role`, its
    address is its identity.

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
    answer = problem_answer(
        request, HTTPStatus.TOO_MANY_REQUESTS, f"{problem}; try again in {wait_s} s", LIMITED
    )
    answer.headers[hdrs.RETRY_AFTER] = str(wait_s)
    return answer
