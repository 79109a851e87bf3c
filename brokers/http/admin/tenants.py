"""Serve Pulsar's administration paths of tenants.

A tenant exists if it was created or has a namespace. `brokers.balancing.policies` defines how the
channel holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.named import tenant_named, tenants_in
from equipoise.brokers.http.admin.operating import Admin
from equipoise.brokers.http.answers import json_answer, not_supported
from equipoise.brokers.http.bodies import (
    TENANT_BODY,
    TenantBody,
    body_of,
    flag_of,
    required_body_of,
)
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.operations import verbs
from equipoise.channel.core.ranges import check_tenant

_TENANT: Final = "/admin/v2/tenants/{tenant}"


class Tenants(Admin):
    """The paths of tenants of one worker."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get("/admin/v2/tenants", self.list_tenants),
            web.get(_TENANT, self.tenant),
            web.put(_TENANT, self.create),
            web.post(_TENANT, self.update),
            web.delete(_TENANT, self.delete),
        )

    async def list_tenants(self, _request: web.Request) -> web.Response:
        """List the tenants that were created or have a namespace."""
        return json_answer(tenants_in(ready_view(self._worker)))

    async def tenant(self, request: web.Request) -> web.Response:
        """Return the roles and clusters of a tenant."""
        tenant = tenant_named(ready_view(self._worker), _tenant_of(request))
        return json_answer(
            {"adminRoles": tenant.admin_roles, "allowedClusters": tenant.allowed_clusters}
        )

    async def create(self, request: web.Request) -> web.Response:
        """Create a tenant; 409 if it was created before or has a namespace."""
        tenant = _tenant_of(request)
        body = await body_of(request, TENANT_BODY) or TenantBody()
        return await self._done(
            verbs.create_tenant(
                self._port(request),
                tenant,
                admin_roles=body.admin_roles,
                allowed_clusters=body.allowed_clusters,
            )
        )

    async def update(self, request: web.Request) -> web.Response:
        """Replace the roles and clusters of a tenant."""
        tenant = _tenant_of(request)
        body = await required_body_of(
            request, TENANT_BODY, "an object with adminRoles and allowedClusters"
        )
        return await self._done(
            verbs.update_tenant(
                self._port(request),
                tenant,
                admin_roles=body.admin_roles,
                allowed_clusters=body.allowed_clusters,
            )
        )

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a tenant; 409 if it has namespaces. `force` is refused with 405, as Pulsar does by
        default.
        """
        tenant = _tenant_of(request)
        if flag_of(request, "force"):
            reason = (
                "a tenant cannot be deleted together with its namespaces; delete them one by one"
                " first"
            )
            return not_supported(request, reason, allow="GET, PUT, POST")
        return await self._done(verbs.delete_tenant(self._port(request), tenant))


def _tenant_of(request: web.Request) -> str:
    return check_tenant(request.match_info["tenant"])
