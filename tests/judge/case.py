"""The case that is judged: what callers saw, what the store holds, what brokers noted, put in order.

May live here: the shapes of what is read, what a status says of its call, and the indexing. Only the standard library is imported,
and nothing of the product. The rules are in `rules.py`, reading and printing in `judge.py`.
"""

from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple


class UnusableInputError(Exception):
    """The input cannot be judged: `where` it is, and `what` is wrong with it."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")


class Call(NamedTuple):
    """One line of a history: one attempt of one request. Status None: the connection broke."""

    request: str
    key: str
    broker: str | None
    token: int | None
    value: int | None
    status: int | None
    call_ns: int
    return_ns: int | None


class Write(NamedTuple):
    """One row of the store's `writes`, in the order of their positions: an increment that was applied."""

    request: str
    key: str
    broker: str
    token: int
    value: int


class Refusal(NamedTuple):
    """One row of the store's `refusals`: a write whose token was older than the highest seen for its key."""

    request: str
    key: str
    token: int
    highest: int


class Work(NamedTuple):
    """One line of a broker's evidence: the clock at the two ownership checks of a piece of answered work.

    `message` is what a producer sent, PRODUCER:SEQUENCE, if the work was to take it. `by_token`: past the end of a lease, in a
    namespace that leaves exclusivity to the store.
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
    """One acknowledged request, retries included: it took effect between `call_ns` and `return_ns`."""

    request: str
    key: str
    broker: str
    token: int
    value: int
    call_ns: int
    return_ns: int


class Case(NamedTuple):
    """All that is judged: attempts and rows by request, acknowledged requests by key."""

    attempts: dict[str, list[Call]]
    operations: dict[str, list[Operation]]
    writes: list[Write]
    stored: dict[str, list[Write]]
    refusals: list[Refusal]
    works: list[Work]


def outcome(status: int | None) -> str:
    """What an answer says of its request. A 500 promises nothing: its work may have been applied, like that of no answer."""
    if status == 200:
        return "acknowledged"
    if status == 307:
        return "redirected"
    return "refused" if status is not None and (status == 503 or 400 <= status < 500) else "unknown"


def assembled(calls: Iterable[Call], writes: list[Write], refusals: list[Refusal], works: list[Work]) -> Case:
    """Index the parts; raise UnusableInputError for a call that contradicts itself, or if there is nothing to judge.

    A retried request is ONE operation, from its first attempt that may have been applied to its first acknowledgement.
    """
    attempts: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        attempts[call.request].append(call)
        where = f"request {call.request!r}"
        if call.return_ns is not None and call.return_ns < call.call_ns:
            raise UnusableInputError(where, "it returned before it was called")
        if call.status == 200 and None in call:
            raise UnusableInputError(where, "it was acknowledged without broker, token, value or return_ns")
    operations: defaultdict[str, list[Operation]] = defaultdict(list)
    for request, tries in attempts.items():
        answers = [call for call in tries if call.status == 200]
        if answers:
            first = min(answers, key=attrgetter("return_ns"))
            called_ns = min([call.call_ns for call in tries if outcome(call.status) in ("acknowledged", "unknown")])
            operation = Operation._make((request, first.key, first.broker, first.token, first.value, called_ns, first.return_ns))
            operations[first.key].append(operation)
    if not operations:
        raise UnusableInputError("histories", "no call was acknowledged, so there is nothing to judge")
    stored: defaultdict[str, list[Write]] = defaultdict(list)
    for row in writes:
        stored[row.request].append(row)
    return Case(attempts, operations, writes, stored, refusals, works)
