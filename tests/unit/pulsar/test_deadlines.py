"""Test the timer of all topics that wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from equipoise.brokers.pulsar.deadlines import Deadlines
from equipoise.brokers.pulsar.hosting import Served
from equipoise.brokers.pulsar.service import now_ms


class Waiting:
    """A topic that is due."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic = SimpleNamespace(wake_at_ms=now_ms(), is_fenced=False)


async def test_a_failing_topic_does_not_block_the_others(caplog: pytest.LogCaptureFixture) -> None:
    handled: asyncio.Queue[str] = asyncio.Queue()

    def handle(served: Served) -> None:
        if served.name == "bad":
            raise RuntimeError("spoiled")
        handled.put_nowait(served.name)

    deadlines = Deadlines(handle, now_ms=now_ms)
    for name in ("bad", "good"):
        deadlines.watch(cast("Served", Waiting(name)))
    assert "good" == await asyncio.wait_for(handled.get(), 10)
    assert ["a due topic failed"] == [record.getMessage() for record in caplog.records]


def test_topics_that_are_due_together_are_handled_in_several_turns() -> None:
    clock_ms = 1_000
    turns: list[list[str]] = [[]]

    async def story() -> None:
        nonlocal clock_ms
        done = asyncio.Event()

        def handle(served: Served) -> None:
            nonlocal clock_ms
            clock_ms += 15
            turns[-1].append(served.name)
            if sum(map(len, turns)) == 5:
                done.set()
            if len(turns[-1]) == 1:
                asyncio.get_running_loop().call_soon(turns.append, [])

        deadlines = Deadlines(handle, now_ms=lambda: clock_ms)
        for name in "abcde":
            topic = Waiting(name)
            topic.topic.wake_at_ms = clock_ms
            deadlines.watch(cast("Served", topic))
        await asyncio.wait_for(done.wait(), 10)

    asyncio.run(story())
    assert [["a", "b"], ["c", "d"], ["e"]] == [turn for turn in turns if turn]


async def test_a_topic_with_much_work_takes_turns_with_the_others() -> None:
    handled = list[str]()
    done = asyncio.Event()

    def handle(served: Served) -> None:
        handled.append(served.name)
        if served.name == "much" and handled.count("much") < 3:
            deadlines.watch(served)
        elif served.name == "much":
            done.set()

    deadlines = Deadlines(handle, now_ms=now_ms)
    for name in ("much", "little"):
        topic = Waiting(name)
        topic.topic.wake_at_ms = 0
        deadlines.watch(cast("Served", topic))
    await asyncio.wait_for(done.wait(), 10)
    assert ["much", "little", "much", "much"] == handled
