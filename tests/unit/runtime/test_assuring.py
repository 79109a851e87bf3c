"""Answers of other brokers: only an assurance counts, whatever else comes back."""

from __future__ import annotations

import pytest

from equipoise.brokers.agent.events import Assured
from equipoise.brokers.runtime.assuring import assured_in

ANSWER = {"assured": True, "cluster": "shop", "asker": 1, "by": 2, "number": 3}


def test_an_assurance() -> None:
    assert Assured(cluster="shop", asker=1, by=2, number=3) == assured_in(ANSWER)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        "yes",
        {},
        ANSWER | {"assured": False},
        ANSWER | {"assured": 1},
        ANSWER | {"cluster": 7},
        ANSWER | {"by": "2"},
        {name: value for name, value in ANSWER.items() if name != "number"},
    ],
    ids=str,
)
def test_anything_else_is_none(answer: object) -> None:
    assert assured_in(answer) is None
