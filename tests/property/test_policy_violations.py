"""Policy violations: for any policies, misplaced bundles come to rest where they may be, and
nothing else moves.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.brokers.balancing.destinations import Destinations
from equipoise.brokers.balancing.placement import (
    FewestBundles,
    LeastLongTermMessageRate,
    Placement,
    believed,
)
from equipoise.brokers.balancing.planning import policy_violations
from equipoise.channel.core import propose
from equipoise.shedder.loads import Load
from equipoise.shedder.plan import Move
from tests.channels.folding import Channel
from tests.property.test_placement_rules import Case, cases, may_have

EVERYTHING = 1_000


def model(case: Case, loads: dict[str, Load]) -> list[str]:
    """All bundles whose owner is up and may not have them, found by looking at each."""
    view = case.channel.view
    found = []
    for name, bundle in sorted(view.bundles.items()):
        owner = (
            view.live[bundle.owner]
            if bundle.phase == "owned" and bundle.owner is not None
            else None
        )
        if (
            owner is not None
            and owner.status == "up"
            and not may_have(case, loads, owner.broker, bundle)
        ):
            found.append(name)
    return found


def carry_out(channel: Channel, move: Move) -> None:
    assert move.destination is not None
    destination = channel.incarnation(move.destination)
    channel.accept(
        propose.transfer(
            channel.admin(),
            channel.view.bundles[move.bundle],
            destination=destination,
            reason=move.reason,
        )
    )
    channel.accept(
        propose.prepared(channel.author(move.destination), channel.view.bundles[move.bundle])
    )
    channel.accept(
        propose.hand_over(channel.author(move.source), channel.view.bundles[move.bundle])
    )


@settings(max_examples=150, deadline=None)
@given(case=cases(), weighs=st.booleans(), at_most=st.integers(1, 9))
def test_policy_violations_come_to_rest(case: Case, at_most: int, *, weighs: bool) -> None:
    """Each bundle that the model finds moves to an allowed broker or has a reason to stay. After
    all moves none is left.
    """
    loads = dict(believed(case.loads)) if weighs else {}
    placement: Placement = (
        LeastLongTermMessageRate(loads=loads, rules=case.rules)
        if weighs
        else FewestBundles(rules=case.rules)
    )
    view = case.channel.view

    def found(most: int) -> tuple[tuple[Move, ...], list[str]]:
        destinations = Destinations(view, loads=loads, rules=case.rules)
        moves, stays = policy_violations(destinations, placement=placement, at_most=most)
        return moves, [stay.subject for stay in stays]

    moves, stays = found(EVERYTHING)
    assert model(case, loads) == sorted([*stays, *(move.bundle for move in moves)])
    movable = {move.bundle for move in moves}
    for _ in range(len(movable) + 1):
        moves, _ = found(at_most)
        assert len(moves) <= at_most
        for move in moves:
            assert move.destination is not None
            assert may_have(case, loads, move.destination, view.bundles[move.bundle])
            carry_out(case.channel, move)
            movable.remove(move.bundle)
    assert set() == movable
    assert sorted(stays) == model(case, loads)
    case.channel.check()
