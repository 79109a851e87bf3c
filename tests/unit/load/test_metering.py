"""CPU time by ownership: each step is charged once, to the innermost charge, whatever runs it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

import anyio.to_thread
import pytest
from starlette.concurrency import run_in_threadpool

from equipoise.brokers.load import metering
from equipoise.brokers.load.metering import (
    Account,
    driven,
    driven_for,
    follow_tasks_and_threads,
)
from equipoise.shedder.loads import BundleLoad
from tests.load.cpu_clocks import CpuClocks, cpu_clocks


@pytest.fixture
def clocks() -> Iterator[CpuClocks]:
    with cpu_clocks() as made:
        yield made


async def test_only_the_innermost_charge_pays(clocks: CpuClocks) -> None:
    """So a call of a key in a request for another key is charged once."""
    outer, inner = Account(), Account()

    async def call() -> None:
        with inner.charge():
            clocks.use(10)
            await asyncio.sleep(0)
            clocks.use(20)

    async def request() -> None:
        with outer.charge():
            clocks.use(1)
            await call()
            await driven(call())  # It has a frame already.
            await driven_for(inner, call())
            await asyncio.sleep(0)
            clocks.use(2)

    await driven(request())
    assert (3, 90) == (outer.cpu_ns, inner.cpu_ns)


async def test_a_cancelled_task_is_charged_to_its_end(clocks: CpuClocks) -> None:
    account = Account()

    async def work() -> str:
        with account.charge():
            try:
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                clocks.use(3)
                await asyncio.sleep(0)
                clocks.use(4)
                return "ended"
        return "not cancelled"

    task = asyncio.ensure_future(driven(work()))
    await asyncio.sleep(0)
    task.cancel()
    assert (await task, 7) == ("ended", account.cpu_ns)


async def test_asynchronous_generators_are_charged_where_they_run(clocks: CpuClocks) -> None:
    """Also if one is closed in another task than it has begun in."""
    account = Account()

    async def numbers() -> AsyncGenerator[int]:
        with account.charge():
            for number in range(3):
                clocks.use(10)
                yield number
                await asyncio.sleep(0)

    async def read() -> AsyncGenerator[int]:
        found = numbers()
        await anext(found)
        clocks.use(1)  # The generator has begun a charge, and nothing has ended it.
        return found

    found = await driven(read())
    await driven(found.aclose())
    assert account.cpu_ns == 11


async def test_what_a_frame_has_begun_ends_with_it(clocks: CpuClocks) -> None:
    """A service may begin work, and not finish it, because its caller is gone."""
    account = Account()

    async def handler() -> asyncio.Task[None]:
        account.called()
        clocks.use(5)
        return asyncio.create_task(later())

    async def later() -> None:
        await asyncio.sleep(0)
        clocks.use(100)

    follow_tasks_and_threads()
    await (await driven(handler()))
    assert account.cpu_ns == 5


async def test_a_task_is_charged_as_long_as_the_charge_lasts_in_which_it_began(
    clocks: CpuClocks,
) -> None:
    """Frameworks run handlers and streams in tasks of their own."""
    account = Account()
    follow_tasks_and_threads()
    is_over = asyncio.Event()

    async def child() -> None:
        clocks.use(10)
        await asyncio.sleep(0)
        clocks.use(20)
        await is_over.wait()
        clocks.use(1_000)

    async def request() -> asyncio.Task[None]:
        with account.charge():
            task = asyncio.create_task(child(), name="the child")
            async with anyio.create_task_group() as group:
                group.start_soon(grandchild)
                await asyncio.sleep(0)
            return task

    async def grandchild() -> None:
        await asyncio.gather(*(leaf() for _ in range(2)))

    async def leaf() -> None:
        await asyncio.sleep(0)
        clocks.use(100)

    task = await driven(request())
    is_over.set()
    await task
    assert task.get_name() == "the child"
    assert account.cpu_ns == 230


async def test_a_cancelled_group_ends_its_tasks_before_their_first_step(clocks: CpuClocks) -> None:
    """Anyio looks at the state of the coroutines."""
    account, began = Account(), list[str]()
    follow_tasks_and_threads()

    async def child() -> None:
        began.append("child")
        await asyncio.sleep(1_000)

    async def request() -> None:
        with account.charge():
            async with anyio.create_task_group() as group:
                group.start_soon(child)
                group.cancel_scope.cancel()
            async with anyio.create_task_group() as group:
                group.start_soon(child)
                await asyncio.sleep(0)
                group.cancel_scope.cancel()

    await driven(request())
    assert began


async def test_tasks_that_are_opened_for_an_ownership_are_charged_also_later(
    clocks: CpuClocks,
) -> None:
    account = Account()
    follow_tasks_and_threads()
    tasks = list[asyncio.Task[None]]()

    async def serve() -> None:
        await asyncio.sleep(0)
        clocks.use(10)

    async def opened() -> None:
        tasks.append(asyncio.create_task(serve()))
        clocks.use(1)

    await driven_for(account, opened())
    await tasks[0]
    assert account.cpu_ns == 11


@pytest.mark.parametrize(
    "run",
    [
        run_in_threadpool,
        lambda function: anyio.to_thread.run_sync(function),  # noqa: PLW0108 - as it is then
        asyncio.to_thread,
        lambda function: asyncio.get_running_loop().run_in_executor(None, function),
    ],
    ids=["starlette", "anyio", "asyncio", "executor"],
)
async def test_functions_in_pools_of_threads_are_charged(
    run: Callable[[Callable[[], int]], Coroutine[Any, Any, int]], clocks: CpuClocks
) -> None:
    """FastAPI runs the endpoints there that are no coroutine functions."""
    account, inner = Account(), Account()
    follow_tasks_and_threads()

    def endpoint() -> int:
        clocks.use(7)
        with inner.charge():
            clocks.use(100)
        clocks.use(1)
        return 42

    async def request() -> int:
        with account.charge():
            clocks.use(10)
            return await run(endpoint)

    assert await driven(request()) == 42
    assert (18, 100) == (account.cpu_ns, inner.cpu_ns)
    assert await run(endpoint) == 42
    assert (18, 200) == (account.cpu_ns, inner.cpu_ns), "nobody pays"


async def test_a_coroutine_that_nobody_drives_pays_if_it_awaits_nothing(
    clocks: CpuClocks,
) -> None:
    outer, inner = Account(), Account()

    async def work(awaits: int) -> None:
        with outer.charge():
            clocks.use(5)
            with inner.charge():
                clocks.use(6)
            for _ in range(awaits):
                await asyncio.sleep(0)
                clocks.use(1_000)

    await work(0)
    assert (5, 6) == (outer.cpu_ns, inner.cpu_ns)
    await work(2)
    assert (5, 12) == (outer.cpu_ns, inner.cpu_ns)


@pytest.mark.parametrize("jump_ns", [-(10**12), 10**18], ids=["back", "ahead"])
async def test_a_clock_that_jumps_charges_no_more_than_the_time_that_passed(
    jump_ns: int, clocks: CpuClocks
) -> None:
    """As after the move of a virtual machine to another host."""
    account = Account()

    async def work() -> None:
        with account.charge():
            clocks.use(10)
            await asyncio.sleep(0)
            clocks.use(20)
            clocks.passed_ns += 3
            clocks.jumped_ns += jump_ns
            await asyncio.sleep(0)
            clocks.use(30)

    await driven(work())
    assert account.cpu_ns == (40 if jump_ns < 0 else 63)


async def test_short_steps_have_used_the_time_that_has_passed(
    clocks: CpuClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read the CPU time of each would cost a request more than all else. The CPU time of long
    steps is read, and then nothing counts twice.
    """
    account, reads = Account(), list[int]()

    def read() -> int:
        reads.append(clocks.cpu_ns())
        return reads[-1]

    monkeypatch.setattr(metering, "thread_time_ns", read)
    monkeypatch.setattr(metering, "SHORT_NS", 100)
    monkeypatch.setattr(metering, "FRESH_NS", 1_000)

    async def work() -> None:
        with account.charge():
            for _ in range(10):
                clocks.use(50)
                clocks.passed_ns += 7  # The thread waits for its turn.
                await asyncio.sleep(0)
            clocks.use(300)
            clocks.passed_ns += 1_000
            await asyncio.sleep(0)

    clocks.passed_ns += 1_000_000
    await driven(work())
    assert account.cpu_ns == 800
    assert len(reads) == 2


