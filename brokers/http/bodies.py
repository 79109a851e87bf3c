"""Parse and check bodies, parameters and names of HTTP requests. Raise `CallerError` or
`InvalidName` for invalid input.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from equipoise.brokers.balancing.namespace_policies import (
    ON_CHANNEL_LOSS,
    OnChannelLoss,
    check_new_bundles,
)
from equipoise.brokers.balancing.policies import (
    MIN_LIMIT_DEFAULT,
    USAGE_THRESHOLD_DEFAULT,
    isolation_document,
    pin_document,
)
from equipoise.brokers.balancing.settings.setting_values import format_value
from equipoise.brokers.balancing.settings.settings_records import Changes
from equipoise.brokers.balancing.topic_policies import PulsarModel
from equipoise.brokers.errors import invalid_request
from equipoise.brokers.runtime.router import OPENED_ASKED_MAX, OPENED_MS_MAX
from equipoise.channel.core.errors import invalid_boundaries
from equipoise.channel.core.ranges import (
    HASH_MAX,
    bundle_name,
    check_cuts,
    check_namespace,
    even_boundaries,
    parse_range,
)
from equipoise.channel.core.records import CUTS_MAX, DOCUMENT_ENTRIES_MAX, INTEGER_MAX, Document

BODY_BYTES_MAX: Final = 1 << 20
"""Limit of a body. The largest useful one names 4,097 boundaries of 13 bytes each: 52 KiB."""

_PROBLEMS_SHOWN_MAX: Final = 3
_FOR_MS_MAX: Final = 100 * 366 * 86_400_000  # Whoever wants more means no end.
# Pydantic's head of an error that a check of ours raised.
_OWN_ERROR: Final = "Value error, "
_match_boundary: Final = re.compile(r"0x[0-9a-fA-F]{1,8}").fullmatch

Value = TypeVar("Value")
Integer = Annotated[int, Strict()]
Texts = Annotated[list[str], Field(max_length=DOCUMENT_ENTRIES_MAX)]


class Bundles(PulsarModel):
    """The bundles of a new namespace: a number of equal ones, or their boundaries (`0x%08x`,
    including both ends).
    """

    model_config = ConfigDict(populate_by_name=True)

    boundaries: list[str] | None = None
    num_bundles: Integer | None = Field(default=None, alias="numBundles")

    def cuts(self, namespace: str) -> tuple[int, ...] | None:
        """Return the boundaries as hash points from 0 to `HASH_MAX`, or None without any. As in
        Pulsar they override a number.

        Raises `CallerError`.
        """
        if not self.boundaries:
            # Pulsar's clients send 0 if no number was given, and Pulsar then uses its default.
            # Pulsar does so for negative numbers, too. We refuse those, because they must mean
            # something else.
            return (
                even_boundaries(check_new_bundles(namespace, self.num_bundles))
                if self.num_bundles
                else None
            )
        check_new_bundles(namespace, len(self.boundaries) - 1)
        wrong = next((text for text in self.boundaries if not _match_boundary(text)), None)
        if wrong is not None:
            raise invalid_boundaries(
                subject=f"namespace {namespace}",
                problem=f"{wrong[:64]!r} is not a boundary such as 0x40000000",
            )
        cuts = tuple(int(text, 16) for text in self.boundaries)
        if cuts[0] != 0 or cuts[-1] != HASH_MAX:
            raise invalid_boundaries(
                subject=f"namespace {namespace}",
                problem="they must begin with 0x00000000 and end with 0xffffffff",
            )
        check_cuts(0, HASH_MAX, cuts[1:-1])
        return cuts


class NamespaceBody(PulsarModel):
    """The policies of a new namespace. Of Pulsar's policies only `bundles` has an effect; the
    others are ignored.

    Of clusters only this one is accepted. `on_channel_loss` is an addition of Equipoise.
    """

    bundles: Bundles | None = None
    replication_clusters: Texts = Field(default_factory=list)
    allowed_clusters: Texts = Field(default_factory=list)
    on_channel_loss: OnChannelLoss | None = None

    @property
    def policies(self) -> Document:
        """The policies of the namespace that this body sets."""
        return {} if self.on_channel_loss is None else {ON_CHANNEL_LOSS: self.on_channel_loss.value}


Given = Annotated[bool, Strict()] | Integer | float | str | list[str] | None


class BalancingBody(BaseModel):
    """Changes of balancing settings by name; null removes one."""

    model_config = ConfigDict(extra="forbid")

    changes: Annotated[dict[str, Given], Field(max_length=DOCUMENT_ENTRIES_MAX)]

    @property
    def settings(self) -> Changes:
        """The changes as the channel stores them: lists and numbers with a fraction become text."""
        lists = {
            name: frozenset(given) if isinstance(given, list) else given
            for name, given in self.changes.items()
        }
        return {
            name: None if given is None else format_value(given) for name, given in lists.items()
        }


class FailOverLimits(PulsarModel):
    """When secondary brokers take over. Pulsar sends these numbers as text, and so do answers."""

    min_limit: int = MIN_LIMIT_DEFAULT
    usage_threshold: int = USAGE_THRESHOLD_DEFAULT


class FailOver(PulsarModel):
    """Pulsar's `AutoFailoverPolicyData`, which has one type."""

    policy_type: Literal["min_available"] = "min_available"
    parameters: FailOverLimits = FailOverLimits()


