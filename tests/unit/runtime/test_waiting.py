"""Those who wait for a view: what wakes them, what ends their wait, and how many there may be."""

from __future__ import annotations

import asyncio

import pytest

from equipoise.brokers.runtime import callers as module
from equipoise.brokers.runtime.callers import Waiting
from equipoise.brokers.runtime.service import WorkerEnded
from equipoise.channel.core.errors import DeadlineExceeded, Overloaded
from equipoise.channel.core.view import View

LONG_MS = 60_000


def offset_of(view: View) -> int | None:
    """A condition: the view has folded something."""
    return view.offset if view.offset >= 0 else None


async def test_who_waits_is_woken_by_a_change() -> None:
    """A condition that comes true is noticed when a change is told of, and its result returned."""
    view = View()
    waiting = Waiting(lambda: view, broker="b")
    waiter = asyncio.ensure_future(waiting.until(offset_of, timeout_ms=LONG_MS, what="something"))
    await asyncio.sleep(0)
    view.offset = 7
    waiting.changed()
    assert 7 == await waiter
    assert 7 == await waiting.until(offset_of, timeout_ms=0, what="something")


async def test_a_wait_ends_at_its_deadline_or_with_the_broker() -> None:
    """Who waits too long is told what for, and who waits at a broker that ends, by what it ended."""
    waiting = Waiting(View, broker="b")
    with pytest.raises(DeadlineExceeded, match="something did not happen"):
        await waiting.until(offset_of, timeout_ms=1, what="something")
    waiter = asyncio.ensure_future(waiting.until(offset_of, timeout_ms=LONG_MS, what="something"))
    await asyncio.sleep(0)
    waiting.end(WorkerEnded(broker="b", problem="it has left the cluster"))
    for late in (waiter, waiting.until(offset_of, timeout_ms=LONG_MS, what="something")):
        with pytest.raises(WorkerEnded, match="has left"):
            await late


async def test_one_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of callers has an end; who leaves it makes room, and what is true already needs no place in it."""
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
