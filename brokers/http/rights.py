"""Refuse HTTP requests of roles that lack the right for them. One table has the right for each
path.

Routes of services are open to every role: a service knows what its paths do, and decides itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from equipoise.brokers.errors import not_ready
from equipoise.brokers.http.admin.balancing import CONTROLS_PATH
from equipoise.brokers.http.admin.namespaces import NAMESPACE_PATH
from equipoise.brokers.http.answers import error_answer, problem_answer
from equipoise.brokers.http.caller import address_of, asked_in, identity_of
from equipoise.brokers.http.lookup import topic_in
from equipoise.brokers.http.page.files import PAGE_PATHS
from equipoise.brokers.http.page.plans import PLAN_PATH
from equipoise.brokers.runtime.assuring import ASSURANCE_PATH
from equipoise.brokers.runtime.router import OPENED_PATH
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.identity import Surface
from equipoise.brokers.security.rights import (
    ADMINISTER,
    ADMINISTER_TENANT,
    ANYONE,
    CONSUME,
    OPERATE,
    OPERATE_TENANT,
    READ,
    READ_TENANT,
    USE,
    Authorization,
    Need,
    Place,
)
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import tenant_in

_LOOKUP: Final = "/lookup/"
_TENANT: Final = "/admin/v2/tenants/{tenant}"
_TOPICS: Final = tuple(
    f"/admin/v2/{domain}/{{tenant}}/{{namespace}}"
    for domain in ("{domain}", "persistent", "non-persistent")
)
_SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

_READS: Final = "GET HEAD"
_ALL: Final = ""

ROWS: Final[Sequence[tuple[str, str, Need]]] = (
    (_READS, "/health", ANYONE),
    (_READS, "/ready", ANYONE),
    # Its data are below.
    *((_READS, path, ANYONE) for path in sorted(PAGE_PATHS)),
    # Clients of topics.
    (_READS, f"{_LOOKUP}**", USE),
    (_READS, "/v1/assignment/**", USE),
    (_READS, f"{NAMESPACE_PATH}/topics", USE),
    (_READS, f"{NAMESPACE_PATH}/bundles", USE),
    (_READS, f"{_SCHEMAS}/**", USE),
    ("POST", f"{_SCHEMAS}/version", USE),
    *((_READS, f"{topics}**", USE) for topics in _TOPICS),
    *(("DELETE", f"{topics}/{{topic}}/subscription/*", CONSUME) for topics in _TOPICS),
    *(
        ("POST", f"{NAMESPACE_PATH}/{each}", CONSUME)
        for each in ("unsubscribe/*", "*/unsubscribe/*")
    ),
    # Moves.
    *(("PUT", f"{topics}/{{topic}}/unload", OPERATE_TENANT) for topics in _TOPICS),
    ("PUT DELETE", f"{NAMESPACE_PATH}/unload", OPERATE),
    ("PUT DELETE", f"{NAMESPACE_PATH}/*/unload", OPERATE),
    ("PUT", f"{NAMESPACE_PATH}/*/split", OPERATE),
    ("PUT", f"{NAMESPACE_PATH}/*/merge", OPERATE),
    ("POST", "/admin/v2/brokers/drain", OPERATE),
    ("POST", "/admin/v2/brokers/undrain", OPERATE),
    ("POST", OPENED_PATH, OPERATE),
    ("POST", PLAN_PATH, OPERATE),
    ("POST DELETE", f"{CONTROLS_PATH}/**", OPERATE),
    # What brokers ask each other. It holds the state of services.
    (_READS, "/v1/handover/**", ADMINISTER),
    ("POST", ASSURANCE_PATH, ADMINISTER),
    # Namespaces and topics are administered by the roles of their tenant.
    (_READS, _TENANT, READ_TENANT),
    (_READS, "/v1/bundle/**", READ_TENANT),
    (_READS, "/admin/v2/namespaces/**", READ_TENANT),
    *((_ALL, f"{path}**", ADMINISTER_TENANT) for path in (NAMESPACE_PATH, _SCHEMAS, *_TOPICS)),
    # The cluster.
    (_READS, "/metrics", READ),
    (_READS, "/v1/brokers", READ),
    (_READS, "/v1/overview", READ),
    (_READS, PLAN_PATH, READ),
    (_READS, "/admin/**", READ),
    (_ALL, "/admin/**", ADMINISTER),
)
"""Methods (empty: all), path, and need. `*` stands for one part of a path, `**` for any rest. The
first matching row counts."""


def _matcher(pattern: str) -> re.Pattern[str]:
    parts = (
        ".*" if part == "**" else "[^/]*" if part == "*" else re.escape(part)
        for part in re.split(r"(\*\*?)", pattern)
    )
    return re.compile("".join(parts))


_RULES: Final = tuple(
    (frozenset(methods.split()), _matcher(pattern), need) for methods, pattern, need in ROWS
)


@lru_cache(maxsize=1_024)  # There are some 200 routes. Callers may send any method.
def need_of(method: str, canonical: str) -> Need:
    """Return what a request needs, by the path of its route as aiohttp prints it. Other paths are
    those of services, and unknown ones.
    """
    return next(
        (
            need
            for methods, path, need in _RULES
            if (not methods or method in methods) and path.fullmatch(canonical)
        ),
        ANYONE,
    )


def authorized(worker: Worker, authorization: Authorization) -> Middleware:
    """Return a middleware behind `authenticated`. It answers 403 to roles without the right, and
    503 if it may not have read all rights.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        need = ANYONE if resource is None else need_of(request.method, resource.canonical)
        if need.right is None:
            return await handler(request)
        identity = identity_of(request)
        assert identity is not None, "rights need authentication"
        what = asked_in(request)
        why = authorization.check(
            Surface.HTTP, identity, need, _place_of(request), what=what, client=address_of(request)
        )
        if why is None:
            return await handler(request)
        if not await worker.up_to_date(timeout_ms=worker.config.lookup_ms):
            return error_answer(
                request,
                not_ready(broker=worker.broker_id, problem=f"it may not know all rights: {why}"),
            )
        if authorization.is_allowed(identity, need, _place_of(request)):
            return await handler(request)  # The right was granted a moment ago.
        return problem_answer(request, HTTPStatus.FORBIDDEN, why, "NotAuthorized")

    return middleware


def _place_of(request: web.Request) -> Place:
    named = request.match_info
    if request.path.startswith(_LOOKUP):
        try:
            namespace = topic_in(request.rel_url.raw_path)[0].namespace
        except InvalidName:
            return Place()
        return Place(tenant=tenant_in(namespace), namespace=namespace)
    tenant, name = named.get("tenant"), named.get("namespace")
    return Place(
        tenant=tenant, namespace=None if tenant is None or name is None else f"{tenant}/{name}"
    )
