"""Test that the generated code matches pulsar_api.proto."""

from __future__ import annotations

import re
from pathlib import Path

from equipoise.brokers.pulsar.wire import pulsar_api_pb2
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import DESCRIPTOR, BaseCommand

TEXT = Path(pulsar_api_pb2.__file__).with_name("pulsar_api.proto").read_text(encoding="utf-8")
MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (?:optional|required|repeated) \w+ (\w+) = (\d+)", re.MULTILINE)


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
