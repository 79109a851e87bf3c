"""Define Pulsar's policies for the topics of a namespace, in Pulsar's JSON and as the scalars that
the channel stores.

Numbers, flags and names are stored as they are. Rates and lists are stored as JSON text, so that
one record changes all their parts. `brokers.pulsar` enforces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from equipoise.channel.core.records import TEXT_CHARACTERS_MAX, Document, Scalar

COUNT_MAX: Final = 2**31 - 1
_RATE_MAX: Final = 2**53
_PERIOD_S_MAX: Final = 86_400
_SHOWN_MAX: Final = 64

_Rate = Annotated[int, Strict(), Field(ge=-1, le=_RATE_MAX)]


class PulsarModel(BaseModel):
    """The base of what Pulsar's tools send. As in Pulsar, a field that is null is one that is not
    given: the Go client sends many.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: object) -> object:
        return (
            {name: value for name, value in given.items() if value is not None}
            if isinstance(given, dict)
            else given
        )


class PublishRate(PulsarModel):
    """How much the producers of one topic may publish per second, together. 0 and -1 are no limit,
    as in Pulsar.
    """

    model_config = ConfigDict(frozen=True)

    messages: _Rate = Field(default=-1, alias="publishThrottlingRateInMsg")
    bytes: _Rate = Field(default=-1, alias="publishThrottlingRateInByte")


class DispatchRate(PulsarModel):
    """How much a topic or a subscription may deliver in each period of seconds. 0 and -1 are no
    limit, as in Pulsar.
    """

    model_config = ConfigDict(frozen=True)

    messages: _Rate = Field(default=-1, alias="dispatchThrottlingRateInMsg")
    bytes: _Rate = Field(default=-1, alias="dispatchThrottlingRateInByte")
    is_relative: bool = Field(default=False, alias="relativeToPublishRate")
    period_s: Annotated[int, Strict(), Field(ge=1, le=_PERIOD_S_MAX)] = Field(
        default=1, alias="ratePeriodInSecond"
    )

    @model_validator(mode="after")
    def _absolute(self) -> Self:
        if self.is_relative:
            problem = (
                "a rate relative to the publish rate lets consumers catch up, and this server"
                " stores nothing to catch up with"
            )
            raise ValueError(problem)
        return self


class TopicType(StrEnum):
    """The kind of the topics that clients create by using them."""

    PLAIN = "non-partitioned"
    PARTITIONED = "partitioned"


class TopicCreation(PulsarModel):
    """Whether clients create topics by using them."""

    model_config = ConfigDict(frozen=True)

    is_allowed: Annotated[bool, Strict()] = Field(alias="allowAutoTopicCreation")
    topic_type: TopicType = Field(default=TopicType.PLAIN, alias="topicType")
    partitions: Annotated[int, Strict(), Field(ge=0, le=COUNT_MAX)] | None = Field(
        default=None, alias="defaultNumPartitions"
    )

    @model_validator(mode="after")
    def _plain(self) -> Self:
        if self.is_allowed and self.topic_type is TopicType.PARTITIONED:
            problem = (
                "clients of this server create non-partitioned topics only; use `topics"
                " create-partitioned-topic` for others"
            )
            raise ValueError(problem)
        return self


class SubscriptionType(StrEnum):
    """Pulsar's names of the ways to share a subscription."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


class Compatibility(StrEnum):
    """Pulsar's strategies for new schemas of a topic. Those that compare schemas are refused."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"


_NO_COMPARISON: Final = (
    "this server stores and returns schemas, and does not compare them: a topic takes every schema,"
    " and clients without one"
)


def _compatible(strategy: object) -> object:
    """Refuse a strategy that compares schemas."""
    if isinstance(strategy, str) and strategy not in Compatibility.__members__:
        raise ValueError(f"{_NO_COMPARISON}; use {Compatibility.ALWAYS_COMPATIBLE}")
    return strategy


