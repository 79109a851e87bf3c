"""What a service's answers look like to a client, field by field."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.commands import request_id_of
from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandConsumerStats,
    CommandGetOrCreateSchema,
    CommandGetSchema,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    KeyValue,
)
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import Schema as WireSchema
from equipoise.brokers.pulsar.wire.requests import PartitionsAsked, Schema, SchemaAsked, SchemaOffered, TopicsAsked, TopicsMode
from tests.pulsar.pulsar_service import DumbService
from tests.pulsar.pulsar_speech import connected, framed, heard, with_consumer

B = BaseCommand


def reply(data: bytes) -> BaseCommand:
    """The one command in a frame."""
    ((command, block),) = heard(data)
    assert b"" == block
    return command


def test_a_producer_gets_all_that_java_reads() -> None:
    """PRODUCER_SUCCESS sets what some clients read without asking whether it is there."""
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


def test_a_lookup_is_final() -> None:
    """LOOKUP_RESPONSE sends the client straight to the owner, and never asks it to go through this broker."""
    found = reply(replies.located(1, "pulsar://a:1")).lookup_response
    assert (1, "pulsar://a:1", CommandLookupTopicResponse.Connect, True) == (
        found.request_id,
        found.brokerServiceUrl,
        found.response,
        found.authoritative,
    )
    assert not found.HasField("brokerServiceUrlTls")
    assert not found.proxy_through_service_url


def test_zero_partitions_are_said() -> None:
    """A topic without partitions is answered with a 0 that is there."""
    found = reply(replies.partitions(1, 0)).partitioned_metadata_response
    assert found.HasField("partitions")
    assert CommandPartitionedTopicMetadataResponse.Success == found.response


def test_failures_carry_code_and_text() -> None:
    """Each reply that can say failure says it with code and text."""
    failures = (
        reply(replies.partitions_failed(1, ServerError.METADATA_ERROR, "why")).partitioned_metadata_response,
        reply(replies.lookup_failed(1, ServerError.METADATA_ERROR, "why")).lookup_response,
        reply(replies.error(1, ServerError.METADATA_ERROR, "why")).error,
    )
    for failure in failures:
        assert (1, ServerError.METADATA_ERROR, "why") == (failure.request_id, int(failure.error), failure.message)


def test_success_leaves_the_error_unset() -> None:
    """Replies in which the mere presence of an error means failure leave it out on success."""
    stats = replies.ConsumerStats(name="c", kind="Shared", address="a", connected_since="s", permits=-3, message_rate=1.5, byte_rate=2.5)
    told = reply(replies.consumer_stats(1, stats)).consumer_stats_response
    assert not told.HasField("error_code")
    assert (0, 1.5, 2.5) == (told.availablePermits, told.msgRateOut, told.msgThroughputOut)
    schema = Schema(name="n", kind=4, definition=b"d", properties=(("a", "b"),))
    found = reply(replies.schema_found(1, schema, b"\x01")).get_schema_response
    assert not found.HasField("error_code")
    assert WireSchema(name="n", type=4, schema_data=b"d", properties=[KeyValue(key="a", value="b")]) == found.schema
    assert not reply(replies.schema_accepted(1, b"")).get_or_create_schema_response.HasField("error_code")


def test_topics_are_not_filtered() -> None:
    """The names of topics go out whole, and say that the client is to filter them."""
    told = reply(replies.topics(1, replies.encode_topics(["a", "b"]))).get_topics_of_namespace_response
    assert (["a", "b"], False, True) == (list(told.topics), told.filtered, told.changed)


@pytest.mark.parametrize(
    ("command_type", "expected"),
    [
        (B.PARTITIONED_METADATA, B.PARTITIONED_METADATA_RESPONSE),
        (B.LOOKUP, B.LOOKUP_RESPONSE),
        (B.CONSUMER_STATS, B.CONSUMER_STATS_RESPONSE),
        (B.GET_SCHEMA, B.GET_SCHEMA_RESPONSE),
        (B.GET_OR_CREATE_SCHEMA, B.GET_OR_CREATE_SCHEMA_RESPONSE),
        (B.PRODUCER, B.ERROR),
        (B.GET_TOPICS_OF_NAMESPACE, B.ERROR),
    ],
)
def test_a_refusal_has_the_form_that_is_waited_for(command_type: B.Type, expected: B.Type) -> None:
    """A refusal comes in the response to its command if that can say failure, else as ERROR."""
    refused = reply(replies.refusal(B(type=command_type), 1, ServerError.NOT_ALLOWED, "why"))
    assert expected == refused.type


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            B(
                type=B.PARTITIONED_METADATA,
                partitioned_metadata=CommandPartitionedTopicMetadata(topic="t", request_id=1, metadata_auto_creation_enabled=False),
            ),
            PartitionsAsked(request_id=1, topic="t"),
        ),
        (
            B(
                type=B.GET_TOPICS_OF_NAMESPACE,
                get_topics_of_namespace=CommandGetTopicsOfNamespace(
                    request_id=1, namespace="a/b", mode=CommandGetTopicsOfNamespace.NON_PERSISTENT
                ),
            ),
            TopicsAsked(request_id=1, namespace="a/b", mode=TopicsMode.NON_PERSISTENT),
        ),
        (
            B(type=B.GET_SCHEMA, get_schema=CommandGetSchema(request_id=1, topic="t", schema_version=b"")),
            SchemaAsked(request_id=1, topic="t", version=None),
        ),
        (
            B(
                type=B.GET_OR_CREATE_SCHEMA,
                get_or_create_schema=CommandGetOrCreateSchema(
                    request_id=1, topic="t", schema=WireSchema(name="n", type=4, schema_data=b"d")
                ),
            ),
            SchemaOffered(request_id=1, topic="t", schema=Schema(name="n", kind=4, definition=b"d", properties=())),
        ),
    ],
    ids=["partitions", "topics", "schema", "new schema"],
)
def test_questions_are_read_whole(command: BaseCommand, expected: object) -> None:
    """Every field of a question that the broker cares for arrives."""
    connection: Connection = connected()
    assert [expected] == connection.receive(framed(command), 0)


QUESTIONS = (
    B(type=B.PARTITIONED_METADATA, partitioned_metadata=CommandPartitionedTopicMetadata(topic="t", request_id=7)),
    B(type=B.LOOKUP, lookup=CommandLookupTopic(topic="t", request_id=7)),
    B(type=B.GET_TOPICS_OF_NAMESPACE, get_topics_of_namespace=CommandGetTopicsOfNamespace(namespace="a/b", request_id=7)),
    B(type=B.GET_SCHEMA, get_schema=CommandGetSchema(topic="t", request_id=7)),
    B(
        type=B.GET_OR_CREATE_SCHEMA,
        get_or_create_schema=CommandGetOrCreateSchema(topic="t", request_id=7, schema=WireSchema(name="n", type=4, schema_data=b"")),
    ),
    B(type=B.CONSUMER_STATS, consumer_stats=CommandConsumerStats(consumer_id=2, request_id=7)),
)


@pytest.mark.parametrize("favourably", [True, False])
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: B.Type.Name(question.type))
def test_each_question_has_its_answers(question: BaseCommand, *, favourably: bool) -> None:
    """Granted or refused, a question gets one reply, under its own id."""
    connection = with_consumer()
    service = DumbService(connection=connection)
    service.handle(connection.receive(framed(question), 0))
    service.answer(favourably=favourably)
    answer = reply(connection.take_outgoing())
    assert 7 == request_id_of(answer)
    assert (answer.type == B.ERROR) == (question.type == B.GET_TOPICS_OF_NAMESPACE and not favourably)


def test_a_schema_that_is_known_is_told() -> None:
    """A schema goes out under the version that the service names."""
    connection = connected()
    connection.receive(framed(QUESTIONS[3]), 0)
    connection.schema_found(7, Schema(name="n", kind=4, definition=b"d", properties=()), b"version")
    assert b"version" == reply(connection.take_outgoing()).get_schema_response.schema_version
