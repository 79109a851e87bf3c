"""Several followers at one log thread: they share what it reads, and nothing of one touches another.

May live here: what is about more than one seat. What holds for each seat alone is in test_log_thread.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial

import pytest

from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.log import append_queue, appending
from equipoise.channel.log import thread as log_thread
from equipoise.channel.log.append_queue import Appended, NotAppended
from tests.log_host import LOG_NAMES, Host, run
from tests.log_hosts import FOR_EVER_MS, Watched, beside, has_caught_up, has_heard, records, run_beside, until_all, written
from tests.troubled_log import DEADLINE_SECONDS, TroubledLog


def test_each_seat_gets_what_stands_from_its_position_on() -> None:
    """Seats that begin at different positions each get every entry from there on, once and in order, and are told the end."""

    async def scenario(first: Host) -> None:
        others = [beside(first, position=position) for position in (2, 4)]
        await until_all([first, *others], has_caught_up)
        first.write(b"d")
        await until_all([first, *others], partial(has_heard, b"d"))
        for other in others:
            await other.stop()
        assert [b"a", b"b", b"c", ("caught up", 3), b"d"] == first.told
        assert [b"b", b"c", ("caught up", 3), b"d"] == others[0].told
        assert [("caught up", 3), b"d"] == others[1].told

    run(scenario, log=written(b"a", b"b", b"c"))


def test_who_has_caught_up_shares_one_read() -> None:
    """Seats that came from different positions are at one in the end, and each new entry is read once for all of them."""
    log = written(b"a", b"b")

    async def scenario(first: Host) -> None:
        second = beside(first, position=2)
        await until_all((first, second), has_caught_up)
        log.reads.clear()
        first.write(b"c")
        await until_all([first, second], partial(has_heard, b"c"))
        await second.stop()

    run(scenario, log=log)
    assert [(3, 1)] == log.reads


def test_a_seat_far_behind_gets_what_the_others_leave_of_a_turn() -> None:
    """Those at the end of the log read little, so that who replays beside them gets nearly as much as it would alone."""
    log = Watched(name=next(LOG_NAMES))
    log.append([b"a"] * log_thread.READ_ENTRIES, timeout_ms=0)

    async def scenario(first: Host) -> None:
        await first.until(lambda: has_caught_up(first))
        log.reads.clear()
        late = beside(first)
        await late.until(lambda: has_caught_up(late))
        await late.stop()

    run(scenario, log=log)
    assert [(FIRST_OFFSET, log_thread.READ_ENTRIES)] == log.reads


def test_one_turn_brings_the_loop_no_more_for_many_seats_than_for_one() -> None:
    """What several seats read together comes in smaller portions, and what waits for the loop is bounded for all together."""
    hosts: list[Host] = []
    waiting: list[int] = []

    class Counting(Host):
        def deliver(self, entries: Sequence[Entry]) -> None:
            waiting.append(sum(host.seat._place.undelivered for host in hosts))  # noqa: SLF001 - the bound is about nothing that shows outside
            super().deliver(entries)

    async def scenario() -> Watched:
        log = Watched(name=next(LOG_NAMES))
        hosts.append(Counting(log=log))
        hosts.extend(Counting(log=log, beside=hosts[0]) for _ in range(3))
        for host in hosts:
            host.start()
        await until_all(hosts, has_caught_up)
        hosts[0].write(*[b"a"] * 4 * log_thread.READ_ENTRIES)
        await until_all(hosts, lambda host: len(host.entries) == 4 * log_thread.READ_ENTRIES)
        for host in hosts:
            await host.stop()
        return log

    log = asyncio.run(scenario())
    portion = log_thread.READ_ENTRIES // len(hosts)
    assert [portion] * 16 == [number for _, number in log.reads]
    assert log_thread.READ_ENTRIES <= max(waiting) <= log_thread.UNDELIVERED_ENTRIES_MAX


def test_a_seat_that_joins_wakes_a_thread_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that would wait for longer than any test serves at once who joins it."""
    monkeypatch.setattr(log_thread, "WAIT_MS_MAX", FOR_EVER_MS)

    async def scenario(first: Host) -> None:
        await first.until(lambda: has_caught_up(first))
        for _ in range(20):
            other = beside(first)
            await until_all([other], has_caught_up)
            assert [b"a"] == records(other)
            await other.stop()

    run(scenario, log=written(b"a"))


class Look(TroubledLog):
    """A log that ends in a gap, and holds up whoever looks there without waiting, until it is told to let go."""

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name)
        self.is_looked_at = threading.Event()
        self.may_go_on = threading.Event()

    def end(self) -> int:
        return super().end() + 1_000_000

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        if not timeout_ms:
            self.is_looked_at.set()
            assert self.may_go_on.wait(DEADLINE_SECONDS)
        return super().wait(position, timeout_ms=timeout_ms)