def _only(given: bool, *, possible: bool) -> bool:  # noqa: FBT001 - as pydantic calls it
    """Refuse the value of a flag that would need schemas compared."""
    if given is not possible:
        raise ValueError(_NO_COMPARISON)
    return given


def _sorted(types: list[SubscriptionType]) -> list[SubscriptionType]:
    return sorted(set(types))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """One policy.

    * `name`: its name in the policies of a namespace on the channel.
    * `field`: its name in Pulsar's `Policies`.
    * `adapter`: its form in JSON.
    * `unset`: what Pulsar answers for a namespace without it; None becomes 204.
    * `is_by_cluster`: whether Pulsar's `Policies` map each cluster to a value.
    """

    name: str
    field: str
    adapter: TypeAdapter[Any]
    unset: object = None
    is_by_cluster: bool = False

    def encode(self, value: object) -> Scalar:
        """Return a value of the adapter's type as the channel stores it."""
        if isinstance(value, int | str):
            return value
        return self.adapter.dump_json(value, by_alias=True).decode()

    def decode(self, scalar: Scalar) -> object:
        """Return the value that the channel stores. Raise `ValidationError` for one that only an
        unchecked writer can have set.
        """
        is_json = isinstance(scalar, str) and scalar.startswith(("{", "["))
        return (
            self.adapter.validate_json(str(scalar))
            if is_json
            else self.adapter.validate_python(scalar)
        )

    def value_in(self, policies: Document) -> Any:  # noqa: ANN401 - of the adapter's type
        """Return the value in the policies of a namespace; None if it is not set, or cannot be
        read.
        """
        scalar = policies.get(self.name)
        if scalar is None:
            return None
        try:
            return self.decode(scalar)
        except ValidationError:
            return None

    def answer_in(self, policies: Document) -> object:
        """Return the value in Pulsar's JSON, or `unset`."""
        value = self.value_in(policies)
        return (
            self.unset
            if value is None
            else self.adapter.dump_python(value, mode="json", by_alias=True, exclude_none=True)
        )


_COUNT: Final = TypeAdapter[int](Annotated[int, Strict(), Field(ge=0, le=COUNT_MAX)])
_FLAG: Final = TypeAdapter[bool](Annotated[bool, Strict()])
_TYPES: Final = TypeAdapter[list[SubscriptionType]](
    Annotated[list[SubscriptionType], AfterValidator(_sorted)]
)


def _count(name: str, *, unset: int | None = None) -> TopicPolicy:
    return TopicPolicy(name=name, field=name, adapter=_COUNT, unset=unset)


MAX_PRODUCERS: Final = _count("max_producers_per_topic")
MAX_CONSUMERS: Final = _count("max_consumers_per_topic")
MAX_SUBSCRIPTION_CONSUMERS: Final = _count("max_consumers_per_subscription")
MAX_SUBSCRIPTIONS: Final = _count("max_subscriptions_per_topic")
# pulsar-admin fails on 204 with a NullPointerException.
MAX_TOPICS: Final = _count("max_topics_per_namespace", unset=0)
PUBLISH_RATE: Final = TopicPolicy(
    name="publish_rate",
    field="publishMaxMessageRate",
    adapter=TypeAdapter(PublishRate),
    is_by_cluster=True,
)
DISPATCH_RATE: Final = TopicPolicy(
    name="dispatch_rate",
    field="topicDispatchRate",
    adapter=TypeAdapter(DispatchRate),
    is_by_cluster=True,
)
SUBSCRIPTION_DISPATCH_RATE: Final = TopicPolicy(
    name="subscription_dispatch_rate",
    field="subscriptionDispatchRate",
    adapter=TypeAdapter(DispatchRate),
    is_by_cluster=True,
)
SUBSCRIPTION_TYPES: Final = TopicPolicy(
    name="subscription_types_enabled", field="subscription_types_enabled", adapter=_TYPES, unset=[]
)
COMPATIBILITY: Final = TopicPolicy(
    name="schema_compatibility_strategy",
    field="schema_compatibility_strategy",
    adapter=TypeAdapter(Annotated[Compatibility, BeforeValidator(_compatible)]),
    unset=Compatibility.UNDEFINED.value,
)
AUTO_UPDATE_SCHEMA: Final = TopicPolicy(
    name="is_allow_auto_update_schema",
    field="is_allow_auto_update_schema",
    adapter=TypeAdapter(Annotated[bool, Strict(), AfterValidator(partial(_only, possible=True))]),
    unset=True,
)
SCHEMA_ENFORCED: Final = TopicPolicy(
    name="schema_validation_enforced",
    field="schema_validation_enforced",
    adapter=TypeAdapter(Annotated[bool, Strict(), AfterValidator(partial(_only, possible=False))]),
    unset=False,
)
ENCRYPTION_REQUIRED: Final = TopicPolicy(
    name="encryption_required", field="encryption_required", adapter=_FLAG, unset=False
)
AUTO_TOPIC_CREATION: Final = TopicPolicy(
    name="auto_topic_creation",
    field="autoTopicCreationOverride",
    adapter=TypeAdapter(TopicCreation),
)

