"""Measure what the bundles of a broker use: calls, the time that they last, CPU time and bytes.

Theory of operation:

* Each ownership has an `Account`. What runs in a context of `Account.charge` is charged to it.
* A coroutine runs in steps, and between two of them its thread runs others. `driven` runs it step
  by step, and reads the CPU time of the thread before and after each.
* What a thread runs at a moment is a frame: a step of a driven coroutine, or a function in a thread
  without an event loop. In a frame only the innermost charge pays. So nothing is charged twice, and
  the accounts add up to the CPU time of the steps.
* A task that starts in a charge is charged to the same account until that charge ends. What lives
  on may serve everybody, such as a pool of connections that the first request has opened. A
  function that is given to a pool of threads is charged to its end, and before that when work
  begins in it.
* A coroutine that nobody drives is charged for a context in which it awaits nothing.

The CPU time of a thread neither falls nor grows faster than time passes. A clock that jumps, as
after the move of a virtual machine, is believed only as far as that. A step of less than `SHORT_NS`
has used the time that has passed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from inspect import GEN_CREATED, getgeneratorstate
from time import monotonic_ns, thread_time_ns
from types import CoroutineType, FrameType, TracebackType, coroutine
from typing import Any, Final, ParamSpec, Self, TypeVar, cast
from weakref import ref

from equipoise.shedder.loads import FIGURE_MAX, BundleLoad

Result = TypeVar("Result")
P = ParamSpec("P")

# The attribute of a function that stands before the one of a library.
_FOLLOWED: Final = "equipoise_followed"

SHORT_NS: Final = 1_000_000
"""What takes the processor from a thread takes it for longer. To read its CPU time takes a
microsecond, which is much for each step of a request."""
FRESH_NS: Final = 2_000_000
"""How old the last reading may be at the beginning of a step, which may be a long one. What the
thread has used meanwhile, and nobody was charged for, may be charged to a long step that waits."""

# Charges within one another. More were begun by work that nobody has finished, in a frame that
# lasts, such as one of a WebSocket.
_DEPTH_MAX: Final = 32

_CORES: Final = os.cpu_count() or 1
_NOTHING: Final = nullcontext()


class Account:
    """What one ownership has used since the last question. Any thread may add to the public
    figures: CPU time and bytes.
    """

    # Each figure changes in a statement that calls nothing between reading and writing, so no other
    # thread runs there.
    __slots__ = (
        "__weakref__",
        "_asked_ns",
        "_began_ns",
        "_reported_ns",
        "_running",
        "bytes",
        "calls",
        "cpu_ns",
        "formers",
        "heirs",
        "lasted_ns",
        "measures",
    )

    def __init__(self, *, measures: bool = True) -> None:
        """`measures`: whether CPU time is measured."""
        self.measures = measures
        self.cpu_ns = self.bytes = self.calls = 0
        # The calls that go on, the sum of the times when they began, and how long all others
        # lasted.
        self._running = self._began_ns = self.lasted_ns = 0
        # When it was asked last, and how long calls had lasted then.
        self._asked_ns, self._reported_ns = monotonic_ns(), 0
        # Of a bundle that was cut or joined. Work that goes on keeps the former ones alive.
        self.heirs: tuple[Account, ...] = ()
        self.formers: tuple[ref[Account], ...] = ()

    def give_to(self, heirs: Sequence[Account]) -> None:
        """Let `heirs` have in equal parts what is charged here, because the bundle was cut or
        joined, and its tasks go on.
        """
        living = self._living()
        for former in living:
            others = (each for each in former.heirs if each is not self)
            former.heirs = tuple(dict.fromkeys((*others, *heirs)))
        self.heirs = tuple(heirs)
        for heir in heirs:
            heir.formers += tuple(map(ref, (*living, self)))

    def _living(self) -> Sequence[Account]:
        found = [former for each in self.formers if (former := each()) is not None]
        self.formers = tuple(map(ref, found))
        return found

    def pass_on(self) -> None:
        """Give the heirs what was charged since the last time."""
        count = len(self.heirs)
        lasted_ns = self.lasted_ns + self._running * monotonic_ns() - self._began_ns
        # What is left over remains for the next time.
        calls, size, cpu_ns, more_ns = (
            each // count
            for each in (self.calls, self.bytes, self.cpu_ns, lasted_ns - self._reported_ns)
        )
        for heir in self.heirs:
            heir.calls += calls
            heir.bytes += size
            heir.cpu_ns += cpu_ns
            heir.lasted_ns += more_ns
        self.calls -= calls * count
        self.bytes -= size * count
        self.cpu_ns -= cpu_ns * count
        self._reported_ns += more_ns * count

    def charge(self) -> Charge:
        """Return a context whose CPU time is charged to this account."""
        if self.measures and threads.own.frame is None and _is_on_a_loop():
            return _Undriven(self)
        return Charge(self)

    def block(self) -> AbstractContextManager[object]:
        """Return the same for a part of a charge, which counts alone if nobody drives it."""
        return _NOTHING if threads.own.frame is not None else self.charge()

    def called(self) -> Charge | None:
        """Count a call, and let it pay."""
        self.calls += 1
        return self.pay()

    def pay(self) -> Charge | None:
        """Begin a charge that ends with the frame, if not before. Return it; None if there is no
        frame, or if this account pays already.
        """
        thread = threads.own
        frame = thread.frame
        if frame is None or not self.measures:
            return None
        outer = frame.charge
        if outer is not None and outer.account is self:
            if frame.waits:
                frame.settle(thread)
            return None
        return Charge(self).begin(frame, thread)

    def undriven(self) -> Charge | None:
        """Return a charge that has begun, unless a frame is charged."""
        return self.charge().__enter__() if threads.own.frame is None else None

    def began(self) -> int:
        """Note that something goes on, from now until `ended` is given the result."""
        now_ns = monotonic_ns()
        self._began_ns += now_ns
        self._running += 1
        return now_ns

    def ended(self, began_ns: int) -> None:
        """Note the end of what began then."""
        lasted_ns = monotonic_ns() - began_ns
        self._running -= 1
        self._began_ns -= began_ns
        self.lasted_ns += lasted_ns

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the context. What runs side by side adds up."""
        began_ns = self.began()
        try:
            yield
        finally:
            self.ended(began_ns)

    def take(self, since_ns: int = 0) -> BundleLoad | None:
        """Return what was used since the last question, per second; None if that is nothing. Then
        this is no question. `since_ns`: when the last one was, if it was later.
        """
        if self.formers:
            for former in self._living():
                former.pass_on()
        # Of one moment: a thread may begin or end something before the next call.
        lasted_ns, running, began_ns = self.lasted_ns, self._running, self._began_ns
        calls, size, cpu_ns = self.calls, self.bytes, self.cpu_ns
        if not (calls or size or cpu_ns or running or lasted_ns != self._reported_ns):
            return None
        # Anyone may have added anything.
        if not 0 <= size <= FIGURE_MAX:
            self.bytes = size = 0
        if not 0 <= cpu_ns <= FIGURE_MAX:
            self.cpu_ns = cpu_ns = 0
        now_ns = monotonic_ns()
        elapsed_ns = max(now_ns - max(self._asked_ns, since_ns), 1)
        # A function that has run in a thread for a minute is charged when it ends.
        cpu_ns = min(cpu_ns, elapsed_ns * _CORES)
        lasted_ns += running * now_ns - began_ns
        reported_ns, self._reported_ns, self._asked_ns = self._reported_ns, lasted_ns, now_ns
        self.calls -= calls
        self.bytes -= size
        self.cpu_ns -= cpu_ns
        elapsed_s = elapsed_ns / 1e9
        return BundleLoad(
            calls_per_second=min(calls / elapsed_s, FIGURE_MAX),
            bytes_per_second=min(size / elapsed_s, FIGURE_MAX),
            cpu_seconds_per_second=cpu_ns / elapsed_ns,
            wall_seconds_per_second=max(lasted_ns - reported_ns, 0) / elapsed_ns,
        )


