"""Serve Pulsar's paths of permissions in namespaces, and the paths of rights in the cluster, which
are ours.

`brokers.balancing.grants` has both. They count once brokers run with `authorization`; they can be
granted before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.grants import parse_actions, permissions_in, rights_in
from equipoise.brokers.balancing.named import namespace_named
from equipoise.brokers.http.admin.namespaces import NAMESPACE_PATH
from equipoise.brokers.http.admin.operating import Admin
from equipoise.brokers.http.answers import json_answer
from equipoise.brokers.http.bodies import ACTIONS_BODY, RIGHT_BODY, namespace_of, required_body_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.operations import verbs
from equipoise.brokers.security.rights import Action, Right

_PERMISSIONS: Final = f"{NAMESPACE_PATH}/permissions"
_GRANTS: Final = "/admin/v2/grants"


class Grants(Admin):
    """The paths of rights of one worker."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get(_PERMISSIONS, self.permissions),
            web.post(f"{_PERMISSIONS}/{{role}}", self.grant_permission),
            web.delete(f"{_PERMISSIONS}/{{role}}", self.revoke_permission),
            web.get(_GRANTS, self.rights),
            web.post(f"{_GRANTS}/{{role}}", self.grant),
            web.delete(f"{_GRANTS}/{{role}}", self.revoke),
        )

    async def permissions(self, request: web.Request) -> web.Response:
        """Return the actions of each role in a namespace, as Pulsar does."""
        return json_answer(
            permissions_in(
                namespace_named(ready_view(self._worker), namespace_of(request)).policies
            )
        )

    async def grant_permission(self, request: web.Request) -> web.Response:
        """Set the actions of a role in a namespace, in place of those that it has, as Pulsar
        does.
        """
        names = await required_body_of(
            request, ACTIONS_BODY, f"a list of actions: {', '.join(Action)}"
        )
        return await self._done(
            verbs.grant_permission(
                self._port(request),
                namespace_of(request),
                request.match_info["role"],
                parse_actions(names),
            )
        )

    async def revoke_permission(self, request: web.Request) -> web.Response:
        """Take all actions in a namespace from a role. Clients that use them are disconnected from
        their topics.
        """
        return await self._done(
            verbs.grant_permission(
                self._port(request), namespace_of(request), request.match_info["role"], ()
            )
        )

    async def rights(self, _request: web.Request) -> web.Response:
        """Return the right of each role in the cluster."""
        return json_answer(rights_in(ready_view(self._worker)))

    async def grant(self, request: web.Request) -> web.Response:
        """Give a role a right in the cluster, in place of the one that it has."""
        right = await required_body_of(
            request, RIGHT_BODY, f"one of these, as JSON: {', '.join(Right)}"
        )
        return await self._done(
            verbs.grant_right(self._port(request), request.match_info["role"], right)
        )

    async def revoke(self, request: web.Request) -> web.Response:
        """Take from a role its right in the cluster; 404 if it has none."""
        return await self._done(verbs.revoke_right(self._port(request), request.match_info["role"]))
