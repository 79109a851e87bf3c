"""The thread that owns a log handle: what it hands to the loop, in which order, how it appends, and what bounds it.

May live here: a thread in good times, and appends that fail. Outages and ends are in test_log_thread_trouble.py.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest

from equipoise.channel.core.errors import AppendTooLarge, EquipoiseError, LogStorageFull, LogUnavailable, Overloaded
from equipoise.channel.core.log import BATCH_ENTRIES_MAX, FIRST_OFFSET, RECORD_BYTES_MAX, Entry
from equipoise.channel.log import append_queue, appending
from equipoise.channel.log import thread as log_thread
from equipoise.channel.log.append_queue import Appended, AppendOutcome, InDoubt, NotAppended
from tests.log_host import DAMAGED, DOUBTFUL, LOG_NAMES, NAME, UNAVAILABLE, Host, run
from tests.troubled_log import DEADLINE_SECONDS, TroubledLog

FOR_EVER_SECONDS = 20 * int(DEADLINE_SECONDS)


def test_what_was_there_and_what_comes_is_delivered_in_order() -> None:
    """The thread delivers what stands on the log, says that it has caught up, and goes on with what is appended later."""

    async def scenario(host: Host) -> None:
        await host.until(lambda: ("caught up", 2) in host.told)
        host.write(b"c")
        await host.until(lambda: len(host.entries) == 3)

    log = TroubledLog(name=next(LOG_NAMES))
    log.append([b"a", b"b"], timeout_ms=0)
    host = run(scenario, log=log)
    assert [b"a", b"b", ("caught up", 2), b"c"] == host.told
    assert [Entry(1, b"a"), Entry(2, b"b"), Entry(3, b"c")] == host.entries


def test_it_begins_where_it_is_told_to() -> None:
    """A reader that comes with a snapshot gets what stands at its position and above, and nothing below."""

    async def scenario(host: Host) -> None:
        await host.until(lambda: ("caught up", 3) in host.told)

    log = TroubledLog(name=next(LOG_NAMES))
    log.append([b"a", b"b", b"c"], timeout_ms=0)
    assert [Entry(3, b"c")] == run(scenario, log=log, position=3).entries


def test_a_new_log_is_caught_up_with_at_once() -> None:
    """Who follows a log on which nothing stands has caught up."""

    async def scenario(host: Host) -> None:
        await host.until(lambda: bool(host.told))

    assert [("caught up", 0)] == run(scenario).told


def test_an_end_in_a_gap_is_caught_up_with() -> None:
    """Where the log ends in a gap, nothing ever stands at its end, and its reader has caught up all the same."""

    class Skipping(TroubledLog):
        def end(self) -> int:
            return super().end() + 1_000_000

    async def scenario(host: Host) -> None:
        await host.until(lambda: len(host.told) == 2)

    log = Skipping(name=next(LOG_NAMES))
    log.append([b"a"], timeout_ms=0)
    assert [b"a", ("caught up", 1_000_001)] == run(scenario, log=log).told


def test_an_outcome_comes_before_the_entry() -> None:
    """Who appends is told the offset first and then reads the entry at that offset."""

    async def scenario(host: Host) -> None:
        host.seat.append(b"a", host.tell)
        assert [] == host.told
        await host.until(lambda: b"a" in host.told)

    told = run(scenario).told
    assert [Appended(offset=1), b"a"] == [what for what in told if what != ("caught up", 0)]


def test_an_append_needs_nobody_who_asks_for_its_outcome() -> None:
    """An append without a function to call is appended and read like any other."""

    async def scenario(host: Host) -> None:
        host.seat.append(b"a")
        await host.until(lambda: b"a" in host.told)

    assert [Entry(1, b"a")] == run(scenario).entries


def test_an_append_wakes_a_thread_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that would wait for longer than any test is woken by an append, each time."""
    monkeypatch.setattr(log_thread, "WAIT_MS_MAX", 1_000 * FOR_EVER_SECONDS)

    async def scenario(host: Host) -> None:
        for number in range(1, 21):
            host.seat.append(b"a")
            await host.until(lambda expected=number: len(host.entries) == expected)  # type: ignore[misc] # mypy knows no such lambda

    run(scenario)


def test_what_is_queued_goes_in_one_batch() -> None:
    """All that is queued while an append is under way is appended together, in the order in which it was queued."""

    async def scenario(host: Host) -> None:
        host.log.gate.clear()
        host.seat.append(b"first", host.tell)
        await asyncio.to_thread(host.log.at_gate.wait, DEADLINE_SECONDS)
        for record in (b"a", b"b", b"c"):
            host.seat.append(record, host.tell)
        host.log.gate.set()
        await host.until(lambda: len(host.entries) == 4)

    assert [[b"first"], [b"a", b"b", b"c"]] == run(scenario).log.batches


