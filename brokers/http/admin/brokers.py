"""Serve the paths about brokers, single bundles and handovers.

`docs/reference/http.md` compares each path with Pulsar's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.controls import maintenances_in
from equipoise.brokers.balancing.named import bundle_named
from equipoise.brokers.balancing.policies import ClusterPolicies, is_named, read_policies
from equipoise.brokers.http.admin.operating import Admin, fact, order
from equipoise.brokers.http.answers import done, json_answer, not_supported, text_answer
from equipoise.brokers.http.assignment import broker_document, bundle_document
from equipoise.brokers.http.bodies import (
    ASSURANCE_BODY,
    OPENED_BODY,
    bundle_of,
    integer_of,
    parameter_of,
    required_body_of,
)
from equipoise.brokers.operations.verbs import drain, undrain
from equipoise.brokers.runtime.assuring import ASSURANCE_PATH
from equipoise.brokers.runtime.router import OPENED_PATH
from equipoise.brokers.runtime.service import http_address, pulsar_address
from equipoise.brokers.runtime.state_stream import STATE_TYPE
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.channel.core.view import View
from equipoise.channel.system.failures import error_text
from equipoise.shedder.loads import BundleLoad, Messaging, Use

_logger: Final = logging.getLogger(__name__)

# The fields of a load report that are left out without TLS, by the protocol that the broker
# advertises.
_TLS_ADDRESSES: Final = {"webServiceUrlTls": "https", "pulsarServiceUrlTls": "pulsar+ssl"}

_BYTES: Final = "application/octet-stream"

_STORES: Final = ("metadataStoreUrl", "configurationMetadataStoreUrl")
_NO_STORES: Final = dict.fromkeys(
    ("ledgersRootPath", "bookkeeperMetadataServiceUri", "stateStorageServiceUrl")
)

_CLOSING: Final = frozenset({"handing_over", "unloading"})


class Brokers(Admin):
    """The paths about brokers of one worker."""

    rows = (
        fact(
            "active",
            "/admin/v2/brokers",
            "List the ids of all live brokers, sorted. Draining brokers are alive.",
            lambda call: _active(call.view),
        ),
        fact(
            "active_of_cluster",
            "/admin/v2/brokers/{cluster}",
            "List the ids of all live brokers of this cluster; 404 for another cluster.",
            lambda call: _active(call.view),
        ),
        fact(
            "leader",
            "/admin/v2/brokers/leaderBroker",
            "Return the leader: the oldest live broker that does not drain.",
            lambda call: _leader(call.view),
        ),
        fact(
            "load_report",
            "/admin/v2/broker-stats/load-report",
            "Return what this broker serves, what each bundle costs it now, and how much of its"
            " resources the broker uses.\n\nNames and units are those of Pulsar's LocalBrokerData:"
            " CPU in percent of a core, memory in MiB, network in Kbit/s.",
            lambda call: _load_report(call.worker, call.view),
        ),
        fact(
            "version",
            "/admin/v2/brokers/version",
            "Return the version of this broker, as text.",
            lambda call: text_answer(call.worker.profile.version),
            text_answer,
        ),
        fact(
            "internal_configuration",
            "/admin/v2/brokers/internal-configuration",
            "Return where the state of the cluster is, as Pulsar's `InternalConfigurationData`: on"
            " the log, and nowhere else.",
            lambda call: {**dict.fromkeys(_STORES, call.worker.log_name), **_NO_STORES},
        ),
        fact(
            "owned",
            "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",
            "Return the bundles that a live broker serves, each as Pulsar's"
            " `NamespaceOwnershipStatus`.",
            lambda call: _owned(call.view, call.named("broker")),
        ),
        order(
            "drain",
            "POST /admin/v2/brokers/drain",
            "Drain this broker: it takes no new bundles and moves all bundles away. Answered once"
            " the channel shows that it drains.",
            lambda call: drain(call.port, call.worker.broker_id, wait=False),
        ),
        order(
            "undrain",
            "POST /admin/v2/brokers/undrain",
            "End the drain of this broker: once all bundles are away, it joins again and takes"
            " bundles. Answered at once.",
            lambda call: undrain(call.port, call.worker.broker_id, wait=False),
        ),
        fact(
            "entries",
            "/v1/brokers",
            "Return all that the view holds of every broker, dead or alive, by id.",
            lambda call: _entries(call.worker, call.view),
        ),
        fact(
            "bundle",
            "/v1/bundle/{tenant}/{namespace}/{bundle}",
            "Return all that the view holds of one bundle.",
            lambda call: bundle_document(call.view, bundle_named(call.view, call.bundle)),
        ),
    )

    def __init__(self, worker: Worker, end: Callable[[], None] | None = None) -> None:
        """`end` ends the process of the broker as SIGTERM does; None if the process belongs to
        another program.
        """
        super().__init__(worker)
        self._end = end

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (*super().routes(), web.post("/admin/v2/brokers/shutdown", self.shutdown))

    async def shutdown(self, request: web.Request) -> web.Response:
        """End the process of this broker as SIGTERM does: it drains first. Answered before. 405
        inside another program.
        """
        if self._end is None:
            why = (
                "this broker runs inside another program and cannot end it; end that program, or"
                " drain the broker"
            )
            return not_supported(request, why)
        self._end()
        return done()


class Handovers:
    """The paths of what brokers ask each other: open bundles, state that moves, and assurances.
    They answer from the service or the agent, and need no log.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.post(OPENED_PATH, self.opened),
            web.post(ASSURANCE_PATH, self.assurance),
            web.get("/v1/handover/{tenant}/{namespace}/{bundle}", self.handover),
        )

    async def opened(self, request: web.Request) -> web.Response:
        """Return which bundles this broker has opened, once it has, or does not own the others, or
        at the end of the time.
        """
        body = await required_body_of(
            request, OPENED_BODY, 'JSON as {"bundles": {"NAME": TOKEN}, "timeout_ms": 1000}'
        )
        found = await self._worker.router.opened_here(body.bundles, timeout_ms=body.timeout_ms)
        return json_answer({"open": sorted(found.bundles), "offset": found.offset})

    async def assurance(self, request: web.Request) -> web.Response:
        """Return whether this broker assures another that it may serve past its lease (section 4 of
        docs/protocol.md).
        """
        body = await required_body_of(
            request,
            ASSURANCE_BODY,
            'JSON as {"cluster": "NAME", "asker": 1, "asked": 2, "number": 3}',
        )
        assured = await self._worker.assures(
            cluster=body.cluster, asker=body.asker, asked=body.asked
        )
        return json_answer(
            {
                "assured": assured,
                "cluster": self._worker.config.cluster,
                "asker": body.asker,
                "by": body.asked,
                "number": body.number,
            }
        )

    async def handover(self, request: web.Request) -> web.StreamResponse:
        """Stream the state that the service still holds of a bundle that was closed here, for the
        next owner; 204 if there is none.

        With `digest`: the handover that was too large for its record. With `offset`: the state from
        there on, then its checksum.
        """
        bundle, digest = bundle_of(request), parameter_of(request, "digest")
        offset = (
            None
            if "offset" not in request.query
            else integer_of(request, "offset", default=0, at_most=INTEGER_MAX)
        )
        pieces = await self._worker.fetch_released(bundle, digest, offset=offset)
        if pieces is None:
            return done()
        async with aclosing(pieces):
            first = await anext(pieces, b"")  # An error before it has a status.
            answer = web.StreamResponse()
            answer.content_type = _BYTES if offset is None else STATE_TYPE
            await answer.prepare(request)
            try:
                await answer.write(first)
                async for piece in pieces:
                    await answer.write(piece)
            except Exception as error:  # noqa: BLE001 - any error of the service or the connection
                # The status is sent. Only a broken connection shows that the state is not whole.
                _logger.warning(
                    "state of a bundle not sent: %s", error_text(error), extra={"bundle": bundle}
                )
                if request.transport is not None:
                    request.transport.abort()
        return answer


