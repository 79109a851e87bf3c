"""Who follows one log in one loop shares one thread and one handle, and who does not, does not.

May live here: examples of `channel.log.sharing`, and its races. What a shared thread does is in test_log_seats.py.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from equipoise.channel.log import sharing as log_sharing
from equipoise.channel.log import thread as log_thread
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.log.sharing import sit_down
from equipoise.channel.system.deadline import Deadline
from tests.log_host import DAMAGED, LOG_NAMES, Host
from tests.troubled_log import DEADLINE_SECONDS, TroubledLog

FOR_EVER_MS = 20_000 * int(DEADLINE_SECONDS)


def follow(name: str) -> Host:
    """Open a log, and follow it together with whoever follows it here already."""
    host = Host(log=TroubledLog(name=name))
    sit_down(host.seat, host.log)
    return host


async def heard(record: bytes, *hosts: Host) -> None:
    """Wait until all have been delivered this record."""
    for host in hosts:
        await host.until(lambda host=host: record in host.told)  # type: ignore[misc] # mypy knows no such lambda


async def stop(*hosts: Host) -> None:
    """Let all leave, one after the other."""
    for host in hosts:
        await host.stop()


def threads_of(name: str) -> int:
    """How many threads follow a log."""
    return sum(thread.name == f"log {name}" for thread in threading.enumerate())


def test_followers_of_one_log_in_one_loop_share_a_thread_and_a_handle() -> None:
    """The handle of the first serves all; those of the others are closed at once, and its own when the last has left."""

    async def scenario(name: str) -> None:
        hosts = [follow(name) for _ in range(5)]
        hosts[0].write(b"a")
        await heard(b"a", *hosts)
        assert 1 == threads_of(name)
        assert [False, True, True, True, True] == [host.log.closed.is_set() for host in hosts]
        await stop(*hosts[:4])
        hosts[4].write(b"b")
        await heard(b"b", hosts[4])
        assert not hosts[0].log.closed.is_set()
        await stop(hosts[4])
        assert hosts[0].log.closed.is_set()

    asyncio.run(scenario(next(LOG_NAMES)))


def test_another_log_has_another_thread() -> None:
    """Followers of two logs do not meet."""

    async def scenario() -> None:
        hosts = [follow(next(LOG_NAMES)) for _ in range(2)]
        for host, record in zip(hosts, (b"a", b"b"), strict=True):
            host.write(record)
            await heard(record, host)
        assert [1, 1] == [len(host.entries) for host in hosts]
        assert [False, False] == [host.log.closed.is_set() for host in hosts]
        await stop(*hosts)

    asyncio.run(scenario())


def test_a_log_made_anew_under_an_old_name_has_another_thread() -> None:
    """Who opened another log by the same URL does not join those who are still on the old one."""

    async def scenario(name: str) -> None:
        old = follow(name)
        anew = Host(log=TroubledLog(name=next(LOG_NAMES)))
        anew.log.name = name
        sit_down(anew.seat, anew.log)
        old.write(b"old")
        anew.write(b"new")
        await heard(b"old", old)
        await heard(b"new", anew)
        assert (1, 1) == (len(old.entries), len(anew.entries))
        await stop(old, anew)

    asyncio.run(scenario(next(LOG_NAMES)))


def test_another_loop_has_another_thread() -> None:
    """What is handed to a loop is handed over in its own thread, so that two loops never share one."""

    async def here(name: str) -> None:
        host = follow(name)

        async def there() -> Host:
            other = follow(name)
            await heard(b"a", other)
            assert 2 == threads_of(name)
            await stop(other)
            return other

        host.write(b"a")
        other = await asyncio.to_thread(asyncio.run, there())
        assert other.log.closed.is_set()
        assert not host.log.closed.is_set()
        await heard(b"a", host)
        await stop(host)

    asyncio.run(here(next(LOG_NAMES)))


def test_after_a_failure_a_new_thread_begins() -> None:
    """Who comes after the log's failure is told for themselves, by a thread and a handle of their own."""

    async def scenario(name: str) -> None:
        first = follow(name)
        first.log.read_error = DAMAGED
        first.log.wake()
        await first.until(lambda: DAMAGED in first.told)
        second = follow(name)
        second.write(b"a")
        await heard(b"a", second)
        assert not second.log.closed.is_set()
        await stop(second, first)

    asyncio.run(scenario(next(LOG_NAMES)))


def test_after_the_last_has_left_a_new_thread_begins() -> None:
    """A log that nobody follows any more can be followed again."""

    async def scenario(name: str) -> None:
        for _ in range(3):
            host = follow(name)
            host.write(b"a")
            await heard(b"a", host)
            assert not host.log.closed.is_set()
            await stop(host)

    asyncio.run(scenario(next(LOG_NAMES)))


@pytest.mark.parametrize("delay_ms", [0, 1, 2])
def test_who_comes_while_the_last_one_leaves_misses_nothing(delay_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the thread still takes a newcomer or not: each one is served, at once, and every handle is closed once it is not needed."""
    monkeypatch.setattr(log_thread, "WAIT_MS_MAX", FOR_EVER_MS)

    async def scenario(name: str) -> None:
        hosts = [follow(name)]
        hosts[0].write(b"a")
        for _ in range(100):
            leaving = asyncio.create_task(hosts[-1].seat.stop(Deadline.after(timeout_ms=30_000)))
            await asyncio.sleep(delay_ms / 10_000)
            hosts.append(follow(name))
            await heard(b"a", hosts[-1])
            await leaving
        await stop(hosts[-1])
        assert all(host.log.closed.is_set() for host in hosts)
        assert [1] * len(hosts[1:]) == [len(host.entries) for host in hosts[1:]]

    asyncio.run(scenario(next(LOG_NAMES)))


def test_a_loop_that_ends_leaves_nothing_behind() -> None:
    """Loops that are closed without a stop are forgotten with their threads, so that a later one starts from nothing."""
    name = next(LOG_NAMES)

    async def scenario() -> list[Host]:
        hosts = [follow(name) for _ in range(2)]
        for host in hosts:
            await host.until(lambda host=host: ("caught up", 0) in host.told)  # type: ignore[misc] # mypy knows no such lambda
        return hosts

    first, _ = asyncio.run(scenario())
    MemoryLog(name=name).append([b"a"], timeout_ms=0)
    assert first.log.closed.wait(DEADLINE_SECONDS)
    del first, _
    give_up = time.monotonic() + DEADLINE_SECONDS
    while any(key[1] == name for key in tuple(log_sharing._threads)):  # noqa: SLF001 - that it keeps nothing shows nowhere else
        assert time.monotonic() < give_up
        gc.collect()
