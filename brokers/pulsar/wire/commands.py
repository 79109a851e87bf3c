"""Parse the commands of clients into the requests of `brokers.pulsar.wire.requests`, within bounds.

Raises `PulsarProtocolError` for what no client sends, and `NotServed` for valid requests that are
refused.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError

from equipoise.brokers.pulsar.wire.errors import NotServed
from equipoise.brokers.pulsar.wire.frames import metadata_of
from equipoise.brokers.pulsar.wire.limits import PAIR_BYTES, RANGES_PER_CONSUMER_MAX, Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    AuthData,
    BaseCommand,
    CommandConnect,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    KeySharedMeta,
    KeyValue,
    MessageMetadata,
    ServerError,
)
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import Schema as WireSchema
from equipoise.brokers.pulsar.wire.requests import (
    AccessMode,
    Creation,
    KeyShared,
    LookupAsked,
    PartitionsAsked,
    ProducerAsked,
    PulsarProtocolError,
    Question,
    Schema,
    SchemaAsked,
    SchemaOffered,
    SubscribeAsked,
    SubscriptionKind,
    TopicsAsked,
    TopicsMode,
    Violation,
)
from equipoise.brokers.security.identity import TLS, Credentials

T = TypeVar("T", BaseCommand, MessageMetadata)

# The protocol version of this broker. Clients infer from it that they may send checksums; they
# close a connection whose version is higher than their own.
_VERSION: Final = 20
# The oldest version served. Clients send checksums from 6 on, and accept CLOSE_PRODUCER and
# CLOSE_CONSUMER from 5 on.
_VERSION_MIN: Final = 6

# The sub-message of each command type: Pulsar gives both the same number.
_BODY_OF_TYPE: Final = {
    number: field.name for number, field in BaseCommand.DESCRIPTOR.fields_by_number.items()
}

# The start of nearly all commands: type SEND, and the tag of its body. A length of one byte
# follows, since a SEND has few short fields.
_PLAIN_SEND: Final = b"\x08\x06\x32"
_ONE_BYTE_MAX: Final = 127

# Schema types that mean no schema: bytes, and "use the topic's schema".
_NO_SCHEMA: Final = 0
_AUTO_CONSUME: Final = 21

# The smallest message of a batch: the size of its metadata, and metadata for an empty payload.
_MESSAGE_BYTES_MIN: Final = 6
# The best compression: a ZSTD block of 128 KiB of one repeated byte takes four bytes.
_COMPRESSED_BY_MAX: Final = 32_768

# The largest metadata that is searched for a key. Parsing 5 MiB of empty properties would take 0.3
# s of the event loop.
_KEY_BYTES_MAX: Final = 256 * 1024

# Requests that this broker always refuses: transactions and topic list watchers.
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
    """Parse a complete command. Raise `PulsarProtocolError`."""
    parsed = _parse(BaseCommand, command)
    if not parsed.HasField("type"):
        raise PulsarProtocolError(
            Violation.UNKNOWN_COMMAND, f"a command of {len(command)} bytes with an unknown type"
        )
    # Without its sub-message all fields would read as 0.
    if not parsed.HasField(_BODY_OF_TYPE[parsed.type]):
        raise PulsarProtocolError(
            Violation.MALFORMED_COMMAND, f"a command {name_of(parsed)} without its body"
        )
    return parsed


def plain_send(command: bytes) -> CommandSend | None:
    """Parse a complete SEND without its envelope, as all clients encode it. Return None for
    anything else, which `parse` can judge.
    """
    start = len(_PLAIN_SEND) + 1
    body_bytes = len(command) - start
    if (
        not 0 < body_bytes <= _ONE_BYTE_MAX
        or command[start - 1] != body_bytes
        or not command.startswith(_PLAIN_SEND)
    ):
        return None
    try:
        send = CommandSend.FromString(command[start:])
    except DecodeError:
        return None
    return send if send.IsInitialized() else None


def name_of(command: BaseCommand) -> str:
    """Return Pulsar's name of a command's type."""
    return BaseCommand.Type.Name(command.type)


def requests_among(types: Iterable[BaseCommand.Type]) -> tuple[str, ...]:
    """Return Pulsar's names of the command types that have a request id."""
    blank = BaseCommand()
    return tuple(
        BaseCommand.Type.Name(type_)
        for type_ in types
        if hasattr(getattr(blank, _BODY_OF_TYPE[type_]), "request_id")
    )


def request_id_of(command: BaseCommand) -> int:
    """Return the id of a request. The command must have one."""
    return int(getattr(command, _BODY_OF_TYPE[command.type]).request_id)


