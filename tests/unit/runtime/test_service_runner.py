"""The runner of services: one effect in, one event out, whatever the service does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress

import pytest

from equipoise.brokers.agent.effects import Abandon, Close, Discard, FindCuts, Prepare
from equipoise.brokers.agent.events import Closed, CutsFound, Discarded, Opened, Prepared
from equipoise.brokers.load.metering import follow_tasks_and_threads
from equipoise.brokers.runtime import service_runner as module
from equipoise.brokers.runtime.clock import SystemClock
from equipoise.brokers.runtime.service import Bundle, Ownership, OwnershipLost, Peer, Service
from equipoise.channel.core.entries import bundle_entry
from equipoise.channel.core.errors import CallerError, DeadlineExceeded
from equipoise.channel.core.ranges import HASH_MAX, bundle_name
from equipoise.shedder.loads import BundleLoad
from tests.load.cpu_clocks import cpu_clocks
from tests.unit.runtime.service_bench import (
    BUNDLE,
    NAMESPACE,
    Bench,
    Odd,
    Warming,
    runner_of,
    settled,
    stubborn,
)


def gated(gate: asyncio.Event) -> Callable[[], Coroutine[None, None, None]]:
    """Return an operation that waits for a gate."""

    async def wait() -> None:
        await gate.wait()

    return wait


async def test_an_abandoned_opening_gives_no_answer() -> None:
    """Even if its code swallows the cancellation and ends later. The answer is that of the next
    opening.
    """
    bench, gate = Bench(), asyncio.Event()

    async def failing() -> None:
        raise RuntimeError("no")

    bench.service.opening = lambda: stubborn(gate)
    bench.open(1)
    await settled()
    bench.runner.carry_out(Abandon(bundle=BUNDLE, doing="opening"))
    await settled()
    bench.service.opening = failing
    bench.open(2)
    gate.set()
    await settled()
    assert [Opened(bundle=BUNDLE, problem="RuntimeError: no")] == bench.events
    assert ({}, []) == (bench.runner.ownerships, bench.ended)


async def test_what_an_opening_takes_is_not_what_the_bundle_costs() -> None:
    """It would move to the next broker, which opens it again."""
    bench, gate = Bench(), asyncio.Event()
    with cpu_clocks() as clocks:

        async def serve() -> None:
            await gate.wait()
            clocks.use(3)

        async def opening() -> None:
            started.append(asyncio.create_task(serve()))
            clocks.use(60)

        started = list[asyncio.Task[None]]()
        follow_tasks_and_threads()
        bench.service.opening = opening
        bench.open(1)
        await settled()
        gate.set()
        await started[0]
    assert 3 == bench.runner.ownerships[BUNDLE].account.cpu_ns


PREPARE = Prepare(
    bundle=bundle_entry(NAMESPACE, 0, HASH_MAX, "assigning", owner=1, source=None, last=5, token=5),
    source=None,
    deadline_ms=0,
)
DISCARD = Discard(bundle=BUNDLE, deadline_ms=0)


async def test_a_preparation_waits_for_the_discarding_before_it() -> None:
    bench = Bench(service=Warming())
    gate = bench.warming.waits["discard"] = asyncio.Event()
    bench.runner.carry_out(DISCARD)
    bench.runner.carry_out(PREPARE)
    await settled()
    assert ["discard begins"] == bench.warming.noted
    gate.set()
    await settled()
    assert [
        "discard begins",
        "discard ends",
        "prepare begins",
        "prepare ends",
    ] == bench.warming.noted
    assert Prepared(bundle=BUNDLE) == bench.events[-1]


async def test_an_operation_waits_for_the_end_of_an_abandoned_one() -> None:
    """An operation that is abandoned while it waits for its turn never begins."""
    bench = Bench(service=Warming())
    gate = bench.warming.waits["prepare"] = asyncio.Event()
    bench.runner.carry_out(PREPARE)
    await settled()
    bench.runner.carry_out(Abandon(bundle=BUNDLE, doing="preparing"))
    bench.runner.carry_out(PREPARE)
    # One that is abandoned while it waits for its turn never begins, and leaves the turn to the
    # next.
    await settled()
    bench.runner.carry_out(Abandon(bundle=BUNDLE, doing="preparing"))
    bench.runner.carry_out(DISCARD)
    await settled()
    assert (["prepare begins", "prepare is cancelled"], []) == (bench.warming.noted, bench.events)
    gate.set()
    await settled()
    assert ["prepare ends", "discard begins", "discard ends"] == bench.warming.noted[2:]
    assert ([Discarded(bundle=BUNDLE)], []) == (bench.events, bench.ended)


async def test_a_discarding_that_fails_is_logged_and_over(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Warming):
        async def discard(self, bundle: Bundle) -> None:
            raise RuntimeError("no")

    bench = Bench(service=Failing())
    bench.runner.carry_out(DISCARD)
    await settled()
    assert [Discarded(bundle=BUNDLE)] == bench.events
    assert "discard failed" in caplog.text


@pytest.mark.parametrize("cuts", [None, ("x",), 5])
async def test_invalid_split_points_are_a_problem(cuts: object) -> None:
    bench = Bench()
    bench.service.cuts = cuts
    entry = bundle_entry(
        NAMESPACE, 0, HASH_MAX, "splitting", owner=1, source=None, last=5, token=5, algorithm="odd"
    )
    bench.runner.carry_out(FindCuts(bundle=entry))
    await settled()
    (event,) = bench.events
    assert isinstance(event, CutsFound)
    assert ((), True) == (event.cuts, event.problem is not None)


class Hasty(Odd):
    # The mistake itself.
    async def close(self, bundle: Bundle, moved_to: Peer | None) -> bytes | None:  # type: ignore[override]
        return None


class Lazy(Odd):
    async def load(self) -> dict[str, BundleLoad]:  # type: ignore[override]  # as above
        return {}


@pytest.mark.parametrize(
    ("service", "problem"),
    [
        (Odd, r"no instance of a subclass of equipoise\.Service"),
        ("a service", r"no instance of a subclass of equipoise\.Service"),
        (Hasty(), r"close cannot be called with \(bundle, moved_to, deadline\)"),
        (Lazy(), "load must be a plain `def`"),
    ],
    ids=["a class", "a text", "a close without a deadline", "an async load"],
)
def test_an_invalid_service_is_refused_before_the_broker_joins(
    service: Service, problem: str
) -> None:
    with pytest.raises(CallerError, match=problem):
        runner_of(service)


@pytest.mark.parametrize("pattern", ["", " ", "a b", "[*", "?/n", "acme/ord&rs", "acme/\u00fc"])
def test_a_pattern_that_no_namespace_matches_is_refused(pattern: str) -> None:
    with pytest.raises(CallerError, match="no namespace matches"):
        Bench(pattern)


@pytest.mark.parametrize("pattern", ["*", "t/n", "t/*", "*/n", "*t*n*"])
def test_in_a_pattern_a_star_stands_for_any_characters(pattern: str) -> None:
    runner = Bench(pattern).runner
    assert runner.service_of(NAMESPACE) is not None
    assert (None if pattern == "*" else (pattern,)) == runner.namespaces


@pytest.mark.parametrize("ahead_ms", [60_000, -5])
async def test_a_closing_gets_the_deadline_of_the_agent(ahead_ms: int) -> None:
    bench = Bench()
    handle = bench.open(1)
    await settled()
    bench.runner.carry_out(
        Close(handle=handle, moved_to=None, deadline_ms=SystemClock().now().boot_ms + ahead_ms)
    )
    await settled()
    ((_, _, left_ms),) = bench.service.closed
    assert max(0, ahead_ms - 30_000) <= left_ms <= max(0, ahead_ms)


async def test_a_bundle_that_moves_is_closed_after_its_admitted_work() -> None:
    """Or after half of the time. Later the work may not be finished, because its effect would be
    missing in the state.
    """
    for ends, ahead_ms in ((True, 60_000), (False, 20)):
        bench, closing = Bench(), asyncio.Event()

        async def begin(closing: asyncio.Event = closing) -> None:
            closing.set()

        bench.service.closing = begin
        handle = bench.open(1)
        await settled()
        ownership = Ownership(handle, clock=SystemClock(), admitted=bench.runner.admitted)
        handle.is_open = True
        handle.lease.renew(decided=SystemClock().now(), lease_ms=60_000)
        with ExitStack() as until_finished:
            until_finished.enter_context(ownership.admit("key"))
            handle.is_open, handle.is_settling = False, True
            bench.runner.carry_out(
                Close(
                    handle=handle, moved_to=None, deadline_ms=SystemClock().now().boot_ms + ahead_ms
                )
            )
            await settled()
            assert [] == bench.service.closed
            if ends:
                until_finished.close()
            await closing.wait()
            assert not handle.is_settling
            if not ends:
                with pytest.raises(OwnershipLost):
                    until_finished.close()


async def test_the_end_cancels_openings_and_slow_closings() -> None:
    bench = Bench()
    bench.service.closing = gated(asyncio.Event())
    half = HASH_MAX // 2
    bench.open(1, high=half)
    await settled()
    bench.service.opening = gated(asyncio.Event())
    bench.open(2, low=half)
    await settled()
    await bench.runner.close_all(timeout_ms=1)
    await bench.runner.stop()
    assert ([Opened(bundle=bundle_name(NAMESPACE, 0, half))], []) == (bench.events, bench.ended)


async def test_the_end_closes_a_bundle_that_still_opens() -> None:
    """An opening that swallows its cancellation opens the bundle. It is closed within the same
    time.
    """
    bench, gate = Bench(), asyncio.Event()

    bench.service.opening = lambda: stubborn(gate)
    bench.open(1)
    await settled()
    ending = asyncio.ensure_future(bench.runner.close_all(timeout_ms=60_000))
    await settled()
    assert ([], False) == (bench.service.closed, ending.done())
    gate.set()
    await ending
    await bench.runner.stop()
    ((bundle, moved_to, left_ms),) = bench.service.closed
    assert (BUNDLE, None, True) == (bundle, moved_to, left_ms > 0)
    assert ({}, [], [Closed(bundle=BUNDLE)]) == (bench.runner.ownerships, bench.ended, bench.events)


@pytest.mark.parametrize(
    ("hangs", "problem"),
    [
        (True, f"the service giving the state of {BUNDLE} did not happen within 1 ms"),
        (False, "its fetch returned str, not bytes or an asynchronous iterator of bytes"),
    ],
)
async def test_a_fetch_that_hangs_or_returns_something_else_is_an_error(
    hangs: bool, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_QUESTION_MS", 1 if hangs else 60_000)
    bench = Bench()
    handle = bench.open(1)
    await settled()
    bench.runner.carry_out(Close(handle=handle, moved_to=None, deadline_ms=0))
    await settled()
    bench.service.state = "text"
    if hangs:
        bench.service.fetching = gated(asyncio.Event())
    with pytest.raises((DeadlineExceeded, CallerError), match=problem):
        await bench.runner.fetch_released(BUNDLE)


async def test_code_that_cannot_be_stopped_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could still serve its bundle."""
    monkeypatch.setattr(module, "_ABANDON_MS", 10)
    bench, gate = Bench(), asyncio.Event()

    async def never_cancelled() -> None:
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    bench.service.closing = never_cancelled
    bench.open(1)
    await settled()
    await bench.runner.close_all(timeout_ms=1)
    await bench.runner.stop()
    assert [f"the service could not be stopped: service of {BUNDLE}"] == bench.ended
    gate.set()
    await settled()