class _Thread:
    """The frame that a thread runs, and what is known of its CPU time.

    `read_ns` is the CPU time at `read_at_ns`, `charged_ns` what was charged since then.
    """

    __slots__ = ("charged_ns", "frame", "read_at_ns", "read_ns", "undriven_ns")

    def __init__(self) -> None:
        self.frame: _Frame | None = None
        self.undriven_ns = 0  # Charged without a frame, in all.
        self.read(monotonic_ns())

    def read(self, now_ns: int) -> None:
        """Read the clock of CPU time."""
        self.read_ns, self.read_at_ns, self.charged_ns = thread_time_ns(), now_ns, 0

    def read_since(self, since_ns: int, now_ns: int) -> int:
        """Read the clock of CPU time. Return how far it has gone since a moment. Nothing before
        that is charged any more.
        """
        before_ns = self.read_ns + self.charged_ns
        self.read(now_ns)
        return max(0, min(self.read_ns - before_ns, now_ns - since_ns))  # A clock may jump.


class Threads(threading.local):
    """What is known of each thread."""

    def __init__(self) -> None:
        self.own = _Thread()


threads: Final = Threads()


class _Frame:
    """What a thread runs from `resume` to `pause`."""

    __slots__ = ("_since_ns", "charge", "outer")

    waits = True  # It may wait for something else than its turn, and may never end.

    def __init__(self, charge: Charge | None = None) -> None:
        """`charge` pays, if there is none within it."""
        self.charge = charge
        self.outer: _Frame | None = None
        self._since_ns = 0  # Until then everything is charged.

    def resume(self, thread: _Thread) -> None:
        outer = self.outer = thread.frame
        if outer is not None:
            outer.settle(thread)
        charge = self.charge
        if charge is not None:
            if charge.is_over:
                self.charge = charge.left()
            self.look(thread)
        thread.frame = self

    def pause(self, thread: _Thread) -> None:
        if self.charge is not None:
            self.settle(thread)
        outer = thread.frame = self.outer
        if outer is not None:
            outer.look(thread)

    def end(self, thread: _Thread) -> None:
        """End the charges that have begun in it."""
        charge = self.charge
        if charge is None:
            return
        self.settle(thread)
        self.charge = None  # Otherwise each would keep the other.
        while charge is not None and charge.frame is self:
            charge.is_over, charge.frame = True, None
            charge = charge.outer

    def look(self, thread: _Thread) -> None:
        """Charge only what is used from now on."""
        now_ns = self._since_ns = monotonic_ns()
        if self.waits or now_ns - thread.read_at_ns >= FRESH_NS:
            thread.read(now_ns)

    def settle(self, thread: _Thread) -> None:
        """Charge what was used until now."""
        charge = self.charge
        if charge is None:
            return
        since_ns, now_ns = self._since_ns, monotonic_ns()
        used_ns = now_ns - since_ns
        if used_ns < SHORT_NS and not self.waits:
            thread.charged_ns += used_ns
        else:
            used_ns = thread.read_since(since_ns, now_ns)
        charge.account.cpu_ns += used_ns
        self._since_ns = now_ns


