"""Serve Pulsar's administration paths of tenants, namespaces and bundles.

`docs/reference/http.md` compares each path with Pulsar's. The steps of moves are in `brokers.http.moving`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.named import bundle_named, namespace_named
from equipoise.brokers.balancing.namespace_policies import ANTI_AFFINITY_GROUP, ON_CHANNEL_LOSS, OnChannelLoss, on_channel_loss
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.balancing.splitting.split_points import RANGE_EQUALLY_DIVIDE, SPECIFIED_POSITIONS_DIVIDE
from equipoise.brokers.errors import InvalidRequest, Rejected, UnknownTenant
from equipoise.brokers.http.answers import done, json_answer
from equipoise.brokers.http.bodies import (
    GROUP_BODY,
    NAMESPACE_BODY,
    ON_CHANNEL_LOSS_BODY,
    POSITIONS_BODY,
    Bundles,
    NamespaceBody,
    body_of,
    bundle_of,
    flag_of,
    namespace_of,
    parameter_of,
    required_body_of,
)
from equipoise.brokers.http.moving import Moving
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import InvalidBoundaries, InvalidName
from equipoise.channel.core.ranges import HASH_MAX, check_broker_id, check_cuts, check_namespace
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX, Reason
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline

_TENANT: Final = "/admin/v2/tenants/{tenant}"
_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_BUNDLE: Final = f"{_NAMESPACE}/{{bundle}}"
_NAME_SHOWN_MAX: Final = 256

UNLOAD_OUTCOME: Final = "X-Unload-Outcome"
"""The header with the result of an unload, as JSON in ASCII. Pulsar's tools expect 204, which has no body."""

# Clients read 8 KiB of headers, and a reason has up to 1,024 characters.
_EXAMPLES_MAX: Final = 3


