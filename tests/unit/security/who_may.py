"""Who may do what: roles, requests, and which role may make which request. A test asks a broker for
each, and a page shows the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand
from tests.unit.security.signing import SETTINGS, token

T = BaseCommand.Type

SUPER: Final = "broker"
RIGHTS: Final[Mapping[str, Any]] = {**SETTINGS, "authorization": True, "super_roles": (SUPER,)}
"""The settings of a broker with rights. Its own role is a super role."""

NAMESPACE: Final = "public/default"
TOPIC: Final = f"non-persistent://{NAMESPACE}/orders"

ROLES: Final[Mapping[str, str]] = {
    "no credentials": "no credentials",
    "nobody": "no right",
    "producer": "produce in the namespace",
    "consumer": "consume in the namespace",
    "tenant": "administers the tenant",
    "viewer": "read",
    "operator": "operate",
    "admin": "admin",
    SUPER: "super role",
}
"""The roles, with the column of each."""

_READ: Final = frozenset({"viewer", "operator", "admin", SUPER})
_OPERATE: Final = frozenset({"operator", "admin", SUPER})
_ADMIN: Final = frozenset({"admin", SUPER})
_TENANT: Final = frozenset({"tenant"})
_CLIENTS: Final = frozenset({"producer", "consumer"})


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request over HTTP, or one command of Pulsar's protocol with its fields.

    A broker that takes it changes nothing: it asks for what exists already, or lacks a body.
    """

    row: str
    may: frozenset[str]
    http: tuple[str, str] | None = None
    command: BaseCommand.Type | None = None
    body: Mapping[str, Any] | None = None


_NAMESPACE_PATH: Final = f"/admin/v2/namespaces/{NAMESPACE}"
_TOPIC_PATH: Final = f"/admin/v2/non-persistent/{NAMESPACE}/orders"
_SCHEMA: Final = {"name": "x", "schema_data": b"", "type": 1}

