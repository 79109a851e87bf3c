"""What clients say: bytes of a command to protobuf's messages, and those to the requests of `brokers.pulsar.wire.requests`.

May live here: reading, and the bounds on what is read. Both raise typed errors only: `MalformedCommand` and the like for what
no client sends, `NotServed` for what one may well send and gets refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from equipoise.brokers.pulsar.topics.keys import RANGES_PER_CONSUMER_MAX
from equipoise.brokers.pulsar.wire.errors import MalformedCommand, NotServed, ServerError, UnknownCommand, UnsupportedVersion
from equipoise.brokers.pulsar.wire.frames import metadata_of
from equipoise.brokers.pulsar.wire.limits import PAIR_BYTES, Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandConnect,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    KeySharedMeta,
    KeyValue,
    MessageMetadata,
)
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import Schema as WireSchema
from equipoise.brokers.pulsar.wire.requests import (
    AccessMode,
    KeyShared,
    LookupAsked,
    PartitionsAsked,
    ProducerAsked,
    Schema,
    SchemaAsked,
    SchemaOffered,
    SubscribeAsked,
    SubscriptionKind,
    TopicsAsked,
    TopicsMode,
)
from equipoise.brokers.pulsar.wire.waiting import Asked

Question = PartitionsAsked | LookupAsked | TopicsAsked | SchemaAsked | SchemaOffered
T = TypeVar("T", BaseCommand, MessageMetadata)

# What we speak. Clients know from it that they may send checksums, and close a connection that says more than they speak.
_VERSION: Final = 20
# From here on clients send checksums (6), and understand that a broker closes a producer or consumer (5).
_VERSION_MIN: Final = 6

# The command, and so the sub-message, of each type: Pulsar gives both the same number.
_BODY_OF_TYPE: Final = {number: field.name for number, field in BaseCommand.DESCRIPTOR.fields_by_number.items()}

# Types of Pulsar that say no more than that there is no schema: bytes, and "whatever the topic has".
_NO_SCHEMA: Final = 0
_AUTO_CONSUME: Final = 21

# The smallest message of a batch: the size of its metadata, and metadata that says that its payload has 0 bytes.
_MESSAGE_BYTES_MIN: Final = 6
# What compression makes of it at best: ZSTD's blocks of 128 KiB that are one byte repeated, in four bytes each.
_COMPRESSED_BY_MAX: Final = 32_768

# Requests that this broker refuses one and all: transactions, and lists of topics that are watched.
NOT_SERVED: Final = (
    BaseCommand.NEW_TXN,
    BaseCommand.ADD_PARTITION_TO_TXN,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN,
    BaseCommand.END_TXN,
    BaseCommand.END_TXN_ON_PARTITION,
    BaseCommand.END_TXN_ON_SUBSCRIPTION,
    BaseCommand.TC_CLIENT_CONNECT_REQUEST,
    BaseCommand.WATCH_TOPIC_LIST,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE,
)


def parse(command: bytes) -> BaseCommand:
    """A command, with all that it must have; raises `MalformedCommand`, or `UnknownCommand` for a type of tomorrow."""
    parsed = _parse(BaseCommand, command)
    if not parsed.HasField("type"):
        raise UnknownCommand(problem=f"a command of {len(command)} bytes with a type that is not known here")
    # Where its sub-message is missing, each of its fields would read as 0.
    if not parsed.HasField(_BODY_OF_TYPE[parsed.type]):
        raise MalformedCommand(problem=f"a command {name_of(parsed)} without its body")
    return parsed


def name_of(command: BaseCommand) -> str:
    """The name of a command's type, as Pulsar has it."""
    return BaseCommand.Type.Name(command.type)


def request_id_of(command: BaseCommand) -> int:
    """The id of a request; only asked of commands that have one."""
    return int(getattr(command, _BODY_OF_TYPE[command.type]).request_id)


