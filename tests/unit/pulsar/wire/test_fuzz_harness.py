"""Test the fuzzer's harness with the inputs that the fuzzer starts from."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.wire.connection import Connection
from tests.fuzz.corpus import INPUTS
from tests.fuzz.harness import take


@pytest.mark.parametrize("data", INPUTS, ids=range(len(INPUTS)))
def test_each_input_of_the_corpus_passes(data: bytes) -> None:
    take(data)


def test_the_harness_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Connection.take_outgoing
    monkeypatch.setattr(Connection, "take_outgoing", lambda connection: whole(connection)[:-1])
    with pytest.raises(AssertionError, match="ends within a frame"):
        take(INPUTS[1])