TOPIC_POLICIES: Final[Mapping[str, TopicPolicy]] = {
    policy.name: policy
    for policy in (
        MAX_PRODUCERS,
        MAX_CONSUMERS,
        MAX_SUBSCRIPTION_CONSUMERS,
        MAX_SUBSCRIPTIONS,
        MAX_TOPICS,
        PUBLISH_RATE,
        DISPATCH_RATE,
        SUBSCRIPTION_DISPATCH_RATE,
        SUBSCRIPTION_TYPES,
        COMPATIBILITY,
        AUTO_UPDATE_SCHEMA,
        SCHEMA_ENFORCED,
        ENCRYPTION_REQUIRED,
        AUTO_TOPIC_CREATION,
    )
}
"""All policies by their name on the channel."""

_PROPERTY: Final = "property:"


def property_policy(key: str) -> str:
    """Return the name of the policy that holds a property of a namespace."""
    return _PROPERTY + key


def properties_in(policies: Document) -> Mapping[str, str]:
    """Return the properties of a namespace, sorted by key."""
    found = {
        name.removeprefix(_PROPERTY): value
        for name, value in policies.items()
        if name.startswith(_PROPERTY)
    }
    return {key: value for key, value in sorted(found.items()) if isinstance(value, str)}


def pulsar_document(policies: Document, cluster: str) -> Mapping[str, object]:
    """Return the policies that are set, and the properties, by their names in Pulsar's
    `Policies`.
    """
    found: dict[str, object] = (
        {"properties": properties_in(policies)} if properties_in(policies) else {}
    )
    for policy in TOPIC_POLICIES.values():
        if policy.value_in(policies) is not None:
            answer = policy.answer_in(policies)
            found[policy.field] = {cluster: answer} if policy.is_by_cluster else answer
    return found


def misfit(name: str, scalar: Scalar) -> str | None:
    """Return why a namespace must not have this policy, because a record cannot hold it or it is no
    policy for topics; None if it may.
    """
    if isinstance(scalar, str) and len(scalar) > TEXT_CHARACTERS_MAX:
        return (
            f"the value of {name[:_SHOWN_MAX]} has {len(scalar)} characters, and may have"
            f" {TEXT_CHARACTERS_MAX}"
        )
    if name.startswith(_PROPERTY):
        fits = len(_PROPERTY) < len(name) <= TEXT_CHARACTERS_MAX and isinstance(scalar, str)
        return (
            None
            if fits
            else (
                f"a property needs a key, and a text as its value, of at most {TEXT_CHARACTERS_MAX}"
                " characters each"
            )
        )
    policy = TOPIC_POLICIES.get(name)
    if policy is None:
        return None
    try:
        policy.decode(scalar)
    except ValidationError as error:
        return f"{name} is {scalar!r:.80}, which is impossible: {error.errors()[0]['msg']}"
    return None
