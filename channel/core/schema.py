"""Publish the schema of the channel's records as pydantic models, for other programs that read or write them.

The models accept exactly what `channel.core.codec` accepts and give the same values; a property test shows it. No verdict
depends on them, because a library's version must not change a verdict.

Unknown fields are ignored, and `null` in an optional field means absent.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator

from equipoise.channel.core.lifecycle import PHASE_OF_SHAPE
from equipoise.channel.core.ranges import ADMIN_PREFIX
from equipoise.channel.core.records import (
    BOUNDARIES_MAX,
    CUTS_MAX,
    DOCUMENT_ENTRIES_MAX,
    HANDOVER_BYTES_MAX,
    INTEGER_MAX,
    KEY_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    BrokerChange,
    NamespaceStatus,
    PolicyChange,
    State,
)

HANDOVER_CHARACTERS_MAX: Final = (HANDOVER_BYTES_MAX + 2) // 3 * 4

# Base64 (RFC 4648, section 4) in its canonical form: padded, with no unused bit set.
CANONICAL_BASE64: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"

Integer = Annotated[int, Field(ge=0, le=INTEGER_MAX)]
Positive = Annotated[int, Field(ge=1, le=INTEGER_MAX)]
Text = Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS_MAX)]
Key = Annotated[str, Field(min_length=1, max_length=KEY_CHARACTERS_MAX)]
Name = Annotated[str, Field(max_length=TEXT_CHARACTERS_MAX)]
Positions = Annotated[list[Integer], Field(max_length=CUTS_MAX)]
Document = Annotated[dict[Name, Name | Integer | bool], Field(max_length=DOCUMENT_ENTRIES_MAX)]
Texts = Annotated[dict[Name, Name], Field(max_length=DOCUMENT_ENTRIES_MAX)]


def _or_one(value: int | None) -> int:
    return 1 if value is None else value


def _or_zero(value: int | None) -> int:
    return value or 0


def _or_empty(value: dict[str, str] | None) -> dict[str, str]:
    return value or {}


def _text_or_none(value: object) -> object:
    return value if isinstance(value, str) and 0 < len(value) <= TEXT_CHARACTERS_MAX else None


Remark = Annotated[Text | None, BeforeValidator(_text_or_none)]
OneIfAbsent = Annotated[Positive | None, AfterValidator(_or_one)]
ZeroIfAbsent = Annotated[Integer | None, AfterValidator(_or_zero)]
EmptyIfAbsent = Annotated[Texts | None, AfterValidator(_or_empty)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    key: Key = Field(description="What the record wants to change.")
    based_on: Integer = Field(description="The offset of the last accepted record of `key` that it was made against.")
    publisher: Key = Field(description="A broker id, or `admin:NAME`.")
    level: OneIfAbsent = Field(default=1, description="The level of the rules that it needs.")
    timestamp_ms: ZeroIfAbsent = Field(default=0, description="Unix time, for people and audits; no verdict depends on it.")


class _Founding(_Record):
    """A record that precedes an incarnation."""

    incarnation: None = Field(default=None, description="Must be absent.")
    sequence: None = Field(default=None, description="Must be absent.")
    as_of: None = Field(default=None, description="Must be absent.")


class _Signed(_Record):
    """A record of a live broker (with `incarnation` and `sequence`) or of an admin (with `as_of` only)."""

    incarnation: Integer | None = Field(default=None, description="The broker's incarnation; absent for an admin.")
    sequence: Integer | None = Field(default=None, description="The number of this attempt of the incarnation; absent for an admin.")
    as_of: Integer | None = Field(default=None, description="The offset of the admin's view; a broker may leave it out.")

    @model_validator(mode="after")
    def _signature_is_whole(self) -> Self:
        if self.publisher.startswith(ADMIN_PREFIX):
            if self.incarnation is not None or self.sequence is not None:
                raise ValueError("an admin has neither incarnation nor sequence")
            if self.as_of is None:
                raise ValueError("an admin must say as_of")
        elif self.incarnation is None or self.sequence is None:
            raise ValueError("a broker must say incarnation and sequence")
        return self


class GenesisModel(_Founding):
    """The first record of a log: whose it is, and what its physical offsets are counted from."""

    kind: Literal["genesis"]
    key: Literal["genesis"] = Field(description="Always `genesis`.")
    based_on: Annotated[int, Field(ge=0, le=0)] = Field(description="Always 0.")
    cluster: Text = Field(description="The id of the cluster that the log belongs to.")
    base: ZeroIfAbsent = Field(default=0, description="What is added to the log's own offsets to make logical ones.")


class BundleModel(_Signed):
    """One transition of one bundle; which states go with `owner` and `source` is told in the page on the lifecycle."""

    kind: Literal["bundle"]
    state: State = Field(description="The state after it.")
    owner: Integer | None = Field(default=None, description="The incarnation that serves, or will once the transition ends.")
    source: Integer | None = Field(default=None, description="The incarnation that serves until it hands over.")
    reason: Text | None = Field(default=None, description="Why, for people.")
    algorithm: Text | None = Field(default=None, description="How a splitting bundle is to be cut.")
    positions: Positions | None = Field(default=None, description="Where a splitting bundle is to be cut, as hash points.")
    handover: Annotated[str, Field(max_length=HANDOVER_CHARACTERS_MAX, pattern=CANONICAL_BASE64)] | None = Field(
        default=None,
        description=f"State for the next owner, in canonical base64: at most {HANDOVER_BYTES_MAX} bytes, or a note on more.",
    )

    @model_validator(mode="after")
    def _state_names_whom_it_must(self) -> Self:
        if (self.state, self.owner is not None, self.source is not None) not in PHASE_OF_SHAPE:
            raise ValueError(f"state {self.state} does not go with owner {self.owner} and source {self.source}")
        # The longest texts that match the pattern decode to two bytes more than the maximum.
        if self.handover is not None and len(self.handover) // 4 * 3 - self.handover.count("=") > HANDOVER_BYTES_MAX:
            raise ValueError(f"handover must be at most {HANDOVER_BYTES_MAX} bytes")
        return self


class SplitModel(_Signed):
    """The owner of a splitting bundle cut it; the children stay with the owner."""

    kind: Literal["split"]
    positions: Positions = Field(description="Where it was cut: hash points strictly inside it, rising.")
    reason: Text | None = Field(default=None, description="Why, for people.")


class MergeModel(_Signed):
    """Two neighbours of one owner become one bundle; `key` is the left one."""

    kind: Literal["merge"]
    right: Key = Field(description="The right neighbour.")
    based_on_right: Integer = Field(description="The offset of the last accepted record of `right` that it was made against.")
    reason: Text | None = Field(default=None, description="Why, for people.")


class NamespaceModel(_Signed):
    """A namespace is created, gets other policies, is set to deleting, or is deleted."""

    kind: Literal["namespace"]
    status: NamespaceStatus = Field(description="What is done to it.")
    boundaries: Annotated[list[Integer], Field(max_length=BOUNDARIES_MAX)] | None = Field(
        default=None, description="With `created`: the ends of its bundles, from 0 to 4294967295, rising."
    )
    policies: Document | None = Field(default=None, description="With `created` and `policies`: its policies.")


class JoinedModel(_Founding):
    """A broker process begins a new incarnation; `publisher` is its own `key`."""

    kind: Literal["broker"]
    status: Literal["joined"]
    nonce: Text = Field(description="New for each attempt.")
    lease_ms: Positive = Field(description="How long its leases are.")
    margin_ms: Positive = Field(description="How much longer others wait before they call it dead.")
    renew_ms: Positive = Field(description="How often it renews.")
    addresses: EmptyIfAbsent = Field(default={}, description="Protocol to the address that clients use.")
    capacity: Annotated[Positive | None, AfterValidator(lambda value: 100 if value is None else value)] = Field(
        default=100, description="A weight: 200 is to carry twice the load of 100."
    )
    failure_domain: Text | None = Field(default=None, description="What it may fail together with.")
    labels: EmptyIfAbsent = Field(default={}, description="What policies may select it by.")
    version: Annotated[Text | None, AfterValidator(lambda value: value or "")] = Field(default="", description="For people.")
    supported_level: OneIfAbsent = Field(default=1, description="The highest level of rules that it knows.")
    replaces: Text | None = Field(default=None, description="The nonce of the live incarnation, found in the locked data directory.")
    after_silence: Annotated[bool | None, AfterValidator(lambda value: value is True)] = Field(
        default=False, description="It has itself heard nothing of the live incarnation for its lease and margin."
    )

    @model_validator(mode="after")
    def _joins_by_itself(self) -> Self:
        if self.publisher != self.key or self.key.startswith(ADMIN_PREFIX):
            raise ValueError("a broker joins by itself: publisher must be its key")
        return self


class RenewedModel(_Signed):
    """A broker asks for its lease anew."""

    kind: Literal["broker"]
    status: Literal["renewed"]
    digest: Integer = Field(description="The digest of its view just after the last accepted record of its key.")


class BrokerModel(_Signed):
    """A broker drains or has left (by itself), is down (by a live broker, or an admin with its nonce), or is removed."""

    kind: Literal["broker"]
    status: BrokerChange = Field(description="What becomes of it.")
    nonce: Text | None = Field(default=None, description="With `down` by an admin: the nonce of the live incarnation.")
    reason: Text | None = Field(default=None, description="Why, for people.")


class PolicyModel(_Signed):
    """A cluster-wide document is set or removed."""

    kind: Literal["policy"]
    status: PolicyChange = Field(description="What is done to it.")
    document: Document | None = Field(default=None, description="With `set`: what it says.")


class LevelModel(_Signed):
    """Raises the level of the rules."""

    kind: Literal["level"]
    key: Literal["level"] = Field(description="Always `level`.")
    raises_to: Integer = Field(description="The level that is active from this record on; 2^63 - 1 closes the log for good.")
    copied_to: Remark = Field(default=None, description="Of a log that is closed: the URL of the log that it is copied to, for people.")
    copied_to_identity: Remark = Field(default=None, description="Of a log that is closed: the identity of the log that it is copied to.")


BrokerModels = Annotated[JoinedModel | RenewedModel | BrokerModel, Field(discriminator="status")]
AnyModel = Annotated[
    GenesisModel | BundleModel | SplitModel | MergeModel | NamespaceModel | BrokerModels | PolicyModel | LevelModel,
    Field(discriminator="kind"),
]

RECORD: Final[TypeAdapter[AnyModel]] = TypeAdapter(AnyModel)


def json_schema() -> dict[str, object]:
    """Return the JSON schema (2020-12) of a record. Rules that tie several fields together are only in its descriptions."""
    return RECORD.json_schema() | {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A record of the channel"}
