"""Convert entries of the view to JSON: full documents, and rows of the assignment."""

from __future__ import annotations

from typing import TypedDict

from equipoise.brokers.balancing.controls import why_frozen
from equipoise.brokers.balancing.named import patterns_of, server_of
from equipoise.brokers.balancing.policies import Maintenance, domain_of, domains_in
from equipoise.brokers.balancing.quarantine import why_quarantined
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import why_unserved


class AssignmentRow(TypedDict):
    """The broker that serves a bundle. `broker` is None while there is none, or during a handover;
    the next change has it.
    """

    bundle: str
    low: int
    high: int
    state: str
    broker: str | None
    addresses: dict[str, str]
    token: int


def assignment_row(view: View, bundle: BundleEntry) -> AssignmentRow:
    """Return the row of a bundle, as far as the view knows its broker."""
    server = server_of(view, bundle)
    return {
        "bundle": bundle.name,
        "low": bundle.low,
        "high": bundle.high,
        "state": bundle.state,
        "broker": None if server is None else server.broker,
        "addresses": {} if server is None else dict(server.joined.addresses),
        "token": bundle.token,
    }


def bundle_document(view: View, bundle: BundleEntry) -> dict[str, object]:
    """Return everything that the view holds of a bundle. `owner` and `source` are broker ids;
    separate fields have their incarnations.

    `quarantine` and `frozen` are the reasons of these controls, `unserved` is why no broker can get
    it.
    """
    return {
        "offset": view.offset,
        "bundle": bundle.name,
        "namespace": bundle.namespace,
        "low": bundle.low,
        "high": bundle.high,
        "state": bundle.state,
        "phase": bundle.phase,
        "owner": _id_of(view, bundle.owner),
        "owner_incarnation": bundle.owner,
        "source": _id_of(view, bundle.source),
        "source_incarnation": bundle.source,
        "token": bundle.token,
        "last": bundle.last,
        "algorithm": bundle.algorithm,
        "positions": bundle.positions,
        "quarantine": why_quarantined(view, bundle.name),
        "unserved": why_unserved(view, bundle.namespace) if bundle.phase == "free" else None,
        "frozen": why_frozen(view, bundle.namespace),
    }


def broker_document(
    view: View, broker: BrokerEntry, *, suspect: bool, maintenance: Maintenance | None
) -> dict[str, object]:
    """Return everything that the view holds of a broker, dead or alive. `suspect`: its renewal is
    late for this reader.
    """
    joined, leader = broker.joined, view.leader()
    held, domain = view.held_by(broker.incarnation), domain_of(broker, domains_in(view))
    return {
        "broker": broker.broker,
        "incarnation": broker.incarnation,
        "status": broker.status,
        "leader": leader is not None and leader.incarnation == broker.incarnation,
        "suspect": suspect,
        "maintenance": None if maintenance is None else maintenance.reason,
        "last": broker.last,
        "bundles": sum(
            1 for bundle in held if bundle.owner == broker.incarnation and bundle.phase == "owned"
        ),
        "addresses": dict(joined.addresses),
        "capacity": joined.capacity,
        "failure_domain": domain.name,
        "failure_domain_source": domain.source,
        "labels": dict(joined.labels),
        "namespaces": patterns_of(broker),
        "version": joined.version,
        "supported_level": joined.supported_level,
        "lease_ms": joined.lease_ms,
        "renew_ms": joined.renew_ms,
        "grace_ms": joined.grace_ms,
    }


def _id_of(view: View, incarnation: int | None) -> str | None:
    """Return the broker id of a live incarnation. All incarnations in a bundle are live."""
    broker = None if incarnation is None else view.live.get(incarnation)
    return None if broker is None else broker.broker
