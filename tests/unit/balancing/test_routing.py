"""Routing: the broker that a client is sent to in each phase of a bundle."""

from __future__ import annotations

import pytest

from equipoise.brokers.balancing.named import server_of
from equipoise.channel.core.lifecycle import STATE_OF_PHASE, Phase
from tests.channels.folding import channel_in

SERVED_BY = {"owned": "owner", "splitting": "owner", "transferring": "source"}


@pytest.mark.parametrize("phase", STATE_OF_PHASE)
def test_clients_are_sent_to_the_broker_that_keeps_serving(phase: Phase) -> None:
    """The clients of a source that is closing wait for the next owner."""
    channel = channel_in(phase)
    server = server_of(channel.view, channel.bundle())
    assert SERVED_BY.get(phase) == (None if server is None else server.broker)


def test_a_dead_broker_serves_nothing() -> None:
    channel = channel_in("owned")
    channel.die("owner")
    assert server_of(channel.view, channel.bundle()) is None
