"""What a connection asks of its broker, as values; the answers are methods of `Connection`.

May live here: frozen dataclasses and the enums in them. A request with a `request_id` wants exactly one answer, which its
docstring names. An id is unique only among requests of one class, so never key a table by it alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from equipoise.brokers.pulsar.wire.errors import Violation


class SubscriptionKind(IntEnum):
    """How the consumers of a subscription share its messages."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class TopicsMode(IntEnum):
    """Which topics of a namespace are asked for."""

    PERSISTENT = 0
    NON_PERSISTENT = 1
    ALL = 2


class AccessMode(IntEnum):
    """Whether a producer wants its topic for itself."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Kind(Enum):
    """What can be created on a connection."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShared:
    """How a consumer of a Key_Shared subscription gets its keys: a share, or, if sticky, the hash ranges (both ends in) it names."""

    is_sticky: bool
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A schema as its client describes it; `kind` is Pulsar's number for its type."""

    name: str
    kind: int
    definition: bytes
    properties: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The handshake is done, and has been answered."""

    client_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAsked:
    """How many partitions a topic has. Answer: `partitions` or `partitions_failed`."""

    request_id: int
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupAsked:
    """Who serves a topic. Answer: `located` or `lookup_failed`."""

    request_id: int
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerAsked:
    """A new producer. Answer: `producer_opened` or `producer_refused`. `name` is None if the broker is to choose one.

    `schema` is that of its messages, if it has any.
    """

    producer_id: int
    request_id: int
    topic: str
    name: str | None
    epoch: int
    access_mode: AccessMode
    properties: tuple[tuple[str, str], ...]
    schema: Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeAsked:
    """A new consumer. Answer: `consumer_opened` or `consumer_refused`. `name` may be empty.

    `schema` is what it reads messages by; None also if it takes whatever schema the topic has.
    """

    consumer_id: int
    request_id: int
    topic: str
    subscription: str
    kind: SubscriptionKind
    name: str
    priority: int
    durable: bool
    key_shared: KeyShared | None
    properties: tuple[tuple[str, str], ...]
    read_compacted: bool
    schema: Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One entry of a producer: `messages` in a batch, or 1. `block` (checksum, metadata, payload) was checked; pass it on as it is.

    `producer` is what `producer_opened` attached. Answer: `receipt`, in the order of publishing; none if its topic is being moved.
    What came with one chunk of bytes is one list: behind the entry at which the service closes a producer there may stand more
    of it. That is to be ignored as well, since the client will send it again.
    """

    producer: object
    sequence_id: int
    highest_sequence_id: int
    messages: int
    block: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """An entry whose checksum does not fit. Answer: `send_error` with `CHECKSUM_ERROR`, in the order of the receipts.

    Clients match receipts and errors against the head of their queue, so an error may not overtake the receipts before it.
    """

    producer: object
    sequence_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flowed:
    """A consumer takes this many messages more. No answer."""

    consumer: object
    permits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerClosed:
    """The client closed a producer, which is no longer attached. Answer: `succeed`."""

    producer: object
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerClosed:
    """The client closed a consumer, which is no longer attached. Answer: `succeed`."""

    consumer: object
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribed:
    """A consumer wants its subscription to end. Answer: `succeed`, which ends the consumer too, or `fail`.

    Others that are connected to it are a reason to fail; if `is_forced`, they are disconnected.
    """

    consumer: object
    request_id: int
    is_forced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """A consumer was told that it is where it wanted to be: at the messages to come. No further answer."""

    consumer: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """A consumer acknowledged something. Counted only."""

    consumer: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatsAsked:
    """How a consumer fares. Answer: `consumer_stats`."""

    consumer: object
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsAsked:
    """Which topics a namespace has. Answer: `topics` or `topics_failed`."""

    request_id: int
    namespace: str
    mode: TopicsMode


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaAsked:
    """The schema of a topic, of one version or, with None, the newest. Answer: `schema_found` or `schema_missing`."""

    request_id: int
    topic: str
    version: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOffered:
    """A schema that a topic is to know. Answer: `schema_accepted` or `schema_refused`."""

    request_id: int
    topic: str
    schema: Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationCancelled:
    """The client closed what the service has not yet opened, and was answered. An answer of the service to it is not sent any more."""

    kind: Kind
    id: int
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedAway:
    """A command, `what`, that the connection refused by itself. Counted only."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last request of a connection: write what is outgoing, then close. Whatever is attached is attached no more."""

    problem: str
    counted_as: Violation


Request = (
    Connected
    | PartitionsAsked
    | LookupAsked
    | ProducerAsked
    | SubscribeAsked
    | Published
    | Damaged
    | Flowed
    | ProducerClosed
    | ConsumerClosed
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

# Those that wait for an answer to their `request_id`.
AnyAsked = (
    PartitionsAsked
    | LookupAsked
    | ProducerAsked
    | SubscribeAsked
    | ProducerClosed
    | ConsumerClosed
    | Unsubscribed
    | ConsumerStatsAsked
    | TopicsAsked
    | SchemaAsked
    | SchemaOffered
)
