"""Refuse requests that a foreign web page, or a page under a foreign name, may have sent, and limit
the time of a body.

The guard checks Host, Origin and Content-Type. A loopback address is no protection: any page in an
operator's browser may send requests to it. It also refuses compressed bodies, which no client of
ours sends: a small one may stand for a very large one. And it refuses requests from other machines
that a program without authentication passes on to its mounted broker, wherever the program says
that it listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from equipoise.brokers.http.answers import JSON, Refusal, problem_answer
from equipoise.brokers.http.caller import CALLED_FROM
from equipoise.brokers.http.connections import Connection
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.hosts import host_in

# These methods change nothing, and the browser hides the answers from foreign pages. It does not
# hide what comes through a WebSocket.
_READING: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})

# Browsers send these for a page of another origin. They send `none` when a person typed the
# address.
_FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})

# Pulsar's tools send JSON to these paths only. Services choose what their paths accept.
_JSON_PATHS: Final = "/admin/"

ARRIVED_AT: Final = "X-Equipoise-Arrived-At"
"""The local address at which a program got the request that it forwards. It counts only on a Unix
socket, which only the program uses."""

# What says in the header Content-Encoding that a body is not encoded.
_PLAIN: Final = frozenset({"", "identity"})

_PORT_OF_SCHEME: Final = {"http": 80, "https": 443}
_SHOWN_MAX: Final = 256

# What a proxy before the program says about the callers of a request. Callers that write it
# themselves only lose by it.
_PROXIED: Final = (hdrs.X_FORWARDED_FOR, hdrs.FORWARDED)

_NOT_LOCAL: Final = (
    "the request does not come from this machine, or does not say so, and this broker asks nobody"
    " who he is; set `authentication`, or have the program listen on loopback only; or set"
    " `insecure` if the network itself keeps others out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """The parts of a request that the guard checks. `arrived_at` is the local address of the
    connection.

    `came_through` has, for a request to a mount, the addresses of its way, the local one too. None
    is an unknown one.
    """

    method: str
    path: str
    hosts: tuple[str, ...] = ()
    origin: str | None = None
    site: str | None = None
    has_body: bool = False
    content_type: str = JSON
    encoding: str = ""
    opens_socket: bool = False
    arrived_at: str | None = None
    came_through: tuple[str | None, ...] = ()


class Guard:
    """The checks of one broker, with its names."""

    def __init__(self, config: WorkerConfig, advertised: Sequence[str]) -> None:
        """The names are those of `http_hosts`, `host`, `advertised_host`, and the hosts of the
        `advertised` URLs.
        """
        own = (config.host, config.advertised_host or config.host, "localhost", *config.http_hosts)
        self._takes_strangers = config.authentication or config.insecure
        self._names = frozenset(map(_plain, (*own, *filter(None, map(host_in, advertised)))))

    def refusal(self, head: RequestHead) -> Refusal | None:
        """Return why a request is refused; None if a handler may have it."""
        if not self._takes_strangers and not all(map(_is_loopback, head.came_through)):
            return Refusal(HTTPStatus.FORBIDDEN, _NOT_LOCAL, "NotLocal")
        foreign = next(
            (host for host in head.hosts if not self._is_own(host, head.arrived_at)), None
        )
        if foreign is not None:
            reason = (
                f"{_shown(foreign)} (header Host) is not a name of this broker; use its address, or"
                " add the name to http_hosts"
            )
            return Refusal(HTTPStatus.MISDIRECTED_REQUEST, reason, "UnknownHost")
        if head.encoding.strip().lower() not in _PLAIN:
            reason = (
                f"the body is encoded ({_shown(head.encoding)}), and this broker decodes none; send"
                " it without Content-Encoding"
            )
            return Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason, "EncodedBody")
        if head.method in _READING and not head.opens_socket:
            return None
        if head.origin is not None and not any(
            _is_same_origin(head.origin, host) for host in head.hosts
        ):
            return _foreign(f"a page of {_shown(head.origin)} (header Origin)")
        if head.site in _FOREIGN_SITES:
            return _foreign(f"a page of another origin (header Sec-Fetch-Site: {head.site})")
        if head.has_body and head.path.startswith(_JSON_PATHS) and not _is_json(head.content_type):
            reason = (
                f"the body is {_shown(head.content_type)}, but this path accepts only JSON; send"
                f" the header Content-Type: {JSON}"
            )
            return Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason, "NotJson")
        return None

    def _is_own(self, host: str, arrived_at: str | None) -> bool:
        # An attacker can make a name resolve to any address, but cannot fake an address. A loopback
        # address is always own.
        name = _name_in(host)
        address = _address(name)
        return name in self._names or (
            address is not None and (address.is_loopback or address == _address(arrived_at or ""))
        )


def guarded(config: WorkerConfig, advertised: Sequence[str]) -> Middleware:
    """Return a middleware that refuses requests by the guard, and answers 408 if a body takes
    longer than `http_body_ms`.
    """
    guard = Guard(config, advertised)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = guard.refusal(_head_of(request))
        if refusal is not None:
            return problem_answer(request, *refusal)
        if request.content.is_eof():
            return await handler(request)
        return await _with_body_in_time(request, handler, config.http_body_ms)

    return middleware


async def _with_body_in_time(
    request: web.Request, handler: Handler, body_ms: int
) -> web.StreamResponse:
    """Call a handler with a time limit for the body. Once the body has arrived there is no
    limit.
    """
    limit = asyncio.timeout(body_ms / 1_000)
    try:
        async with limit:
            request.content.on_eof(_once_open(limit))
            return await handler(request)
    except TimeoutError:
        if not limit.expired():
            raise
    reason = (
        f"the body of {request.method} {request.path[:_SHOWN_MAX]} did not arrive within {body_ms}"
        " ms (http_body_ms); send it faster"
    )
    answer = problem_answer(request, HTTPStatus.REQUEST_TIMEOUT, reason, "BodyTooSlow")
    answer.force_close()
    return answer


def _once_open(limit: asyncio.Timeout) -> Callable[[], None]:
    """Return a callback that lifts a limit, unless it has ended: a handler may answer before the
    body has arrived.
    """

    def lift() -> None:
        try:
            limit.reschedule(None)
        except RuntimeError:
            return

    return lift


def _head_of(request: web.Request) -> RequestHead:
    headers, connection = request.headers, request.protocol
    assert isinstance(connection, Connection), "`served` makes no other"
    address = connection.sockname
    arrived_at = address[0] if isinstance(address, tuple) else headers.get(ARRIVED_AT)
    came_through: tuple[str | None, ...] = ()
    if connection.peer is None:
        proxied = (
            part.strip()
            for name in _PROXIED
            for given in headers.getall(name, ())
            for part in given.split(",")
        )
        came_through = (arrived_at, headers.get(CALLED_FROM), *proxied)
    return RequestHead(
        method=request.method,
        path=request.path,
        hosts=tuple(headers.getall(hdrs.HOST, ())),
        origin=headers.get(hdrs.ORIGIN),
        site=headers.get("Sec-Fetch-Site"),
        has_body=request.body_exists,
        content_type=request.content_type if hdrs.CONTENT_TYPE in headers else "",
        encoding=", ".join(headers.getall(hdrs.CONTENT_ENCODING, ())),
        opens_socket=headers.get(hdrs.UPGRADE, "").lower() == "websocket",
        arrived_at=arrived_at,
        came_through=came_through,
    )


def _foreign(whose: str) -> Refusal:
    reason = (
        f"{whose} may not change this broker; use a page of its own address, or a program that is"
        " not a web page"
    )
    return Refusal(HTTPStatus.FORBIDDEN, reason, "ForeignPage")


def _is_json(content_type: str) -> bool:
    # `pulsar-admin` also sends application/vnd.partitioned-topic-metadata+json.
    return content_type == JSON or (
        content_type.startswith("application/") and content_type.endswith("+json")
    )


def _is_same_origin(origin: str, host: str) -> bool:
    """Return whether a page of `origin` was served under the same name and port as in the Host
    header.
    """
    try:
        page = urlsplit(origin.lower())
        port = _PORT_OF_SCHEME.get(page.scheme)
        own = urlsplit(f"//{host.lower()}")
        places = [(page.hostname, page.port or port), (own.hostname, own.port or port)]
    except ValueError:  # It is no origin.
        return False
    return port is not None and places[0] == places[1]


def _name_in(host: str) -> str:
    """Return the name in a Host header, without its port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return _plain(name)


def _plain(name: str) -> str:
    """Return a name in canonical form: addresses have several forms."""
    address = _address(name)
    return name.lower().removesuffix(".") if address is None else str(address)


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(name)
    except ValueError:
        return None
    # An IPv6 socket reports an IPv4 address in this form.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _is_loopback(name: str | None) -> bool:
    address = _address(name or "")
    return address is not None and address.is_loopback


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_MAX])