class Charge:
    """A context whose CPU time is charged to `account`. It may end in another frame."""

    __slots__ = ("_is_alone", "account", "depth", "frame", "is_over", "outer")

    frame: _Frame | None
    """The one in which it has begun."""
    outer: Charge | None
    """The one around it."""

    def __init__(self, account: Account) -> None:
        """Begin it, or enter it as a context."""
        self.account = account
        self.frame = self.outer = None
        self.depth = 0
        self._is_alone = False
        self.is_over = not account.measures

    def begin(self, frame: _Frame, thread: _Thread) -> Self:
        """Begin it in a frame that the thread runs."""
        outer, self.frame = frame.charge, frame
        if outer is None:
            frame.look(thread)
        elif frame.waits or outer.account is not self.account:
            frame.settle(thread)
        self.depth = 0 if outer is None or outer.depth == _DEPTH_MAX else outer.depth + 1
        self.outer, frame.charge = outer if self.depth else None, self
        return self

    def __enter__(self) -> Self:
        if self.is_over:
            return self
        thread = threads.own
        frame = thread.frame
        if frame is None:
            frame, self._is_alone = _Frame(), True
            frame.resume(thread)
        return self.begin(frame, thread)

    def end(self) -> None:
        """End it. You may repeat it."""
        if self.is_over:
            return
        frame, thread = self.frame, threads.own
        self.is_over, self.frame = True, None
        if frame is None or frame is not thread.frame:
            return
        if self._is_alone:
            frame.pause(thread)
            return
        charge = frame.charge
        left = None if charge is None else charge.left()
        if charge is not None and (
            frame.waits or left is None or left.account is not charge.account
        ):
            frame.settle(thread)
        frame.charge = left

    def left(self) -> Charge | None:
        """Return the innermost charge that has not ended, of this and those around it."""
        charge: Charge | None = self
        while charge is not None and charge.is_over:
            charge = charge.outer
        return charge

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class _Undriven(Charge):
    """A context of a coroutine that nobody drives. It is charged if it awaits nothing."""

    __slots__ = ("_awaited", "_cpu_ns", "_since_ns", "_turn", "_within_ns")

    def __enter__(self) -> Self:
        self._awaited = list[None]()
        self._turn = asyncio.get_running_loop().call_soon(self._awaited.append, None)
        self._within_ns = threads.own.undriven_ns
        self._cpu_ns, self._since_ns = thread_time_ns(), monotonic_ns()
        return self

    def end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._turn.cancel()
        if self._awaited:  # The time is of others, too.
            return
        thread = threads.own
        used_ns = min(thread_time_ns() - self._cpu_ns, monotonic_ns() - self._since_ns)
        used_ns -= thread.undriven_ns - self._within_ns  # Of contexts within this one.
        if used_ns > 0:
            self.account.cpu_ns += used_ns
            thread.undriven_ns += used_ns


