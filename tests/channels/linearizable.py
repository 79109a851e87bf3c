"""Check whether the calls on one object could have happened one after another, each at one moment
between its start and its end.

After Wing and Gong (1993), with the memory of Lowe (2017): a state that the same calls have led to
before is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call: what was asked and answered, and when, in any unit of time.

    `ended` is None if nobody knows whether it had an effect: it may have it at any moment after
    `began`, or never.
    """

    what: str
    value: Hashable = None
    answer: Hashable = None
    began: int
    ended: int | None


def is_linearizable(
    calls: Sequence[Call], step: Callable[[State, Call], State | None], initial: State
) -> bool:
    """Return whether some order of the calls explains all answers. `step` returns the state after a
    call, None if its answer is wrong.
    """
    calls = sorted(calls, key=lambda call: call.began)
    tried = set[tuple[int, Hashable]]()
    known = sum(1 << number for number, call in enumerate(calls) if call.ended is not None)

    def explains(done: int, state: State) -> bool:
        if done & known == known:
            return True
        if (done, state) in tried:
            return False
        tried.add((done, state))
        # A call that begins after another one has ended cannot come before it.
        left = [(number, call) for number, call in enumerate(calls) if not done >> number & 1]
        first_end = min(call.ended for _, call in left if call.ended is not None)
        for number, call in left:
            if call.began > first_end:
                break
            after = step(state, call)
            if after is not None and explains(done | 1 << number, after):
                return True
        return False

    return explains(0, initial)
