"""Encode each reply to a client as a frame.

Every field that some client reads unchecked is set. No field is set whose mere presence means
failure to a client. The two replies sent for each message are encoded by hand, and so is the topic
list that many clients share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from equipoise.brokers.pulsar.wire.frames import frame, frame_head
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    AuthData,
    BaseCommand,
    CommandAckResponse,
    CommandActiveConsumerChange,
    CommandAuthChallenge,
    CommandConnected,
    CommandConsumerStatsResponse,
    CommandError,
    CommandGetLastMessageIdResponse,
    CommandGetOrCreateSchemaResponse,
    CommandGetSchemaResponse,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    CommandPing,
    CommandPong,
    CommandProducerSuccess,
    CommandSendError,
    CommandSuccess,
    KeyValue,
    MessageIdData,
    ServerError,
)
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import Schema as WireSchema
from equipoise.brokers.pulsar.wire.requests import (
    Asked,
    Creation,
    ProducerAsked,
    Schema,
    version_of,
)

SERVER_VERSION: Final = "Equipoise"
# What Pulsar's brokers send to ask for fresh credentials.
_REFRESH: Final = b"PulsarAuthRefresh"
# -1 in an unsigned field of 64 bits: no request, or no message.
MINUS_ONE: Final = 2**64 - 1

# A new consumer that gets one of these waits forever for a retry that it never starts, unless a
# CLOSE_CONSUMER follows (some clients).
_RETRIED: Final = frozenset(
    {
        ServerError.UnknownError,
        ServerError.MetadataError,
        ServerError.PersistenceError,
        ServerError.ServiceNotReady,
        ServerError.UnsupportedVersionError,
        ServerError.SubscriptionNotFound,
        ServerError.ConsumerNotFound,
        ServerError.InvalidTopicName,
    }
)


def _framed(command: BaseCommand) -> bytes:
    """Frame a command. Its type has the number of its body."""
    ((body, _),) = command.ListFields()
    command.type = cast("BaseCommand.Type", body.number)
    return frame(command.SerializeToString())


def _by_transport(url: str | None) -> tuple[str | None, str | None]:
    """Return an address as the pair of fields of all answers with one: without TLS, and with TLS.
    Clients read only their own.
    """
    return (None, url) if url is not None and url.startswith("pulsar+ssl:") else (url, None)


PING: Final = _framed(BaseCommand(ping=CommandPing()))
PONG: Final = _framed(BaseCommand(pong=CommandPong()))


def connected(protocol_version: int, message_bytes_max: int) -> bytes:
    """CONNECTED. It sets no feature flag, because none of those features is served."""
    body = CommandConnected(
        server_version=SERVER_VERSION,
        protocol_version=protocol_version,
        max_message_size=message_bytes_max,
    )
    return _framed(BaseCommand(connected=body))


def auth_challenge(method: str, protocol_version: int) -> bytes:
    """AUTH_CHALLENGE: the client answers with fresh credentials of a method."""
    challenge = AuthData(auth_method_name=method, auth_data=_REFRESH)
    body = CommandAuthChallenge(
        server_version=SERVER_VERSION, challenge=challenge, protocol_version=protocol_version
    )
    return _framed(BaseCommand(auth_challenge=body))


def success(request_id: int) -> bytes:
    """SUCCESS."""
    return _framed(BaseCommand(success=CommandSuccess(request_id=request_id)))


def error(request_id: int, code: ServerError, message: str) -> bytes:
    """ERROR."""
    return _framed(
        BaseCommand(error=CommandError(request_id=request_id, error=code, message=message))
    )


def partitions(request_id: int, count: int) -> bytes:
    """PARTITIONED_METADATA_RESPONSE: the number of partitions, 0 for a topic without any."""
    body = CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        partitions=count,
        response=CommandPartitionedTopicMetadataResponse.Success,
    )
    return _framed(BaseCommand(partitioned_metadata_response=body))


def located(request_id: int, url: str) -> bytes:
    """LOOKUP_RESPONSE: connect to this address, `pulsar://host:port` or `pulsar+ssl://host:port`,
    as the owner advertises it everywhere.

    The answer is final, since all brokers read the owner from the same log.
    """
    plain, tls = _by_transport(url)
    body = CommandLookupTopicResponse(
        request_id=request_id,
        brokerServiceUrl=plain,
        brokerServiceUrlTls=tls,
        response=CommandLookupTopicResponse.Connect,
        authoritative=True,
        proxy_through_service_url=False,
    )
    return _framed(BaseCommand(lookup_response=body))


def producer_success(request_id: int, name: str, schema_version: bytes) -> bytes:
    """PRODUCER_SUCCESS. The last sequence is -1, since nothing is stored. The version is set even
    if empty (no schema).
    """
    body = CommandProducerSuccess(
        request_id=request_id,
        producer_name=name,
        last_sequence_id=-1,
        schema_version=schema_version,
        producer_ready=True,
    )
    return _framed(BaseCommand(producer_success=body))


def created(request: Creation, name: str) -> bytes:
    """Return the answer to a creation that succeeds: PRODUCER_SUCCESS, or SUCCESS."""
    if isinstance(request, ProducerAsked):
        return producer_success(request.request_id, name, version_of(request.schema))
    return success(request.request_id)


def send_error(producer_id: int, sequence_id: int, code: ServerError, message: str) -> bytes:
    """SEND_ERROR. Use `CHECKSUM_ERROR` only: on other codes some clients reconnect and send the
    entry again, forever.
    """
    body = CommandSendError(
        producer_id=producer_id, sequence_id=sequence_id, error=code, message=message
    )
    return _framed(BaseCommand(send_error=body))


def close(asked: Asked, id_: int, url: str | None) -> bytes:
    """CLOSE_PRODUCER or CLOSE_CONSUMER from the broker, with the new address if known. Clients do
    not reply.
    """
    plain, tls = _by_transport(url)
    body = {
        "request_id": MINUS_ONE,
        "assignedBrokerServiceUrl": plain,
        "assignedBrokerServiceUrlTls": tls,
    }
    if asked is Asked.PRODUCER:
        return _framed(BaseCommand(close_producer={"producer_id": id_, **body}))
    return _framed(BaseCommand(close_consumer={"consumer_id": id_, **body}))


def active_consumer_change(consumer_id: int, *, is_active: bool) -> bytes:
    """ACTIVE_CONSUMER_CHANGE."""
    return _framed(
        BaseCommand(
            active_consumer_change=CommandActiveConsumerChange(
                consumer_id=consumer_id, is_active=is_active
            )
        )
    )


def ack_response(consumer_id: int, request_id: int) -> bytes:
    """ACK_RESPONSE with success. An error field would mean failure by its presence."""
    return _framed(
        BaseCommand(ack_response=CommandAckResponse(consumer_id=consumer_id, request_id=request_id))
    )


def no_last_message(request_id: int) -> bytes:
    """GET_LAST_MESSAGE_ID_RESPONSE of a topic that stores nothing."""
    nothing = MessageIdData(ledgerId=MINUS_ONE, entryId=MINUS_ONE)
    body = CommandGetLastMessageIdResponse(
        request_id=request_id, last_message_id=nothing, consumer_mark_delete_position=nothing
    )
    return _framed(BaseCommand(get_last_message_id_response=body))


def consumer_stats(
    request_id: int,
    *,
    name: str,
    kind: str,
    address: str,
    connected_since: str,
    permits: int,
    message_rate: float,
    byte_rate: float,
) -> bytes:
    """CONSUMER_STATS_RESPONSE. Rates are per second, `connected_since` is ISO 8601, `kind` is
    Pulsar's name. Counts that do not apply to a non-persistent topic are 0.
    """
    body = CommandConsumerStatsResponse(
        request_id=request_id,
        msgRateOut=message_rate,
        msgThroughputOut=byte_rate,
        msgRateRedeliver=0.0,
        consumerName=name,
        availablePermits=max(permits, 0),
        unackedMessages=0,
        blockedConsumerOnUnackedMsgs=False,
        address=address,
        connectedSince=connected_since,
        type=kind,
        msgRateExpired=0.0,
        msgBacklog=0,
        messageAckRate=0.0,
    )
    return _framed(BaseCommand(consumer_stats_response=body))


def schema_found(request_id: int, version: bytes, schema: Schema) -> bytes:
    """GET_SCHEMA_RESPONSE: a schema and its version."""
    found = WireSchema(
        name=schema.name,
        schema_data=schema.definition,
        type=schema.kind,
        properties=[KeyValue(key=key, value=value) for key, value in schema.properties],
    )
    return _framed(
        BaseCommand(
            get_schema_response=CommandGetSchemaResponse(
                request_id=request_id, schema=found, schema_version=version
            )
        )
    )


def schema_accepted(request_id: int, version: bytes) -> bytes:
    """GET_OR_CREATE_SCHEMA_RESPONSE: the schema's version."""
    body = CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return _framed(BaseCommand(get_or_create_schema_response=body))