class Namespaces:
    """The paths of tenants, namespaces and bundles of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._moving = Moving(worker)

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get("/admin/v2/tenants", self.list_tenants),
            web.get(_TENANT, self.tenant),
            web.put(_TENANT, self.create_tenant),
            web.delete(_TENANT, self.delete_tenant),
            web.get("/admin/v2/namespaces/{tenant}", self.list_namespaces),
            web.get(_NAMESPACE, self.policies),
            web.put(_NAMESPACE, self.create),
            web.delete(_NAMESPACE, self.delete),
            web.get(f"{_NAMESPACE}/bundles", self.bundles),
            web.put(f"{_NAMESPACE}/unload", self.unload_all),
            web.get(f"{_NAMESPACE}/onChannelLoss", self.on_channel_loss),
            web.post(f"{_NAMESPACE}/onChannelLoss", self.set_on_channel_loss),
            web.delete(f"{_NAMESPACE}/unload", self.cancel_moves),
            web.get(f"{_NAMESPACE}/antiAffinity", self.anti_affinity),
            web.post(f"{_NAMESPACE}/antiAffinity", self.set_anti_affinity),
            web.delete(f"{_NAMESPACE}/antiAffinity", self.delete_anti_affinity),
            web.put(f"{_BUNDLE}/unload", self.unload),
            web.delete(f"{_BUNDLE}/unload", self.cancel),
            web.put(f"{_BUNDLE}/split", self.split),
            web.put(f"{_BUNDLE}/merge", self.merge),
        )

    # --- tenants ---

    async def list_tenants(self, _request: web.Request) -> web.Response:
        """List the tenants that have a namespace."""
        return json_answer(sorted({name.partition("/")[0] for name in ready_view(self._worker).namespaces}))

    async def tenant(self, request: web.Request) -> web.Response:
        """Return a tenant in Pulsar's form; 404 if it has no namespace."""
        tenant = _tenant_of(request)
        view = ready_view(self._worker)
        if not _namespaces_of(view, tenant):
            raise UnknownTenant(tenant=tenant)
        return json_answer({"adminRoles": [], "allowedClusters": [view.cluster]})

    async def create_tenant(self, request: web.Request) -> web.Response:
        """Check the name of a tenant, and change nothing: a tenant exists through its namespaces."""
        _tenant_of(request)
        return done()

    async def delete_tenant(self, request: web.Request) -> web.Response:
        """Change nothing; 409 if the tenant has namespaces."""
        tenant = _tenant_of(request)
        namespaces = _namespaces_of(ready_view(self._worker), tenant)
        if namespaces:
            problem = f"the tenant still has {len(namespaces)} namespaces, the first is {namespaces[0]}"
            raise Rejected(key=tenant, reason=Reason.BUNDLES_IN_USE, problem=problem, offset=None)
        return done()

    # --- namespaces ---

    async def list_namespaces(self, request: web.Request) -> web.Response:
        """List the namespaces of a tenant by full name, sorted."""
        return json_answer(_namespaces_of(ready_view(self._worker), _tenant_of(request)))

    async def policies(self, request: web.Request) -> web.Response:
        """Return the policies of a namespace in Pulsar's form."""
        view = ready_view(self._worker)
        namespace = namespace_named(view, namespace_of(request))
        bundles = _boundaries(view, namespace.name)
        document = {
            "bundles": bundles,
            "replication_clusters": [view.cluster],
            "deleted": namespace.status == "deleting",
            ON_CHANNEL_LOSS: on_channel_loss(namespace.policies),
        }
        group = namespace.policies.get(ANTI_AFFINITY_GROUP)
        return json_answer(document | ({} if group is None else {"antiAffinityGroup": group}))

    async def on_channel_loss(self, request: web.Request) -> web.Response:
        """Return what the owners of a namespace do while they have lost the channel: `fence` or `serve`."""
        return json_answer(on_channel_loss(namespace_named(ready_view(self._worker), namespace_of(request)).policies))

    async def set_on_channel_loss(self, request: web.Request) -> web.Response:
        """Set `fence` or `serve`. It applies to open bundles as soon as their owner has read it."""
        namespace = namespace_named(ready_view(self._worker), namespace_of(request))
        choice = await required_body_of(request, ON_CHANNEL_LOSS_BODY, f"one of these, as JSON: {', '.join(OnChannelLoss)}")
        await self._moving.set_policy(namespace.name, ON_CHANNEL_LOSS, choice.value, self._deadline())
        return done()

    async def anti_affinity(self, request: web.Request) -> web.Response:
        """Return the anti-affinity group of a namespace; 204 if it is in none."""
        group = namespace_named(ready_view(self._worker), namespace_of(request)).policies.get(ANTI_AFFINITY_GROUP)
        return done() if group is None else json_answer(group)

    async def set_anti_affinity(self, request: web.Request) -> web.Response:
        """Put a namespace into an anti-affinity group. It applies as bundles are placed."""
        namespace = namespace_named(ready_view(self._worker), namespace_of(request))
        group = await required_body_of(request, GROUP_BODY, "the name of the group, as JSON")
        await self._moving.set_policy(namespace.name, ANTI_AFFINITY_GROUP, group, self._deadline())
        return done()

    async def delete_anti_affinity(self, request: web.Request) -> web.Response:
        """Remove a namespace from its anti-affinity group."""
        namespace = namespace_named(ready_view(self._worker), namespace_of(request))
        await self._moving.set_policy(namespace.name, ANTI_AFFINITY_GROUP, None, self._deadline())
        return done()

    async def bundles(self, request: web.Request) -> web.Response:
        """Return the boundaries of the bundles of a namespace."""
        view = ready_view(self._worker)
        return json_answer(_boundaries(view, namespace_named(view, namespace_of(request)).name))

    async def create(self, request: web.Request) -> web.Response:
        """Create a namespace; the leader gives its bundles to brokers."""
        namespace = namespace_of(request)
        body = await body_of(request, NAMESPACE_BODY)
        body = body or NamespaceBody()
        settings = settings_in(ready_view(self._worker), self._worker.config.base_settings)
        cuts = (body.bundles or Bundles()).cuts(namespace, default=settings.balancing.namespace_bundles)
        await self._moving.create_namespace(namespace, cuts, body.policies, self._deadline())
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a namespace, once all its bundles have been let go of."""
        namespace = namespace_named(ready_view(self._worker), namespace_of(request))
        await self._moving.delete_namespace(namespace.name, self._deadline())
        return done()

    async def unload_all(self, request: web.Request) -> web.Response:
        """Move every bundle of a namespace away from its owner."""
        view = ready_view(self._worker)
        namespace = namespace_named(view, namespace_of(request))
        outcomes = await self._moving.unload_all(view.bundles_of(namespace.name), self._deadline())
        stuck = [outcome.document() for outcome in outcomes if outcome.owner in (None, outcome.source)]
        return _unloaded({"moved": len(outcomes) - len(stuck), "not_moved": len(stuck), "for_example": stuck[:_EXAMPLES_MAX]})

    async def cancel_moves(self, request: web.Request) -> web.Response:
        """Cancel all moves of a namespace that have not happened."""
        view = ready_view(self._worker)
        await self._moving.cancel_all(view.bundles_of(namespace_named(view, namespace_of(request)).name), self._deadline())
        return done()

    # --- bundles ---

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a transfer or a split that has not happened."""
        await self._moving.cancel(self._bundle(request).name, self._deadline())
        return done()

    async def unload(self, request: web.Request) -> web.Response:
        """Move a bundle away from its owner. `destinationBroker` chooses the next one; `force` overrides policies.

        204, as Pulsar answers; a header says what became of the bundle.
        """
        bundle = self._bundle(request)
        destination, force = parameter_of(request, "destinationBroker"), flag_of(request, "force")
        if destination is not None:
            outcome = await self._moving.transfer(bundle.name, check_broker_id(destination), self._deadline(), force=force)
            return _unloaded(outcome.document())
        if bundle.phase == "free":
            return done()
        return _unloaded((await self._moving.unload(bundle.name, self._deadline())).document())

    async def split(self, request: web.Request) -> web.Response:
        """Split a bundle. The body may hold positions; `splitAlgorithmName` names the algorithm."""
        bundle = self._bundle(request)
        algorithm = parameter_of(request, "splitAlgorithmName") or RANGE_EQUALLY_DIVIDE
        if len(algorithm) > TEXT_CHARACTERS_MAX or not algorithm.isprintable():
            raise InvalidRequest(what="the parameter splitAlgorithmName", problem="that is the name of no algorithm")
        positions = sorted(await body_of(request, POSITIONS_BODY) or ())
        if positions:
            check_cuts(bundle.low, bundle.high, positions)
        elif algorithm == SPECIFIED_POSITIONS_DIVIDE:
            raise InvalidBoundaries(subject=bundle.name, problem="this algorithm cuts at the positions in the body, and there are none")
        await self._moving.split(bundle.name, algorithm, positions or None, self._deadline())
        return done()

    async def merge(self, request: web.Request) -> web.Response:
        """Merge a bundle with its right neighbour, which must have the same owner."""
        await self._moving.merge(self._bundle(request).name, self._deadline())
        return done()

    def _bundle(self, request: web.Request) -> BundleEntry:
        return bundle_named(ready_view(self._worker), bundle_of(request))

    def _deadline(self) -> Deadline:
        return Deadline.after(timeout_ms=self._worker.config.admin_ms)


def _unloaded(outcome: Mapping[str, object]) -> web.Response:
    """Return 204, with the outcome in a header."""
    return web.Response(status=204, headers={UNLOAD_OUTCOME: json.dumps(outcome)})


def _tenant_of(request: web.Request) -> str:
    """Return the tenant that a path names. Raises `InvalidName`."""
    tenant: str = request.match_info["tenant"]
    try:
        check_namespace(f"{tenant}/namespace")
    except InvalidName as error:
        raise InvalidName(what="tenant", name=tenant[:_NAME_SHOWN_MAX], expected=f"the first part of {error.expected}") from None
    return tenant


def _namespaces_of(view: View, tenant: str) -> list[str]:
    return sorted(name for name in view.namespaces if name.startswith(f"{tenant}/"))


def _boundaries(view: View, namespace: str) -> dict[str, object]:
    """Return the bundles of a namespace as Pulsar's `BundlesData`."""
    bundles = view.bundles_of(namespace)
    return {"boundaries": [f"0x{point:08x}" for point in (*(bundle.low for bundle in bundles), HASH_MAX)], "numBundles": len(bundles)}