def _active(view: View) -> list[str]:
    return sorted(broker.broker for broker in view.live_brokers())


def _leader(view: View) -> dict[str, str]:
    leader = view.leader()
    assert leader is not None, "a broker that is ready is alive itself"
    return {"brokerId": leader.broker, "serviceUrl": http_address(leader.joined.addresses) or ""}


def _load_report(worker: Worker, view: View) -> dict[str, object]:
    loads, resources = worker.loads.latest().loads, worker.loads.resources
    entry, bundles = worker.agent.entry, list(worker.open_bundles)
    addresses = {} if entry is None else entry.joined.addresses
    return {
        "brokerId": worker.broker_id,
        "webServiceUrl": addresses.get("http", ""),
        "pulsarServiceUrl": addresses.get("pulsar", ""),
        **{field: addresses[name] for field, name in _TLS_ADDRESSES.items() if name in addresses},
        "brokerVersionString": "" if entry is None else entry.joined.version,
        "capacity": worker.profile.capacity,
        "cpuSeconds": asdict(worker.loads.fit.for_costs),
        "offset": view.offset,
        "numBundles": len(bundles),
        "bundles": bundles,
        "lastStats": {name: _load_document(loads.get(name, BundleLoad())) for name in bundles},
        "persistentTopicsEnabled": False,
        "nonPersistentTopicsEnabled": pulsar_address(addresses) is not None,
        "cpu": _use_document(resources.cpu),
        "memory": _use_document(resources.memory),
        "directMemory": _use_document(resources.direct_memory),
        "bandwidthIn": _use_document(resources.bandwidth_in),
        "bandwidthOut": _use_document(resources.bandwidth_out),
        **_total_document(
            [
                messaging
                for name in bundles
                if name in loads and (messaging := loads[name].messaging) is not None
            ]
        ),
    }


