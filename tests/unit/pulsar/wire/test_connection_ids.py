"""Test the ids of a connection by example: creations, closings from both sides, moves, and commands
that cross them.
"""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.attachments import Elsewhere
from equipoise.brokers.pulsar.wire.errors import ServerError, Violation
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand
from equipoise.brokers.pulsar.wire.requests import (
    Asked,
    ConsumerClosed,
    CreationCancelled,
    Flowed,
    LookupAsked,
    ProducerClosed,
    Published,
    Request,
    TurnedAway,
    Unsubscribed,
)
from equipoise.channel.core.errors import Bug
from tests.pulsar.pulsar_speech import (
    TOPIC,
    asked_for_consumer,
    asked_for_producer,
    close_consumer,
    close_producer,
    commands_in,
    connected,
    entry,
    flow,
    frame_of,
    lookup,
    outgoing,
    ping,
    producer,
    refused,
    seek,
    send,
    subscribe,
    unsubscribe,
    violation,
    with_consumer,
    with_producer,
)

MINUS_ONE = 2**64 - 1


def test_late_messages_of_a_closed_producer_are_ignored_for_a_while() -> None:
    connection = with_producer(Limits(closed_for_ms=100))
    connection.tick(1000)
    connection.close_producer(1, "pulsar://other:6650")
    ((reply, _),) = commands_in(connection.take_outgoing())
    assert (MINUS_ONE, "pulsar://other:6650") == (
        reply.close_producer.request_id,
        reply.close_producer.assignedBrokerServiceUrl,
    )
    assert [] == connection.receive(send(1, 5, entry()), 1099)
    assert Violation.UNKNOWN_PRODUCER is violation(connection.receive(send(1, 6, entry()), 1100))


def test_the_id_of_a_closed_producer_can_be_used_again() -> None:
    connection = with_producer()
    connection.close_producer(1)
    assert connection.producer_opened(asked_for_producer(connection, 1, 11), "named", "the new one")
    (request,) = connection.receive(send(1, 0, entry()), 0)
    assert isinstance(request, Published)
    assert "the new one" == request.producer


def test_closed_producers_are_remembered_up_to_a_bound() -> None:
    connection = connected(Limits(closed_ids_max=1))
    for id_ in (1, 2):
        connection.producer_opened(asked_for_producer(connection, id_, id_), "named", id_)
        connection.close_producer(id_)
    assert [] == connection.receive(send(2, 0, entry()), 0)
    assert Violation.UNKNOWN_PRODUCER is violation(connection.receive(send(1, 0, entry()), 0))


def test_a_message_before_the_producer_is_open_is_ignored() -> None:
    connection = connected()
    asked_for_producer(connection, 1, 10)
    assert [] == connection.receive(send(1, 0, entry()), 0)


def test_a_second_request_for_a_live_id_succeeds() -> None:
    """The service is not asked."""
    connection = with_producer()
    assert [] == connection.receive(producer(1, 11), 0)
    ((reply, _),) = commands_in(connection.take_outgoing())
    assert (11, "named") == (
        reply.producer_success.request_id,
        reply.producer_success.producer_name,
    )
    connection = with_consumer()
    assert [] == connection.receive(subscribe(2, 21), 0)
    assert ["SUCCESS"] == outgoing(connection)


def test_an_id_in_use_elsewhere_is_refused() -> None:
    another = "non-persistent://public/default/another"
    assert [("PRODUCER", 11, ServerError.NOT_ALLOWED)] == refused(
        with_producer(), producer(1, 11, another)
    )
    assert [("SUBSCRIBE", 21, ServerError.NOT_ALLOWED)] == refused(
        with_consumer(), subscribe(2, 21, "another")
    )


def test_a_second_request_for_a_pending_id_should_be_retried() -> None:
    connection = connected()
    connection.receive(producer(1, 10) + subscribe(2, 20), 0)
    expected: list[Request] = [TurnedAway(what="PRODUCER"), TurnedAway(what="SUBSCRIBE")]
    assert expected == connection.receive(producer(1, 11) + subscribe(2, 21), 0)
    assert ["ERROR", "ERROR", "CLOSE_CONSUMER"] == outgoing(connection)


def test_closing_a_pending_id_cancels_its_creation() -> None:
    """The late answer of the service is not sent."""
    connection = connected()
    producer_asked, consumer_asked = (
        asked_for_producer(connection, 1, 10),
        asked_for_consumer(connection, 2, 20),
    )
    requests = connection.receive(close_producer(1, 11) + close_consumer(2, 21), 0)
    expected: list[Request] = [
        CreationCancelled(asked=Asked.PRODUCER, request_id=10),
        CreationCancelled(asked=Asked.CONSUMER, request_id=20),
    ]
    assert expected == requests
    assert ["SUCCESS", "SUCCESS"] == outgoing(connection)
    assert not connection.producer_opened(producer_asked, "named", "too late")
    connection.consumer_refused(consumer_asked, ServerError.SERVICE_NOT_READY, "too late")
    assert [] == outgoing(connection)


