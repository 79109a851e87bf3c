"""Callers of one broker: listeners, waiters for the view, and requests."""

from __future__ import annotations

import asyncio
import time

import pytest

from equipoise.brokers.agent.effects import Answered
from equipoise.brokers.agent.events import Requested
from equipoise.brokers.agent.intents import DeleteNamespace
from equipoise.brokers.errors import Rejected
from equipoise.brokers.runtime import callers as module
from equipoise.brokers.runtime.callers import Listeners, Requests, Waiting
from equipoise.brokers.runtime.service import WorkerEnded
from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.errors import DeadlineExceeded, OutcomeUnknown, Overloaded
from equipoise.channel.core.records import Reason
from equipoise.channel.core.view import View

LONG_MS = 60_000


def test_listeners_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends makes room."""
    monkeypatch.setattr(module, "LISTENERS_MAX", 1)
    listeners = Listeners(broker="b")
    end = listeners.listen(lambda _folded: None)
    with pytest.raises(Overloaded, match="the list of listeners"):
        listeners.listen(lambda _folded: None)
    end()
    listeners.listen(lambda _folded: None)()


def offset_of(view: View) -> int | None:
    """Return the offset of the view once it has folded a record."""
    return view.offset if view.offset >= 0 else None


async def test_a_change_wakes_a_waiter() -> None:
    view = View()
    waiting = Waiting(lambda: view, broker="b")
    waiter = asyncio.ensure_future(waiting.until(offset_of, timeout_ms=LONG_MS, what="something"))
    await asyncio.sleep(0)
    view.offset = 7
    waiting.changed()
    assert 7 == await waiter
    assert 7 == await waiting.until(offset_of, timeout_ms=0, what="something")


async def test_a_wait_ends_at_its_deadline_or_with_the_broker() -> None:
    waiting = Waiting(View, broker="b")
    with pytest.raises(DeadlineExceeded, match="something did not happen"):
        await waiting.until(offset_of, timeout_ms=1, what="something")
    waiter = asyncio.ensure_future(waiting.until(offset_of, timeout_ms=LONG_MS, what="something"))
    await asyncio.sleep(0)
    waiting.end(WorkerEnded(broker="b", problem="it has left the cluster"))
    for late in (waiter, waiting.until(offset_of, timeout_ms=LONG_MS, what="something")):
        with pytest.raises(WorkerEnded, match="has left"):
            await late


async def test_waiters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled one makes room. A condition that holds already needs none."""
    monkeypatch.setattr(module, "WAITERS_MAX", 2)
    view = View()
    waiting = Waiting(lambda: view, broker="b")
    waiters = [asyncio.ensure_future(waiting.until(offset_of, timeout_ms=LONG_MS, what="it")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="queue of callers at broker b is full: it holds 2"):
        await waiting.until(offset_of, timeout_ms=LONG_MS, what="it")
    assert 1 == await waiting.until(lambda _: 1, timeout_ms=LONG_MS, what="it")
    waiters[0].cancel()
    await asyncio.wait([waiters[0]])
    with pytest.raises(DeadlineExceeded):
        await waiting.until(offset_of, timeout_ms=1, what="it")
    waiters[1].cancel()
    await asyncio.wait([waiters[1]])


INTENT = DeleteNamespace(name="t/n")


class Agent:
    """Answers requests with these reasons in order, and then no more."""

    def __init__(self, *reasons: Reason | None) -> None:
        self.asked: list[Requested] = []
        self._reasons = list(reasons)
        self.requests = Requests(self.step, View, broker="b", log="memory:x")

    def step(self, requested: Requested) -> None:
        self.asked.append(requested)
        if self._reasons:
            verdict = Verdict(reason=self._reasons.pop(0))
            self.requests.answer(Answered(ticket=requested.ticket, offset=10 + len(self.asked), verdict=verdict))


async def test_a_lost_race_is_retried_a_few_times() -> None:
    """Any other rejection is final."""
    agent = Agent(Reason.STALE, Reason.STALE, None)
    assert 13 == await agent.requests.request(INTENT, timeout_ms=LONG_MS)
    for reasons in ([Reason.STALE] * 6, [Reason.NOT_ADJACENT]):
        agent = Agent(*reasons)
        with pytest.raises(Rejected) as caught:
            await agent.requests.request(INTENT, timeout_ms=LONG_MS)
        assert (reasons[0], min(len(reasons), 5)) == (caught.value.reason, len(agent.asked))


async def test_the_end_of_a_broker_ends_its_requests() -> None:
    """A pending one is unknown. A later one proposes nothing."""
    end = WorkerEnded(broker="b", problem="rust")
    agent = Agent()
    pending = asyncio.ensure_future(agent.requests.request(INTENT, timeout_ms=LONG_MS))
    await asyncio.sleep(0)
    agent.requests.end(end)
    with pytest.raises(OutcomeUnknown, match="broker b ended before it was read back: rust") as unknown:
        await pending
    assert ("t/n", end) == (unknown.value.subject, unknown.value.__cause__)
    with pytest.raises(WorkerEnded) as caught:
        await agent.requests.request(INTENT, timeout_ms=LONG_MS)
    assert (end, 1) == (caught.value, len(agent.asked))


async def test_an_answer_before_the_end_counts() -> None:
    agent = Agent()
    pending = asyncio.ensure_future(agent.requests.request(INTENT, timeout_ms=LONG_MS))
    await asyncio.sleep(0)
    agent.requests.answer(Answered(ticket=agent.asked[0].ticket, offset=7, verdict=Verdict(reason=None)))
    agent.requests.end(WorkerEnded(broker="b", problem="rust"))
    assert 7 == await pending


async def test_a_lost_race_is_not_retried_after_the_deadline() -> None:
    agent = Agent()
    pending = asyncio.ensure_future(agent.requests.request(INTENT, timeout_ms=50))
    await asyncio.sleep(0)
    lost = Answered(ticket=agent.asked[0].ticket, offset=11, verdict=Verdict(reason=Reason.STALE))
    agent.requests.answer(lost)
    time.sleep(0.06)  # noqa: ASYNC251 - block the loop past the deadline
    with pytest.raises(Rejected) as caught:
        await pending
    assert (Reason.STALE, 11, 1) == (caught.value.reason, caught.value.offset, len(agent.asked))


async def test_requests_are_bounded_and_end_at_their_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
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