class _Step(_Frame):
    """The steps of a coroutine."""

    __slots__ = ()

    waits = False


@coroutine
def _stepwise(frame: _Frame, work: Awaitable[Result]) -> Generator[Any, Any, Result]:
    """Run a coroutine in a frame. A generator, because others take three times as long."""
    steps: Any = work if isinstance(work, CoroutineType) else work.__await__()
    step, given = steps.send, None
    while True:
        thread = threads.own
        if frame.charge is None and thread.frame is None:  # The same as `resume`, for speed.
            frame.outer, thread.frame = None, frame
        else:
            frame.resume(thread)
        try:
            yielded = step(given)
        except StopIteration as end:
            frame.end(thread)
            return cast("Result", end.value)
        except BaseException:
            frame.end(thread)
            raise
        finally:
            if frame.charge is None and frame.outer is None:  # The same as `pause`.
                thread.frame = None
            else:
                frame.pause(thread)
        try:
            given, step = (yield yielded), steps.send
        except GeneratorExit:
            step, given = _closing(steps), None
        except BaseException as error:  # noqa: BLE001 - the coroutine gets it
            step, given = steps.throw, error


def _closing(steps: Any) -> Callable[[None], None]:  # noqa: ANN401 - a coroutine or the like
    """Return the last step of a coroutine that is closed where it waits."""

    def close(_: None) -> None:
        steps.close()
        raise GeneratorExit

    return close


