"""Describe brokers, namespaces, bundles and views as rows, with the same names in tables and JSON.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final, cast

import typer

from equipoise.brokers.balancing.controls import maintenances_in, why_frozen
from equipoise.brokers.balancing.destinations import Destinations
from equipoise.brokers.balancing.named import patterns_of
from equipoise.brokers.balancing.namespace_policies import on_channel_loss
from equipoise.brokers.balancing.planning import broker_id_of
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
from equipoise.brokers.cli.output import Row, cell, print_line
from equipoise.brokers.errors import InvalidPolicy
from equipoise.brokers.runtime.service import http_address
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import why_unserved
from equipoise.shedder.fit import Fit, fit, unexplained_cores
from equipoise.shedder.loads import Load

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
        "namespaces": patterns_of(broker),
        "lease_ms": joined.lease_ms,
        "grace_ms": joined.grace_ms,
        "renew_ms": joined.renew_ms,
        "version": joined.version,
        "last": broker.last,
    }


def load_row(broker: str, loads: Sequence[Load]) -> Row:
    """Describe what the load reports say of a broker, and of the CPU time of calls in the cluster.
    `cost` and `other_work` are in percent of a core and of the broker, the latter None if unknown,
    `memory` in percent of its limit. `declared` is what services declare, by namespace.
    `unexplained_cpu` is the CPU use of the last hours beyond what `cpu_us` explains, in percent of
    a core: far from 0, its reports are wrong, or it does other work.
    """
    found = fit(load.cpu_sums for load in loads)
    load = next((load for load in loads if load.broker == broker), None)
    costs = asdict(found.for_costs)
    return {
        "cost": None if load is None else round(100 * load.cost, 3),
        "other_work": (
            None if load is None or load.other_work is None else round(100 * load.other_work, 1)
        ),
        "cpu_us": {name: float(f"{1e6 * seconds:.3g}") for name, seconds in costs.items()},
        "known_costs": [name for name in costs if name not in found.unknown],
        **_limits_row(load or Load(broker=broker, at_ms=0), found),
    }


def _limits_row(load: Load, found: Fit) -> Row:
    beyond = unexplained_cores(load.cpu_sums, found)
    return {
        "memory": round(load.resources.memory.percent, 1),
        "declared": {
            namespace: f"{each.amount:.4g} {each.unit}" for namespace, each in load.declared.items()
        },
        "capacities": dict(load.capacities),
        "load_problem": load.problem,
        "cpu_problem": load.cpu_problem,
        "unexplained_cpu": None if beyond is None else round(100 * beyond, 1),
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
        "unserved": why_unserved(view, name),
        "created": namespace.created,
        "last": namespace.last,
        "policies": dict(namespace.policies),
    }


def bundle_row(view: View, bundle: BundleEntry) -> Row:
    """Describe a bundle: its state, its brokers, and the one that serves it now, if any."""
    return {
        "bundle": bundle.name,
        "state": bundle.state,
        "owner": broker_id_of(view, bundle.owner),
        "source": broker_id_of(view, bundle.source),
        "serves": broker_id_of(view, bundle.server),
        "token": bundle.token,
        "last": bundle.last,
        "algorithm": bundle.algorithm,
        "quarantine": why_quarantined(view, bundle.name),
        "unserved": why_unserved(view, bundle.namespace) if bundle.phase == "free" else None,
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


_KEYS: Final = {"brokers": "broker", "namespaces": "namespace", "bundles": "bundle"}
"""Each list of a view document, and the field that identifies its rows."""

_THINGS: Final = {**_KEYS, "policies": "policy"}

_WITH_EACH_RENEWAL: Final = {"brokers": "last"}
"""Fields that change with each renewal, which are ignored."""

_COLORS: Final = {"+": typer.colors.GREEN, "-": typer.colors.RED, "~": typer.colors.YELLOW}

_SHOWN_OF_NEW: Final = {
    "brokers": ("status", "incarnation"),
    "namespaces": ("status", "bundles"),
    "bundles": ("state", "owner", "source", "token", "version"),
    "policies": ("document",),
}


def difference_of(before: Row, after: Row) -> Row:
    """Return what was added, removed and changed between two view documents, by kind of key.

    Changed rows have only the changed fields, before and after.
    """
    return {
        "before": _head(before),
        "after": _head(after),
        **{
            kind: _difference(_rows(before, kind), _rows(after, kind), kind)
            for kind in _THINGS
            if kind in after
        },
    }


def print_difference(difference: Row, *, nothing: str) -> None:
    """Print one line per key that differs, by kind and name, and `nothing` if none does."""
    for line in _lines_of(difference):
        print_line(line, color=_COLORS.get(line[:1]))
    kinds = (cast("Mapping[str, list[Row]]", difference[kind]) for kind, _ in _kinds(difference))
    if not any(any(kind.values()) for kind in kinds):
        print_line(nothing)


def _lines_of(difference: Row) -> Iterator[str]:
    before, after = cast("Row", difference["before"]), cast("Row", difference["after"])
    for name in before:
        yield f"{name}: {_moved(before[name], after[name])}"
    for kind, thing in _kinds(difference):
        groups = cast("Mapping[str, list[Row]]", difference[kind])
        lines = [
            *(
                (row[thing], f"- {thing} {row[thing]}{_fields(row, kind)}")
                for row in groups["removed"]
            ),
            *(
                (row[thing], f"+ {thing} {row[thing]}{_fields(row, kind)}")
                for row in groups["added"]
            ),
            *(
                (row[thing], f"~ {thing} {row[thing]}: {_changes(row)}")
                for row in groups["changed"]
            ),
        ]
        yield from (line for _, line in sorted(lines, key=lambda line: str(line[0])))


def _kinds(difference: Row) -> list[tuple[str, str]]:
    return [(kind, thing) for kind, thing in _THINGS.items() if kind in difference]


def _head(document: Row) -> Row:
    return {
        name: document[name] for name in ("offset", "level", "leader", "digest") if name in document
    }


def _rows(document: Row, kind: str) -> dict[str, Row]:
    if kind == "policies":
        policies = cast("Mapping[str, object]", document[kind])
        return {name: {"policy": name, "document": policy} for name, policy in policies.items()}
    return {str(row[_KEYS[kind]]): row for row in cast("list[Row]", document[kind])}


def _difference(before: Mapping[str, Row], after: Mapping[str, Row], kind: str) -> Row:
    changed = []
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        fields = [
            field
            for field in now
            if was[field] != now[field] and field != _WITH_EACH_RENEWAL.get(kind)
        ]
        if fields:
            changed.append(
                {
                    _THINGS[kind]: name,
                    "before": {f: was[f] for f in fields},
                    "after": {f: now[f] for f in fields},
                }
            )
    return {
        "added": [after[name] for name in sorted(after.keys() - before.keys())],
        "removed": [before[name] for name in sorted(before.keys() - after.keys())],
        "changed": changed,
    }


def _fields(row: Row, kind: str) -> str:
    fields = [f"{name} {cell(row[name])}" for name in _SHOWN_OF_NEW[kind] if name in row]
    return f": {', '.join(fields)}" if fields else ""


def _changes(row: Row) -> str:
    before, after = cast("Row", row["before"]), cast("Row", row["after"])
    return ", ".join(
        f"{name.replace('_', ' ')} {_moved(before[name], after[name])}" for name in after
    )


def _moved(before: object, after: object) -> str:
    return cell(after) if before == after else f"{cell(before)} -> {cell(after)}"
