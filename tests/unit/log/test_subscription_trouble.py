"""A subscription while the log is unavailable, when it cannot go on, and when it stops."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import pytest

from equipoise.channel.core.errors import (
    Bug,
    ChannelIncomplete,
    DeadlineExceeded,
    EquipoiseError,
    LogUnavailable,
    LogWentBack,
    foreign_log,
)
from equipoise.channel.core.log import FIRST_OFFSET, Entry, Log
from equipoise.channel.log import subscription
from equipoise.channel.log.append_queue import Appended, InDoubt, NotAppended
from equipoise.channel.log.subscription import Subscription
from equipoise.channel.system.clocks import Deadline
from tests.channels.subscriber import (
    DAMAGED,
    FOR_EVER_MS,
    NAME,
    UNAVAILABLE,
    Subscriber,
    log_of,
    run,
)
from tests.channels.troubled_log import DEADLINE_SECONDS

CAUGHT_UP = ("caught up", 0)
FOREIGN = foreign_log(log=NAME, expected="a", found="b")


async def come_back(subscriber: Subscriber) -> None:
    """End an outage."""
    subscriber.log.read_error = None
    await subscriber.until_in_thread(lambda: subscriber.subscription.outage is None)


def test_an_outage_is_visible_and_survived() -> None:
    """It has its beginning and the last error. Afterwards no entry is missing or delivered
    twice.
    """
    now_ms = 0

    async def scenario(subscriber: Subscriber) -> None:
        nonlocal now_ms
        subscriber.write(b"a")
        await subscriber.until_event(b"a")
        now_ms = 7_000
        await subscriber.go_away()
        first = subscriber.subscription.outage
        assert first is not None
        assert (7_000_000_000, UNAVAILABLE) == (first.since_ns, first.error)
        now_ms = 9_000
        await subscriber.until_in_thread(lambda: subscriber.subscription.outage is not first)
        later = subscriber.subscription.outage
        assert later is not None
        assert first.since_ns == later.since_ns
        subscriber.write(b"b")
        await come_back(subscriber)
        await subscriber.until_event(b"b")

    subscriber = run(scenario, Subscriber(now_ns=lambda: now_ms * 1_000_000))
    assert [b"a", b"b"] == [entry.data for entry in subscriber.entries]
    assert subscriber.failure is None


def test_the_beginning_and_the_end_of_an_outage_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An outage soon after another one is not logged."""
    now_ms = 0

    async def scenario(subscriber: Subscriber) -> None:
        nonlocal now_ms
        for begins_ms, ends_ms in ((1_000, 3_000), (4_000, 5_000), (12_000, 20_000)):
            now_ms = begins_ms
            await subscriber.go_away()
            now_ms = ends_ms
            await come_back(subscriber)

    with caplog.at_level("INFO", logger=subscription.__name__):
        run(scenario, Subscriber(now_ns=lambda: now_ms * 1_000_000))
    lines = [(record.levelname, getattr(record, "outage_ms", None)) for record in caplog.records]
    assert [("WARNING", None), ("INFO", 2_000), ("WARNING", None), ("INFO", 8_000)] == lines


def test_the_pause_between_attempts_grows_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pause is twice as long as the one before. After the outage it is short again."""
    pauses: list[int] = []

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.go_away()
        await subscriber.until_in_thread(lambda: len(pauses) >= 6)
        await come_back(subscriber)
        known = len(pauses)
        await subscriber.go_away()
        await subscriber.until_in_thread(lambda: len(pauses) > known)
        pauses[6:known] = []

    monkeypatch.setattr(Subscription, "_pause", lambda _, pause_ms: pauses.append(pause_ms))
    run(scenario, Subscriber())
    assert [50, 100, 200, 400, 500, 500, 50] == pauses[:7]


@pytest.mark.parametrize("is_append", [True, False], ids=["append", "stop"])
def test_an_append_and_a_stop_do_not_wait_for_the_next_attempt_to_read(
    is_append: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that cannot be read may still accept an append."""
    monkeypatch.setattr(subscription, "BACK_OFF_MS_MIN", FOR_EVER_MS)

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.go_away()
        if is_append:
            subscriber.subscription.append(b"a", subscriber.note)
            await subscriber.until_event(Appended(offset=1))

    assert run(scenario, Subscriber()).log.closed.is_set()


