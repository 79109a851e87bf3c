"""Callers of one broker: listeners, waiters for the view, and requests."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from equipoise.brokers.agent.effects import Answered
from equipoise.brokers.agent.events import Requested
from equipoise.brokers.agent.requests import DeleteNamespace
from equipoise.brokers.errors import Rejected
from equipoise.brokers.runtime import callers as module
from equipoise.brokers.runtime.callers import CALLER, Caller, Line, Requests, Waiting
from equipoise.brokers.runtime.service import WorkerEnded
from equipoise.channel.core import propose
from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.errors import DeadlineExceeded, OutcomeUnknown, Overloaded
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Reason
from equipoise.channel.core.view import View
from equipoise.channel.log import listeners as listeners_module
from equipoise.channel.log.listeners import Listeners

LONG_MS = 60_000


def test_listeners_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends makes room."""
    monkeypatch.setattr(listeners_module, "LISTENERS_MAX", 1)
    listeners = Listeners("broker b", {})
    end = listeners.listen(lambda _folded: None)
    with pytest.raises(Overloaded, match="the list of listeners at broker b"):
        listeners.listen(lambda _folded: None)
    end()
    listeners.listen(lambda _folded: None)()


def offset_of(view: View) -> int | None:
    """Return the offset of the view once it has folded a record."""
    return view.offset if view.offset >= 0 else None


async def test_waiters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled one makes room. A condition that holds already needs none."""
    monkeypatch.setattr(module, "WAITERS_MAX", 2)
    view = View()
    waiting = Waiting(lambda: view, broker="b")
    waiters = [
        asyncio.ensure_future(waiting.until(offset_of, timeout_ms=LONG_MS, what="it"))
        for _ in range(2)
    ]
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


LINE = Line("calls of a bundle", 3)


class Bundle:
    """Callers in lines for one thing, which comes once `owner` is set."""

    def __init__(self) -> None:
        self.view = View()
        self.waiting = Waiting(lambda: self.view, broker="b")
        self.owner: str | None = None
        self.looks = 0

    def look(self, _: View) -> str | None:
        self.looks += 1
        return self.owner

    async def wait_here(self, *, timeout_ms: int = LONG_MS, line: Line = LINE) -> str:
        return await self.waiting.until(
            self.look, timeout_ms=timeout_ms, what="an owner", line=line
        )

    def wait(self, *, timeout_ms: int = LONG_MS, line: Line = LINE) -> asyncio.Task[str]:
        return asyncio.get_running_loop().create_task(
            self.wait_here(timeout_ms=timeout_ms, line=line)
        )

    def open(self) -> None:
        self.owner = "here"
        self.waiting.changed()


def _tell(story: list[str], what: str, _: object) -> None:
    story.append(what)


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_change_costs_one_look_for_each_line() -> None:
    bundle = Bundle()
    waits = [bundle.wait() for _ in range(3)] + [
        bundle.wait(line=Line("another", 3)) for _ in range(3)
    ]
    await turns(3)
    looked = bundle.looks
    bundle.waiting.changed()
    await turns(3)
    assert 2 == bundle.looks - looked
    bundle.open()
    assert ["here"] * 6 == await asyncio.gather(*waits)


async def test_the_callers_of_a_line_go_on_in_order_and_other_work_is_done_between() -> None:
    bundle, story = Bundle(), list[str]()
    for call in ("call 0", "call 1", "call 2"):
        bundle.wait().add_done_callback(partial(_tell, story, call))
    await turns(3)
    bundle.open()
    while len(story) < 6:
        await asyncio.sleep(0)
        if story and story[-1] != "other work":
            story.append("other work")
    assert ["call 0", "other work", "call 1", "other work", "call 2", "other work"] == story


async def test_a_line_is_bounded_and_so_are_all_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose caller has gone, whose time is over, or who was cancelled makes room, and does not
    keep the others waiting.
    """
    monkeypatch.setattr(module, "HELD_MAX", 5)
    bundle, other = Bundle(), Line("calls of another bundle", 3)
    first, second, third = bundle.wait(), bundle.wait(timeout_ms=1), bundle.wait()
    await turns(2)
    with pytest.raises(
        Overloaded, match="the queue for calls of a bundle at broker b is full: it holds 3"
    ):
        await bundle.wait()
    with pytest.raises(DeadlineExceeded, match="an owner"):
        await second
    first.cancel()
    await asyncio.wait([first])
    waits = [third, bundle.wait(), bundle.wait(), bundle.wait(line=other), bundle.wait(line=other)]
    await turns(2)
    with pytest.raises(Overloaded, match="the queue of callers at broker b is full: it holds 5"):
        await bundle.wait(line=other)
    bundle.open()
    assert ["here"] * 5 == await asyncio.gather(*waits)


