"""Propose records and run operations directly on the channel, in the calling thread: for the
command line and scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from equipoise.brokers.agent.intents import Intent, action_of, subject_of
from equipoise.brokers.agent.requests import BY_COUNT, may_run_again, record_of, refusal
from equipoise.brokers.errors import Rejected
from equipoise.brokers.operations.access import Access, until
from equipoise.brokers.operations.asking import ask_opened, order_to_drain
from equipoise.brokers.operations.checks import check_request, rejection, unless_overtaken
from equipoise.brokers.operations.steps import (
    AskOpened,
    Listen,
    Listener,
    Look,
    Operation,
    OrderDrain,
    Propose,
    ProposeEach,
    Seen,
    Step,
    Until,
    UntilOrGiveUp,
)
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.errors import DeadlineExceeded, EquipoiseError
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, Reason
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import append, author_now, ignore
from equipoise.channel.system.deadline import Deadline

T = TypeVar("T")


def run(access: Access, operation: Operation[T]) -> T:
    """Run an operation to its end by the deadline of `access`, and return its result. Raises what
    the operation and `submit` raise.
    """
    channel = _Channel(access)
    answer: object = None
    problem: EquipoiseError | None = None
    try:
        while True:
            step = operation.send(answer) if problem is None else operation.throw(problem)
            answer = problem = None
            try:
                answer = channel.carry_out(step)
            except EquipoiseError as error:
                problem = error
    except StopIteration as end:
        result: T = end.value
        return result


class _Channel:
    """Carries out the steps of one operation."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._listeners: list[Listener] = []

    def carry_out(self, step: Step) -> object:
        """Return the result of a step."""
        access = self._access
        match step:
            case Look():
                return Seen(
                    view=access.view,
                    log=access.log.name,
                    requester=access.publisher,
                    placement=BY_COUNT,
                )
            case Listen(listener=listener):
                self._listeners.append(listener)
                return None
            case Propose(intent=intent):
                return self._propose(intent)
            case ProposeEach(intents=intents):
                offsets = {}
                for intent in intents:
                    access.deadline.check(f"the request about {subject_of(intent)}")
                    with unless_overtaken():
                        offsets[subject_of(intent)] = self._propose(intent).offset
                return offsets
            case AskOpened(tokens=tokens, within_ms=within_ms):
                return ask_opened(
                    access,
                    tokens,
                    Deadline.after(timeout_ms=min(within_ms, access.deadline.remaining_ms())),
                )
            case Until(condition=condition, what=what):
                return until(access, condition, what=what, listener=self._heard)
            case UntilOrGiveUp(condition=condition, what=what, within_ms=within_ms):
                deadline = Deadline.after(timeout_ms=min(within_ms, access.deadline.remaining_ms()))
                try:
                    return until(
                        access, condition, what=what, deadline=deadline, listener=self._heard
                    )
                except DeadlineExceeded:
                    return None
            case OrderDrain(broker=broker, ends=ends):
                order_to_drain(broker, access.deadline, ends=ends)
                return None

    def _propose(self, intent: Intent) -> Folded:
        check_request(self._access.view, intent)
        return submit(self._access, partial(_record, intent), intent=intent, listener=self._heard)

    def _heard(self, news: Folded | Resync) -> None:
        for listener in self._listeners:
            listener(news)


def _record(intent: Intent, view: View, author: Author) -> AnyRecord:
    make = record_of(view, intent)
    if isinstance(make, Verdict):
        raise refusal(intent, make)
    return make(author)


def submit(
    access: Access,
    make_record: Callable[[View, Author], AnyRecord],
    *,
    intent: Intent | None = None,
    listener: Callable[[Folded], None] = ignore,
) -> Folded:
    """Propose a record and return it once it is accepted. Make it again if it loses a race
    (`may_run_again`).

    `intent` is what the record is made for, if it is for one. `listener` gets every record folded
    meanwhile. Raises `Rejected`, and what `channel.log.blocking_view.append` raises (for example
    `OutcomeUnknown`).
    """
    log, reader, deadline = access.log, access.reader, access.deadline
    if access.view.genesis is None:
        raise Rejected(
            key="log", reason=Reason.NO_GENESIS, problem=None, offset=None, action="change the"
        )
    race = 1
    while True:
        author = author_now(
            log, reader, publisher=access.publisher, deadline=deadline, listener=listener
        )
        folded = append(
            log, reader, make_record(access.view, author), deadline=deadline, listener=listener
        )
        reason = folded.verdict.reason
        if reason is None:
            return folded
        if not may_run_again(access.view, intent, reason, race):
            raise rejection(
                folded, access.view, "declare dead" if intent is None else action_of(intent)
            )
        race += 1