def test_a_log_that_cannot_be_opened_yet_is_opened_later() -> None:
    """Until then, appends are refused."""
    opens: list[EquipoiseError | None] = [UNAVAILABLE, UNAVAILABLE, None]

    class Late(Subscriber):
        def open(self) -> Log:
            error = opens.pop(0)
            if error is not None:
                raise error
            return self.log

    async def scenario(subscriber: Subscriber) -> None:
        subscriber.subscription.append(b"too early", subscriber.note)
        await subscriber.until_event(CAUGHT_UP)
        assert subscriber.subscription.outage is None

    subscriber = run(scenario, Late())
    assert [NotAppended(error=UNAVAILABLE), CAUGHT_UP] == subscriber.events
    assert [] == subscriber.log.batches


@pytest.mark.parametrize(
    "error",
    [DAMAGED, LogWentBack(log=NAME, position=7, end=3)],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_does_not_pass_ends_the_subscription(error: EquipoiseError) -> None:
    """It is reported once, the handle is closed, and appends are refused."""

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.until_event(CAUGHT_UP)
        subscriber.log.read_error = error
        subscriber.log.wake()
        await subscriber.until_event(error)
        assert subscriber.log.closed.is_set()
        subscriber.subscription.append(b"late", subscriber.note)
        await subscriber.until(lambda: isinstance(subscriber.events[-1], NotAppended))

    subscriber = run(scenario, Subscriber())
    assert error is subscriber.failure
    assert [CAUGHT_UP, error, NotAppended(error=error)] == subscriber.events


@pytest.mark.parametrize(
    ("position", "error"),
    [(1, ChannelIncomplete), (9, LogWentBack)],
    ids=["truncated", "ahead of the log"],
)
def test_a_position_that_cannot_be_read_ends_the_subscription(
    position: int, error: type[EquipoiseError]
) -> None:
    """A truncated position needs a snapshot. A position above the end belongs to another log."""
    log = log_of(b"a", b"b")
    log.truncate(2, timeout_ms=0)

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.until(lambda: bool(subscriber.events))

    [event] = run(scenario, Subscriber(log, position=position)).events
    assert isinstance(event, error)
    if isinstance(event, ChannelIncomplete):
        assert (1, 1) == (event.first, event.last)


@pytest.mark.parametrize("records", [1, 4 * subscription.READ_ENTRIES])
@pytest.mark.parametrize("raised", [FOREIGN, KeyError("surprise")], ids=["its error", "a bug"])
def test_an_error_of_the_subscriber_ends_its_subscription(raised: Exception, records: int) -> None:
    """It gets nothing more, since it would miss an entry, and has not caught up. An unforeseen
    error is reported as a bug.
    """

    class Fastidious(Subscriber):
        def deliver(self, entries: Sequence[Entry]) -> None:
            if entries[0].offset == FIRST_OFFSET:
                raise raised
            super().deliver(entries)

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.until(lambda: subscriber.failure is not None)
        assert await asyncio.to_thread(subscriber.log.closed.wait, DEADLINE_SECONDS)

    subscriber = run(scenario, Fastidious(log_of(*[b"a"] * records)))
    assert [subscriber.failure] == subscriber.events
    assert subscriber.failure is raised or (
        isinstance(subscriber.failure, Bug) and raised is subscriber.failure.__cause__
    )
    assert str(raised) in str(subscriber.failure)


def test_an_error_of_the_subscriber_about_an_outcome_ends_its_subscription() -> None:
    """The other outcomes of the batch are still reported."""

    def fail(_: object) -> None:
        raise FOREIGN

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.until_event(CAUGHT_UP)
        await subscriber.hold_append()
        subscriber.subscription.append(b"a", fail)
        subscriber.subscription.append(b"b", subscriber.note)
        subscriber.log.gate.set()
        await subscriber.until_event(Appended(offset=3))

    assert [CAUGHT_UP, b"first", FOREIGN, Appended(offset=3)] == run(scenario, Subscriber()).events


def test_an_error_about_the_end_goes_to_the_exception_handler() -> None:
    """The subscription still ends."""
    handled: list[object] = []

    class Hopeless(Subscriber):
        def failed(self, error: Exception) -> None:
            super().failed(error)
            raise RuntimeError("hopeless")

    async def scenario(subscriber: Subscriber) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: handled.append(str(context["exception"]))
        )
        subscriber.deliver_error = FOREIGN
        subscriber.write(b"a")
        await subscriber.until_event(FOREIGN)

    assert run(scenario, Hopeless()).log.closed.is_set()
    assert ["hopeless"] == handled


