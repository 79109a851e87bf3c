"""Answer for features of Pulsar that this server does not have: a question with Pulsar's default, a
change with a refusal that says why.

Without these answers, Pulsar's tools would print that a path is unknown, and nobody would learn the
reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.named import namespace_named
from equipoise.brokers.http.answers import done, json_answer
from equipoise.brokers.http.bodies import namespace_of
from equipoise.brokers.http.errors import not_supported
from equipoise.brokers.http.readiness import ready_view, view_of_cluster
from equipoise.brokers.runtime.worker import Worker

NOTHING: Final = object()
"""In place of a default: even the question is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature that this server does not have.

    `methods` are those of Pulsar at `path`, separated by spaces. `why` is one sentence for the
    operator. `default` is the JSON that answers a GET; None becomes 204.
    """

    methods: str
    path: str
    why: str
    default: object = NOTHING


def _policy(
    name: str, why: str, *, methods: str = "GET POST DELETE", default: object = None
) -> Feature:
    """Return a policy of namespaces. Most have no default in Pulsar: None."""
    return Feature(
        methods=methods,
        path=f"/admin/v2/namespaces/{{tenant}}/{{namespace}}/{name}",
        why=why,
        default=default,
    )


_CLUSTER: Final = "/admin/v2/clusters/{cluster}"
_NO_STORE: Final = "this server stores no messages"
_NO_BACKLOG: Final = (
    f"{_NO_STORE}, so there is no backlog: a consumer gets what is published while it is connected"
)
_NO_REPLICATION: Final = "this server does not replicate: its clusters know nothing of each other"
_NO_OFFLOAD: Final = f"{_NO_STORE}, so there is nothing to offload"
_NO_ACKS: Final = f"{_NO_STORE}, so acknowledgements have no effect and are not counted"
_NO_SUBSCRIPTION_RIGHTS: Final = (
    "this server has no rights on single subscriptions; grant consume in the namespace (`namespaces"
    " grant-permission --actions consume`)"
)
_ONE_CLUSTER_IN_NAMES: Final = (
    "names with a cluster (tenant/cluster/namespace) are those of Pulsar 1; use tenant/namespace"
)

FEATURES: Final = (
    _policy(
        "retention",
        f"{_NO_STORE}, so there is nothing to retain; a consumer gets what is published while it is"
        " connected",
    ),
    _policy("messageTTL", f"{_NO_STORE}, so none can expire"),
    _policy("backlogQuotaMap", _NO_BACKLOG, methods="GET", default={}),
    _policy("backlogQuota", _NO_BACKLOG, methods="POST DELETE", default=NOTHING),
    _policy("persistence", f"{_NO_STORE}, so there are no ledgers to configure"),
    _policy("persistence/bookieAffinity", f"{_NO_STORE}, so it has no bookies"),
    _policy(
        "subscriptionExpirationTime", f"{_NO_STORE}: a subscription ends with its last consumer"
    ),
    _policy("deduplication", f"{_NO_STORE}, so it cannot tell a message that is sent again"),
    _policy(
        "deduplicationSnapshotInterval",
        f"{_NO_STORE}, so it cannot tell a message that is sent again",
        methods="GET POST",
    ),
    _policy(
        "compactionThreshold",
        f"{_NO_STORE}, so there is nothing to compact",
        methods="GET PUT DELETE",
    ),
    _policy("offloadThreshold", _NO_OFFLOAD, methods="GET PUT", default=-1),
    _policy("offloadThresholdInSeconds", _NO_OFFLOAD, methods="GET PUT", default=-1),
    _policy("offloadDeletionLagMs", _NO_OFFLOAD, methods="GET PUT DELETE"),
    _policy("offloadPolicies", _NO_OFFLOAD, methods="GET POST"),
    _policy("removeOffloadPolicies", _NO_OFFLOAD, methods="DELETE", default=NOTHING),
    _policy("maxUnackedMessagesPerSubscription", _NO_ACKS),
    _policy("maxUnackedMessagesPerConsumer", _NO_ACKS),
    _policy("dispatcherPauseOnAckStatePersistent", _NO_ACKS, default=False),
    _policy("delayedDelivery", f"{_NO_STORE}, so none can be delivered later"),
    _policy("entryFilters", "this server loads no plug-ins that filter messages"),
    _policy(
        "autoSubscriptionCreation",
        f"{_NO_STORE}: a subscription exists only while it has consumers, so each of them"
        " creates it",
    ),
    _policy("inactiveTopicPolicies", f"{_NO_STORE}: a topic ends with its last client"),
    _policy(
        "subscribeRate",
        "this server does not limit how often consumers subscribe; Pulsar does so for stored topics"
        " only",
    ),
    _policy("replicatorDispatchRate", _NO_REPLICATION),
    _policy("migration", _NO_REPLICATION, methods="POST", default=NOTHING),
    _policy(
        "schemaAutoUpdateCompatibilityStrategy",
        "Pulsar has replaced this policy; use schemaCompatibilityStrategy (`namespaces"
        " set-schema-compatibility-strategy`)",
        methods="GET PUT",
        default=NOTHING,
    ),
    Feature(
        methods="GET POST",
        path=f"{_CLUSTER}/migrate",
        why=(
            "a cluster cannot be migrated to another one; start new clients with the address of the"
            " other cluster"
        ),
        default={"migrated": False, "migratedClusterUrl": None},
    ),
    Feature(
        methods="GET",
        path="/admin/v2/brokers/backlog-quota-check",
        why="this server stores no messages, so no topic has a backlog",
        default=None,
    ),
    Feature(
        methods="GET",
        path="/admin/v2/broker-stats/mbeans",
        why=(
            "this server is no Java program, so it has no MBeans; use broker-stats"
            " monitoring-metrics"
        ),
    ),
    Feature(
        methods="GET",
        path="/admin/v2/broker-stats/allocator-stats/{allocator}",
        why=(
            "this server is no Java program, so it has no allocators; use broker-stats"
            " monitoring-metrics"
        ),
    ),
    _policy("permissions/subscription", _NO_SUBSCRIPTION_RIGHTS, methods="GET", default={}),
    _policy(
        "permissions/{subscription}/{role}",
        _NO_SUBSCRIPTION_RIGHTS,
        methods="POST DELETE",
        default=NOTHING,
    ),
    _policy("subscriptionAuthMode", _NO_SUBSCRIPTION_RIGHTS, methods="GET POST", default="None"),
    _policy(
        "resourcegroup",
        "this server has no resource groups; use publishRate and dispatchRate",
        methods="GET DELETE",
    ),
    _policy(
        "resourcegroup/{name}",
        "this server has no resource groups; use publishRate and dispatchRate",
        methods="POST",
        default=NOTHING,
    ),
    Feature(methods="GET", path="/admin/namespaces/{tenant}/{cluster}", why=_ONE_CLUSTER_IN_NAMES),
    Feature(
        methods="GET",
        path="/admin/namespaces/{tenant}/{cluster}/{namespace}/destinations",
        why=_ONE_CLUSTER_IN_NAMES,
    ),
)
"""The features that are absent in every cluster."""


class Absent:
    """The paths of features that this server does not have. Add them after all paths that it
    has.
    """

    def __init__(self, worker: Worker, features: Sequence[Feature]) -> None:
        self._worker = worker
        self._features = features

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return [
            web.route(method, feature.path, partial(self.answer, feature))
            for feature in self._features
            for method in feature.methods.split()
        ]

    async def answer(self, feature: Feature, request: web.Request) -> web.Response:
        """Return the default to a GET, if there is one. Otherwise refuse with 405, as Pulsar does
        where it lacks a feature.

        404 if the namespace or the cluster of the path does not exist.
        """
        if feature.path.startswith(f"{_CLUSTER}/"):
            view_of_cluster(self._worker, request)
        elif feature.path.startswith("/admin/v2/") and "namespace" in request.match_info:
            # Names of Pulsar 1 cannot exist.
            namespace_named(ready_view(self._worker), namespace_of(request))
        has_answer = "GET" in feature.methods.split() and feature.default is not NOTHING
        if request.method != "GET" or not has_answer:
            return not_supported(request, feature.why, allow="GET" if has_answer else "")
        return done() if feature.default is None else json_answer(feature.default)
