"""The thread that owns a log handle when the log is away, when it cannot go on, and when it is to stop.

May live here: outages that are waited out, errors that end the thread, and the ways to stop it.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import pytest

from equipoise.channel.core.errors import Bug, ChannelIncomplete, DeadlineExceeded, EquipoiseError, ForeignLog, LogUnavailable, LogWentBack
from equipoise.channel.core.log import FIRST_OFFSET, Entry, Log
from equipoise.channel.log import thread as log_thread
from equipoise.channel.log.append_queue import Appended, InDoubt, NotAppended
from equipoise.channel.log.thread import LogThread
from equipoise.channel.system.deadline import Deadline
from tests.log_host import DAMAGED, LOG_NAMES, NAME, UNAVAILABLE, Host, run
from tests.troubled_log import DEADLINE_SECONDS, TroubledLog

PAUSE_FOR_EVER_MS = 20_000 * int(DEADLINE_SECONDS)


def test_an_outage_is_told_and_survived() -> None:
    """While the log is away the outage says since when and why; when it is back, nothing is missing and nothing twice."""
    now_ms = 0

    async def scenario(host: Host) -> None:
        nonlocal now_ms
        host.write(b"a")
        await host.until(lambda: b"a" in host.told)
        now_ms = 7_000
        host.log.read_error = UNAVAILABLE
        host.log.wake()
        await host.until_in_thread(lambda: host.seat.outage is not None)
        first = host.seat.outage
        assert first is not None
        assert (7_000_000_000, UNAVAILABLE) == (first.since_ns, first.error)
        now_ms = 9_000
        before = host.log.failures
        await host.until_in_thread(lambda: host.log.failures > before)
        await host.until_in_thread(lambda: host.seat.outage is not first)
        later = host.seat.outage
        assert later is not None
        assert first.since_ns == later.since_ns
        host.write(b"b")
        host.log.read_error = None
        await host.until(lambda: b"b" in host.told)
        await host.until_in_thread(lambda: host.seat.outage is None)

    host = run(scenario, now_ns=lambda: now_ms * 1_000_000)
    assert [b"a", b"b"] == [entry.data for entry in host.entries]
    assert host.seat.failure is None


def test_an_outage_has_one_line_for_its_beginning_and_one_for_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """Whose appends succeed and whose reads fail has nothing else that says so; a log that comes and goes is told of once in a while."""
    now_ms = 0

    async def scenario(host: Host) -> None:
        nonlocal now_ms
        for begins_ms, ends_ms in ((1_000, 3_000), (4_000, 5_000), (12_000, 20_000)):
            now_ms = begins_ms
            host.log.read_error = UNAVAILABLE
            host.log.wake()
            await host.until_in_thread(lambda: host.seat.outage is not None)
            now_ms = ends_ms
            host.log.read_error = None
            await host.until_in_thread(lambda: host.seat.outage is None)

    with caplog.at_level("INFO", logger="equipoise.channel.log.thread"):
        run(scenario, now_ns=lambda: now_ms * 1_000_000)
    lines = [(record.levelname, getattr(record, "outage_ms", None)) for record in caplog.records]
    assert [("WARNING", None), ("INFO", 2_000), ("WARNING", None), ("INFO", 8_000)] == lines


def test_the_pause_between_two_attempts_grows_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """During an outage each pause is twice as long as the one before, up to the bound, and short again after it."""
    pauses: list[int] = []

    async def scenario(host: Host) -> None:
        host.log.read_error = UNAVAILABLE
        host.log.wake()
        await host.until_in_thread(lambda: len(pauses) >= 6)
        host.log.read_error = None
        host.write(b"a")
        await host.until(lambda: b"a" in host.told)
        known = len(pauses)
        host.log.read_error = UNAVAILABLE
        host.log.wake()
        await host.until_in_thread(lambda: len(pauses) > known)
        pauses[6:known] = []

    monkeypatch.setattr(LogThread, "_pause", lambda _, pause_ms: pauses.append(pause_ms))
    run(scenario)
    assert [50, 100, 200, 400, 500, 500, 50] == pauses[:7]


def test_during_an_outage_an_append_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that cannot be read may still take an append: who asks need not wait for the end of a pause."""
    monkeypatch.setattr(log_thread, "BACK_OFF_MS_MIN", PAUSE_FOR_EVER_MS)

    async def scenario(host: Host) -> None:
        host.log.read_error = UNAVAILABLE
        host.log.wake()
        await host.until_in_thread(lambda: host.seat.outage is not None)
        host.seat.append(b"a", host.tell)
        await host.until(lambda: Appended(offset=1) in host.told)

    assert [[b"a"]] == run(scenario).log.batches