@pytest.mark.parametrize("is_first", [True, False])
async def test_the_end_of_a_connection_cancels_what_waits_for_it(is_first: bool) -> None:
    """What has begun goes on."""
    bundle, caller, begun = Bundle(), Caller(), list[str]()

    async def request() -> None:
        CALLER.set(caller)
        begun.append(await bundle.wait_here())
        await turns(5)
        begun.append("done")

    ahead = None if is_first else bundle.wait()
    gone = asyncio.ensure_future(request())
    behind = bundle.wait()
    await turns(3)
    caller.gone()
    bundle.open()
    assert "here" == await behind
    assert gone.cancelled()
    assert [] == begun
    assert ahead is None or "here" == await ahead
    bundle.owner = None
    goes_on = asyncio.ensure_future(request())
    await turns(3)
    bundle.open()
    await turns(3)
    caller.gone()
    await goes_on
    assert ["here", "done"] == begun


async def test_the_end_of_a_broker_ends_its_waiters() -> None:
    """In lines and outside, and those that come later."""
    bundle = Bundle()
    waits = [bundle.wait() for _ in range(3)]
    waits.append(
        asyncio.create_task(bundle.waiting.until(bundle.look, timeout_ms=LONG_MS, what="it"))
    )
    await turns(2)
    bundle.waiting.end(WorkerEnded(broker="b", problem="it has left the cluster"))
    for wait in (*waits, bundle.wait()):
        with pytest.raises(WorkerEnded, match="has left"):
            await wait


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
            self.answer(10 + len(self.asked), self._reasons.pop(0))

    def answer(self, offset: int, reason: Reason | None = None) -> None:
        """Answer the last request."""
        record = propose.set_policy(Author(publisher="b"), View(), name="p", document={})
        folded = Folded(offset=offset, record=record, verdict=Verdict(reason=reason))
        self.requests.answer(Answered(ticket=self.asked[-1].ticket, folded=folded))


async def test_a_lost_race_is_retried_a_few_times() -> None:
    """Any other rejection is final."""
    agent = Agent(Reason.STALE, Reason.STALE, None)
    assert 13 == (await agent.requests.request(INTENT, timeout_ms=LONG_MS)).offset
    for reasons in ([Reason.STALE] * 6, [Reason.NOT_ADJACENT]):
        agent = Agent(*reasons)
        with pytest.raises(Rejected) as caught:
            await agent.requests.request(INTENT, timeout_ms=LONG_MS)
        assert (reasons[0], min(len(reasons), 5)) == (caught.value.reason, len(agent.asked))


async def test_a_lost_race_is_not_retried_after_the_deadline() -> None:
    agent = Agent()
    pending = asyncio.ensure_future(agent.requests.request(INTENT, timeout_ms=50))
    await asyncio.sleep(0)
    agent.answer(11, Reason.STALE)
    time.sleep(0.06)  # noqa: ASYNC251 - block the loop past the deadline
    with pytest.raises(Rejected) as caught:
        await pending
    assert (Reason.STALE, 11, 1) == (caught.value.reason, caught.value.offset, len(agent.asked))


async def test_requests_are_bounded_and_end_at_their_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    agent.answer(12)
