"""A subscription to a log: what it delivers, in which order, how it appends, and what bounds it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from equipoise.channel.core.errors import (
    CallerError,
    EquipoiseError,
    LogStorageFull,
    LogUnavailable,
    Overloaded,
)
from equipoise.channel.core.log import (
    BATCH_BYTES_MAX,
    BATCH_ENTRIES_MAX,
    FIRST_OFFSET,
    RECORD_BYTES_MAX,
    Entry,
)
from equipoise.channel.log import append_queue, subscription
from equipoise.channel.log.append_queue import (
    APPENDS_QUEUED_BYTES_MAX,
    Appended,
    AppendOutcome,
    AppendQueue,
    Attempt,
    InDoubt,
    NotAppended,
)
from equipoise.channel.system.clocks import Deadline
from tests.channels.subscriber import (
    DAMAGED,
    DOUBTFUL,
    FOR_EVER_MS,
    LOG_NAMES,
    NAME,
    UNAVAILABLE,
    Subscriber,
    log_of,
    run,
)
from tests.channels.troubled_log import DEADLINE_SECONDS, TroubledLog

CAUGHT_UP = ("caught up", 0)


class EndsInGap(TroubledLog):
    """A log that ends in a gap. `is_checked` and `may_go_on` stop its reader in a read that finds
    nothing.
    """

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name)
        self.is_checked = threading.Event()
        self.may_go_on = threading.Event()

    def end(self) -> int:
        return super().end() + 1_000_000

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        entries = super().read(position, limit=limit)
        if not entries:
            self.is_checked.set()
            assert self.may_go_on.wait(DEADLINE_SECONDS)
        return entries


class DeafLog(TroubledLog):
    """A deaf log. `ends` counts the questions for its end, which `at_end` holds up."""

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name)
        self.is_deaf = True
        self.ends = 0
        self.at_end = threading.Event()
        self.at_end.set()

    def end(self) -> int:
        end = super().end()
        self.ends += 1
        assert self.at_end.wait(DEADLINE_SECONDS)
        return end


def refusals(subscriber: Subscriber) -> list[EquipoiseError]:
    """The errors of the records that were not appended."""
    return [event.error for event in subscriber.events if isinstance(event, NotAppended)]


@pytest.mark.parametrize("position", [1, 3, 4])
def test_entries_are_delivered_in_order_from_the_position_on(position: int) -> None:
    """It delivers what is on the log, then reports that it has caught up, and goes on with what is
    appended later.
    """

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.until_event(("caught up", 3))
        subscriber.write(b"d")
        await subscriber.until_event(b"d")

    events = run(scenario, Subscriber(log_of(b"a", b"b", b"c"), position=position)).events
    assert [*[b"a", b"b", b"c"][position - 1 :], ("caught up", 3), b"d"] == events


def test_a_log_that_ends_in_a_gap_is_caught_up() -> None:
    """No entry will ever be at the end."""
    log = EndsInGap(name=next(LOG_NAMES))
    log.append([b"a"], timeout_ms=0)
    log.may_go_on.set()

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.until(lambda: len(subscriber.events) == 2)

    assert [b"a", ("caught up", 1_000_001)] == run(scenario, Subscriber(log)).events


@pytest.mark.parametrize("error", [None, DOUBTFUL])
def test_an_outcome_comes_before_its_entry(error: LogUnavailable | None) -> None:
    """Also if the append was in doubt, and the entry shows that it succeeded."""

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.until_event(CAUGHT_UP)
        subscriber.log.append_error = error
        subscriber.subscription.append(b"a", subscriber.note)
        assert [CAUGHT_UP] == subscriber.events
        await subscriber.until_event(b"a")

    outcome = Appended(offset=1) if error is None else InDoubt(error=error)
    assert [CAUGHT_UP, outcome, b"a"] == run(scenario, Subscriber()).events


def test_an_append_wakes_a_waiting_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread would otherwise wait for longer than the test. The appends also show that `done`
    is optional.
    """
    monkeypatch.setattr(subscription, "WAIT_MS_MAX", FOR_EVER_MS)

    async def scenario(subscriber: Subscriber) -> None:
        for number in range(20):
            subscriber.subscription.append(b"%d" % number)
            await subscriber.until_event(b"%d" % number)

    run(scenario, Subscriber())