def test_a_log_that_cannot_be_opened_yet_refuses_and_is_opened_later() -> None:
    """Until the log can be opened, appends are refused and not kept; then all begins as if it had been there."""
    opens: list[EquipoiseError | None] = [UNAVAILABLE, UNAVAILABLE, None]

    class Late(Host):
        def open(self) -> Log:
            error = opens.pop(0)
            if error is not None:
                raise error
            return self.log

    async def scenario() -> Host:
        host = Late(log=TroubledLog(name=next(LOG_NAMES)))
        host.start()
        host.seat.append(b"too early", host.tell)
        await host.until(lambda: ("caught up", 0) in host.told)
        assert host.seat.outage is None
        await host.stop()
        return host

    host = asyncio.run(scenario())
    assert [NotAppended(error=UNAVAILABLE), ("caught up", 0)] == host.told
    assert [] == host.log.batches


ENDS = (
    DAMAGED,
    LogWentBack(log=NAME, position=7, end=3),
)


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_what_cannot_be_waited_out_ends_the_thread(error: EquipoiseError) -> None:
    """Damage and a log that went back are told once, the handle is closed, and appends are refused."""

    async def scenario(host: Host) -> None:
        await host.until(lambda: ("caught up", 0) in host.told)
        host.log.read_error = error
        host.log.wake()
        await host.until(lambda: error in host.told)
        assert error is host.seat.failure
        await asyncio.to_thread(host.log.closed.wait, DEADLINE_SECONDS)
        host.seat.append(b"late", host.tell)
        await host.until(lambda: isinstance(host.told[-1], NotAppended))

    host = run(scenario)
    assert [("caught up", 0), error, NotAppended(error=error)] == host.told


def test_a_truncated_log_without_a_snapshot_is_refused() -> None:
    """A position below what a log still has leads nowhere if nothing tells what is gone, and the refusal says what is."""

    async def scenario(host: Host) -> None:
        await host.until(lambda: bool(host.told))

    log = TroubledLog(name=next(LOG_NAMES))
    log.append([b"a", b"b"], timeout_ms=0)
    log.truncate(2, timeout_ms=0)
    [error] = run(scenario, log=log).told
    assert isinstance(error, ChannelIncomplete)
    assert (1, 1) == (error.first, error.last)


def test_what_the_host_raises_ends_the_thread() -> None:
    """A reader that must not go on (another cluster's log) stops the thread by raising, and gets nothing more."""
    foreign = ForeignLog(log=NAME, expected="a", found="b")

    async def scenario(host: Host) -> None:
        host.deliver_error = foreign
        host.write(b"a")
        await host.until(lambda: foreign in host.told)
        host.deliver_error = None
        host.write(b"b")
        await asyncio.to_thread(host.log.closed.wait, DEADLINE_SECONDS)

    host = run(scenario)
    assert foreign is host.seat.failure
    assert [] == host.entries


def test_what_was_under_way_is_not_delivered_after_an_end() -> None:
    """A host that has refused a batch gets none of those that the thread had read by then: it would miss one between."""

    class Fastidious(Host):
        def deliver(self, entries: Sequence[Entry]) -> None:
            if entries[0].offset == FIRST_OFFSET:
                raise DAMAGED
            super().deliver(entries)

    async def scenario() -> Host:
        host = Fastidious(log=log)
        host.start()
        await host.until(lambda: DAMAGED in host.told)
        await host.stop()
        return host

    log = TroubledLog(name=next(LOG_NAMES))
    log.append([b"a"] * 4 * log_thread.READ_ENTRIES, timeout_ms=0)
    assert [DAMAGED] == asyncio.run(scenario()).told


def test_a_bug_of_the_host_is_told_as_one() -> None:
    """Any other exception in the host ends the thread as well, as a bug that LOG_NAMES it: the host has missed entries."""

    async def scenario(host: Host) -> None:
        host.deliver_error = KeyError("surprise")
        host.write(b"a")
        await host.until(lambda: host.seat.failure is not None)

    host = run(scenario)
    assert isinstance(host.seat.failure, Bug)
    assert "KeyError: 'surprise'" in str(host.seat.failure)
    assert host.deliver_error is host.seat.failure.__cause__


