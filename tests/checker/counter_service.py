"""Model a counter service in virtual time, to test the checker.

`CounterService` can be driven into any interleaving of calls, retries, transfers and broken
connections. Its output is clean unless one of its two checks is disabled. It has no tests and does
no IO.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from hypothesis import strategies as st

import case
import rules

HOT, COLD = "shop/orders/hot", "shop/orders/cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    token: int
    broker: str


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt of a request in progress. `ownership` is set once a broker starts to work on
    it.
    """

    request: str
    key: str
    target: str
    call_ns: int
    ownership: Ownership | None = None
    started_ns: int = 0
    result: case.Write | None = None
    refused: bool = False
    caller_gone: bool = False


Record = TypeVar("Record", case.Call, case.Write, case.Refusal, case.Work)


def changed(record: Record, **changes: object) -> Record:
    """Return a copy of a record with changed fields, even to values of a wrong type."""
    return type(record)._make((record._asdict() | changes).values())


@dataclass(slots=True)
class Leavings:
    """The output of a run, with methods to tamper with it."""

    calls: list[case.Call] = field(default_factory=list)
    writes: list[case.Write] = field(default_factory=list)
    refusals: list[case.Refusal] = field(default_factory=list)
    works: list[case.Work] = field(default_factory=list)

    def violations(self) -> dict[str, list[str]]:
        return rules.violations(self.case())

    def case(self) -> case.Case:
        return case.assembled(self.calls, self.writes, self.refusals, self.works)

    def change_answers(self, request: str, /, **changes: object) -> None:
        self.calls = [
            changed(call, **changes) if call.request == request else call for call in self.calls
        ]

    def change_rows(self, request: str, /, **changes: object) -> None:
        self.writes = [
            changed(row, **changes) if row.request == request else row for row in self.writes
        ]

    def change_both(self, request: str, /, **changes: object) -> None:
        """Change a request in the history and in the store alike, so that the two agree."""
        self.change_answers(request, **changes)
        self.change_rows(request, **changes)


class CounterService:
    """Brokers, callers and a store, correct except for disabled checks. Each method is one instant
    of one of them.
    """

    def __init__(
        self, *, store_checks_tokens: bool = True, brokers_check_ownership: bool = True
    ) -> None:
        self.store_checks_tokens = store_checks_tokens
        self.brokers_check_ownership = brokers_check_ownership
        self.now_ns = 0
        self.owner = {key: Ownership(token=10, broker="b0") for key in (HOT, COLD)}
        self.last_ownership = {
            (key, ownership.broker): ownership for key, ownership in self.owner.items()
        }
        self.on_the_way: list[Attempt] = []
        self.left = Leavings()

    def tick(self) -> int:
        self.now_ns += 10
        return self.now_ns

    def transfer(self, key: str, broker: str) -> None:
        """Begin an ownership with the next token. The old owner may no longer answer."""
        newest = max(ownership.token for ownership in self.owner.values())
        self.owner[key] = self.last_ownership[key, broker] = Ownership(
            token=newest + 7, broker=broker
        )

    def call(self, key: str, target: str, request: str) -> Attempt:
        """Send a request to the broker that the caller believes to be the owner."""
        attempt = Attempt(request=request, key=key, target=target, call_ns=self.tick())
        self.on_the_way.append(attempt)
        return attempt

    def start(self, attempt: Attempt) -> None:
        """Deliver a request to its broker. The broker redirects it unless it owns the key; without
        its check, unless it ever did.
        """
        ownership = self.last_ownership.get((attempt.key, attempt.target))
        if ownership is None or not self.may_work(attempt.key, ownership):
            self.answer(attempt, 307)
        else:
            attempt.ownership, attempt.started_ns = ownership, self.tick()

    def may_work(self, key: str, ownership: Ownership) -> bool:
        """Return whether the ownership check passes. It runs when work starts and again before the
        answer.
        """
        return self.owner[key] == ownership or not self.brokers_check_ownership

    def write(self, attempt: Attempt) -> None:
        """Deliver the broker's write to the store, perhaps long after the ownership ended. The
        token decides.
        """
        assert attempt.ownership is not None
        rows = [row for row in self.left.writes if row.key == attempt.key]
        # A retried request is applied once.
        known = [row for row in rows if row.request == attempt.request]
        highest = max((row.token for row in rows), default=0)
        if known:
            attempt.result = known[0]
        elif self.store_checks_tokens and attempt.ownership.token < highest:
            attempt.refused = True
            self.left.refusals.append(
                case.Refusal(attempt.request, attempt.key, attempt.ownership.token, highest)
            )
        else:
            attempt.result = case.Write(
                attempt.request,
                attempt.key,
                attempt.ownership.broker,
                attempt.ownership.token,
                len(rows) + 1,
            )
            self.left.writes.append(attempt.result)

    def finish(self, attempt: Attempt) -> None:
        """Check the ownership again and answer: the store's result, or that the result is
        unknown.
        """
        ownership, result, checked_ns = attempt.ownership, attempt.result, self.tick()
        assert ownership is not None
        if result is None:
            self.answer(attempt, 409 if attempt.refused else 503)
        elif not self.may_work(attempt.key, ownership):
            self.answer(attempt, 500)
        else:
            self.left.works.append(
                case.Work(
                    ownership.broker,
                    attempt.key,
                    ownership.token,
                    attempt.started_ns,
                    checked_ns,
                    checked_ns + 5,
                )
            )
            self.answer(attempt, 200, result)

    def answer(
        self, attempt: Attempt, status: int | None, result: case.Write | None = None
    ) -> None:
        """Deliver the answer. The caller records it if it still waits."""
        self.on_the_way.remove(attempt)
        if not attempt.caller_gone:
            self.note(attempt, status, result)

    def hang_up(self, attempt: Attempt) -> None:
        """Break the connection. The caller records an unknown outcome; the broker does not
        notice.
        """
        attempt.caller_gone = True
        self.note(attempt, None, None)

    def note(self, attempt: Attempt, status: int | None, result: case.Write | None) -> None:
        broker, token, value = (
            (result.broker, result.token, result.value) if result else (attempt.target, None, None)
        )
        self.left.calls.append(
            case.Call(
                attempt.request,
                attempt.key,
                broker,
                token,
                value,
                status,
                attempt.call_ns,
                self.tick(),
            )
        )

    def increment(self, key: str, *requests: str) -> None:
        """Make calls that overlap in time: send all before the first answer."""
        attempts = [self.call(key, self.owner[key].broker, request) for request in requests]
        for step in (self.start, self.write, self.finish):
            for attempt in attempts:
                step(attempt)

    def advance(self, attempt: Attempt) -> None:
        """Run the next step of a request."""
        if attempt.ownership is None:
            self.start(attempt)
        elif attempt.result is None and not attempt.refused:
            self.write(attempt)
        else:
            self.finish(attempt)


