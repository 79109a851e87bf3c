"""Seats at one log thread when something is wrong: with one of them, or with the log.

May live here: who is told what, and who goes on.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from equipoise.channel.core.errors import Bug, ChannelIncomplete, EquipoiseError, ForeignLog, LogUnavailable, LogWentBack
from equipoise.channel.log import thread as log_thread
from equipoise.channel.log.append_queue import Appended, NotAppended
from equipoise.channel.log.seat import Place
from equipoise.channel.log.thread import LogThread
from equipoise.channel.system.deadline import Deadline
from tests.log_host import DAMAGED, LOG_NAMES, NAME, UNAVAILABLE, Host, run
from tests.log_hosts import FOR_EVER_MS, beside, has_heard, records, run_beside, until_all, written
from tests.troubled_log import DEADLINE_SECONDS, TroubledLog

FOREIGN = ForeignLog(log=NAME, expected="a", found="b")


@pytest.mark.parametrize("raised", [FOREIGN, KeyError("surprise")], ids=["its error", "a bug"])
def test_what_one_host_raises_ends_its_seat_only(raised: Exception) -> None:
    """A host that cannot go on is told so and gets nothing more, and may append nothing; the one beside it misses nothing."""

    async def scenario(one: Host, two: Host) -> None:
        one.deliver_error = raised
        one.write(b"a")
        await two.until(lambda: b"a" in two.told)
        assert one.seat.failure is not None
        one.deliver_error = None
        await one.until_in_thread(lambda: one.seat._place.is_gone)  # noqa: SLF001 - nothing that shows outside tells it
        one.seat.append(b"late", one.tell)
        two.seat.append(b"b", two.tell)
        await two.until(lambda: b"b" in two.told)
        await one.until(lambda: isinstance(one.told[-1], NotAppended))
        assert not one.log.closed.is_set()

    one, two = run_beside(scenario)
    failure = one.seat.failure
    assert failure is raised or (isinstance(failure, Bug) and failure.__cause__ is raised)
    assert [("caught up", 0), failure, NotAppended(error=failure)] == one.told
    assert [b"a", b"b"] == records(two)
    assert two.seat.failure is None
    assert two.log.closed.is_set()


def test_what_is_raised_on_hearing_an_outcome_ends_that_seat_only() -> None:
    """An outcome that one host cannot bear ends it; the other outcomes of the batch, and its entries, reach the others."""

    def unbearable(_: object) -> None:
        raise FOREIGN

    async def scenario(one: Host, two: Host) -> None:
        one.log.gate.clear()
        one.seat.append(b"first")
        await asyncio.to_thread(one.log.at_gate.wait, DEADLINE_SECONDS)
        one.seat.append(b"a", unbearable)
        two.seat.append(b"b", two.tell)
        one.log.gate.set()
        await two.until(lambda: b"b" in two.told)

    one, two = run_beside(scenario)
    assert FOREIGN is one.seat.failure
    assert [("caught up", 0), b"first", Appended(offset=3), b"a", b"b"] == two.told


def test_a_host_that_fails_at_its_own_end_keeps_nothing_from_the_others() -> None:
    """What is raised on being told of an end goes to the loop's exception handler, and the others get their entries."""
    handled: list[object] = []

    class Hopeless(Host):
        def tell(self, what: object) -> None:
            super().tell(what)
            if what is FOREIGN:
                raise RuntimeError("no words for it")

    async def scenario() -> Host:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: handled.append(str(context["exception"])))
        hopeless = Hopeless(log=TroubledLog(name=next(LOG_NAMES)), deliver_error=FOREIGN)
        hopeless.start()
        other = beside(hopeless)
        other.write(b"a")
        await other.until(lambda: b"a" in other.told)
        for host in (hopeless, other):
            await host.stop()
        return other

    assert [b"a"] == records(asyncio.run(scenario()))
    assert ["no words for it"] == handled


def test_one_leaves_and_the_others_go_on() -> None:
    """A stop lets go of one seat and answers what it had queued; the handle is closed when the last one has left."""

    async def scenario(one: Host, two: Host) -> None:
        one.log.gate.clear()
        two.seat.append(b"first")
        await asyncio.to_thread(one.log.at_gate.wait, DEADLINE_SECONDS)
        one.seat.append(b"queued", one.tell)
        two.seat.append(b"b", two.tell)
        stopping = asyncio.create_task(one.seat.stop(Deadline.after(timeout_ms=30_000)))
        await asyncio.sleep(0)
        one.log.gate.set()
        await stopping
        assert not one.log.closed.is_set()
        await two.until(lambda: b"b" in two.told)
        two.write(b"c")
        await two.until(lambda: b"c" in two.told)

    one, two = run_beside(scenario)
    [refused] = [told for told in one.told if isinstance(told, NotAppended)]
    assert isinstance(refused.error, LogUnavailable)
    assert b"c" not in records(one)
    assert [b"first", b"b", b"c"] == records(two)
    assert one.log.closed.is_set()


