"""Define the schema of the channel's records as pydantic models, from which the reference pages for
other programs are made.

The models accept exactly what `channel.core.codec` accepts and give the same values:
tests/property/test_schema.py shows it. Unknown fields are ignored, and `null` in an optional field
means absent.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    model_validator,
)

from equipoise.channel.core.lifecycle import PHASE_OF_SHAPE
from equipoise.channel.core.ranges import ADMIN_PREFIX
from equipoise.channel.core.records import (
    BOUNDARIES_MAX,
    CUTS_MAX,
    DOCUMENT_ENTRIES_MAX,
    HANDOVER_BYTES_MAX,
    INTEGER_MAX,
    KEY_CHARACTERS_MAX,
    PATTERNS_MAX,
    TEXT_CHARACTERS_MAX,
    BrokerChange,
    NamespaceStatus,
    PolicyChange,
    State,
)

HANDOVER_CHARACTERS_MAX: Final = (HANDOVER_BYTES_MAX + 2) // 3 * 4

# Base64 (RFC 4648, section 4) in its canonical form: padded, with no unused bit set.
CANONICAL_BASE64: Final = (
    "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
)

Integer = Annotated[int, Field(ge=0, le=INTEGER_MAX)]
Positive = Annotated[int, Field(ge=1, le=INTEGER_MAX)]
Text = Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS_MAX)]
Key = Annotated[str, Field(min_length=1, max_length=KEY_CHARACTERS_MAX)]
Name = Annotated[str, Field(max_length=TEXT_CHARACTERS_MAX)]
Positions = Annotated[list[Integer], Field(max_length=CUTS_MAX)]
Document = Annotated[dict[Name, Name | Integer | bool], Field(max_length=DOCUMENT_ENTRIES_MAX)]
Patterns = Annotated[list[Key], Field(max_length=PATTERNS_MAX)]
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

    key: Key = Field(description="The key of the object that the record changes.")
    expected_offset: Integer = Field(
        description=(
            "The expected offset (compare-and-set): that of the last accepted record of `key` in"
            " the publisher's view."
        )
    )
    publisher: Key = Field(description="A broker id, or `admin:NAME`.")
    level: OneIfAbsent = Field(default=1, description="The format version that the record needs.")
    timestamp_ms: ZeroIfAbsent = Field(
        default=0, description="Unix time, for display and audits. No verdict depends on it."
    )
    requested_by: Remark = Field(
        default=None,
        description=(
            "The operator for whom a broker wrote the record, `admin:NAME`, for display and audits."
        ),
    )
    traceparent: Remark = Field(
        default=None,
        description=(
            "The span of OpenTelemetry in which the record was proposed, as in the header of W3C"
            " Trace Context. No verdict depends on it."
        ),
    )


class _Founding(_Record):
    """A record whose publisher has no incarnation yet."""

    incarnation: None = Field(default=None, description="Must be absent.")
    sequence: None = Field(default=None, description="Must be absent.")
    as_of: None = Field(default=None, description="Must be absent.")
    requested_by: Annotated[None, BeforeValidator(lambda _: None)] = Field(
        default=None, description="Ignored."
    )
    traceparent: Annotated[None, BeforeValidator(lambda _: None)] = Field(
        default=None, description="Ignored."
    )


class _Signed(_Record):
    """A record of a live broker (with `incarnation` and `sequence`) or of an admin (with `as_of`
    only).
    """

    incarnation: Integer | None = Field(
        default=None, description="The broker's incarnation. Absent for an admin."
    )
    sequence: Integer | None = Field(
        default=None,
        description="The number of this attempt of the incarnation. Absent for an admin.",
    )
    as_of: Integer | None = Field(
        default=None, description="The offset of the admin's view. Optional for a broker."
    )

    @model_validator(mode="after")
    def _signature_is_whole(self) -> Self:
        if self.publisher.startswith(ADMIN_PREFIX):
            if self.incarnation is not None or self.sequence is not None:
                raise ValueError("an admin's record has neither incarnation nor sequence")
            if self.as_of is None:
                raise ValueError("an admin's record needs as_of")
        elif self.incarnation is None or self.sequence is None:
            raise ValueError("a broker's record needs incarnation and sequence")
        return self


class GenesisModel(_Founding):
    """The first record of a log: its cluster, and the base of its logical offsets."""

    kind: Literal["genesis"]
    key: Literal["genesis"] = Field(description="Always `genesis`.")
    expected_offset: Annotated[int, Field(ge=0, le=0)] = Field(description="Always 0.")
    cluster: Text = Field(description="The cluster that the log belongs to.")
    base: ZeroIfAbsent = Field(
        default=0,
        description="The logical offset of a record is its offset on the log plus this number.",
    )


class BundleModel(_Signed):
    """One transition of one bundle. The lifecycle page lists which states need `owner` and
    `source`.
    """

    kind: Literal["bundle"]
    state: State = Field(description="The state after the transition.")
    owner: Integer | None = Field(
        default=None,
        description=(
            "The incarnation that serves the bundle, or will serve it after the transition."
        ),
    )
    source: Integer | None = Field(
        default=None, description="The incarnation that serves the bundle until it hands it over."
    )
    reason: Text | None = Field(default=None, description="The reason, for display.")
    algorithm: Text | None = Field(
        default=None, description="The algorithm that chooses where to split the bundle."
    )
    positions: Positions | None = Field(
        default=None, description="Where to split the bundle, as hash points."
    )
    handover: (
        Annotated[str, Field(max_length=HANDOVER_CHARACTERS_MAX, pattern=CANONICAL_BASE64)] | None
    ) = Field(
        default=None,
        description=(
            f"State for the next owner, in canonical base64: at most {HANDOVER_BYTES_MAX} bytes, or"
            " a note where to fetch more."
        ),
    )

    @model_validator(mode="after")
    def _state_fits_owner_and_source(self) -> Self:
        if (self.state, self.owner is not None, self.source is not None) not in PHASE_OF_SHAPE:
            raise ValueError(
                f"state {self.state} does not go with owner {self.owner} and source {self.source}"
            )
        # The longest texts that match the pattern decode to two bytes more than the maximum.
        if (
            self.handover is not None
            and len(self.handover) // 4 * 3 - self.handover.count("=") > HANDOVER_BYTES_MAX
        ):
            raise ValueError(f"handover must be at most {HANDOVER_BYTES_MAX} bytes")
        return self


class SplitModel(_Signed):
    """A splitting bundle is split. Its owner owns the children."""

    kind: Literal["split"]
    positions: Positions = Field(
        description="Where the bundle is split: ascending hash points strictly inside it."
    )
    reason: Text | None = Field(default=None, description="The reason, for display.")


class MergeModel(_Signed):
    """Two neighbouring bundles of one owner become one. `key` is the left one."""

    kind: Literal["merge"]
    right: Key = Field(description="The right bundle.")
    expected_offset_right: Integer = Field(
        description="The expected offset of the right bundle, as `expected_offset`."
    )
    reason: Text | None = Field(default=None, description="The reason, for display.")


class NamespaceModel(_Signed):
    """A namespace is created, gets new policies, begins to be deleted, or is deleted."""

    kind: Literal["namespace"]
    status: NamespaceStatus = Field(description="The change.")
    boundaries: Annotated[list[Integer], Field(max_length=BOUNDARIES_MAX)] | None = Field(
        default=None,
        description=(
            "With `created`: the boundaries of its bundles, ascending from 0 to 4294967295."
        ),
    )
    policies: Document | None = Field(
        default=None, description="With `created` and `policies`: all its policies."
    )


class JoinedModel(_Founding):
    """A broker process begins a new incarnation. `publisher` equals `key`."""

    kind: Literal["broker"]
    status: Literal["joined"]
    instance_id: Text = Field(description="The instance id, new for each attempt to join.")
    lease_ms: Positive = Field(description="The length of its leases.")
    grace_ms: Positive = Field(
        description=(
            "The grace period: how long after the lease others wait before they declare it dead."
        )
    )
    renew_ms: Positive = Field(description="The interval of its renewals.")
    extend_ms: Annotated[
        Integer | None, AfterValidator(lambda value: 0 if value is None else value)
    ] = Field(
        default=0,
        description=(
            "How long after its last renewal it may serve by the assurances of all others. No more"
            " than `lease_ms`: never past its lease."
        ),
    )
    addresses: EmptyIfAbsent = Field(
        default={}, description="For each protocol, the address for clients."
    )
    capacity: Annotated[
        Positive | None, AfterValidator(lambda value: 100 if value is None else value)
    ] = Field(
        default=100,
        description=(
            "How much load it can take, in percent of a core: 200 gets twice the load of 100."
        ),
    )
    failure_domain: Text | None = Field(
        default=None, description="Brokers with the same value may fail together."
    )
    labels: EmptyIfAbsent = Field(
        default={}, description="Labels by which policies select brokers."
    )
    namespaces: Patterns | None = Field(
        default=None,
        description=(
            "Patterns of the namespaces that its program serves; `*` stands for any characters."
            " Absent: all. It is given bundles of no other namespace."
        ),
    )
    version: Annotated[Text | None, AfterValidator(lambda value: value or "")] = Field(
        default="", description="The software version, for display."
    )
    supported_level: OneIfAbsent = Field(
        default=1, description="The highest format version that it supports."
    )
    replaces: Text | None = Field(
        default=None,
        description=(
            "The instance id of the live incarnation that it replaces, from the locked data"
            " directory."
        ),
    )
    after_silence: Annotated[bool | None, AfterValidator(lambda value: value is True)] = Field(
        default=False,
        description=(
            "Whether it has read no record of the live incarnation for as long as that may serve,"
            " by its lease or its extension, and the grace period in proportion."
        ),
    )
    lock: Text | None = Field(
        default=None,
        description=(
            "The lock that the process holds until it ends, for brokers of the same machine:"
            " `BOOT_ID:DEVICE:INODE:PATH`. Absent: they cannot see it."
        ),
    )

    @model_validator(mode="after")
    def _publishes_its_own_join(self) -> Self:
        if self.publisher != self.key or self.key.startswith(ADMIN_PREFIX):
            raise ValueError("a broker publishes its own joined record: publisher must equal key")
        return self


class RenewedModel(_Signed):
    """A broker renews its lease."""

    kind: Literal["broker"]
    status: Literal["renewed"]
    digest: Integer = Field(
        description="The digest of its view after the last accepted record of its key."
    )


class BrokerModel(_Signed):
    """A broker drains, has left, is declared dead (by a live broker, or by anybody with its
    instance id), or is removed.
    """

    kind: Literal["broker"]
    status: BrokerChange = Field(description="The change.")
    instance_id: Text | None = Field(
        default=None,
        description=(
            "With `down`: the instance id of the live incarnation, as the proof that its process"
            " has ended. An admin needs it, and a broker unless the other was silent."
        ),
    )
    reason: Text | None = Field(default=None, description="The reason, for display.")


class PolicyModel(_Signed):
    """A cluster-wide policy document is set or removed."""

    kind: Literal["policy"]
    status: PolicyChange = Field(description="The change.")
    document: Document | None = Field(default=None, description="With `set`: the document.")


class LevelModel(_Signed):
    """Raises the format version of the log, or closes the log."""

    kind: Literal["level"]
    key: Literal["level"] = Field(description="Always `level`.")
    raises_to: Integer = Field(
        description=(
            "The format version that is active from this record on. 2^63 - 1 closes the log for"
            " good."
        )
    )
    copied_to: Remark = Field(
        default=None, description="For a closed log: the URL of its copy, for display."
    )
    copied_to_identity: Remark = Field(
        default=None, description="For a closed log: the identity of its copy."
    )


BrokerModels = Annotated[JoinedModel | RenewedModel | BrokerModel, Field(discriminator="status")]
AnyModel = Annotated[
    GenesisModel
    | BundleModel
    | SplitModel
    | MergeModel
    | NamespaceModel
    | BrokerModels
    | PolicyModel
    | LevelModel,
    Field(discriminator="kind"),
]

RECORD: Final[TypeAdapter[AnyModel]] = TypeAdapter(AnyModel)


def json_schema() -> dict[str, object]:
    """Return the JSON schema (2020-12) of a record. Rules that tie several fields together are only
    in its descriptions.
    """
    return RECORD.json_schema() | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A record of the channel",
    }
