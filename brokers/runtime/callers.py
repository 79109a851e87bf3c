"""Answer a broker's callers: listeners to records, waiters for the view, and requests for
records.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Final, NamedTuple, TypeVar

from equipoise.brokers.agent.core import ATTEMPTS_MAX
from equipoise.brokers.agent.effects import Answered
from equipoise.brokers.agent.events import Requested
from equipoise.brokers.agent.requests import (
    Intent,
    action_of,
    may_run_again,
    refusal,
    rejection,
    subject_of,
)
from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.service import Ownership, WorkerEnded
from equipoise.brokers.runtime.tracing import Spanned, Traces, traces_of, untraced
from equipoise.channel.core.errors import OutcomeUnknown, Overloaded
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View
from equipoise.channel.system.clocks import Deadline

_logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

WAITERS_MAX: Final = 4_096
"""Callers that look at each change themselves, in about 20 microseconds each: 80 ms for all, a
fifth of the stall that must not cost a lease. They are operators' moves and what a program waits
for."""

HELD_MAX: Final = 10_000
"""Callers in all lines, over all protocols. Each is a socket and some 10 KiB: 100 MB in all."""

# Check again without a change: a broker becomes suspect by time alone.
_LOOK_AGAIN_MS: Final = 100


class Caller:
    """A client's connection, and the tasks that wait in lines for its requests. Its end cancels
    them: nobody is left to answer.
    """

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits = set[asyncio.Task[object]]()

    def gone(self) -> None:
        """Cancel the waits. What has begun goes on."""
        for task in self._waits:
            task.cancel()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that the current task waits for this client meanwhile."""
        task = asyncio.current_task()
        assert task is not None, "a caller waits in a task"
        self._waits.add(task)
        try:
            yield
        finally:
            self._waits.discard(task)


CALLER: Final[ContextVar[Caller | None]] = ContextVar("equipoise caller", default=None)
"""The client whose request runs in this context. None in a server that does not set it, or cancels
its requests itself."""


class Line(NamedTuple):
    """The callers that wait for the same thing, such as an owner of one bundle: at most
    `places_max` of them.
    """

    name: str
    places_max: int


class Waiting:
    """The callers that wait for the view of one broker.

    The callers of a line look one after the other. The first looks at each change, so a change
    costs one look for each line. When the first has left, the next one looks in a later turn of the
    event loop. So when what they wait for comes, their work begins one by one, and other work of
    the loop is done in between.
    """

    def __init__(self, look: Callable[[], View], *, broker: str) -> None:
        """`look` returns the current view."""
        self._look = look
        self._broker = broker
        self._changed = asyncio.Event()
        self._count = 0
        self._held = 0
        # The turns of the callers in each line, in order. That of the first has come.
        self._lines: dict[str, dict[asyncio.Future[None], None]] = {}
        self._end: WorkerEnded | None = None

    def changed(self) -> None:
        """Make all waiting callers check again."""
        self._changed.set()

    def end(self, error: WorkerEnded) -> None:
        """End all waits with `error` after the broker's end."""
        self._end = error
        self._changed.set()

    def has_line(self, line: Line) -> bool:
        """Return whether callers wait in a line. Who comes now goes behind them."""
        return line.name in self._lines

    async def until(
        self,
        condition: Callable[[View], T | None],
        *,
        timeout_ms: int,
        what: str,
        line: Line | None = None,
    ) -> T:
        """Return the first value of `condition` other than None. It is called after each change. In
        a `line` others may be first, and the wait is cancelled if its `CALLER` has gone.

        Raise `DeadlineExceeded` naming `what`, `Overloaded` if too many wait, and `WorkerEnded`.
        """
        deadline = Deadline.after(timeout_ms=timeout_ms)
        if line is None or not self.has_line(line):
            result = self._result(condition)
            if result is not None:
                return result
        deadline.check(what)
        if line is None:
            return await self._alone(condition, deadline, what)
        caller = CALLER.get()
        with self._place_in(line) as turn, nullcontext() if caller is None else caller.waiting():
            await deadline.wait(turn, what=what)
            return await self._looks(condition, deadline, what)

    async def _alone(
        self, condition: Callable[[View], T | None], deadline: Deadline, what: str
    ) -> T:
        if self._count >= WAITERS_MAX:
            raise Overloaded(
                what=f"the queue of callers at broker {self._broker}", limit=WAITERS_MAX
            )
        self._count += 1
        try:
            return await self._looks(condition, deadline, what)
        finally:
            self._count -= 1

    @contextmanager
    def _place_in(self, line: Line) -> Iterator[asyncio.Future[None]]:
        """Take the last place in a line. Yield its turn, and pass the turn on at the end."""
        turns = self._lines.get(line.name, {})
        if len(turns) >= line.places_max:
            raise Overloaded(
                what=f"the queue for {line.name} at broker {self._broker}", limit=line.places_max
            )
        if self._held >= HELD_MAX:
            raise Overloaded(what=f"the queue of callers at broker {self._broker}", limit=HELD_MAX)
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(line.name, turns)[turn] = None
        self._held += 1
        _come(turns)
        try:
            yield turn
        finally:
            self._held -= 1
            del turns[turn]
            if turns:
                _come(turns)
            else:
                del self._lines[line.name]

    async def _looks(
        self, condition: Callable[[View], T | None], deadline: Deadline, what: str
    ) -> T:
        """Return the first result from now on."""
        while (result := self._result(condition)) is None:
            deadline.check(what)
            await self._change(deadline)
        return result

    def _result(self, condition: Callable[[View], T | None]) -> T | None:
        result = condition(self._look())
        if result is None and self._end is not None:
            raise self._end.with_traceback(None)  # All callers share it.
        return result

    async def _change(self, deadline: Deadline) -> None:
        """Wait until something has changed, or until the next periodic check."""
        changed = self._changed = asyncio.Event() if self._changed.is_set() else self._changed
        try:
            async with asyncio.timeout(min(deadline.remaining_ms(), _LOOK_AGAIN_MS) / 1_000):
                await changed.wait()
        except TimeoutError:
            return