async def test_charges_that_end_out_of_order_are_paid_by_those_that_last(clocks: CpuClocks) -> None:
    first, second = Account(), Account()

    async def work() -> None:
        one, two = first.charge().__enter__(), second.charge().__enter__()
        clocks.use(1)
        one.end()
        clocks.use(10)
        two.end()
        clocks.use(100)
        two.end()

    await driven(work())
    assert (0, 11) == (first.cpu_ns, second.cpu_ns)


async def test_work_that_nobody_finishes_fills_no_memory(clocks: CpuClocks) -> None:
    """In a frame that lasts, such as one of a WebSocket."""
    accounts = Account(), Account()

    async def socket() -> int:
        charge = None
        for number in range(1_000):
            charge = accounts[number % 2].called()
            clocks.use(1)
        depth = 0
        while charge is not None:
            charge, depth = charge.outer, depth + 1
        return depth

    assert await driven(socket()) < 100
    assert [500, 500] == [each.cpu_ns for each in accounts]


async def test_nothing_is_read_where_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The setting `measure_cpu` is off. Calls and their time are counted."""
    monkeypatch.setattr(metering, "thread_time_ns", None)
    account = Account(measures=False)

    async def work() -> None:
        account.called()
        with account.charge(), account.running():
            await asyncio.sleep(0)

    await driven(work())
    await work()
    load = account.take()
    assert load is not None
    assert load.calls_per_second > 0
    assert load.wall_seconds_per_second > 0


def test_the_load_is_what_was_used_since_the_last_question(clocks: CpuClocks) -> None:
    account = Account()
    assert account.take() is None
    account.called()
    account.bytes += 8
    account.cpu_ns += 200_000_000
    began_ns = account.began()
    clocks.passed_ns += 500_000_000
    load = account.take()
    assert load is not None
    assert (2.0, 16.0, 0.4, 1.0) == (
        load.calls_per_second,
        load.bytes_per_second,
        load.cpu_seconds_per_second,
        load.wall_seconds_per_second,
    )
    clocks.passed_ns += 1_000_000_000
    account.ended(began_ns)
    assert account.take(since_ns=clocks.now_ns() - 500_000_000) is not None
    began_ns = account.began()
    clocks.passed_ns += 1_000_000_000
    account.ended(began_ns)
    load = account.take()
    assert load is not None
    assert (0.0, 1.0) == (load.cpu_seconds_per_second, load.wall_seconds_per_second)
    assert account.take() is None


def test_a_function_that_never_ends_is_charged_when_work_begins_in_it(clocks: CpuClocks) -> None:
    """As one that takes messages for as long as the shard is here."""
    account, charged = Account(), list[int]()
    with account.charge():
        for _ in range(2):
            clocks.use(5)
            account.called()
            charged.append(account.cpu_ns)
            with account.charge():
                clocks.use(3)
            charged.append(account.cpu_ns)
    assert [5, 8, 13, 16] == charged


def test_what_begins_in_a_thread_during_a_question_counts_from_then_on(
    clocks: CpuClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, loads = Account(), list[BundleLoad | None]()
    account.began()
    clocks.passed_ns += 10**9

    def interrupted() -> int:
        monkeypatch.setattr(metering, "monotonic_ns", clocks.now_ns)
        return account.began()

    monkeypatch.setattr(metering, "monotonic_ns", interrupted)
    loads.append(account.take())
    clocks.passed_ns += 10**9
    loads.append(account.take())
    assert [1, 2] == [load and load.wall_seconds_per_second for load in loads]


def test_a_minute_in_a_thread_is_spread(clocks: CpuClocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is charged when it ends, and then counts as what all cores can do, until it is used up."""
    monkeypatch.setattr(metering, "_CORES", 2)
    account = Account()
    account.cpu_ns += 25 * 10**9
    shares = list[float]()
    for _ in range(4):
        clocks.passed_ns += 5 * 10**9
        load = account.take()
        shares.append(0.0 if load is None else load.cpu_seconds_per_second)
    assert [2, 2, 1, 0] == shares