def test_a_batch_is_bounded_and_the_rest_follows() -> None:
    """More than a log takes at once is appended in several batches."""

    async def scenario(host: Host) -> None:
        host.log.gate.clear()
        host.seat.append(b"first")
        await asyncio.to_thread(host.log.at_gate.wait, DEADLINE_SECONDS)
        for _ in range(BATCH_ENTRIES_MAX + 1):
            host.seat.append(b"a")
        host.log.gate.set()
        await host.until(lambda: len(host.entries) == BATCH_ENTRIES_MAX + 2)

    assert [1, BATCH_ENTRIES_MAX, 1] == [len(batch) for batch in run(scenario).log.batches]


def test_the_rest_follows_a_batch_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What did not fit into a batch that failed is tried at once, without waiting for anything else to happen."""
    monkeypatch.setattr(log_thread, "WAIT_MS_MAX", 1_000 * FOR_EVER_SECONDS)

    async def scenario(host: Host) -> None:
        host.log.append_error = UNAVAILABLE
        host.log.gate.clear()
        host.seat.append(b"first", host.tell)
        await asyncio.to_thread(host.log.at_gate.wait, DEADLINE_SECONDS)
        for _ in range(BATCH_ENTRIES_MAX + 1):
            host.seat.append(b"a", host.tell)
        host.log.gate.set()
        await host.until(lambda: host.told.count(NotAppended(error=UNAVAILABLE)) == BATCH_ENTRIES_MAX + 2)

    assert [1, BATCH_ENTRIES_MAX, 1] == [len(batch) for batch in run(scenario).log.batches]


def test_a_full_queue_refuses_and_recovers() -> None:
    """What exceeds the queue is refused by its outcome, and what was queued before is appended."""
    queued = append_queue.APPENDS_QUEUED_MAX

    async def scenario(host: Host) -> None:
        host.log.gate.clear()
        host.seat.append(b"first")
        await asyncio.to_thread(host.log.at_gate.wait, DEADLINE_SECONDS)
        for _ in range(queued):
            host.seat.append(b"a")
        host.seat.append(b"too many", host.tell)
        await host.until(lambda: isinstance(host.told[-1], NotAppended))
        host.log.gate.set()
        await host.until(lambda: len(host.entries) == queued + 1)

    [refused] = [what for what in run(scenario).told if isinstance(what, NotAppended)]
    assert isinstance(refused.error, Overloaded)
    assert queued == refused.error.limit


def test_the_queue_is_bounded_in_bytes_too() -> None:
    """Few records of the greatest size fill the queue as well."""
    giants = append_queue.APPENDS_QUEUED_BYTES_MAX // RECORD_BYTES_MAX

    async def scenario(host: Host) -> None:
        host.log.gate.clear()
        host.seat.append(b"first")
        await asyncio.to_thread(host.log.at_gate.wait, DEADLINE_SECONDS)
        for _ in range(giants):
            host.seat.append(bytes(RECORD_BYTES_MAX))
        host.seat.append(b"too many", host.tell)
        await host.until(lambda: isinstance(host.told[-1], NotAppended))

    [refused] = [what for what in run(scenario).told if isinstance(what, NotAppended)]
    assert isinstance(refused.error, Overloaded)


def test_a_record_that_is_too_large_is_refused_alone() -> None:
    """A record that no log takes is refused by its outcome, and harms none beside it."""

    async def scenario(host: Host) -> None:
        host.seat.append(b"a", host.tell)
        host.seat.append(bytes(RECORD_BYTES_MAX + 1), host.tell)
        host.seat.append(b"b", host.tell)
        await host.until(lambda: len(host.entries) == 2)

    host = run(scenario)
    [refused] = [what for what in host.told if isinstance(what, NotAppended)]
    assert isinstance(refused.error, AppendTooLarge)
    assert [b"a", b"b"] == [entry.data for entry in host.entries]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error of an append, and what is told of it."""

    id: str
    error: EquipoiseError
    outcome: AppendOutcome


FAILURES = (
    Failure(id="unavailable", error=UNAVAILABLE, outcome=NotAppended(error=UNAVAILABLE)),
    Failure(id="in doubt", error=DOUBTFUL, outcome=InDoubt(error=DOUBTFUL)),
    Failure(id="full disk", error=(full := LogStorageFull(log=NAME)), outcome=NotAppended(error=full)),
    Failure(id="damaged", error=DAMAGED, outcome=NotAppended(error=DAMAGED)),
)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.id)
def test_an_append_that_fails_is_told_once_and_never_tried_again(failure: Failure) -> None:
    """A failed append is reported as what it is; the thread goes on reading, and appends what comes later."""

    async def scenario(host: Host) -> None:
        host.log.keeps_what_is_in_doubt = False
        host.log.append_error = failure.error
        host.seat.append(b"a", host.tell)
        await host.until(lambda: failure.outcome in host.told)
        host.log.append_error = None
        host.seat.append(b"b", host.tell)
        await host.until(lambda: b"b" in host.told)

    host = run(scenario)
    assert [[b"a"], [b"b"]] == host.log.batches
    assert [b"b"] == [entry.data for entry in host.entries]
    assert host.seat.failure is None


