"""Make HTTP responses: JSON, plain text, no body, or an error as `{"reason": ...}`, as Pulsar's,
with a proper status and never a traceback.

Errors become answers in all handlers of the broker's port, including those of services.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping
from functools import wraps
from http import HTTPStatus
from typing import Final, NamedTuple

import orjson
from aiohttp import HttpVersion11, hdrs, web
from aiohttp.typedefs import Handler, Middleware

from equipoise.brokers.errors import (
    Rejected,
)
from equipoise.brokers.load.metering import driven
from equipoise.brokers.runtime.tracing import Traces
from equipoise.channel.core.errors import (
    CallerError,
    DeadlineExceeded,
    EquipoiseError,
    LogStorageFull,
    NotFound,
    OutcomeUnknown,
    PeerError,
)
from equipoise.channel.core.records import Reason

_logger: Final = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 1
"""When a caller may retry after 503: a failover takes seconds, an election is immediate."""

REQUEST_ID: Final = "X-Request-Id"
_SHOWN_MAX: Final = 256
_match_request_id: Final = re.compile(r"[!-~]{1,64}").fullmatch

_PULSAR_COMMANDS: Final = tuple(
    (re.compile(ours), theirs)
    for ours, theirs in (
        (r"equipoise namespaces list(?! \w)", "pulsar-admin namespaces list TENANT"),
        (r"equipoise namespaces (list|bundles|create)", r"pulsar-admin namespaces \1"),
        (r"equipoise brokers list( --all)?( --json)?", "pulsar-admin brokers list CLUSTER"),
        (
            r"(policy 'isolation/.*)equipoise policies list",
            r"\1pulsar-admin ns-isolation-policy list CLUSTER",
        ),
        (
            r"(policy 'failure-domain/.*)equipoise policies list",
            r"\1pulsar-admin clusters list-failure-domains CLUSTER",
        ),
        (r"equipoise balancing show --all", "pulsar-admin brokers list-dynamic-config"),
    )
)
"""Commands that messages name, and those of Pulsar's tool that do the same. Others have no equal
there."""

# The first matching row wins. Like Pulsar, 412 means an impossible name or boundary, and 409 a
# conflicting state. 504 means that an operation began and may still happen, so a blind retry is
# wrong.
_STATUS_OF_ERROR: Final[tuple[tuple[tuple[type[EquipoiseError], ...], int], ...]] = (
    ((NotFound,), 404),
    ((CallerError,), 412),
    ((DeadlineExceeded, OutcomeUnknown), 504),
    # An operator must fix a full disk. For a caller, the broker cannot serve now and may recover
    # soon.
    ((PeerError, LogStorageFull), 503),
)

_STATUS_OF_CODE: Final = {
    "Cancelled": 409,
    "InvalidRequest": 400,
    "UnknownSetting": 412,
    # The broker waited for records. No operation began.
    "ChannelLost": 503,
}

_STATUS_OF_REASON: Final[Mapping[str, int]] = {
    Reason.UNKNOWN_BUNDLE: 404,
    Reason.UNKNOWN_BROKER: 404,
    Reason.UNKNOWN_NAMESPACE: 404,
    Reason.UNKNOWN_POLICY: 404,
    Reason.DEAD_TARGET: 412,
    Reason.DRAINING_TARGET: 412,
    Reason.NOT_SERVED: 412,
    Reason.NOT_ADJACENT: 412,
    Reason.BAD_BOUNDARY: 412,
    Reason.MALFORMED: 412,
    # This broker has just lost its incarnation, or never had one. Another broker can serve the
    # request.
    Reason.DEAD_PUBLISHER: 503,
    Reason.NO_GENESIS: 503,
}

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


def status_of(error: EquipoiseError) -> int:
    """Return the HTTP status of an error; 500 if an operator or a developer must act."""
    if isinstance(error, Rejected):
        return _STATUS_OF_REASON.get(error.reason, 409)
    if error.code in _STATUS_OF_CODE:
        return _STATUS_OF_CODE[error.code]
    return next((status for kinds, status in _STATUS_OF_ERROR if isinstance(error, kinds)), 500)


def error_answer(
    request: web.Request, error: EquipoiseError, *, status: int | None = None
) -> web.Response:
    """Return the answer to a failed request. `status` overrides the table's.

    The body has Pulsar's `reason` for people, and our `error` for programs: the reason of a
    rejection, or the error's code.
    """
    code = error.reason if isinstance(error, Rejected) else error.code
    return problem_answer(
        request, status_of(error) if status is None else status, str(error), code, error
    )


def typed(route: web.RouteDef, *, drives: bool = False) -> web.RouteDef:
    """Return the same route, with a handler that answers its errors. `drives`: so that the work
    that it begins is charged.

    This is not a middleware, because aiohttp would slow down every request for it, including
    lookups.
    """
    handler = route.handler

    @wraps(handler)
    async def answered(request: web.Request) -> web.StreamResponse:
        try:
            if request.version >= HttpVersion11 and hdrs.EXPECT in request.headers:
                await _invite_body(request)
            return await (driven(handler(request)) if drives else handler(request))
        except web.HTTPRequestEntityTooLarge as error:
            reason = (
                f"the body of {request.method} {request.path} is larger than"
                f" {request.client_max_size} bytes, the maximum"
            )
            return problem_answer(request, error.status, reason, "BodyTooLarge", error)
        except web.HTTPException:
            raise  # A redirect, or a service's own error: it already is an answer.
        except EquipoiseError as error:
            return error_answer(request, error)
        except Exception as error:  # noqa: BLE001 - no error may show a caller a traceback
            if error is request.content.exception():
                # Nobody reads it, but it is not our fault.
                reason = "the body is incomplete: the connection was lost"
                return problem_answer(request, HTTPStatus.BAD_REQUEST, reason, "UnreadableBody")
            reason = "internal error; look for the id of this request in the log of the broker"
            return problem_answer(
                request, HTTPStatus.INTERNAL_SERVER_ERROR, reason, "InternalError", error
            )

    return web.RouteDef(
        route.method, route.path, answered, {"expect_handler": _expected, **route.kwargs}
    )


def not_supported(request: web.Request, why: str, *, allow: str = "") -> web.Response:
    """Return 405 for a method that this server does not support at a path. `allow` lists those that
    it supports, as the header does.
    """
    answer = problem_answer(request, HTTPStatus.METHOD_NOT_ALLOWED, why, "NotSupported")
    answer.headers["Allow"] = allow
    return answer


async def _expected(request: web.Request) -> web.Response | None:
    """Refuse any expectation but `Expect: 100-continue`, which `_invite_body` fulfils behind all
    other checks.
    """
    expectation = request.headers.get("Expect", "")
    if request.version < HttpVersion11:
        return None  # RFC 9110: ignore it.
    if expectation.lower() != "100-continue":
        reason = f"the expectation {expectation[:_SHOWN_MAX]!r} is not supported; use 100-continue"
        return problem_answer(request, HTTPStatus.EXPECTATION_FAILED, reason, "UnknownExpectation")
    return None


async def _invite_body(request: web.Request) -> None:
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # That was not the final answer.


class Refusal(NamedTuple):
    """Why a request or a connection is refused: the status, the `reason` for people, and the code
    for programs.
    """

    status: HTTPStatus
    reason: str
    code: str


def problem_answer(
    request: web.BaseRequest, status: int, reason: str, code: str, error: Exception | None = None
) -> web.Response:
    """Return an answer with a `reason` for people and a `code` for programs. Log it with `error` if
    the status is 500.
    """
    given = request.headers.get(REQUEST_ID, "")
    request_id = given if _match_request_id(given) else secrets.token_hex(8)
    headers = {REQUEST_ID: request_id}
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:  # Only this status is our fault.
        about = {"request": request_id, "method": request.method, "path": request.path}
        _logger.error("a request failed", exc_info=error, extra=about)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if request.path.startswith("/admin/"):
        reason = _for_pulsar_admin(reason)
    return json_answer(
        {"reason": _expressible(reason), "error": code}, status=status, headers=headers
    )


def _for_pulsar_admin(reason: str) -> str:
    """Return a reason that names the commands of the tool whose paths these are, where it has
    them.
    """
    for ours, theirs in _PULSAR_COMMANDS:
        reason = ours.sub(theirs, reason)
    return reason


def _expressible(text: str) -> str:
    """Return text that UTF-8 can encode. A path may hold characters that it cannot."""
    return text.encode("utf-8", "backslashreplace").decode()


def traced(traces: Traces) -> Middleware:
    """Return a middleware that gives each request a span, below the one that its headers name."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        route = "" if resource is None else resource.canonical
        with traces.http(request.method, route, request.headers) as answered:
            answer = await handler(request)
            answered(answer.status)
            return answer

    return middleware
