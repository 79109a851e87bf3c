"""An async context in a thread: entering, calls, leaving, and use outside of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from equipoise.brokers.client.client import Client
from equipoise.brokers.runtime.embedding.embedded import Worker
from equipoise.channel.core.errors import CallerError, DeadlineExceeded
from equipoise.channel.system.loop_thread import InThread
from tests.unit.simulation.test_virtual_cluster import Diary

PATIENCE_MS = 10_000


class Doors:
    """A context that notes the threads in which it is entered and left."""

    def __init__(self, *, opens: bool = True) -> None:
        self.threads: list[str] = []
        self.opens = opens

    @asynccontextmanager
    async def context(self) -> AsyncIterator[None]:
        """Enter and leave, or fail."""
        self.threads.append(threading.current_thread().name)
        if not self.opens:
            raise OSError("no room")
        yield
        self.threads.append(threading.current_thread().name)

    def in_thread(self) -> InThread:
        """Return the context in a thread of its own."""
        return InThread(self.context(), what="the door", start_ms=PATIENCE_MS, stop_ms=PATIENCE_MS)


async def name() -> str:
    """Return the name of the current thread."""
    return threading.current_thread().name


def ask(door: InThread) -> str:
    """Return the name of the thread in which coroutines run."""
    return door.run(name(), timeout_ms=PATIENCE_MS, what="the name")


def test_a_context_runs_in_one_thread() -> None:
    """The thread ends with the context."""
    doors, before = Doors(), threading.active_count()
    with doors.in_thread() as door:
        assert "equipoise the door" == ask(door)
    assert ["equipoise the door"] * 2 == doors.threads
    assert before == threading.active_count()


def test_use_outside_the_context_is_an_error() -> None:
    """So is a second start. Neither leaves a thread."""
    door, before = Doors().in_thread(), threading.active_count()
    with pytest.raises(
        CallerError,
        match=r"the door cannot be used: it has not been started; use it inside its `with`",
    ):
        ask(door)
    with door:
        pass
    with pytest.raises(CallerError, match="it has ended"):
        ask(door)
    with pytest.raises(CallerError, match="it was started before"), door:
        pass
    assert before == threading.active_count()


def test_a_start_that_fails_ends_its_thread() -> None:
    doors, before = Doors(opens=False), threading.active_count()
    with pytest.raises(OSError, match="no room"), doors.in_thread():
        pass
    assert before == threading.active_count()


def test_the_end_of_the_context_ends_calls_of_other_threads() -> None:
    asked, messages = threading.Event(), []

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    def wait(door: InThread) -> None:
        with pytest.raises(CallerError, match="it has ended") as caught:
            door.run(hang(), timeout_ms=PATIENCE_MS, what="nothing")
        messages.append(str(caught.value))

    with Doors().in_thread() as door:
        waiting = threading.Thread(target=wait, args=(door,))
        waiting.start()
        assert asked.wait(PATIENCE_MS / 1_000)
    waiting.join()
    assert [
        (
            "the door cannot be used: it has ended; use it inside its `with`, and make a new one"
            " for each"
        )
    ] == messages


def test_a_call_is_cancelled_at_its_deadline() -> None:
    with (
        Doors().in_thread() as door,
        pytest.raises(DeadlineExceeded, match="the end of time did not happen within 20 ms"),
    ):
        door.run(asyncio.sleep(3_600), timeout_ms=20, what="the end of time")


def test_workers_and_clients_refuse_use_outside_their_contexts() -> None:
    """With a thread and without one."""
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