class IsolationBody(PulsarModel):
    """Pulsar's `NamespaceIsolationData`. Other fields, such as the scope of unloading, are
    ignored.
    """

    namespaces: Texts
    primary: Texts
    secondary: Texts = Field(default_factory=list)
    auto_failover_policy: FailOver = FailOver()

    @property
    def document(self) -> Document:
        """The policy as the channel stores it."""
        limits = self.auto_failover_policy.parameters
        return isolation_document(
            namespaces=self.namespaces,
            primary=self.primary,
            secondary=self.secondary,
            min_limit=limits.min_limit,
            usage_threshold=limits.usage_threshold,
        )


class PinBody(BaseModel):
    """A pin: only `brokers` may own the bundles of `namespace`, or those that overlap `range`."""

    model_config = ConfigDict(extra="forbid")

    namespace: str
    brokers: Texts
    range: str | None = None

    @property
    def document(self) -> Document:
        """The pin as the channel stores it."""
        return pin_document(namespace=self.namespace, brokers=self.brokers, range_=self.range)


class ControlBody(BaseModel):
    """Why a control is set, and for how long from now (milliseconds)."""

    model_config = ConfigDict(extra="forbid")

    reason: str
    for_ms: Annotated[Integer, Field(ge=1, le=_FOR_MS_MAX)] | None = None


class OpenedBody(BaseModel):
    """Bundles with their tokens. The broker answers when it has opened them, or after a time."""

    model_config = ConfigDict(extra="forbid")

    bundles: Annotated[
        dict[str, Annotated[Integer, Field(ge=0, le=INTEGER_MAX)]],
        Field(max_length=OPENED_ASKED_MAX),
    ]
    timeout_ms: Annotated[Integer, Field(ge=0, le=OPENED_MS_MAX)]


class AssuranceBody(BaseModel):
    """A question of one incarnation to another."""

    model_config = ConfigDict(extra="forbid")

    cluster: str
    asker: Annotated[Integer, Field(ge=0, le=INTEGER_MAX)]
    asked: Annotated[Integer, Field(ge=0, le=INTEGER_MAX)]
    number: Annotated[Integer, Field(ge=0, le=INTEGER_MAX)]


class TenantBody(PulsarModel):
    """Pulsar's `TenantInfo`. Without clusters, a tenant is allowed in this one."""

    admin_roles: Texts = Field(default_factory=list, alias="adminRoles")
    allowed_clusters: Texts = Field(default_factory=list, alias="allowedClusters")


class FailureDomainBody(PulsarModel):
    """Pulsar's `FailureDomain`: the ids of its brokers."""

    brokers: Texts | None = None


