"""The checker of leadership raises on a leader that drains or is not the oldest, and on nothing else."""

from __future__ import annotations

from typing import cast

import pytest

from equipoise.brokers.testing.simulation.checkers.membership import Leadership
from equipoise.brokers.testing.simulation.checkers.violation import InvariantViolated
from equipoise.brokers.testing.simulation.host import Process
from equipoise.channel.core import propose
from equipoise.channel.core.view import View
from tests.unit.simulation.history import Fake, History


def two_brokers() -> tuple[History, Leadership, int, int]:
    """A history in which a and b joined, a checker that has seen it, and their incarnations."""
    history, leadership = History(), Leadership()
    leadership.folded(history.folded[0], history.view)
    incarnations = []
    for name in ("a", "b"):
        incarnations.append(history.join(name))
        leadership.folded(history.folded[-1], history.view)
    return history, leadership, incarnations[0], incarnations[1]


def process(view: View, incarnation: int | None, *, leads: bool) -> Process:
    """A broker that acts as the leader, or does not."""
    return cast("Process", Fake(host=Fake(name="a"), agent=Fake(view=view, incarnation=incarnation, leads=leads)))


def test_the_oldest_that_does_not_drain_leads() -> None:
    """Leadership passes on when the leader drains or dies, and only the leader acts as one."""
    history, leadership, first, second = two_brokers()
    leadership.stepped(process(history.view, first, leads=True))
    leadership.stepped(process(history.view, second, leads=False))
    leadership.stepped(process(View(), None, leads=False))
    for number, make in enumerate((propose.draining, propose.left), start=1):
        leadership.folded(history.add(make(history.author("a", number), history.view.brokers["a"])), history.view)
        leadership.stepped(process(history.view, second, leads=True))


def test_a_broker_that_drains_leads() -> None:
    """A view, or a broker, that takes a draining broker for the leader is found, and so is a leader that does nothing."""
    history, leadership, first, second = two_brokers()
    drains = history.add(propose.draining(history.author("a", 1), history.view.brokers["a"]))
    leadership.folded(drains, history.view)
    with pytest.raises(InvariantViolated, match=rf"section 5: .* a \(#{first}\) acts as the leader at offset 4, where #{second} leads"):
        leadership.stepped(process(history.view, first, leads=True))
    with pytest.raises(InvariantViolated, match=rf"a \(#{second}\) does not act as the leader"):
        leadership.stepped(process(history.view, second, leads=False))
    del history.view.live[second]
    with pytest.raises(InvariantViolated, match=f"at offset 4 the view names {first} as the leader, which is #{second}"):
        leadership.folded(drains, history.view)
