"""Serve Pulsar's administration paths of clusters and their failure domains.

The only cluster is the one of this log: it begins with its first broker, and its addresses are
those of its brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from equipoise.brokers.balancing.named import policy_named
from equipoise.brokers.balancing.policies import FAILURE_DOMAIN, failure_domain_document, items_of
from equipoise.brokers.http.admin.cluster_policies import documents_of, key_of
from equipoise.brokers.http.admin.operating import Admin
from equipoise.brokers.http.answers import json_answer
from equipoise.brokers.http.bodies import FAILURE_DOMAIN_BODY, required_body_of
from equipoise.brokers.http.readiness import ready_view, view_of_cluster
from equipoise.brokers.operations.verbs import delete_cluster_policy, set_cluster_policy
from equipoise.channel.core.records import Document

_CLUSTERS: Final = "/admin/v2/clusters"
_CLUSTER: Final = f"{_CLUSTERS}/{{cluster}}"
_DOMAINS: Final = f"{_CLUSTER}/failureDomains"


# The fields of Pulsar's `ClusterData`, by the protocols that brokers advertise. Those of TLS are
# left out without TLS.
_ADDRESSES: Final = {
    "serviceUrl": "http",
    "serviceUrlTls": "https",
    "brokerServiceUrl": "pulsar",
    "brokerServiceUrlTls": "pulsar+ssl",
}
_ALWAYS: Final = frozenset({"serviceUrl", "brokerServiceUrl"})


class Clusters(Admin):
    """The paths of clusters and failure domains of one worker."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get(_CLUSTERS, self.clusters),
            web.get(_CLUSTER, self.cluster),
            web.get(_DOMAINS, self.domains),
            web.get(f"{_DOMAINS}/{{name}}", self.domain),
            web.post(f"{_DOMAINS}/{{name}}", self.set_domain),
            web.delete(f"{_DOMAINS}/{{name}}", self.delete_domain),
        )

    async def clusters(self, _request: web.Request) -> web.Response:
        """List the clusters: this one."""
        return json_answer([ready_view(self._worker).cluster])

    async def cluster(self, request: web.Request) -> web.Response:
        """Return the addresses of the cluster: those of its live brokers that do not drain, as a
        URL with several hosts.
        """
        view = view_of_cluster(self._worker, request)
        addresses = [
            broker.joined.addresses for broker in view.live_brokers() if broker.status == "up"
        ]
        urls = {
            field: _url_of(each.get(name, "") for each in addresses)
            for field, name in _ADDRESSES.items()
        }
        return json_answer({field: url for field, url in urls.items() if url or field in _ALWAYS})

    async def domains(self, request: web.Request) -> web.Response:
        """Return all failure domains by name."""
        view = view_of_cluster(self._worker, request)
        return json_answer(
            {
                name: _domain(document)
                for name, document in documents_of(view, FAILURE_DOMAIN).items()
            }
        )

    async def domain(self, request: web.Request) -> web.Response:
        """Return one failure domain."""
        view = view_of_cluster(self._worker, request)
        return json_answer(_domain(policy_named(view, key_of(request, FAILURE_DOMAIN)).document))

    async def set_domain(self, request: web.Request) -> web.Response:
        """Set the brokers of one failure domain; 409 if one of them is in another one. It applies
        as bundles are placed.
        """
        view_of_cluster(self._worker, request)
        body = await required_body_of(
            request, FAILURE_DOMAIN_BODY, "an object with brokers, a list of ids"
        )
        return await self._done(
            set_cluster_policy(
                self._port(request),
                key_of(request, FAILURE_DOMAIN),
                failure_domain_document(body.brokers or ()),
            )
        )

    async def delete_domain(self, request: web.Request) -> web.Response:
        """Delete one failure domain. Its brokers are then in the domains that they declare."""
        view_of_cluster(self._worker, request)
        return await self._done(
            delete_cluster_policy(self._port(request), key_of(request, FAILURE_DOMAIN))
        )


def _domain(document: Document) -> dict[str, object]:
    """Return a failure domain as Pulsar's `FailureDomain`."""
    return {"brokers": items_of(document, "brokers")}


def _url_of(addresses: Iterable[str]) -> str:
    """Return one URL with the hosts of all addresses, as Pulsar's clients read it. Only addresses
    of the first one's scheme count.
    """
    parts = [urlsplit(address) for address in sorted(set(addresses)) if address]
    if not parts:
        return ""
    scheme = parts[0].scheme
    return f"{scheme}://{','.join(part.netloc for part in parts if part.scheme == scheme)}"
