"""An async context in a thread: how it is entered, asked and left, and what is said to whoever asks too early or too late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from equipoise.brokers.client.client import Client
from equipoise.brokers.runtime.loop_thread import InThread
from equipoise.brokers.server.embedded import Worker
from equipoise.channel.core.errors import CallerError, DeadlineExceeded
from tests.unit.simulation.test_virtual_cluster import Diary

PATIENCE_MS = 10_000


class Doors:
    """A context that notes where it was entered and left."""

    def __init__(self, *, opens: bool = True) -> None:
        self.threads: list[str] = []
        self.opens = opens

    @asynccontextmanager
    async def context(self) -> AsyncIterator[None]:
        """The context itself."""
        self.threads.append(threading.current_thread().name)
        if not self.opens:
            raise OSError("no room")
        yield
        self.threads.append(threading.current_thread().name)

    def in_thread(self) -> InThread:
        """The context in a thread of its own."""
        return InThread(self.context(), what="the door", start_ms=PATIENCE_MS, stop_ms=PATIENCE_MS)


async def name() -> str:
    """Where it runs."""
    return threading.current_thread().name


def ask(door: InThread) -> str:
    """Where a coroutine runs that is handed to it."""
    return door.run(name(), timeout_ms=PATIENCE_MS, what="the name")


def test_it_is_entered_asked_and_left_in_its_thread() -> None:
    """All that it does it does in one thread, which ends with it."""
    doors, before = Doors(), threading.active_count()
    with doors.in_thread() as door:
        assert "equipoise the door" == ask(door)
    assert ["equipoise the door"] * 2 == doors.threads
    assert before == threading.active_count()


def test_who_comes_too_early_or_too_late_is_told() -> None:
    """Before its start, after its end, and for a second start there is a typed error, and no thread."""
    door, before = Doors().in_thread(), threading.active_count()
    with pytest.raises(CallerError, match=r"the door cannot be used: it has not been started; use it inside its `with`"):
        ask(door)
    with door:
        pass
    with pytest.raises(CallerError, match="it has ended"):
        ask(door)
    with pytest.raises(CallerError, match="it was started before"), door:
        pass
    assert before == threading.active_count()


def test_a_start_that_fails_ends_its_thread() -> None:
    """What makes a start impossible is raised to whoever started it."""
    doors, before = Doors(opens=False), threading.active_count()
    with pytest.raises(OSError, match="no room"), doors.in_thread():
        pass
    assert before == threading.active_count()


def test_who_waits_at_its_end_is_told() -> None:
    """A call that another thread still waits for when the context is left ends with the same error."""
    asked, told = threading.Event(), []

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    def wait(door: InThread) -> None:
        with pytest.raises(CallerError, match="it has ended") as caught:
            door.run(hang(), timeout_ms=PATIENCE_MS, what="nothing")
        told.append(str(caught.value))

    with Doors().in_thread() as door:
        waiting = threading.Thread(target=wait, args=(door,))
        waiting.start()
        assert asked.wait(PATIENCE_MS / 1_000)
    waiting.join()
    assert ["the door cannot be used: it has ended; use it inside its `with`, and make a new one for each"] == told


def test_a_call_is_bounded() -> None:
    """A coroutine that takes longer than its caller waits is cancelled."""
    with Doors().in_thread() as door, pytest.raises(DeadlineExceeded, match="the end of time did not happen within 20 ms"):
        door.run(asyncio.sleep(3_600), timeout_ms=20, what="the end of time")


def test_workers_and_clients_say_so_too() -> None:
    """A worker and a client that are used outside their contexts say what to do, with a thread and without one."""
    worker = Worker("memory:never", Diary(), http_port=0)
    with pytest.raises(CallerError, match="the worker cannot be used"):
        worker.ownership("shop/orders", "key")
    with pytest.raises(CallerError, match="the worker cannot be used: it has not been started"):
        worker.in_thread().route("shop/orders", "key")
    with pytest.raises(CallerError, match="the client cannot be used: it has not been started"):
        Client("memory:never").in_thread().owner("shop/orders", "key")
    with worker.in_thread() as running:
        assert running.broker_id == worker.broker_id
    with pytest.raises(CallerError, match="the worker cannot be used: it has ended"):
        running.create_namespace("shop/orders")
    with pytest.raises(CallerError):
        _ = running.broker_id
