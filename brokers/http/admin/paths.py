"""List the paths of the administration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web

from equipoise.brokers.http.admin.absent import DEFAULTS, defaults
from equipoise.brokers.http.admin.balancing import Balancing, Decisions
from equipoise.brokers.http.admin.brokers import Brokers
from equipoise.brokers.http.admin.cluster_policies import Policies
from equipoise.brokers.http.admin.clusters import Clusters
from equipoise.brokers.http.admin.controls import Controls
from equipoise.brokers.http.admin.grants import Grants
from equipoise.brokers.http.admin.namespaces import Namespaces, NamespaceTopics
from equipoise.brokers.http.admin.tenants import Tenants
from equipoise.brokers.runtime.worker import Worker


def paths_of_admin(
    worker: Worker, end: Callable[[], None] | None, topics: NamespaceTopics | None
) -> Sequence[web.RouteDef]:
    """Return the routes. `end` is for `Brokers`, and `topics` for `Namespaces`."""
    groups = (
        Clusters(worker),
        Tenants(worker),
        Namespaces(worker, topics),
        Grants(worker),
        Policies(worker),
        Brokers(worker, end),
        Balancing(worker),
        Controls(worker),
        Decisions(worker),
    )
    return [*(route for each in groups for route in each.routes()), *defaults(worker, DEFAULTS)]