def test_what_ends_the_log_is_told_to_all() -> None:
    """A damaged log ends every seat with that error, and the thread with them; nobody can join it any more."""

    async def scenario(one: Host, two: Host) -> None:
        one.log.read_error = DAMAGED
        one.log.wake()
        await until_all([one, two], partial(has_heard, DAMAGED))
        assert one.log.closed.is_set()
        assert not Host(log=one.log, beside=one).seat.join(one.thread)

    one, two = run_beside(scenario)
    assert DAMAGED is one.seat.failure
    assert DAMAGED is two.seat.failure


def test_a_thread_that_is_about_to_end_takes_nobody() -> None:
    """From the moment at which a thread finds that all have left, who comes is refused, and can begin another one."""

    class Ending(LogThread):
        is_empty = threading.Event()
        may_end = threading.Event()

        def _staying(self) -> tuple[Place, ...]:
            staying = super()._staying()
            if not staying:
                self.is_empty.set()
                assert self.may_end.wait(DEADLINE_SECONDS)
            return staying

    async def scenario() -> None:
        host = Host(log=TroubledLog(name=next(LOG_NAMES)))
        host.thread = Ending(host.open, name=host.log.name)
        host.start()
        stopping = asyncio.create_task(host.stop())
        await asyncio.to_thread(Ending.is_empty.wait, DEADLINE_SECONDS)
        late = Host(log=host.log, beside=host)
        assert not late.seat.join(host.thread)
        Ending.may_end.set()
        await stopping

    asyncio.run(scenario())


@pytest.mark.parametrize(("position", "error"), [(1, ChannelIncomplete), (9, LogWentBack)], ids=["truncated", "ahead of the log"])
def test_a_position_that_cannot_be_read_ends_its_seat_only(position: int, error: type[EquipoiseError]) -> None:
    """Who comes with a snapshot that is too old, or of another log, is told so; nothing is wrong with the others."""
    log = written(b"a", b"b")
    log.truncate(2, timeout_ms=0)

    async def scenario(good: Host) -> None:
        bad = beside(good, position=position)
        await bad.until(lambda: bool(bad.told))
        assert isinstance(bad.told[0], error)
        assert isinstance(bad.seat.failure, error)
        good.write(b"c")
        await good.until(lambda: b"c" in good.told)
        await bad.stop()

    host = run(scenario, log=log, position=2)
    assert [b"b", b"c"] == records(host)
    assert host.seat.failure is None


def test_an_outage_is_told_to_all_and_survived_by_all() -> None:
    """While the log is away every seat says so, one that joins meanwhile too; afterwards nobody misses anything."""

    async def scenario(one: Host, two: Host) -> None:
        one.log.read_error = UNAVAILABLE
        one.log.wake()
        await one.until_in_thread(lambda: one.seat.outage is not None)
        three = beside(one)
        for host in (one, two, three):
            assert host.seat.outage is not None
        one.write(b"a")
        one.log.read_error = None
        await until_all([one, two, three], partial(has_heard, b"a"))
        await one.until_in_thread(lambda: one.seat.outage is None)
        await three.stop()

    one, two = run_beside(scenario)
    assert [b"a"] == records(one) == records(two)


def test_who_joins_during_an_outage_keeps_no_append_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that cannot be read may still take an append, whether or not somebody waits to begin to read."""
    monkeypatch.setattr(log_thread, "BACK_OFF_MS_MIN", FOR_EVER_MS)
    monkeypatch.setattr(log_thread, "BACK_OFF_MS_MAX", FOR_EVER_MS)

    async def scenario(one: Host, _: Host) -> None:
        one.log.read_error = UNAVAILABLE
        one.log.wake()
        await one.until_in_thread(lambda: one.seat.outage is not None)
        three = beside(one)
        one.seat.append(b"a", one.tell)
        await one.until(lambda: Appended(offset=1) in one.told)
        await three.stop()

    run_beside(scenario)