def plain_run() -> Leavings:
    """Run a story: a1 and a2 overlap, a3 follows; the key moves to b1; b4 and b5 overlap; a stale
    write is refused; c6, c7: other key.
    """
    service = CounterService()
    service.increment(HOT, "a1", "a2")
    service.increment(HOT, "a3")
    stale = service.call(HOT, "b0", "stale")
    service.start(stale)
    service.transfer(HOT, "b1")
    service.increment(HOT, "b4", "b5")
    service.write(stale)
    service.finish(stale)
    service.increment(COLD, "c6")
    service.increment(COLD, "c7")
    return service.left


class Step(NamedTuple):
    """One step of a random run: an action, and two numbers that choose its target."""

    action: str
    first: int
    second: int


# Three call actions for ten steps of progress, so that few requests are in progress and most are
# answered before the next transfer.
ACTIONS = ("call", "call", "retry", *["advance"] * 10, "give up", "hang up", "transfer")
STEPS = st.lists(
    st.builds(Step, st.sampled_from(ACTIONS), st.integers(0, 11), st.integers(0, 11)), max_size=150
)


def run(steps: Sequence[Step], service: CounterService) -> Leavings:
    """Drive the model through an interleaving. A caller retries only requests with an unknown
    outcome.
    """
    for number, step in enumerate(steps):
        attempt = (
            service.on_the_way[step.first % len(service.on_the_way)] if service.on_the_way else None
        )
        unknown = [call for call in service.left.calls if call.status in (None, 500)]
        key, broker = (HOT, COLD)[step.first % 2], f"b{step.second % 3}"
        if step.action == "call":
            # A third of the calls go to an arbitrary broker, the others to the owner.
            service.call(
                key, broker if step.first % 3 == 0 else service.owner[key].broker, f"r{number}"
            )
        elif step.action == "retry" and unknown:
            again = unknown[step.first % len(unknown)]
            service.call(again.key, service.owner[again.key].broker, again.request)
        elif step.action == "advance" and attempt:
            service.advance(attempt)
        elif step.action == "give up" and attempt and attempt.ownership:
            service.finish(attempt)
        elif step.action == "hang up" and attempt and not attempt.caller_gone:
            service.hang_up(attempt)
        elif step.action == "transfer":
            service.transfer(key, broker)
    service.increment(HOT, "last")  # So that the shortest run has something to check.
    return service.left
