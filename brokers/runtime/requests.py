"""Propose what callers request, retry lost races, and return the results."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

from equipoise.brokers.agent.core import ATTEMPTS_MAX
from equipoise.brokers.agent.effects import Answered
from equipoise.brokers.agent.events import Requested
from equipoise.brokers.agent.intents import Intent, subject_of
from equipoise.brokers.agent.requested_moves import may_run_again
from equipoise.brokers.errors import Rejected
from equipoise.brokers.runtime.service import WorkerEnded
from equipoise.channel.core.errors import OutcomeUnknown, Overloaded
from equipoise.channel.system.deadline import Deadline

REQUESTS_MAX: Final = ATTEMPTS_MAX // 2
"""Requests at a time: half of the agent's unsettled attempts, so that callers never crowd out the broker's own proposals."""


class Requests:
    """The pending requests at one broker."""

    def __init__(self, step: Callable[[Requested], None], *, broker: str, log: str) -> None:
        """`step` gives the agent an event; `log` names the log in messages."""
        self._step = step
        self._broker = broker
        self._log = log
        # The result of each request; None if the broker ended before it was known.
        self._tickets: dict[int, asyncio.Future[Answered | None]] = {}
        self._numbers = itertools.count(1)
        self._end: WorkerEnded | None = None

    def answer(self, answered: Answered) -> None:
        """Settle a request. Its caller may be gone."""
        future = self._tickets.pop(answered.ticket, None)
        if future is not None and not future.done():
            future.set_result(answered)

    def end(self, error: WorkerEnded) -> None:
        """Settle all requests after the broker's end: pending ones are unknown, later ones raise `error`."""
        self._end = error
        for future in self._tickets.values():
            if not future.done():
                future.set_result(None)

    async def request(self, intent: Intent, *, timeout_ms: int) -> int:
        """See `brokers.runtime.worker.Worker.request`."""
        deadline = Deadline.after(timeout_ms=timeout_ms)
        race = 1
        while True:
            answered = await self._ask(intent, deadline)
            if answered.error is not None:
                raise answered.error.with_traceback(None)  # All attempts of one batch share it.
            verdict = answered.verdict
            assert verdict is not None, "what is answered has an error or a verdict"
            if verdict.reason is None:
                assert answered.offset is not None, "what was accepted stands on the log"
                return answered.offset
            # Past the deadline do not retry: this result is known.
            if not may_run_again(verdict.reason, race) or not deadline.remaining_ms():
                raise Rejected(key=subject_of(intent), reason=verdict.reason, problem=verdict.problem, offset=answered.offset)
            race += 1

    async def _ask(self, intent: Intent, deadline: Deadline) -> Answered:
        if self._end is not None:
            raise self._end.with_traceback(None)  # All callers share it.
        if len(self._tickets) >= REQUESTS_MAX:
            raise Overloaded(what=f"the row of requests at broker {self._broker}", limit=REQUESTS_MAX)
        ticket = next(self._numbers)
        future: asyncio.Future[Answered | None] = asyncio.get_running_loop().create_future()
        self._tickets[ticket] = future
        try:
            self._step(Requested(ticket=ticket, intent=intent))
            async with asyncio.timeout(deadline.remaining_ms() / 1_000):
                answered = await future
        except TimeoutError:
            raise self._unknown(intent, f"it was not read back within {deadline.timeout_ms} ms") from None
        finally:
            self._tickets.pop(ticket, None)
        if answered is None:
            assert self._end is not None, "only the end of the broker leaves a request without an answer"
            raise self._unknown(intent, f"broker {self._broker} ended before it was read back: {self._end.problem}") from self._end
        return answered

    def _unknown(self, intent: Intent, problem: str) -> OutcomeUnknown:
        return OutcomeUnknown(log=self._log, subject=subject_of(intent), problem=problem)
