"""Recovery: what a cluster is waited for once faults have stopped, and for how long.

May live here: `brokers.testing.simulation.checkers.recovery`, over processes made by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.testing.simulation.checkers.recovery import not_recovered, recovery_bound_ms
from equipoise.brokers.testing.simulation.host import Process
from equipoise.channel.core import propose
from equipoise.channel.core.propose import Author
from equipoise.channel.core.view import View
from tests.unit.simulation.history import NAMESPACE, Fake, History

NOW = Instant(1_000, 1_000)


def test_what_recovery_waits_for() -> None:
    """A bundle that is not served, and a request that is not answered, keep a cluster from having recovered."""
    history = History()
    history.create()
    problem = not_recovered(history.view, [], lambda _incarnation: None)
    assert problem is not None
    assert problem.endswith("(offset 2) is free")
    waiting = cast("Process", Fake(asked={3}, host=Fake(name="a"), agent=Fake(entry=None)))
    assert not_recovered(View(), [waiting], lambda _incarnation: None) == "a has not answered 1 requests"


def test_recovery_waits_for_a_drain_as_far_as_others_take_what_is_there() -> None:
    """A broker that drains is to own nothing in the end, unless all others refuse it; and where all drain nothing is owed."""
    history = History()
    history.create()
    me = history.join("a")
    for bundle in history.view.bundles_of(NAMESPACE):
        history.add(propose.assign(Author(publisher="admin:test", as_of=history.view.offset), bundle, owner=me))
        history.add(propose.opened(history.author("a", history.view.offset), history.view.bundles[bundle.name]))

    def process(name: str, status: str, *, takes: bool) -> Process:
        handles = {entry.name: Fake(token=entry.token, passes=lambda _now: True) for entry in history.view.bundles_of(NAMESPACE)}
        agent = Fake(entry=Fake(status=status), handle=handles.get)
        service = Fake(takes=lambda _namespace: takes)
        return cast("Process", Fake(alive=True, asked=set(), host=Fake(name=name, now=lambda: NOW), agent=agent, service=service))

    def problem(status: str, other: Process) -> str | None:
        mine = process("a", status, takes=True)
        return not_recovered(history.view, [mine, other], lambda _incarnation: mine)

    assert problem("up", process("b", "up", takes=True)) is None
    assert "which drains" in (problem("draining", process("b", "up", takes=True)) or "")
    assert problem("draining", process("b", "up", takes=False)) is None
    assert problem("draining", process("b", "draining", takes=True)) is None


def test_the_bound_of_recovery_grows_with_what_must_be_waited_for() -> None:
    """More brokers, and slower clocks, take longer."""
    timing = Timing()
    bound_ms = recovery_bound_ms(timing, brokers=3, late_ms=0)
    assert bound_ms < recovery_bound_ms(timing, brokers=4, late_ms=0)
    assert bound_ms < recovery_bound_ms(replace(timing, clock_rate_error_ppm=30_000), brokers=3, late_ms=0)
