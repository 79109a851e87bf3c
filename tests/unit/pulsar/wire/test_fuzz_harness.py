"""The harness of the fuzzer, over what the fuzzer starts from."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.wire.connection import Connection
from tests.fuzz.corpus import INPUTS
from tests.fuzz.harness import take


@pytest.mark.parametrize("data", INPUTS, ids=range(len(INPUTS)))
def test_each_input_of_the_corpus_is_taken(data: bytes) -> None:
    """No conversation that the fuzzer starts from breaks what the harness checks."""
    take(data)


def test_the_harness_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that writes half a frame is found by the harness."""
    whole = Connection.take_outgoing
    monkeypatch.setattr(Connection, "take_outgoing", lambda connection: whole(connection)[:-1])
    with pytest.raises(AssertionError, match="ends within a frame"):
        take(INPUTS[1])
