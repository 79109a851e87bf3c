"""Serve Pulsar's administration paths of tenants and of permissions in namespaces, and the paths of
rights in the cluster, which are ours.

A tenant exists if it was created or has a namespace. `brokers.balancing.policies` defines how the
channel holds it, `brokers.balancing.grants` permissions and rights. Those count once brokers run
with `authorization`; they can be granted before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.grants import parse_actions, permissions_in, rights_in
from equipoise.brokers.balancing.named import tenant_named, tenants_in
from equipoise.brokers.http.admin.namespaces import NAMESPACE_PATH
from equipoise.brokers.http.admin.operating import Admin, Call, fact, order, order_with
from equipoise.brokers.http.answers import not_supported
from equipoise.brokers.http.bodies import (
    ACTIONS_BODY,
    TENANT_BODY,
    TenantBody,
    body_of,
    flag_of,
)
from equipoise.brokers.operations import verbs
from equipoise.brokers.security.rights import Action, Right
from equipoise.channel.core.ranges import check_tenant

_TENANT: Final = "/admin/v2/tenants/{tenant}"
_PERMISSIONS: Final = f"{NAMESPACE_PATH}/permissions"
_GRANTS: Final = "/admin/v2/grants"


def _tenant(call: Call) -> dict[str, object]:
    tenant = tenant_named(call.view, _name_of(call.request))
    return {"adminRoles": tenant.admin_roles, "allowedClusters": tenant.allowed_clusters}


class Tenants(Admin):
    """The paths of tenants of one worker."""

    rows = (
        fact(
            "list_tenants",
            "/admin/v2/tenants",
            "List the tenants that were created or have a namespace.",
            lambda call: tenants_in(call.view),
        ),
        fact("tenant", _TENANT, "Return the roles and clusters of a tenant.", _tenant),
        order_with(
            (TENANT_BODY, "an object with adminRoles and allowedClusters"),
            "update",
            f"POST {_TENANT}",
            "Replace the roles and clusters of a tenant.",
            lambda call, body: verbs.update_tenant(
                call.port,
                _name_of(call.request),
                admin_roles=body.admin_roles,
                allowed_clusters=body.allowed_clusters,
            ),
        ),
    )

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            *super().routes(),
            web.put(_TENANT, self.create),
            web.delete(_TENANT, self.delete),
        )

    async def create(self, request: web.Request) -> web.Response:
        """Create a tenant; 409 if it was created before or has a namespace."""
        tenant = _name_of(request)
        body = await body_of(request, TENANT_BODY) or TenantBody()
        return await self._done(
            verbs.create_tenant(
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
        tenant = _name_of(request)
        if flag_of(request, "force"):
            reason = (
                "a tenant cannot be deleted together with its namespaces; delete them one by one"
                " first"
            )
            return not_supported(request, reason, allow="GET, PUT, POST")
        return await self._done(verbs.delete_tenant(self._port(request), tenant))


def _name_of(request: web.Request) -> str:
    return check_tenant(request.match_info["tenant"])


class Grants(Admin):
    """The paths of rights of one worker."""

    rows = (
        fact(
            "permissions",
            _PERMISSIONS,
            "Return the actions of each role in a namespace, as Pulsar does.",
            lambda call: permissions_in(call.entry.policies),
        ),
        order_with(
            (ACTIONS_BODY, f"a list of actions: {', '.join(Action)}"),
            "grant_permission",
            f"POST {_PERMISSIONS}/{{role}}",
            "Set the actions of a role in a namespace, in place of those that it has, as Pulsar"
            " does.",
            lambda call, names: verbs.grant_permission(
                call.port, call.namespace, call.named("role"), parse_actions(names)
            ),
        ),
        order(
            "revoke_permission",
            f"DELETE {_PERMISSIONS}/{{role}}",
            "Take all actions in a namespace from a role. Clients that use them are disconnected"
            " from their topics.",
            lambda call: verbs.grant_permission(call.port, call.namespace, call.named("role"), ()),
        ),
        fact(
            "rights",
            _GRANTS,
            "Return the right of each role in the cluster.",
            lambda call: rights_in(call.view),
        ),
        order_with(
            (Right, f"one of these, as JSON: {', '.join(Right)}"),
            "grant",
            f"POST {_GRANTS}/{{role}}",
            "Give a role a right in the cluster, in place of the one that it has.",
            lambda call, right: verbs.grant_right(call.port, call.named("role"), right),
        ),
        order(
            "revoke",
            f"DELETE {_GRANTS}/{{role}}",
            "Take from a role its right in the cluster; 404 if it has none.",
            lambda call: verbs.revoke_right(call.port, call.named("role")),
        ),
    )
