"""Test what of a command is read or written without protobuf, and that the generated code matches
pulsar_api.proto.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise.brokers.pulsar.wire import pulsar_api_pb2, replies
from equipoise.brokers.pulsar.wire.commands import plain_send
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import DESCRIPTOR, BaseCommand, CommandSend
from equipoise.brokers.pulsar.wire.requests import Asked
from tests.pulsar.pulsar_speech import commands_in

TEXT = Path(pulsar_api_pb2.__file__).with_name("pulsar_api.proto").read_text(encoding="utf-8")
MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (?:optional|required|repeated) \w+ (\w+) = (\d+)", re.MULTILINE)
SEND = CommandSend(producer_id=1, sequence_id=2, num_messages=3)
ENCODED = BaseCommand(type=BaseCommand.Type.SEND, send=SEND).SerializeToString()


def test_a_plain_send_is_read() -> None:
    assert plain_send(ENCODED) == SEND


@pytest.mark.parametrize("cut", range(len(ENCODED)))
def test_a_cut_command_is_no_plain_send(cut: int) -> None:
    assert plain_send(ENCODED[:cut]) is None


def test_a_command_whose_length_takes_two_bytes_is_no_plain_send() -> None:
    """The length 0xC8 0x01 reads as 200, and so many bytes follow its first one."""
    assert plain_send(b"\x08\x06\x32\xc8\x01" + bytes(199)) is None


@pytest.mark.parametrize(
    ("url", "plain", "tls"),
    [
        ("pulsar://b:6650", "pulsar://b:6650", ""),
        ("pulsar+ssl://b:6651", "", "pulsar+ssl://b:6651"),
    ],
)
def test_an_address_is_in_the_field_of_its_transport(url: str, plain: str, tls: str) -> None:
    """A client reads only the field of the transport that it uses itself."""
    ((found, _), (closed, _), (left, _)) = commands_in(
        replies.located(1, url)
        + replies.close(Asked.PRODUCER, 1, url)
        + replies.close(Asked.CONSUMER, 1, url)
    )
    reply = found.lookup_response
    assert (plain, tls) == (reply.brokerServiceUrl, reply.brokerServiceUrlTls)
    for closing in (closed.close_producer, left.close_consumer):
        assert (plain, tls) == (
            closing.assignedBrokerServiceUrl,
            closing.assignedBrokerServiceUrlTls,
        )


def test_zero_partitions_are_set() -> None:
    ((reply, _),) = commands_in(replies.partitions(1, 0))
    assert reply.partitioned_metadata_response.HasField("partitions")


def test_the_generated_code_has_the_fields_of_the_text() -> None:
    """If not, run `make proto`."""
    expected = {
        name: {field: int(number) for field, number in FIELD.findall(body)}
        for name, body in MESSAGE.findall(TEXT)
    }
    found = {
        name: {field.name: field.number for field in message.fields}
        for name, message in DESCRIPTOR.message_types_by_name.items()
    }
    assert expected == found


def test_a_command_has_the_number_of_its_type() -> None:
    """The command's body is found by it."""
    fields = {
        field.name.upper(): field.number
        for field in BaseCommand.DESCRIPTOR.fields
        if field.name != "type"
    }
    assert dict(BaseCommand.Type.items()) == fields