def messages_in(send: CommandSend, block: bytes, limits: Limits) -> int:
    """Return the number of messages in an entry, at least 1: the client's number, limited to what
    fits into the entry.

    Raises `PulsarProtocolError` if consumers could not read the metadata. Blocks are forwarded
    unchanged, and some clients close their connection when they cannot read one.
    """
    data = metadata_of(block)
    metadata = _parse(MessageMetadata, data)
    if send.num_messages <= 1:
        return 1
    room_bytes = len(block) - len(data)
    if metadata.compression:
        room_bytes = min(metadata.uncompressed_size, room_bytes * _COMPRESSED_BY_MAX)
    return min(
        send.num_messages, max(room_bytes // _MESSAGE_BYTES_MIN, 1), limits.messages_per_entry_max
    )


def key_of(block: bytes) -> bytes | None:
    """Return the key that dispatches an entry: its ordering key, else its partition key, else None.
    Damaged metadata has no key.

    The same holds for metadata of more than `_KEY_BYTES_MAX`. Source: `peekStickyKey` of Pulsar's
    `Commands`.
    """
    try:
        data = metadata_of(block)
        if len(data) > _KEY_BYTES_MAX:
            return None
        metadata = MessageMetadata.FromString(data)
    except (DecodeError, PulsarProtocolError):
        return None
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if not metadata.HasField("partition_key"):
        return None
    text: str | bytes = metadata.partition_key  # Bytes if it is not UTF-8, contrary to its type.
    key = text.encode() if isinstance(text, str) else text
    if not metadata.partition_key_b64_encoded:
        return key
    try:
        return binascii.a2b_base64(key, strict_mode=True)
    except binascii.Error:
        return key


def kept_bytes(asked: Creation) -> int:
    """Return how many bytes of a request are kept with what it creates, as `Limits.kept_bytes_max`
    counts them.
    """
    key_shared = asked.key_shared if isinstance(asked, SubscribeAsked) else None
    return (
        sum(len(name.encode()) for name in (*asked.place, asked.name or ""))
        + _properties_bytes(asked.properties)
        + (0 if key_shared is None else len(key_shared.ranges) * PAIR_BYTES)
    )


def _parse(kind: type[T], data: bytes) -> T:
    try:
        parsed = kind.FromString(data)
    except DecodeError:
        raise PulsarProtocolError(
            Violation.MALFORMED_COMMAND, f"{len(data)} bytes that are not a {kind.__name__}"
        ) from None
    if not parsed.IsInitialized():
        raise PulsarProtocolError(
            Violation.MALFORMED_COMMAND, f"a {kind.__name__} without a required field"
        )
    return parsed


def _text(value: str) -> str:
    """Return a text field as str. Protobuf returns bytes for invalid UTF-8, contrary to its
    types.
    """
    if not isinstance(value, str):
        raise PulsarProtocolError(Violation.MALFORMED_COMMAND, "a text that is not UTF-8")
    return value


def _name(what: str, value: str, limits: Limits) -> str:
    """Check the length of a name that is kept. Raise `NotServed`."""
    text = _text(value)
    if len(text) > limits.name_characters_max:
        raise NotServed(
            error=ServerError.NotAllowedError,
            problem=(
                f"the {what} has {len(text)} characters; the maximum is"
                f" {limits.name_characters_max}"
            ),
        )
    return text


def _properties(pairs: Iterable[KeyValue], limits: Limits) -> tuple[tuple[str, str], ...]:
    properties = tuple((_text(pair.key), _text(pair.value)) for pair in pairs)
    size = _properties_bytes(properties)
    if size > limits.properties_bytes_max:
        problem = (
            f"{len(properties)} properties take {size} bytes ({PAIR_BYTES} per pair); the maximum"
            f" is {limits.properties_bytes_max}"
        )
        raise NotServed(error=ServerError.NotAllowedError, problem=problem)
    return properties


def _properties_bytes(properties: Sequence[tuple[str, str]]) -> int:
    return sum(PAIR_BYTES + len(key.encode()) + len(value.encode()) for key, value in properties)


def agreed_version(command: CommandConnect) -> int:
    """Return the protocol version to use with a client. Raise `PulsarProtocolError` if the client
    is too old.
    """
    version = min(_VERSION, command.protocol_version)
    if version < _VERSION_MIN:
        raise PulsarProtocolError(
            Violation.UNSUPPORTED_VERSION,
            f"protocol version {version}; the minimum is {_VERSION_MIN}",
        )
    return version


# What clients without authentication call their method.
_NO_METHODS: Final = frozenset({"", "none"})


def credentials_in(data: CommandConnect | AuthData) -> Credentials | None:
    """Return what a client sends to prove who it is, or None. Clients without authentication name
    the method `none`, or no method.
    """
    method = _text(data.auth_method_name)
    original = (
        (_text(data.original_principal) or None) if isinstance(data, CommandConnect) else None
    )
    if data.auth_data or method not in _NO_METHODS:
        return Credentials(method=method, data=data.auth_data, original=original)
    # Then only a certificate can prove who the proxy is.
    return None if original is None else Credentials(method=TLS, data=b"", original=original)


def client_version(command: CommandConnect, limits: Limits) -> str:
    """Return the version text of a client, truncated."""
    return _text(command.client_version)[: limits.name_characters_max]


def _schema(schema: WireSchema, limits: Limits) -> Schema:
    return Schema(
        name=_name("schema name", schema.name, limits),
        kind=schema.type,
        definition=schema.schema_data,
        properties=_properties(schema.properties, limits),
    )


def _own_schema(command: CommandProducer | CommandSubscribe, limits: Limits) -> Schema | None:
    """Return the schema that a producer or consumer brings, or None."""
    if not command.HasField("schema") or command.schema.type in (_NO_SCHEMA, _AUTO_CONSUME):
        return None
    return _schema(command.schema, limits)


def _producer_asked(command: BaseCommand, limits: Limits) -> ProducerAsked:
    asked = command.producer
    try:
        access_mode = AccessMode(asked.producer_access_mode)
    except ValueError:
        raise NotServed(
            error=ServerError.NotAllowedError,
            problem=(
                f"access mode {asked.producer_access_mode} does not exist; use Shared or Exclusive"
            ),
        ) from None
    return ProducerAsked(
        id=asked.producer_id,
        request_id=asked.request_id,
        topic=_name("topic name", asked.topic, limits),
        name=_name("producer name", asked.producer_name, limits) or None,
        epoch=asked.epoch,
        access_mode=access_mode,
        properties=_properties(asked.metadata, limits),
        schema=_own_schema(asked, limits),
        is_encrypted=asked.encrypted,
    )


def _subscribe_asked(command: BaseCommand, limits: Limits) -> SubscribeAsked:
    asked = command.subscribe
    if not asked.subscription:
        # Pulsar uses this code.
        raise NotServed(error=ServerError.ProducerBusy, problem="Empty subscription name")
    kind = SubscriptionKind(asked.subType)
    return SubscribeAsked(
        id=asked.consumer_id,
        request_id=asked.request_id,
        topic=_name("topic name", asked.topic, limits),
        subscription=_name("subscription name", asked.subscription, limits),
        kind=kind,
        name=_name("consumer name", asked.consumer_name, limits),
        priority=asked.priority_level,
        key_shared=(
            _key_shared(asked.keySharedMeta) if kind is SubscriptionKind.KEY_SHARED else None
        ),
        properties=_properties(asked.metadata, limits),
        read_compacted=asked.read_compacted,
        schema=_own_schema(asked, limits),
    )


def _key_shared(meta: KeySharedMeta) -> KeyShared:
    """Return a consumer's key settings. The mode defaults to AUTO_SPLIT; only STICKY keeps the
    ranges.
    """
    if meta.keySharedMode != KeySharedMeta.STICKY:
        return KeyShared(is_sticky=False, ranges=())
    if len(meta.hashRanges) > RANGES_PER_CONSUMER_MAX:
        problem = (
            f"a STICKY consumer may name at most {RANGES_PER_CONSUMER_MAX} hash ranges, not"
            f" {len(meta.hashRanges)}"
        )
        raise NotServed(error=ServerError.ConsumerAssignError, problem=problem)
    return KeyShared(
        is_sticky=True, ranges=tuple((part.start, part.end) for part in meta.hashRanges)
    )


def question(command: BaseCommand, limits: Limits) -> Question:
    """Return the request of a command that is about no id. Raise `NotServed` for long names."""
    asked: Any = getattr(command, _BODY_OF_TYPE[command.type])
    request_id = asked.request_id
    if command.type == BaseCommand.GET_TOPICS_OF_NAMESPACE:
        namespace = _name("namespace name", asked.namespace, limits)
        return TopicsAsked(request_id=request_id, namespace=namespace, mode=TopicsMode(asked.mode))
    topic = _name("topic name", asked.topic, limits)
    match command.type:
        case BaseCommand.PARTITIONED_METADATA:
            return PartitionsAsked(request_id=request_id, topic=topic)
        case BaseCommand.LOOKUP:
            return LookupAsked(request_id=request_id, topic=topic)
        case BaseCommand.GET_SCHEMA:
            # Some clients send an empty version for the newest schema.
            version = asked.schema_version or None
            return SchemaAsked(request_id=request_id, topic=topic, version=version)
        case _:
            schema = _schema(asked.schema, limits)
            return SchemaOffered(request_id=request_id, topic=topic, schema=schema)


def creation(command: BaseCommand, limits: Limits) -> Creation:
    """Return the request of PRODUCER or SUBSCRIBE. Raise `NotServed` for long names, an unknown
    access mode, an empty subscription name or too many hash ranges.
    """
    is_producer = command.type == BaseCommand.PRODUCER
    return (_producer_asked if is_producer else _subscribe_asked)(command, limits)
