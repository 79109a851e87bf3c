"""Describe brokers, namespaces, bundles and views as rows, with the same names in tables and JSON.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from equipoise.brokers.balancing.controls import maintenances_in, why_frozen
from equipoise.brokers.balancing.destinations import Destinations
from equipoise.brokers.balancing.namespace_policies import on_channel_loss
from equipoise.brokers.balancing.policies import (
    DOMAIN_MAINTENANCE,
    FAILURE_DOMAIN,
    FREEZE,
    ISOLATION,
    MAINTENANCE,
    MIN_LIMIT_DEFAULT,
    PAUSE,
    QUARANTINE,
    USAGE_THRESHOLD_DEFAULT,
    Control,
    Maintenance,
    domain_of,
    domains_in,
    is_maintenance,
    items_of,
    parse_policy,
)
from equipoise.brokers.balancing.quarantine import why_quarantined
from equipoise.brokers.cli.moments import local_time
from equipoise.brokers.cli.output import Row
from equipoise.brokers.errors import InvalidPolicy
from equipoise.brokers.runtime.service import http_address
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.view import View

BROKER_COLUMNS: Final = (
    "broker",
    "status",
    "leader",
    "incarnation",
    "bundles",
    "capacity",
    "http",
    "lease_ms",
)
NAMESPACE_COLUMNS: Final = (
    "namespace",
    "status",
    "bundles",
    "owned",
    "moving",
    "free",
    "on_channel_loss",
)
BUNDLE_COLUMNS: Final = ("bundle", "state", "owner", "source", "token", "last")
QUARANTINE_COLUMNS: Final = ("bundle", "reason", "until", "evidence", "state", "last")
POLICY_COLUMNS: Final = ("policy", "namespaces", "brokers", "problem")
MAINTENANCE_COLUMNS: Final = ("id", "of", "reason", "until", "bundles")
DESTINATION_COLUMNS: Final = ("broker", "may_have_it", "owner", "why_not")


def broker_row(view: View, broker: BrokerEntry, maintenances: Mapping[str, Maintenance]) -> Row:
    """Describe a broker: what it joined with, and how many bundles name it as owner or source.

    `maintenances` are those of `maintenances_in`.
    """
    joined, domain = broker.joined, domain_of(broker, domains_in(view))
    return {
        "broker": broker.broker,
        "status": broker.status,
        "leader": view.leader() is broker,
        "incarnation": broker.incarnation,
        "bundles": view.held_count(broker.incarnation),
        "maintenance": (
            maintenances[broker.broker].reason if broker.broker in maintenances else None
        ),
        "capacity": joined.capacity,
        "http": http_address(joined.addresses),
        "addresses": dict(joined.addresses),
        "failure_domain": domain.name,
        "failure_domain_source": domain.source,
        "labels": dict(joined.labels),
        "lease_ms": joined.lease_ms,
        "grace_ms": joined.grace_ms,
        "renew_ms": joined.renew_ms,
        "version": joined.version,
        "last": broker.last,
    }


def namespace_row(view: View, name: str) -> Row:
    """Describe a namespace: the number and state of its bundles."""
    namespace, bundles = view.namespaces[name], view.bundles_of(name)
    phases = Counter(bundle.phase for bundle in bundles)
    return {
        "namespace": name,
        "status": namespace.status,
        "bundles": len(bundles),
        "owned": phases["owned"],
        "moving": len(bundles) - phases["owned"] - phases["free"],
        "free": phases["free"],
        "on_channel_loss": on_channel_loss(namespace.policies).value,
        "frozen": why_frozen(view, name),
        "created": namespace.created,
        "last": namespace.last,
        "policies": dict(namespace.policies),
    }


def bundle_row(view: View, bundle: BundleEntry) -> Row:
    """Describe a bundle: its state, its brokers, and the one that serves it now, if any."""
    return {
        "bundle": bundle.name,
        "state": bundle.state,
        "owner": broker_id(view, bundle.owner),
        "source": broker_id(view, bundle.source),
        "serves": broker_id(view, bundle.server),
        "token": bundle.token,
        "last": bundle.last,
        "algorithm": bundle.algorithm,
        "quarantine": why_quarantined(view, bundle.name),
        "positions": (
            None
            if bundle.positions is None
            else [f"0x{position:08x}" for position in bundle.positions]
        ),
    }


def control_line(control: Control) -> str:
    """Describe a control in a sentence."""
    kind, _, subject = control.name.partition("/")
    state = {
        PAUSE: "balancing is paused",
        FREEZE: f"{subject} is frozen",
        MAINTENANCE: f"{subject} is in maintenance",
        DOMAIN_MAINTENANCE: f"the failure domain {subject} is in maintenance",
        QUARANTINE: f"{subject} is in quarantine",
    }[kind]
    return (
        f"{state}{f' until {local_time(control.until_ms)}' if control.until_ms else ''}:"
        f" {control.reason}"
    )


def control_rows(documents: Iterable[Mapping[str, object]]) -> list[Row]:
    """Return documents of controls, with their end as people read it."""
    return [
        {
            **each,
            "until": (
                local_time(until_ms) if isinstance(until_ms := each["until_ms"], int) else None
            ),
        }
        for each in documents
    ]


def policy_row(view: View, key: str) -> Row:
    """Describe a policy about placement. `problem` is set if its document is invalid.

    No broker may have the bundles of an invalid isolation policy or pin.
    """
    entry = view.policies[key]
    document = entry.document
    try:
        parse_policy(key, document)
        problem = None
    except InvalidPolicy as error:
        problem = error.problem
    row: dict[str, object] = {"policy": key}
    if key.startswith(f"{FAILURE_DOMAIN}/"):
        row["namespaces"] = []
        row["brokers"] = items_of(document, "brokers")
    elif is_maintenance(key):
        row["namespaces"] = []
        row["brokers"] = [key.partition("/")[2]] if key.startswith(f"{MAINTENANCE}/") else []
        row["reason"] = document.get("reason")
        row["until_ms"] = document.get("until_ms") or None
    elif key.startswith(f"{ISOLATION}/"):
        row["namespaces"] = items_of(document, "namespaces")
        row["brokers"] = items_of(document, "primary")
        row["secondary"] = items_of(document, "secondary")
        row["min_limit"] = document.get("min_limit", MIN_LIMIT_DEFAULT)
        row["usage_threshold"] = document.get("usage_threshold", USAGE_THRESHOLD_DEFAULT)
    else:
        row["namespaces"] = [document.get("namespace")]
        row["range"] = document.get("range")
        row["brokers"] = items_of(document, "brokers")
    return row | {"problem": problem, "last": entry.last}


def destination_rows(destinations: Destinations, bundle: BundleEntry) -> list[Row]:
    """Return for every known broker whether it may have a bundle, and why not. `rather not` is a
    preference, `no` a rule.
    """
    found, bound = destinations.of(bundle), destinations.bound(bundle)
    rows: list[Row] = []
    for broker in sorted(destinations.view.brokers):
        word = (
            "yes" if broker in found.allowed else "rather not" if broker in bound.allowed else "no"
        )
        owner = destinations.view.brokers[broker].incarnation == bundle.owner
        rows.append(
            {
                "broker": broker,
                "may_have_it": word,
                "owner": owner,
                "why_not": found.refused.get(broker),
            }
        )
    return rows


def view_document(view: View) -> Row:
    """Describe a whole view. The digest is hexadecimal, because some JSON readers cannot represent
    integers of 61 bits.
    """
    leader, maintenances = view.leader(), maintenances_in(view)
    return {
        "offset": view.offset,
        "cluster": view.cluster,
        "level": view.level,
        "leader": None if leader is None else leader.broker,
        "digest": f"0x{view.digest():016x}",
        "brokers": [
            broker_row(view, view.brokers[name], maintenances) for name in sorted(view.brokers)
        ],
        "namespaces": [namespace_row(view, name) for name in sorted(view.namespaces)],
        "bundles": [
            bundle_row(view, bundle)
            for name in sorted(view.namespaces)
            for bundle in view.bundles_of(name)
        ],
        "policies": {name: dict(view.policies[name].document) for name in sorted(view.policies)},
    }


def broker_id(view: View, incarnation: int | None) -> str | None:
    """Return the id of the broker with this incarnation, or None. Bundles name only live
    incarnations.
    """
    return None if incarnation is None else view.live[incarnation].broker
