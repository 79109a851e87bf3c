"""Arrange the checker's input: calls of clients, rows of the store, evidence of brokers.

Imports only the standard library, and nothing of the product. The rules are in `rules.py`, reading
and printing in `checker.py`.
"""

from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple


class UnusableInputError(Exception):
    """Unusable input: `where` it is, and `what` is wrong with it."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")


class Call(NamedTuple):
    """One line of a history: one attempt of one request. Status None means that the connection
    broke.
    """

    request: str
    key: str
    broker: str | None
    token: int | None
    value: int | None
    status: int | None
    call_ns: int
    return_ns: int | None


class Write(NamedTuple):
    """One row of the store's `writes`, in order of position: an increment that was applied."""

    request: str
    key: str
    broker: str
    token: int
    value: int


class Refusal(NamedTuple):
    """One row of the store's `refusals`: a write whose token was older than the highest seen for
    its key.
    """

    request: str
    key: str
    token: int
    highest: int


class Work(NamedTuple):
    """One line of a broker's evidence: the clock at the two ownership checks of a piece of answered
    work.

    * `message`: PRODUCER:SEQUENCE of the accepted message, if the work accepted one.
    * `by_token`: the lease had ended, in a namespace where the store enforces exclusivity.
    """

    broker: str
    key: str
    token: int
    started_ns: int
    answered_ns: int
    lease_deadline_ns: int
    message: str | None = None
    by_token: bool = False


class Operation(NamedTuple):
    """One acknowledged request with all its retries. It took effect between `call_ns` and
    `return_ns`.
    """

    request: str
    key: str
    broker: str
    token: int
    value: int
    call_ns: int
    return_ns: int


class Case(NamedTuple):
    """The input of the checker: attempts and rows by request, acknowledged requests by key."""

    attempts: dict[str, list[Call]]
    operations: dict[str, list[Operation]]
    writes: list[Write]
    stored: dict[str, list[Write]]
    refusals: list[Refusal]
    works: list[Work]


def outcome(status: int | None) -> str:
    """Classify an answer. A 500 promises nothing: like a call without an answer, it may have been
    applied.
    """
    if status == 200:
        return "acknowledged"
    if status == 307:
        return "redirected"
    return "refused" if status is not None and (status == 503 or 400 <= status < 500) else "unknown"


def assembled(
    calls: Iterable[Call], writes: list[Write], refusals: list[Refusal], works: list[Work]
) -> Case:
    """Index the input. Raise UnusableInputError for a call that contradicts itself, and for input
    without an acknowledged call.

    A retried request is ONE operation, from its first attempt that may have been applied to its
    first acknowledgement.
    """
    attempts: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        attempts[call.request].append(call)
        where = f"request {call.request!r}"
        if call.return_ns is not None and call.return_ns < call.call_ns:
            raise UnusableInputError(where, "it returned before it was called")
        if call.status == 200 and None in call:
            raise UnusableInputError(
                where, "it was acknowledged without broker, token, value or return_ns"
            )
    operations: defaultdict[str, list[Operation]] = defaultdict(list)
    for request, tries in attempts.items():
        answers = [call for call in tries if call.status == 200]
        if answers:
            first = min(answers, key=attrgetter("return_ns"))
            called_ns = min(
                [
                    call.call_ns
                    for call in tries
                    if outcome(call.status) in ("acknowledged", "unknown")
                ]
            )
            operation = Operation._make(
                (
                    request,
                    first.key,
                    first.broker,
                    first.token,
                    first.value,
                    called_ns,
                    first.return_ns,
                )
            )
            operations[first.key].append(operation)
    if not operations:
        raise UnusableInputError(
            "histories", "no call was acknowledged, so there is nothing to check"
        )
    stored: defaultdict[str, list[Write]] = defaultdict(list)
    for row in writes:
        stored[row.request].append(row)
    return Case(attempts, operations, writes, stored, refusals, works)