def test_a_late_answer_does_not_open_the_next_creation() -> None:
    connection = connected()
    old = asked_for_producer(connection, 1, 10)
    connection.receive(close_producer(1, 11), 0)
    new = asked_for_producer(connection, 1, 12)
    assert not connection.producer_opened(old, "old", "old")
    assert connection.producer_opened(new, "new", "new")


def test_closing_an_unknown_id_succeeds() -> None:
    connection = connected()
    assert [] == connection.receive(close_producer(1, 11) + close_consumer(2, 21), 0)
    assert ["SUCCESS", "SUCCESS"] == outgoing(connection)


def test_closing_a_live_id_is_confirmed_by_the_service() -> None:
    for connection, data, expected in (
        (
            with_producer(),
            close_producer(1, 11),
            ProducerClosed(producer="the producer", request_id=11),
        ),
        (
            with_consumer(),
            close_consumer(2, 11),
            ConsumerClosed(consumer="the consumer", request_id=11),
        ),
    ):
        assert [expected] == connection.receive(data, 0)
        assert [] == outgoing(connection)
        connection.succeed(expected)
        assert ["SUCCESS"] == outgoing(connection)


@pytest.mark.parametrize("succeeds", [True, False])
def test_an_unsubscribe_ends_the_consumer_only_if_it_succeeds(*, succeeds: bool) -> None:
    connection = with_consumer()
    asked = Unsubscribed(consumer="the consumer", consumer_id=2, request_id=21, is_forced=False)
    assert [asked] == connection.receive(unsubscribe(2, 21), 0)
    if succeeds:
        connection.succeed(asked)
    else:
        connection.refuse(asked, ServerError.METADATA_ERROR, "others are connected")
    assert ["SUCCESS" if succeeds else "ERROR"] == outgoing(connection)
    assert ([] if succeeds else [Flowed(consumer="the consumer", permits=5)]) == connection.receive(
        flow(2), 0
    )


def test_commands_for_a_closed_consumer_are_ignored_or_refused() -> None:
    """FLOW and ACK may have crossed CLOSE_CONSUMER. Requests need an answer."""
    connection = with_consumer()
    connection.close_consumer(2)
    assert ["CLOSE_CONSUMER"] == outgoing(connection)
    assert [] == connection.receive(flow(2) + frame_of(BaseCommand.ACK, consumer_id=2), 0)
    errors = [
        ("UNSUBSCRIBE", 21, ServerError.METADATA_ERROR),
        ("SEEK", 22, ServerError.METADATA_ERROR),
    ]
    assert errors == refused(connection, unsubscribe(2, 21) + seek(2, 22))


ELSEWHERE = Elsewhere(url="pulsar://other:6650")


def test_a_consumer_of_another_broker_is_redirected_at_its_first_flow() -> None:
    """The FLOW shows that the client has handled the success."""
    connection = connected()
    assert connection.consumer_opened(asked_for_consumer(connection, 2, 20), ELSEWHERE)
    assert ["SUCCESS"] == outgoing(connection)
    assert [] == connection.receive(flow(2), 0)
    ((close, _),) = commands_in(connection.take_outgoing())
    assert (2, "pulsar://other:6650") == (
        close.close_consumer.consumer_id,
        close.close_consumer.assignedBrokerServiceUrl,
    )
    assert [] == connection.receive(flow(2), 0)
    assert [] == outgoing(connection)


def test_a_producer_of_another_broker_is_redirected_at_its_first_message() -> None:
    """No message is taken, so the client sends all of them to the other broker."""
    connection = connected()
    assert connection.producer_opened(asked_for_producer(connection, 1, 10), "named", ELSEWHERE)
    assert ["PRODUCER_SUCCESS"] == outgoing(connection)
    assert [] == connection.receive(send(1, 0, entry()), 0)
    ((close, _),) = commands_in(connection.take_outgoing())
    assert (1, "pulsar://other:6650") == (
        close.close_producer.producer_id,
        close.close_producer.assignedBrokerServiceUrl,
    )
    assert [] == connection.receive(send(1, 1, entry()), 0)
    assert [] == outgoing(connection)