def _owned(view: View, name: str) -> dict[str, object]:
    broker = view.brokers.get(name)
    if broker is None or not broker.live:
        raise NotFound(f"no broker {name!r} is alive; see which are: equipoise brokers list")
    policies, incarnation = read_policies(view), broker.incarnation
    served = sorted(
        (bundle for bundle in view.held_by(incarnation) if bundle.server == incarnation),
        key=lambda bundle: bundle.name,
    )
    return {bundle.name: _ownership(policies, bundle, name) for bundle in served}


def _entries(worker: Worker, view: View) -> list[dict[str, object]]:
    now, is_readable = worker.clock.now(), worker.log_is_available
    brokers, maintenances = view.brokers, maintenances_in(view)
    return [
        broker_document(
            view,
            each,
            suspect=each.live and worker.agent.is_suspect(each, now, log_is_readable=is_readable),
            maintenance=maintenances.get(each.broker),
        )
        for each in (brokers[name] for name in sorted(brokers))
    ]


def _use_document(use: Use) -> dict[str, float]:
    return {"usage": use.used, "limit": use.limit}


def _total_document(bundles: Sequence[Messaging]) -> dict[str, float]:
    """Return the totals of a broker's bundles of topics, with the names of Pulsar's
    LocalBrokerData.
    """
    return {
        "msgRateIn": sum(each.messages_in_per_second for each in bundles),
        "msgThroughputIn": sum(each.bytes_in_per_second for each in bundles),
        "msgRateOut": sum(each.messages_out_per_second for each in bundles),
        "msgThroughputOut": sum(each.bytes_out_per_second for each in bundles),
        "numConsumers": sum(each.consumers for each in bundles),
        "numProducers": sum(each.producers for each in bundles),
        "numTopics": sum(each.topics for each in bundles),
    }


def _ownership(policies: ClusterPolicies, bundle: BundleEntry, broker: str) -> dict[str, object]:
    """Return what the first isolation policy of a bundle's namespace calls the broker that serves
    it.
    """
    isolation = next(iter(policies.about(bundle.namespace).isolations), None)
    kinds = (
        {}
        if isolation is None
        else {"primary": isolation.primary, "secondary": isolation.secondary}
    )
    assignment = next(
        (kind for kind, patterns in kinds.items() if is_named(patterns, broker)), "shared"
    )
    return {
        "broker_assignment": assignment,
        "is_controlled": isolation is not None,
        "is_active": bundle.phase not in _CLOSING,
    }


def _load_document(load: BundleLoad) -> dict[str, float]:
    """Return the load of a bundle. For a bundle of topics, add the fields of Pulsar's
    NamespaceBundleStats.
    """
    document = {
        "calls_per_second": load.calls_per_second,
        "bytes_per_second": load.bytes_per_second,
        "cpu_seconds_per_second": load.cpu_seconds_per_second,
        "wall_seconds_per_second": load.wall_seconds_per_second,
        "sessions": load.sessions,
        "memory_bytes": load.memory_bytes,
    }
    messaging = load.messaging
    if messaging is None:
        return document
    return document | {
        "msgRateIn": messaging.messages_in_per_second,
        "msgThroughputIn": messaging.bytes_in_per_second,
        "msgRateOut": messaging.messages_out_per_second,
        "msgThroughputOut": messaging.bytes_out_per_second,
        "consumerCount": messaging.consumers,
        "producerCount": messaging.producers,
        "topics": messaging.topics,
    }