def refusal(
    command: str, request_id: int, code: ServerError, message: str, *, consumer_id: int = 0
) -> bytes:
    """Return the refusal of a command in the form its client expects: the response to it if that
    can fail, else ERROR. A CLOSE_CONSUMER follows to a SUBSCRIBE that the client should retry, to
    make it do so.

    `command` is Pulsar's name. In answers to a lookup use `METADATA_ERROR` for "not now": on
    `SERVICE_NOT_READY` clients close the whole connection.
    """
    about: dict[str, object] = {"request_id": request_id, "error": code, "message": message}
    failed = {"request_id": request_id, "error_code": code, "error_message": message}
    match command:
        case "PARTITIONED_METADATA":
            about["response"] = CommandPartitionedTopicMetadataResponse.Failed
            reply = BaseCommand(partitioned_metadata_response=about)
        case "LOOKUP":
            about["response"] = CommandLookupTopicResponse.Failed
            reply = BaseCommand(lookup_response=about)
        case "CONSUMER_STATS":
            reply = BaseCommand(consumer_stats_response=failed)
        case "GET_SCHEMA":
            reply = BaseCommand(get_schema_response=failed)
        case "GET_OR_CREATE_SCHEMA":
            reply = BaseCommand(get_or_create_schema_response=failed)
        case _:
            reply = BaseCommand(error=about)
    is_retried = command == Asked.CONSUMER.value and code in _RETRIED
    return _framed(reply) + (close(Asked.CONSUMER, consumer_id, None) if is_retried else b"")


