"""Requests at one broker: what the agent's answers become for those who asked."""

from __future__ import annotations

import asyncio
import time

import pytest

from equipoise.brokers.agent.effects import Answered
from equipoise.brokers.agent.events import Requested
from equipoise.brokers.agent.intents import DeleteNamespace
from equipoise.brokers.errors import Rejected
from equipoise.brokers.runtime import callers as module
from equipoise.brokers.runtime.callers import Requests
from equipoise.brokers.runtime.service import WorkerEnded
from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.errors import OutcomeUnknown, Overloaded
from equipoise.channel.core.records import Reason
from equipoise.channel.core.view import View

INTENT = DeleteNamespace(name="t/n")
LONG_MS = 60_000


class Agent:
    """Gives the answers that it was told to give, in their order, and then none."""

    def __init__(self, *reasons: Reason | None) -> None:
        self.asked: list[Requested] = []
        self._reasons = list(reasons)
        self.requests = Requests(self.step, View, broker="b", log="memory:x")

    def step(self, requested: Requested) -> None:
        self.asked.append(requested)
        if self._reasons:
            verdict = Verdict(reason=self._reasons.pop(0))
            self.requests.answer(Answered(ticket=requested.ticket, offset=10 + len(self.asked), verdict=verdict))


async def test_a_lost_race_is_run_again_a_few_times() -> None:
    """A stale proposal is made anew until it is accepted, but not for ever; any other rejection is final."""
    agent = Agent(Reason.STALE, Reason.STALE, None)
    assert 13 == await agent.requests.request(INTENT, timeout_ms=LONG_MS)
    for reasons in ([Reason.STALE] * 6, [Reason.NOT_ADJACENT]):
        agent = Agent(*reasons)
        with pytest.raises(Rejected) as caught:
            await agent.requests.request(INTENT, timeout_ms=LONG_MS)
        assert (reasons[0], min(len(reasons), 5)) == (caught.value.reason, len(agent.asked))


async def test_the_end_of_a_broker_is_told_at_once() -> None:
    """What is pending is unknown, with the broker's end as its cause; who comes later is told that end, and nothing is proposed."""
    end = WorkerEnded(broker="b", problem="rust")
    agent = Agent()
    pending = asyncio.ensure_future(agent.requests.request(INTENT, timeout_ms=LONG_MS))
    await asyncio.sleep(0)
    agent.requests.end(end)
    with pytest.raises(OutcomeUnknown, match="broker b ended before it was read back: rust") as unknown:
        await pending
    assert ("t/n", end) == (unknown.value.subject, unknown.value.__cause__)
    with pytest.raises(WorkerEnded) as told:
        await agent.requests.request(INTENT, timeout_ms=LONG_MS)
    assert (end, 1) == (told.value, len(agent.asked))


async def test_what_was_answered_before_the_end_counts() -> None:
    """A verdict that came in the turn in which the broker ended is told, not that nobody knows."""
    agent = Agent()
    pending = asyncio.ensure_future(agent.requests.request(INTENT, timeout_ms=LONG_MS))
    await asyncio.sleep(0)
    agent.requests.answer(Answered(ticket=agent.asked[0].ticket, offset=7, verdict=Verdict(reason=None)))
    agent.requests.end(WorkerEnded(broker="b", problem="rust"))
    assert 7 == await pending


async def test_a_lost_race_is_not_run_again_after_the_deadline() -> None:
    """Where a loop was held up until the deadline had come, too, nobody waits for another attempt: the loser is told."""
    agent = Agent()
    pending = asyncio.ensure_future(agent.requests.request(INTENT, timeout_ms=50))
    await asyncio.sleep(0)
    lost = Answered(ticket=agent.asked[0].ticket, offset=11, verdict=Verdict(reason=Reason.STALE))
    agent.requests.answer(lost)
    time.sleep(0.06)  # noqa: ASYNC251 - the loop is held up, which is what this is about
    with pytest.raises(Rejected) as caught:
        await pending
    assert (Reason.STALE, 11, 1) == (caught.value.reason, caught.value.offset, len(agent.asked))


async def test_one_too_many_is_refused_and_one_too_old_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that nobody answers are bounded in number, and end at their deadline, which makes room."""
    monkeypatch.setattr(module, "REQUESTS_MAX", 1)
    agent = Agent()
    waiting = asyncio.ensure_future(agent.requests.request(INTENT, timeout_ms=20))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="the queue of requests at broker b is full: it holds 1"):
        await agent.requests.request(INTENT, timeout_ms=LONG_MS)
    assert 1 == len(agent.asked)
    for unanswered in (waiting, agent.requests.request(INTENT, timeout_ms=1)):
        with pytest.raises(OutcomeUnknown, match="not read back"):
            await unanswered
    agent.requests.answer(Answered(ticket=agent.asked[0].ticket, verdict=Verdict(reason=None)))
