"""Serve Pulsar's administration paths of namespaces and bundles, of tenants and of permissions in
namespaces, and the paths of rights in the cluster, which are ours.

`docs/reference/http.md` compares each path with Pulsar's. `brokers.operations` has `verbs` and
`moves`, the operations.

A tenant exists if it was created or has a namespace. `brokers.balancing.policies` defines how the
channel holds it, `brokers.balancing.grants` permissions and rights. Permissions and rights count
once brokers run with `authorization`; they can be granted before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from aiohttp import web

from equipoise.brokers.balancing.grants import parse_actions, permissions_in, rights_in
from equipoise.brokers.balancing.named import (
    bundle_named,
    namespace_named,
    namespaces_of,
    tenant_named,
    tenants_in,
)
from equipoise.brokers.balancing.namespace_policies import (
    ANTI_AFFINITY_GROUP,
    ON_CHANNEL_LOSS,
    OnChannelLoss,
    anti_affinity_group,
    on_channel_loss,
)
from equipoise.brokers.balancing.splitting.split_points import (
    ALGORITHMS,
    RANGE_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
)
from equipoise.brokers.balancing.topic_policies import pulsar_document
from equipoise.brokers.errors import cancelled, invalid_request
from equipoise.brokers.http.admin.operating import Admin, Call, fact, order, order_with
from equipoise.brokers.http.answers import done, error_answer, not_supported, text_answer
from equipoise.brokers.http.bodies import (
    ACTIONS_BODY,
    CLUSTERS_BODY,
    GROUP_BODY,
    NAMESPACE_BODY,
    POSITIONS_BODY,
    TENANT_BODY,
    Bundles,
    NamespaceBody,
    TenantBody,
    body_of,
    bundle_of,
    flag_of,
    namespace_of,
    parameter_of,
    required_body_of,
)
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.operations import moves, verbs
from equipoise.brokers.operations.checks import check_unused
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.rights import Action, Right
from equipoise.channel.core.entries import NamespaceEntry
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.ranges import HASH_MAX, check_cuts, check_tenant
from equipoise.channel.core.view import View

NAMESPACE_PATH: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
RANGE: Final = "{bundle:0x[0-9a-f]{8}_0x[0-9a-f]{8}}"
"""The range of a bundle as a part of a path where other words may stand, too."""

_BUNDLE: Final = f"{NAMESPACE_PATH}/{{bundle}}"

UNLOAD_OUTCOME: Final = "X-Unload-Outcome"
"""The header with the result of an unload, as JSON in ASCII. Pulsar's tools expect 204, which has
no body."""

# Clients read 8 KiB of headers, and a reason has up to 1,024 characters.
_EXAMPLES_MAX: Final = 3

# In place of the range of a bundle to split.
LARGEST: Final = "LARGEST"
HOT: Final = "HOT"


class NamespaceTopics(Protocol):
    """What a broker knows about the topics of a namespace."""

    async def in_use(self, namespace: str) -> Sequence[str]:
        """Return the topics of a namespace, sorted."""

    async def weights(self, namespace: str, by: str) -> Mapping[str, float]:
        """Return the number of topics (`LARGEST`) or the bytes per second (`HOT`) of bundles by
        name.
        """


def _policies(view: View, namespace: NamespaceEntry) -> dict[str, object]:
    policies = namespace.policies
    group, permissions = policies.get(ANTI_AFFINITY_GROUP), permissions_in(policies)
    return {
        "bundles": _boundaries(view, namespace.name),
        "replication_clusters": [view.cluster],
        "deleted": namespace.status == "deleting",
        ON_CHANNEL_LOSS: on_channel_loss(policies),
        **pulsar_document(policies, str(view.cluster)),
        **({"auth_policies": {"namespace_auth": permissions}} if permissions else {}),
        **({} if group is None else {"antiAffinityGroup": group}),
    }


def _boundaries(view: View, namespace: str) -> dict[str, object]:
    """Return the bundles of a namespace as Pulsar's `BundlesData`."""
    bundles = view.bundles_of(namespace)
    return {
        "boundaries": [
            f"0x{point:08x}" for point in (*(bundle.low for bundle in bundles), HASH_MAX)
        ],
        "numBundles": len(bundles),
    }


def _if_there(call: Call, answer: object) -> object:
    """Return an answer about a namespace that exists."""
    namespace_named(call.view, call.namespace)
    return answer


def _anti_affinity(call: Call) -> web.Response:
    group = call.entry.policies.get(ANTI_AFFINITY_GROUP)
    return done() if group is None else text_answer(str(group))


def _in_group(view: View, group: str) -> list[str]:
    return sorted(
        each.name
        for each in view.namespaces.values()
        if anti_affinity_group(each.policies) == group
    )


