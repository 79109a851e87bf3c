"""Define the requests of a connection to its broker. The answers are methods of `Connection`.

A request with a `request_id` needs exactly one answer, which its docstring names; `answer` takes
the replies, and `refuse` refuses any. Ids are unique only among requests with the
same `asked`, so never use an id alone as a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from hashlib import blake2b
from typing import ClassVar, Final, NamedTuple

from equipoise.brokers.security.identity import Credentials
from equipoise.channel.core.errors import PeerError


class SubscriptionKind(IntEnum):
    """How the consumers of a subscription share its messages."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class TopicsMode(IntEnum):
    """Which topics of a namespace a client asks for."""

    PERSISTENT = 0
    NON_PERSISTENT = 1
    ALL = 2


class AccessMode(IntEnum):
    """Whether a producer needs exclusive access to its topic."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Asked(Enum):
    """The classes of requests within which a waiting id is unique, by Pulsar's names of their
    commands. Clients number some together.
    """

    PARTITIONS = "PARTITIONED_METADATA"
    LOOKUP = "LOOKUP"
    TOPICS = "GET_TOPICS_OF_NAMESPACE"
    SCHEMA = "GET_SCHEMA"
    NEW_SCHEMA = "GET_OR_CREATE_SCHEMA"
    STATS = "CONSUMER_STATS"
    PRODUCER = "PRODUCER"
    CONSUMER = "SUBSCRIBE"
    CHANGE = "CLOSE or UNSUBSCRIBE"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShared:
    """The key settings of a Key_Shared consumer: an automatic share, or, if sticky, the hash ranges
    it names (both ends inclusive).
    """

    is_sticky: bool
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A schema as its client describes it. `kind` is Pulsar's type number."""

    name: str
    kind: int
    definition: bytes
    properties: tuple[tuple[str, str], ...]


VERSION_BYTES: Final = 8
"""Length of a schema version. Clients read it as a big-endian number."""


