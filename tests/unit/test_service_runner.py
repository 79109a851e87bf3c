"""The runner of services: one effect in, one event out, whatever the service does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import pytest

from brokers.agent.effects import Abandon, Close, FindCuts, Open
from brokers.agent.events import Closed, CutsFound, Event, Opened
from brokers.agent.handle import Handle, Lease
from brokers.clock import SystemClock
from brokers.service import Bundle, Ownership, Peer, Service
from brokers.service_runner import ServiceRunner
from channel.entries import bundle_entry
from channel.errors import InvalidService
from channel.ranges import HASH_MAX, bundle_name

NAMESPACE = "t/n"
BUNDLE = bundle_name(NAMESPACE, 0, HASH_MAX)


class Odd(Service):
    """A service that does what each test says."""

    def __init__(self) -> None:
        self.opening: Callable[[], Coroutine[None, None, None]] = self._nothing
        self.leaves: object = None
        self.cuts: object = ()

    async def _nothing(self) -> None:
        return

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        await self.opening()

    async def close(self, bundle: Bundle, moved_to: Peer | None) -> bytes | None:
        return self.leaves  # type: ignore[return-value]  # what a user's code may do all the same

    async def split_points(self, bundle: Bundle, algorithm: str, positions: Sequence[int] | None) -> Sequence[int]:
        return self.cuts  # type: ignore[return-value]  # as above


class Bench:
    """A runner with one odd service, and the events that came of it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.service = Odd()
        self.runner = ServiceRunner(
            {"*": self.service},
            make_ownership=lambda handle, _source: Ownership(handle, clock=SystemClock()),
            step=self.events.append,
            end_process=self.fail,
        )

    def fail(self, problem: str) -> None:
        """The last resort is not for these tests."""
        raise AssertionError(problem)

    def open(self, token: int) -> Handle:
        """Have the bundle opened under a token."""
        lease = Lease(incarnation=1, skew_max_ms=1_000)
        handle = Handle(bundle=BUNDLE, namespace=NAMESPACE, low=0, high=HASH_MAX, token=token, lease=lease)
        self.runner.carry_out(Open(handle=handle, source=None, handover=None, deadline_ms=0))
        return handle


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_an_abandoned_opening_does_not_answer_for_its_successor() -> None:
    """A task that swallows its cancellation and ends later says nothing, and its ownership is not served."""

    async def story() -> None:
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
        assert {} == bench.runner.ownerships

    asyncio.run(story())


def test_a_handover_that_cannot_go_on_record_is_dropped() -> None:
    """What is not bytes, or more than 16 KiB of them, is dropped; the bundle is closed all the same."""

    async def story() -> None:
        for leaves, expected in ((b"state", b"state"), ("text", None), (7, None), (b"x" * 16_385, None), (None, None)):
            bench = Bench()
            handle = bench.open(1)
            await settled()
            bench.service.leaves = leaves
            bench.runner.carry_out(Close(handle=handle, moved_to=None, deadline_ms=0))
            await settled()
            assert [Opened(bundle=BUNDLE), Closed(bundle=BUNDLE, handover=expected)] == bench.events

    asyncio.run(story())


def test_cuts_that_are_none_are_a_problem_not_a_silence() -> None:
    """A service that returns no list of integers is answered for with its problem."""

    async def story() -> None:
        for cuts in (None, ("x",), 5):
            bench = Bench()
            bench.service.cuts = cuts
            entry = bundle_entry(NAMESPACE, 0, HASH_MAX, "splitting", owner=1, source=None, last=5, token=5, algorithm="odd")
            bench.runner.carry_out(FindCuts(bundle=entry))
            await settled()
            (event,) = bench.events
            assert isinstance(event, CutsFound)
            assert ((), True) == (event.cuts, event.problem is not None)

    asyncio.run(story())


@pytest.mark.parametrize("service", [Odd, object(), "a service"], ids=["a class", "an object", "a text"])
def test_what_is_no_service_is_refused_at_once(service: object) -> None:
    """A worker does not join with something that would only fail when its first bundle comes."""
    with pytest.raises(InvalidService, match="give an instance of a Service"):
        ServiceRunner(
            {"*": service},  # type: ignore[dict-item]  # the mistake itself
            make_ownership=lambda handle, _source: Ownership(handle, clock=SystemClock()),
            step=lambda _event: None,
            end_process=lambda _problem: None,
        )