def messages_in(send: CommandSend, block: bytes, limits: Limits) -> int:
    """How many messages an entry holds, at least 1: what its client says, as far as there is room for them in it.

    Raises `MalformedFrame` or `MalformedCommand` if its metadata cannot be read by each consumer: a block is passed on unchanged,
    and some clients close their connection at one that they cannot read.
    """
    spelled = metadata_of(block)
    metadata = _parse(MessageMetadata, spelled)
    if send.num_messages <= 1:
        return 1
    room_bytes = len(block) - len(spelled)
    if metadata.compression:
        room_bytes = min(metadata.uncompressed_size, room_bytes * _COMPRESSED_BY_MAX)
    return min(send.num_messages, max(room_bytes // _MESSAGE_BYTES_MIN, 1), limits.messages_per_entry_max)


def kept_bytes(asked: ProducerAsked | SubscribeAsked) -> int:
    """What of a request is kept for as long as that which it creates, as `Limits.kept_bytes_max` counts it."""
    names = [asked.topic, asked.name or ""]
    ranges: Sequence[tuple[int, int]] = ()
    if isinstance(asked, SubscribeAsked):
        names.append(asked.subscription)
        ranges = asked.key_shared.ranges if asked.key_shared is not None else ()
    return sum(len(name.encode()) for name in names) + _properties_bytes(asked.properties) + len(ranges) * PAIR_BYTES


def _parse(kind: type[T], data: bytes) -> T:
    try:
        parsed = kind.FromString(data)
    except DecodeError:
        raise MalformedCommand(problem=f"{len(data)} bytes that are no {kind.__name__}") from None
    if not parsed.IsInitialized():
        raise MalformedCommand(problem=f"a {kind.__name__} that lacks a field that it must have")
    return parsed


def _text(value: str) -> str:
    """A text that was read. What is not UTF-8, protobuf's Python hands out as bytes, whatever its types say."""
    if not isinstance(value, str):
        raise MalformedCommand(problem="a text that is not UTF-8")
    return value


def _name(what: str, value: str, limits: Limits) -> str:
    """A name of a length that is kept for as long as the thing that it names; raises `NotServed`."""
    text = _text(value)
    if len(text) > limits.name_characters_max:
        raise NotServed(
            error=ServerError.NOT_ALLOWED,
            problem=f"this {what} has {len(text)} characters; at most {limits.name_characters_max} are taken",
        )
    return text


def _properties(pairs: Iterable[KeyValue], limits: Limits) -> tuple[tuple[str, str], ...]:
    properties = tuple((_text(pair.key), _text(pair.value)) for pair in pairs)
    size = _properties_bytes(properties)
    if size > limits.properties_bytes_max:
        problem = (
            f"these {len(properties)} properties take {size} bytes, of which each counts {PAIR_BYTES} by itself; at most "
            f"{limits.properties_bytes_max} are taken"
        )
        raise NotServed(error=ServerError.NOT_ALLOWED, problem=problem)
    return properties


def _properties_bytes(properties: Sequence[tuple[str, str]]) -> int:
    return sum(PAIR_BYTES + len(key.encode()) + len(value.encode()) for key, value in properties)


def agreed_version(command: CommandConnect) -> int:
    """Return the protocol version to speak with a client; raises `UnsupportedVersion` if the client is too old."""
    version = min(_VERSION, command.protocol_version)
    if version < _VERSION_MIN:
        raise UnsupportedVersion(problem=f"a client of protocol version {version}; at least {_VERSION_MIN} is needed")
    return version


def client_version(command: CommandConnect, limits: Limits) -> str:
    """What a client says that it is, cut to a length that can be kept."""
    return _text(command.client_version)[: limits.name_characters_max]


def _partitions_asked(command: BaseCommand, limits: Limits) -> PartitionsAsked:
    asked = command.partitioned_metadata
    return PartitionsAsked(request_id=asked.request_id, topic=_name("topic name", asked.topic, limits))


def _lookup_asked(command: BaseCommand, limits: Limits) -> LookupAsked:
    asked = command.lookup
    return LookupAsked(request_id=asked.request_id, topic=_name("topic name", asked.topic, limits))


def _topics_asked(command: BaseCommand, limits: Limits) -> TopicsAsked:
    asked = command.get_topics_of_namespace
    namespace = _name("namespace name", asked.namespace, limits)
    return TopicsAsked(request_id=asked.request_id, namespace=namespace, mode=TopicsMode(asked.mode))


def _schema_asked(command: BaseCommand, limits: Limits) -> SchemaAsked:
    asked = command.get_schema
    # Some clients send an empty version for the newest.
    topic = _name("topic name", asked.topic, limits)
    return SchemaAsked(request_id=asked.request_id, topic=topic, version=asked.schema_version or None)


def _schema_offered(command: BaseCommand, limits: Limits) -> SchemaOffered:
    asked = command.get_or_create_schema
    schema = _schema(asked.schema, limits)
    return SchemaOffered(request_id=asked.request_id, topic=_name("topic name", asked.topic, limits), schema=schema)


def _schema(schema: WireSchema, limits: Limits) -> Schema:
    return Schema(
        name=_name("schema name", schema.name, limits),
        kind=schema.type,
        definition=schema.schema_data,
        properties=_properties(schema.properties, limits),
    )


def _own_schema(command: CommandProducer | CommandSubscribe, limits: Limits) -> Schema | None:
    """The schema that a producer or consumer has itself, if it has one."""
    if not command.HasField("schema") or command.schema.type in (_NO_SCHEMA, _AUTO_CONSUME):
        return None
    return _schema(command.schema, limits)


# The questions that are nothing more to the connection, by type of command.
_QUESTIONS: Final[dict[int, tuple[Asked, Callable[[BaseCommand, Limits], Question]]]] = {
    BaseCommand.PARTITIONED_METADATA: (Asked.PARTITIONS, _partitions_asked),
    BaseCommand.LOOKUP: (Asked.LOOKUP, _lookup_asked),
    BaseCommand.GET_TOPICS_OF_NAMESPACE: (Asked.TOPICS, _topics_asked),
    BaseCommand.GET_SCHEMA: (Asked.SCHEMA, _schema_asked),
    BaseCommand.GET_OR_CREATE_SCHEMA: (Asked.NEW_SCHEMA, _schema_offered),
}


def question(command: BaseCommand, limits: Limits) -> tuple[Asked, Question]:
    """The request of a command that asks something without creating anything, and its class; raises `NotServed` for long names."""
    kind, read = _QUESTIONS[command.type]
    return kind, read(command, limits)


def producer_asked(command: CommandProducer, limits: Limits) -> ProducerAsked:
    """The request of PRODUCER; raises `NotServed` for a mode of access that is not known."""
    try:
        access_mode = AccessMode(command.producer_access_mode)
    except ValueError:
        raise NotServed(
            error=ServerError.NOT_ALLOWED, problem=f"there is no access mode {command.producer_access_mode} on this broker"
        ) from None
    return ProducerAsked(
        producer_id=command.producer_id,
        request_id=command.request_id,
        topic=_name("topic name", command.topic, limits),
        name=_name("producer name", command.producer_name, limits) or None,
        epoch=command.epoch,
        access_mode=access_mode,
        properties=_properties(command.metadata, limits),
        schema=_own_schema(command, limits),
    )


def subscribe_asked(command: CommandSubscribe, limits: Limits) -> SubscribeAsked:
    """The request of SUBSCRIBE; raises `NotServed` for a subscription without a name, and too many ranges of hashes."""
    if not command.subscription:
        # The code is Pulsar's, odd as it is.
        raise NotServed(error=ServerError.PRODUCER_BUSY, problem="Empty subscription name")
    kind = SubscriptionKind(command.subType)
    return SubscribeAsked(
        consumer_id=command.consumer_id,
        request_id=command.request_id,
        topic=_name("topic name", command.topic, limits),
        subscription=_name("subscription name", command.subscription, limits),
        kind=kind,
        name=_name("consumer name", command.consumer_name, limits),
        priority=command.priority_level,
        durable=command.durable,
        key_shared=_key_shared(command.keySharedMeta) if kind is SubscriptionKind.KEY_SHARED else None,
        properties=_properties(command.metadata, limits),
        read_compacted=command.read_compacted,
        schema=_own_schema(command, limits),
    )


def _key_shared(meta: KeySharedMeta) -> KeyShared:
    """What a consumer says of its keys; of ranges nothing is kept unless it is STICKY. Without the field it reads as AUTO_SPLIT."""
    if meta.keySharedMode != KeySharedMeta.STICKY:
        return KeyShared(is_sticky=False, ranges=())
    if len(meta.hashRanges) > RANGES_PER_CONSUMER_MAX:
        problem = f"a STICKY consumer names at most {RANGES_PER_CONSUMER_MAX} ranges of hashes that it takes, not {len(meta.hashRanges)}"
        raise NotServed(error=ServerError.CONSUMER_ASSIGN_ERROR, problem=problem)
    return KeyShared(is_sticky=True, ranges=tuple((part.start, part.end) for part in meta.hashRanges))