def version_of(schema: Schema | None) -> bytes:
    """Return the version of a schema, or b"" for no schema.

    The version is positive as a signed 64-bit number, because Java clients read it so.
    """
    if schema is None:
        return b""
    digest = blake2b(
        f"{schema.kind}\n".encode() + schema.definition, digest_size=VERSION_BYTES
    ).digest()
    return bytes((digest[0] & 0x7F,)) + digest[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsSent:
    """A client sent credentials whose check takes longer. Answer: `authenticated`. Nothing of the
    client is handled before that.
    """

    credentials: Credentials | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The handshake is done and answered."""

    client_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAsked:
    """Asks for a topic's number of partitions. Answer: `replies.partitions`."""

    asked: ClassVar = Asked.PARTITIONS
    request_id: int
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupAsked:
    """Asks for the owner of a topic. Answer: `replies.located`."""

    asked: ClassVar = Asked.LOOKUP
    request_id: int
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerAsked:
    """Asks for a new producer. Answer: `opened` or `refuse`.

    * `name`: None if the broker chooses it.
    * `schema`: the schema of its messages, or None.
    * `is_encrypted`: whether it encrypts them.
    """

    asked: ClassVar = Asked.PRODUCER
    id: int
    request_id: int
    topic: str
    name: str | None
    epoch: int
    access_mode: AccessMode
    properties: tuple[tuple[str, str], ...]
    schema: Schema | None = None
    is_encrypted: bool = False

    @property
    def place(self) -> tuple[str, ...]:
        """Where it is to be."""
        return (self.topic,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeAsked:
    """Asks for a new consumer. Answer: `opened` or `refuse`.

    * `name`: may be empty.
    * `schema`: the schema that it reads by; None also if it accepts the topic's schema.
    """

    asked: ClassVar = Asked.CONSUMER
    id: int
    request_id: int
    topic: str
    subscription: str
    kind: SubscriptionKind
    name: str
    priority: int
    key_shared: KeyShared | None
    properties: tuple[tuple[str, str], ...]
    read_compacted: bool
    schema: Schema | None = None

    @property
    def place(self) -> tuple[str, ...]:
        """Where it is to be."""
        return (self.topic, self.subscription)


class Sent(NamedTuple):
    """One entry, of `messages` messages. `block` is checksum, metadata and payload, already
    checked. Forward it unchanged.
    """

    sequence_id: int
    highest_sequence_id: int
    messages: int
    block: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Entries of one producer that came together. Answer: `receipt` for each, in order; none if the
    topic is moving.

    `producer` is the object that `opened` attached. If the service closes the producer, it
    must ignore the later entries; the client sends them again.
    """

    producer: object
    entries: list[Sent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """An entry with a wrong checksum. Answer: `send_error` with `CHECKSUM_ERROR`, in the order of
    the receipts.

    Clients match receipts and errors against the head of their queue, so an error must not overtake
    earlier receipts.
    """

    producer: object
    sequence_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flowed:
    """A consumer grants permits for more messages. No answer."""

    consumer: object
    permits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The client closed a producer or consumer, which is now detached. Answer: `succeed`."""

    asked: ClassVar = Asked.CHANGE
    thing: object
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribed:
    """A consumer asks to delete its subscription. Answer: `succeed`, which also ends the consumer.

    If other consumers are connected, fail, or disconnect them if `is_forced`.
    """

    asked: ClassVar = Asked.CHANGE
    consumer: object
    consumer_id: int
    request_id: int
    is_forced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """A consumer sent SEEK, and is answered that it is at the messages to come. No further
    answer.
    """

    consumer: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """A consumer acknowledged messages. Counted only."""

    consumer: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatsAsked:
    """Asks for a consumer's stats. Answer: `replies.consumer_stats`."""

    asked: ClassVar = Asked.STATS
    consumer: object
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsAsked:
    """Asks for the topics of a namespace. Answer: `replies.topics`."""

    asked: ClassVar = Asked.TOPICS
    request_id: int
    namespace: str
    mode: TopicsMode


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaAsked:
    """Asks for a version of a topic's schema, or the newest (None). Answer:
    `replies.schema_found`.
    """

    asked: ClassVar = Asked.SCHEMA
    request_id: int
    topic: str
    version: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOffered:
    """Registers a schema of a topic. Answer: `replies.schema_accepted`."""

    asked: ClassVar = Asked.NEW_SCHEMA
    request_id: int
    topic: str
    schema: Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationCancelled:
    """The client closed a creation that the service has not answered. The client has its answer; a
    later one is not sent.
    """

    asked: Asked
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedAway:
    """The connection refused a command itself. Counted only."""

    what: str


class Violation(StrEnum):
    """Why this broker closed a connection; the label of the disconnection counter."""

    TLS = "tls"
    HTTP = "http"
    FRAME_TOO_LARGE = "frame_too_large"
    MALFORMED_FRAME = "malformed_frame"
    MALFORMED_COMMAND = "malformed_command"
    UNKNOWN_COMMAND = "unknown_command"
    UNEXPECTED_COMMAND = "unexpected_command"
    UNSUPPORTED_VERSION = "unsupported_version"
    UNKNOWN_PRODUCER = "unknown_producer"
    NO_HANDSHAKE = "no_handshake"
    NOT_AUTHENTICATED = "not_authenticated"
    BUSY = "busy"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    NO_ANSWER = "no_answer"
    NEVER_READS = "never_reads"
    NO_ROOM = "no_room"


class PulsarProtocolError(PeerError):
    """A client violated the protocol. `Connection` never raises it, but returns `Ended`."""

    def __init__(self, violation: Violation, problem: str) -> None:
        """`problem` describes what the client sent or did not send."""
        self.violation = violation
        self.problem = problem
        super().__init__(
            f"a Pulsar client violated the protocol: {problem}; its connection is closed, and it"
            " may connect again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last request of a connection: write what is outgoing, then close. All ids are
    detached.
    """

    problem: str
    counted_as: Violation


Request = (
    CredentialsSent
    | Connected
    | PartitionsAsked
    | LookupAsked
    | ProducerAsked
    | SubscribeAsked
    | Published
    | Damaged
    | Flowed
    | Closed
    | Unsubscribed
    | Sought
    | Acked
    | ConsumerStatsAsked
    | TopicsAsked
    | SchemaAsked
    | SchemaOffered
    | CreationCancelled
    | TurnedAway
    | Ended
)

# Requests whose answer leaves nothing behind in the connection.
Question = (
    PartitionsAsked | LookupAsked | TopicsAsked | SchemaAsked | SchemaOffered | ConsumerStatsAsked
)
# Requests to change what is live.
Change = Closed | Unsubscribed
# Requests for something that has an id of its own from then on.
Creation = ProducerAsked | SubscribeAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Attach this instead of a `thing` that another broker serves. The first SEND or FLOW then
    redirects the client to `url`.

    An earlier redirect fails: some clients ignore a CLOSE that comes before they have handled the
    success (docs/adr/0006-pulsar.md). Without a `url` the client looks the topic up again.
    """

    url: str | None
