"""Test what clients read of each reply."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.commands import request_id_of
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    KeyValue,
)
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import Schema as WireSchema
from equipoise.brokers.pulsar.wire.requests import (
    ConsumerStatsAsked,
    LookupAsked,
    PartitionsAsked,
    Request,
    Schema,
    SchemaAsked,
    SchemaOffered,
    TopicsAsked,
    TopicsMode,
)
from tests.pulsar.pulsar_service import DumbService
from tests.pulsar.pulsar_speech import command, commands_in, framed, with_consumer

B = BaseCommand


def reply(data: bytes) -> BaseCommand:
    """The one command in a frame."""
    ((command, block),) = commands_in(data)
    assert b"" == block
    return command


@pytest.mark.parametrize(
    ("url", "plain", "tls"),
    [
        ("pulsar://b:6650", "pulsar://b:6650", ""),
        ("pulsar+ssl://b:6651", "", "pulsar+ssl://b:6651"),
        (None, "", ""),
    ],
)
def test_an_address_is_in_the_field_of_its_transport(url: str | None, plain: str, tls: str) -> None:
    """A client reads only the field of the transport that it uses itself."""
    if url is not None:
        found = reply(replies.located(1, url)).lookup_response
        assert (plain, tls) == (found.brokerServiceUrl, found.brokerServiceUrlTls)
    closed = reply(replies.close_producer(1, url)).close_producer
    assert (plain, tls) == (closed.assignedBrokerServiceUrl, closed.assignedBrokerServiceUrlTls)
    left = reply(replies.close_consumer(1, url)).close_consumer
    assert (plain, tls) == (left.assignedBrokerServiceUrl, left.assignedBrokerServiceUrlTls)


def test_producer_success_sets_all_fields_that_java_reads() -> None:
    success = reply(replies.producer_success(1, "p", b"")).producer_success
    assert (1, "p", -1, b"", True) == (
        success.request_id,
        success.producer_name,
        success.last_sequence_id,
        success.schema_version,
        success.producer_ready,
    )
    assert success.HasField("schema_version")
    assert success.HasField("producer_ready")


def test_a_lookup_response_is_final() -> None:
    found = reply(replies.located(1, "pulsar://a:1")).lookup_response
    assert (1, "pulsar://a:1", CommandLookupTopicResponse.Connect, True) == (
        found.request_id,
        found.brokerServiceUrl,
        found.response,
        found.authoritative,
    )
    assert not found.HasField("brokerServiceUrlTls")
    assert not found.proxy_through_service_url


def test_zero_partitions_are_set() -> None:
    found = reply(replies.partitions(1, 0)).partitioned_metadata_response
    assert found.HasField("partitions")
    assert CommandPartitionedTopicMetadataResponse.Success == found.response


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("PARTITIONED_METADATA", B.PARTITIONED_METADATA_RESPONSE),
        ("LOOKUP", B.LOOKUP_RESPONSE),
        ("CONSUMER_STATS", B.CONSUMER_STATS_RESPONSE),
        ("GET_SCHEMA", B.GET_SCHEMA_RESPONSE),
        ("GET_OR_CREATE_SCHEMA", B.GET_OR_CREATE_SCHEMA_RESPONSE),
        ("PRODUCER", B.ERROR),
        ("GET_TOPICS_OF_NAMESPACE", B.ERROR),
    ],
)
def test_a_refusal_has_the_form_that_its_client_expects(command: str, expected: B.Type) -> None:
    """It is the response to the command if that can fail, else ERROR."""
    refused = reply(replies.refusal(command, 1, ServerError.NOT_ALLOWED, "why"))
    assert expected == refused.type
    values = [
        value
        for _, value in getattr(refused, B.DESCRIPTOR.fields_by_number[expected].name).ListFields()
    ]
    assert {1, ServerError.NOT_ALLOWED, "why"} <= set(values)


def test_success_leaves_the_error_unset() -> None:
    """Its mere presence would mean failure."""
    stats = replies.ConsumerStats(
        name="c",
        kind="Shared",
        address="a",
        connected_since="s",
        permits=-3,
        message_rate=1.5,
        byte_rate=2.5,
    )
    told = reply(replies.consumer_stats(1, stats)).consumer_stats_response
    assert not told.HasField("error_code")
    assert (0, 1.5, 2.5) == (told.availablePermits, told.msgRateOut, told.msgThroughputOut)
    schema = Schema(name="n", kind=4, definition=b"d", properties=(("a", "b"),))
    found = reply(replies.schema_found(1, b"version", schema)).get_schema_response
    assert (b"version", False) == (found.schema_version, found.HasField("error_code"))
    assert (
        WireSchema(name="n", type=4, schema_data=b"d", properties=[KeyValue(key="a", value="b")])
        == found.schema
    )
    assert not reply(replies.schema_accepted(1, b"")).get_or_create_schema_response.HasField(
        "error_code"
    )


def test_topics_are_not_filtered() -> None:
    told = reply(
        replies.topics(1, replies.encode_topics(["a", "b"]))
    ).get_topics_of_namespace_response
    assert (["a", "b"], False, True) == (list(told.topics), told.filtered, told.changed)


QUESTIONS = (
    (
        command(B.PARTITIONED_METADATA, request_id=7, topic="t"),
        PartitionsAsked(request_id=7, topic="t"),
    ),
    (command(B.LOOKUP, request_id=7, topic="t"), LookupAsked(request_id=7, topic="t")),
    (
        command(
            B.GET_TOPICS_OF_NAMESPACE,
            request_id=7,
            namespace="a/b",
            mode=CommandGetTopicsOfNamespace.NON_PERSISTENT,
        ),
        TopicsAsked(request_id=7, namespace="a/b", mode=TopicsMode.NON_PERSISTENT),
    ),
    (
        command(B.GET_SCHEMA, request_id=7, topic="t", schema_version=b""),
        SchemaAsked(request_id=7, topic="t", version=None),
    ),
    (
        command(
            B.GET_OR_CREATE_SCHEMA,
            request_id=7,
            topic="t",
            schema={"name": "n", "type": 4, "schema_data": b"d"},
        ),
        SchemaOffered(
            request_id=7, topic="t", schema=Schema(name="n", kind=4, definition=b"d", properties=())
        ),
    ),
    (
        command(B.CONSUMER_STATS, request_id=7, consumer_id=2),
        ConsumerStatsAsked(request_id=7, consumer="the consumer"),
    ),
)


@pytest.mark.parametrize("favourably", [True, False])
@pytest.mark.parametrize(
    ("question", "expected"),
    QUESTIONS,
    ids=[B.Type.Name(question.type) for question, _ in QUESTIONS],
)
def test_each_question_is_read_and_answered(
    question: BaseCommand, expected: Request, *, favourably: bool
) -> None:
    connection = with_consumer()
    service = DumbService(connection=connection)
    service.handle(connection.receive(framed(question), 0))
    assert [expected] == service.seen
    service.answer(favourably=favourably)
    answer = reply(connection.take_outgoing())
    assert 7 == request_id_of(answer)
    assert (answer.type == B.ERROR) == (
        question.type == B.GET_TOPICS_OF_NAMESPACE and not favourably
    )