Positions = Annotated[
    list[Annotated[Integer, Field(ge=0, le=HASH_MAX)]], Field(max_length=CUTS_MAX)
]

BALANCING_BODY: Final = TypeAdapter[BalancingBody | None](BalancingBody | None)
NAMESPACE_BODY: Final = TypeAdapter[NamespaceBody | None](NamespaceBody | None)
CLUSTERS_BODY: Final = TypeAdapter[list[str] | None](Texts | None)
ACTIONS_BODY: Final = TypeAdapter[list[str] | None](Texts | None)
GROUP_BODY: Final = TypeAdapter[str | None](str | None)
ASSURANCE_BODY: Final = TypeAdapter[AssuranceBody | None](AssuranceBody | None)
OPENED_BODY: Final = TypeAdapter[OpenedBody | None](OpenedBody | None)
TENANT_BODY: Final = TypeAdapter[TenantBody | None](TenantBody | None)
POSITIONS_BODY: Final = TypeAdapter[list[int] | None](Positions | None)


async def body_of(request: web.Request, adapter: TypeAdapter[Value | None]) -> Value | None:
    """Return the body of a request; None if it is empty or `null`. Raises `CallerError`."""
    data = await request.read()
    if not data.strip():
        return None
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, detail['loc'])) or 'it'}: {detail['msg'].removeprefix(_OWN_ERROR)}"
            for detail in error.errors()[:_PROBLEMS_SHOWN_MAX]
        ]
        raise invalid_request(what="the body", problem="; ".join(problems)) from None


async def required_body_of(
    request: web.Request, adapter: TypeAdapter[Value | None], expected: str
) -> Value:
    """Return the body of a request that must have one; `expected` describes it. Raises
    `CallerError`.
    """
    value = await body_of(request, adapter)
    if value is None:
        raise invalid_request(what="the body", problem=f"it is missing; it must be {expected}")
    return value


def parameter_of(request: web.Request, name: str) -> str | None:
    """Return a parameter of the query; None if it is not given. Raises `CallerError` if it is
    given twice.
    """
    values = request.query.getall(name, [])
    if len(values) > 1:
        raise invalid_request(
            what=f"the parameter {name}", problem=f"it is given {len(values)} times; give it once"
        )
    return values[0] if values else None


def texts_of(request: web.Request, name: str) -> frozenset[str]:
    """Return the values of a parameter that may be given often, as Pulsar's clients do, or with
    several values separated by commas.
    """
    return frozenset(
        text for given in request.query.getall(name, ()) for text in given.split(",") if text
    )


def integer_of(request: web.Request, name: str, *, default: int, at_most: int) -> int:
    """Return a parameter that is an integer from 0 to `at_most`. Raises `CallerError`."""
    text = parameter_of(request, name)
    if text is None:
        return default
    if not (
        text.isascii()
        and text.isdigit()
        and len(text) <= len(str(at_most))
        and int(text) <= at_most
    ):
        raise invalid_request(
            what=f"the parameter {name}",
            problem=f"{text[:64]!r} is not an integer from 0 to {at_most}",
        )
    return int(text)


def flag_of(request: web.Request, name: str) -> bool:
    """Return a parameter that is `true` or `false`; False if it is not given. Raises
    `CallerError`.
    """
    text = parameter_of(request, name)
    if text not in (None, "true", "false"):
        raise invalid_request(
            what=f"the parameter {name}", problem=f"{text[:64]!r} is neither true nor false"
        )
    return text == "true"


def namespace_of(request: web.Request) -> str:
    """Return the namespace that a path names. Raises `InvalidName`."""
    return check_namespace(f"{request.match_info['tenant']}/{request.match_info['namespace']}")


def bundle_of(request: web.Request) -> str:
    """Return the full name of the bundle that a path names by namespace and range. Raises
    `InvalidName`.
    """
    namespace = namespace_of(request)
    low, high = parse_range(request.match_info["bundle"])
    return bundle_name(namespace, low, high)
