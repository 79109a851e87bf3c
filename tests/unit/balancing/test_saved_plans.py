"""How many moves of a saved plan run at once."""

from __future__ import annotations

from equipoise.brokers.balancing.saved_plans import SavedPlan, read_plan
from equipoise.shedder.plan import Move


def plan(*moves: str, moves_max: int = 64, broker_moves_max: int = 16) -> SavedPlan:
    """Return a plan with moves such as `1ab`: bundle 1 from a to b."""
    made = [
        Move(bundle=move[0], source=move[1], destination=move[2], reason="test") for move in moves
    ]
    return SavedPlan(moves=made, moves_max=moves_max, broker_moves_max=broker_moves_max, facts={})


def batches(saved: SavedPlan) -> list[str]:
    """Return the bundles of each batch, when nobody else moves bundles."""
    left, found = list(saved.moves), []
    while left:
        batch = saved.next_batch(left, {})
        found.append("".join(move.bundle for move in batch))
        left = [move for move in left if move not in batch]
    return found


def test_the_moves_at_once_are_bounded_in_the_cluster_and_at_each_broker() -> None:
    moves = ("1ab", "2ab", "3cd", "4ac")
    assert ["1234"] == batches(plan(*moves))
    assert ["123", "4"] == batches(plan(*moves, moves_max=3))
    assert ["13", "2", "4"] == batches(plan(*moves, broker_moves_max=1))
    assert ["123", "4"] == batches(plan(*moves, broker_moves_max=2))


def test_moves_of_others_count() -> None:
    saved = plan("1ab", "2cd", broker_moves_max=1)
    assert ["2"] == [move.bundle for move in saved.next_batch(saved.moves, {"9": ("e", "b")})]
    assert () == saved.next_batch(saved.moves, {"9": ("a", "c")})
    assert ["2"] == [
        move.bundle for move in plan("1ab", "2cd").next_batch(saved.moves, {"1": ("a", "e")})
    ]


def test_a_file_keeps_the_bounds() -> None:
    saved = plan("1ab", moves_max=3, broker_moves_max=2)
    assert saved.id == read_plan(saved.text().encode()).id