class Namespaces(Admin):
    """The paths of namespaces and bundles of one worker."""

    rows = (
        fact(
            "list_namespaces",
            "/admin/v2/namespaces/{tenant}",
            "List the namespaces of a tenant by full name, sorted; 404 for an unknown tenant.",
            lambda call: namespaces_of(
                call.view, tenant_named(call.view, check_tenant(call.named("tenant"))).name
            ),
        ),
        fact(
            "policies",
            NAMESPACE_PATH,
            "Return the policies of a namespace in Pulsar's form.",
            lambda call: _policies(call.view, call.entry),
        ),
        fact(
            "bundles",
            f"{NAMESPACE_PATH}/bundles",
            "Return the boundaries of the bundles of a namespace.",
            lambda call: _boundaries(call.view, call.entry.name),
        ),
        fact(
            "on_channel_loss",
            f"{NAMESPACE_PATH}/onChannelLoss",
            "Return what the owners of a namespace do while they have lost the channel: `fence` or"
            " `serve`.",
            lambda call: on_channel_loss(call.entry.policies),
        ),
        order_with(
            (OnChannelLoss, f"one of these, as JSON: {', '.join(OnChannelLoss)}"),
            "set_on_channel_loss",
            f"POST {NAMESPACE_PATH}/onChannelLoss",
            "Set `fence` or `serve`. It applies to open bundles as soon as their owner has read"
            " it.",
            lambda call, choice: verbs.set_namespace_policy(
                call.port, call.namespace, ON_CHANNEL_LOSS, choice.value
            ),
        ),
        order(
            "cancel_moves",
            f"DELETE {NAMESPACE_PATH}/unload",
            "Cancel all moves of a namespace that are not complete.",
            lambda call: moves.cancel_all(call.port, call.namespace),
        ),
        fact(
            "anti_affinity",
            f"{NAMESPACE_PATH}/antiAffinity",
            "Return the anti-affinity group of a namespace as text; 204 if it is in none.",
            _anti_affinity,
            text_answer,
            done,
        ),
        order(
            "delete_anti_affinity",
            f"DELETE {NAMESPACE_PATH}/antiAffinity",
            "Remove a namespace from its anti-affinity group.",
            lambda call: verbs.set_namespace_policy(
                call.port, call.namespace, ANTI_AFFINITY_GROUP, None
            ),
        ),
        *(
            fact(
                "of_anti_affinity_group",
                f"{path}/{{cluster}}/antiAffinity/{{group}}",
                "List the namespaces of an anti-affinity group.",
                lambda call: _in_group(call.view, call.named("group").lower()),
            )
            for path in ("/admin/namespaces", "/admin/v2/namespaces")
        ),
        fact(
            "clusters",
            f"{NAMESPACE_PATH}/replication",
            "Return the clusters of a namespace: this one.",
            lambda call: _if_there(call, [call.view.cluster]),
        ),
        fact(
            "allowed_clusters",
            f"{NAMESPACE_PATH}/allowedClusters",
            "Return the clusters that a namespace is restricted to: none, because there is one"
            " cluster.",
            lambda call: _if_there(call, []),
        ),
        order(
            "cancel",
            f"DELETE {_BUNDLE}/unload",
            "Cancel a transfer or a split that is not complete.",
            lambda call: moves.cancel(call.port, call.bundle),
        ),
        order(
            "merge",
            f"PUT {_BUNDLE}/merge",
            "Merge a bundle with its right neighbour, which must have the same owner.",
            lambda call: moves.merge(call.port, call.bundle),
        ),
    )

    def __init__(self, worker: Worker, topics: NamespaceTopics | None = None) -> None:
        """`topics` answers for topics, if this broker serves any."""
        super().__init__(worker)
        self._topics = topics

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            *super().routes(),
            web.put(NAMESPACE_PATH, self.create),
            web.delete(NAMESPACE_PATH, self.delete),
            web.put(f"{NAMESPACE_PATH}/unload", self.unload_all),
            web.post(f"{NAMESPACE_PATH}/antiAffinity", self.set_anti_affinity),
            web.post(f"{NAMESPACE_PATH}/replication", self.set_clusters),
            web.post(f"{NAMESPACE_PATH}/allowedClusters", self.set_clusters),
            web.put(f"{_BUNDLE}/unload", self.unload),
            web.put(f"{_BUNDLE}/split", self.split),
        )

    # --- namespaces ---

    async def set_anti_affinity(self, request: web.Request) -> web.Response:
        """Put a namespace into an anti-affinity group. It applies as bundles are placed.

        The body is the name, as JSON or as it is: Pulsar's tools send it without quotes.
        """
        try:
            text = (await request.read()).decode().strip()
        except UnicodeDecodeError as error:
            problem = f"it is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
            raise invalid_request(what="the body", problem=problem) from None
        group = (
            await required_body_of(request, GROUP_BODY, "the name of the group")
            if text[:1] in ("", '"')
            else text
        )
        return await self._done(
            verbs.set_namespace_policy(
                self._port(request), namespace_of(request), ANTI_AFFINITY_GROUP, group
            )
        )

    async def set_clusters(self, request: web.Request) -> web.Response:
        """Check that a namespace gets no other cluster than this one, and change nothing. Nothing
        is replicated.
        """
        view = ready_view(self._worker)
        namespace = namespace_named(view, namespace_of(request)).name
        check_clusters(
            view, namespace, await required_body_of(request, CLUSTERS_BODY, f'["{view.cluster}"]')
        )
        return done()

    async def create(self, request: web.Request) -> web.Response:
        """Create a namespace; the leader gives its bundles to brokers."""
        namespace = namespace_of(request)
        body = await body_of(request, NAMESPACE_BODY) or NamespaceBody()
        check_clusters(
            ready_view(self._worker),
            namespace,
            [*body.replication_clusters, *body.allowed_clusters],
        )
        boundaries = (body.bundles or Bundles()).cuts(namespace)
        return await self._done(
            verbs.create_namespace(
                self._port(request),
                namespace,
                boundaries,
                body.policies,
                base=self._worker.config.base_settings,
            )
        )

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a namespace, once all its bundles have been released. 409 if clients use its
        topics.

        With `force` also then: the clients are disconnected.
        """
        namespace = namespace_named(ready_view(self._worker), namespace_of(request))
        if (
            self._topics is not None
            and not flag_of(request, "force")
            and namespace.status != "deleting"
        ):
            check_unused(namespace.name, await self._topics.in_use(namespace.name))
        return await self._done(verbs.delete_namespace(self._port(request), namespace.name))

    async def unload_all(self, request: web.Request) -> web.Response:
        """Move every bundle of a namespace away from its owner. A header says how many moved.

        409 if a destination refused a bundle that is now at its source or has no owner.
        """
        for parameter in ("destinationBroker", "force"):
            if parameter in request.query:
                problem = "it is for the move of one bundle; name the bundle in the path"
                raise invalid_request(what=f"the parameter {parameter}", problem=problem)
        answer = await moves.unload_all(self._port(request), namespace_of(request))
        stuck = [outcome.document() for outcome in answer.stuck]
        moved = len(answer.outcomes) - len(stuck)
        summary = {"moved": moved, "not_moved": len(stuck), "for_example": stuck[:_EXAMPLES_MAX]}
        if not answer.failed:
            return _unloaded(summary)
        first = answer.failed[0]
        refusal = error_answer(
            request, cancelled(bundle=first.bundle, move="unload", problem=first.sentence())
        )
        refusal.headers[UNLOAD_OUTCOME] = json.dumps(summary)
        return refusal

    # --- bundles ---

    async def unload(self, request: web.Request) -> web.Response:
        """Move a bundle away from its owner. `destinationBroker` chooses the next one; `force`
        overrides policies.

        204, as Pulsar answers; a header says what became of the bundle.
        """
        name = bundle_of(request)
        destination, force = parameter_of(request, "destinationBroker"), flag_of(request, "force")
        if force and destination is None:
            raise invalid_request(
                what="the parameter force", problem="it is for a transfer; name a destinationBroker"
            )
        if destination is not None:
            answer = await moves.transfer(self._port(request), name, destination, force=force)
        elif bundle_named(ready_view(self._worker), name).phase == "free":
            return done()
        else:
            answer = await moves.unload(self._port(request), name)
        return _unloaded(answer.outcomes[0].document())

    async def split(self, request: web.Request) -> web.Response:
        """Split a bundle. The body may hold positions; `splitAlgorithmName` names the algorithm.

        In place of its range, `LARGEST` names the bundle with the most topics, and `HOT` the one
        with the highest throughput.
        """
        by = request.match_info["bundle"]
        name = (
            await self._heaviest(namespace_of(request), by, self._topics)
            if self._topics and by in {LARGEST, HOT}
            else bundle_of(request)
        )
        algorithm = parameter_of(request, "splitAlgorithmName") or RANGE_EQUALLY_DIVIDE
        positions = await body_of(request, POSITIONS_BODY) or None
        if positions and algorithm in ALGORITHMS and algorithm != SPECIFIED_POSITIONS_DIVIDE:
            bundle = bundle_named(ready_view(self._worker), name)
            check_cuts(bundle.low, bundle.high, sorted(positions))
            positions = None  # As in Pulsar, these algorithms ignore possible positions.
        return await self._done(moves.split(self._port(request), name, algorithm, positions))

    async def _heaviest(self, namespace: str, by: str, topics: NamespaceTopics) -> str:
        """Return the bundle with the greatest of the weights that `by` names."""
        namespace_named(ready_view(self._worker), namespace)
        weights = await topics.weights(namespace, by)
        heaviest = max(sorted(weights), key=lambda bundle: weights[bundle], default=None)
        if heaviest is None or not weights[heaviest]:
            raise CallerError(
                f"no bundle of namespace {namespace} has traffic to choose it by; name the range of"
                " a bundle"
            )
        return heaviest


def check_clusters(view: View, namespace: str, clusters: list[str]) -> None:
    """Raise `CallerError` if `clusters` has another cluster than this one."""
    other = next((name for name in clusters if name != view.cluster), None)
    if other is not None:
        raise CallerError(
            f"namespace {namespace} cannot be in cluster {other[:64]!r}: this server knows no"
            f" cluster but its own; name {view.cluster}, or no cluster"
        )


def _unloaded(outcome: Mapping[str, object]) -> web.Response:
    """Return 204, with the outcome in a header."""
    return web.Response(status=204, headers={UNLOAD_OUTCOME: json.dumps(outcome)})


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
