"""The generated code says what pulsar_api.proto says, and keeps the one rule that Pulsar builds on."""

from __future__ import annotations

import re
from pathlib import Path

from equipoise.brokers.pulsar.wire import pulsar_api_pb2
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import DESCRIPTOR, BaseCommand

TEXT = Path(pulsar_api_pb2.__file__).with_name("pulsar_api.proto").read_text(encoding="utf-8")
MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (?:optional|required|repeated) \w+ (\w+) = (\d+)", re.MULTILINE)


def test_the_generated_code_is_that_of_the_text() -> None:
    """Each message has the fields and numbers that the text gives it, so nobody forgot `make proto`."""
    expected = {name: {field: int(number) for field, number in FIELD.findall(body)} for name, body in MESSAGE.findall(TEXT)}
    found = {name: {field.name: field.number for field in message.fields} for name, message in DESCRIPTOR.message_types_by_name.items()}
    assert expected == found


def test_a_command_has_the_number_of_its_type() -> None:
    """The sub-message of each command bears the number and the name of its type, which is how it is found."""
    fields = {field.name.upper(): field.number for field in BaseCommand.DESCRIPTOR.fields if field.name != "type"}
    assert dict(BaseCommand.Type.items()) == fields