async def test_reading_on_delivers_what_others_have_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Callers of one moment share one question to the log. One that comes while it is under way
    gets another.
    """
    monkeypatch.setattr(subscription, "WAIT_MS_MAX", FOR_EVER_MS)
    log = DeafLog(name=next(LOG_NAMES))
    subscriber = Subscriber(log)
    subscriber.subscription.start()
    read_on = subscriber.subscription.read_on
    await read_on()
    before = log.ends
    for count in range(1, 4):
        subscriber.write(b"%d" % count)
        assert [True] * 9 == await asyncio.gather(*(read_on() for _ in range(9)))
        assert (count, before + count) == (len(subscriber.entries), log.ends)
    log.at_end.clear()
    early = read_on()
    await subscriber.until_in_thread(lambda: log.ends == before + 4)
    subscriber.write(b"4")
    late = read_on()
    log.at_end.set()
    assert [True, True] == [await early, await late]
    assert ([b"1", b"2", b"3", b"4"], before + 5) == (
        [entry.data for entry in subscriber.entries],
        log.ends,
    )
    await subscriber.subscription.stop(Deadline.after(timeout_ms=int(DEADLINE_SECONDS * 1_000)))


async def test_reading_on_fails_at_once_without_the_log() -> None:
    """Before the question and during it, and after the end."""
    subscriber = Subscriber(log := DeafLog(name=next(LOG_NAMES)))
    subscriber.subscription.start()
    assert await subscriber.subscription.read_on()
    log.read_error = UNAVAILABLE
    assert [False, False] == [await subscriber.subscription.read_on() for _ in range(2)]
    log.read_error = None
    await subscriber.until_in_thread(lambda: subscriber.subscription.outage is None)
    assert await subscriber.subscription.read_on()
    await subscriber.subscription.stop(Deadline.after(timeout_ms=int(DEADLINE_SECONDS * 1_000)))
    assert not await subscriber.subscription.read_on()


@pytest.mark.parametrize("is_append", [True, False], ids=["append", "stop"])
def test_no_wake_is_lost_in_a_check(is_append: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append or a stop while the thread finds nothing to read is noticed."""
    monkeypatch.setattr(subscription, "WAIT_MS_MAX", FOR_EVER_MS)
    log = EndsInGap(name=next(LOG_NAMES))

    async def scenario(subscriber: Subscriber) -> None:
        assert log.is_checked.wait(DEADLINE_SECONDS)
        if is_append:
            subscriber.subscription.append(b"a")
            log.may_go_on.set()
            await subscriber.until_event(b"a")
        else:
            subscriber.subscription._leave()  # noqa: SLF001 - the first half of `stop`
            log.may_go_on.set()

    run(scenario, Subscriber(log))