ASKED: Final = (
    Asked(
        row="whether the broker lives and is ready", may=frozenset(ROLES), http=("GET", "/ready")
    ),
    Asked(
        row="routes of your services, which decide themselves",
        may=frozenset(ROLES) - {"no credentials"},
        http=("GET", "/a/service"),
    ),
    Asked(
        row="look up a topic",
        may=_READ | _TENANT | _CLIENTS,
        http=("GET", f"/lookup/v2/topic/non-persistent/{NAMESPACE}/orders"),
    ),
    Asked(
        row="look up a topic",
        may=_READ | _TENANT | _CLIENTS,
        command=T.LOOKUP,
        body={"topic": TOPIC},
    ),
    Asked(
        row="read the partitions of a topic",
        may=_READ | _TENANT | _CLIENTS,
        http=("GET", f"{_TOPIC_PATH}/partitions"),
    ),
    Asked(
        row="read the partitions of a topic",
        may=_READ | _TENANT | _CLIENTS,
        command=T.PARTITIONED_METADATA,
        body={"topic": TOPIC},
    ),
    Asked(
        row="list the topics of a namespace",
        may=_READ | _TENANT | _CLIENTS,
        http=("GET", f"{_NAMESPACE_PATH}/topics"),
    ),
    Asked(
        row="list the topics of a namespace",
        may=_READ | _TENANT | _CLIENTS,
        command=T.GET_TOPICS_OF_NAMESPACE,
        body={"namespace": NAMESPACE},
    ),
    Asked(
        row="read schemas",
        may=_READ | _TENANT | _CLIENTS,
        command=T.GET_SCHEMA,
        body={"topic": TOPIC},
    ),
    Asked(
        row="produce",
        may=_ADMIN | _TENANT | {"producer"},
        command=T.PRODUCER,
        body={"topic": TOPIC, "producer_id": 1},
    ),
    Asked(
        row="produce",
        may=_ADMIN | _TENANT | {"producer"},
        command=T.GET_OR_CREATE_SCHEMA,
        body={"topic": TOPIC, "schema": _SCHEMA},
    ),
    Asked(
        row="consume",
        may=_ADMIN | _TENANT | {"consumer"},
        command=T.SUBSCRIBE,
        body={"topic": TOPIC, "subscription": "s", "subType": 1, "consumer_id": 1},
    ),
    Asked(
        row="delete a subscription",
        may=_ADMIN | _TENANT | {"consumer"},
        http=("DELETE", f"{_TOPIC_PATH}/subscription/none"),
    ),
    Asked(
        row="create and delete topics",
        may=_ADMIN | _TENANT,
        http=("PUT", f"{_TOPIC_PATH}/partitions"),
    ),
    Asked(
        row="unload a topic",
        may=_OPERATE | _TENANT,
        http=("PUT", "/admin/v2/non-persistent/public/default/none/unload"),
    ),
    Asked(
        row="read the policies of a namespace", may=_READ | _TENANT, http=("GET", _NAMESPACE_PATH)
    ),
    Asked(
        row="create and delete namespaces of the tenant, set their policies",
        may=_ADMIN | _TENANT,
        http=("PUT", _NAMESPACE_PATH),
    ),
    Asked(
        row="create and delete namespaces of the tenant, set their policies",
        may=_ADMIN | _TENANT,
        http=("POST", f"{_NAMESPACE_PATH}/onChannelLoss"),
    ),
    Asked(
        row="grant produce and consume in the namespace",
        may=_ADMIN | _TENANT,
        http=("POST", f"{_NAMESPACE_PATH}/permissions/somebody"),
    ),
    Asked(
        row="the same in another tenant",
        may=_ADMIN,
        http=("POST", "/admin/v2/namespaces/other/default/permissions/somebody"),
    ),
    Asked(
        row="read brokers, settings, metrics, other tenants", may=_READ, http=("GET", "/metrics")
    ),
    Asked(
        row="read brokers, settings, metrics, other tenants", may=_READ, http=("GET", "/v1/brokers")
    ),
    Asked(
        row="read brokers, settings, metrics, other tenants",
        may=_READ,
        http=("GET", "/admin/v2/grants"),
    ),
    Asked(
        row="read brokers, settings, metrics, other tenants",
        may=_READ,
        http=("GET", "/admin/v2/namespaces/other"),
    ),
    Asked(
        row="unload, transfer, split and merge bundles",
        may=_OPERATE,
        http=("PUT", f"{_NAMESPACE_PATH}/0x00000000_0x00000001/unload"),
    ),
    Asked(
        row="unload, transfer, split and merge bundles",
        may=_OPERATE,
        http=("PUT", f"{_NAMESPACE_PATH}/0x00000000_0x00000001/split"),
    ),
    Asked(
        row="unload, transfer, split and merge bundles",
        may=_OPERATE,
        http=("PUT", f"{_NAMESPACE_PATH}/0x00000000_0x00000001/merge"),
    ),
    Asked(
        row="unload, transfer, split and merge bundles", may=_OPERATE, http=("POST", "/v1/opened")
    ),
    Asked(row="drain a broker", may=_OPERATE, http=("POST", "/admin/v2/brokers/drain")),
    Asked(
        row="pause, freeze, maintain, release from quarantine",
        may=_OPERATE,
        http=("DELETE", "/admin/v2/controls/pause"),
    ),
    Asked(
        row="change settings, isolation policies, pins",
        may=_ADMIN,
        http=("PATCH", "/admin/v2/balancing"),
    ),
    Asked(
        row="change settings, isolation policies, pins",
        may=_ADMIN,
        http=("POST", "/admin/v2/policies/pin/x"),
    ),
    Asked(row="create and delete tenants", may=_ADMIN, http=("PUT", "/admin/v2/tenants/public")),
    Asked(
        row="grant rights in the cluster", may=_ADMIN, http=("POST", "/admin/v2/grants/somebody")
    ),
    Asked(
        row="fetch the state of a bundle",
        may=_ADMIN,
        http=("GET", "/v1/handover/public/default/0x00000000_0x00000001"),
    ),
    Asked(row="ask for an assurance", may=_ADMIN, http=("POST", "/v1/assurance")),
    # The last one: the broker joins again, and says so to everybody until it has.
    Asked(row="drain a broker", may=_OPERATE, http=("POST", "/admin/v2/brokers/undrain")),
)


def token_of(role: str) -> str | None:
    """Return the token of a role of the table."""
    return None if role == "no credentials" else token(role)