def test_an_unforeseen_error_of_the_thread_is_reported_as_a_bug() -> None:
    """The thread does not die silently."""

    class Broken(Subscriber):
        def open(self) -> Log:
            raise ZeroDivisionError("surprise")

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.until(lambda: bool(subscriber.events))

    [error] = run(scenario, Broken()).events
    assert isinstance(error, Bug)
    assert "ZeroDivisionError: surprise" in str(error)


def test_an_unforeseen_error_of_an_append_leaves_it_in_doubt() -> None:
    """The outcome comes before the bug that ends the subscription."""

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.until_event(CAUGHT_UP)
        subscriber.log.append_error = MemoryError("surprise")
        subscriber.subscription.append(b"a", subscriber.note)
        await subscriber.until(lambda: isinstance(subscriber.events[-1], Bug))

    _, outcome, _ = run(scenario, Subscriber()).events
    assert isinstance(outcome, InDoubt)
    assert "MemoryError: surprise" in str(outcome.error)


def test_a_stop_closes_the_handle_and_refuses_queued_records() -> None:
    """Records that are queued, or come later, are not appended."""

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.until_event(CAUGHT_UP)
        await subscriber.hold_append()
        subscriber.subscription.append(b"queued", subscriber.note)
        stopping = asyncio.create_task(
            subscriber.subscription.stop(Deadline.after(timeout_ms=30_000))
        )
        await asyncio.sleep(0)
        subscriber.log.gate.set()
        await stopping
        subscriber.subscription.append(b"late", subscriber.note)
        await asyncio.sleep(0)

    subscriber = run(scenario, Subscriber())
    assert subscriber.log.closed.is_set()
    refused = [event.error for event in subscriber.events if isinstance(event, NotAppended)]
    assert [False, False] == [
        isinstance(error, LogUnavailable) and error.in_doubt for error in refused
    ]
    assert [[b"first"]] == subscriber.log.batches


def test_a_stop_has_a_deadline() -> None:
    """If the log hangs, `stop` raises. The thread ends when the log returns."""

    async def scenario(subscriber: Subscriber) -> None:
        await subscriber.hold_append()
        with pytest.raises(DeadlineExceeded):
            await subscriber.subscription.stop(Deadline.after(timeout_ms=1))
        assert not subscriber.log.closed.is_set()

    assert run(scenario, Subscriber()).log.closed.is_set()


def test_a_subscription_that_never_started_stops() -> None:
    """A subscriber may fail before it starts."""
    asyncio.run(Subscriber().subscription.stop(Deadline.after(timeout_ms=1)))


def test_the_thread_ends_with_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is closed without a stop leaves no thread and no handle behind, even if the log
    has no more entries.
    """
    monkeypatch.setattr(subscription, "WAIT_MS_MAX", 20)
    subscriber = Subscriber()

    async def scenario() -> None:
        subscriber.subscription.start()
        await subscriber.until_event(CAUGHT_UP)

    asyncio.run(scenario())
    assert subscriber.log.closed.wait(DEADLINE_SECONDS)
    gc.collect()
