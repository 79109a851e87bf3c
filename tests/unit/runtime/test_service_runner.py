"""The runner of services: one effect in, one event out, whatever the service does."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from equipoise.brokers.agent.effects import Abandon, Close, Discard, FindCuts, Prepare
from equipoise.brokers.agent.events import Closed, CutsFound, Discarded, Event, Opened, Prepared
from equipoise.brokers.runtime import service_runner as module
from equipoise.brokers.runtime.clock import SystemClock
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.runtime.service_runner import ServiceRunner
from equipoise.channel.core.entries import bundle_entry
from equipoise.channel.core.errors import CallerError, DeadlineExceeded
from equipoise.channel.core.ranges import HASH_MAX, bundle_name
from equipoise.shedder.bundle_load import BundleLoad
from tests.unit.runtime.service_bench import BUNDLE, NAMESPACE, Bench, Odd, Warming, settled


async def test_an_abandoned_opening_does_not_answer_for_its_successor() -> None:
    """A task that swallows its cancellation and ends later says nothing, and its ownership is not served."""
    bench, gate = Bench(), asyncio.Event()

    async def stubborn() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            await gate.wait()

    async def failing() -> None:
        raise RuntimeError("no")

    bench.service.opening = stubborn
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


PREPARE = Prepare(
    bundle=bundle_entry(NAMESPACE, 0, HASH_MAX, "assigning", owner=1, source=None, last=5, token=5), source=None, deadline_ms=0
)
DISCARD = Discard(bundle=BUNDLE, deadline_ms=0)


async def test_a_preparation_waits_for_the_end_of_the_discarding_before_it() -> None:
    """The service prepares anew when it has discarded, and the agent has each answer in turn."""
    bench = Bench(service=Warming())
    gate = bench.warming.waits["discard"] = asyncio.Event()
    bench.runner.carry_out(DISCARD)
    bench.runner.carry_out(PREPARE)
    await settled()
    assert ["discard begins"] == bench.warming.noted
    gate.set()
    await settled()
    assert ["discard begins", "discard ends", "prepare begins", "prepare ends"] == bench.warming.noted
    assert Prepared(bundle=BUNDLE) == bench.events[-1]


async def test_an_operation_waits_for_the_end_of_an_abandoned_one() -> None:
    """Code that overran its deadline may take a while to stop: the next operation of the bundle begins after that."""
    bench = Bench(service=Warming())
    gate = bench.warming.waits["prepare"] = asyncio.Event()
    bench.runner.carry_out(PREPARE)
    await settled()
    bench.runner.carry_out(Abandon(bundle=BUNDLE, doing="preparing"))
    bench.runner.carry_out(PREPARE)
    # One that is abandoned while it waits for its turn never begins, and leaves the turn to the next.
    await settled()
    bench.runner.carry_out(Abandon(bundle=BUNDLE, doing="preparing"))
    bench.runner.carry_out(DISCARD)
    await settled()
    assert (["prepare begins", "prepare is cancelled"], []) == (bench.warming.noted, bench.events)
    gate.set()
    await settled()
    assert ["prepare ends", "discard begins", "discard ends"] == bench.warming.noted[2:]
    assert ([Discarded(bundle=BUNDLE)], []) == (bench.events, bench.ended)


def test_a_discarding_that_fails_is_logged_and_over(caplog: pytest.LogCaptureFixture) -> None:
    """An error in discarding keeps nobody from the bundle: the agent hears that it is over."""

    class Failing(Warming):
        async def discard(self, bundle: Bundle) -> None:
            raise RuntimeError("no")

    async def story() -> list[Event]:
        bench = Bench(service=Failing())
        bench.runner.carry_out(DISCARD)
        await settled()
        return bench.events

    assert [Discarded(bundle=BUNDLE)] == asyncio.run(story())
    assert "discard failed" in caplog.text


async def test_cuts_that_are_none_are_a_problem_not_a_silence() -> None:
    """A service that returns no list of integers is answered for with its problem."""
    for cuts in (None, ("x",), 5):
        bench = Bench()
        bench.service.cuts = cuts
        entry = bundle_entry(NAMESPACE, 0, HASH_MAX, "splitting", owner=1, source=None, last=5, token=5, algorithm="odd")
        bench.runner.carry_out(FindCuts(bundle=entry))
        await settled()
        (event,) = bench.events
        assert isinstance(event, CutsFound)
        assert ((), True) == (event.cuts, event.problem is not None)


@pytest.mark.parametrize("service", [Odd, object(), "a service"], ids=["a class", "an object", "a text"])
def test_what_is_no_service_is_refused_at_once(service: object) -> None:
    """A worker does not join with something that would only fail when its first bundle comes."""
    with pytest.raises(CallerError, match=r"no instance of a subclass of equipoise\.Service"):
        ServiceRunner(
            {"*": service},  # type: ignore[dict-item]  # the mistake itself
            clock=SystemClock(),
            make_ownership=lambda handle, _source: Ownership(handle, clock=SystemClock()),
            step=lambda _event: None,
            end_process=lambda _problem: None,
        )


@pytest.mark.parametrize("pattern", ["", " ", "a b", "[*", "[]", "acme/ord&rs", "acme/\u00fc"])
def test_a_pattern_that_no_namespace_matches_is_refused_at_once(pattern: str) -> None:
    """Whoever gives a service to no namespace meant another pattern, and is told before the broker joins."""
    with pytest.raises(CallerError, match="no namespace matches"):
        Bench(pattern)


@pytest.mark.parametrize("pattern", ["*", "t/n", "t/*", "[a-z]/n", "t/[!x]", "?/n"])
def test_a_pattern_that_a_namespace_may_match_is_taken(pattern: str) -> None:
    """All that fnmatch understands may stand in a pattern."""
    assert Bench(pattern).runner.service_of(NAMESPACE) is not None


def test_a_bundle_of_nobodys_namespace_is_refused_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """That a broker has no service for a namespace is told as a refusal and a warning, without a traceback: nobody's code failed."""

    async def story() -> list[Event]:
        bench = Bench("other/*")
        bench.open(1)
        await settled()
        return bench.events

    (event,) = asyncio.run(story())
    assert isinstance(event, Opened)
    assert (event.problem or "").startswith("no service of this broker serves namespace t/n; ")
    (record,) = [record for record in caplog.records if record.name == module.__name__]
    assert ("WARNING", None) == (record.levelname, record.exc_info)


