"""Name the caller of an HTTP request."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from equipoise.brokers.security.identity import Identity

_IDENTITY: Final = web.RequestKey("identity", Identity)


def identify(request: web.BaseRequest, identity: Identity) -> None:
    """Note who the authenticated caller of a request is."""
    request[_IDENTITY] = identity


def identity_of(request: web.BaseRequest) -> Identity | None:
    """Return the authenticated caller of a request; None if there is no authentication."""
    return request.get(_IDENTITY)