def test_a_bug_in_the_thread_is_told_as_one() -> None:
    """An exception that nobody foresaw in the thread does not let it die silently."""

    async def scenario() -> list[object]:
        host = Host(log=TroubledLog(name=next(LOG_NAMES)))
        host.thread._open_handle = lambda: 1 / 0  # type: ignore[assignment, return-value] # noqa: SLF001 - a bug where there is none
        host.start()
        await host.until(lambda: bool(host.told))
        await host.stop()
        return host.told

    [error] = asyncio.run(scenario())
    assert isinstance(error, Bug)
    assert "ZeroDivisionError" in str(error)


def test_stopping_closes_the_handle_and_refuses_what_is_queued() -> None:
    """A stop ends the wait at once; what is queued by then is not appended, and its outcome says so."""

    async def scenario(host: Host) -> None:
        await host.until(lambda: ("caught up", 0) in host.told)
        host.log.gate.clear()
        host.seat.append(b"first", host.tell)
        await asyncio.to_thread(host.log.at_gate.wait, DEADLINE_SECONDS)
        host.seat.append(b"queued", host.tell)
        stopping = asyncio.create_task(host.seat.stop(Deadline.after(timeout_ms=30_000)))
        await asyncio.sleep(0)
        host.log.gate.set()
        await stopping
        host.seat.append(b"late", host.tell)
        await asyncio.sleep(0)

    host = run(scenario)
    assert host.log.closed.is_set()
    refused = [what.error for what in host.told if isinstance(what, NotAppended)]
    assert [False, False] == [isinstance(error, LogUnavailable) and error.in_doubt for error in refused]
    assert [[b"first"]] == host.log.batches


def test_stopping_has_a_deadline() -> None:
    """A log that does not answer keeps nobody for longer than the deadline; the thread ends when the log lets it go."""

    async def scenario(host: Host) -> None:
        host.log.gate.clear()
        host.seat.append(b"a")
        await asyncio.to_thread(host.log.at_gate.wait, DEADLINE_SECONDS)
        with pytest.raises(DeadlineExceeded):
            await host.seat.stop(Deadline.after(timeout_ms=1))
        assert not host.log.closed.is_set()

    assert run(scenario).log.closed.is_set()


def test_stopping_during_an_outage_does_not_wait_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that pauses between two attempts to read stops all the same."""
    monkeypatch.setattr(log_thread, "BACK_OFF_MS_MIN", PAUSE_FOR_EVER_MS)

    async def scenario(host: Host) -> None:
        host.log.read_error = UNAVAILABLE
        host.log.wake()
        await host.until_in_thread(lambda: host.seat.outage is not None)

    assert run(scenario).log.closed.is_set()


def test_a_thread_that_never_started_stops() -> None:
    """A host that fails before it starts its thread may stop it all the same."""

    async def scenario() -> None:
        await Host(log=TroubledLog(name=next(LOG_NAMES))).seat.stop(Deadline.after(timeout_ms=1))

    asyncio.run(scenario())


def test_what_nobody_foresaw_in_an_append_is_in_doubt() -> None:
    """It ends the seat as a bug; but before that, who waits for an outcome of that batch is told that nobody knows."""

    async def scenario(host: Host) -> None:
        await host.until(lambda: ("caught up", 0) in host.told)
        host.log.append_error = MemoryError("surprise")
        host.seat.append(b"a", host.tell)
        await host.until(lambda: isinstance(host.told[-1], Bug))

    _, outcome, _ = run(scenario).told
    assert isinstance(outcome, InDoubt)
    assert "MemoryError: surprise" in str(outcome.error)


def test_a_loop_that_ends_takes_the_thread_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is closed without a stop leaves no thread and no handle behind, even if the log never has more to tell."""
    monkeypatch.setattr(log_thread, "WAIT_MS_MAX", 20)
    log = TroubledLog(name=next(LOG_NAMES))

    async def scenario() -> None:
        host = Host(log=log)
        host.start()
        await host.until(lambda: ("caught up", 0) in host.told)

    asyncio.run(scenario())
    assert log.closed.wait(DEADLINE_SECONDS)
    gc.collect()
