"""Test how a SEND is read without its envelope."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.wire.commands import plain_send
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand, CommandSend

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