def _come(turns: Mapping[asyncio.Future[None], None]) -> None:
    """Have the turn of the first in a line come, unless it has."""
    first = next(iter(turns))
    if not first.done():
        first.set_result(None)


REQUESTS_MAX: Final = ATTEMPTS_MAX // 2
"""Requests at a time: half of the agent's unsettled attempts, so that callers never crowd out the
broker's own proposals."""


class Requests:
    """The pending requests at one broker."""

    # The traces of the broker, if its program traces, and what makes a span.
    traces: Traces | None = None
    span: Spanned = staticmethod(untraced)

    def __init__(
        self, step: Callable[[Requested], None], view: Callable[[], View], *, broker: str, log: str
    ) -> None:
        """`step` gives the agent an event; `view` returns the broker's view; `log` names the log in
        messages.
        """
        self._step = step
        self._view = view
        self._broker = broker
        self._log = log
        # The result of each request; None if the broker ended before it was known.
        self._tickets: dict[int, asyncio.Future[Answered | None]] = {}
        self._numbers = itertools.count(1)
        self._end: WorkerEnded | None = None

    def trace(self, clock: Clock, ownerships: Mapping[str, Ownership]) -> None:
        """Trace requests from now on, if the program traces."""
        self.traces = traces_of(self._broker, clock, ownerships)
        if self.traces is not None:
            self.span = self.traces.span

    def answer(self, answered: Answered) -> None:
        """Settle a request. Its caller may be gone."""
        future = self._tickets.pop(answered.ticket, None)
        if future is not None and not future.done():
            future.set_result(answered)

    def end(self, error: WorkerEnded) -> None:
        """Settle all requests after the broker's end: pending ones are unknown, later ones raise
        `error`.
        """
        self._end = error
        for future in self._tickets.values():
            if not future.done():
                future.set_result(None)

    async def request(
        self, intent: Intent, *, timeout_ms: int, requested_by: str | None = None
    ) -> Folded:
        """Propose `intent`, retry lost races, and return the accepted record.

        `requested_by` (`admin:NAME`) is the operator to name in the record; None if the broker acts
        on its own.

        * `Rejected`: with the reason.
        * `OutcomeUnknown`: the result cannot be known.
        * `PeerError`, `Overloaded`: this broker cannot propose now, and the record was certainly
          not appended.
        * The errors of `Log.append`, such as `LogStorageFull`.
        * `WorkerEnded`: the broker ended before it proposed.
        """
        about = {"equipoise.requested_by": requested_by or self._broker}
        name, about["equipoise.key"] = f"request {action_of(intent)}", subject_of(intent)
        with self.span(name, **about):
            return await self._request(intent, timeout_ms=timeout_ms, requested_by=requested_by)

    async def _request(
        self, intent: Intent, *, timeout_ms: int, requested_by: str | None
    ) -> Folded:
        deadline = Deadline.after(timeout_ms=timeout_ms)
        race = 1
        while True:
            answered = await self._ask(intent, deadline, requested_by)
            if answered.error is not None:
                raise answered.error.with_traceback(None)  # All attempts of one batch share it.
            if answered.refused is not None:
                raise refusal(intent, answered.refused)
            folded = answered.folded
            assert folded is not None, "a request ends with a record, a refusal or an error"
            reason, view = folded.verdict.reason, self._view()
            if reason is None:
                return folded
            # Past the deadline do not retry: this result is known.
            if not may_run_again(view, intent, reason, race) or not deadline.remaining_ms():
                raise rejection(folded, view, action_of(intent))
            race += 1

    async def _ask(self, intent: Intent, deadline: Deadline, requested_by: str | None) -> Answered:
        if self._end is not None:
            raise self._end.with_traceback(None)  # All callers share it.
        if len(self._tickets) >= REQUESTS_MAX:
            raise Overloaded(
                what=f"the queue of requests at broker {self._broker}", limit=REQUESTS_MAX
            )
        ticket = next(self._numbers)
        future: asyncio.Future[Answered | None] = asyncio.get_running_loop().create_future()
        self._tickets[ticket] = future
        try:
            self._step(Requested(ticket=ticket, intent=intent, requested_by=requested_by))
            async with asyncio.timeout(deadline.remaining_ms() / 1_000):
                answered = await future
        except TimeoutError:
            raise self._unknown(
                intent, f"it was not read back within {deadline.timeout_ms} ms"
            ) from None
        finally:
            self._tickets.pop(ticket, None)
        if answered is None:
            assert self._end is not None, (
                "only the end of the broker leaves a request without an answer"
            )
            raise self._unknown(
                intent, f"broker {self._broker} ended before it was read back: {self._end.problem}"
            ) from self._end
        return answered

    def _unknown(self, intent: Intent, problem: str) -> OutcomeUnknown:
        return OutcomeUnknown(log=self._log, subject=subject_of(intent), problem=problem)
