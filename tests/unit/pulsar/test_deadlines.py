"""Test the timer of all topics that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from equipoise.brokers.pulsar import served
from equipoise.brokers.pulsar.served import Deadlines, Served
from equipoise.channel.system.clocks import now_ms


class Waiting:
    """A topic that is due."""

    def __init__(self, name: str, handle: Callable[[Waiting], None]) -> None:
        self.name = name
        self.topic = SimpleNamespace(wake_at_ms=now_ms(), is_fenced=False)
        self._handle = handle

    def pass_deadlines(self) -> None:
        """Handle it."""
        self._handle(self)


def watch(deadlines: Deadlines, topic: Waiting) -> None:
    """Watch a topic."""
    deadlines.watch(cast("Served", topic))


async def test_a_failing_topic_does_not_block_the_others(caplog: pytest.LogCaptureFixture) -> None:
    handled: asyncio.Queue[str] = asyncio.Queue()

    def handle(topic: Waiting) -> None:
        if topic.name == "bad":
            raise RuntimeError("spoiled")
        handled.put_nowait(topic.name)

    deadlines = Deadlines()
    for name in ("bad", "good"):
        watch(deadlines, Waiting(name, handle))
    assert "good" == await asyncio.wait_for(handled.get(), 10)
    assert ["a due topic failed"] == [record.getMessage() for record in caplog.records]


async def test_topics_that_are_due_together_are_handled_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock_ms = 1_000
    monkeypatch.setattr(served, "now_ms", lambda: clock_ms)
    turns: list[list[str]] = [[]]
    done = asyncio.Event()

    def handle(topic: Waiting) -> None:
        nonlocal clock_ms
        clock_ms += 15
        turns[-1].append(topic.name)
        if sum(map(len, turns)) == 5:
            done.set()
        if len(turns[-1]) == 1:
            asyncio.get_running_loop().call_soon(turns.append, [])

    deadlines = Deadlines()
    for name in "abcde":
        topic = Waiting(name, handle)
        topic.topic.wake_at_ms = clock_ms
        watch(deadlines, topic)
    await asyncio.wait_for(done.wait(), 10)
    assert [["a", "b"], ["c", "d"], ["e"]] == [turn for turn in turns if turn]


async def test_a_topic_with_much_work_takes_turns_with_the_others() -> None:
    handled = list[str]()
    done = asyncio.Event()
    deadlines = Deadlines()

    def handle(topic: Waiting) -> None:
        handled.append(topic.name)
        if topic.name == "much" and handled.count("much") < 3:
            watch(deadlines, topic)
        elif topic.name == "much":
            done.set()

    for name in ("much", "little"):
        topic = Waiting(name, handle)
        topic.topic.wake_at_ms = 0
        watch(deadlines, topic)
    await asyncio.wait_for(done.wait(), 10)
    assert ["much", "little", "much", "much"] == handled