class _Driven(Coroutine[Any, Any, Result]):
    """A coroutine that runs in a frame, for tasks."""

    __slots__ = ("_steps", "_work")

    def __init__(self, work: Coroutine[Any, Any, Result], charge: Charge | None) -> None:
        """`charge` is around it."""
        self._work = work
        self._steps = cast("Generator[Any, Any, Result]", _stepwise(_Step(charge), work))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what libraries ask of a coroutine
        return getattr(self._work, name)

    def __await__(self) -> Generator[Any, Any, Result]:
        return self._steps

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - what the event loop waits for
        return next(self._steps)

    def send(self, value: Any) -> Any:  # noqa: ANN401 - as above
        """Run a step."""
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as above
        """Run a step that begins with an error."""
        has_begun = getgeneratorstate(self._steps) != GEN_CREATED
        return (self._steps if has_begun else self._work).throw(*error)

    def close(self) -> None:
        """End it where it waits."""
        self._steps.close()
        self._work.close()  # It has not begun, or has ended.


def driven(work: Awaitable[Result], *, measures: bool = True) -> Awaitable[Result]:
    """Return `work` so that it runs in a frame, if that `measures` anything."""
    return _stepwise(_Step(), work) if measures and threads.own.frame is None else work


def work_in(waiting: object) -> object | None:
    """Return the coroutine whose steps a suspended generator of `driven` runs; None for others."""
    frame: FrameType | None = getattr(waiting, "gi_frame", None)
    if frame is None or frame.f_code is not _stepwise.__code__:
        return None
    work: object = frame.f_locals["work"]
    return work


def driven_for(account: Account, work: Awaitable[Result]) -> Awaitable[Result]:
    """Return `work` so that it is charged to `account`, with the tasks that it starts, also after
    its end.
    """
    frame = threads.own.frame
    is_charged = frame is not None and frame.charge is not None and frame.charge.account is account
    if is_charged or not account.measures:
        return work
    return _stepwise(_Step(Charge(account)), work)


def follow_tasks_and_threads() -> None:
    """Have the tasks that start in a frame on the running loop, and the functions that are given to
    pools of threads in one, charged as it is. A program with a task factory keeps it.
    """
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_task)
    _follow(ThreadPoolExecutor, "submit", place=1)
    # Starlette and FastAPI run plain functions in the threads of anyio, which are no such pool.
    if "anyio.to_thread" in sys.modules:
        _follow(sys.modules["anyio.to_thread"], "run_sync", place=0)


def _follow(holder: object, name: str, *, place: int) -> None:
    """Have `holder.name` take functions, its argument at `place`, so that they are charged."""
    give: Callable[..., Any] = getattr(holder, name)
    if hasattr(give, _FOLLOWED):
        return

    @wraps(give)
    def followed(*given: object, **named: object) -> object:
        if len(given) > place and threads.own.frame is not None:
            function = cast("Callable[..., object]", given[place])
            given = *given[:place], _in_charge(function), *given[place + 1 :]
        return give(*given, **named)

    vars(followed)[_FOLLOWED] = True
    setattr(holder, name, followed)


def _task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Result] | Generator[Any, None, Result],
    **options: Any,  # noqa: ANN401 - those of `asyncio.Task`
) -> asyncio.Task[Result]:
    frame = threads.own.frame
    if frame is not None and isinstance(work, CoroutineType):
        work = _Driven(work, frame.charge)
    return asyncio.Task(work, loop=loop, **options)


def _in_charge(function: Callable[P, Result]) -> Callable[P, Result]:
    """Return a function to run in a thread, which is charged as this step is."""
    frame = threads.own.frame
    if frame is None or frame.charge is None:
        return function
    account = frame.charge.account

    @wraps(function)
    def charged(*given: P.args, **named: P.kwargs) -> Result:
        with account.charge():
            return function(*given, **named)

    return charged


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
