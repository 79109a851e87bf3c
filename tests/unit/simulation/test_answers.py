"""The checker of answers raises on a request that outlives the incarnation of its attempt."""

from __future__ import annotations

from typing import cast

import pytest

from equipoise.brokers.testing.simulation.checkers.agreement import Answers
from equipoise.brokers.testing.simulation.checkers.violation import InvariantViolated
from equipoise.brokers.testing.simulation.host import Process
from tests.unit.simulation.history import Fake


@pytest.mark.parametrize("incarnation", [None, 9])
def test_a_request_outlives_its_incarnation(incarnation: int | None) -> None:
    """A request may wait while the incarnation of its attempt goes on, and no longer."""
    answers = Answers()
    agent = Fake(incarnation=2)
    process = cast("Process", Fake(host=Fake(name="a"), agent=agent, served={2: (2, 7)}))
    answers.stepped(process)
    agent.__dict__["incarnation"] = incarnation
    with pytest.raises(InvariantViolated, match="a has read the end of #2, and has not answered request 2 of it"):
        answers.stepped(process)