def test_a_service_that_takes_less_than_it_is_given_is_refused_at_once() -> None:
    """A `close` without a deadline, or a `load` that is async, would only fail when its time comes."""

    class Hasty(Odd):
        async def close(self, bundle: Bundle, moved_to: Peer | None) -> bytes | None:  # type: ignore[override]  # the mistake itself
            return None

    class Lazy(Odd):
        async def load(self) -> dict[str, BundleLoad]:  # type: ignore[override]  # as above
            return {}

    cases: tuple[tuple[Service, str], ...] = (
        (Hasty(), r"close cannot be called with \(bundle, moved_to, deadline\)"),
        (Lazy(), "load must be a plain `def`"),
    )
    for service, problem in cases:
        with pytest.raises(CallerError, match=problem):
            ServiceRunner(
                {"*": service},
                clock=SystemClock(),
                make_ownership=lambda handle, _source: Ownership(handle, clock=SystemClock()),
                step=lambda _event: None,
                end_process=lambda _problem: None,
            )


async def test_a_closing_knows_how_long_it_may_take() -> None:
    """The deadline that a service is given is the one at which the agent goes on without it."""
    for ahead_ms in (60_000, -5):
        bench = Bench()
        handle = bench.open(1)
        await settled()
        deadline_ms = SystemClock().now().boot_ms + ahead_ms
        bench.runner.carry_out(Close(handle=handle, moved_to=None, deadline_ms=deadline_ms))
        await settled()
        ((_, _, left_ms),) = bench.service.closed
        assert max(0, ahead_ms - 30_000) <= left_ms <= max(0, ahead_ms)


async def test_at_the_end_all_that_is_open_is_closed_side_by_side() -> None:
    """Every open bundle is closed with nobody to move to, at once, within what there is left of time."""
    bench, gate = Bench(), asyncio.Event()
    bench.service.closing = lambda: _until(gate)
    half = HASH_MAX // 2
    bench.open(1, high=half)
    bench.open(2, low=half)
    await settled()
    ending = asyncio.ensure_future(bench.runner.close_all(timeout_ms=60_000))
    await settled()
    assert [(bundle_name(NAMESPACE, 0, half), None), (bundle_name(NAMESPACE, half, HASH_MAX), None)] == [
        (bundle, moved_to) for bundle, moved_to, _ in bench.service.closed
    ]
    assert not ending.done()
    gate.set()
    await ending
    await bench.runner.stop()
    assert ({}, []) == (bench.runner.ownerships, bench.ended)


async def test_at_the_end_a_closing_that_overruns_is_cancelled() -> None:
    """Nobody waits for a closing beyond the time for it; and an opening under way is of no use any more."""
    bench, never = Bench(), asyncio.Event()
    bench.service.closing = lambda: _until(never)
    half = HASH_MAX // 2
    bench.open(1, high=half)
    await settled()
    bench.service.opening = lambda: _until(never)
    bench.open(2, low=half)
    await settled()
    await bench.runner.close_all(timeout_ms=1)
    await bench.runner.stop()
    assert ([Opened(bundle=bundle_name(NAMESPACE, 0, half))], []) == (bench.events, bench.ended)


async def test_at_the_end_what_is_opened_all_the_same_is_closed() -> None:
    """An opening that swallows its cancellation and ends well is no more open than any other: it is closed within the same time."""
    bench, gate = Bench(), asyncio.Event()

    async def stubborn() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            await gate.wait()

    bench.service.opening = stubborn
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


async def test_state_that_is_long_in_coming_has_a_typed_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that does not give what it holds of a bundle is not waited for, and who asked is told of what."""
    monkeypatch.setattr(module, "_QUESTION_MS", 1)
    bench = Bench()
    handle = bench.open(1)
    await settled()
    bench.runner.carry_out(Close(handle=handle, moved_to=None, deadline_ms=0))
    await settled()
    bench.service.fetching = lambda: _until(asyncio.Event())
    with pytest.raises(DeadlineExceeded, match=f"the service giving the state of {BUNDLE} did not happen within 1 ms"):
        await bench.runner.fetch_released(BUNDLE)


async def test_what_cannot_be_stopped_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that swallows its cancellation could still serve: it is named, and the process ends."""
    monkeypatch.setattr(module, "_ABANDON_MS", 10)
    bench, gate = Bench(), asyncio.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    bench.service.closing = stubborn
    bench.open(1)
    await settled()
    await bench.runner.close_all(timeout_ms=1)
    await bench.runner.stop()
    assert [f"the service could not be stopped: service of {BUNDLE}"] == bench.ended
    gate.set()
    await settled()


async def _until(gate: asyncio.Event) -> None:
    await gate.wait()