def test_doubt_is_told_before_the_entry_that_settles_it() -> None:
    """An append in doubt that is on the log after all is read back after its outcome was told."""

    async def scenario(host: Host) -> None:
        host.log.append_error = DOUBTFUL
        host.seat.append(b"a", host.tell)
        await host.until(lambda: b"a" in host.told)

    told = run(scenario).told
    assert [InDoubt(error=DOUBTFUL), b"a"] == [what for what in told if what != ("caught up", 0)]


def test_an_attempt_that_waited_too_long_is_not_appended() -> None:
    """A proposal that an outage or a sleeping machine has overtaken is refused, and one that is fresh is appended."""
    now_ms = 0

    async def scenario(host: Host) -> None:
        nonlocal now_ms
        host.log.gate.clear()
        host.seat.append(b"first")
        await asyncio.to_thread(host.log.at_gate.wait, DEADLINE_SECONDS)
        host.seat.append(b"old", host.tell)
        now_ms += appending.ATTEMPT_AGE_MS_MAX + 1
        host.seat.append(b"fresh", host.tell)
        host.log.gate.set()
        await host.until(lambda: b"fresh" in host.told)

    host = run(scenario, now_ns=lambda: now_ms * 1_000_000)
    [refused] = [what for what in host.told if isinstance(what, NotAppended)]
    assert isinstance(refused.error, LogUnavailable)
    assert not refused.error.in_doubt
    assert [b"first", b"fresh"] == [entry.data for entry in host.entries]


def test_a_loop_that_is_slow_holds_the_reader_up() -> None:
    """The thread reads no further than the bound while the loop takes nothing, and goes on when it does."""
    entries = 5 * log_thread.UNDELIVERED_ENTRIES_MAX

    async def scenario(host: Host) -> None:
        most = 0
        while len(host.entries) < entries:
            most = max(most, host.seat._place.undelivered)  # noqa: SLF001 - the bound is about nothing that shows outside
            await asyncio.sleep(0)
        assert 0 < most <= log_thread.UNDELIVERED_ENTRIES_MAX
        assert 0 == host.seat.lag_entries

    log = TroubledLog(name=next(LOG_NAMES))
    for _ in range(5):
        log.append([b"a"] * log_thread.UNDELIVERED_ENTRIES_MAX, timeout_ms=0)
    host = run(scenario, log=log)
    assert list(range(FIRST_OFFSET, FIRST_OFFSET + entries)) == [entry.offset for entry in host.entries]
    assert max(host.batches) <= log_thread.READ_ENTRIES


def test_a_held_up_reader_still_appends() -> None:
    """While the loop is slow to take entries, what it appends goes to the log."""
    entries = 3 * log_thread.UNDELIVERED_ENTRIES_MAX

    async def scenario(host: Host) -> None:
        # The loop does nothing but this for a while: the thread fills the bound, waits for room, and is woken to append.
        host.seat.append(b"mine")
        appended = threading.Event()
        while not appended.wait(0.001):
            if host.log.batches and host.log.end() > entries:
                appended.set()
        assert not host.entries
        await host.until(lambda: len(host.entries) == entries + 1)

    log = TroubledLog(name=next(LOG_NAMES))
    for _ in range(3):
        log.append([b"a"] * log_thread.UNDELIVERED_ENTRIES_MAX, timeout_ms=0)
    log.batches.clear()
    assert b"mine" == run(scenario, log=log).entries[-1].data


def test_the_lag_is_told_while_there_is_one() -> None:
    """While much is still to be read the lag counts what the loop has not taken, and it is nothing in the end."""
    entries = 4 * log_thread.READ_ENTRIES

    async def scenario(host: Host) -> None:
        await host.until(lambda: len(host.entries) == entries)
        await host.until_in_thread(lambda: host.seat.lag_entries == 0)

    log = TroubledLog(name=next(LOG_NAMES))
    log.append([b"a"] * entries, timeout_ms=0)
    lags = run(scenario, log=log).lags
    assert log_thread.READ_ENTRIES <= lags[0] <= entries
    assert log_thread.READ_ENTRIES == lags[-1]
