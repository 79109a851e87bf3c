"""The check of histories: it is compared with the obvious one, which tries every order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.channels.linearizable import Call, is_linearizable


def step(state: int, call: Call) -> int | None:
    """A register: `write` a value, `read` one."""
    if call.what == "write":
        return int(str(call.value))
    return state if state == call.answer else None


def write(value: int, began: int, ended: int | None) -> Call:
    return Call(what="write", value=value, began=began, ended=ended)


def read(answer: int, began: int, ended: int) -> Call:
    return Call(what="read", answer=answer, began=began, ended=ended)


def is_explained_by_some_order(calls: Sequence[Call]) -> bool:
    """Try every order of every choice of the calls that nobody knows of."""
    known = [call for call in calls if call.ended is not None]
    unknown = [call for call in calls if call.ended is None]
    for chosen in range(1 << len(unknown)):
        for order in permutations(
            (*known, *(call for number, call in enumerate(unknown) if chosen >> number & 1))
        ):
            is_in_time = all(
                later.ended is None or earlier.began <= later.ended
                for number, earlier in enumerate(order)
                for later in order[number + 1 :]
            )
            state: int | None = 0
            for call in order:
                state = None if state is None else step(state, call)
            if is_in_time and state is not None:
                return True
    return False


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([write(1, 0, 1), read(1, 2, 3)], True),
        ([write(1, 0, 1), read(0, 2, 3)], False),
        ([write(1, 0, 4), read(0, 2, 3), read(1, 5, 6)], True),
        ([write(1, 0, 9), read(1, 2, 3), read(0, 5, 6)], False),
        ([write(1, 0, None), read(0, 2, 3), read(1, 5, 6)], True),
        ([write(1, 0, None), read(0, 2, 3)], True),
        ([write(1, 5, None), read(1, 2, 3)], False),
    ],
)
def test_a_history_is_judged(calls: Sequence[Call], *, expected: bool) -> None:
    assert expected == is_linearizable(calls, step, 0)


def a_call() -> st.SearchStrategy[Call]:
    times = st.tuples(st.integers(0, 9), st.integers(0, 5))
    writes = st.builds(
        lambda value, at, known: write(value, at[0], sum(at) if known else None),
        st.integers(0, 2),
        times,
        st.booleans(),
    )
    return writes | st.builds(
        lambda answer, at: read(answer, at[0], sum(at)), st.integers(0, 2), times
    )


@given(st.lists(a_call(), max_size=5))
def test_it_agrees_with_trying_every_order(calls: Sequence[Call]) -> None:
    assert is_explained_by_some_order(calls) == is_linearizable(calls, step, 0)
