"""A program whose callers wait for an owner: nothing of the backlog keeps it from others, and
nothing is done for callers that have gone.

Time is virtual, and each call computes for some of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest

from equipoise.brokers.runtime.callers import Line, Waiting
from equipoise.brokers.runtime.embedding import by_key as module
from equipoise.brokers.runtime.embedding.by_key import ByKey
from equipoise.brokers.runtime.embedding.forwarding import Message, Receive, Send
from equipoise.brokers.runtime.router import PLACES_MAX
from equipoise.brokers.runtime.service import Ownership, Peer
from equipoise.channel.core.view import View
from tests import virtual_time
from tests.unit.runtime.service_bench import good_ownership

NAMESPACE = "web/pages"
OUTAGE_S = 15.0
PATIENCE_S = 2.0
CALL_S = 0.001
"""What the program computes for a call, and the event loop does nothing else."""


@dataclass
class Program:
    """A program behind `by_key`. Bundle `closed` has no owner until it is opened; all others are
    here.
    """

    waiting: Waiting = field(default_factory=lambda: Waiting(View, broker="here"))
    broker_id: str = "here"
    is_open: bool = False
    done: Counter[str] = field(default_factory=Counter)
    done_for_nobody: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.app = ByKey(
            self.answer,
            self,
            namespace=NAMESPACE,
            key=lambda scope: scope["path"],
            timeout_ms=10_000,
        )

    def owned(self, _namespace: str, _key: str) -> Ownership | None:
        """Return None: `route` knows."""
        return None

    async def route(self, _namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        """Route as a broker does: calls of one bundle wait in one line."""
        return await self.waiting.until(
            lambda _: good_ownership(NAMESPACE) if self.is_open or key != "closed" else None,
            timeout_ms=timeout_ms,
            what=f"an owner for {key}",
            line=Line(f"calls of {key}", PLACES_MAX["calls"]),
        )

    def open(self) -> None:
        self.is_open = True
        self.waiting.changed()

    async def answer(self, scope: Message, _receive: Receive, send: Send) -> None:
        """Do the work of one call, in two steps."""
        virtual_time.loop().busy(CALL_S / 2)
        self.done[scope["call"]] += 1
        self.done_for_nobody += scope["gone"].is_set()
        await asyncio.sleep(0)
        virtual_time.loop().busy(CALL_S / 2)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def call(self, key: str, call: str) -> int | None:
        """Make one call. Its caller gives up, as closing its connection does. Return the status."""
        gone, status = asyncio.Event(), None
        messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Message:
            for message in messages:
                return message
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)

        scope = {
            "type": "http",
            "method": "POST",
            "path": key,
            "query_string": b"",
            "headers": [],
            "call": call,
            "gone": gone,
        }
        task = asyncio.ensure_future(self.app(scope, receive, send))
        await asyncio.wait([task], timeout=PATIENCE_S)
        gone.set()  # A server does not cancel what it has begun.
        return status if task.done() else None


async def caller(program: Program, call: str) -> None:
    """Repeat a call until it is answered: after 2 s without an answer, and as a refusal asks
    for.
    """
    while (status := await program.call("closed", call)) != 200:
        if status == 503:
            program.refused += 1
            await asyncio.sleep(1)


async def latency_s(program: Program) -> float:
    loop = virtual_time.loop()
    began = loop.time()
    assert 200 == await program.call("open", f"other {began}")
    return loop.time() - began


@pytest.fixture(params=[20, 50])
def calls_per_second(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_a_backlog_keeps_nobody_else_waiting_and_no_call_is_done_twice(
    calls_per_second: int,
) -> None:
    """The bundle has no owner for 15 s. Its callers give up after 2 s and repeat; they are more
    than may wait.
    """

    async def story() -> None:
        program, others = Program(), list[float]()
        callers: list[asyncio.Task[None]] = []
        for number in range(int(OUTAGE_S * calls_per_second)):
            callers.append(asyncio.ensure_future(caller(program, f"call {number}")))
            await asyncio.sleep(1 / calls_per_second)
            if number % calls_per_second == 0:
                others.append(await latency_s(program))
        assert not {call for call in program.done if call.startswith("call")}
        program.open()
        while not all(each.done() for each in callers):
            others.append(await latency_s(program))
            await asyncio.sleep(0.02)
        assert max(others) < 0.02, "a call of another bundle takes some turns of the loop"
        assert set(program.done) >= {f"call {number}" for number in range(len(callers))}
        # Nobody can know of a caller that gives up in the very turn of the loop in which its call
        # begins, or during the call.
        assert sum(program.done.values()) - len(program.done) <= 2
        assert program.done_for_nobody <= 1
        assert (program.refused > 0) == (OUTAGE_S * calls_per_second > PLACES_MAX["calls"])

    virtual_time.run(story())


def test_a_request_whose_client_does_not_show_its_end_waits_for_a_while_only() -> None:
    async def story() -> None:
        program = Program()

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": True}

        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        began = virtual_time.loop().time()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "closed",
            "query_string": b"",
            "headers": [],
            "call": "x",
        }
        first = iter([{"type": "http.request", "body": b"part", "more_body": True}])
        await program.app(scope, lambda: asyncio.sleep(0, next(first)), send)
        assert module.HELD_MS / 1_000 == pytest.approx(virtual_time.loop().time() - began, abs=0.1)
        assert (503, (b"retry-after", b"1")) == (sent[0]["status"], sent[0]["headers"][3])

    virtual_time.run(story())