def test_the_service_sees_no_request_about_ids_of_another_broker() -> None:
    connection = connected()
    connection.producer_opened(asked_for_producer(connection, 1, 10), "named", ELSEWHERE)
    connection.consumer_opened(asked_for_consumer(connection, 2, 20), ELSEWHERE)
    outgoing(connection)
    assert [("UNSUBSCRIBE", 21, ServerError.METADATA_ERROR)] == refused(
        connection, unsubscribe(2, 21)
    )
    assert [] == connection.receive(close_producer(1, 11) + close_consumer(2, 22), 0)
    assert ["SUCCESS", "SUCCESS"] == outgoing(connection)
    assert [] == connection.receive(flow(2), 0)
    assert [] == outgoing(connection)


RETRIED = (
    ServerError.UNKNOWN_ERROR,
    ServerError.METADATA_ERROR,
    ServerError.SERVICE_NOT_READY,
    ServerError.SUBSCRIPTION_NOT_FOUND,
)
FINAL = (
    ServerError.CONSUMER_BUSY,
    ServerError.TOPIC_NOT_FOUND,
    ServerError.TOO_MANY_REQUESTS,
    ServerError.NOT_ALLOWED,
)


@pytest.mark.parametrize("error", RETRIED + FINAL)
def test_a_refused_consumer_that_should_retry_is_closed_too(error: ServerError) -> None:
    """Only CLOSE_CONSUMER makes all clients retry."""
    connection = connected()
    connection.consumer_refused(asked_for_consumer(connection, 2, 20), error, "not now")
    (refusal, _), *others = commands_in(connection.take_outgoing())
    assert (20, error) == (refusal.error.request_id, int(refusal.error.error))
    closed = [
        (
            other.close_consumer.consumer_id,
            other.close_consumer.HasField("assignedBrokerServiceUrl"),
        )
        for other, _ in others
    ]
    assert ([(2, False)] if error in RETRIED else []) == closed


def test_a_second_answer_is_a_bug() -> None:
    connection = connected()
    connection.receive(lookup(1), 0)
    asked, reply = (
        LookupAsked(request_id=1, topic=TOPIC),
        replies.located(1, "pulsar://broker:6650"),
    )
    connection.answer(asked, reply)
    with pytest.raises(Bug, match="answered LOOKUP 1, which waits for no answer"):
        connection.answer(asked, reply)
    assert ["LOOKUP_RESPONSE"] == outgoing(connection)


@pytest.mark.parametrize(("version", "expected"), [(11, []), (12, ["ACTIVE_CONSUMER_CHANGE"])])
def test_old_clients_get_no_active_consumer_change(version: int, expected: list[str]) -> None:
    """They would close the connection."""
    connection = connected(version=version)
    connection.active(2, is_active=True)
    assert expected == outgoing(connection)


def test_an_ended_connection_sends_nothing() -> None:
    connection = connected()
    connection.receive(lookup(1), 0)
    asked = asked_for_producer(connection, 1, 10)
    connection.end()
    connection.answer(
        LookupAsked(request_id=1, topic=TOPIC), replies.located(1, "pulsar://broker:6650")
    )
    assert not connection.producer_opened(asked, "named", "too late")
    assert [] == connection.tick(10**9) + connection.receive(ping(), 10**9)
    assert b"" == connection.take_outgoing()


def test_a_refused_producer_may_ask_again() -> None:
    connection = connected()
    connection.producer_refused(
        asked_for_producer(connection, 1, 10), ServerError.PRODUCER_BUSY, "taken"
    )
    ((reply, _),) = commands_in(connection.take_outgoing())
    assert (10, ServerError.PRODUCER_BUSY) == (reply.error.request_id, int(reply.error.error))
    asked_for_producer(connection, 1, 11)


def test_a_producer_that_its_client_closed_is_unknown() -> None:
    """The broker closed it before, but it came back since."""
    connection = with_producer()
    connection.close_producer(1)
    connection.producer_opened(asked_for_producer(connection, 1, 11), "named", "the new one")
    connection.receive(close_producer(1, 12), 0)
    assert Violation.UNKNOWN_PRODUCER is violation(connection.receive(send(1, 0, entry()), 0))


def test_live_ids_can_be_closed_however_many_requests_wait() -> None:
    """A refused CLOSE would leave a consumer that its client believes gone."""
    connection = with_consumer(Limits(requests_pending_max=1))
    connection.receive(lookup(1), 0)
    assert [TurnedAway(what="LOOKUP")] == connection.receive(lookup(2), 0)
    asked = Unsubscribed(consumer="the consumer", consumer_id=2, request_id=3, is_forced=False)
    assert [asked] == connection.receive(unsubscribe(2, 3), 0)
    connection.refuse(asked, ServerError.METADATA_ERROR, "others are connected")
    assert [ConsumerClosed(consumer="the consumer", request_id=4)] == connection.receive(
        close_consumer(2, 4), 0
    )
