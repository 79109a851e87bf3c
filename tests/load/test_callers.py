"""What callers do after each kind of answer. The checker would otherwise raise false alarms."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import cast

import pytest

from tests.load.callers import Answer, Caller, Client, Tally

A, B, C = "http://a", "http://b", "http://c"
DONE = Answer(status=200, broker="a", token=1, value=1)
BROKEN = Answer()
FAILED = Answer(status=500)
REFUSED = Answer(status=503, retry_after_s=0.0)


def redirect(broker: str) -> Answer:
    """An answer that sends a caller on."""
    return Answer(status=307, location=broker)


@dataclass
class Script:
    """A client whose answers are given."""

    answers: list[Answer]
    brokers: Sequence[str] = (A, B)
    tally: Tally = field(default_factory=Tally)
    asked: list[tuple[str, str]] = field(default_factory=list)
    waiting: dict[str, int] = field(default_factory=dict)

    async def attempt(self, key: str, *, broker: str, request: str, caller: str) -> Answer:
        self.asked.append((broker, request))
        return self.answers.pop(0)

    @property
    def targets(self) -> list[str]:
        return [broker for broker, _ in self.asked]

    @property
    def requests(self) -> int:
        """How many different requests were made."""
        return len({request for _, request in self.asked})


def call(*answers: Answer, owner: str | None = A, brokers: Sequence[str] = (A, B)) -> Script:
    """Let a caller make one call."""
    script = Script(answers=list(answers), brokers=brokers)
    caller = Caller(
        client=cast("Client", script), name="c", key="t/n/k", random=Random(0), owner=owner
    )
    asyncio.run(caller.increment())
    return script


# The answers to one call, the brokers that it asks, and the number of requests that it makes.
CALLS: dict[str, tuple[list[Answer], list[str], int]] = {
    "a redirect is followed with the same request": (
        [redirect(B), redirect(A), DONE],
        [A, B, A],
        1,
    ),
    "after a broken connection another broker is asked": ([BROKEN, DONE], [A, B], 1),
    "after a failure the same broker is asked": ([FAILED, DONE], [A, A], 1),
    "after 503 a new request goes to another broker": ([REFUSED, DONE], [A, B], 2),
    "after 409 a new request goes to another broker": ([Answer(status=409), DONE], [A, B], 2),
    "after 404 a new request goes to another broker": ([Answer(status=404), DONE], [A, B], 2),
}


@pytest.mark.parametrize("case", CALLS)
def test_what_follows_an_answer(case: str) -> None:
    answers, targets, requests = CALLS[case]
    script = call(*answers)
    assert (targets, requests) == (script.targets, script.requests)


def test_a_call_goes_on_until_it_is_acknowledged() -> None:
    """A call ends with an acknowledgement, however often it fails. Its pause is its whole
    duration.
    """
    script = call(*[BROKEN] * 3, REFUSED, redirect(C), FAILED, DONE, brokers=(A, B, C))
    assert 2 == script.requests
    assert not script.answers
    assert script.tally.longest_pause_ms >= 3 * 25
