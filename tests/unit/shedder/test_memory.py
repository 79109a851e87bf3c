"""The memory of strategies between rounds."""

from __future__ import annotations

from equipoise.shedder.snapshot import Memory


def test_a_move_is_remembered_at_both_ends_for_as_long_as_they_live() -> None:
    """Brokers that are gone leave nothing behind, whichever strategy runs."""
    memory = Memory(gave_ms={"gone": 1, "a": 2}, got_ms={"gone": 1}).after_move(
        "b", "a", now_ms=7, duration_ms=3, live={"a", "b"}
    )
    assert ({"a": 2, "b": 7}, {"a": 7}) == (memory.gave_ms, memory.got_ms)
    memory = memory.after_move("a", None, now_ms=9, duration_ms=5, live={"a"})
    assert ({"a": 9}, {"a": 7}) == (memory.gave_ms, memory.got_ms)


def test_the_durations_of_the_last_moves_are_remembered() -> None:
    memory = Memory()
    for duration_ms in range(100):
        memory = memory.after_move("a", "b", now_ms=1, duration_ms=duration_ms, live={"a", "b"})
    assert (*range(68, 100),) == memory.durations_ms