# A varint has seven bits of a number per byte, lowest first. The highest bit means that more
# follow.
_SEVEN_BITS: Final = 0x7F
_MORE: Final = 0x80


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > _SEVEN_BITS:
        encoded.append(number & _SEVEN_BITS | _MORE)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# Numbers of up to two bytes: sizes, partitions and most ids.
_SHORT_BITS: Final = 14
_SHORT: Final = tuple(_encode_varint(number) for number in range(1 << _SHORT_BITS))
# The same as the lowest two bytes of a longer number: the entries and sequences of a topic soon
# need four.
_LOWEST: Final = tuple(
    bytes((number & _SEVEN_BITS | _MORE, number >> 7 | _MORE)) for number in range(1 << _SHORT_BITS)
)
_LONG: Final = 1 << 2 * _SHORT_BITS


def _varint(number: int) -> bytes:
    if number < len(_SHORT):
        return _SHORT[number]
    if number < _LONG:
        return _LOWEST[number & len(_SHORT) - 1] + _SHORT[number >> _SHORT_BITS]
    return _encode_varint(number)


def encode_topics(names: Sequence[str]) -> bytes:
    """Encode full topic names once for all clients that ask for them. Clients filter them."""
    return CommandGetTopicsOfNamespaceResponse(
        topics=names, filtered=False, changed=True
    ).SerializePartialToString()


def topics(request_id: int, encoded: bytes) -> bytes:
    """GET_TOPICS_OF_NAMESPACE_RESPONSE with the result of `encode_topics`, which may be megabytes
    and is shared by many clients.
    """
    body = b"".join((b"\x08", _varint(request_id), encoded))
    return frame(b"".join((b"\x08\x21\x8a\x02", _varint(len(body)), body)))


def receipt(producer_id: int, sequence_id: int, highest_sequence_id: int, entry_id: int) -> bytes:
    """SEND_RECEIPT. The ledger is 0."""
    message_id = b"\x08\x00\x10" + _varint(entry_id)
    ids = (
        _varint(producer_id),
        _varint(sequence_id),
        _SHORT[len(message_id)],
        message_id,
        _varint(highest_sequence_id),
    )
    body = b"\x08%b\x10%b\x1a%b%b\x20%b" % ids
    return frame_head(b"\x08\x07\x3a%b%b" % (_SHORT[len(body)], body), 0)


def message_head(consumer_id: int, entry_id: int, partition: int, block_bytes: int) -> bytes:
    """MESSAGE without its block of `block_bytes`, which must follow. The ledger is 0; `partition`
    is -1 if unpartitioned.
    """
    message_id = b"\x08\x00\x10" + _varint(entry_id)
    if partition >= 0:
        message_id += b"\x18" + _varint(partition)
    body = b"\x08%b\x12%b%b" % (_varint(consumer_id), _SHORT[len(message_id)], message_id)
    return frame_head(b"\x08\x09\x4a%b%b" % (_SHORT[len(body)], body), block_bytes)