@pytest.mark.parametrize(
    ("records", "error", "batches"),
    [
        (3, None, [1, 3]),
        (BATCH_ENTRIES_MAX + 1, None, [1, BATCH_ENTRIES_MAX, 1]),
        (BATCH_ENTRIES_MAX + 1, UNAVAILABLE, [1, BATCH_ENTRIES_MAX, 1]),
    ],
    ids=["one batch", "too many for one", "after a failed batch"],
)
def test_records_queued_during_an_append_go_in_as_few_batches_as_possible(
    records: int, error: LogUnavailable | None, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest follows a full batch at once, also if that batch failed."""
    monkeypatch.setattr(subscription, "WAIT_MS_MAX", FOR_EVER_MS)

    async def scenario(subscriber: Subscriber) -> None:
        subscriber.log.append_error = error
        await subscriber.hold_append()
        for _ in range(records):
            subscriber.subscription.append(b"a", subscriber.note)
        subscriber.log.gate.set()
        await subscriber.until(
            lambda: (
                sum(isinstance(event, Appended | NotAppended) for event in subscriber.events)
                == records
            )
        )

    subscriber = run(scenario, Subscriber())
    assert batches == [len(batch) for batch in subscriber.log.batches]
    assert ([error] * records if error else []) == refusals(subscriber)


def test_a_refused_record_harms_no_other() -> None:
    """A record that is too large, and one that exceeds the full queue, are refused by their
    outcomes. The others are appended.
    """
    queued = append_queue.APPENDS_QUEUED_MAX

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.hold_append()
        subscriber.subscription.append(bytes(RECORD_BYTES_MAX + 1), subscriber.note)
        for _ in range(queued):
            subscriber.subscription.append(b"a")
        subscriber.subscription.append(b"too many", subscriber.note)
        await subscriber.until(lambda: len(refusals(subscriber)) == 2)
        subscriber.log.gate.set()
        await subscriber.until(lambda: len(subscriber.entries) == queued + 1)

    too_large, too_many = refusals(run(scenario, Subscriber()))
    assert isinstance(too_large, CallerError)
    assert "bytes in one record" in str(too_large)
    assert isinstance(too_many, Overloaded)
    assert queued == too_many.limit


FULL = LogStorageFull(log=NAME)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (UNAVAILABLE, NotAppended(error=UNAVAILABLE)),
        (DOUBTFUL, InDoubt(error=DOUBTFUL)),
        (FULL, NotAppended(error=FULL)),
        (DAMAGED, NotAppended(error=DAMAGED)),
    ],
    ids=["unavailable", "in doubt", "full disk", "damaged"],
)
def test_a_failed_append_has_one_outcome_and_is_not_retried(
    error: EquipoiseError, outcome: AppendOutcome
) -> None:
    """The subscription goes on reading, and appends what comes later."""

    async def scenario(subscriber: Subscriber) -> None:
        subscriber.log.keeps_what_is_in_doubt = False
        subscriber.log.append_error = error
        subscriber.subscription.append(b"a", subscriber.note)
        await subscriber.until_event(outcome)
        subscriber.log.append_error = None
        subscriber.subscription.append(b"b", subscriber.note)
        await subscriber.until_event(b"b")

    subscriber = run(scenario, Subscriber())
    assert [[b"a"], [b"b"]] == subscriber.log.batches
    assert [b"b"] == [entry.data for entry in subscriber.entries]
    assert subscriber.failure is None


def test_an_attempt_that_waited_too_long_is_not_appended() -> None:
    """Its decision is out of date, after an outage or a sleep of the machine. A fresh one in the
    same batch is appended.
    """
    now_ms = 0

    async def scenario(subscriber: Subscriber) -> None:
        nonlocal now_ms
        await subscriber.hold_append()
        subscriber.subscription.append(b"old", subscriber.note)
        now_ms += append_queue.ATTEMPT_AGE_MS_MAX + 1
        subscriber.subscription.append(b"fresh", subscriber.note)
        subscriber.log.gate.set()
        await subscriber.until_event(b"fresh")

    subscriber = run(scenario, Subscriber(now_ns=lambda: now_ms * 1_000_000))
    [refused] = refusals(subscriber)
    assert isinstance(refused, LogUnavailable)
    assert not refused.in_doubt
    assert [[b"first"], [b"fresh"]] == subscriber.log.batches


def test_a_slow_loop_delays_the_reader_but_not_its_appends() -> None:
    """While the loop takes nothing, the thread reads up to its bound and still appends. Then each
    entry is delivered once.
    """
    entries = 5 * subscription.UNDELIVERED_ENTRIES_MAX
    log = log_of()
    for _ in range(5):
        log.append([b"a"] * subscription.UNDELIVERED_ENTRIES_MAX, timeout_ms=0)
    log.batches.clear()

    async def scenario(subscriber: Subscriber) -> None:
        subscriber.subscription.append(b"mine")
        appended = threading.Event()
        while not appended.wait(0.001):  # This blocks the loop.
            if log.batches and log.end() > entries:
                appended.set()
        time.sleep(0.05)  # noqa: ASYNC251 - nor does it read beyond that bound later
        # The bound shows nowhere else.
        undelivered = subscriber.subscription._undelivered  # noqa: SLF001
        assert undelivered <= subscription.UNDELIVERED_ENTRIES_MAX
        assert not subscriber.entries
        await subscriber.until(lambda: len(subscriber.entries) == entries + 1)
        await subscriber.until_in_thread(lambda: subscriber.subscription.lag_entries == 0)

    subscriber = run(scenario, Subscriber(log))
    assert [
        *(Entry(offset, b"a") for offset in range(FIRST_OFFSET, FIRST_OFFSET + entries)),
        Entry(entries + 1, b"mine"),
    ] == subscriber.entries
    assert max(subscriber.batches) <= subscription.READ_ENTRIES
    assert subscription.READ_ENTRIES <= subscriber.lags[0] <= entries + 1


def test_bytes_are_bounded_and_free_again_when_records_are_taken() -> None:
    """Few records of the greatest size fill a batch and the queue."""
    giant = bytes(RECORD_BYTES_MAX)
    queue = AppendQueue("memory:queue")
    for _ in range(APPENDS_QUEUED_BYTES_MAX // RECORD_BYTES_MAX):
        assert queue.refusal(giant) is None
        queue.put(Attempt(data=giant, done=None, queued_ns=0))
    refusal = queue.refusal(b"a")
    assert isinstance(refusal, Overloaded)
    assert ("the queue of bytes to append to memory:queue", APPENDS_QUEUED_BYTES_MAX) == (
        refusal.what,
        refusal.limit,
    )
    assert BATCH_BYTES_MAX // RECORD_BYTES_MAX == len(queue.take_batch())
    assert queue.refusal(giant) is None
    assert (APPENDS_QUEUED_BYTES_MAX - BATCH_BYTES_MAX) // RECORD_BYTES_MAX == len(queue.drain())
    assert (0, None) == (len(queue), queue.refusal(giant))
