"""Answer for what Pulsar has and this server does not have.

Two tables hold all of it: the questions with Pulsar's default as the answer, so that tools which
read all policies go on, and the refusals that can name a way round. One catch-all refuses the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.named import namespace_named
from equipoise.brokers.http.answers import done, json_answer, not_supported, problem_answer, typed
from equipoise.brokers.http.bodies import namespace_of
from equipoise.brokers.http.readiness import view_for
from equipoise.brokers.runtime.worker import Worker

_SHOWN_MAX: Final = 256

_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_UNSET: Final = (
    *("retention", "messageTTL", "persistence", "persistence/bookieAffinity", "deduplication"),
    *("subscriptionExpirationTime", "deduplicationSnapshotInterval", "compactionThreshold"),
    *("offloadDeletionLagMs", "offloadPolicies", "maxUnackedMessagesPerSubscription"),
    *("maxUnackedMessagesPerConsumer", "delayedDelivery", "entryFilters", "resourcegroup"),
    *("autoSubscriptionCreation", "inactiveTopicPolicies", "subscribeRate"),
    *("replicatorDispatchRate",),
)
DEFAULTS: Final[Mapping[str, object]] = {
    **{f"{_NAMESPACE}/{name}": None for name in _UNSET},
    f"{_NAMESPACE}/backlogQuotaMap": {},
    f"{_NAMESPACE}/offloadThreshold": -1,
    f"{_NAMESPACE}/offloadThresholdInSeconds": -1,
    f"{_NAMESPACE}/dispatcherPauseOnAckStatePersistent": False,
    f"{_NAMESPACE}/permissions/subscription": {},
    f"{_NAMESPACE}/subscriptionAuthMode": "None",
    "/admin/v2/brokers/backlog-quota-check": None,
    "/admin/v2/clusters/{cluster}/peers": [],
    "/admin/v2/clusters/{cluster}/migrate": {"migrated": False, "migratedClusterUrl": None},
}
"""What Pulsar answers to a GET where nothing is set, by path; None becomes 204."""

_REASONS: Final = (
    (
        r"^\w+ /admin/v2/namespaces/.*/(permissions/.*/|permissions/subscription|subscriptionAuth)",
        (
            "it has no rights on single subscriptions; grant consume in the namespace (`namespaces"
            " grant-permission --actions consume`)"
        ),
    ),
    (
        r"^\w+ /admin/v2/non-persistent/.*/permissions",
        (
            "it has no rights on single topics; grant them in the namespace (`namespaces"
            " grant-permission`)"
        ),
    ),
    (
        r"/schemaAutoUpdateCompatibilityStrategy$",
        (
            "Pulsar has replaced this policy; use schemaCompatibilityStrategy (`namespaces"
            " set-schema-compatibility-strategy`)"
        ),
    ),
    (r"/resourcegroup", "it has no resource groups; use publishRate and dispatchRate"),
    (
        r"^PUT /admin/v2/non-persistent/.*/subscription/[^/]*$",
        "a subscription of a non-persistent topic exists only with a consumer; connect one",
    ),
    (
        r" /admin/v2/schemas/.*/metadata$",
        "brokers keep schemas in memory and not in ledgers; use 'schemas get'",
    ),
    (
        r" /admin/v2/broker-stats/(mbeans$|allocator-stats/)",
        "it is no Java program; use broker-stats monitoring-metrics",
    ),
    (
        r" /admin/v2/clusters/[^/]*/(peers|migrate)$",
        (
            "it does not replicate, and its clusters know nothing of each other; start new clients"
            " with the address of the other cluster"
        ),
    ),
    (
        r"^(PUT|POST) /admin/v2/clusters/[^/]*$",
        (
            "a log holds one cluster, and its addresses are those that its brokers advertise; start"
            " brokers with other addresses, or with another log to create another cluster"
        ),
    ),
    (
        r"^DELETE /admin/v2/clusters/[^/]*$",
        "the cluster is in use while a broker can answer; stop all brokers, and delete its log",
    ),
    (
        r" /admin/namespaces/",
        (
            "names with a cluster (tenant/cluster/namespace) are those of Pulsar 1; use"
            " tenant/namespace"
        ),
    ),
)
"""Why a request is refused, by a pattern of its method and path; the first one that matches."""

_CATCH_ALL: Final = re.compile(r"/admin/v2/(namespaces|non-persistent|schemas)/[^/]*/[^/]*/.")
"""Pulsar's paths of namespaces and topics. A broker that serves topics refuses those that nothing
here takes, too.
"""

_NOTHING_STORED: Final = "it stores no messages, and non-persistent topics have no such thing"


def defaults(worker: Worker, answers: Mapping[str, object]) -> Sequence[web.RouteDef]:
    """Return the routes that answer GET with a default, and refuse all other methods."""
    return [
        web.route("*", path, partial(_default, worker, answer)) for path, answer in answers.items()
    ]


async def _default(worker: Worker, answer: object, request: web.Request) -> web.Response:
    """Return the default to a GET. 404 if the namespace or the cluster of the path does not
    exist.
    """
    view = view_for(worker, request)
    if "namespace" in request.match_info:
        namespace_named(view, namespace_of(request))
    if request.method not in {"GET", "HEAD"}:
        return _refused(request, _reason(request) or _NOTHING_STORED, allow="GET")
    return done() if answer is None else json_answer(answer)


def _refused(request: web.Request, reason: str, *, allow: str) -> web.Response:
    """Return 405, as Pulsar does where it lacks a feature. The reason names the command."""
    command = re.sub(r"^/admin(/v2)?/", "", request.path)
    why = f"this server has no {f'{request.method} {command}'[:_SHOWN_MAX]!r}: {reason}"
    return not_supported(request, why, allow=allow)


def _reason(request: web.Request) -> str | None:
    """Return why this server lacks what a request asks for; None without a row for it."""
    asked = f"{request.method} {request.path}"
    return next((why for pattern, why in _REASONS if re.search(pattern, asked)), None)


def unmatched(*, has_topics: bool = False) -> web.RouteDef:
    """Return the route for all unmatched paths. It must be the last one. `has_topics`: whether this
    broker serves Pulsar's topics.
    """
    return typed(web.route("*", "/{path:(?s:.*)}", partial(_unmatched, has_topics=has_topics)))


async def _unmatched(request: web.Request, *, has_topics: bool) -> web.Response:
    """Answer 405 if this server lacks a feature of Pulsar, or if only the method is wrong, else
    404, in the form of all errors.

    Pulsar's tools ask any broker for paths of topics, so one that has none says why.
    """
    ours = request.match_info.route.resource
    allowed = set[str]()
    for resource in request.app.router.resources():
        if resource is not ours:
            allowed |= (await resource.resolve(request))[1]
    shown, use = repr(request.path[:_SHOWN_MAX]), ", ".join(sorted(allowed))
    reason = _reason(request)
    is_of_topics = re.match(r"/admin/v2/(non-persistent|schemas)/", request.path)
    if reason is not None and (has_topics or not is_of_topics):
        return _refused(request, reason, allow=use)
    if allowed:
        why = f"{shown} does not support {request.method}; use {use}"
        answer = problem_answer(request, HTTPStatus.METHOD_NOT_ALLOWED, why, "MethodNotAllowed")
        answer.headers["Allow"] = use
        return answer
    if _CATCH_ALL.match(request.path) and has_topics:
        return _refused(request, _NOTHING_STORED, allow="")
    why = f"there is no path {shown} at this broker"
    if not has_topics and request.path.startswith("/admin/"):
        why = (
            f"this broker serves no Pulsar topics, so it does not have {shown}; ask a broker that"
            " does, or start this one with the service pulsar and a --pulsar-port"
        )
    return problem_answer(request, HTTPStatus.NOT_FOUND, why, "UnknownPath")