@pytest.mark.parametrize("what", ["join", "append", "leave"])
def test_no_wake_is_lost_in_a_look(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens while the thread looks whether a seat has caught up is noticed, though that look takes the wake for its own."""
    monkeypatch.setattr(log_thread, "WAIT_MS_MAX", FOR_EVER_MS)

    async def scenario() -> None:
        host = Host(log=log)
        host.start()
        await asyncio.to_thread(log.is_looked_at.wait, DEADLINE_SECONDS)
        if what == "leave":
            stopping = asyncio.create_task(host.stop())
            await asyncio.sleep(0)
            log.may_go_on.set()
            await stopping
            return
        if what == "append":
            host.seat.append(b"a")
        others = [beside(host)] if what == "join" else []
        log.may_go_on.set()
        await until_all(others, has_caught_up)
        await host.until(lambda: what == "join" or b"a" in host.told)
        for leaving in (*others, host):
            await leaving.stop()

    log = Look(name=next(LOG_NAMES))
    asyncio.run(scenario())


def test_what_several_append_goes_in_one_batch() -> None:
    """What waits at all seats is appended together, in turns, and each is told the offset of its own."""

    async def scenario(one: Host, two: Host) -> None:
        one.log.gate.clear()
        one.seat.append(b"first")
        await asyncio.to_thread(one.log.at_gate.wait, DEADLINE_SECONDS)
        for host, record in ((one, b"a1"), (one, b"a2"), (two, b"b1")):
            host.seat.append(record, host.tell)
        one.log.gate.set()
        await until_all([one, two], partial(has_heard, b"a2"))

    one, two = run_beside(scenario)
    assert [[b"first"], [b"a1", b"b1", b"a2"]] == one.log.batches
    assert [Appended(offset=2), Appended(offset=4)] == [told for told in one.told if isinstance(told, Appended)]
    assert [Appended(offset=3)] == [told for told in two.told if isinstance(told, Appended)]


def test_an_outcome_comes_before_the_entry_at_every_seat() -> None:
    """Whoever appended, its outcome is told before anybody is delivered the entry that it is about."""
    order: list[tuple[str, object]] = []

    class Telling(Host):
        def tell(self, what: object) -> None:
            order.append(("outcome" if isinstance(what, Appended) else "other", self))
            super().tell(what)

        def deliver(self, entries: Sequence[Entry]) -> None:
            order.append(("entries", self))
            super().deliver(entries)

    async def scenario() -> list[Host]:
        one = Telling(log=TroubledLog(name=next(LOG_NAMES)))
        two = Telling(log=one.log, beside=one)
        for host in (one, two):
            host.start()
        await until_all([one, two], has_caught_up)
        order.clear()
        two.seat.append(b"a", two.tell)
        await until_all([one, two], partial(has_heard, b"a"))
        for host in (one, two):
            await host.stop()
        return [one, two]

    one, two = asyncio.run(scenario())
    assert [("outcome", two), ("entries", one), ("entries", two)] == order


def test_a_full_queue_refuses_its_own_seat_only() -> None:
    """While one seat has filled its queue, another one's record is taken, and is in the very next batch."""

    async def scenario(one: Host, two: Host) -> None:
        one.log.gate.clear()
        one.seat.append(b"first")
        await asyncio.to_thread(one.log.at_gate.wait, DEADLINE_SECONDS)
        for _ in range(append_queue.APPENDS_QUEUED_MAX):
            one.seat.append(b"much")
        one.seat.append(b"too much", one.tell)
        two.seat.append(b"little", two.tell)
        one.log.gate.set()
        await two.until(lambda: any(isinstance(told, Appended) for told in two.told))
        await one.until(lambda: any(isinstance(told, NotAppended) for told in one.told))

    one, _ = run_beside(scenario)
    assert b"little" in one.log.batches[1]


def test_an_attempt_that_waited_too_long_is_refused_alone() -> None:
    """In one batch, what one seat decided too long ago is refused, and what another decided now is appended."""
    now_ms = 0

    async def scenario(one: Host) -> None:
        nonlocal now_ms
        two = beside(one)
        one.log.gate.clear()
        one.seat.append(b"first")
        await asyncio.to_thread(one.log.at_gate.wait, DEADLINE_SECONDS)
        one.seat.append(b"old", one.tell)
        now_ms += appending.ATTEMPT_AGE_MS_MAX + 1
        two.seat.append(b"fresh", two.tell)
        one.log.gate.set()
        await two.until(lambda: b"fresh" in two.told)
        await one.until(lambda: any(isinstance(told, NotAppended) for told in one.told))
        assert not any(isinstance(told, NotAppended) for told in two.told)
        await two.stop()

    host = run(scenario, now_ns=lambda: now_ms * 1_000_000)
    assert [[b"first"], [b"fresh"]] == host.log.batches
