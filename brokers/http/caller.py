"""Name the caller of an HTTP request: its role, its address, and its name on the channel."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from equipoise.brokers.http.connections import Connection
from equipoise.brokers.security.identity import Identity
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import ADMIN_PREFIX
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX

CALLED_FROM: Final = "X-Equipoise-Called-From"
"""The address of the client whose request a program forwards. It counts only on a Unix socket,
which only the program uses."""

_IDENTITY: Final = web.RequestKey("identity", Identity)
_ROLE_CHARACTERS_MAX: Final = TEXT_CHARACTERS_MAX - len(ADMIN_PREFIX)
_SHOWN_MAX: Final = 256
_ANONYMOUS: Final = "anonymous"


def identify(request: web.BaseRequest, identity: Identity) -> None:
    """Note who the authenticated caller of a request is."""
    request[_IDENTITY] = identity


def identity_of(request: web.BaseRequest) -> Identity | None:
    """Return the authenticated caller of a request to the `routes()` of a service; None without
    authentication.
    """
    return request.get(_IDENTITY)


def address_of(request: web.BaseRequest) -> str:
    """Return the IP address of the caller, or of the last proxy before the broker; `unknown` if a
    program does not pass it on.
    """
    connection = request.protocol
    assert isinstance(connection, Connection), "`served` makes no other"
    address = request.headers.get(CALLED_FROM, "") if connection.peer is None else connection.peer
    return address if address.isprintable() and address else "unknown"


def asked_in(request: web.BaseRequest) -> str:
    """Return the method and the path of a request for a log line, without the query, which may hold
    a secret.
    """
    return f"{request.method} {request.rel_url.raw_path[:_SHOWN_MAX]}"


def requester_of(request: web.BaseRequest) -> str:
    """Return the name of the caller in records: `admin:ROLE`, or without authentication
    `admin:anonymous at ADDRESS`.

    Raise `InvalidName` for a role that no record can carry.
    """
    identity = identity_of(request)
    role = f"{_ANONYMOUS} at {address_of(request)}" if identity is None else identity.role
    if not 0 < len(role) <= _ROLE_CHARACTERS_MAX or not role.isprintable():
        expected = f"1 to {_ROLE_CHARACTERS_MAX} printable characters, because records name it"
        raise InvalidName(what="role", name=role[:_ROLE_CHARACTERS_MAX], expected=expected)
    return ADMIN_PREFIX + role
