"""Serve Pulsar's administration paths of namespaces and bundles.

`docs/reference/http.md` compares each path with Pulsar's. `brokers.operations.verbs` defines the
operations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from aiohttp import web

from equipoise.brokers.balancing.grants import permissions_in
from equipoise.brokers.balancing.named import (
    bundle_named,
    namespace_named,
    namespaces_of,
    tenant_named,
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
from equipoise.brokers.errors import Cancelled, InvalidRequest
from equipoise.brokers.http.admin.operating import Admin
from equipoise.brokers.http.answers import done, error_answer, json_answer, text_answer
from equipoise.brokers.http.bodies import (
    CLUSTERS_BODY,
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
from equipoise.brokers.http.readiness import ready_view, view_of_cluster
from equipoise.brokers.operations import moves, verbs
from equipoise.brokers.operations.checks import check_unused
from equipoise.brokers.runtime.worker import Worker
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


class Namespaces(Admin):
    """The paths of namespaces and bundles of one worker."""

    def __init__(self, worker: Worker, topics: NamespaceTopics | None = None) -> None:
        """`topics` answers for topics, if this broker serves any."""
        super().__init__(worker)
        self._topics = topics

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get("/admin/v2/namespaces/{tenant}", self.list_namespaces),
            web.get(NAMESPACE_PATH, self.policies),
            web.put(NAMESPACE_PATH, self.create),
            web.delete(NAMESPACE_PATH, self.delete),
            web.get(f"{NAMESPACE_PATH}/bundles", self.bundles),
            web.put(f"{NAMESPACE_PATH}/unload", self.unload_all),
            web.get(f"{NAMESPACE_PATH}/onChannelLoss", self.on_channel_loss),
            web.post(f"{NAMESPACE_PATH}/onChannelLoss", self.set_on_channel_loss),
            web.delete(f"{NAMESPACE_PATH}/unload", self.cancel_moves),
            web.get(f"{NAMESPACE_PATH}/antiAffinity", self.anti_affinity),
            web.post(f"{NAMESPACE_PATH}/antiAffinity", self.set_anti_affinity),
            web.delete(f"{NAMESPACE_PATH}/antiAffinity", self.delete_anti_affinity),
            web.get(
                "/admin/namespaces/{cluster}/antiAffinity/{group}", self.of_anti_affinity_group
            ),
            web.get(
                "/admin/v2/namespaces/{cluster}/antiAffinity/{group}", self.of_anti_affinity_group
            ),
            web.get(f"{NAMESPACE_PATH}/replication", self.clusters),
            web.post(f"{NAMESPACE_PATH}/replication", self.set_clusters),
            web.get(f"{NAMESPACE_PATH}/allowedClusters", self.allowed_clusters),
            web.post(f"{NAMESPACE_PATH}/allowedClusters", self.set_clusters),
            web.put(f"{_BUNDLE}/unload", self.unload),
            web.delete(f"{_BUNDLE}/unload", self.cancel),
            web.put(f"{_BUNDLE}/split", self.split),
            web.put(f"{_BUNDLE}/merge", self.merge),
        )

    # --- namespaces ---

    async def list_namespaces(self, request: web.Request) -> web.Response:
        """List the namespaces of a tenant by full name, sorted; 404 for an unknown tenant."""
        view, tenant = ready_view(self._worker), check_tenant(request.match_info["tenant"])
        return json_answer(namespaces_of(view, tenant_named(view, tenant).name))

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
        document |= pulsar_document(namespace.policies, str(view.cluster))
        permissions = permissions_in(namespace.policies)
        document |= {"auth_policies": {"namespace_auth": permissions}} if permissions else {}
        return json_answer(document | ({} if group is None else {"antiAffinityGroup": group}))

    async def on_channel_loss(self, request: web.Request) -> web.Response:
        """Return what the owners of a namespace do while they have lost the channel: `fence` or
        `serve`.
        """
        return json_answer(
            on_channel_loss(
                namespace_named(ready_view(self._worker), namespace_of(request)).policies
            )
        )

    async def set_on_channel_loss(self, request: web.Request) -> web.Response:
        """Set `fence` or `serve`. It applies to open bundles as soon as their owner has read it."""
        choice = await required_body_of(
            request, ON_CHANNEL_LOSS_BODY, f"one of these, as JSON: {', '.join(OnChannelLoss)}"
        )
        return await self._done(
            verbs.set_namespace_policy(
                self._port(request), namespace_of(request), ON_CHANNEL_LOSS, choice.value
            )
        )

    async def anti_affinity(self, request: web.Request) -> web.Response:
        """Return the anti-affinity group of a namespace as text; 204 if it is in none."""
        group = namespace_named(ready_view(self._worker), namespace_of(request)).policies.get(
            ANTI_AFFINITY_GROUP
        )
        return done() if group is None else text_answer(str(group))

    async def set_anti_affinity(self, request: web.Request) -> web.Response:
        """Put a namespace into an anti-affinity group. It applies as bundles are placed.

        The body is the name, as JSON or as it is: Pulsar's tools send it without quotes.
        """
        try:
            text = (await request.read()).decode().strip()
        except UnicodeDecodeError as error:
            problem = f"it is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
            raise InvalidRequest(what="the body", problem=problem) from None
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

    async def of_anti_affinity_group(self, request: web.Request) -> web.Response:
        """List the namespaces of an anti-affinity group."""
        view, group = view_of_cluster(self._worker, request), request.match_info["group"].lower()
        return json_answer(
            sorted(
                each.name
                for each in view.namespaces.values()
                if anti_affinity_group(each.policies) == group
            )
        )

    async def delete_anti_affinity(self, request: web.Request) -> web.Response:
        """Remove a namespace from its anti-affinity group."""
        return await self._done(
            verbs.set_namespace_policy(
                self._port(request), namespace_of(request), ANTI_AFFINITY_GROUP, None
            )
        )

    async def clusters(self, request: web.Request) -> web.Response:
        """Return the clusters of a namespace: this one."""
        view = ready_view(self._worker)
        namespace_named(view, namespace_of(request))
        return json_answer([view.cluster])

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

    async def allowed_clusters(self, request: web.Request) -> web.Response:
        """Return the clusters that a namespace is restricted to: none, because there is one
        cluster.
        """
        namespace_named(ready_view(self._worker), namespace_of(request))
        return json_answer([])

    async def bundles(self, request: web.Request) -> web.Response:
        """Return the boundaries of the bundles of a namespace."""
        view = ready_view(self._worker)
        return json_answer(_boundaries(view, namespace_named(view, namespace_of(request)).name))

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
                raise InvalidRequest(what=f"the parameter {parameter}", problem=problem)
        answer = await moves.unload_all(self._port(request), namespace_of(request))
        stuck = [outcome.document() for outcome in answer.stuck]
        moved = len(answer.outcomes) - len(stuck)
        summary = {"moved": moved, "not_moved": len(stuck), "for_example": stuck[:_EXAMPLES_MAX]}
        if not answer.failed:
            return _unloaded(summary)
        first = answer.failed[0]
        refusal = error_answer(
            request, Cancelled(bundle=first.bundle, move="unload", problem=first.sentence())
        )
        refusal.headers[UNLOAD_OUTCOME] = json.dumps(summary)
        return refusal

    async def cancel_moves(self, request: web.Request) -> web.Response:
        """Cancel all moves of a namespace that are not complete."""
        return await self._done(moves.cancel_all(self._port(request), namespace_of(request)))

    # --- bundles ---

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a transfer or a split that is not complete."""
        return await self._done(moves.cancel(self._port(request), bundle_of(request)))

    async def unload(self, request: web.Request) -> web.Response:
        """Move a bundle away from its owner. `destinationBroker` chooses the next one; `force`
        overrides policies.

        204, as Pulsar answers; a header says what became of the bundle.
        """
        name = bundle_of(request)
        destination, force = parameter_of(request, "destinationBroker"), flag_of(request, "force")
        if force and destination is None:
            raise InvalidRequest(
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

    async def _heaviest(self, name: str, by: str, topics: NamespaceTopics) -> str:
        namespace = namespace_named(ready_view(self._worker), name).name
        weights = await topics.weights(namespace, by)
        heaviest = max(sorted(weights), key=lambda bundle: weights[bundle], default=None)
        if heaviest is None or not weights[heaviest]:
            raise CallerError(
                f"no bundle of namespace {namespace} has traffic to choose it by; name the range of"
                " a bundle"
            )
        return heaviest

    async def merge(self, request: web.Request) -> web.Response:
        """Merge a bundle with its right neighbour, which must have the same owner."""
        return await self._done(moves.merge(self._port(request), bundle_of(request)))


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


def _boundaries(view: View, namespace: str) -> dict[str, object]:
    """Return the bundles of a namespace as Pulsar's `BundlesData`."""
    bundles = view.bundles_of(namespace)
    return {
        "boundaries": [
            f"0x{point:08x}" for point in (*(bundle.low for bundle in bundles), HASH_MAX)
        ],
        "numBundles": len(bundles),
    }