@pytest.mark.parametrize("bad", [math.nan, math.inf, -(10**9), 10**400, -math.inf])
def test_what_no_account_can_have_counts_as_nothing(bad: float) -> None:
    """The figures are public. What a service adds must not end the reports of its broker."""
    account = Account()
    for _ in range(2):
        account.bytes += bad  # type: ignore[assignment]
        account.cpu_ns += bad  # type: ignore[assignment]
        account.called()
        load = account.take()
        assert load is not None
        assert (0, 0) == (load.bytes_per_second, load.cpu_seconds_per_second)
    account.bytes += 5
    assert account.take() is not None
    assert account.bytes == 0


async def test_what_goes_on_after_a_split_or_a_merge_is_charged_to_the_new_bundles(
    clocks: CpuClocks,
) -> None:
    """In equal parts."""
    first, ends = Account(), asyncio.Event()
    follow_tasks_and_threads()

    async def goes_on() -> None:
        await ends.wait()
        clocks.use(12)
        first.bytes += 6
        await asyncio.sleep(0)
        clocks.use(24)

    async def opened() -> asyncio.Task[None]:
        return asyncio.create_task(goes_on())

    began_ns = first.began()
    task = await driven_for(first, opened())
    one, other, left, right, union = (Account() for _ in range(5))
    first.give_to([one, other])
    one.give_to([left, right])
    left.give_to([union])
    right.give_to([union])
    clocks.passed_ns += 100
    ends.set()
    await task
    first.ended(began_ns)
    for account in (union, other):
        load, passed_ns = account.take(), clocks.now_ns()
        assert load is not None
        assert load.wall_seconds_per_second == pytest.approx(0.5)
        assert pytest.approx(18) == load.cpu_seconds_per_second * passed_ns
        assert pytest.approx(3e9) == load.bytes_per_second * passed_ns
    assert [None, None] == [account.take() for account in (union, other)]


def test_accounts_that_nothing_is_charged_to_are_forgotten() -> None:
    """A bundle may be cut and joined for years."""
    account = Account()
    for _ in range(100):
        before, account = account, Account()
        before.give_to([account])
    assert len(account.formers) <= 2
